"""A picture of several penalties: ρ, its kernel ρ', a row of the attention, and the energy over steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median_low
from typing import Any

import numpy as np

from .attention import AttentionEnergy
from .curve import check_plot, save
from .kernel import line, slopes
from .rho import Rho

STEPS = 30
_Z = np.linspace(0.0, 8.0, 161)
# Okabe and Ito's colours, with lines and markers that tell them apart in grey
_COLORS = ("#000000", "#E69F00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#808080")
_LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)), (0, (3, 1, 1, 1)))
_MARKERS = "os^DvPX*"
_CURVES = ("penalty", "kernel", "energy")


def measure(rho: Rho) -> dict[str, Any]:
    """What ``plot`` draws of one penalty, with W = I and the 33 tokens of :func:`refimpl.kernel.line`.

    penalty : ρ(z) − ρ(0) at z = 0, 0.05, …, 8. kernel : ρ'(z)/ρ'(0) there, or ρ' over its largest size there where
    ρ'(0) = 0. row : what the token at 0 pays to each. energy : (E_t − E*)/|E_0 − E*| after t = 0 … 30 steps from these
    tokens, E* being the energy of tokens that coincide. rises : the steps that raise it by more than 1e-9.
    Raises ``ValueError`` for a penalty that :class:`refimpl.AttentionEnergy` refuses.
    """
    attention, Y, energies = AttentionEnergy(rho=rho), line(), []
    with np.errstate(all="ignore"):
        penalty, kernel = np.array(np.broadcast_to(rho.value(_Z), _Z.shape), dtype=np.float64), slopes(rho, _Z)
        row = np.asarray(attention.weights(Y)[len(Y) // 2])
        for _ in range(STEPS + 1):
            energies.append(float(attention.value(Y)) - penalty[0] * len(Y) * (len(Y) - 1) / 2)
            Y = np.asarray(attention.step(Y), dtype=np.float64)
        energy = np.array(energies) / (abs(energies[0]) or 1.0)
        kernel /= kernel[0] or np.abs(kernel).max() or 1.0
        rises = np.flatnonzero(np.diff(energy) > 1e-9) + 1
    drawn = {"penalty": penalty - penalty[0], "kernel": kernel, "row": row, "energy": energy, "rises": rises}
    return {"name": rho.name} | {key: numbers.tolist() for key, numbers in drawn.items()}


def plot(penalties: Sequence[Rho], out: Path) -> dict[str, Any]:
    """Draw the penalties together; the file appears whole or not at all. Returns the numbers drawn.

    Raises ``ValueError`` for none or more than eight penalties, and what ``measure`` and ``curve.check_plot`` raise.
    """
    if not 1 <= len(penalties) <= len(_COLORS):
        raise ValueError(f"plot: expected 1 to {len(_COLORS)} penalties, got {len(penalties)}")
    check_plot(out)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    measured = [measure(rho) for rho in penalties]
    figure = Figure(figsize=(9.2, 8.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2).ravel()
    tokens, labels = line()[:, 0], []
    for k, numbers in enumerate(measured):
        style = {"color": _COLORS[k], "linestyle": _LINES[k], "marker": _MARKERS[k], "markerfacecolor": "white"}
        # markers apart, so that lines which coincide both show
        panels[0].plot(_Z, numbers["penalty"], markevery=(2 * k, 20), **style)
        panels[1].plot(_Z, numbers["kernel"], markevery=(2 * k, 20), **style)
        panels[2].plot(tokens, numbers["row"], markevery=(k % 4, 4), **style)
        panels[3].plot(range(STEPS + 1), numbers["energy"], markevery=(k % 4, 4), **style)
        name = numbers["name"] if len(numbers["name"]) <= 50 else f"{numbers['name'][:47]}..."
        labels.append(name.replace("$", r"\$"))
        if rises := numbers["rises"]:
            labels[-1] += f" (rises at {len(rises)} of {STEPS} steps)"
            ring = {"color": "black", "markersize": 11, "markerfacecolor": "none"}
            panels[3].plot(rises, np.array(numbers["energy"])[rises], "o", **ring)
    _finish(panels, measured)
    columns = max(1, min(4, 100 // (max(map(len, labels)) + 10)))
    figure.legend(panels[0].lines, labels, loc="outside lower center", ncols=columns, frameon=False, handlelength=4)
    save(figure, out)
    return {"plot": str(out), "z": _Z.tolist(), "tokens": tokens.tolist(), "penalties": measured}


def _finish(panels: Any, measured: list[dict[str, Any]]) -> None:
    """Titles, labels and scales; one penalty that grows must not flatten the others."""
    texts = (
        ("penalty", "z", "rho(z) - rho(0)"),
        ("kernel", "z", "rho'(z), scaled to 1 at z = 0 or where largest"),
        ("attention of the token at 0", "position of the other token", "weight"),
        (f"energy over {STEPS} steps", "step (ring: the energy rises)", "(E - E*) / |E0 - E*|, E*: equal tokens"),
    )
    for axes, (title, x, y) in zip(panels, texts, strict=True):
        axes.set(title=title, xlabel=x, ylabel=y)
        axes.grid(color="0.9")

    finite = {key: [np.nan_to_num(numbers[key], posinf=0.0, neginf=0.0) for numbers in measured] for key in _CURVES}
    highs = {key: [float(values.max()) for values in rows] for key, rows in finite.items()}
    top = min(max(highs["penalty"]), 4 * max(median_low(highs["penalty"]), 0.1)) or 1.0
    panels[0].set_ylim(max(min(values.min() for values in finite["penalty"]), -top) - 0.05 * top, 1.05 * top)
    panels[1].set(yscale="log", ylim=(1e-4, 2 * min(max(highs["kernel"]), 1e4)))
    if max(highs["energy"]) > 3:
        panels[3].set_yscale("symlog", linthresh=1)
        panels[3].set_ylim(top=2 * min(max(highs["energy"]), 1e4))
