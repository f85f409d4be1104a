"""Figures 5 and 6: the energy of real text by layer, with random weights and after training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..console import Progress
from ..curve import energy_curve
from ..numerics import FloatArray
from ..text import Documents
from . import canvas, train

SAMPLES = 200
# training sees no more words of a text than this: a step costs the square of them
WORDS = 100


def random_weights(
    seed: int,
    progress: Progress | None,
    texts: Mapping[str, Documents],
    embeddings: Mapping[str, FloatArray],
    samples: int = SAMPLES,
) -> dict[str, Any]:
    """:func:`refimpl.curve.energy_curve` for each text, without and with ReLU."""
    rows = []
    for name, documents in texts.items():
        for relu in (False, True):
            curve = energy_curve(documents.texts, embeddings, relu=relu, seed=seed, samples=samples, progress=progress)
            shown = curve.as_dict()
            del shown["empty_sentences"]
            rows.append({"text": name, **shown})
    return {"rows": rows}


def trained(
    seed: int,
    progress: Progress | None,
    texts: Mapping[str, Documents],
    embeddings: Mapping[str, FloatArray],
    samples: int = SAMPLES,
    steps: int = 2000,
    layers: int = 12,
) -> dict[str, Any]:
    """Each text but ``samples`` random documents, half of them at most, is trained on; those are evaluated.

    ``before`` and ``after`` are :class:`refimpl.experiments.train.Evaluation`, ``loss`` its mean over each hundred
    steps. Raises ``ValueError`` for a text without labels, or with too few documents.
    """
    rows = []
    for name, documents in texts.items():
        if documents.labels is None:
            raise ValueError(f"{name}: expected a column named label, to train on")
        names = sorted(set(documents.labels))
        read = train.labelled(documents, names, embeddings, WORDS)
        if len(read) < 2:
            raise ValueError(f"{name}: expected two documents with words or more, half to train on, got {len(read)}")
        count = min(samples, len(read) // 2)
        order = np.random.default_rng([seed, 2]).permutation(len(read)).tolist()
        held_out, seen = ([read[i] for i in sorted(part)] for part in (order[:count], order[count:]))
        for relu in (False, True):
            setting = train.Setting(layers=layers, steps=steps, relu=relu, seed=seed)
            first = train.start(seen[0][0].shape[1], len(names), setting)
            test_words, test_labels = (list(column) for column in zip(*held_out, strict=True))
            before = train.evaluate(first, test_words, test_labels, setting, progress)
            words, labels = (list(column) for column in zip(*seen, strict=True))
            last, losses = train.train(words, labels, setting, classes=len(names), progress=progress)
            after = train.evaluate(last, test_words, test_labels, setting, progress)
            hundreds = np.array_split(np.array(losses), max(1, len(losses) // 100))
            rows.append(
                {
                    "text": name,
                    "relu": relu,
                    "trained_on": len(seen),
                    "held_out": count,
                    "labels": np.bincount(test_labels, minlength=len(names)).tolist(),
                    "before": before.as_dict(),
                    "after": after.as_dict(),
                    "loss": [float(part.mean()) for part in hundreds],
                }
            )
    return {"layers": layers, "steps": steps, "words": WORDS, "rows": rows}


def draw_random_weights(numbers: dict[str, Any]) -> Any:
    """A panel a text and activation: the mean, the median, the middle half. The extremes are in the numbers."""
    figure, axes = _panels(numbers["rows"])
    for axis, row in zip(axes, numbers["rows"], strict=True):
        layers = range(row["layers"] + 1)
        axis.fill_between(layers, row["quartiles"][0], row["quartiles"][2], color="0.85", label="the middle half")
        axis.plot(layers, row["quartiles"][1], color="black", linestyle="--", label="median")
        axis.plot(layers, row["mean_energy"], color=canvas.BLUE, marker="o", markersize=4, label="mean")
        falling = round(row["monotone_fraction"] * row["samples"])
        axis.set_title(f"{row['text']}, {_relu(row)}: it falls at every layer\nfor {falling} of {row['samples']} texts")
    return _finish(figure, axes)


def draw_trained(numbers: dict[str, Any]) -> Any:
    """A panel a text and activation: the mean before and after training."""
    figure, axes = _panels(numbers["rows"])
    for axis, row in zip(axes, numbers["rows"], strict=True):
        for when, style in (
            ("before", {"color": "0.4", "linestyle": "--", "marker": "s"}),
            ("after", {"color": canvas.BLUE, "linestyle": "-", "marker": "o"}),
        ):
            label = (
                f"{when} training: accuracy {row[when]['accuracy']:.1%}, monotone {row[when]['monotone_fraction']:.0%}"
            )
            axis.plot(row[when]["mean_energy"], markersize=4, label=label, **style)
        axis.set_title(f"{row['text']}, {_relu(row)}: {row['held_out']} held-out texts\n{numbers['steps']:,} steps")
    return _finish(figure, axes)


def _relu(row: dict[str, Any]) -> str:
    return "ReLU" if row["relu"] else "no ReLU"


def _panels(rows: list[dict[str, Any]]) -> tuple[Any, list[Any]]:
    columns = 2
    figure, axes = canvas.panels(-(-len(rows) // columns), columns, 11, 4 * -(-len(rows) // columns))
    return figure, list(axes.flat)


def _finish(figure: Any, axes: list[Any]) -> Any:
    for axis in axes:
        axis.set_xlabel("layer")
        axis.set_ylabel("energy E(Y)")
        axis.grid(color="0.92")
        axis.legend(loc="upper right")
    return figure
