"""``refimpl figures``: every figure as a picture with its numbers as JSON beside it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..console import Progress
from ..curve import check_plot
from . import alternation, apollonius, truncation

Numbers = dict[str, Any]


class Figure(NamedTuple):
    """title : what it shows. compute : (seed, progress) to plain numbers. draw : those to a matplotlib figure."""

    title: str
    compute: Callable[[int, Progress | None], Numbers]
    draw: Callable[[Numbers], Any]


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
}


def write(
    directory: Path, names: Sequence[str] | None = None, seed: int = 0, progress: Progress | None = None
) -> Numbers:
    """Write NAME.png and NAME.json to ``directory``, made where it does not exist, for all figures or those named.

    The numbers are {"name", "title", "seed", ...}; the picture is drawn from them alone. Each file appears whole
    or not at all. Raises ``ValueError`` for an unknown name and for matplotlib missing, ``OSError`` or ``ValueError``
    where the directory cannot be made or written, all before anything is computed.
    """
    chosen = list(FIGURES if names is None else dict.fromkeys(names))
    for name in chosen:
        if name not in FIGURES:
            raise ValueError(f"only: expected one of {', '.join(FIGURES)}, got {name!r}")
    directory.mkdir(parents=True, exist_ok=True)
    for name in chosen:
        check_plot(directory / f"{name}.png")
    report = []
    with tempfile.TemporaryDirectory(dir=directory, prefix=".figures-") as temporary:
        for name in chosen:
            figure = FIGURES[name]
            numbers = {"name": name, "title": figure.title, "seed": seed} | figure.compute(seed, progress)
            numbers_file, picture = Path(temporary, f"{name}.json"), Path(temporary, f"{name}.png")
            numbers_file.write_text(json.dumps(numbers, allow_nan=False) + "\n", encoding="utf-8")
            figure.draw(numbers).savefig(picture, dpi=100)
            os.replace(numbers_file, directory / numbers_file.name)
            os.replace(picture, directory / picture.name)
            report.append({"name": name, "path": str(directory / picture.name), "numbers": numbers})
    return {"figures": report}
