"""Is the update that formulas write a gradient step? Decided by SymPy: proved, refuted at a rational point, or neither.

The condition is that of :mod:`refimpl.testing.gradient_field`, p_a J_ab = p_b J_ba, with p = 1 and then with the p that
the values at the points force. It is proved where the difference simplifies to 0 and the formulas are defined and
continuous on a convex set, and refuted where the difference has an exact value other than 0.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import sympy

from .. import formula
from ..classify import show
from ..numerics import EPS
from .gradient_field import CLAIM, NO_DIAGONAL, PRECISION, GradientField, asymmetry_of, beyond_diagonal

_POINTS = 12
_ENTRIES = 500  # of J, at all points together: SymPy takes some milliseconds for each
_WIDEST = sympy.Rational(20, 7)  # of their entries
_DIGITS = 30
_NONZERO = 1e-20  # a number that is larger at 30 digits is not 0

_UNANSWERED = (NotImplementedError, ArithmeticError, ValueError, TypeError, AttributeError, RecursionError)


class At(NamedTuple):
    """A rational point and the exact values of J there, none of them at a kink."""

    y: list[Any]
    J: list[list[Any]]

    def __str__(self) -> str:
        return f"y = ({', '.join(map(str, self.y))})"


def examine_formulas(texts: Sequence[str], seed: int = 0) -> GradientField:
    """The report of ``check_gradient_field`` on formulas in y1, y2, …, whatever the verdict.

    Raises :class:`refimpl.formula.FormulaError` or ``TypeError`` where they cannot be read.
    """
    field = formula.parse_field(texts)
    N = len(field.symbols)
    seen = list(_values(field, seed))
    report = GradientField("undecided", f"undecided: the formulas have no value at any point tried ({CLAIM})")
    if not seen:
        return report
    points = np.array([[float(x) for x in at.y] for at in seen])
    J = np.array([[[float(x) for x in row] for row in at.J] for at in seen])
    floats = np.abs(J).max(axis=(1, 2)) <= 10.0**formula.MAX_MAGNITUDE
    report = replace(report, error=0.0, route="symbolic", points=points)
    if floats.any():
        share = asymmetry_of(J[floats])
        worst = int(share.argmax())
        report = replace(report, asymmetry=float(share[worst]), where=points[floats][worst])
    doubt, sides = _doubt(field), _sides(field)

    def verdict(verdict: str, text: str, **fields: Any) -> GradientField:
        if verdict != "none" and doubt:
            verdict, text, fields = "undecided", f"undecided: J is symmetric in a metric, but {doubt}", {}
        elif verdict != "none" and sides:
            text += f", on each side of {' and '.join(f'{show.formula(side)} = 0' for side in sides)}"
        return replace(report, verdict=verdict, diagnosis=f"{text} ({CLAIM})", **fields)

    ones = [sympy.Integer(1)] * N
    agrees = _agrees(field.jacobian, seen, ones)
    if agrees is True:
        text = "your update is a gradient step in the Euclidean metric: that J is symmetric is proved"
        return verdict("euclidean", text, asymmetry=0.0, in_metric=0.0, metric=np.ones(N))
    if agrees is None:
        text = f"undecided: SymPy does not prove that J is symmetric, and no point tried refutes it, |y| ≤ {_WIDEST}"
        return replace(report, diagnosis=f"{text} ({CLAIM})")
    p, why = _forced(seen)
    if p is not None:
        agrees = _agrees(field.jacobian, seen, p)
        if agrees is True:
            metric = f"the constant diagonal metric p = ({', '.join(map(_written, p))})"
            text = f"your update is a gradient step in {metric}: that P J is symmetric is proved"
            weights = np.array([float(w) for w in p])
            return verdict("diagonal", text, in_metric=0.0, metric=weights if np.isfinite(weights).all() else None)
        if agrees is None:
            text = "undecided: no gradient step in the Euclidean metric; of the others SymPy finds no answer"
            return replace(report, diagnosis=f"{text} ({CLAIM})")
        why = f"the weights that other pairs and points force do not fit {agrees}"
    if why is None:
        text = "undecided: no gradient step in the Euclidean metric, and the points force no other"
        return replace(report, diagnosis=f"{text} ({CLAIM})")
    report = verdict("none", f"{NO_DIAGONAL}: {why}")
    J = J[floats & J.any(axis=(1, 2))]  # where J = 0 every metric will do
    error = 8 * EPS * np.abs(J).max(axis=(1, 2))
    return beyond_diagonal(report, J, error, PRECISION["float64"]) if len(J) else report


def _values(field: formula.Field, seed: int) -> Iterator[At]:
    """Random rational points where every entry of J has a real value and no kink is."""
    rng = random.Random(seed)
    expressions = [*field.components, *(entry for row in field.jacobian for entry in row)]
    kinks = {
        node.lhs - node.rhs if isinstance(node, sympy.core.relational.Relational) else node.args[0]
        for expr in expressions
        for node in expr.atoms(sympy.Heaviside, sympy.sign, sympy.Abs, sympy.core.relational.Relational)
    }
    for _ in range(min(_POINTS, max(_ENTRIES // len(field.symbols) ** 2, 1))):
        y = [_WIDEST * sympy.Rational(rng.randint(-20, 20), 20) for _ in field.symbols]
        point = dict(zip(field.symbols, y, strict=True))

        def value(expr: Any, point: dict[Any, Any] = point) -> Any:
            return _answer(lambda: expr.subs(point))

        if all(_seen(value(kink)) for kink in kinks):
            J = [[value(entry) for entry in row] for row in field.jacobian]
            if all(_sign(entry) is not None for row in J for entry in row):
                yield At(y, J)


def _answer(question: Callable[[], Any]) -> Any:
    """``question()``, or None where SymPy has no answer in time."""
    try:
        return formula._within_budget(question)
    except _UNANSWERED:
        return None


def _sign(number: Any) -> int | None:
    """−1, 0 or 1, exactly; None for what is no real number or not told from 0."""
    if number is None or not number.is_number or not number.is_finite:
        return None
    return _seen(number) or (0 if _is_zero(number) else None)


def _seen(number: Any) -> int | None:
    """−1 or 1 where the digits of a number show it, or None: quick, where a proof that it is 0 is not."""
    if number is None or not number.is_number or not number.is_finite:
        return None
    if number.is_Rational:
        return int(sympy.sign(number)) or None
    close = _digits(number)
    if close is None or not close.is_Float or abs(close) < _NONZERO:
        return None
    return 1 if close > 0 else -1


@functools.lru_cache(maxsize=4096)
def _digits(number: Any) -> Any:
    """A number to 30 digits, or None. Of what is 0 without saying so there are none, and SymPy takes long to see it."""
    return _answer(lambda: sympy.N(number, _DIGITS, strict=True))


def _is_zero(expr: Any) -> bool:
    """Whether SymPy proves expr = 0."""
    steps = (
        lambda: expr,
        lambda: sympy.expand(expr),
        lambda: sympy.expand(sympy.fraction(sympy.together(expr))[0]),
        lambda: sympy.simplify(expr),
    )
    return any(_answer(step) == 0 for step in steps)


def _agrees(J: Sequence[Sequence[Any]], seen: Sequence[At], p: Sequence[Any]) -> bool | str | None:
    """Whether p_a J_ab = p_b J_ba: proved (True), refuted (the pair and the point), or None."""
    pairs = list(combinations(range(len(p)), 2))

    def refuted(a: int, b: int, apart: Callable[[Any, Any], Any]) -> str | None:
        for at in seen:
            if apart(p[a] * at.J[a][b], p[b] * at.J[b][a]):
                return f"{_entry(at, a, b)} and {_entry(at, b, a)} at {at}"
        return None

    for a, b in pairs:
        if found := refuted(a, b, _apart):
            return found
    for a, b in pairs:
        if not _is_zero(p[a] * J[a][b] - p[b] * J[b][a]):
            return refuted(a, b, lambda left, right: _seen(left - right))
    return True


def _apart(left: Any, right: Any) -> bool:
    """Whether the digits of two numbers differ: quick where they do not, unlike those of the difference."""
    first, second = _digits(left), _digits(right)
    return None not in (first, second) and bool(abs(first - second) > _NONZERO * max(abs(first), abs(second)))


def _entry(at: At, a: int, b: int) -> str:
    return f"∂T{a + 1}/∂y{b + 1} = {_written(at.J[a][b])}"


def _written(number: Any) -> str:
    """A number exactly where that is short."""
    exact = show.formula(number)
    if len(exact) <= 12:
        return exact
    close = float(number)
    return f"{close:.6g}" if close and math.isfinite(close) else "a number beyond the floats"


def _forced(seen: Sequence[At]) -> tuple[list[Any] | None, str | None]:
    """The p that the values force, the smallest of each group being 1, or why there is none, or neither."""
    N = len(seen[0].y)
    links: dict[int, dict[int, Any]] = {a: {} for a in range(N)}
    for a, b in combinations(range(N), 2):
        for at in seen:
            forth, back = at.J[a][b], at.J[b][a]
            signs = _sign(forth), _sign(back)
            text = f"{_entry(at, a, b)} and {_entry(at, b, a)} at {at}"
            if signs in ((1, -1), (-1, 1)):
                return None, f"{text} have opposite signs"
            if None in signs:
                return None, None
            if signs.count(0) == 1:
                return None, f"{text}: one is 0 and the other is not"
            if 0 not in signs and b not in links[a]:
                ratio = back / forth
                ratio = _answer(functools.partial(sympy.simplify, ratio)) or ratio
                links[a][b], links[b][a] = ratio, 1 / ratio
    p: dict[int, Any] = {}
    for root in range(N):
        if root in p:
            continue
        group, p[root] = [root], sympy.Integer(1)
        for b in group:
            for a in links[b]:
                if a not in p:
                    p[a] = p[b] * links[a][b]
                    group.append(a)
        smallest = min((p[a] for a in group), key=lambda weight: float(sympy.log(weight)))  # it may overflow itself
        for a in group:
            p[a] = p[a] / smallest
    return [p[a] for a in range(N)], None


def _doubt(field: formula.Field) -> str | None:
    """Why the formulas may be undefined or jump on a set that leaves no convex domain, if they may."""
    if any(expr.has(sympy.Piecewise) for expr in field.components):
        return "where(...) may jump"
    for operation in _operations(field):
        if _edges(operation, field.symbols) is None:
            return f"{show.formula(operation)} may leave holes in the domain, around which a field can turn"
    return None


def _sides(field: formula.Field) -> list[Any]:
    """What has to keep its sign for the formulas to stay defined, where nothing of :func:`_doubt` is found."""
    return list(dict.fromkeys(u for node in _operations(field) for u in _edges(node, field.symbols) or []))


def _operations(field: formula.Field) -> list[Any]:
    """The powers and logarithms that may be undefined somewhere."""
    # as it is written an operation may have become a product of several: sqrt(4 y) is 2 sqrt(y)
    nodes = dict.fromkeys(node for written in field.partial for node in written.atoms(sympy.Pow, sympy.log))
    return sorted((node for node in nodes if not node.is_real), key=sympy.default_sort_key)


def _edges(operation: Any, symbols: Sequence[Any]) -> list[Any] | None:
    """Hyperplanes u = 0 that cut R^N into the convex parts where a power or logarithm is defined, or None.

    A u of one component vanishes on parallel hyperplanes, and a linear one on one.
    """
    base = operation.base if operation.is_Pow else operation.args[0]
    if operation.is_Pow and operation.exp.is_integer and (operation.exp.is_nonnegative or base.is_nonzero):
        return []
    factors = [base]
    if base.is_polynomial(*symbols):
        factors = [u for u, _ in (_answer(lambda: sympy.factor_list(base, *symbols)) or (1, [(base, 1)]))[1]]
    edges = [u for u in factors if not u.is_nonzero]
    flat = all(len(u.free_symbols) == 1 or sympy.Poly(u, *symbols).total_degree() == 1 for u in edges)
    return edges if flat else None
