"""``refimpl figures``: the paper's figures, with their numbers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import console

if TYPE_CHECKING:
    from .experiments.figures import Corpora

Report = dict[str, Any]


def figures_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="where the files go; made if it does not exist"
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="draw this figure only; may be repeated")
    parser.add_argument("--sst2", metavar="F", help="SST-2 for the figures about text, a .tsv file with a header row")
    parser.add_argument("--imdb", metavar="F", help="IMDB, such a file, or imdb: that of refimpl[data]")
    parser.add_argument("--embeddings", metavar="F", help="word vectors, .npz or GloVe .txt, or glove of refimpl[data]")


def figures(arguments: argparse.Namespace) -> tuple[int, Report]:
    from .experiments.figures import write

    corpora = _corpora(arguments)
    with console.progress() as progress:
        return 0, write(arguments.out, arguments.only, arguments.seed, progress, corpora)


def _corpora(arguments: argparse.Namespace) -> Corpora | None:
    from . import datasets, text
    from .experiments.figures import Corpora

    files = {"SST-2": arguments.sst2, "IMDB": arguments.imdb}
    documents = {
        name: datasets.load("imdb") if file == "imdb" else text.read_documents(file)
        for name, file in files.items()
        if file is not None
    }
    if not documents:
        return None
    if arguments.embeddings is None:
        raise ValueError("embeddings: --sst2 and --imdb need --embeddings F, or --embeddings glove")
    needed = text.candidates(line for corpus in documents.values() for line in corpus.texts)
    if arguments.embeddings == "glove":
        return Corpora(documents, datasets.read_glove(needed))
    return Corpora(documents, text.read_embeddings(arguments.embeddings, needed))


def show_figures(report: Report) -> str:
    rows = [[figure["name"], figure["numbers"]["title"], figure["path"]] for figure in report["figures"]]
    table = console.table(["name", "figure", "picture (the numbers are in the .json beside it)"], rows, wrap=1)
    return "\n".join([table, *(f"skipped: {name}, {reason}" for name, reason in report["skipped"].items())])
