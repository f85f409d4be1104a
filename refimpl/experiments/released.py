"""The energy and the step of the authors' released code, against the pair that belongs together.

With random weights that code measures, in symbols of the text and each unordered pair once,

    E_released(Y) = E_attn(Y) + ½ ‖Y W‖² + E_ffn(Y)

along Y ← B − softmax(Y WᵀW Yᵀ) Y W_f. Three things differ from the theorem: softmax is not weighted by β, its logits
are WᵀW where the energy has S = W Wᵀ, and the energy has the term ½ ‖Y W‖². Here each is changed alone.

The attention step that belongs to E_attn(Y) + ½ ‖Y W‖² is Y⁺ = D⁻¹ (Γ − I) Y: softmax_β attention that leaves the value
of the token itself out (for m = 1 and ρ = −e^(−z)). Proof: with Γ' = Γ − I the gradient L Y S + Y S is (D − Γ') Y S,
and the majorizer is ½ Tr S Yᵀ (D − Γ') Y up to a constant, so Δ = −D⁻¹ (D − Γ') Y lowers the sum by at least
½ Tr S Δᵀ (D + Γ') Δ ≥ ½ ‖Δ W‖², because d_i = 1 + Σ_j Γ'_ij.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import text
from ..attention import AttentionEnergy
from ..console import Progress
from ..curve import random_terms
from ..feedforward import FeedForwardEnergy
from ..numerics import EPS, FloatArray
from ..text import Documents
from . import canvas

LAYERS = 12
# sentences at random, as many as the paper has, and the words that long texts are cut after
CORPORA: dict[str, tuple[int, int | None]] = {"SST-2": (200, None), "IMDB": (50, 64)}
WEIGHT_SCALES, TOKEN_SCALES = (0.1, 0.3, 1.0, 3.0), (0.1, 1.0, 3.0)
ENERGIES = {"released": "with ½‖YW‖²", "matched": "without ½‖YW‖²"}
STEPS = {
    "released": "softmax, WᵀW",
    "beta": "softmax_β, WᵀW",
    "metric": "softmax, WWᵀ",
    "matched": "softmax_β, WWᵀ",
    "no own value": "softmax_β, WWᵀ, own value left out",
    "joint": "one step on all terms",
}


def plain_attention(Y: FloatArray, U: FloatArray) -> FloatArray:
    """softmax(U Uᵀ) Y over the last axis, shape (..., n, d)."""
    logits = U @ np.swapaxes(U, -1, -2)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights @ Y / weights.sum(axis=-1, keepdims=True))


def without_own_value(attention: AttentionEnergy, Y: FloatArray) -> FloatArray:
    """D⁻¹ (Γ − I) Y, shape (..., n, d): a descent step of E_attn(Y) + ½ ‖Y W‖² for ρ = −e^(−z) and m = 1."""
    Gamma = np.asarray(attention.kernel(Y))
    return np.asarray((Gamma - np.eye(Y.shape[-2])) @ Y / Gamma.sum(axis=-1, keepdims=True))


def joint_step(attention: AttentionEnergy, feedforward: FeedForwardEnergy, Y: FloatArray) -> FloatArray:
    """Y − M⁻¹ ∇E_released(Y), M_i = ‖S‖₂ d_i + ½ λ_max(H), shape (..., n, d): it never raises E_released.

    As in ``joint.step``: L + I is the Laplacian of Γ' = Γ − I plus I, and at most 2 D.
    """
    assert attention.W is not None
    gradient = attention.gradient(Y) + Y @ attention.W @ attention.W.T + feedforward.gradient(Y)
    M = attention.half_curvature(Y) + 0.5 * feedforward.curvature
    return np.asarray(Y - gradient / M[..., None])


def attention_steps(W: FloatArray) -> dict[str, Callable[[FloatArray], FloatArray]]:
    """The attention half steps of ``STEPS`` by name; "joint" has none."""
    attention, transposed = AttentionEnergy(W), AttentionEnergy(W.T)
    return {
        "released": lambda Y: plain_attention(Y, Y @ W.T),
        "beta": lambda Y: np.asarray(transposed.step(Y)),
        "metric": lambda Y: plain_attention(Y, Y @ W),
        "matched": lambda Y: np.asarray(attention.step(Y)),
        "no own value": lambda Y: without_own_value(attention, Y),
    }


def rounding(W: FloatArray, feedforward: FeedForwardEnergy, Y: FloatArray) -> FloatArray:
    """A bound (...) on what rounding makes of E_released at Y (..., n, d), and of E_attn + E_ffn.

    A term of magnitude t passes at most 2 d + n d roundings (two products with W, sums over n d entries), which the
    32 cover for the rest, each of half an eps; a pair has |ρ| + z ρ' = (1 + z) e^(−z) ≤ 1. The last bits of the
    tokens, which the steps round, move the same terms by fewer.
    """
    n, d = Y.shape[-2:]
    size = np.abs(Y)
    quadratic = (size @ np.abs(W)) ** 2 + size * (size @ np.abs(feedforward.Wf)) + (size + np.abs(feedforward.B)) ** 2
    return np.asarray((2 * d + n * d + 32) * EPS * 0.5 * (n * n + quadratic.sum(axis=(-2, -1))))


def rises(
    W: FloatArray, feedforward: FeedForwardEnergy, step: str, Y: FloatArray, layers: int
) -> tuple[dict[str, FloatArray], dict[str, FloatArray], dict[str, FloatArray]]:
    """Along ``step`` from Y (b, n, d), by name of the energy: what it is, and where it rises beyond rounding.

    Energies (layers + 1, b); rises by the layer (layers, b); rises of E_attn, with ½ ‖Y W‖² in "released", by the
    attention half of the layer (layers, b), none for "joint".
    """
    attention, half_steps = AttentionEnergy(W), attention_steps(W)

    def parts(Y: FloatArray) -> tuple[FloatArray, FloatArray]:
        pairs = np.asarray(attention.value(Y))
        return pairs + 0.5 * ((Y @ W) ** 2).sum(axis=(-2, -1)), pairs

    before, slack = parts(Y), rounding(W, feedforward, Y)
    whole = [[part + feedforward.value(Y) for part in before]]
    by_layer, by_half = [], []
    for _ in range(layers):
        if step == "joint":
            Y_new, half = joint_step(attention, feedforward, Y), [np.zeros(len(Y), dtype=bool)] * 2
        else:
            between = half_steps[step](Y)
            slack_between = slack + rounding(W, feedforward, between)
            half = [new - old > slack_between for new, old in zip(parts(between), before, strict=True)]
            Y_new = np.asarray(feedforward.step(between))
        Y, before, old_slack = Y_new, parts(Y_new), slack
        slack = rounding(W, feedforward, Y)
        whole.append([part + feedforward.value(Y) for part in before])
        by_layer.append([new - old > slack + old_slack for new, old in zip(whole[-1], whole[-2], strict=True)])
        by_half.append(half)
    found = (np.moveaxis(np.array(part), 1, 0) for part in (whole, by_layer, by_half))
    energies, layer, half_layer = (dict(zip(ENERGIES, part, strict=True)) for part in found)
    return energies, layer, half_layer


def documents(
    sentences: Sequence[str], embeddings: Mapping[str, FloatArray], samples: int, words: int | None, seed: int
) -> list[FloatArray]:
    """Word vectors (n, d) of a random subset of the sentences that have any, each cut after ``words`` of them."""
    known = [[word for word in text.split(sentence, embeddings) if word in embeddings] for sentence in sentences]
    known = [row[:words] for row in known if row]
    generator = np.random.default_rng([seed, 1])  # not the stream of the weights
    chosen = sorted(generator.choice(len(known), min(samples, len(known)), replace=False).tolist())
    return [np.stack([embeddings[word] for word in known[index]]) for index in chosen]


def by_length(tokens: Sequence[FloatArray]) -> list[FloatArray]:
    """The documents of each length as one batch (b, n, d)."""
    groups: dict[int, list[FloatArray]] = defaultdict(list)
    for Y in tokens:
        groups[len(Y)].append(Y)
    return [np.stack(group) for group in groups.values()]


def compute(
    seed: int,
    progress: Progress | None,
    texts: Mapping[str, Documents],
    embeddings: Mapping[str, FloatArray],
    layers: int = LAYERS,
) -> dict[str, Any]:
    """For each text, named as in ``CORPORA``, scale of W, scale of the tokens and step: how often each energy rises.

    sentences : share of the sentences whose energy rises at some layer. layers : share of (sentence, layer) pairs that
    rise. half : share of those whose attention half raises the energy without E_ffn. by_layer : share of the sentences
    that rise, a number a layer. mean : energy averaged over the sentences, layers + 1 numbers. Weights are those of
    :func:`refimpl.curve.random_terms`, W times its scale.
    """
    d = len(next(iter(embeddings.values())))
    attention, feedforward = random_terms(d, "exp", False, np.random.default_rng(seed))
    assert attention.W is not None
    corpora = {name: documents(texts[name].texts, embeddings, *CORPORA[name], seed) for name in texts}
    done, total = 0, len(corpora) * len(WEIGHT_SCALES) * len(TOKEN_SCALES) * len(STEPS)
    rows = []
    for name, tokens in corpora.items():
        batches = by_length(tokens)
        for weight in WEIGHT_SCALES:
            for scale in TOKEN_SCALES:
                for step in STEPS:
                    runs = [rises(weight * attention.W, feedforward, step, scale * Y, layers) for Y in batches]
                    for energy in ENERGIES:
                        values, layer, half = (
                            np.concatenate([run[k][energy] for run in runs], axis=1) for k in range(3)
                        )
                        rows.append(
                            {
                                "text": name,
                                "W": weight,
                                "tokens": scale,
                                "step": step,
                                "energy": energy,
                                "sentences": float(layer.any(axis=0).mean()),
                                "layers": float(layer.mean()),
                                "half": float(half.mean()),
                                "by_layer": layer.mean(axis=1).tolist(),
                                "mean": values.mean(axis=1).tolist(),
                            }
                        )
                    done += 1
                    if progress is not None:
                        progress(done, total, "steps on text at a scale")
    return {
        "layers": layers,
        "samples": {name: len(tokens) for name, tokens in corpora.items()},
        "words": {name: int(sum(map(len, tokens))) for name, tokens in corpora.items()},
        "rows": rows,
    }


def draw(numbers: dict[str, Any]) -> Any:
    """The figure of ``compute``: shares of (sentence, layer) pairs that rise, and rises by layer at Xavier scale."""
    texts = list(numbers["samples"])
    figure, axes = canvas.panels(len(texts), 3, 15, 4.6 * len(texts))
    shown = (
        ("released", "released", canvas.VERMILION, "o-", "released energy, released step"),
        ("released", "matched", canvas.ORANGE, "s--", "released energy, matched step"),
        ("matched", "released", canvas.BLUE, "^-.", "matched energy, released step"),
        ("matched", "matched", "black", "D:", "matched energy, matched step"),
    )
    scales = [(weight, scale) for weight in WEIGHT_SCALES for scale in TOKEN_SCALES]
    for line, name in zip(axes, texts, strict=True):
        found = {(r["W"], r["tokens"], r["step"], r["energy"]): r for r in numbers["rows"] if r["text"] == name}
        for k, (energy, step, color, style, label) in enumerate(shown):
            rows = [found[*scale, step, energy] for scale in scales]
            options = {"color": color, "label": label, "markersize": 6, "clip_on": False, "markerfacecolor": "white"}
            at = np.arange(len(scales)) + 0.18 * (k - 1.5)
            line[0].plot(at, [row["sentences"] for row in rows], style[0], **options)
            line[1].plot(at, [row["layers"] for row in rows], style[0], **options)
            line[2].plot(range(1, numbers["layers"] + 1), found[1.0, 1.0, step, energy]["by_layer"], style, **options)
        ticks = [f"{weight:g}, {scale:g}" for weight, scale in scales]
        for panel, what in ((line[0], "sentences whose energy rises at some layer"), (line[1], "layers that raise it")):
            panel.set_xticks(range(len(scales)), ticks, rotation=60)
            panel.set(title=f"{name}: {what}", xlabel="scale of W, scale of the tokens", ylabel="share", ylim=(0, 1))
        line[2].set(title=f"{name}, scales 1, 1: by layer", xlabel="layer", ylabel="share of sentences", ylim=(0, 1))
        for panel in line:
            panel.grid(color="0.92")
    handles, labels = axes[0, 2].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, handlelength=4)
    return figure
