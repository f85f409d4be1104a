"""Looking for tokens on which the feed-forward step of an activation raises the energy, and making the find small.

By the claim ``ffn.sufficient_decrease`` there are none where prox and φ belong together, φ is convex and
α ≤ 2 / λ_max(H), or φ is any and α ≤ 1 / λ_max(H): a find shows that they do not belong together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import definitions
from ..activation import Activation
from ..feedforward import FeedForwardEnergy
from ..numerics import FloatArray
from .exact import exact, matrix
from .rounding import feedforward_error
from .search import Search
from .strategies import repr_float, written

Literal = tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]

_BATCH = 25
_NOTICEABLE = 1e-12  # relative rises below this may be rounding, and are not worth the exact arithmetic
_LARGEST = 4.0  # steps are drawn up to this size where any size descends


@dataclass(frozen=True, eq=False)
class FeedForwardRise:
    """Tokens Y (n, d), W_f (d, d) and B (n, d) on which the step α raises the energy, and how it was confirmed."""

    activation: str  # Python text
    Y: FloatArray
    Wf: FloatArray
    B: FloatArray
    alpha: float
    before: float
    after: float
    confirmed: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "Y": self.Y.tolist(),
            "Wf": self.Wf.tolist(),
            "B": self.B.tolist(),
            "alpha": self.alpha,
            "energy_before": self.before,
            "energy_after": self.after,
            "confirmed": self.confirmed,
            "snippet": self.snippet(),
        }

    def snippet(self) -> str:
        """Python that shows the rise, to be pasted."""
        return "\n".join(
            [
                "import refimpl",
                *(["from refimpl import formula, recover"] if self.activation.startswith("recover.") else []),
                "",
                f"energy = refimpl.FeedForwardEnergy({written(self.Wf)}, {written(self.B)}, {self.activation})",
                f"Y = {written(self.Y)}",
                f"print(energy.value(Y), energy.value(energy.step(Y, {repr_float(self.alpha)})))  "
                f"# {self.before:.7g} rises to {self.after:.7g}",
            ]
        )


@dataclass(frozen=True, eq=False)
class _Candidate:
    Y: FloatArray
    Wf: FloatArray
    B: FloatArray
    alpha: float


def search_activation(
    activation: Activation,
    examples: int = 1000,
    seed: int = 0,
    literal: Literal | None = None,
    max_alpha: float = math.inf,
    written_as: str | None = None,
) -> Search[FeedForwardRise]:
    """Look for a rise of E_ffn under ``step(Y, alpha)``, from points of finite energy, for α up to the largest that
    the claim allows and ``max_alpha``. Half of the examples are random, half vary the one that came closest so far.

    ``literal`` is (prox_{αφ}(v), φ(y)) in mpmath, with which 50 digits confirm a rise; without it, it has to exceed a
    bound on rounding. ``written_as`` is the activation in Python. It stops at the first confirmed rise.
    """
    rng, ran, best, closest = np.random.default_rng(seed), 0, None, -math.inf
    while ran < examples:
        tries = min(_BATCH, examples - ran)
        batch = _drawn(rng, activation, tries) if best is None or rng.random() < 0.5 else _varied(rng, best, tries)
        batch = _allowed(activation, batch, rng.choice([1.0, rng.random()]), max_alpha)
        rises = _rises(activation, batch)
        ran += tries
        for i in np.argsort(-rises)[:3]:
            candidate = replace(batch, Y=batch.Y[i], B=batch.B[i])
            if rises[i] > _NOTICEABLE and confirm(activation, candidate, literal) is not None:
                reduced = _reduced(activation, candidate, literal, max_alpha)
                result = confirm(activation, reduced, literal)
                assert result is not None
                text = repr(activation.name) if written_as is None else written_as
                return Search(ran, FeedForwardRise(text, reduced.Y, reduced.Wf, reduced.B, reduced.alpha, *result))
            if rises[i] > closest:
                best, closest = candidate, float(rises[i])
    return Search(ran, None)


def _drawn(rng: np.random.Generator, activation: Activation, batch: int) -> _Candidate:
    """Random tokens (batch, n, d) in the range of σ, W_f (d, d) and B (batch, n, d), of different sizes."""
    n, d = rng.integers(1, 4, size=2)
    sizes = 2.0 ** rng.integers(-4, 5, size=(3, batch, 1, 1))
    tokens, bias = sizes[:2] * rng.normal(size=(2, batch, n, d))
    Wf = sizes[2, 0] * rng.normal(size=(d, d))
    Y, start = np.asarray(activation.prox(tokens, 1.0)), np.asarray(activation.prox(0 * tokens, 1.0))
    return _Candidate(np.where(np.isfinite(Y), Y, start), Wf, bias, 1.0)


def _varied(rng: np.random.Generator, best: _Candidate, batch: int) -> _Candidate:
    def near(M: FloatArray, shape: tuple[int, ...]) -> FloatArray:
        size = 2.0 ** rng.integers(-8, 1, size=(*shape[:-2], 1, 1))
        return np.asarray(M + size * (np.abs(M).max(initial=0.0) + 0.01) * rng.normal(size=shape))

    Y = np.concatenate([best.Y[None], near(best.Y, (batch, *best.Y.shape))[1:]])
    return _Candidate(Y, near(best.Wf, best.Wf.shape), near(best.B, (batch, *best.B.shape)), best.alpha)


def _allowed(activation: Activation, c: _Candidate, fraction: float, max_alpha: float) -> _Candidate:
    """With α at a fraction of the largest allowed, less what rounding may make of that."""
    largest = min(FeedForwardEnergy(c.Wf, 0.0, activation).max_alpha * (1 - 1e-12), max_alpha, _LARGEST)
    return replace(c, alpha=float(largest * max(fraction, 1e-3)))


def _rises(activation: Activation, c: _Candidate) -> FloatArray:
    """(E(Y⁺) − E(Y)) / the size of its terms, shape (...); −1 where an energy is not finite."""
    energy = FeedForwardEnergy(c.Wf, c.B, activation)
    with np.errstate(all="ignore"):
        Y = c.Y
        before = np.asarray(energy.value(Y))
        usable = np.isfinite(before)
        Y_new = energy.step(np.where(usable[..., None, None], Y, 0.0), c.alpha)
        if not np.isfinite(Y_new).all():
            return np.full(before.shape, -1.0)
        after = np.asarray(energy.value(Y_new))
        scale = sum(
            (np.abs(T) * (np.abs(T) @ np.abs(c.Wf)) + (np.abs(T) + np.abs(c.B)) ** 2 + 1).sum(axis=(-2, -1))
            for T in (Y, Y_new)
        )
        usable &= np.isfinite(scale)
        # from a finite energy to an infinite one is a rise
        change = np.where(np.isposinf(after), 1.0, (after - before) / scale)
        return np.where(usable & ~np.isnan(change), change, -1.0)


def confirm(activation: Activation, c: _Candidate, literal: Literal | None) -> tuple[float, float, str] | None:
    """(E(Y), E(Y⁺), how it was confirmed) if the step does raise the energy on exactly these floats, else None."""
    if literal is not None:
        import mpmath

        prox, phi = literal
        with exact():
            Y, Wf, B = matrix(c.Y), matrix(c.Wf), matrix(c.B)
            try:
                Y_new = definitions.feedforward_step(Y, Wf, B, prox, mpmath.mpf(c.alpha))
                before, after = (definitions.feedforward_energy(T, Wf, B, phi) for T in (Y, Y_new))
            except (ArithmeticError, TypeError, ValueError):  # where φ or the prox cannot be had in 50 digits
                return None
            if not after - before > mpmath.mpf(10) ** -30 * (abs(before) + abs(after)):
                return None
            return float(before), float(after), "50-digit arithmetic"
    energy = FeedForwardEnergy(c.Wf, c.B, activation)
    Y_next = np.asarray(energy.step(c.Y, c.alpha), dtype=np.float64)
    E, E_next = float(energy.value(c.Y)), float(energy.value(Y_next))
    if not math.isfinite(E):
        return None
    # the callables' own accuracy is not known: the bound assumes a relative error of a thousand roundings
    slack = 1000 * (feedforward_error(energy, c.Y) + feedforward_error(energy, Y_next)) if E_next < math.inf else 0.0
    return (E, E_next, f"a bound of {slack:.1g} on rounding") if E_next - E > slack else None


def _reduced(activation: Activation, c: _Candidate, literal: Literal | None, max_alpha: float) -> _Candidate:
    """The candidate with tokens, features and digits taken away for as long as the rise is confirmed."""
    least = min(0.25 * float(_rises(activation, c)), 1e-2)

    def rises(c: _Candidate) -> bool:
        largest = min(FeedForwardEnergy(c.Wf, 0.0, activation).max_alpha * (1 - 1e-12), max_alpha)
        return (
            c.alpha <= largest and float(_rises(activation, c)) >= least and confirm(activation, c, literal) is not None
        )

    while (simpler := next(filter(rises, _simpler(c)), None)) is not None:
        c = simpler
    return c


def _simpler(c: _Candidate) -> Iterator[_Candidate]:
    """Candidates that are simpler in one respect, the largest simplification first."""
    n, d = c.Y.shape
    for i in range(n if n > 1 else 0):
        yield replace(c, Y=np.delete(c.Y, i, 0), B=np.delete(c.B, i, 0))
    for a in range(d if d > 1 else 0):
        Wf = np.delete(np.delete(c.Wf, a, 0), a, 1)
        yield replace(c, Y=np.delete(c.Y, a, 1), Wf=Wf, B=np.delete(c.B, a, 1))
    if c.alpha != 1:
        yield replace(c, alpha=1.0)
    for name in ("B", "Wf", "Y"):
        M = getattr(c, name)
        for shorter in (0 * M, *(np.round(M, k) for k in range(3)), *(_significant(M, k) for k in range(1, 4))):
            if _length(shorter) < _length(M):
                yield replace(c, **{name: shorter + 0.0})  # −0 is 0
    for k in range(1, 4):
        alpha = float(f"{c.alpha:.{k}g}")
        if len(repr(alpha)) < len(repr(c.alpha)):
            yield replace(c, alpha=alpha)


def _significant(M: FloatArray, digits: int) -> FloatArray:
    return np.array([float(f"{x:.{digits}g}") for x in M.flat]).reshape(M.shape)


def _length(M: FloatArray) -> int:
    return sum(len(repr_float(x)) for x in M.flat)
