"""The energy of real sentences, layer by layer: the experiment behind the paper's energy curves.

One Transformer with random weights, shared by its layers, is run on every sentence. The alternation of the two steps
lowers the energy where a certificate of :mod:`refimpl.certificates` holds; here is what it does on text.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import text
from .attention import AttentionEnergy
from .feedforward import FeedForwardEnergy
from .numerics import EPS, FloatArray, differences_are_cheap, half_squared_distances, project
from .rho import Rho
from .transformer import UnfoldedTransformer

Progress = Callable[[int, int, str], None]

PLOT_SUFFIXES = (".png", ".svg", ".pdf")
# eigenvalues of W_f W_fᵀ are clipped here, so that the feed-forward Hessian stays below 2 and α = 1 descends
CLIP = 0.95


class Increase(NamedTuple):
    """A rise of the energy: sentence (its index), layer (1 is the first), amount, and the bound on rounding in it."""

    sentence: int
    layer: int
    amount: float
    rounding: float


@dataclass(frozen=True, eq=False)
class EnergyCurve:
    """What ``energy_curve`` measured; arrays have one entry a layer, the input first.

    mean_energy, minimum, maximum : (layers + 1,), over the sentences.
    quartiles : (3, layers + 1), the 25, 50 and 75 % quantiles.
    monotone_fraction : share of the sentences whose energy rises at no layer.
    first_increase : the largest rise of the first layer where any sentence's energy rises; None if none does.
    samples : number of sentences averaged.
    words, unknown_words : words of all the sentences given, as cut, with and without a vector.
    empty_sentences : indices of the sentences without any word that has a vector; they are not averaged.
    start : the tokens of layer 0, "max(x, 0)" or "x", for word vectors x.
    max_words : the number of words after which a sentence was cut; None where none was.
    """

    layers: int
    samples: int
    mean_energy: FloatArray
    quartiles: FloatArray
    minimum: FloatArray
    maximum: FloatArray
    monotone_fraction: float
    first_increase: Increase | None
    words: int
    unknown_words: int
    empty_sentences: list[int]
    relu: bool
    rho: str
    seed: int
    start: str
    max_words: int | None

    def as_dict(self) -> dict[str, Any]:
        """The numbers as plain lists, ``first_increase`` as the index of its layer and in full as ``increase``."""
        first = self.first_increase
        return {
            "layers": self.layers,
            "samples": self.samples,
            "mean_energy": self.mean_energy.tolist(),
            "quartiles": self.quartiles.tolist(),
            "minimum": self.minimum.tolist(),
            "maximum": self.maximum.tolist(),
            "monotone_fraction": self.monotone_fraction,
            "first_increase": None if first is None else first.layer,
            "increase": None if first is None else first._asdict(),
            "words": self.words,
            "unknown_words": self.unknown_words,
            "empty_sentences": self.empty_sentences,
            "relu": self.relu,
            "rho": self.rho,
            "seed": self.seed,
            "start": self.start,
            "max_words": self.max_words,
        }


def random_terms(
    d: int, rho: str | Rho, relu: bool, generator: np.random.Generator
) -> tuple[AttentionEnergy, FeedForwardEnergy]:
    """Weights as in the paper's experiments, drawn in the order W, B, W_f, each Xavier normal.

    W (d, d) and W_f (d, d) have standard deviation sqrt(2 / (d + d)), B (1, d) has sqrt(2 / (1 + d)); W_f is replaced
    by W_f W_fᵀ with its eigenvalues clipped at 0.95. Without ReLU the activation is the identity.
    """
    W = generator.normal(0.0, np.sqrt(2 / (d + d)), (d, d))
    B = generator.normal(0.0, np.sqrt(2 / (1 + d)), (1, d))
    Wf = generator.normal(0.0, np.sqrt(2 / (d + d)), (d, d))
    eigenvalues, Q = np.linalg.eigh(Wf @ Wf.T)
    Wf = (Q * np.clip(eigenvalues, 0.0, CLIP)) @ Q.T
    return AttentionEnergy(W, rho), FeedForwardEnergy(Wf, B[0], "relu" if relu else "identity")


def energy_curve(
    sentences: Sequence[str],
    embeddings: Mapping[str, FloatArray],
    *,
    layers: int = 12,
    rho: str | Rho = "exp",
    relu: bool = True,
    seed: int = 0,
    samples: int | None = None,
    max_words: int | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> EnergyCurve:
    """Run a Transformer with ``random_terms`` on the sentences and keep the energies.

    Y⁰ (n, d) holds the vectors x of a sentence's words; those without a vector are left out. With ReLU the energy of a
    token with a negative entry is +inf, so there the tokens start at max(x, 0). ``max_words`` cuts a sentence after
    that many words, with or without a vector. ``samples`` takes a random subset of the sentences that have words. The
    weights are the first draws of ``numpy.random.default_rng(seed)`` and the subset the next, so it does not change
    them. One sentence is held in words and vectors at a time.

    Documents are independent: with ``jobs`` above 1, or −1 for all cores, joblib spreads them over processes, or over
    the machines of the backend that ``joblib.parallel_config`` names. The numbers do not depend on it.

    An energy rises where its computed difference exceeds what rounding can make of an unchanged energy; see
    ``rounding_bound``.

    Raises ``ValueError`` for layers, samples or max_words below 1, jobs that are 0 or below −1, a seed below 0, a
    penalty that cannot be used, sentences without any word that has a vector, and energies that are not finite.
    """
    for name, value, least in (
        ("layers", layers, 1),
        ("samples", samples, 1),
        ("max_words", max_words, 1),
        ("seed", seed, 0),
    ):
        if value is not None and value < least:
            raise ValueError(f"{name}: expected a whole number of at least {least}, got {value}")
    if jobs < -1 or jobs == 0:
        raise ValueError(f"jobs: expected a whole number of at least 1, or -1 for all cores, got {jobs}")

    def known(index: int) -> tuple[list[str], int]:
        words = text.split(sentences[index], embeddings)[:max_words]
        kept = [word for word in words if word in embeddings]
        return kept, len(words) - len(kept)

    # every sentence is split twice, so that no two are held in words at once
    known_words = unknown_words = 0
    usable: list[int] = []
    empty: list[int] = []
    for index in range(len(sentences)):
        kept, unknown = known(index)
        known_words, unknown_words = known_words + len(kept), unknown_words + unknown
        (usable if kept else empty).append(index)
    if not usable:
        raise ValueError(
            f"sentences: expected at least one word that has a vector, got none in {len(sentences)} sentence(s)"
        )
    generator = np.random.default_rng(seed)
    attention, feedforward = random_terms(len(next(iter(embeddings.values()))), rho, relu, generator)
    model = UnfoldedTransformer(attention, feedforward, depth=layers)
    if samples is not None and samples < len(usable):
        usable = sorted(generator.choice(usable, samples, replace=False).tolist())

    energies = np.empty((len(usable), layers + 1))
    increases: list[Increase] = []
    documents = ((index, np.stack([embeddings[word] for word in known(index)[0]])) for index in usable)
    for row, (energy, rises) in enumerate(_mapped(model, documents, relu, jobs)):
        energies[row] = energy
        increases += rises
        if progress is not None:
            progress(row + 1, len(usable), "sentences")

    rising = {increase.sentence for increase in increases}
    return EnergyCurve(
        layers=layers,
        samples=len(usable),
        mean_energy=energies.mean(axis=0),
        quartiles=np.quantile(energies, (0.25, 0.5, 0.75), axis=0),
        minimum=energies.min(axis=0),
        maximum=energies.max(axis=0),
        monotone_fraction=1 - len(rising) / len(usable),
        first_increase=min(increases, key=lambda rise: (rise.layer, -rise.amount), default=None),
        words=known_words,
        unknown_words=unknown_words,
        empty_sentences=empty,
        relu=relu,
        rho=attention.rho.name,
        seed=seed,
        start="max(x, 0)" if relu else "x",
        max_words=max_words,
    )


def _mapped(
    model: UnfoldedTransformer, documents: Iterator[tuple[int, FloatArray]], relu: bool, jobs: int
) -> Iterator[tuple[FloatArray, list[Increase]]]:
    """``_followed`` of each document, in their order; with several jobs by joblib, a few documents at a time."""
    if jobs == 1:
        return (_followed(model, index, X, relu) for index, X in documents)
    try:
        import joblib
    except ImportError:
        raise ValueError("jobs: joblib is needed, run: pip install 'refimpl[parallel]'") from None
    parallel = joblib.Parallel(n_jobs=jobs, return_as="generator", pre_dispatch="4*n_jobs")
    runs: Iterator[tuple[FloatArray, list[Increase]]] = parallel(
        joblib.delayed(_followed)(model, index, X, relu) for index, X in documents
    )
    return runs


def _followed(model: UnfoldedTransformer, index: int, X: FloatArray, relu: bool) -> tuple[FloatArray, list[Increase]]:
    """The energies (layers + 1,) of a document of word vectors X (n, d), and where they rise beyond rounding."""
    # an overflow is told by the energy, below
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        run = model.forward(np.maximum(X, 0.0) if relu else X)
    energy = run.energy
    if not np.isfinite(energy).all():
        raise ValueError(
            f"embeddings: expected vectors and a rho with finite energies, got {energy.tolist()} for sentence {index}"
        )
    assert isinstance(model.attention, AttentionEnergy)
    increases = []
    for layer in (np.flatnonzero(np.diff(energy) > 0) + 1).tolist():
        amount = float(energy[layer] - energy[layer - 1])
        around = run.tokens[layer - 1 : layer + 1].astype(np.float64)
        rounding = sum(rounding_bound(model.attention, model.feedforward, Y) for Y in around)
        if amount > rounding:
            increases.append(Increase(index, layer, amount, rounding))
    return energy, increases


def rounding_bound(attention: AttentionEnergy, feedforward: FeedForwardEnergy, Y: FloatArray) -> float:
    """A bound on the rounding error of the energy at Y (n, d): the number of roundings times eps times Σ |terms|.

    The terms are ρ(z_ij) and the products in the two quadratics. z_ij is a sum of d squares whose relative error
    moves ρ by z |ρ'(z)| as much; Y W_f sums d products; the sum of all of them, a row at a time, passes a number
    through at most n + d additions. 32 more stand for the rest: ρ itself and the outer products. Numbers are rounded
    by half an eps, which leaves a factor of two. Where z is formed by products, ρ may be off by 2⁻⁴⁰ of itself.
    """
    U = project(Y, attention.W)
    Z = half_squared_distances(*U)
    pairs = np.abs(attention.rho.value(Z)) + Z * np.abs(attention.rho.derivative(Z))
    size = np.abs(Y)
    quadratic = size * (size @ np.abs(feedforward.Wf)) + (size + np.abs(feedforward.B)) ** 2
    n, d = Y.shape
    by_products = 0.0 if differences_are_cheap(U) else 2.0**-40 * np.abs(attention.rho.value(Z)).sum()
    return float((2 * d + n + 32) * EPS * 0.5 * (pairs.sum() + quadratic.sum()) + 0.5 * by_products)


# ------------------------------------------------------------------------------------------------ the plot


def check_plot(path: Path) -> None:
    """Raise ``ValueError`` now for a plot that could not be written after the work is done."""
    if path.suffix.lower() not in PLOT_SUFFIXES:
        raise ValueError(f"plot: expected a file that ends in {', '.join(PLOT_SUFFIXES)}, got {path}")
    if not path.parent.is_dir():
        raise ValueError(f"plot: expected a file in an existing directory, {path.parent} is not one")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise ValueError(f"plot: expected a file that can be written, got {path}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ValueError("plot: matplotlib is needed, run: pip install 'refimpl[figures]'") from None


def plot(curve: EnergyCurve, path: Path) -> None:
    """Draw mean, quartiles and range against the layer. The file appears whole or not at all.

    Raises what ``check_plot`` raises.
    """
    check_plot(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    layer = np.arange(curve.layers + 1)
    axes.fill_between(layer, curve.minimum, curve.maximum, color="0.87", label="minimum to maximum")
    axes.fill_between(layer, curve.quartiles[0], curve.quartiles[2], color="0.65", label="25 to 75 %")
    axes.plot(layer, curve.mean_energy, color="black", marker="o", markersize=4, clip_on=False, label="mean")
    axes.set_xlabel("layer")
    axes.set_ylabel("energy  E(Y)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(0, curve.layers)
    rho = curve.rho if len(curve.rho) <= 50 else f"{curve.rho[:47]}..."
    plural = "" if curve.samples == 1 else "s"
    falling = round(curve.monotone_fraction * curve.samples)  # counted: 99.99 % would read as 100.0 %
    # parse_math=False: a formula may hold a dollar sign
    axes.set_title(
        f"Energy of {curve.samples:,} sentence{plural}, rho = {rho}, {'ReLU' if curve.relu else 'no ReLU'}\n"
        f"tokens start at {curve.start}; falls at every layer for {falling:,} of {curve.samples:,}",
        parse_math=False,
        fontsize="medium",
    )
    axes.legend()
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    """Write a matplotlib figure; the file appears whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        figure.savefig(temporary, format=path.suffix[1:].lower(), dpi=150)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
