"""What the figures share: an empty figure, and colours that stay apart in grey and for colour-blind readers."""

from __future__ import annotations

from typing import Any

# of Okabe and Ito; lines and markers differ as well
BLUE, GREEN, ORANGE, VERMILION = "#0072B2", "#009E73", "#E69F00", "#D55E00"
STAR: dict[str, Any] = {
    "linestyle": "none",
    "marker": "*",
    "markersize": 15,
    "color": "black",
    "markeredgecolor": "white",
}


def panels(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    """A matplotlib figure (no display is needed) and its axes, an array of shape (rows, columns)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)
