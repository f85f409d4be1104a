"""The site: ``sphinx-build -T -W --keep-going -n docs build/site`` (``pip install '.[docs]'``)."""

import sys
from pathlib import Path

import refimpl

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "refimpl"
author = "The refimpl developers"
project_copyright = author
version = release = refimpl.__version__
language = "en_GB"

extensions = [
    "myst_nb",
    "sphinx_proof",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "sphinx.ext.mathjax",
    "sphinxcontrib.bibtex",
    "companion",
]
root_doc = "index"
templates_path = []
exclude_patterns = ["_ext"]

# notebooks: executed at every build, from nothing, and an exception in one ends it
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 3
myst_ref_domains = ["std"]  # the name of a claim may be that of a function too
myst_dmath_double_inline = True
smartquotes = False  # an apostrophe is a derivative: ρ'

numfig = True
math_numfig = True
math_eqref_format = "({number})"
numfig_format = {"figure": "Figure %s"}
bibtex_bibfiles = ["references.bib"]
bibtex_default_style = "plain"

autodoc_default_options = {"members": True, "undoc-members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
_ALIASES = ("ArrayLike", "FloatArray", "Output", "Number", "Vector", "Matrix", "Prox", "Penalty", "Rows")
autodoc_type_aliases = {name: name for name in _ALIASES}  # as they are written, not spelt out
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
viewcode_line_numbers = True
html_theme = "furo"
html_title = "refimpl"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1d4e89", "color-brand-content": "#1d4e89"},
    "dark_css_variables": {"color-brand-primary": "#8ab8ec", "color-brand-content": "#8ab8ec"},
}
# MathJax comes with the site (companion.py): mathematics renders without a network
mathjax_path = "mathjax/tex-chtml.js"
mathjax3_config = {"chtml": {"scale": 0.9}}  # beside the text font
