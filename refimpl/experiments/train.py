"""Training the unfolded Transformer in NumPy: plain gradient descent, one sentence a step, by the layer's ``vjp``.

All layers share W, W_f and B. The class of a sentence is read from its mean token after the last layer,

    p = softmax(r), r = mean_i(y_i) R + c,      loss = −log p_label.

W_f is kept symmetric with eigenvalues in [−0.95, 0.95], as in the paper, by projection after each step: then
λ_max(H) < 2, and the feed-forward step of α = 1 descends. Backward pass: ``derivations/06_backward.md``.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import certificates
from ..attention import AttentionEnergy
from ..curve import CLIP, random_terms, rounding_bound
from ..feedforward import FeedForwardEnergy
from ..numerics import FloatArray
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


def tokens(words: FloatArray, relu: bool) -> FloatArray:
    """Y⁰ of word vectors (n, d): max(x, 0) with ReLU, whose energy is infinite elsewhere."""
    return np.maximum(words, 0.0) if relu else words


def loss_and_gradient(parameters: Parameters, Y: FloatArray, label: int, setting: Setting) -> tuple[float, Parameters]:
    """−log p_label at tokens Y⁰ (n, d), and its gradient in every parameter; ``FloatingPointError`` on overflow."""
    model = parameters.model(setting)
    layers = [Y]
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(setting.layers):
            layers.append(_finite(np.asarray(model.layer(layers[-1]), dtype=np.float64)))
        r = _finite(parameters.logits(layers[-1]))
    shifted = r - r.max()
    p = np.exp(shifted) / np.exp(shifted).sum()
    r_bar = p - (np.arange(len(p)) == label)
    mean = layers[-1].mean(axis=0)
    Y_bar = np.broadcast_to(parameters.R @ r_bar / len(Y), Y.shape)
    W_bar, Wf_bar, B_bar = (np.zeros_like(array) for array in (parameters.W, parameters.Wf, parameters.B))
    for before in layers[-2::-1]:
        pulled = model.vjp(before, Y_bar)
        Y_bar = pulled.Y
        W_bar, Wf_bar, B_bar = W_bar + pulled.W, Wf_bar + pulled.Wf, B_bar + pulled.B
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
    parameters, losses = start(documents[0].shape[1], classes, setting), list[float]()
    if checkpoint is not None and checkpoint.exists():
        parameters, losses = read_checkpoint(checkpoint, setting, len(documents))
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
            if checkpoint is not None and len(losses) % every == 0:
                write_checkpoint(checkpoint, parameters, losses, setting, len(documents))
            if progress is not None:
                progress(len(losses), setting.steps, "training")
    except KeyboardInterrupt:
        if checkpoint is not None:
            write_checkpoint(checkpoint, parameters, losses, setting, len(documents))
        raise
    if checkpoint is not None:
        write_checkpoint(checkpoint, parameters, losses, setting, len(documents))
    return parameters, losses


def _order(count: int, setting: Setting) -> list[int]:
    """Which sentence each step takes."""
    generator = np.random.default_rng([setting.seed, 1])
    rounds = -(-setting.steps // count)
    return [int(i) for _ in range(rounds) for i in generator.permutation(count)]


# ------------------------------------------------------------------------------------------------ checkpoints


def write_checkpoint(path: Path, parameters: Parameters, losses: Sequence[float], setting: Setting, count: int) -> None:
    """The state as ``.npz``, whole or not at all."""
    description = json.dumps(asdict(setting) | {"sentences": count})
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
        try:
            np.savez(file, setting=np.array(description), losses=np.array(losses), **vars(parameters))
        except BaseException:
            os.unlink(file.name)
            raise
    os.replace(file.name, path)


def read_checkpoint(path: Path, setting: Setting, count: int) -> tuple[Parameters, list[float]]:
    """The state that :func:`write_checkpoint` kept; ``ValueError`` where it is none, or of another run."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            found = json.loads(str(archive["setting"]))
            arrays = {name: np.asarray(archive[name], dtype=np.float64) for name in (*PARAMETERS, "losses")}
    except Exception as error:  # zipfile, zlib, json and NumPy raise a dozen types for a damaged file
        raise ValueError(
            f"checkpoint: expected one that train wrote, {path}: {type(error).__name__}: {error}"
        ) from None
    expected = asdict(setting) | {"sentences": count}
    for name, value in expected.items():
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
    documents fell under a certificate ("guaranteed"), fell without one ("fell") and rose ("rose").
    """

    accuracy: float
    documents: int
    mean_energy: list[float]
    monotone_fraction: float
    coverage: dict[str, list[dict[str, int]]]

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
    halves = {half: [_nothing() for _ in range(setting.layers)] for half in ("attention", "feedforward")}
    energies, monotone, right = np.empty((len(documents), setting.layers + 1)), 0, 0
    for number, (words, label) in enumerate(zip(documents, labels, strict=True)):
        Y = tokens(words, setting.relu)
        energies[number, 0] = model.value(Y)
        rose = False
        for layer in range(setting.layers):
            before = energies[number, layer]
            between = np.asarray(model.attention.step(Y), dtype=np.float64)
            after = np.asarray(model.feedforward.step(between), dtype=np.float64)
            middle = float(model.value(between))
            energies[number, layer + 1] = model.value(after)
            changes = (middle - before, energies[number, layer + 1] - middle)
            guaranteed = (_attention_guaranteed(model, Y), _feedforward_guaranteed(model, between, after))
            points = ((Y, between), (between, after))
            for half, change, sure, pair in zip(halves, changes, guaranteed, points, strict=True):
                slack = sum(rounding_bound(_attention(model), model.feedforward, point) for point in pair)
                assert not (sure and change > slack), f"a guaranteed {half} step rises by {change}"
                halves[half][layer]["rose" if change > slack else "guaranteed" if sure else "fell"] += 1
            around = sum(rounding_bound(_attention(model), model.feedforward, point) for point in (Y, after))
            rose = rose or bool(energies[number, layer + 1] - before > around)
            Y = after
        monotone += not rose
        right += int(np.argmax(parameters.logits(Y)) == label)
        if progress is not None:
            progress(number + 1, len(documents), "evaluation")
    count = len(documents)
    return Evaluation(right / count, count, energies.mean(axis=0).tolist(), monotone / count, halves)


def _nothing() -> dict[str, int]:
    return {"guaranteed": 0, "fell": 0, "rose": 0}


def _attention(model: UnfoldedTransformer) -> AttentionEnergy:
    assert isinstance(model.attention, AttentionEnergy)
    return model.attention


def _attention_guaranteed(model: UnfoldedTransformer, Y: FloatArray) -> bool:
    """``alternating.attention_metric``: the attention step, f the smooth part of E_ffn. It stays in the orthant."""
    f = np.asarray(model.feedforward.gradient(Y))
    L_f = max(model.feedforward.curvature, 0.0)
    return bool(certificates.attention_metric(_attention(model), Y, f, L_f=L_f).holds)


def _feedforward_guaranteed(model: UnfoldedTransformer, Y: FloatArray, after: FloatArray) -> bool:
    """``alternating.prox_mapping``, or with ReLU ``alternating.truncation``: the feed-forward step, f = E_attn.

    Both need h = f + the smooth part of E_ffn below its quadratic at Y: for concave ρ the majorizer gives E_attn the
    curvature 2 max_i M_i with M_i = ``half_curvature``, to which λ_max(H) is added.
    """
    attention, feedforward = _attention(model), model.feedforward
    L_h = 2 * float(attention.half_curvature(Y).max()) + max(feedforward.curvature, 0.0)
    grad_f = np.asarray(attention.gradient(Y))
    holds = certificates.prox_mapping(grad_f, Y - after, L_h=L_h, alpha=1.0).holds
    if feedforward.activation.name == "relu":
        grad_g = np.asarray(feedforward.gradient(Y))
        holds = holds | certificates.truncation(Y, grad_f, grad_g, L_h=L_h, alpha=1.0).holds
    return bool(holds)
