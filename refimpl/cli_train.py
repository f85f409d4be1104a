"""``refimpl train``: the unfolded Transformer trained on labelled sentences, before and after."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import console
from .cli_rho import at_least
from .numerics import read_number

if TYPE_CHECKING:
    from .text import Documents

Report = dict[str, Any]

_HELD_OUT = 5  # without --test one document in so many is held out


def train_arguments(parser: argparse.ArgumentParser) -> None:
    from . import datasets

    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--sentences", type=Path, metavar="F", help="a .tsv file with columns sentence and label")
    source.add_argument("--dataset", choices=datasets.NAMES, help="a corpus that refimpl[data] installs")
    parser.add_argument("--test", type=Path, metavar="F", help="held-out sentences (a fifth of the others)")
    parser.add_argument("--embeddings", metavar="F", help="word vectors, .npz or GloVe .txt, or glove of refimpl[data]")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="checkpoint.npz and report.json go here")
    parser.add_argument("--steps", type=at_least(1), default=2000, metavar="N", help="one sentence each (2000)")
    parser.add_argument("--rate", type=_rate, default=1e-2, metavar="R", help="the learning rate (0.01)")
    parser.add_argument("--layers", type=at_least(1), default=12, metavar="L", help="number of layers (12)")
    parser.add_argument("--rho", default="exp", metavar="R", help="the penalty: a name or a formula in z (exp)")
    parser.add_argument("--no-relu", action="store_true", help="the identity instead of ReLU")
    parser.add_argument("--max-words", type=at_least(1), metavar="N", help="cut a sentence after N words")
    parser.add_argument("--samples", type=at_least(1), default=200, metavar="N", help="held-out sentences used (200)")


def _rate(text: str) -> float:
    try:
        return read_number(float(text), "rate", "(0, inf)")
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}") from None


def train(arguments: argparse.Namespace) -> tuple[int, Report]:
    from . import datasets, text
    from .attention import AttentionEnergy
    from .experiments import train as training

    rho = AttentionEnergy(rho=arguments.rho).rho
    if rho.second_derivative is None:
        raise ValueError(f"rho: expected one with a second derivative, {rho.name!r} has none")
    vectors = arguments.embeddings or (arguments.dataset and "glove")
    if not vectors:
        raise ValueError("embeddings: --sentences needs --embeddings F, a file of word vectors, or --embeddings glove")
    documents = datasets.load(arguments.dataset) if arguments.dataset else text.read_documents(arguments.sentences)
    held_out = None if arguments.test is None else text.read_documents(arguments.test)
    needed = text.candidates([*documents.texts, *(held_out.texts if held_out else [])])
    embeddings = datasets.read_glove(needed) if vectors == "glove" else text.read_embeddings(vectors, needed)
    names = sorted(set(_labels(documents, "sentences")) | set(_labels(held_out, "test") if held_out else []))
    if len(names) < 2:
        raise ValueError(f"sentences: expected two labels or more, got {names}")

    generator = np.random.default_rng([arguments.seed, 2])
    pairs = training.labelled(documents, names, embeddings, arguments.max_words)
    test = training.labelled(held_out, names, embeddings, arguments.max_words) if held_out else []
    if held_out is None:
        order = generator.permutation(len(pairs))
        count = len(pairs) // _HELD_OUT
        test, pairs = [pairs[i] for i in order[:count]], [pairs[i] for i in np.sort(order[count:])]
    if not pairs or not test:
        raise ValueError("sentences: expected some to train on and some held out that have words with a vector")
    if arguments.samples < len(test):
        test = [test[i] for i in np.sort(generator.choice(len(test), arguments.samples, replace=False))]
    setting = training.Setting(
        arguments.layers, arguments.steps, arguments.rate, arguments.rho, not arguments.no_relu, arguments.seed
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    checkpoint = arguments.out / "checkpoint.npz"
    begun = time.monotonic()
    words, labels = (list(column) for column in zip(*pairs, strict=True))
    test_words, test_labels = (list(column) for column in zip(*test, strict=True))
    with console.progress() as progress:
        first = training.start(words[0].shape[1], len(names), setting)
        before = training.evaluate(first, test_words, test_labels, setting, progress)
        parameters, losses = training.train(
            words, labels, setting, classes=len(names), checkpoint=checkpoint, progress=progress
        )
        after = training.evaluate(parameters, test_words, test_labels, setting, progress)
    report = {
        "setting": vars(setting),
        "labels": names,
        "sentences": len(words),
        "held_out": len(test),
        "before": before.as_dict(),
        "after": after.as_dict(),
        "loss": [float(np.mean(losses[:100])), float(np.mean(losses[-100:]))],
        "checkpoint": str(checkpoint),
        "seconds": round(time.monotonic() - begun, 1),
    }
    temporary = arguments.out / ".report.json"
    temporary.write_text(json.dumps(report) + "\n", encoding="utf-8")
    os.replace(temporary, arguments.out / "report.json")
    return 0, report


def _labels(documents: Documents, name: str) -> list[str]:
    if documents.labels is None:
        raise ValueError(f"{name}: expected a column named label")
    return documents.labels


def show_train(report: Report) -> str:
    before, after = report["before"], report["after"]
    rows = [
        [str(layer), f"{x:.4f}", f"{y:.4f}"]
        for layer, (x, y) in enumerate(zip(before["mean_energy"], after["mean_energy"], strict=True))
    ]
    setting = report["setting"]
    lines = [
        f"{report['sentences']:,} sentences, {setting['steps']:,} steps of {setting['rate']:g}, {setting['layers']} "
        f"layers, rho = {setting['rho']}, {'ReLU' if setting['relu'] else 'no ReLU'}; {report['held_out']} held out",
        "",
        console.table(["layer", "mean energy before", "after"], rows),
        "",
        f"accuracy: {before['accuracy']:.3f} before, {after['accuracy']:.3f} after; "
        f"loss {report['loss'][0]:.4f}, then {report['loss'][1]:.4f}",
        f"the energy falls at every layer for {before['monotone_fraction']:.1%} before, "
        f"{after['monotone_fraction']:.1%} after",
    ]
    for half in ("attention", "feedforward"):
        for when, evaluation in (("before", before), ("after", after)):
            total = {name: sum(layer[name] for layer in evaluation["coverage"][half]) for name in _COVERAGE}
            counts = ", ".join(f"{count:,} {_COVERAGE[name]}" for name, count in total.items())
            lines.append(f"{half} half steps {when}: {counts}")
    lines.append(f"{report['checkpoint']}, in {report['seconds']:.0f} s")
    return "\n".join(lines)


_COVERAGE = {
    "guaranteed": "fell as a certificate said",
    "fell": "fell without one",
    "rose": "rose",
    "level": "within rounding",
}
