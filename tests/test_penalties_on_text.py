"""What the penalties are measured by, against definitions, and the figure."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from refimpl import PENALTIES, AttentionEnergy, FeedForwardEnergy
from refimpl.curve import random_terms
from refimpl.experiments import penalties, train
from refimpl.text import Documents

DOCS = Path(__file__).parent.parent / "docs"
WORDS = dict(zip("abcdefgh", np.random.default_rng(5).normal(0, 1, (8, 4)), strict=True))
SENTENCES = ["a b c", "b d h", "c a d e a", "e unknown", "nothing here", "f g h a b c", "a a"]


def tokens(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def test_effective_rank() -> None:
    """k orthogonal directions of equal size have rank k; the entropy of singular values 3 : 1 otherwise."""
    for k in range(1, 5):
        Y = np.concatenate([np.eye(6)[:k], -np.eye(6)[:k]])
        assert penalties.effective_rank(Y + 7.0) == pytest.approx(k, rel=1e-12)
    skew = np.array([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    assert penalties.effective_rank(skew) == pytest.approx(4 / 3 ** (3 / 4), rel=1e-12)
    Y = tokens(3, 5, 4)
    np.testing.assert_allclose(penalties.effective_rank(Y), [penalties.effective_rank(y) for y in Y], rtol=1e-12)
    np.testing.assert_allclose(penalties.effective_rank(1e-9 * Y), penalties.effective_rank(Y), rtol=1e-9)


def test_tokens_that_coincide_have_rank_zero() -> None:
    same = np.full((5, 4), 0.1) * tokens(4)
    assert penalties.effective_rank(same) == 0
    assert penalties.effective_rank(same + 1e-17 * tokens(5, 4)) == 0
    assert penalties.effective_rank(same + 1e-12 * tokens(5, 4)) > 1


def test_mean_distance() -> None:
    Y = tokens(6, 3)
    pairs = [np.linalg.norm(Y[i] - Y[j]) for i in range(6) for j in range(i)]
    assert penalties.mean_distance(Y) == pytest.approx(np.mean(pairs), rel=1e-13)
    np.testing.assert_allclose(penalties.mean_distance(np.stack([Y, 2 * Y])), [np.mean(pairs), 2 * np.mean(pairs)])


@pytest.mark.parametrize("rho", PENALTIES)
def test_far_share(rho: str) -> None:
    W, Y = tokens(3, 3, seed=1), tokens(6, 3)
    attention = AttentionEnergy(W, rho)
    z = {(i, j): 0.5 * np.sum(((Y[i] - Y[j]) @ W) ** 2) for i in range(6) for j in range(6) if i != j}
    far = [pair for pair, size in z.items() if size > np.median(list(z.values()))]
    assert len(far) == 14  # of 15 pairs the median is one
    A = attention.weights(Y)
    assert penalties.far_share(attention, Y) == pytest.approx(sum(A[pair] for pair in far) / 6, rel=1e-13)


def test_follow() -> None:
    attention, feedforward = random_terms(4, "log2", True, np.random.default_rng(0))
    Y = np.abs(tokens(2, 5, 4))
    measured, rising = penalties.follow(attention, feedforward, Y, 3)
    assert measured.shape == (4, 4, 2)
    assert rising.shape == (3, 2)
    for layer in range(4):
        energy = attention.value(Y) + feedforward.value(Y)
        expected = (energy, penalties.effective_rank(Y), penalties.mean_distance(Y), penalties.far_share(attention, Y))
        np.testing.assert_allclose(measured[:, layer], expected, rtol=1e-13)
        Y = np.asarray(feedforward.step(attention.step(Y)))


def test_a_rise_is_seen() -> None:
    """Two tokens together, which E_ffn parts: it falls by ¼ and E_attn rises from −1 to −e^(−50)."""
    attention, feedforward = AttentionEnergy([[10.0]]), FeedForwardEnergy([[0.0]], [[0.5], [-0.5]], "identity")
    measured, rising = penalties.follow(attention, feedforward, np.zeros((1, 2, 1)), 2)
    np.testing.assert_allclose(measured[0, :, 0], [-0.75, 0, 0], rtol=0, atol=1e-15)
    assert rising[:, 0].tolist() == [True, False]


def test_accuracies_learn() -> None:
    """Two words that tell the classes apart are learnt, and the held-out documents are not those trained on."""
    texts = Documents(["a b a", "c d c", "a a b", "d c c"] * 15, ["x", "y", "x", "y"] * 15)
    setting = train.Setting(layers=2, steps=200, rate=0.05, rho="log2", relu=False)
    before, after = penalties.accuracies(texts, WORDS, setting, 20, None)
    assert 0 <= before <= 1
    assert after == 1


def test_compute_and_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(penalties.CORPORA, "SST-2", (4, None))
    calls: list[tuple[int, int, str]] = []
    texts = {"SST-2": Documents(SENTENCES, ["0", "1", "0", "1", "0", "1", "0"])}
    numbers = penalties.compute(4, lambda *call: calls.append(call), texts, WORDS, layers=3, steps=2)
    assert [call[0] for call in calls if call[2] == "penalties"] == list(range(1, 2 * len(PENALTIES) + 1))
    rows = {(row["rho"], row["relu"]): row for row in numbers["rows"]}
    assert set(rows) == {(name, relu) for name in PENALTIES for relu in (False, True)}
    for row in rows.values():
        assert row["energy"][0] == 1
        assert row["distance"][0] == 1
        assert row["rising"] == 0
        assert len(row["accuracy"]) == len(row["accuracy_of_one_layer"]) == 2
    # uniform attention makes all tokens the mean at once
    assert rows["linear", False]["rank"][1:] == [0, 0, 0]
    assert rows["linear", False]["far"][1:] == [None, None, None]
    assert rows["exp", False]["far"][0] < rows["log2", False]["far"][0] < rows["linear", False]["far"][0]
    unlabelled = penalties.compute(4, None, {"SST-2": Documents(SENTENCES, None)}, WORDS, layers=3, steps=2)
    assert {row[key] for row in unlabelled["rows"] for key in ("accuracy", "accuracy_of_one_layer")} == {None}
    assert unlabelled["rows"][0]["rank"] == numbers["rows"][0]["rank"]
    pytest.importorskip("matplotlib")
    assert len(penalties.draw(numbers).axes) == 8


def test_the_numbers_of_the_page() -> None:
    """The table of docs/replicating.md is that of the JSON beside the picture."""
    page = (DOCS / "replicating.md").read_text(encoding="utf-8").partition("## Other penalties")[2]
    numbers = json.loads((DOCS / "figures" / "penalties-on-text.json").read_text(encoding="utf-8"))
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `")]
    assert [(row[0], row[1]) for row in cells] == [(f"`{r}`", relu) for relu in ("no", "yes") for r in PENALTIES]
    for row, measured in zip(cells, numbers["rows"], strict=True):
        assert row[2] == f"{measured['energy'][1]:.3f}"
        assert row[3] == ", ".join(f"{measured['rank'][layer]:.1f}" for layer in (1, 3, 12))
        distance = float(row[4].replace("−", "-"))
        assert distance == pytest.approx(measured["distance"][3], rel=0.5, abs=1e-16)
        assert row[5:8] == [f"{measured['self']:.3f}", f"{measured['far'][0]:.3f}", f"{measured['rising']:.1%}"]
        deep, shallow = measured["accuracy"], measured["accuracy_of_one_layer"]
        assert row[8:] == [f"{before:.3f} → {after:.3f}" for before, after in (deep, shallow)]
