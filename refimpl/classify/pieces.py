"""A formula with Max, Min, Abs or Piecewise as smooth pieces between exact breakpoints."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import sympy
from mpmath import libmp

from .. import formula
from . import intervals, signs

_KINKS = (sympy.Max, sympy.Min, sympy.Abs, sympy.Piecewise)
_CANDIDATES = [sympy.Rational(n, 2) for n in range(-20, 21)]


class Unresolved(Exception):
    """No exact breakpoints found; ``near`` are some that lack a name."""

    def __init__(self, why: str, near: tuple[Fraction, ...] = ()) -> None:
        super().__init__(why)
        self.near = near


@dataclass(frozen=True)
class Piece:
    """``expr`` on the open interval (lo, hi); lo and hi are exact numbers or infinite."""

    expr: sympy.Expr
    lo: sympy.Expr
    hi: sympy.Expr


def has_kinks(expr: sympy.Expr) -> bool:
    return bool(expr.has(*_KINKS))


def split(expr: sympy.Expr, symbol: sympy.Symbol) -> list[Piece]:
    """The pieces, from left to right over [0, ∞) or ℝ. Raises :class:`Unresolved`."""
    start = sympy.Integer(0) if symbol.is_nonnegative else -sympy.oo
    if not has_kinks(expr):
        return [Piece(expr, start, sympy.oo)]
    breaks = {root for gap in _gaps(expr, symbol) for root in _zeros(gap, symbol)}
    if len(breaks) > 16:
        raise Unresolved("too many breakpoints")
    edges = [start, *_ordered([root for root in breaks if root != start]), sympy.oo]
    pieces: list[Piece] = []
    for lo, hi in itertools.pairwise(edges):
        smooth = _resolve(expr, symbol, between(lo, hi))
        if pieces and sympy.expand(pieces[-1].expr - smooth) == 0 and _is_zero(value_at(expr - smooth, symbol, lo)):
            pieces[-1] = Piece(smooth, pieces[-1].lo, hi)
        else:
            pieces.append(Piece(smooth, lo, hi))
    return pieces


def _gaps(expr: sympy.Expr, symbol: sympy.Symbol) -> set[sympy.Expr]:
    """What must change sign for the formula to switch from one expression to another."""
    found = set()
    for node in expr.atoms(*_KINKS):
        if isinstance(node, sympy.Abs):
            found.add(node.args[0])
        elif isinstance(node, sympy.Piecewise):
            for relation in node.atoms(sympy.core.relational.Relational):
                if not isinstance(relation, intervals.STRICT | sympy.LessThan | sympy.GreaterThan):
                    raise Unresolved("a condition that is not an inequality")
                found.add(relation.gts - relation.lts)
        else:
            found |= {a - b for a, b in itertools.combinations(node.args, 2)}
    return {gap for gap in found if symbol in gap.free_symbols}


def _zeros(gap: sympy.Expr, symbol: sympy.Symbol) -> list[sympy.Expr]:
    if has_kinks(gap):
        found = []
        for piece in split(gap, symbol):
            found += [piece.lo] if piece.lo.is_finite else []
            found += [r for r in _zeros(piece.expr, symbol) if _within(r, piece)] if symbol in gap.free_symbols else []
        return found
    numerator = sympy.numer(sympy.together(gap))
    if numerator.is_polynomial(symbol) and all(c.is_Rational for c in sympy.Poly(numerator, symbol).coeffs()):
        roots = formula._within_budget(lambda: sympy.real_roots(sympy.Poly(numerator, symbol)))
        return [r for r in set(roots) if not symbol.is_nonnegative or intervals.constant_sign(r) != -1]
    return _isolated(gap, symbol)


def _isolated(gap: sympy.Expr, symbol: sympy.Symbol) -> list[sympy.Expr]:
    """The zeros of a function with a sign chart, if each can be named."""
    candidates = [r for r in (*_CANDIDATES, *_solutions(gap, symbol)) if _is_zero(gap.subs(symbol, r))]
    found = [r for r in candidates if r == 0]
    for side in (1,) if symbol.is_nonnegative else (1, -1):
        try:
            cells = signs.chart(gap.subs(symbol, side * symbol), symbol, 0, sympy.oo)
        except signs.Unsupported as error:
            raise Unresolved(str(error)) from None
        for left, right in itertools.pairwise(cells):
            inside = intervals.hull(left[1], right[0])
            names = [r for r in candidates if intervals.sign(inside - side * intervals.number(r)) in (0, None)]
            if not names:
                raise Unresolved("a breakpoint without a name", (round(side * left[1], 6),))
            found.append(names[0])
    return found


def _solutions(gap: sympy.Expr, symbol: sympy.Symbol) -> list[sympy.Expr]:
    """The solution of gap = 0 where the variable occurs once, under functions that can be undone one by one."""
    left, right = gap, sympy.Integer(0)
    while left != symbol:
        c, rest = left.as_independent(symbol, as_Add=left.is_Add)
        if (left.is_Add or left.is_Mul) and rest != left:
            left, right = rest, (right - c if left.is_Add else right / c)
        elif isinstance(left, sympy.exp) and right.is_positive:
            left, right = left.exp, sympy.log(right)
        elif isinstance(left, sympy.log):
            left, right = left.args[0], sympy.exp(right)
        elif isinstance(left, sympy.tanh) and (1 - right**2).is_positive:
            left, right = left.args[0], sympy.log((1 + right) / (1 - right)) / 2
        elif left.is_Pow and left.exp.is_Rational and right.is_positive:
            left, right = left.base, right ** (1 / left.exp)
        else:
            return []
    return [right]


def _is_zero(value: sympy.Expr) -> bool:
    try:
        return intervals.constant_sign(value) == 0
    except NotImplementedError:  # complex
        return False


def _within(r: sympy.Expr, piece: Piece) -> bool:
    return (piece.lo == -sympy.oo or intervals.constant_sign(r - piece.lo) == 1) and (
        piece.hi == sympy.oo or intervals.constant_sign(piece.hi - r) == 1
    )


def _ordered(numbers: list[sympy.Expr]) -> list[sympy.Expr]:
    """Sorted and without repetition, by exact comparison."""

    def compare(a: sympy.Expr, b: sympy.Expr) -> int:
        sign = intervals.constant_sign(a - b)
        if sign is None:
            raise Unresolved("two breakpoints too close to compare")
        return sign

    result: list[sympy.Expr] = []
    for number in sorted(numbers, key=functools.cmp_to_key(compare)):
        if not result or compare(result[-1], number):
            result.append(number)
    return result


def outer(lo: sympy.Expr, hi: sympy.Expr) -> tuple[Fraction, Any]:
    """A rational interval around (lo, hi), where lo is finite."""
    return bounds(lo)[0], sympy.oo if hi == sympy.oo else bounds(hi)[1]


def bounds(number: sympy.Expr) -> tuple[Fraction, Fraction]:
    """Rationals around a number, both equal to it where it is rational."""
    if number.is_Rational:
        return (intervals.fraction(number),) * 2
    with intervals.precision(intervals.DIGITS):
        value = intervals.number(number)
        return tuple(Fraction(*libmp.to_rational(end)) for end in value._mpi_)  # type: ignore[return-value]


def between(lo: sympy.Expr, hi: sympy.Expr) -> sympy.Rational:
    """A rational with a small denominator strictly between two numbers."""
    if lo == -sympy.oo:
        return sympy.Integer(0) if hi == sympy.oo else sympy.floor(intervals.rational(bounds(hi)[0])) - 1
    left, right = bounds(lo)[1], sympy.oo if hi == sympy.oo else bounds(hi)[0]
    if left < 0 < right:
        return sympy.Integer(0)
    inside = signs.simplest(left, right) if left >= 0 else -signs.simplest(-right, -left)
    return intervals.rational(inside)


def value_at(expr: sympy.Expr, symbol: sympy.Symbol, point: sympy.Expr) -> sympy.Expr:
    """The value at an exact point."""
    return _resolve(expr, symbol, point).subs(symbol, point)


def after(expr: sympy.Expr, symbol: sympy.Symbol, point: sympy.Expr) -> sympy.Expr:
    """The smooth expression that ``expr`` is just to the right of a point."""
    return _resolve(expr, symbol, point, orders=5)


def _resolve(expr: sympy.Expr, symbol: sympy.Symbol, point: sympy.Expr, orders: int = 1) -> sympy.Expr:
    """The smooth expression that ``expr`` is at a point; near it as well, where no gap is zero there.

    With more ``orders``, a gap that is zero there is compared by its derivatives.
    """

    def sign(gap: sympy.Expr) -> int:
        smooth = resolve(gap)
        for k in range(orders):
            found = intervals.constant_sign(smooth.diff(symbol, k).subs(symbol, point))
            if found is None:
                raise Unresolved("a comparison too close to call")
            if found:
                return found
        if orders > 1 and smooth != 0:
            raise Unresolved("a comparison too close to call")
        return 0

    def resolve(e: Any) -> Any:
        if not has_kinks(e):
            return e
        if isinstance(e, sympy.Abs):
            return resolve(e.args[0]) * (1 if sign(e.args[0]) >= 0 else -1)
        if isinstance(e, sympy.Max | sympy.Min):
            want = 1 if isinstance(e, sympy.Max) else -1
            return functools.reduce(lambda a, b: a if sign(a - b) * want >= 0 else b, map(resolve, e.args))
        if isinstance(e, sympy.Piecewise):
            return resolve(next(value for value, condition in e.args if holds(condition)))
        return e.func(*map(resolve, e.args))

    def holds(condition: Any) -> bool | None:
        return intervals.truth(condition, lambda gap, strict: sign(gap) >= (1 if strict else 0))

    return resolve(expr)
