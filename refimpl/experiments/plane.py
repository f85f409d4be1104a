"""Tokens in the plane under the steps: attention alone, with the data term, and with ReLU in turn or at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..attention import AttentionEnergy
from ..console import Progress
from ..feedforward import FeedForwardEnergy
from ..numerics import FloatArray, half_squared_distances, project
from ..residual import ResidualAttentionEnergy
from ..transformer import UnfoldedTransformer
from . import canvas

_CENTRES, _EACH, _SCALE = ((0.6, 3.0), (3.4, 0.6), (3.6, 3.8)), 20, 0.5
_LAMBDA, _WF, _BIAS = 10.0, ((-0.4, 1.2), (1.2, -0.4)), 1.8
_LAYERS = 24


def compute(seed: int = 0, progress: Progress | None = None) -> dict[str, Any]:
    """Four runs from the same tokens X ≥ 0, three clouds of twenty.

    tokens : (layers + 1, n, 2), to six decimals. energy : the sum of the ``terms``, each by layer. rises : the layers
    that raise it by more than 1e-9 of itself. diameter : the largest distance between two tokens, by layer.
    """
    centres = np.repeat(_CENTRES, _EACH, axis=0)
    X = np.maximum(centres + _SCALE * np.random.default_rng(seed).normal(size=centres.shape), 0.0)
    attention, feedforward = AttentionEnergy(), FeedForwardEnergy(_WF, _BIAS, "relu")
    residual = ResidualAttentionEnergy(attention, X, _LAMBDA)
    alternating, joint = (UnfoldedTransformer(attention, feedforward, 1, kind) for kind in ("alternating", "joint"))
    alone, layer = {"attention": attention.value}, {"attention": attention.value, "feed-forward": feedforward.value}
    return {
        "lambda": _LAMBDA,
        "Wf": [list(row) for row in _WF],
        "B": _BIAS,
        "layers": _LAYERS,
        "runs": {
            "alone": _run(X, attention.step, alone),
            "data": _run(X, residual.step, alone | {"data": residual.data_value}),
            "alternating": _run(X, alternating.layer, layer),
            "joint": _run(X, joint.layer, layer),
        },
    }


def _run(X: FloatArray, step: Callable[[Any], Any], terms: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    layers = [X]
    for _ in range(_LAYERS):
        layers.append(np.asarray(step(layers[-1])))
    tokens = np.stack(layers)
    values = {name: np.asarray(value(tokens)) for name, value in terms.items()}
    energy = np.sum(list(values.values()), axis=0)
    return {
        "tokens": tokens.round(6).tolist(),
        "energy": energy.tolist(),
        "terms": {name: value.tolist() for name, value in values.items()},
        "rises": (np.flatnonzero(np.diff(energy) > 1e-9 * np.abs(energy[1:])) + 1).tolist(),
        "diameter": np.sqrt(2 * half_squared_distances(*project(tokens, None)).max(axis=(-2, -1))).tolist(),
    }


def draw(numbers: dict[str, Any]) -> Any:
    """The figure of ``compute``."""
    figure, axes = canvas.panels(4, 2, 9, 12.5)
    axes[0, 0].get_gridspec().set_height_ratios([4, 3, 4, 3])
    titles = {
        "alone": "softmax attention alone",
        "data": f"attention with a data term, λ = {numbers['lambda']:g}",
        "alternating": "attention and ReLU in turn",
        "joint": "attention and ReLU in one step",
    }
    styles: dict[str, dict[str, Any]] = {
        "attention": {"color": canvas.BLUE, "linestyle": "--"},
        "data": {"color": canvas.GREEN, "linestyle": ":", "linewidth": 2.5},
        "feed-forward": {"color": canvas.ORANGE, "linestyle": "-.", "linewidth": 2},
    }
    panels = [*zip(axes[0], axes[1], strict=True), *zip(axes[2], axes[3], strict=True)]
    for (plane, energies), (name, run) in zip(panels, numbers["runs"].items(), strict=True):
        tokens = np.array(run["tokens"])
        for path in np.swapaxes(tokens, 0, 1):
            plane.plot(*path.T, color="0.6", linewidth=0.7, zorder=1)
        plane.plot(
            *tokens[0].T, "o", color=canvas.BLUE, markerfacecolor="white", markersize=5, label="tokens at the start"
        )
        plane.plot(
            *tokens[3].T, "^", color=canvas.ORANGE, markersize=6, markeredgecolor="black", label="after 3 layers"
        )
        plane.plot(*tokens[-1].T, "D", color="black", markersize=5, markeredgecolor="white", label="at the end")
        energies.plot(run["energy"], "o-", color="black", markersize=4, label="energy, the sum of its terms")
        for term, values in run["terms"].items():
            if len(run["terms"]) > 1:
                energies.plot(values, label=f"{term} term", **styles[term])
        if run["rises"]:
            rises = run["rises"]
            ring = {"color": canvas.VERMILION, "markersize": 11, "markerfacecolor": "none"}
            energies.plot(rises, np.array(run["energy"])[rises], "o", label="a layer raises the energy", **ring)
        first, last = run["diameter"][0], run["diameter"][-1]
        plane.set(
            title=f"{titles[name]}\ndiameter {first:.2f} → {last:.2f}",
            xlabel="$y_1$",
            ylabel="$y_2$",
            aspect="equal",
            xlim=(-0.3, 5.1),
            ylim=(-0.3, 5.1),
        )
        energies.set(xlabel="layer", ylabel="energy")
        for panel in (plane, energies):
            panel.grid(color="0.92")
    legend: dict[str, Any] = {}  # a line or marker a name, from all the panels
    for panel in axes.flat:
        handles, labels = panel.get_legend_handles_labels()
        legend |= dict(zip(labels, handles, strict=True))
    figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=4, frameon=False, handlelength=3)
    return figure
