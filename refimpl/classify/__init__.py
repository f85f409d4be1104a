"""What a formula is, three-valued: a penalty ρ on [0, ∞), or an activation σ on ℝ.

Every property is tried by rules (:mod:`~refimpl.classify.rules`), by exact sign analysis
(:mod:`~refimpl.classify.signs`), by interval arithmetic (:mod:`~refimpl.classify.intervals`), and refuted at a point in
50-digit arithmetic. "Proved" and "refuted" are never said on weaker grounds; what is left is "unknown".
A formula is taken as written: ``(1 − exp(−z))/z`` is undefined at 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy

from .. import formula
from . import decide, show
from .decide import Verdict

__all__ = ["ActivationTraits", "PenaltyTraits", "Verdict", "classify_activation", "classify_penalty"]


@dataclass(frozen=True)
class PenaltyTraits:
    """ρ on [0, ∞).

    slope_at_zero : ρ'(0+), None where it is infinite or not known.
    finite : ρ is a finite real number on all of [0, ∞), and so is its slope at 0.
    nondecreasing, concave : on all of [0, ∞), kinks and jumps included.
    bernstein : ρ' is completely monotone on (0, ∞): ρ is a Bernstein function up to a constant.
    """

    expr: str
    derivative: str
    slope_at_zero: float | None
    finite: Verdict
    nondecreasing: Verdict
    concave: Verdict
    bernstein: Verdict


@dataclass(frozen=True)
class ActivationTraits:
    """σ on ℝ: finite and real everywhere; non-decreasing; 0 ≤ σ' ≤ 1 (non-decreasing and 1-Lipschitz)."""

    expr: str
    derivative: str
    finite: Verdict
    nondecreasing: Verdict
    lipschitz: Verdict


def classify_penalty(expr: sympy.Expr, partial: Sequence[sympy.Expr] = ()) -> PenaltyTraits:
    """Classify ρ. ``partial`` are the operations of the formula as written, which SymPy may have cancelled."""
    f = decide.Function(expr, "z")
    exists = _defined(f, partial)
    slope, infinite = decide.slope_at_zero(f)
    finite = exists
    if infinite:
        first = f"{exists.witness}; " if exists.verdict == "refuted" else ""
        finite = decide.refuted(first + infinite, "limit at 0, with 50-digit arithmetic")
    elif slope is None and exists.verdict == "proved":
        finite = Verdict("unknown", "the slope at 0 is not known")
    bernstein = decide.bernstein(f)
    rising, concave = decide.nondecreasing(f), decide.concave(f)
    if bernstein.verdict == "proved":
        because = Verdict("proved", f"ρ' is completely monotone: {bernstein.method}", proof=bernstein.proof)
        rising, concave = (v if v.verdict == "proved" else because for v in (rising, concave))
    for weaker in (rising, concave):
        bernstein = weaker if weaker.verdict == "refuted" and bernstein.verdict == "unknown" else bernstein
    rising, concave, bernstein = (_only_where_defined(v, exists) for v in (rising, concave, bernstein))
    return PenaltyTraits(show.formula(expr), _derivative(f), slope, finite, rising, concave, bernstein)


def _defined(f: decide.Function, partial: Sequence[sympy.Expr]) -> Verdict:
    """Whether f is defined everywhere, and with it each operation that is no longer in its expression."""
    exists = decide.defined(f)
    for operation in partial:
        if exists.verdict != "proved" or f.expr.has(operation):
            continue
        written = decide.defined(decide.Function(operation, str(f.symbol)))
        if written.verdict != "proved":
            exists = Verdict(written.verdict, f"{written.method}, of {show.formula(operation)}", written.witness)
    return exists


def classify_activation(expr: sympy.Expr, partial: Sequence[sympy.Expr] = ()) -> ActivationTraits:
    """Classify σ. ``partial`` are the operations of the formula as written, which SymPy may have cancelled."""
    f = decide.Function(expr, "x")
    exists = _defined(f, partial)
    rising = decide.nondecreasing(f)
    lipschitz = decide.lipschitz(f, rising)
    rising, lipschitz = (_only_where_defined(v, exists) for v in (rising, lipschitz))
    return ActivationTraits(show.formula(expr), _derivative(f), exists, rising, lipschitz)


def _only_where_defined(verdict: Verdict, exists: Verdict) -> Verdict:
    if verdict.verdict == "proved" and exists.verdict != "proved":
        return Verdict("unknown", f"not known to be defined everywhere; where it is: {verdict.method}")
    return verdict


def _derivative(f: decide.Function) -> str:
    def tidy(expr: sympy.Expr) -> str:
        slope = expr.diff(f.symbol)
        try:
            forms = [slope, formula._within_budget(lambda: sympy.factor(sympy.together(slope)))]
        except (NotImplementedError, sympy.PolynomialError, RecursionError):
            forms = [slope]
        return min(map(show.formula, forms), key=len)

    if f.pieces is None:
        return show.formula(f.expr.diff(f.symbol))
    text = last = tidy(f.pieces[-1].expr)
    for p in reversed(f.pieces[:-1]):
        if (slope := tidy(p.expr)) != last:
            text, last = f"where({f.symbol} < {show.formula(p.hi)}, {slope}, {text})", slope
    return text
