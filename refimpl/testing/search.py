"""Looking for tokens on which the attention step of a penalty raises the energy, and making the find small.

Hypothesis draws clusters, near duplicates, lines, scales, maps of any rank and pair weights, and climbs on the relative
rise of the energy. A rise counts only when it is confirmed: for a penalty with a formula, by 50-digit arithmetic on the
definitions; for plain callables, by exceeding a bound on rounding. What is found is reduced to few tokens and digits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import hypothesis
import numpy as np
from hypothesis import strategies as st

from .. import definitions
from ..attention import AttentionEnergy
from ..numerics import FloatArray
from ..rho import Rho
from . import strategies
from .exact import exact, matrix
from .rounding import descent_slack, step_error

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, eq=False)
class Counterexample:
    """Tokens (n, d), W (d, k) or None and m (n, n) or None on which the step α raises the energy."""

    rho: Rho
    Y: FloatArray
    W: FloatArray | None
    m: FloatArray | None
    alpha: float
    before: float
    after: float
    confirmed: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "Y": self.Y.tolist(),
            "W": None if self.W is None else self.W.tolist(),
            "pair_weights": None if self.m is None else self.m.tolist(),
            "alpha": self.alpha,
            "energy_before": self.before,
            "energy_after": self.after,
            "confirmed": self.confirmed,
            "snippet": self.snippet(),
        }

    def snippet(self) -> str:
        """Python that shows the rise, to be pasted."""
        values = "".join(f", {name}={value!r}" for name, value in self.rho.parameters)
        rho = self.rho.name if self.rho.formula is None else repr(self.rho.formula)
        arguments = [f"rho=refimpl.get_rho({rho}{values})" if values else f"rho={rho}"]
        if self.W is not None:
            arguments.insert(0, f"W={strategies.written(self.W)}")
        if self.m is not None:
            arguments.append(f"pair_weights={strategies.written(self.m)}")
        step = "attention.step(Y)" if self.alpha == 1 else f"attention.step(Y, {self.alpha})"
        return "\n".join(
            [
                "import refimpl",
                "",
                f"attention = refimpl.AttentionEnergy({', '.join(arguments)})",
                f"Y = {strategies.written(self.Y)}",
                f"print(attention.value(Y), attention.value({step}))  # {self.before:.7g} rises to {self.after:.7g}",
            ]
        )


class Found(Protocol):
    """A confirmed rise of an energy, as JSON."""

    def as_dict(self) -> dict[str, Any]: ...


F = TypeVar("F", bound=Found)


@dataclass(frozen=True, eq=False)
class Search(Generic[F]):
    """How many examples ran, and the rise that was found, if any."""

    examples: int
    counterexample: F | None

    def as_dict(self) -> dict[str, Any]:
        found = self.counterexample
        return {
            "examples": self.examples,
            "violations": 0 if found is None else 1,
            "counterexample": None if found is None else found.as_dict(),
        }


@dataclass(frozen=True, eq=False)
class _Candidate:
    Y: FloatArray
    W: FloatArray | None
    m: FloatArray | None


class _Found(Exception):
    pass


# relative rises below this may be rounding, and are not worth the exact arithmetic
_NOTICEABLE = 1e-12


def search_descent(
    rho: Rho,
    examples: int = 1000,
    seed: int = 0,
    alpha: float = 1.0,
    weighted: bool = False,
    progress: Progress | None = None,
) -> Search[Counterexample]:
    """Look for a rise of the energy under ``step(Y, alpha)``; ``weighted`` draws pair weights too, else m_ij = 1.

    A sweep over clusters on a line comes first, then ``examples`` random draws. It stops at the first confirmed rise.
    """
    ran, found = _sweep(rho, alpha)
    total = ran + examples

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.generate, hypothesis.Phase.target),
    )
    @hypothesis.given(_candidates(weighted))
    def attack(candidate: _Candidate) -> None:
        nonlocal ran, found
        ran += 1
        if progress is not None:
            progress(ran, total, rho.name)
        rise = _relative_rise(rho, candidate, alpha)
        if rise > _NOTICEABLE and confirm(rho, candidate.Y, candidate.W, candidate.m, alpha) is not None:
            found = candidate
            raise _Found
        hypothesis.target(max(rise, -1.0))

    if found is None:
        with contextlib.suppress(_Found):
            attack()
    return Search(ran, None if found is None else _reduced(rho, found, alpha))


def _sweep(rho: Rho, alpha: float) -> tuple[int, _Candidate | None]:
    """How many were tried of: p tokens at 0, q at a small distance δ, one far away at t; and the one that rises most.

    Where ρ'(0) = 0 a far token can outweigh the near ones, and pull a tight cluster apart.
    """
    ran, best, found = 0, _NOTICEABLE, None
    t, ratio = (grid.ravel() for grid in np.meshgrid(np.arange(2, 33) / 4, 2.0 ** -np.arange(1.0, 31.0)))
    for p, q in ((1, 1), (1, 2), (2, 2), (1, 4)):
        Y = np.stack([0 * t] * p + [ratio * t] * q + [t], axis=-1)[..., None]  # (B, p + q + 1, 1)
        rises = _rises(rho, Y, None, None, alpha)
        ran += len(Y)
        for index in np.argsort(np.where(rises > best, -rises, 0))[:3]:
            if rises[index] > best and confirm(rho, Y[index], None, None, alpha) is not None:
                best, found = rises[index], _Candidate(Y[index], None, None)
    return ran, found


@st.composite
def _candidates(draw: st.DrawFn, weighted: bool) -> _Candidate:
    Y = draw(strategies.tokens(n=st.integers(2, 6), d=st.integers(1, 3)))
    m = draw(strategies.pair_weights(len(Y))) if weighted else None
    return _Candidate(Y, draw(strategies.maps(Y.shape[1])), m)


def _rises(rho: Rho, Y: FloatArray, W: FloatArray | None, m: FloatArray | None, alpha: float) -> Any:
    """(E(Y⁺) − E(Y)) / max(|E(Y⁺)|, |E(Y)|), shape (...); −1 where an energy is not finite or both are 0."""
    attention = AttentionEnergy(W, rho, m)
    with np.errstate(all="ignore"):
        try:
            before, after = attention.value(Y), attention.value(attention.step(Y, alpha))
        except ValueError:  # an infinite kernel, or a step that left the floats
            return np.full(Y.shape[:-2], -1.0)[()]
        scale = np.maximum(np.abs(before), np.abs(after))
        usable = np.isfinite(scale) & (scale > 0)
        return np.where(usable, (after - before) / np.where(usable, scale, 1.0), -1.0)[()]


def _relative_rise(rho: Rho, c: _Candidate, alpha: float) -> float:
    return float(_rises(rho, c.Y, c.W, c.m, alpha))


def confirm(
    rho: Rho, Y: FloatArray, W: FloatArray | None, m: FloatArray | None, alpha: float
) -> tuple[float, float, str] | None:
    """(E(Y), E(Y⁺), how it was confirmed) if the step does raise the energy on exactly these floats, else None."""
    n, d = Y.shape
    if rho.formula is not None:
        import mpmath

        with exact():
            value, derivative = rho.literal("mpmath")
            exact_Y = matrix(Y)
            exact_W = definitions.identity(d) if W is None else matrix(W)
            exact_m = definitions.ones(n) if m is None else matrix(m)
            try:
                Y_new = definitions.attention_step(exact_Y, exact_W, derivative, exact_m, mpmath.mpf(alpha))
                before = definitions.attention_energy(exact_Y, exact_W, value, exact_m)
                after = definitions.attention_energy(Y_new, exact_W, value, exact_m)
                size = sum(
                    definitions.attention_energy(T, exact_W, lambda z: abs(value(z)), exact_m) for T in (exact_Y, Y_new)
                )
                if not after - before > mpmath.mpf(10) ** -30 * size:
                    return None
            except (ArithmeticError, TypeError, ValueError):  # complex, infinite, or beyond mpmath's exponents
                return None
            return float(before), float(after), "50-digit arithmetic"
    attention = AttentionEnergy(W, rho, m)
    Y_next = np.asarray(attention.step(Y, alpha), dtype=np.float64)
    # the callables' own accuracy is not known: the bound assumes a relative error of a thousand roundings
    slack = 1000 * descent_slack(attention, Y, Y_next, 2 * step_error(Y, Y_next, alpha))
    E, E_next = float(attention.value(Y)), float(attention.value(Y_next))
    return (E, E_next, f"a bound of {slack:.1g} on rounding") if E_next - E > slack else None


def _reduced(rho: Rho, candidate: _Candidate, alpha: float) -> Counterexample:
    """The candidate with tokens, features and digits taken away for as long as the rise is confirmed."""

    # a scale at which the rise is easy to see; what is taken away then may cost three quarters of it
    scaled = (replace(candidate, Y=candidate.Y * 2.0**k) for k in range(-24, 25))
    readable = [c for c in scaled if _relative_rise(rho, c, alpha) > _NOTICEABLE and _confirmed(rho, c, alpha)]
    candidate = max(
        readable, key=lambda c: (min(_relative_rise(rho, c, alpha), 1e-2), -abs(np.log2(np.abs(c.Y).max())))
    )
    least = min(0.25 * _relative_rise(rho, candidate, alpha), 1e-2)

    def rises(c: _Candidate) -> bool:
        return _relative_rise(rho, c, alpha) >= least and _confirmed(rho, c, alpha)

    smaller = True
    while smaller:
        smaller = False
        for simpler in _simpler(candidate):
            if rises(simpler):
                candidate, smaller = replace(simpler, Y=simpler.Y + 0.0), True  # −0 is 0
                break
    result = confirm(rho, candidate.Y, candidate.W, candidate.m, alpha)
    assert result is not None
    return Counterexample(rho, candidate.Y, candidate.W, candidate.m, alpha, *result)


def _confirmed(rho: Rho, c: _Candidate, alpha: float) -> bool:
    return confirm(rho, c.Y, c.W, c.m, alpha) is not None


def _simpler(c: _Candidate) -> Iterator[_Candidate]:
    """Candidates that are simpler in one respect, the largest simplification first."""
    n, d = c.Y.shape
    if c.m is not None:
        yield replace(c, m=None)
    for i in range(n if n > 2 else 0):
        keep = [j for j in range(n) if j != i]
        yield _Candidate(c.Y[keep], c.W, None if c.m is None else c.m[np.ix_(keep, keep)])
    if c.W is not None:
        yield replace(c, W=None)
        U = c.Y @ c.W
        if U.shape[1] < d:
            yield _Candidate(U, None, c.m)
    for a in range(d if d > 1 else 0):
        keep = [b for b in range(d) if b != a]
        yield _Candidate(c.Y[:, keep], None if c.W is None else c.W[keep], c.m)
    if n and c.Y[0].any():
        yield replace(c, Y=c.Y - c.Y[:1])
    for digits in range(3):
        rounded = np.round(c.Y, digits)
        if _written_length(rounded) < _written_length(c.Y):
            yield replace(c, Y=rounded)
    for digits in range(1, 4):  # significant digits, for tokens of different sizes
        rounded = np.array([float(f"{x:.{digits}g}") for x in c.Y.flat]).reshape(c.Y.shape)
        if _written_length(rounded) < _written_length(c.Y):
            yield replace(c, Y=rounded)
    if c.W is not None:
        for digits in range(3):
            W = np.round(c.W, digits)
            if _written_length(W) < _written_length(c.W):
                yield replace(c, W=W)
    if c.m is not None and ((c.m != 0) & (c.m != 1)).any():
        yield replace(c, m=(c.m != 0).astype(np.float64))


def _written_length(M: FloatArray) -> int:
    return sum(len(strategies.repr_float(x)) for x in M.flat)
