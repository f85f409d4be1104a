"""``refimpl figures``: every figure as a picture with its numbers as JSON beside it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..console import Progress
from ..curve import check_plot
from ..numerics import FloatArray
from ..text import Documents
from . import alternation, apollonius, curves, line, penalties, plane, released, truncation

Numbers = dict[str, Any]


class Figure(NamedTuple):
    """title : what it shows. draw : the numbers to a matplotlib figure. texts : the corpora that it is about.

    compute : (seed, progress) to plain numbers; about texts, (seed, progress, documents by name, word vectors).
    """

    title: str
    compute: Callable[..., Numbers]
    draw: Callable[[Numbers], Any]
    texts: tuple[str, ...] = ()


class Corpora(NamedTuple):
    """Documents by the name of their corpus, and the vectors of their words."""

    documents: Mapping[str, Documents]
    embeddings: Mapping[str, FloatArray]


TEXTS = ("SST-2", "IMDB")

FIGURES = {
    "apollonius": Figure("Figure 1: the regions where descent is certified", apollonius.compute, apollonius.draw),
    "alternation": Figure(
        "Figure 2: alternation ends near the minimiser of the sum", alternation.trajectory, alternation.draw_trajectory
    ),
    "energy-gap": Figure(
        "Figure 3: the energy above its minimum, and where its fall is guaranteed",
        alternation.energy_gap,
        alternation.draw_energy_gap,
    ),
    "truncation": Figure("Figure 4: the share of a step that ReLU can cut off", truncation.compute, truncation.draw),
    "energy-by-layer": Figure(
        "Figure 5: the energy of real text by layer, random weights",
        curves.random_weights,
        curves.draw_random_weights,
        TEXTS,
    ),
    "energy-by-layer-trained": Figure(
        "Figure 6: the energy of real text by layer, before and after training",
        curves.trained,
        curves.draw_trained,
        TEXTS,
    ),
    "released": Figure(
        "The authors' released code: how often the energy rises on text", released.compute, released.draw, TEXTS
    ),
    "penalties-on-text": Figure(
        "Every shipped penalty on the same text", penalties.compute, penalties.draw, ("SST-2",)
    ),
    "majorizer": Figure(
        "The majorizer touching the energy, and where there is none", line.majorizer, line.draw_majorizer
    ),
    "plain-softmax": Figure(
        "A counterexample: plain softmax raises the energy", line.plain_softmax, line.draw_plain_softmax
    ),
    "tokens": Figure("Tokens in the plane under the steps", plane.compute, plane.draw),
}


def write(
    directory: Path,
    names: Sequence[str] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    corpora: Corpora | None = None,
) -> Numbers:
    """Write NAME.png and NAME.json to ``directory``, made where it does not exist, for all figures or those named.

    The numbers are {"name", "title", "seed", ...}; the picture is drawn from them alone. Each file appears whole
    or not at all. A figure about texts that are not given is skipped, and listed with the reason. Raises
    ``ValueError`` for an unknown name and for matplotlib missing, ``OSError`` or ``ValueError`` where the directory
    cannot be made or written, all before anything is computed.
    """
    chosen = list(FIGURES if names is None else dict.fromkeys(names))
    for name in chosen:
        if name not in FIGURES:
            raise ValueError(f"only: expected one of {', '.join(FIGURES)}, got {name!r}")
    directory.mkdir(parents=True, exist_ok=True)
    for name in chosen:
        check_plot(directory / f"{name}.png")
    texts = {} if corpora is None else corpora.documents
    skipped = {
        name: f"it needs {' and '.join(FIGURES[name].texts)} and word vectors"
        for name in chosen
        if not set(FIGURES[name].texts) <= set(texts)
    }
    report = []
    with tempfile.TemporaryDirectory(dir=directory, prefix=".figures-") as temporary:
        for name in [name for name in chosen if name not in skipped]:
            figure, about = FIGURES[name], list[Any]()
            if figure.texts and corpora is not None:
                about = [{text: texts[text] for text in figure.texts}, corpora.embeddings]
            numbers = {"name": name, "title": figure.title, "seed": seed} | figure.compute(seed, progress, *about)
            numbers_file, picture = Path(temporary, f"{name}.json"), Path(temporary, f"{name}.png")
            numbers_file.write_text(json.dumps(numbers, allow_nan=False) + "\n", encoding="utf-8")
            figure.draw(numbers).savefig(picture, dpi=100)
            os.replace(numbers_file, directory / numbers_file.name)
            os.replace(picture, directory / picture.name)
            report.append({"name": name, "path": str(directory / picture.name), "numbers": numbers})
    return {"figures": report, "skipped": skipped}
