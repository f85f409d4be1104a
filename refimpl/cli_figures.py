"""``refimpl figures``: the paper's figures, with their numbers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from . import console

Report = dict[str, Any]


def figures_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="where the files go; made if it does not exist"
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="draw this figure only; may be repeated")


def figures(arguments: argparse.Namespace) -> tuple[int, Report]:
    from .experiments.figures import write

    with console.progress() as progress:
        return 0, write(arguments.out, arguments.only, arguments.seed, progress)


def show_figures(report: Report) -> str:
    rows = [[figure["name"], figure["numbers"]["title"], figure["path"]] for figure in report["figures"]]
    return console.table(["name", "figure", "picture (the numbers are in the .json beside it)"], rows, wrap=1)
