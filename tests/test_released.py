"""The energy and the step of the released code, and what each of its differences does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refimpl import AttentionEnergy
from refimpl.curve import random_terms
from refimpl.experiments import released
from refimpl.numerics import EPS
from refimpl.text import Documents

DOCS = Path(__file__).parent.parent / "docs"
WORDS = dict(zip("abcdefgh", np.random.default_rng(5).normal(0, 1, (8, 4)), strict=True))
SENTENCES = ["a b c", "b d h", "c a d e a", "e unknown", "nothing here", "f g h a b c"]


def draw(seed: int, n: int = 5, d: int = 4, scale: float = 1.0) -> tuple[np.ndarray, Any, np.ndarray]:
    generator = np.random.default_rng(seed)
    attention, feedforward = random_terms(d, "exp", False, generator)
    assert attention.W is not None
    return scale * attention.W, feedforward, generator.normal(0, 1.5, (n, d))


def released_energy(W: np.ndarray, feedforward: Any, Y: np.ndarray) -> float:
    """The released formula, a pair and a token at a time, with Tr and norms written out."""
    pairs = sum(-np.exp(-0.5 * np.sum(((Y[i] - Y[j]) @ W) ** 2)) for i in range(len(Y)) for j in range(i))
    own = sum(0.5 * y @ W @ W.T @ y + 0.5 * y @ feedforward.Wf @ y + 0.5 * np.sum((y - feedforward.B) ** 2) for y in Y)
    return float(pairs + own)


def exact_step(name: str, W: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """The attention half step with exponentials and sums in the open."""
    new = np.zeros_like(Y)
    for i, y in enumerate(Y):
        M = W.T @ W if name in ("released", "beta") else W @ W.T
        beta = [0.0 if name in ("released", "metric") else -0.5 * x @ M @ x for x in Y]
        weights = np.array([np.exp(y @ M @ x + b) for x, b in zip(Y, beta, strict=True)])
        values = np.where(np.arange(len(Y)) == i, 0.0, weights) if name == "no own value" else weights
        new[i] = values @ Y / weights.sum()
    return new


@pytest.mark.parametrize("name", [name for name in released.STEPS if name != "joint"])
def test_the_half_steps(name: str) -> None:
    W, _, Y = draw(0)
    step = released.attention_steps(W)[name]
    np.testing.assert_allclose(step(Y), exact_step(name, W, Y), rtol=0, atol=1e-13)
    np.testing.assert_allclose(step(np.stack([Y, 2 * Y]))[1], exact_step(name, W, 2 * Y), rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", released.STEPS)
def test_energies_and_rises(name: str) -> None:
    W, feedforward, Y = draw(1, scale=2.0)
    energies, layer, half = released.rises(W, feedforward, name, Y[None], 6)
    for k in range(7):
        value = released_energy(W, feedforward, Y)
        quadratic = 0.5 * np.sum((Y @ W) ** 2)
        assert energies["released"][k, 0] == pytest.approx(value, abs=1e-12)
        assert energies["matched"][k, 0] == pytest.approx(value - quadratic, abs=1e-12)
        if k == 6:
            break
        if name == "joint":
            between = Y = released.joint_step(AttentionEnergy(W), feedforward, Y)
        else:
            between = exact_step(name, W, Y)
            before = AttentionEnergy(W).value(Y)
            risen = AttentionEnergy(W).value(between) - before
            assert half["matched"][k, 0] == (risen > 1e-12)
            assert half["released"][k, 0] == (risen + 0.5 * np.sum((between @ W) ** 2) - quadratic > 1e-12)
            Y = -between @ feedforward.Wf + feedforward.B
        for energy in released.ENERGIES:
            assert layer[energy][k, 0] == (energies[energy][k + 1, 0] - energies[energy][k, 0] > 1e-12)


def test_equal_norms_need_no_beta() -> None:
    """With all ‖u_j‖ equal, plain softmax in the metric of the energy is the matched step."""
    W, _, Y = draw(2)
    Y = Y / np.linalg.norm(Y @ W, axis=1, keepdims=True)
    steps = released.attention_steps(W)
    np.testing.assert_allclose(steps["metric"](Y), steps["matched"](Y), rtol=0, atol=64 * EPS)


@pytest.mark.parametrize("seed", range(20))
def test_the_step_that_belongs_to_the_released_attention_energy(seed: int) -> None:
    """It lowers E_attn + ½ ‖Y W‖² by ½ ‖Δ W‖² at least; softmax_β does not always lower it at all."""
    W, feedforward, Y = draw(seed, scale=(0.3, 1.0, 3.0)[seed % 3])
    attention = AttentionEnergy(W)

    def energy(Y: np.ndarray) -> float:
        return float(attention.value(Y) + 0.5 * np.sum((Y @ W) ** 2))

    for _ in range(20):
        new = released.without_own_value(attention, Y)
        slack = float(released.rounding(W, feedforward, Y) + released.rounding(W, feedforward, new))
        assert energy(Y) - energy(new) >= 0.5 * np.sum(((new - Y) @ W) ** 2) - slack
        # it is D⁻¹ S⁻¹ times the gradient away, which central differences confirm
        D = np.asarray(attention.kernel(Y)).sum(axis=1)
        direction = np.random.default_rng(seed).normal(size=Y.shape)
        h = EPS ** (1 / 3)
        slope = (energy(Y + h * direction) - energy(Y - h * direction)) / (2 * h)
        expected = np.sum(direction * (D[:, None] * (Y - new) @ W @ W.T))
        assert slope == pytest.approx(expected, abs=1e-6 * (1 + np.linalg.norm(W) ** 4) * (1 + np.sum(Y**2)))
        Y = new


def test_softmax_beta_is_not_a_step_of_the_released_attention_energy() -> None:
    """The witness of residual.plain_step_refuted."""
    Y, W = np.array([[3.5], [6.0], [6.0]]), np.eye(1)
    attention = AttentionEnergy(W)
    new = np.asarray(attention.step(Y))
    rise = attention.value(new) - attention.value(Y) + 0.5 * float(np.sum(new**2) - np.sum(Y**2))
    assert rise == pytest.approx(0.0119, abs=5e-5)
    low = released.without_own_value(attention, Y)
    assert attention.value(low) - attention.value(Y) + 0.5 * float(np.sum(low**2) - np.sum(Y**2)) < 0


@pytest.mark.parametrize("seed", range(10))
def test_the_joint_step_never_raises_the_released_energy(seed: int) -> None:
    W, feedforward, Y = draw(seed, scale=(0.3, 1.0, 3.0)[seed % 3])
    _, layer, _ = released.rises(W, feedforward, "joint", np.stack([Y, 3 * Y, 0.1 * Y]), 50)
    assert not layer["released"].any()


def test_tokens_that_coincide_raise_the_released_energy_every_second_layer() -> None:
    """There every attention with rows of sum 1 does nothing, and e_t = y_t − y* is (−W_f)^t e_0."""
    W, feedforward, Y = draw(3)
    same = np.repeat(Y[:1], 4, axis=0)
    found = {name: released.rises(W, feedforward, name, same[None], 60) for name in released.STEPS}
    rates = np.linalg.eigvalsh(feedforward.Wf)
    assert rates[-1] == pytest.approx(0.95)
    still = np.linalg.solve(np.eye(4) + feedforward.Wf, feedforward.B)
    for name in ("released", "beta", "metric", "matched"):
        energies, layer, _ = found[name]
        late = layer["released"][20:, 0]
        assert (late[:-1] != late[1:]).all()  # up, down, up, down
        assert not layer["matched"].any()
        # to first order in e the released energy moves by n ⟨y* S, e_(t+1) − e_t⟩
        y = same[0]
        for t in range(60):
            new = feedforward.B - y @ feedforward.Wf
            first = 4 * (still @ W @ W.T) @ (new - y)
            size = 4 * np.sum((y - still) ** 2) * (1 + rates[-1] + np.linalg.norm(W, 2) ** 2)
            assert abs(energies["released"][t + 1, 0] - energies["released"][t, 0] - first) <= 2 * size + 1e-10
            y = new
    assert not found["joint"][1]["released"].any()


def test_documents_and_batches() -> None:
    tokens = released.documents(SENTENCES, WORDS, 99, 4, 0)
    assert [len(Y) for Y in tokens] == [3, 3, 4, 1, 4]
    np.testing.assert_array_equal(tokens[2], [WORDS[word] for word in "cade"])
    assert sorted(Y.shape for Y in released.by_length(tokens)) == [(1, 1, 4), (2, 3, 4), (2, 4, 4)]
    two = released.documents(SENTENCES, WORDS, 2, None, 0)
    assert len(two) == 2
    assert all(any(np.array_equal(Y, X) for X in released.documents(SENTENCES, WORDS, 99, None, 0)) for Y in two)


def test_compute_and_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(released, "WEIGHT_SCALES", (1.0, 3.0))
    monkeypatch.setattr(released, "TOKEN_SCALES", (1.0,))
    calls: list[tuple[int, int, str]] = []
    texts = {"SST-2": Documents(SENTENCES, None), "IMDB": Documents(SENTENCES[:3], None)}
    numbers = released.compute(4, lambda *call: calls.append(call), texts, WORDS, layers=3)
    assert [call[:2] for call in calls] == [(k, 24) for k in range(1, 25)]
    assert numbers["samples"] == {"SST-2": 5, "IMDB": 3}
    assert len(numbers["rows"]) == 2 * 2 * 6 * 2
    attention, feedforward = random_terms(4, "exp", False, np.random.default_rng(4))
    assert attention.W is not None
    row = next(
        r for r in numbers["rows"] if (r["text"], r["W"], r["step"], r["energy"]) == ("SST-2", 3, "beta", "matched")
    )
    alone = [
        released.rises(3 * attention.W, feedforward, "beta", Y[None], 3)
        for Y in released.documents(SENTENCES, WORDS, 9, None, 4)
    ]
    risen = np.concatenate([run[1]["matched"] for run in alone], axis=1)
    assert row["sentences"] == risen.any(axis=0).mean()
    assert row["layers"] == risen.mean()
    np.testing.assert_array_equal(row["by_layer"], risen.mean(axis=1))
    energies = np.concatenate([run[0]["matched"] for run in alone], axis=1)
    np.testing.assert_allclose(row["mean"], energies.mean(axis=1), rtol=1e-13)
    pytest.importorskip("matplotlib")
    assert len(released.draw(numbers).axes) == 6


# ------------------------------------------------------------------------------------------------ the page


def tables(page: str) -> list[list[list[str]]]:
    """The cells of each table of the page, without its two header rows."""
    found = re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE)
    return [[[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()[2:]] for table in found]


def test_the_numbers_of_the_page() -> None:
    """Every share in the two tables is that of the JSON beside the picture, and so are the sentences about them."""
    page = (DOCS / "replicating.md").read_text(encoding="utf-8")
    numbers = json.loads((DOCS / "figures" / "released.json").read_text(encoding="utf-8"))
    rows = {(r["text"], r["W"], r["tokens"], r["step"], r["energy"]): r for r in numbers["rows"]}
    texts = numbers["samples"]
    scales = [(W, scale) for W in released.WEIGHT_SCALES for scale in released.TOKEN_SCALES]
    assert texts == {"SST-2": 200, "IMDB": 50}
    _, by_scale, by_seed, by_step, _ = tables(page)
    pairs = (("released", "released"), ("matched", "matched"), ("released", "matched"))
    assert by_scale == [
        [text, f"{W:g}", f"{scale:g}"]
        + [
            f"{rows[text, W, scale, *pair]['sentences']:.1%}, {rows[text, W, scale, *pair]['layers']:.1%}"
            for pair in pairs
        ]
        for text in texts
        for W, scale in scales
    ]
    # the first draw of the table by seed
    of = [("released", "released", 1.0), ("released", "matched", 1.0), ("matched", "released", 1.0)]
    of += [("matched", "matched", 1.0), ("released", "released", 0.1)]
    shares = [rows["SST-2", 1.0, scale, step, energy]["sentences"] for energy, step, scale in of]
    assert [row[1] for row in by_seed] == [f"{share:.1%}" for share in shares]
    found = iter(by_step)
    for text in texts:
        for step in released.STEPS:
            cells = next(found)
            assert cells[0] == text
            for cell, energy in zip(cells[2:], released.ENERGIES, strict=True):
                means = [
                    np.mean([rows[text, *scale, step, energy][key] for scale in scales])
                    for key in ("sentences", "layers", "half")
                ]
                expected = [f"{mean:.1%}" for mean in means]
                assert cell == ", ".join([*expected[:2], "none" if step == "joint" else expected[2]])
            # what is proved: the step that belongs to an attention energy, and the joint step on the whole
            if step == "no own value":
                assert all(rows[text, *scale, step, "released"]["half"] == 0 for scale in scales)
            if step == "matched":
                assert all(rows[text, *scale, step, "matched"]["half"] == 0 for scale in scales)
            if step == "joint":
                assert all(rows[text, *scale, step, "released"]["sentences"] == 0 for scale in scales)
    mean = rows["SST-2", 1.0, 1.0, "released", "released"]["mean"]
    assert (np.diff(mean) < 0).all()
    assert rows["SST-2", 1.0, 1.0, "released", "released"]["sentences"] == 0.485
