"""Figure 1: where a step on one term is certain not to raise the sum.

Above, the regions of Apollonius for C = 0.7 and C = 1.5. Below, alternation on two quadratics of the plane,
f = ½ (y − a) P (y − a)ᵀ and g = ½ (y − b) R (y − b)ᵀ, and for the step on each what is certified and what happens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..certificates import apollonius, gradient_norm
from ..console import Progress
from ..numerics import FloatArray
from . import canvas

RATIOS = (0.7, 1.5)
LEVELS = (
    "certified by the distances (alternating.apollonius)",
    "certified by the gradients only (alternating.gradient_norm)",
    "not certified, and h falls",
    "h rises",
)
_P, _a = np.array([[1.0, 0.3], [0.3, 1.4]]), np.array([[1.2, -0.8]])
_R, _b = np.array([[1.6, -0.4], [-0.4, 1.0]]), np.array([[-1.2, 0.6]])
_ALPHA, _STEPS, _START = 0.2, 16, np.array([[3.4, 3.0]])
_EXTENT = (-4.0, 4.0)


def ball(y_f: ArrayLike, y_h: ArrayLike, C: float) -> tuple[FloatArray, float]:
    """Centre (y_f − C² y_h) / (1 − C²) and radius C ‖y_f − y_h‖ / |1 − C²| of the ball of Apollonius, C ≠ 1.

    On its sphere ‖y − y_f‖ = C ‖y − y_h‖. Descent is certified inside for C < 1 and outside for C > 1.
    Derivation: ``derivations/04_alternating.md``.
    """
    near, far = np.asarray(y_f, dtype=np.float64), np.asarray(y_h, dtype=np.float64)
    centre = (near - C**2 * far) / (1 - C**2)
    return centre, C * float(np.linalg.norm(near - far)) / abs(1 - C**2)


def compute(seed: int = 0, progress: Progress | None = None, cells: int = 241) -> dict[str, Any]:
    """The circles, the iterates, and the level of each of cells × cells points. Nothing is drawn at random.

    steps : for the step on g and on f the circle of Apollonius, and ``levels``, a string a row from the lowest, whose
    digits say by ``LEVELS`` what is known of the step from that point.
    """
    y_f, y_h = [-0.8, 0.0], [0.8, 0.0]
    circles = [{"C": C, "y_f": y_f, "y_h": y_h} | _circle(y_f, y_h, C) for C in RATIOS]

    minimum = np.linalg.solve(_P + _R, (_a @ _P + _b @ _R).T).T
    curvature = np.linalg.eigvalsh(_P + _R)
    constants = {"m_h": float(curvature[0]), "L_h": float(curvature[-1]), "alpha": _ALPHA}
    line = np.linspace(*_EXTENT, cells)
    grid = np.stack(np.meshgrid(line, line), axis=-1)[..., None, :]  # (rows, columns, 1, 2)
    terms = {"f": (_a, _P), "g": (_b, _R)}
    steps = {}
    for done, (on, other) in enumerate((("g", "f"), ("f", "g")), 1):
        L_f = float(np.linalg.eigvalsh(terms[other][1])[-1])
        steps[on] = {"L_f": L_f, "C": constants["m_h"] / L_f} | _circle(
            terms[other][0][0], minimum[0], constants["m_h"] / L_f
        )
        rows = _levels(grid, terms[on], terms[other], minimum, L_f, constants)
        steps[on]["levels"] = ["".join(map(str, row)) for row in rows.tolist()]
        if progress is not None:
            progress(done, 2, "certificates on a grid")

    y, iterates = _START, []
    for k in range(_STEPS):
        on, other = ("g", "f") if k % 2 == 0 else ("f", "g")
        level = _levels(y, terms[on], terms[other], minimum, steps[on]["L_f"], constants)
        iterates.append({"y": y[0].tolist(), "h": float(_h(y)), "step_on": on, "level": int(level)})
        y = y - _ALPHA * (y - terms[on][0]) @ terms[on][1]
    return {
        "circles": circles,
        "quadratics": {"P": _P.tolist(), "a": _a[0].tolist(), "R": _R.tolist(), "b": _b[0].tolist()} | constants,
        "minimiser": minimum[0].tolist(),
        "extent": list(_EXTENT),
        "levels": list(LEVELS),
        "steps": steps,
        "iterates": [*iterates, {"y": y[0].tolist(), "h": float(_h(y)), "step_on": None, "level": None}],
    }


def _circle(y_f: ArrayLike, y_h: ArrayLike, C: float) -> dict[str, Any]:
    centre, radius = ball(y_f, y_h, C)
    return {"centre": centre.tolist(), "radius": radius, "certified": "inside" if C < 1 else "outside"}


def _h(y: FloatArray) -> Any:
    """f + g at y (..., 1, 2), shape (...)."""
    return 0.5 * (((y - _a) @ _P) * (y - _a) + ((y - _b) @ _R) * (y - _b)).sum(axis=(-2, -1))


def _levels(
    y: FloatArray, on: Any, other: Any, minimum: FloatArray, L_f: float, constants: dict[str, float]
) -> FloatArray:
    """The index in ``LEVELS`` of the step on the term ``on`` from y (..., 1, 2), shape (...)."""
    alpha, L_h = constants["alpha"], constants["L_h"]
    step, pull = (y - on[0]) @ on[1], (y - other[0]) @ other[1]
    by_distance = apollonius(y, other[0], minimum, L_f=L_f, **constants).holds
    by_gradient = gradient_norm(pull, step, L_h=L_h, alpha=alpha).holds
    return np.select([by_distance, by_gradient, _h(y - alpha * step) <= _h(y)], [0, 1, 2], 3)


def draw(numbers: dict[str, Any]) -> Any:
    """The figure of ``compute``."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Circle, Patch

    figure, axes = canvas.panels(2, 2, 10, 10.6)
    for panel, circle in zip(axes[0], numbers["circles"], strict=True):
        _draw_circle(panel, circle)

    shades = ("white", "0.87", "0.68", canvas.VERMILION)
    extent, path = numbers["extent"], np.array([point["y"] for point in numbers["iterates"]])
    for panel, (on, step) in zip(axes[1], numbers["steps"].items(), strict=True):
        levels = np.array([list(map(int, row)) for row in step["levels"]])
        panel.imshow(levels, origin="lower", extent=extent * 2, cmap=ListedColormap(shades), vmin=-0.5, vmax=3.5)
        panel.add_patch(Circle(step["centre"], step["radius"], fill=False, linestyle="--", edgecolor="black"))
        panel.plot(*path.T, color=canvas.BLUE, linewidth=1)
        taken = np.array([point["y"] for point in numbers["iterates"] if point["step_on"] == on])
        panel.plot(*taken.T, "o", color=canvas.BLUE, markeredgecolor="white", markersize=7)
        panel.plot(*numbers["minimiser"], **canvas.STAR)
        other, target = ("f", "a") if on == "g" else ("g", "b")
        panel.plot(*numbers["quadratics"][target], "s", color="black", markeredgecolor="white", markersize=8)
        away = np.sign(np.subtract(numbers["quadratics"][target], numbers["minimiser"]))
        panel.annotate(
            f"minimum of {other}",
            numbers["quadratics"][target],
            xytext=away * (8, 10),
            textcoords="offset points",
            ha="left" if away[0] > 0 else "right",
            va="center",
        )
        panel.set(
            title=f"Two quadratics, the step on {on}: C = {step['C']:.2f}\n(dots: the iterates from which it is taken)",
            xlabel="$y_1$",
            ylabel="$y_2$",
            xlim=extent,
            ylim=extent,
        )
    figure.legend(
        handles=[
            Patch(fc=shade, ec="black", label=label) for shade, label in zip(shades, numbers["levels"], strict=True)
        ],
        loc="outside lower center",
        ncols=2,
        frameon=False,
        title="What the step from a point does (star: the minimiser of h = f + g, dashed: the circle of Apollonius)",
    )
    return figure


def _draw_circle(panel: Any, circle: dict[str, Any]) -> None:
    """The region of one C hatched, with the two minimisers."""
    from matplotlib.patches import Circle, Rectangle

    inside, size = circle["certified"] == "inside", 5.0
    hatched: dict[str, Any] = {"facecolor": "0.93", "edgecolor": "0.6", "hatch": "///", "linewidth": 0}
    if not inside:
        panel.add_patch(Rectangle((-size, -size), 2 * size, 2 * size, **hatched))
    fill: dict[str, Any] = hatched if inside else {"facecolor": "white"}
    panel.add_patch(Circle(circle["centre"], circle["radius"], **fill))
    panel.add_patch(Circle(circle["centre"], circle["radius"], fill=False, edgecolor="black", linewidth=1.5))
    panel.plot(*circle["y_f"], "s", color="black", markersize=8)
    panel.plot(*circle["y_h"], **canvas.STAR)
    for key, text, side in (("y_f", "minimum\nof f", "right"), ("y_h", "minimum\nof h", "left")):
        away = {
            "xytext": (-10 if side == "right" else 10, 0),
            "textcoords": "offset points",
            "ha": side,
            "va": "center",
        }
        panel.annotate(text, circle[key], bbox={"facecolor": "white", "edgecolor": "none", "pad": 1}, **away)
    where = "inside" if inside else "outside"
    panel.set(
        title=f"C = {circle['C']}: a step on g cannot raise h = f + g\n{where} the circle of Apollonius (hatched)",
        xlabel="$y_1$",
        ylabel="$y_2$",
        xlim=(-size, size),
        ylim=(-size, size),
        aspect="equal",
    )
