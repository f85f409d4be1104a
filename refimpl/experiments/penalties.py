"""Every shipped penalty on the same text: the energy, how diverse the tokens stay, and what they attend to.

The random weights are the same for all: those of :func:`refimpl.curve.random_terms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import entr

from .. import text
from ..attention import AttentionEnergy
from ..console import Progress
from ..curve import random_terms, rounding_bound
from ..feedforward import FeedForwardEnergy
from ..numerics import EPS, FloatArray, half_squared_distances, norm, project
from ..rho import PENALTIES
from ..text import Documents
from . import canvas, train
from .released import CORPORA, LAYERS, by_length, documents

STEPS = 1000  # of training, a sentence each
_COLORS = ("#000000", "#E69F00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#808080")
_LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)), (0, (3, 1, 1, 1)))
_MARKERS = "os^DvPX*"


def effective_rank(Y: FloatArray) -> FloatArray:
    """exp(−Σ p_k log p_k), p_k = σ_k / Σ σ, of the singular values of Y − centroid, shape (...).

    0 where all tokens coincide: singular values that rounding makes of equal tokens, at most (n + d) eps ‖Y‖, count
    as 0. Source: Roy, Vetterli, *The effective rank* (2007).
    """
    sigma = np.linalg.svd(Y - Y.mean(axis=-2, keepdims=True), compute_uv=False)
    sigma = np.where(sigma > sum(Y.shape[-2:]) * EPS * np.asarray(norm(Y))[..., None], sigma, 0.0)
    total = sigma.sum(axis=-1, keepdims=True)
    p = sigma / np.where(total == 0, 1.0, total)
    return np.where(total[..., 0] == 0, 0.0, np.exp(entr(p).sum(axis=-1)))


def mean_distance(Y: FloatArray) -> FloatArray:
    """The mean of ‖y_i − y_j‖ over pairs i ≠ j, shape (...); n ≥ 2."""
    distances = np.sqrt(2 * half_squared_distances(*project(Y, None)))
    return np.asarray(distances.sum(axis=(-2, -1)) / (Y.shape[-2] * (Y.shape[-2] - 1)))


def far_share(attention: AttentionEnergy, Y: FloatArray) -> FloatArray:
    """Share of the attention on pairs i ≠ j with z_ij above the median over them, shape (...): how far tokens look."""
    Z = half_squared_distances(*project(Y, attention.W))
    Z_others = Z[..., ~np.eye(Y.shape[-2], dtype=bool)]
    far = np.median(Z_others, axis=-1)[..., None, None] < Z
    return np.asarray(np.where(far, attention.weights(Y), 0.0).sum(axis=(-2, -1)) / Y.shape[-2])


def follow(
    attention: AttentionEnergy, feedforward: FeedForwardEnergy, Y: FloatArray, layers: int
) -> tuple[FloatArray, FloatArray]:
    """From Y (b, n, d), n ≥ 2: energy, effective rank, mean distance and far share, and where the energy rises.

    Shapes (4, layers + 1, b) and (layers, b).
    """
    measured: list[tuple[FloatArray, ...]] = []
    rising = []
    for layer in range(layers + 1):
        before, Y = Y, np.asarray(feedforward.step(attention.step(Y))) if layer else Y
        energy = attention.value(Y) + feedforward.value(Y)
        if layer:
            rising.append(
                [
                    new > old and new - old > sum(rounding_bound(attention, feedforward, y) for y in around)
                    for new, old, *around in zip(energy, measured[-1][0], before, Y, strict=True)
                ]
            )
        measured.append((energy, effective_rank(Y), mean_distance(Y), far_share(attention, Y)))
    return np.moveaxis(np.array(measured), 1, 0), np.array(rising)


def accuracies(
    documents: Documents,
    embeddings: Mapping[str, FloatArray],
    setting: train.Setting,
    held_out: int,
    progress: Progress | None,
) -> tuple[float, float]:
    """Accuracy on ``held_out`` random documents before and after training on the others."""
    assert documents.labels is not None
    names = sorted(set(documents.labels))
    known = [[embeddings[w] for w in text.split(line, embeddings) if w in embeddings] for line in documents.texts]
    pairs = [(np.stack(row), names.index(label)) for row, label in zip(known, documents.labels, strict=True) if row]
    order = np.random.default_rng([setting.seed, 2]).permutation(len(pairs))
    test, seen = ([pairs[i] for i in part] for part in (order[:held_out], order[held_out:]))
    words, labels = (list(column) for column in zip(*seen, strict=True))

    def accuracy(parameters: train.Parameters) -> float:
        model, right = parameters.model(setting), 0
        for vectors, label in test:
            Y = train.tokens(vectors, setting.relu)
            for _ in range(setting.layers):
                Y = np.asarray(model.layer(Y))
            right += int(np.argmax(parameters.logits(Y)) == label)
        return right / len(test)

    before = train.start(words[0].shape[1], len(names), setting)
    after, _ = train.train(words, labels, setting, classes=len(names), progress=progress)
    return accuracy(before), accuracy(after)


def compute(
    seed: int,
    progress: Progress | None,
    texts: Mapping[str, Documents],
    embeddings: Mapping[str, FloatArray],
    layers: int = LAYERS,
    steps: int = STEPS,
) -> dict[str, Any]:
    """For each penalty, without and with ReLU, over the sentences of two words or more and by layer:

    energy : mean of the energies, each sentence's scaled to its range. rank, distance : median of the effective rank
    and of the mean distance over that of the input. far : mean share over the sentences whose tokens do not coincide,
    None where fewer than half are left. self : share of the input's attention that a token pays to itself. rising :
    share of the sentences whose energy rises at some layer. accuracy, accuracy_of_one_layer : before and after
    training all layers, or one alone; None for a text without labels.
    """
    d = len(next(iter(embeddings.values())))
    tokens = documents(texts["SST-2"].texts, embeddings, *CORPORA["SST-2"], seed)
    batches = [Y for Y in by_length(tokens) if Y.shape[-2] > 1]
    labelled = texts["SST-2"].labels is not None
    done, total, rows = 0, 2 * len(PENALTIES), []
    for relu in (False, True):
        for name in PENALTIES:
            attention, feedforward = random_terms(d, name, relu, np.random.default_rng(seed))
            starts = [np.maximum(Y, 0.0) if relu else Y for Y in batches]
            runs = [follow(attention, feedforward, Y, layers) for Y in starts]
            energy, rank, distance, far = np.concatenate([run for run, _ in runs], axis=2)
            rising = np.concatenate([rises for _, rises in runs], axis=1)
            own = [np.diagonal(np.asarray(attention.weights(Y)), axis1=-2, axis2=-1).mean(axis=-1) for Y in starts]
            scaled = (energy - energy.min(axis=0)) / np.ptp(energy, axis=0)
            deep, shallow = (
                accuracies(texts["SST-2"], embeddings, setting, len(tokens), progress) if labelled else None
                for setting in (train.Setting(depth, steps, rho=name, relu=relu, seed=seed) for depth in (layers, 1))
            )
            rows.append(
                {
                    "rho": name,
                    "relu": relu,
                    "energy": scaled.mean(axis=1).tolist(),
                    "rank": np.median(rank, axis=1).tolist(),
                    "distance": np.median(distance / distance[0], axis=1).tolist(),
                    "far": [
                        float(share[left].mean()) if 2 * left.sum() >= len(left) else None
                        for share, left in zip(far, rank > 0, strict=True)
                    ],
                    "self": float(np.concatenate(own).mean()),
                    "accuracy": deep,
                    "accuracy_of_one_layer": shallow,
                    "rising": float(rising.any(axis=0).mean()),
                }
            )
            done += 1
            if progress is not None:
                progress(done, total, "penalties")
    return {"layers": layers, "steps": steps, "samples": sum(map(len, batches)), "rows": rows}


def draw(numbers: dict[str, Any]) -> Any:
    """The figure of ``compute``."""
    figure, axes = canvas.panels(2, 4, 17, 8.5)
    kinds = (
        ("energy", "energy", "(E − min E) / (max E − min E)"),
        ("rank", "effective rank (0: coincide)", "median of the effective rank"),
        ("distance", "mean pairwise distance", "median over the input's"),
        ("far", "attention to the farther half", "share of the attention"),
    )
    for line, relu in zip(axes, (False, True), strict=True):
        rows = [row for row in numbers["rows"] if row["relu"] == relu]
        for panel, (key, title, label) in zip(line, kinds, strict=True):
            for k, row in enumerate(rows):
                style = {"color": _COLORS[k], "linestyle": _LINES[k], "marker": _MARKERS[k], "markerfacecolor": "white"}
                values = np.array(row[key], dtype=np.float64)
                if key == "distance":  # rounding alone is left below
                    values = np.where(values > 1e-16, values, np.nan)
                # markers apart, so that lines which coincide both show
                panel.plot(values, label=row["rho"], markevery=(k % 4, 4), **style)
            panel.set(title=f"{'ReLU' if relu else 'no ReLU'}: {title}", xlabel="layer", ylabel=label)
            panel.grid(color="0.92")
            panel.set_xlim(-0.2, 0.2 + numbers["layers"])
        line[2].set(yscale="log", ylim=(1e-16, 2))
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=8, frameon=False, handlelength=4)
    return figure
