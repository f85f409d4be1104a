"""Reading sentences and word vectors, and splitting the one into words that the other has.

The text pipeline, in this order:

1. markup such as ``<br />`` becomes a space; then HTML's ``&amp;`` or ``&#8217;``, Windows-1252 bytes that were read as
   Latin-1, and the Penn Treebank's ``-lrb-``, ``-rrb-`` and ``\\/`` become the characters that they stand for, and
   ``’`` and ``´`` an apostrophe;
2. lower case;
3. a split at white space;
4. a chunk that has a vector is a word. Any other chunk is cut into the matches of one regular expression: contractions
   as the Treebank has them ("did" "n't", "it" "'s"), runs of letters and digits, and punctuation marks.

So text that is tokenised (SST-2) stays as it is, and punctuation comes off the words of raw text (IMDB). The file
``docs/text.md`` says what this covers of four corpora.
"""

from __future__ import annotations

import collections
import html
import re
import reprlib
import zipfile
from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from .numerics import FloatArray

TEXT_COLUMNS = ("sentence", "review", "text")

_MARKUP = re.compile(r"</?[a-z][^<>]*>", re.IGNORECASE)
_ENTITY = re.compile(r"&#?\w+;")
# five of the 32 bytes stand for nothing in Windows-1252
_CHARACTERS = {byte: bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in range(0x80, 0xA0)}
_APOSTROPHES = str.maketrans("’´", "''")
_ESCAPES = {"-lrb-": "(", "-rrb-": ")", "\\/": "/"}
_PIECE = re.compile(r"\w+(?=n't\b)|n't\b|'(?:s|m|d|ll|re|ve)\b|\.\.\.|--|``|''|\w+|[^\w\s]")


def chunks(sentence: str) -> list[str]:
    """Steps 1 to 3 of the pipeline: ``"A film!<br />Don't"`` is ``["a", "film!", "don't"]``."""
    # in this order: the < of an entity opens no markup, and the names of entities tell Ä from ä
    text = _ENTITY.sub(lambda entity: html.unescape(entity[0]), _MARKUP.sub(" ", sentence))
    text = text.translate(_CHARACTERS).translate(_APOSTROPHES).lower()
    for escape, mark in _ESCAPES.items():
        text = text.replace(escape, mark)
    return text.split()


def split(sentence: str, vocabulary: Container[str]) -> list[str]:
    """The words of a sentence, those without a vector included."""
    words: list[str] = []
    for chunk in chunks(sentence):
        words += [chunk] if chunk in vocabulary else _PIECE.findall(chunk)
    return words


def candidates(sentences: Iterable[str]) -> set[str]:
    """Every word that ``split`` can give, whatever the vocabulary: the ones to read vectors for."""
    found = {chunk for sentence in sentences for chunk in chunks(sentence)}
    return found.union(*map(_PIECE.findall, found))


@dataclass(frozen=True)
class Documents:
    """Texts, and the label of each as it is written; labels is None where the source has none."""

    texts: list[str]
    labels: list[str] | None


def read_sentences(path: str | PathLike[str]) -> list[str]:
    """The texts of ``read_documents``."""
    return read_documents(path).texts


def read_documents(path: str | PathLike[str]) -> Documents:
    """A table: UTF-8, a header row, columns separated by tabs, quotes being ordinary characters.

    The text column is the one named sentence, review or text, the labels are in the column named label, if any. There
    is no other rule, because one such as "the first column" would take the first sentence of a file without a header
    for its header.

    Raises ``FileNotFoundError`` or ``ValueError``, naming the file, what was expected and what came.
    """
    source = _existing(path, "sentences")
    try:
        lines = source.read_bytes().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"sentences: expected UTF-8 text, got {_bad_byte(error)} in {source}") from None
    lines = [line.removesuffix("\r") for line in lines]
    while lines and not lines[-1]:
        lines.pop()
    header = lines[0].split("\t") if lines else []
    names = [name.strip().lower() for name in header]
    columns = [i for i, name in enumerate(names) if name in TEXT_COLUMNS]
    if not columns:
        raise ValueError(
            "sentences: expected a header row with a column named sentence, review or text, tabs between columns, "
            f"got {reprlib.repr(lines[0]) if lines else 'blank lines'} as the first line of {source}"
        )
    rows = [line.split("\t") for line in lines[1:]]
    if not rows:
        raise ValueError(f"sentences: expected rows below the header, got none in {source}")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise ValueError(
                f"sentences: expected {len(header)} column(s), as in the header, "
                f"got {len(row)} in line {number} of {source}"
            )
    labels = [row[names.index("label")] for row in rows] if "label" in names else None
    return Documents([row[columns[0]] for row in rows], labels)


def read_embeddings(path: str | PathLike[str], needed: Collection[str] | None = None) -> dict[str, FloatArray]:
    """Word vectors (d,) by word; with ``needed``, of those words only.

    ``.npz`` : arrays ``words`` (text, (N,)) and ``vectors`` (real, (N, d)). Pickled objects are never loaded.
    ``.txt`` : as GloVe publishes them, UTF-8: a line is a word and d numbers, separated by single spaces. A word may
        hold any character, spaces too. The numbers of words that are not needed are counted, not read.

    Raises ``FileNotFoundError`` or ``ValueError``, naming the file, what was expected and what came; a word that comes
    twice is an error, because which of its vectors is meant is anyone's guess.
    """
    source = _existing(path, "embeddings")
    readers = {".npz": _read_npz, ".txt": _read_glove}
    if source.suffix.lower() not in readers:
        raise ValueError(f"embeddings: expected a file that ends in .npz or .txt, got {source}")
    return readers[source.suffix.lower()](source, needed)


def _read_npz(source: Path, needed: Collection[str] | None) -> dict[str, FloatArray]:
    if not zipfile.is_zipfile(source):
        raise ValueError(f"embeddings: expected an .npz archive, {source} is none, or is cut short")
    try:
        with source.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            words, vectors = (archive.get(name) for name in ("words", "vectors"))
    except Exception as error:  # zipfile, zlib and NumPy raise a dozen types for a damaged archive
        raise ValueError(
            "embeddings: expected an .npz archive of plain arrays (no pickled objects), "
            f"got {type(error).__name__}: {error} from {source}"
        ) from None
    for name, array in (("words", words), ("vectors", vectors)):
        if not isinstance(array, np.ndarray):
            raise ValueError(f"embeddings: expected arrays 'words' and 'vectors', got no {name!r} in {source}")
    if words.ndim != 1 or words.dtype.kind != "U":
        raise ValueError(
            f"embeddings: expected words (N,) of text, got shape {words.shape} of {words.dtype} in {source}"
        )
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu" or vectors.shape[1] == 0:
        raise ValueError(
            "embeddings: expected vectors (N, d) of real numbers with d ≥ 1, "
            f"got shape {vectors.shape} of {vectors.dtype} in {source}"
        )
    if len(words) != len(vectors) or not len(words):
        raise ValueError(
            "embeddings: expected as many words as vectors and at least one, "
            f"got {len(words)} and {len(vectors)} in {source}"
        )
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise ValueError(f"embeddings: expected finite numbers, {str(words[~finite][0])!r} has others in {source}")
    (word, times), *_ = collections.Counter(words.tolist()).most_common(1)
    if times > 1:
        raise ValueError(f"embeddings: expected each word once, got {word!r} {times} times in {source}")
    return {
        word: vector.astype(np.float64)
        for word, vector in zip(words.tolist(), vectors, strict=True)
        if needed is None or word in needed
    }


def _read_glove(source: Path, needed: Collection[str] | None) -> dict[str, FloatArray]:
    embeddings: dict[str, FloatArray] = {}
    d = 0
    with source.open("rb") as file:
        for number, line in enumerate(file, start=1):
            d = d or line.count(b" ")
            fields = line.rstrip(b"\r\n").rsplit(b" ", d) if d else []
            # an inner space is either part of the word or one number too many
            if len(fields) != d + 1 or not fields[0] or (b" " in fields[0] and _is_number(fields[0].split(b" ")[-1])):
                raise ValueError(
                    f"embeddings: expected a word and {d or 'd'} numbers, separated by single spaces, "
                    f"got {reprlib.repr(line.decode(errors='replace'))} in line {number} of {source}"
                )
            try:
                word = fields[0].decode("utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"embeddings: expected UTF-8 text, got {_bad_byte(error)} in line {number} of {source}"
                ) from None
            if needed is not None and word not in needed and number > 1:
                continue
            try:
                vector = np.array([float(field) for field in fields[1:]])
            except ValueError as error:
                raise ValueError(
                    f"embeddings: expected a word and {d} numbers, got {error} in line {number} of {source}"
                ) from None
            if not np.isfinite(vector).all():
                raise ValueError(f"embeddings: expected finite numbers, got others in line {number} of {source}")
            if word in embeddings:
                raise ValueError(
                    f"embeddings: expected each word once, got {word!r} again in line {number} of {source}"
                )
            if needed is None or word in needed:
                embeddings[word] = vector
    return embeddings


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _existing(path: str | PathLike[str], name: str) -> Path:
    source = Path(path)
    if not source.exists():
        raise FileNotFoundError(f"{name}: expected a file, {source} does not exist")
    if source.is_dir():
        raise ValueError(f"{name}: expected a file, {source} is a directory")
    if source.is_file() and source.stat().st_size == 0:
        raise ValueError(f"{name}: expected a file with content, {source} is empty")
    return source


def _bad_byte(error: UnicodeDecodeError) -> str:
    return f"byte 0x{error.object[error.start]:02x} at position {error.start}"
