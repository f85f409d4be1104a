"""Figure 4: how much of a descent step ReLU can cut off, for h(x) = ½ x W xᵀ + ½ ‖x‖² − B xᵀ and α = 0.25.

The step is ξ = α ∇h(x), from x ≥ 0 to ReLU(x − ξ), and κ the share of it that can be cut off. With f = 0, so that the
step is on all of h, the certificate ``alternating.truncation`` reads κ ≤ (1 − ½ L_h α)².
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from scipy.optimize import nnls

from ..certificates import truncated_share
from ..console import Progress
from ..feedforward import FeedForwardEnergy
from . import canvas

SHARES = (0.2, 0.4, 0.6, 0.8)
_ALPHA, _SIZE = 0.25, 4.0
_W = ((1.2, 0.5), (0.5, 0.6))
_BIASES = ((4.0, 2.6), (4.0, -1.6))  # the minimiser over x ≥ 0 is inside, and on the edge
_START, _STEPS = (3.6, 3.4), 25


def compute(seed: int = 0, progress: Progress | None = None, cells: int = 121) -> dict[str, Any]:
    """κ at cells × cells points of the square, to six decimals, a row for each x₂. Nothing is drawn at random.

    allowed : (1 − ½ L_h α)², the largest κ with which the step on all of h is certified. cut : 1 where ReLU does cut
    off an entry of the step, as a string of digits a row. minimiser : of h over x ≥ 0. path : the ReLU steps.
    """
    line = np.linspace(0.0, _SIZE, cells)
    grid = np.stack(np.meshgrid(line, line), axis=-1)[..., None, :]  # (rows, columns, 1, 2)
    panels = []
    for done, B in enumerate(_BIASES, 1):
        energy = FeedForwardEnergy(_W, B, "relu")  # h up to a constant
        xi = _ALPHA * energy.gradient(grid)
        R = np.linalg.cholesky(np.eye(2) + _W).T  # h = ½ ‖x Rᵀ − c‖² up to a constant, with c R = B
        minimiser, _ = nnls(R, np.linalg.solve(R.T, B))
        x, path = np.array([_START]), [list(_START)]
        for _ in range(_STEPS):
            x = np.asarray(energy.step(x, _ALPHA))
            path.append(x[0].tolist())
        cut = (xi > grid).any(axis=(-2, -1)).astype(int).tolist()
        panels.append(
            {
                "B": list(B),
                "kappa": truncated_share(grid, xi).round(6).tolist(),
                "cut": ["".join(map(str, row)) for row in cut],
                "minimiser": minimiser.tolist(),
                "path": path,
            }
        )
        if progress is not None:
            progress(done, len(_BIASES), "truncated share on a grid")
    return {
        "W": [list(row) for row in _W],
        "alpha": _ALPHA,
        "L_h": energy.curvature,
        "allowed": (1 - 0.5 * energy.curvature * _ALPHA) ** 2,
        "shares": list(SHARES),
        "x": line.tolist(),
        "panels": panels,
    }


def draw(numbers: dict[str, Any]) -> Any:
    """The figure of ``compute``."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    figure, axes = canvas.panels(1, 2, 11, 6.2)
    levels, shades = [0.0, *numbers["shares"], 1.0001], ("white", "0.9", "0.78", "0.64", "0.48")
    for panel, part in zip(axes[0], numbers["panels"], strict=True):
        kappa, cut = np.array(part["kappa"]), np.array([list(map(int, row)) for row in part["cut"]])
        panel.contourf(numbers["x"], numbers["x"], kappa, levels, colors=shades)
        panel.contour(numbers["x"], numbers["x"], kappa, numbers["shares"], colors="black", linewidths=0.8)
        panel.contour(
            numbers["x"], numbers["x"], kappa, [numbers["allowed"]], colors=canvas.BLUE, linewidths=2.5, linestyles="--"
        )
        if cut.any():
            panel.contourf(numbers["x"], numbers["x"], cut, [0.5, 1.5], colors="none", hatches=["///"])
        panel.plot(*np.array(part["path"]).T, "o-", color=canvas.VERMILION, markersize=4, linewidth=1, clip_on=False)
        panel.plot(*part["minimiser"], **canvas.STAR, clip_on=False, zorder=5)
        says = (
            "ReLU cuts steps off where it is hatched"
            if cut.any()
            else "κ is large near the edges, yet nothing is cut off"
        )
        panel.set(
            title=f"B = ({part['B'][0]:g}, {part['B'][1]:g}): {says}".replace("-", "−"),
            xlabel="$x_1$",
            ylabel="$x_2$",
            aspect="equal",
        )
    ends = ("0", *(f"{share:g}" for share in numbers["shares"]), "1")
    names = [f"{low} to {high}" for low, high in pairwise(ends)]
    figure.legend(
        handles=[
            *(Patch(facecolor=s, edgecolor="black", label=f"κ {name}") for s, name in zip(shades, names, strict=True)),
            Line2D(
                [],
                [],
                color=canvas.BLUE,
                linewidth=2.5,
                linestyle="--",
                label=f"κ = {numbers['allowed']:.3f}: up to it certified",
            ),
            Patch(facecolor="none", edgecolor="black", hatch="///", label="ReLU cuts off an entry"),
            Line2D([], [], color=canvas.VERMILION, marker="o", markersize=4, label="steps ReLU(x − α ∇h)"),
            Line2D([], [], **canvas.STAR, label="minimiser over x ≥ 0"),
        ],
        loc="outside lower center",
        ncols=3,
        frameon=False,
    )
    return figure
