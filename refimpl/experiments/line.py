"""Tokens on a line: a step under the majorizer, one where there is none, and plain softmax beside the descent step."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .. import definitions
from ..attention import AttentionEnergy
from ..console import Progress
from ..numerics import FloatArray
from . import canvas

# ρ, where the token that moves starts, the others, the interval drawn
_CASES = (
    ("exp", 2.4, (-1.2, 0.3, 1.4), (-0.5, 3.2)),
    ("z**2", 0.15, (-1.0, 1.0), (-1.15, 1.15)),
)
_MOVES = 5
_START, _STEPS = (-0.5, 0.0, 4.0), 6


def majorizer(seed: int = 0, progress: Progress | None = None, cells: int = 161) -> dict[str, Any]:
    """E as a function of one token y, the others fixed, at ``cells`` places, and steps of that token alone.

    A panel a penalty. Nothing is drawn at random.

    moves : y, the energy there, Q(· | Y) at the places, and what Q says of a step of size α: ``minimiser``, reached
    with α = 1 / (1 − A_11), since Q bends by d_1 − Γ_11 and the step divides by d_1, and ``limit``, with twice that,
    where Q is back at E(Y): how far y may go if Q majorizes E. ``at`` : Q after the step α = 1, at the minimiser and
    at the limit. max_alpha : at the first Y, of all tokens at once; a bound for a concave penalty only.
    """
    panels = []
    for rho, y, others, extent in _CASES:
        attention, places, moves = AttentionEnergy(rho=rho), np.linspace(*extent, cells), []
        for _ in range(_MOVES + 1):
            Y = _tokens(y, others)
            after, own = float(attention.step(Y)[0, 0]), float(attention.weights(Y)[0, 0])
            minimiser = y + (after - y) / (1 - own)
            limit = 2 * minimiser - y
            moves.append(
                {
                    "y": y,
                    "energy": float(attention.value(Y)),
                    "majorizer": attention.majorizer(_tokens(places, others), Y).tolist(),
                    "A_11": own,
                    "minimiser": minimiser,
                    "limit": limit,
                    "at": attention.majorizer(_tokens([after, minimiser, limit], others), Y).tolist(),
                }
            )
            y = after
        panels.append(
            {
                "rho": rho,
                "others": list(others),
                "max_alpha": float(attention.max_alpha(_tokens(moves[0]["y"], others))),
                "places": places.tolist(),
                "energy": attention.value(_tokens(places, others)).tolist(),
                "moves": moves,
            }
        )
    return {"panels": panels}


def _tokens(y: ArrayLike, others: tuple[float, ...]) -> FloatArray:
    """The tokens y and ``others`` for each y (...), shape (..., n, 1)."""
    moving = np.asarray(y, dtype=np.float64)[..., None]
    fixed = np.broadcast_to(others, (*moving.shape[:-1], len(others)))
    return np.concatenate([moving, fixed], axis=-1)[..., None]


def draw_majorizer(numbers: dict[str, Any]) -> Any:
    """The figure of ``majorizer``."""
    figure, axes = canvas.panels(1, 2, 9, 5.6)
    says = (
        "ρ = −exp(−z), concave: Q is above E,\nand a step that lowers Q lowers E",
        "ρ = z², not concave: Q is below E,\nand each step raises E",
    )
    touching: dict[str, Any] = {"color": canvas.BLUE, "markeredgecolor": "white", "linestyle": "none"}
    for panel, part, title in zip(axes[0], numbers["panels"], says, strict=True):
        first, second, *_ = moves = part["moves"]
        for values, dashes, width, color, label in (
            (part["energy"], "-", 2.0, "black", "energy E"),
            (first["majorizer"], "--", 2.0, canvas.BLUE, "Q(· | Y), which touches E at Y"),
            (second["majorizer"], ":", 1.8, canvas.BLUE, "Q after the first step"),
        ):
            panel.plot(part["places"], values, dashes, linewidth=width, color=color, label=label)
        panel.plot(
            *([move[key] for move in moves] for key in ("y", "energy")),
            "o",
            color=canvas.VERMILION,
            markersize=8,
            markeredgecolor="white",
            label="E at the token, steps of α = 1",
        )
        to_minimum = 1 / (1 - first["A_11"])
        marks = [
            (second["y"], 1.0, "^", "Q after α = 1", (-9, 0, "right")),
            (first["minimiser"], to_minimum, "D", "minimum of Q", (0, -15, "center")),
            (first["limit"], 2 * to_minimum, "s", "Q back at E(Y): the largest α", (9, 8, "left")),
        ]
        if first["A_11"] == 0:  # the step goes to the minimum, and nothing is promised as far as the limit
            marks = [(*marks[0][:4], (0, -15, "center"))]
        for (y, alpha, marker, label, (right, up, align)), Q in zip(marks, first["at"], strict=False):
            panel.plot(y, Q, marker, markersize=8, zorder=4, label=label, **touching)
            panel.annotate(
                f"α = {alpha:.3g}", (y, Q), xytext=(right, up), textcoords="offset points", ha=align, va="center"
            )
        panel.annotate("Y", (first["y"], first["energy"]), xytext=(9, -4), textcoords="offset points", va="center")
        low, high = min(part["energy"]), max(part["energy"])
        panel.set(title=title, xlabel="place y of the token that moves", ylabel="energy")
        panel.set_ylim(low - 0.12 * (high - low), high + 0.12 * (high - low))
        panel.grid(color="0.92")
    start = numbers["panels"][0]["moves"][0]
    axes[0, 0].plot([start["limit"], start["y"]], [start["energy"]] * 2, color="0.45", linewidth=1)
    style: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "center"}
    arrow = {"arrowstyle": "->", "color": canvas.VERMILION, "shrinkA": 4, "shrinkB": 4}
    path = [(move["y"], move["energy"]) for move in numbers["panels"][1]["moves"]]
    for k, (before, after) in enumerate(pairwise(path), 1):
        axes[0, 1].annotate("", after, xytext=before, arrowprops=arrow)
        axes[0, 1].annotate(str(k), after, xytext=(np.copysign(14, after[0]), -5), **style)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def plain_softmax(seed: int = 0, progress: Progress | None = None) -> dict[str, Any]:
    """Steps from Y = (−½, 0, 4), W = 1, by softmax_β and by plain softmax: the tokens and E_attn after each.

    Nothing is drawn at random. rise : of the energy at the first plain step.
    """
    attention = AttentionEnergy()
    runs: dict[str, list[FloatArray]] = {name: [np.array(_START)[:, None]] for name in ("reweighted", "plain")}
    for _ in range(_STEPS):
        runs["reweighted"].append(np.asarray(attention.step(runs["reweighted"][-1])))
        plain = definitions.softmax_attention(runs["plain"][-1].tolist(), [[1]], math.exp, lambda u: 1)
        runs["plain"].append(np.array(plain))
    energies = {name: np.asarray(attention.value(np.stack(run))).tolist() for name, run in runs.items()}
    return {
        "runs": {
            name: {"tokens": np.stack(run)[..., 0].tolist(), "energy": energies[name]} for name, run in runs.items()
        },
        "rise": energies["plain"][1] - energies["plain"][0],
    }


def draw_plain_softmax(numbers: dict[str, Any]) -> Any:
    """The figure of ``plain_softmax``."""
    figure, axes = canvas.panels(1, 2, 9, 5)
    styles = {
        "reweighted": (
            "softmax$_β$, the descent step",
            {"color": canvas.BLUE, "linestyle": "-", "marker": "o", "markersize": 6, "zorder": 3},
        ),
        "plain": ("plain softmax", {"color": canvas.VERMILION, "linestyle": "--", "marker": "s", "markersize": 9}),
    }
    places, energies = axes[0]
    for name, (label, style) in styles.items():
        run = numbers["runs"][name]
        places.plot(run["tokens"], markerfacecolor="white", **style)
        energies.plot(run["energy"], markerfacecolor="white", label=label, **style)
    for k, y in enumerate(numbers["runs"]["plain"]["tokens"][0], 1):
        places.annotate(f"token {k}", (0, y), xytext=(-10, 0), textcoords="offset points", ha="right", va="center")
    start, peak = numbers["runs"]["plain"]["energy"][:2]
    energies.axhline(start, color="0.45", linewidth=1, linestyle=":")
    energies.annotate("", (1, peak), xytext=(1, start), arrowprops={"arrowstyle": "<->", "shrinkA": 0, "shrinkB": 4})
    energies.annotate(
        f"the first step raises E\nby {numbers['rise']:.4f}",
        (1, (start + peak) / 2),
        xytext=(58, 4),
        textcoords="offset points",
        va="center",
    )
    places.set(title="Where the three tokens go", xlabel="step", ylabel="place y", xlim=(-1.6, None))
    energies.set(title="What becomes of the energy", xlabel="step", ylabel="energy E(Y)")
    for panel in (places, energies):
        panel.grid(color="0.92")
        panel.set_xticks(range(len(numbers["runs"]["plain"]["energy"])))
    handles, labels = energies.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, handlelength=4)
    return figure
