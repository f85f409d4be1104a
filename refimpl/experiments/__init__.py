"""The figures of Yang, Huang, Wipf (2022), computed anew: one module an experiment, the numbers apart from the drawing.

``compute`` returns plain numbers, which is what the JSON beside a figure holds, and ``draw`` draws nothing else.
"""
