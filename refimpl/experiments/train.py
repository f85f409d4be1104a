"""Training the unfolded Transformer in NumPy: plain gradient descent, one sentence a step, by the layer's ``vjp``.

All layers share W, W_f and B. The class of a sentence is read from its mean token after the last layer,

    p = softmax(r), r = mean_i(y_i) R + c,      loss = −log p_label.

W_f is kept symmetric with eigenvalues in [−0.95, 0.95], the paper's set, by projection after each step: then
λ_max(H) < 2, and the feed-forward step of α = 1 descends. The released code replaces W_f by W_f W_fᵀ after each step
instead, which squares its eigenvalues: from 0.95 they are below 0.002 after seven steps. It also reads 2 n classes from
all tokens, of which only the first token's can be right; hence the mean token here. Backward pass:
``derivations/06_backward.md``.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import certificates, text
from ..attention import AttentionEnergy
from ..curve import CLIP, random_terms, rounding_bound
from ..feedforward import FeedForwardEnergy
from ..numerics import FloatArray
from ..text import Documents
from ..transformer import UnfoldedTransformer

Progress = Callable[[int, int, str], None]
PARAMETERS = ("W", "Wf", "B", "R", "c")


@dataclass(frozen=True)
class Setting:
    """What a run depends on, besides its data."""

    layers: int = 12
    steps: int = 2000
    rate: float = 1e-2
    rho: str = "exp"
    relu: bool = True
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Parameters:
    """W (d, d), Wf (d, d), B (d,), R (d, classes), c (classes,)."""

    W: FloatArray
    Wf: FloatArray
    B: FloatArray
    R: FloatArray
    c: FloatArray

    def model(self, setting: Setting) -> UnfoldedTransformer:
        """The layers that these parameters make."""
        activation = "relu" if setting.relu else "identity"
        feedforward = FeedForwardEnergy(self.Wf, self.B, activation)
        return UnfoldedTransformer(AttentionEnergy(self.W, setting.rho), feedforward, depth=setting.layers)

    def logits(self, Y: FloatArray) -> FloatArray:
        """r = mean_i(y_i) R + c for the tokens (n, d) of the last layer."""
        return np.asarray(Y.mean(axis=0) @ self.R + self.c)


def start(d: int, classes: int, setting: Setting) -> Parameters:
    """Random parameters: W, B and W_f as :func:`refimpl.curve.random_terms` draws them, R Xavier normal, c = 0."""
    generator = np.random.default_rng(setting.seed)
    attention, feedforward = random_terms(d, setting.rho, setting.relu, generator)
    assert attention.W is not None
    R = generator.normal(0.0, np.sqrt(2 / (d + classes)), (d, classes))
    return Parameters(attention.W, feedforward.Wf, feedforward.B, R, np.zeros(classes))


def labelled(
    documents: Documents, names: Sequence[str], embeddings: Mapping[str, FloatArray], max_words: int | None
) -> list[tuple[FloatArray, int]]:
    """Word vectors (n, d), n ≥ 1, of each document cut after ``max_words``, and the index of its label in ``names``.

    Documents without any word that has a vector are left out.
    """
    pairs = zip(documents.texts, documents.labels or [], strict=True)
    words = ((text.split(line, embeddings)[:max_words], label) for line, label in pairs)
    known = (([embeddings[word] for word in row if word in embeddings], label) for row, label in words)
    return [(np.stack(row), names.index(label)) for row, label in known if row]


def tokens(words: FloatArray, relu: bool) -> FloatArray:
    """Y⁰ of word vectors (n, d): max(x, 0) with ReLU, whose energy is infinite elsewhere."""
    return np.maximum(words, 0.0) if relu else words


def loss_and_gradient(parameters: Parameters, Y: FloatArray, label: int, setting: Setting) -> tuple[float, Parameters]:
    """−log p_label at tokens Y⁰ (n, d), and its gradient in every parameter; ``FloatingPointError`` on overflow."""
    model = parameters.model(setting)
    attention, feedforward = _attention(model), model.feedforward
    # the two half steps apart, so that the backward pass need not take the first one again
    halves: list[tuple[FloatArray, FloatArray]] = []
    last = Y
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(setting.layers):
            halves.append((last, np.asarray(attention.step(last), dtype=np.float64)))
            last = _finite(np.asarray(feedforward.step(halves[-1][1]), dtype=np.float64))
        r = _finite(parameters.logits(last))
    shifted = r - r.max()
    p = np.exp(shifted) / np.exp(shifted).sum()
    r_bar = p - (np.arange(len(p)) == label)
    mean = last.mean(axis=0)
    Y_bar = np.broadcast_to(parameters.R @ r_bar / len(Y), Y.shape)
    W_bar, Wf_bar, B_bar = (np.zeros_like(array) for array in (parameters.W, parameters.Wf, parameters.B))
    for before, between in reversed(halves):
        second = feedforward.vjp(between, Y_bar)
        first = attention.vjp(before, second.Y)
        Y_bar = first.Y
        W_bar, Wf_bar, B_bar = W_bar + first.W, Wf_bar + second.Wf, B_bar + second.B
    loss = float(np.log(np.exp(shifted).sum()) - shifted[label])
    return loss, Parameters(W_bar, Wf_bar, B_bar, np.outer(mean, r_bar), r_bar)


def _finite(array: FloatArray) -> FloatArray:
    if not np.isfinite(array).all():
        raise FloatingPointError("overflow")
    return array


def constrained(Wf: FloatArray) -> FloatArray:
    """The nearest symmetric matrix (in the Frobenius norm) with eigenvalues in [−0.95, 0.95]."""
    eigenvalues, Q = np.linalg.eigh((Wf + Wf.T) / 2)
    return np.asarray((Q * np.clip(eigenvalues, -CLIP, CLIP)) @ Q.T)


def train(
    documents: Sequence[FloatArray],
    labels: Sequence[int],
    setting: Setting,
    *,
    classes: int = 2,
    checkpoint: Path | None = None,
    every: int = 100,
    progress: Progress | None = None,
) -> tuple[Parameters, list[float]]:
    """The parameters after ``setting.steps`` steps, and the loss at each.

    ``documents`` are word vectors (n, d) of each sentence, n ≥ 1, labels whole numbers below ``classes``. Sentences
    come in a random order without repetition, a new order when all have been seen. With ``checkpoint``, an ``.npz``
    file, the state is kept there every ``every`` steps and at an interrupt, and a run goes on from it, to the same
    bits as one that was never interrupted.

    Raises ``ValueError`` where the loss is not finite, naming the step, and where the checkpoint is of another run.
    """
    if len(documents) != len(labels) or not documents:
        raise ValueError(f"labels: expected one for each of {len(documents)} sentence(s), got {len(labels)}")
    data = _digest(documents, labels)
    parameters, losses = start(documents[0].shape[1], classes, setting), list[float]()
    if checkpoint is not None and checkpoint.exists():
        parameters, losses = read_checkpoint(checkpoint, setting, data)
    state = parameters, len(losses)
    order = _order(len(documents), setting)
    try:
        for step in range(len(losses), setting.steps):
            index = order[step]
            try:
                Y = tokens(documents[index], setting.relu)
                loss, gradient = loss_and_gradient(parameters, Y, labels[index], setting)
                with np.errstate(over="ignore", invalid="ignore"):
                    moved = {
                        name: _finite(getattr(parameters, name) - setting.rate * getattr(gradient, name))
                        for name in PARAMETERS
                    }
            except FloatingPointError:
                raise ValueError(
                    f"rate: expected one that converges, {setting.rate} does not: step {step} overflows"
                ) from None
            parameters = Parameters(**moved | {"Wf": constrained(moved["Wf"])})
            losses.append(loss)
            state = parameters, step + 1  # in one go: an interrupt finds both of this step, or neither
            if checkpoint is not None and (step + 1) % every == 0:
                write_checkpoint(checkpoint, parameters, losses, setting, data)
            if progress is not None:
                progress(step + 1, setting.steps, "training")
    except KeyboardInterrupt:
        if checkpoint is None:
            raise
        parameters, done = state
        write_checkpoint(checkpoint, parameters, losses[:done], setting, data)
        raise KeyboardInterrupt(
            f"{done} of {setting.steps} steps are in {checkpoint}; the same command goes on"
        ) from None
    if checkpoint is not None:
        write_checkpoint(checkpoint, parameters, losses, setting, data)
    return parameters, losses


def _digest(documents: Sequence[FloatArray], labels: Sequence[int]) -> str:
    """SHA-256 of the shapes, vectors and labels, in their order: the data that a run depends on."""
    digest = hashlib.sha256()
    for words, label in zip(documents, labels, strict=True):
        digest.update(f"{words.shape} {label} ".encode())
        digest.update(words.astype("<f8").tobytes())
    return digest.hexdigest()


def _order(count: int, setting: Setting) -> list[int]:
    """Which sentence each step takes."""
    generator = np.random.default_rng([setting.seed, 1])
    rounds = -(-setting.steps // count)
    return [int(i) for _ in range(rounds) for i in generator.permutation(count)]


# ------------------------------------------------------------------------------------------------ checkpoints


def write_checkpoint(path: Path, parameters: Parameters, losses: Sequence[float], setting: Setting, data: str) -> None:
    """The state as ``.npz``, whole or not at all; ``data`` tells one set of documents from another."""
    description = json.dumps(asdict(setting) | {"data": data})
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
        try:
            np.savez(file, setting=np.array(description), losses=np.array(losses), **vars(parameters))
        except BaseException:
            os.unlink(file.name)
            raise
    os.replace(file.name, path)


def read_checkpoint(path: Path, setting: Setting, data: str) -> tuple[Parameters, list[float]]:
    """The state that :func:`write_checkpoint` kept; ``ValueError`` where it is none, or of another run."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            found = json.loads(str(archive["setting"]))
            arrays = {name: np.asarray(archive[name], dtype=np.float64) for name in (*PARAMETERS, "losses")}
    except Exception as error:  # zipfile, zlib, json and NumPy raise a dozen types for a damaged file
        raise ValueError(
            f"checkpoint: expected one that train wrote, {path}: {type(error).__name__}: {error}"
        ) from None
    if found.get("data") != data:
        raise ValueError(f"checkpoint: {path} is of a run on other sentences, labels or word vectors")
    for name, value in asdict(setting).items():
        # more steps may be asked of a run than it was begun with
        if name != "steps" and found.get(name) != value:
            raise ValueError(f"checkpoint: {path} is of a run with {name} = {found.get(name)}, not {value}")
    losses = arrays.pop("losses").tolist()
    return Parameters(**arrays), losses[: setting.steps]


# ------------------------------------------------------------------------------------------------ evaluation


@dataclass(frozen=True)
class Evaluation:
    """What a model does to documents.

    accuracy : share of right labels. mean_energy : (layers + 1). monotone_fraction : share of documents whose energy
    rises at no layer. coverage : for each of the two halves "attention" and "feedforward" and each layer, how many
    documents fell under a certificate ("guaranteed"), fell without one ("fell"), rose ("rose"), and changed by less
    than rounding can ("level"). holds : for each certificate and layer, at how many documents it held: none where ρ is
    not known to be concave.
    """

    accuracy: float
    documents: int
    mean_energy: list[float]
    monotone_fraction: float
    coverage: dict[str, list[dict[str, int]]]
    holds: dict[str, list[int]]

    def as_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


def evaluate(
    parameters: Parameters,
    documents: Sequence[FloatArray],
    labels: Sequence[int],
    setting: Setting,
    progress: Progress | None = None,
) -> Evaluation:
    """Accuracy, energies and certificates of the model on the documents.

    A half step that a certificate guarantees and that raises the energy beyond rounding would refute the theorem:
    ``AssertionError``.
    """
    model = parameters.model(setting)
    attention, feedforward = _attention(model), model.feedforward
    names = ["attention_metric", "majorizer", "prox_mapping", *(["truncation"] if setting.relu else [])]
    halves = {half: [_nothing() for _ in range(setting.layers)] for half in ("attention", "feedforward")}
    holds = {name: [0] * setting.layers for name in names}
    energies, monotone, right = np.empty((len(documents), setting.layers + 1)), 0, 0
    for number, (words, label) in enumerate(zip(documents, labels, strict=True)):
        Y = tokens(words, setting.relu)
        energies[number, 0], slack = model.value(Y), rounding_bound(attention, feedforward, Y)
        rose = False
        for layer in range(setting.layers):
            between = np.asarray(attention.step(Y), dtype=np.float64)
            after = np.asarray(feedforward.step(between), dtype=np.float64)
            value = (energies[number, layer], model.value(between), model.value(after))
            bounds = (slack, *(rounding_bound(attention, feedforward, point) for point in (between, after)))
            first = _attention_certificate(attention, feedforward, Y)
            second = _feedforward_certificates(attention, feedforward, between, after)
            for name, held in (first | second).items():
                holds[name][layer] += held
            for k, (half, certificates_hold) in enumerate(zip(halves, (first, second), strict=True)):
                change, noise, sure = (
                    value[k + 1] - value[k],
                    bounds[k + 1] + bounds[k],
                    any(certificates_hold.values()),
                )
                assert not (sure and change > noise), f"a guaranteed {half} step rises by {change}"
                fell = "guaranteed" if sure else "fell"
                outcome = "level" if abs(change) <= noise else "rose" if change > 0 else fell
                halves[half][layer][outcome] += 1
            rose = rose or bool(value[2] - value[0] > bounds[2] + bounds[0])
            Y, energies[number, layer + 1], slack = after, value[2], bounds[2]
        monotone += not rose
        right += int(np.argmax(parameters.logits(Y)) == label)
        if progress is not None:
            progress(number + 1, len(documents), "evaluation")
    count = len(documents)
    return Evaluation(right / count, count, energies.mean(axis=0).tolist(), monotone / count, halves, holds)


def _nothing() -> dict[str, int]:
    return {"guaranteed": 0, "fell": 0, "rose": 0, "level": 0}


def _attention(model: UnfoldedTransformer) -> AttentionEnergy:
    assert isinstance(model.attention, AttentionEnergy)
    return model.attention


def _attention_certificate(
    attention: AttentionEnergy, feedforward: FeedForwardEnergy, Y: FloatArray
) -> dict[str, bool]:
    """``alternating.attention_metric``: the attention step, f the smooth part of E_ffn. It stays in the orthant."""
    f = np.asarray(feedforward.gradient(Y))
    L_f = max(feedforward.curvature, 0.0)
    held = certificates.attention_metric(attention, Y, f, L_f=L_f).holds
    return {"attention_metric": bool(attention.rho.concave and held)}


def _feedforward_certificates(
    attention: AttentionEnergy, feedforward: FeedForwardEnergy, Y: FloatArray, after: FloatArray
) -> dict[str, bool]:
    """The certificates of the feed-forward step of α = 1, f = E_attn: ``majorizer``, ``prox_mapping``, ``truncation``.

    By the majorizer E_attn is below its quadratic of curvature ‖S‖₂ λ_max(L) at Y, to which λ_max(H) is added to make
    L_h. For L_h ≥ 2 ``prox_mapping`` never holds.
    """
    grad_f, Gamma, L_g = np.asarray(attention.gradient(Y)), attention.kernel(Y), max(feedforward.curvature, 0.0)
    L = np.diag(Gamma.sum(axis=-1)) - Gamma
    L_h = attention.spectral_norm * max(float(np.linalg.eigvalsh(L)[-1]), 0.0) + L_g
    held = {
        "majorizer": certificates.majorizer(attention, Y, after, L_g=L_g).holds,
        "prox_mapping": certificates.prox_mapping(grad_f, Y - after, L_h=L_h, alpha=1.0).holds,
    }
    if feedforward.activation.name == "relu":
        grad_g = np.asarray(feedforward.gradient(Y))
        held["truncation"] = certificates.truncation(Y, grad_f, grad_g, L_h=L_h, alpha=1.0).holds
    return {name: bool(attention.rho.concave and holds) for name, holds in held.items()}
