"""The sign of an expression on an interval, exactly: root isolation for polynomials, Rolle's theorem for the rest.

The class: products and quotients of sums of terms R(z) · K(z), where R is a rational function with rational
coefficients and the kernel K a product of exp(polynomial), positive rational functions to fractional powers, logarithms
of rational functions, and constants. Multiply a sum by something positive so that one kernel becomes 1 and its R a
polynomial; differentiate until that term is gone; what is left has a simpler sign chart, between whose roots the
function before is monotone. Only signs of values are needed, and intervals give those.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, NamedTuple

import sympy
from sympy.polys.fields import field

from .. import formula
from . import intervals

_FIELD, _Z = field("z", sympy.QQ)
_VARIABLE = sympy.Symbol("z")
_MAX_TERMS, _MAX_DEGREE, _MAX_DEPTH = 16, 60, 30
_DIGITS = 60
_NARROW = Fraction(1, 2**60)  # how closely roots are enclosed
_FAR = 2**256  # where to look for the last root


class Unsupported(Exception):
    """Not in the class, or too close to call."""


class Kernel(NamedTuple):
    """exp(Σ exponent[i] z^i) · Π u^p · Π log(u)^m · constant, with 0 < p < 1 and m > 0."""

    exponent: tuple[Any, ...] = ()
    powers: frozenset[tuple[Any, Fraction]] = frozenset()
    logs: frozenset[tuple[Any, int]] = frozenset()
    constant: sympy.Expr = sympy.Integer(1)


Terms = dict[Kernel, Any]  # kernel: R
Cell = tuple[Any, Any, int]  # lo, hi (rational, or ∞) and the sign between
_ONE = Kernel()


def _rational(c: Any) -> Any:
    p, q = (c.p, c.q) if isinstance(c, sympy.Rational) else Fraction(c).as_integer_ratio()
    return sympy.QQ(int(p), int(q))


def _term(
    r: Any, exponent: Iterable[Any] = (), powers: Iterable[Any] = (), logs: Iterable[Any] = (), constant: Any = 1
) -> tuple[Kernel, Any]:
    """One kernel with its R, in normal form."""
    e = list(exponent)
    while e and not e[-1]:
        e.pop()
    total: dict[Any, Fraction] = {}
    for u, p in powers:
        total[u] = total.get(u, Fraction(0)) + p
    for u, p in total.items():
        r = r * u ** math.floor(p)
    degrees: dict[Any, int] = {}
    for u, m in logs:
        degrees[u] = degrees.get(u, 0) + m
    c, rest = sympy.sympify(constant).as_coeff_Mul()
    fractional = frozenset((u, p - math.floor(p)) for u, p in total.items() if p != math.floor(p))
    return Kernel(tuple(e), fractional, frozenset(degrees.items()), rest), r * _FIELD(_rational(c))


def _sum(pairs: Iterable[tuple[Kernel, Any]]) -> Terms:
    total: Terms = {}
    for kernel, r in pairs:
        total[kernel] = total.get(kernel, _FIELD.zero) + r
    if len(total) > _MAX_TERMS:
        raise Unsupported("too many terms")
    return {kernel: r for kernel, r in total.items() if r}


def _product(a: Terms, b: Terms) -> Terms:
    def times(k: Kernel, r: Any, m: Kernel, s: Any) -> tuple[Kernel, Any]:
        e = [
            sum((x[i] for x in (k.exponent, m.exponent) if i < len(x)), sympy.QQ(0))
            for i in range(max(len(k.exponent), len(m.exponent)))
        ]
        return _term(r * s, e, [*k.powers, *m.powers], [*k.logs, *m.logs], k.constant * m.constant)

    return _sum(times(k, r, m, s) for k, r in a.items() for m, s in b.items())


def _power(base: Terms, p: Fraction) -> Terms:
    if p.denominator == 1 and 0 <= p <= 12:
        result: Terms = {_ONE: _FIELD.one}
        for _ in range(int(p)):
            result = _product(result, base)
        return result
    if len(base) != 1 or next(iter(base)).logs:
        raise Unsupported("a power of a sum")
    ((k, r),) = base.items()
    constant = k.constant ** sympy.Rational(p.numerator, p.denominator)
    powers = [(r, p), *((u, q * p) for u, q in k.powers)]
    return _sum([_term(_FIELD.one, [c * _rational(p) for c in k.exponent], powers, (), constant)])


def _read(e: Any, z: sympy.Symbol) -> Terms:
    """An expression as a sum of terms, multiplied out."""
    if e == z:
        return {_ONE: _Z}
    if e.is_Rational:
        return _sum([_term(_FIELD(_rational(e)))])
    if z not in e.free_symbols:
        found = intervals.constant_sign(e)
        if not found:
            raise Unsupported("a constant of unknown sign")
        return _sum([_term(_FIELD(found), constant=found * e)])
    if e.is_Add:
        return _sum(pair for arg in e.args for pair in _read(arg, z).items())
    if e.is_Mul:
        result: Terms = {_ONE: _FIELD.one}
        for arg in e.args:
            result = _product(result, _read(arg, z))
        return result
    if isinstance(e, sympy.exp) and e.exp.is_polynomial(z):
        coefficients = sympy.Poly(e.exp, z).all_coeffs()[::-1]
        if len(coefficients) <= 5 and all(c.is_Rational for c in coefficients):
            return _sum([_term(_FIELD.one, [_rational(c) for c in coefficients])])
    if isinstance(e, sympy.log) and set(inner := _read(e.args[0], z)) == {_ONE}:
        return _sum([_term(_FIELD.one, logs=[(inner[_ONE], 1)])])
    if e.is_Pow and e.exp.is_Rational:
        return _power(_read(e.base, z), Fraction(int(e.exp.p), int(e.exp.q)))
    raise Unsupported(f"{type(e).__name__} is not in the class")


def _derivative(terms: Terms) -> Terms:
    def parts() -> Iterable[tuple[Kernel, Any]]:
        for k, r in terms.items():
            rate = sum((c * i * _Z ** (i - 1) for i, c in enumerate(k.exponent) if i), _FIELD.zero)
            rate += sum((_FIELD(_rational(p)) * u.diff(_Z) / u for u, p in k.powers), _FIELD.zero)
            yield k, r.diff(_Z) + r * rate
            for u, m in k.logs:
                fewer = [(v, n - (v == u)) for v, n in k.logs if n - (v == u)]
                yield k._replace(logs=frozenset(fewer)), r * m * u.diff(_Z) / u

    return _sum(parts())


def _value(terms: Terms, at: Any) -> Any:
    """An enclosure of the sum over the interval ``at``."""
    total = intervals.number(0)
    for k, r in terms.items():
        expr = _expression(k, r)
        total += intervals.jet(expr, _VARIABLE, at, 0)[0]
    return total


@functools.lru_cache(maxsize=1000)
def _expression(k: Kernel, r: Any) -> sympy.Expr:
    factors = [u.as_expr() ** sympy.Rational(p.numerator, p.denominator) for u, p in k.powers]
    factors += [sympy.log(u.as_expr()) ** m for u, m in k.logs]
    exponent = sympy.Add(*(_sympy(c) * _VARIABLE**i for i, c in enumerate(k.exponent)))
    return sympy.Mul(r.as_expr(), k.constant, sympy.exp(exponent), *factors)


def _sign_at(terms: Terms, x: Any) -> int | None:
    found = intervals.sign(_value(terms, intervals.number(x)))
    if found is None:
        total = sympy.Add(*(_expression(k, r).subs(_VARIABLE, _sympy(x)) for k, r in terms.items()))
        return 0 if total == 0 or sympy.expand(total) == 0 else None
    return found


def _sign_at_infinity(terms: Terms) -> int | None:
    """That of the terms which grow fastest; 0 where the sum tends to 0 because they cancel, None where not settled."""
    leading: dict[Any, Any] = {}
    for k, r in terms.items():
        growth: Any = Fraction(_degree(r))
        coefficient = _lead(r) * k.constant
        for u, p in k.powers:
            growth += p * _degree(u)
            coefficient *= _lead(u) ** intervals.rational(p)
        for u, m in k.logs:
            if not _degree(u):
                return None
            coefficient *= sympy.Integer(_degree(u)) ** m
        tail = k.exponent[1:]
        coefficient *= sympy.exp(_sympy(k.exponent[0]) if k.exponent else 0)
        key = ((*[sympy.QQ(0)] * (5 - len(tail)), *tail[::-1]), growth, sum(m for _, m in k.logs))
        leading[key] = leading.get(key, 0) + coefficient
    fastest = max(leading)
    found = intervals.constant_sign(leading[fastest])
    return None if found == 0 and fastest > ((sympy.QQ(0),) * 5, 0, 0) else found


def _sympy(c: Any) -> sympy.Rational:
    return sympy.Rational(int(c.numerator), int(c.denominator))


def _degree(u: Any) -> int:
    return int(u.numer.degree() - u.denom.degree())


def _lead(u: Any) -> sympy.Rational:
    return _sympy(u.numer.LC / u.denom.LC)


def _roots(p: Any, a: Fraction, b: Any) -> list[tuple[Fraction, Fraction]]:
    """Enclosures of the real roots of a polynomial in the open (a, b)."""
    if p.degree() > _MAX_DEGREE:
        raise Unsupported("too high a degree")
    poly, ends = sympy.Poly(p.as_expr(), _VARIABLE), [_sympy(a)] + ([] if b == sympy.oo else [_sympy(b)])
    for end in ends:
        while poly.degree() > 0 and poly.eval(end) == 0:
            poly = poly.quo(sympy.Poly(_VARIABLE - end, _VARIABLE))
    if poly.degree() <= 0:
        return []
    found = poly.intervals(eps=_sympy(_NARROW), inf=ends[0], sup=ends[1] if ends[1:] else None)
    return [(intervals.fraction(lo), intervals.fraction(hi)) for (lo, hi), _ in found]


def _cells(terms: Terms, a: Fraction, b: Any, depth: int = 0) -> list[Cell]:
    """Where the sum is positive, negative or zero on (a, b). Between two cells lies one root, closely enclosed."""
    if not terms:
        return [(a, b, 0)]
    if depth > _MAX_DEPTH or any(r.numer.degree() > 2 * _MAX_DEGREE for r in terms.values()):
        raise Unsupported("too many terms")
    if len(terms) == 1 and not (only := next(iter(terms))).logs:
        return _between(terms, _roots(terms[only].numer, a, b), a, b)
    top = max(sum(m for _, m in k.logs) for k in terms)
    pivot = min(
        (k for k in terms if sum(m for _, m in k.logs) == top), key=lambda k: (terms[k].numer.degree(), repr(k))
    )
    # times 1/K without its logarithms and times the denominator, which has one sign on [a, b]
    unit = _power({pivot._replace(logs=frozenset()): _FIELD.one}, Fraction(-1))
    denominator = terms[pivot].denom
    flip = 1 if _sign_at({_ONE: _FIELD(denominator)}, _inside(a, b)) == 1 else -1
    h = _product(_product(terms, unit), {_ONE: flip * _FIELD(denominator)})
    slope = _cells(_derivative(h), a, b, depth + 1)
    return _integrate(h, slope, a, b)


def _inside(a: Fraction, b: Any) -> Fraction:
    return a + 1 if b == sympy.oo else (a + b) / 2


def _between(terms: Terms, roots: list[tuple[Fraction, Fraction]], a: Fraction, b: Any) -> list[Cell]:
    edges = [a, *(x for root in roots for x in root), b]
    cells = []
    for lo, hi in zip(edges[::2], edges[1::2], strict=True):
        if lo == hi:
            raise Unsupported("two roots too close together")
        found = _sign_at(terms, _inside(lo, hi))
        if not found:
            raise Unsupported("a sign too close to call")
        cells.append((lo, hi, found))
    return cells


def _integrate(h: Terms, slope: list[Cell], a: Fraction, b: Any) -> list[Cell]:
    """The cells of h from those of its derivative."""
    if slope[0][2] == 0:  # h is constant
        found = _sign_at(h, _inside(a, b))
        if found is None:
            raise Unsupported("a sign too close to call")
        return [(a, b, found)]
    cells: list[Cell] = []
    start = _sign_at(h, a)
    left = slope[0][2] if start == 0 else start
    for index, (lo, hi, direction) in enumerate(slope):
        if hi == sympy.oo:
            end = left if left == direction else _sign_at_infinity(h)
            right = -direction if end == 0 else end
        elif hi == b:
            end = _sign_at(h, b)
            right = -direction if end == 0 else end
        else:  # the next extremum
            right = intervals.sign(_value(h, intervals.hull(hi, slope[index + 1][0])))
        if not left or not right:
            raise Unsupported("a sign too close to call")
        pieces = [(lo, hi, left)]
        if left != right:
            r0, r1 = _bisect(h, lo, hi, left)
            pieces = [(lo, r0, left), (r1, hi, right)]
        if cells and cells[-1][2] == pieces[0][2]:
            pieces[0] = (cells.pop()[0], *pieces[0][1:])
        cells += pieces
        left = right
    return cells


def _bisect(h: Terms, lo: Fraction, hi: Any, left: int) -> tuple[Fraction, Fraction]:
    """An enclosure of the one root of a monotone h, whose sign next to lo is ``left``."""
    if hi == sympy.oo:
        step = 1
        while _sign_at(h, lo + step) == left:
            step *= 4
            if step > _FAR:
                raise Unsupported("a root too far out")
        hi = lo + step
    while hi - lo > _NARROW * (1 + abs(lo)):
        middle = (lo + hi) / 2
        found = _sign_at(h, middle)
        if found == 0:
            return middle, middle
        if found is None:
            raise Unsupported("a sign too close to call")
        lo, hi = (middle, hi) if found == left else (lo, middle)
    return lo, hi


def _check_kernels(terms: Terms, a: Fraction, b: Any) -> None:
    """Raise unless every base and denominator keeps off zero on [a, b], and bases of powers and logs are positive."""
    positive = {u for k in terms for u, _ in (*k.powers, *k.logs)}
    for u in {*positive, *(_FIELD(r.denom) for r in terms.values())}:
        ends = [a] if b == sympy.oo else [a, b]
        signs = [_sign_at({_ONE: u}, x) for x in (*ends, _inside(a, b))] if u else [0]
        if _roots(u.numer, a, b) or _roots(u.denom, a, b) or 0 in signs or (u in positive and signs[0] != 1):
            raise Unsupported("singular on the interval")


def _factors(expr: sympy.Expr) -> list[tuple[Any, Any]]:
    """(base, exponent) of a product that is ``expr`` up to positive factors, with hyperbolic functions as exp."""

    def factored() -> sympy.Expr:
        return sympy.factor(sympy.together(plain))

    plain = (
        expr.replace(sympy.tanh, lambda u: 1 - 2 / (sympy.exp(2 * u) + 1))
        .replace(sympy.sinh, lambda u: (sympy.exp(u) - sympy.exp(-u)) / 2)
        .replace(sympy.cosh, lambda u: (sympy.exp(u) + sympy.exp(-u)) / 2)
    )
    with contextlib.suppress(NotImplementedError, sympy.PolynomialError, RecursionError):
        plain = formula._within_budget(factored)
    pairs = []
    for factor in sympy.Mul.make_args(plain):
        if not isinstance(factor, sympy.exp):
            pairs.append(factor.as_base_exp() if factor.free_symbols else (factor, sympy.Integer(1)))
    return pairs


def _factor_cells(base: Any, power: Any, z: sympy.Symbol, a: Fraction, b: Any, zeros: bool) -> list[Cell]:
    if not power.is_Rational:
        raise Unsupported("a variable exponent")
    even = power.q == 1 and power.p % 2 == 0
    if even and not zeros:
        return [(a, b, 1)]
    if not base.free_symbols:
        return [(a, b, _settled(intervals.constant_sign(base)))]
    if base.is_Mul or base.is_Pow:
        cells = chart(base, z, a, b, zeros)
    else:
        terms = _read(base, z)
        _check_kernels(terms, a, b)
        cells = _cells(terms, a, b)
    if power.q != 1 and any(cell[2] < 0 for cell in cells):
        raise Unsupported("a root of a negative number")
    return [(lo, hi, sign**2) for lo, hi, sign in cells] if even else cells


def _settled(found: int | None) -> int:
    if found is None:
        raise Unsupported("a sign too close to call")
    return found


def _multiply(charts: list[list[Cell]], a: Fraction, b: Any) -> list[Cell]:
    gaps = sorted({(left[1], right[0]) for cells in charts for left, right in itertools.pairwise(cells)})
    if any(second[0] <= first[1] for first, second in itertools.pairwise(gaps)):
        raise Unsupported("two roots too close together")
    edges = [a, *(x for gap in gaps for x in gap), b]
    cells = []
    for lo, hi in zip(edges[::2], edges[1::2], strict=True):
        signs = [next(s for u, v, s in cells if u <= lo and hi <= v) for cells in charts]
        cells.append((lo, hi, math.prod(signs)))
    return cells


def _rationalised(expr: sympy.Expr, z: sympy.Symbol, a: Fraction) -> tuple[sympy.Expr, sympy.Symbol, Fraction]:
    """``expr`` in s where z = (s^q − d) / c, if its roots are all of one linear c z + d; with s, and its value at a."""
    roots = [p for p in expr.atoms(sympy.Pow) if p.exp.is_Rational and p.exp.q > 1 and p.has(z)]
    bases = {p.base for p in roots}
    if len(bases) == 1 and (base := bases.pop()).is_polynomial(z) and sympy.degree(base, z) == 1:
        q = math.lcm(*(int(p.exp.q) for p in roots))
        s = sympy.Dummy("s", positive=True)
        d, c = base.subs(z, 0), base.coeff(z)
        start = sympy.root(base.subs(z, sympy.Rational(a.numerator, a.denominator)), q)
        if c.is_positive and start.is_Rational:
            return (
                expr.xreplace({p: s ** (p.exp * q) for p in roots}).subs(z, (s**q - d) / c),
                s,
                intervals.fraction(start),
            )
    raise Unsupported("roots of several expressions")


def chart(expr: sympy.Expr, symbol: sympy.Symbol, a: Any, b: Any, zeros: bool = True) -> list[Cell]:
    """Cells of (a, b) with the sign of ``expr`` in each; a rational, b rational or ∞.

    A gap between two cells holds one zero or pole and nothing else. Without ``zeros``, those at which the sign stays
    may be left out. Raises :class:`Unsupported`.
    """
    a, b = intervals.fraction(a), b if b == sympy.oo else intervals.fraction(b)
    with intervals.precision(_DIGITS):
        try:
            return _multiply([_factor_cells(*pair, symbol, a, b, zeros) for pair in _factors(expr)], a, b)
        except (intervals.Undefined, NotImplementedError, ZeroDivisionError) as error:
            raise Unsupported(str(error)) from None


def nonnegative(expr: sympy.Expr, symbol: sympy.Symbol, a: Any, b: Any) -> tuple[bool, Fraction | None]:
    """(whether ``expr`` ≥ 0 is proved on (a, b), a point of it where it is negative)."""
    try:
        cells = chart(expr, symbol, a, b, zeros=False)
    except Unsupported:
        if b != sympy.oo:
            return False, None
        try:  # the chart of another variable proves as well, but its points are not ours
            cells = chart(*_rationalised(expr, symbol, intervals.fraction(a)), b, zeros=False)
            return all(s >= 0 for _, _, s in cells), None
        except Unsupported:
            return False, None
    wrong = [(lo, hi) for lo, hi, s in cells if s < 0 and lo < hi]
    return not wrong, simplest(*wrong[0]) if wrong else None


def simplest(lo: Fraction, hi: Any) -> Fraction:
    """The fraction strictly between lo ≥ 0 and hi with the smallest denominator."""
    whole = math.floor(lo) + 1
    if hi == sympy.oo or whole < hi:
        return Fraction(whole)
    if lo == whole - 1:
        return lo + 1 / Fraction(math.floor(1 / (hi - lo)) + 1)
    return whole - 1 + 1 / simplest(1 / (hi - whole + 1), 1 / (lo - whole + 1))
