"""Reading sentences and word vectors."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from refimpl.text import Documents, candidates, chunks, read_documents, read_embeddings, read_sentences, split

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the data sets of ../shared/data are not here")

WORDS = ["it", "'s", "did", "n't", "a", "film", "!", "...", "mr.", "well-made", "(", ")", "/", "café"]


# ------------------------------------------------------------------------------------------------ the pipeline


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("It 's a film !", ["it", "'s", "a", "film", "!"]),  # tokenised text stays as it is
        ("It's a film!", ["it", "'s", "a", "film", "!"]),
        ("It didn't", ["it", "did", "n't"]),
        ("A film<br /><br />IT", ["a", "film", "it"]),
        ("a <I>film</I>", ["a", "film"]),
        ("Mr. well-made", ["mr.", "well-made"]),  # a chunk that has a vector is whole
        ("mr.! badly-made", ["mr", ".", "!", "badly", "-", "made"]),
        ("-LRB- a\\/it -RRB-", ["(", "a", "/", "it", ")"]),
        ("film...", ["film", "..."]),
        ('"Café"', ['"', "café", '"']),
        ("it < a and a > it", ["it", "<", "a", "and", "a", ">", "it"]),  # no markup
        ("a &lt;br&gt; b", ["a", "<", "br", ">", "b"]),  # an entity opens no markup
        ("a&nbsp;film&#33; Caf&Eacute;", ["a", "film", "!", "café"]),
        ("Q&A; &A;", ["q", "&", "a", ";", "&", "a", ";"]),  # no entities
        ("AT&amplifier", ["at", "&", "amplifier"]),
        ("It didn’t, it´s, it\x92s", ["it", "did", "n't", ",", "it", "'s", ",", "it", "'s"]),
        ("film\x85 \x8ei\x9eek \x96 A\x97a", ["film", "…", "žižek", "–", "a", "—", "a"]),
        ("a\x81film", ["a", "\x81", "film"]),  # nothing in Windows-1252
        ("", []),
        (" \u00a0 <br />", []),
    ],
)
def test_split(sentence: str, words: list[str]) -> None:
    assert split(sentence, WORDS) == words
    assert set(words) <= candidates([sentence])


def test_chunks_keep_no_white_space() -> None:
    assert chunks(" A  b\u2003c ") == ["a", "b", "c"]


@needs_data
@pytest.mark.parametrize("name", ["sst2_dev.tsv", "imdb_sample200.tsv"])
def test_coverage_of_real_text(name: str) -> None:
    sentences = read_sentences(DATA / name)
    embeddings = read_embeddings(DATA / "glove6B_50d_subset.npz", candidates(sentences))
    words = [word for sentence in sentences for word in split(sentence, embeddings)]
    assert sum(word in embeddings for word in words) > 0.995 * len(words)


@needs_data
def test_tokenised_text_is_split_at_its_spaces() -> None:
    """Every word of SST-2 that has a vector is one word here."""
    sentences = read_sentences(DATA / "sst2_dev.tsv")
    embeddings = read_embeddings(DATA / "glove6B_50d_subset.npz")
    for sentence in sentences:
        whole = sentence.split()
        if all(word in embeddings for word in whole):
            assert split(sentence, embeddings) == whole


# ------------------------------------------------------------------------------------------------ sentences


@needs_data
@pytest.mark.parametrize(
    ("name", "rows"), [("sst2_dev.tsv", 872), ("sst2_test.tsv", 1821), ("imdb_sample200.tsv", 200)]
)
def test_real_sentences(name: str, rows: int) -> None:
    assert len(read_sentences(DATA / name)) == rows


def test_quotes_are_ordinary_characters(tmp_path: Path) -> None:
    path = tmp_path / "s.tsv"
    path.write_bytes(b'sentence\tlabel\n"So, it begins\t1\n5" disc ""\t0\n')
    assert read_sentences(path) == ['"So, it begins', '5" disc ""']


@pytest.mark.parametrize(
    ("content", "sentences"),
    [
        (b"label\tReview\n1\ta b\n", ["a b"]),
        (b"\xef\xbb\xbfsentence\r\na b\r\n\r\n\n", ["a b"]),
        (b"text\na\n\nb", ["a", "", "b"]),
        ("sentence\na\x85b\u2028c\x1cd\rd\n".encode(), ["a\x85b\u2028c\x1cd\rd"]),  # only a line feed ends a line
    ],
)
def test_tables(tmp_path: Path, content: bytes, sentences: list[str]) -> None:
    path = tmp_path / "s.tsv"
    path.write_bytes(content)
    assert read_sentences(str(path)) == sentences


def test_labels(tmp_path: Path) -> None:
    path = tmp_path / "s.tsv"
    path.write_bytes(b"id\tLabel\ttext\n1\tpos\ta\n2\t-1\tb\n")
    assert read_documents(path) == Documents(["a", "b"], ["pos", "-1"])
    path.write_bytes(b"text\na\n")
    assert read_documents(path) == Documents(["a"], None)


@needs_data
def test_real_labels() -> None:
    labels = read_documents(DATA / "imdb_sample200.tsv").labels
    assert labels is not None
    assert sorted(labels) == ["0"] * 100 + ["1"] * 100


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n\n", "got blank lines"),
        (b"sentence\tlabel\n", "expected rows below the header, got none"),
        (b"id\tlabel\n1\t0\n", "a column named sentence, review or text.* got 'id.tlabel'"),
        (b"sentence,label\na,0\n", "tabs between columns"),
        (b"a film without a header\nanother\n", "expected a header row"),
        (b"sentence\tlabel\na\t1\nb\n", r"expected 2 column\(s\).* got 1 in line 3"),
        (b"sentence\tlabel\na\tb\t1\n", "got 3 in line 2"),
        (b"sentence\ncaf\xe9\n", "expected UTF-8 text, got byte 0xe9 at position 12"),
        ("sentence\na\n".encode("utf-16"), "expected UTF-8 text"),
    ],
)
def test_bad_sentences(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "s.tsv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^sentences: .*{message}") as error:
        read_sentences(path)
    assert str(path) in str(error.value)


def test_no_file(tmp_path: Path) -> None:
    for name, read in (("sentences", read_sentences), ("embeddings", read_embeddings)):
        with pytest.raises(FileNotFoundError, match=f"^{name}: expected a file, .* does not exist"):
            read(tmp_path / "none.npz")
        with pytest.raises(ValueError, match=f"^{name}: expected a file, .* is a directory"):
            read(tmp_path)


# ------------------------------------------------------------------------------------------------ word vectors


def save(path: Path, **arrays: object) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def test_npz(tmp_path: Path) -> None:
    path = save(tmp_path / "v.npz", words=np.array(["a", "b"]), vectors=np.array([[1, 2], [3, 4]], dtype=np.float32))
    embeddings = read_embeddings(path)
    assert {word: vector.tolist() for word, vector in embeddings.items()} == {"a": [1, 2], "b": [3, 4]}
    assert embeddings["a"].dtype == np.float64
    assert list(read_embeddings(path, {"b", "c"})) == ["b"]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"words": np.array(["a"])}, "got no 'vectors'"),
        ({}, "got no 'words'"),
        ({"words": np.array(["a"], dtype=object), "vectors": np.ones((1, 2))}, "no pickled objects"),
        ({"words": np.array(["a"]), "vectors": np.array([[1, None]])}, "no pickled objects"),
        ({"words": np.array([b"a"]), "vectors": np.ones((1, 2))}, r"words \(N,\) of text, got shape \(1,\) of |S1"),
        ({"words": np.array([["a"]]), "vectors": np.ones((1, 2))}, r"words \(N,\) of text, got shape \(1, 1\)"),
        ({"words": np.array(["a"]), "vectors": np.ones(2)}, r"vectors \(N, d\) .* got shape \(2,\)"),
        ({"words": np.array(["a"]), "vectors": np.ones((1, 0))}, r"d ≥ 1, got shape \(1, 0\)"),
        ({"words": np.array(["a"]), "vectors": np.array([["1"]])}, "real numbers"),
        ({"words": np.array(["a"]), "vectors": np.ones((1, 2)) * 1j}, "real numbers.* of complex128"),
        ({"words": np.array(["a"]), "vectors": np.ones((2, 2))}, "got 1 and 2"),
        ({"words": np.array([], dtype=str), "vectors": np.ones((0, 2))}, "got 0 and 0"),
        ({"words": np.array(["a", "b"]), "vectors": np.array([[1, 2], [3, np.nan]])}, "'b' has others"),
        ({"words": np.array(["a", "b", "a"]), "vectors": np.ones((3, 2))}, "each word once, got 'a' 2 times"),
    ],
)
def test_bad_npz(tmp_path: Path, arrays: dict[str, object], message: str) -> None:
    path = save(tmp_path / "v.npz", **arrays)
    with pytest.raises(ValueError, match=f"^embeddings: .*{message}") as error:
        read_embeddings(path)
    assert str(path) in str(error.value)


def test_damaged_npz(tmp_path: Path) -> None:
    """Cut anywhere, or with any byte changed, it is refused or (bytes that nothing reads) gives the same vectors."""
    whole = io.BytesIO()
    np.savez_compressed(whole, words=np.array(["a", "b"]), vectors=np.arange(8.0).reshape(2, 4))
    data = whole.getvalue()
    path = tmp_path / "v.npz"
    damaged = [data[:size] for size in range(0, len(data), 7)]
    damaged += [data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :] for at in range(0, len(data), 3)]
    refused = 0
    for content in damaged:
        path.write_bytes(content)
        try:
            embeddings = read_embeddings(path)
        except ValueError as error:
            assert str(error).startswith("embeddings: ")  # noqa: PT017
            refused += 1
        else:
            assert {word: vector.tolist() for word, vector in embeddings.items()} == {
                "a": [0, 1, 2, 3],
                "b": [4, 5, 6, 7],
            }
    assert refused > len(damaged) / 2


def test_npz_that_is_something_else(tmp_path: Path) -> None:
    path = tmp_path / "v.npz"
    with path.open("wb") as file:
        np.save(file, np.ones((2, 2)))
    with pytest.raises(ValueError, match=r"expected an \.npz archive"):
        read_embeddings(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("words.npy", "no array")
        archive.writestr("vectors.npy", "no array")
    with pytest.raises(ValueError, match="got no 'words'"):
        read_embeddings(path)


def test_glove(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    content = 'a 1 -2.5\n" 3 4e-1\n. . . 5 6\nb\u00a0c 7 8\nd\u2028e\x85 9 10\r\n'
    path.write_bytes(content.encode())
    embeddings = {word: vector.tolist() for word, vector in read_embeddings(path).items()}
    assert embeddings == {"a": [1, -2.5], '"': [3, 0.4], ". . .": [5, 6], "b\u00a0c": [7, 8], "d\u2028e\x85": [9, 10]}
    assert list(read_embeddings(path, {'"'})) == ['"']


@pytest.mark.parametrize("needed", [None, {"a", "b"}])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\na 1 2\n", "expected a word and d numbers.* in line 1"),
        (b"One day a film was made\nand nobody came\n", "could not convert string to float.* in line 1"),
        (b"word\tlabel\n", "expected a word and d numbers"),
        (b"400000 2\na 1 2\n", "expected a word and 1 numbers.* in line 2"),
        (b"a 1 2\nc 1\n", "expected a word and 2 numbers.* got 'c 1.* in line 2"),
        (b"a 1 2\nb 1 2\nc 1 2 3\n", "got 'c 1 2 3.* in line 3"),
        (b"a 1 2\n\nb 1 2\n", "in line 2"),
        (b"a 1 2\nb 1  2\n", "in line 2"),
        (b"a 1 2\n 1 2\n", "in line 2"),
        (b"a 1 2\nb 1 x\n", "could not convert string to float.* in line 2"),
        (b"a 1 2\nb 1 nan\n", "finite numbers, got others in line 2"),
        (b"a 1 2\nb 1 2\na 3 4\n", "each word once, got 'a' again in line 3"),
        (b"a 1 2\nb\xff 1 2\n", "expected UTF-8 text, got byte 0xff at position 1 in line 2"),
    ],
)
def test_bad_glove(tmp_path: Path, content: bytes, message: str, needed: set[str] | None) -> None:
    path = tmp_path / "v.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^embeddings: .*{message}") as error:
        read_embeddings(path, needed)
    assert str(path) in str(error.value)


def test_unknown_suffix(tmp_path: Path) -> None:
    path = tmp_path / "v.bin"
    path.write_bytes(b"a 1 2\n")
    with pytest.raises(ValueError, match=r"ends in \.npz or \.txt"):
        read_embeddings(path)
