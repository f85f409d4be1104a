"""Interval arithmetic: enclosures of f, f', f'', … at a point or over a whole interval, and sign proofs by subdivision.

``jet`` returns intervals that contain the Taylor coefficients f⁽ᵏ⁾(z)/k! for every z of the interval it is given. They
are mpmath intervals, rounded outward; elementary functions are padded by some units in the last place besides, so that
a sign read off an enclosure does not hang on the last bit of mpmath.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import sympy
from mpmath import iv, libmp

Interval = Any  # mpmath's ivmpf, which has no type of its own
Jet = list[Interval]  # within this module it ends where smoothness does: what is missing has no enclosure

ALL = iv.mpf(["-inf", "inf"])
DIGITS = 50  # what a refutation is confirmed with
_ZERO = iv.mpf(0)
_UNIT = iv.mpf([-1, 1])
STRICT = sympy.StrictLessThan | sympy.StrictGreaterThan
_INFINITY = iv.mpf("inf")
_HUGE = 10**6  # exp beyond this is enclosed without computing it


class Undefined(ArithmeticError):
    """Surely not a finite real number there."""


@contextmanager
def precision(digits: int) -> Iterator[None]:
    before = iv.dps
    iv.dps = digits
    try:
        yield
    finally:
        iv.dps = before


def number(value: Any) -> Interval:
    """An interval around a SymPy number, a Fraction or an int."""
    if isinstance(value, sympy.Expr) and not value.is_Rational:
        return jet(value, sympy.Dummy(), _ZERO, 0)[0]
    p, q = (value.p, value.q) if isinstance(value, sympy.Rational) else Fraction(value).as_integer_ratio()
    return iv.mpf(int(p)) / int(q)


def fraction(x: Any) -> Fraction:
    return Fraction(int(x.p), int(x.q)) if isinstance(x, sympy.Rational) else Fraction(x)


def rational(x: Fraction) -> sympy.Rational:
    return sympy.Rational(x.numerator, x.denominator)


def hull(lo: Any, hi: Any) -> Interval:
    """[lo, hi] for rational lo and rational or infinite hi."""
    return iv.mpf([number(lo).a, "inf" if hi == sympy.oo else number(hi).b])


def sign(value: Interval) -> int | None:
    """1, −1 or, for the exact number zero, 0; None where the interval does not tell."""
    return 1 if value.a > 0 else -1 if value.b < 0 else 0 if value.a == value.b == 0 else None


def constant_sign(value: sympy.Expr) -> int | None:
    """The sign of a number: intervals at 50 digits, and zero only where exact arithmetic says so."""
    if value.is_Rational:
        return int(sympy.sign(value))
    with precision(DIGITS):
        try:
            found = sign(number(value))
        except (Undefined, NotImplementedError):
            return None
    return 0 if found is None and sympy.expand(value) == 0 else found


def jet(expr: sympy.Expr, symbol: sympy.Symbol, at: Interval, order: int) -> Jet:
    """Enclosures of the Taylor coefficients 0 … order of ``expr``, at every point of the interval ``at``.

    Coefficients beyond the smoothness of a Max, Min, Abs or Piecewise are [−∞, ∞], except that the first is the hull of
    the slopes that meet where the function is continuous. So is what may be undefined somewhere in ``at``; raises
    :class:`Undefined` where it is undefined everywhere in it.
    """
    known: dict[Any, Jet] = {symbol: [at, iv.mpf(1), *[_ZERO] * order][: order + 1]}

    def of(e: Any) -> Jet:
        if e not in known:
            known[e] = compute(e)
        return known[e]

    def compute(e: Any) -> Jet:
        if e.is_Rational:
            return [number(e), *[_ZERO] * order]
        if e in (sympy.pi, sympy.E):
            return [_pad(iv.pi + 0 if e == sympy.pi else iv.exp(iv.mpf(1))), *[_ZERO] * order]
        if e.is_Add:
            return [sum(c[1:], c[0]) for c in zip(*map(of, e.args), strict=False)]
        if e.is_Mul:
            result = of(e.args[0])
            for factor in e.args[1:]:
                result = _product(result, of(factor))
            return result
        if isinstance(e, sympy.exp):
            return _exp(of(e.exp))
        if e.is_Pow:
            if e.exp.is_Rational:
                return _power(of(e.base), e.exp)
            return _exp(_product(of(e.exp), _log(of(e.base))))
        if isinstance(e, sympy.Max | sympy.Min):
            larger = isinstance(e, sympy.Max)
            result = of(e.args[0])
            for other in e.args[1:]:
                result = _choose(result, of(other), larger)
            return result
        if isinstance(e, sympy.Abs):
            u = of(e.args[0])
            return _choose(u, [-c for c in u], True)
        if isinstance(e, sympy.Piecewise):
            return piecewise(e)
        if type(e) in _FUNCTIONS:
            return _FUNCTIONS[type(e)](of(e.args[0]))
        raise NotImplementedError(f"no enclosure of {type(e).__name__}")

    touching = False  # whether the end of a piece is in ``at``

    def compare(gap: Any, strict: bool) -> bool | None:
        nonlocal touching
        size = of(gap)[0]
        touching |= bool(size.a <= 0 <= size.b)
        if strict:
            return True if size.a > 0 else False if size.b <= 0 else None
        return True if size.a >= 0 else False if size.b < 0 else None

    def piecewise(e: Any) -> Jet:
        nonlocal touching
        before, touching = touching, False
        for value, condition in e.args:
            holds = truth(condition, compare)
            if holds:
                result = of(value)[:1] if touching else of(value)
                touching = before
                return result
            if holds is None:
                break
        return [ALL]

    result = of(expr)
    return result + [ALL] * (order + 1 - len(result))


def truth(condition: Any, compare: Callable[[Any, bool], bool | None]) -> bool | None:
    """Whether a condition of a Piecewise holds; ``compare`` decides gap > 0 (strict) and gap ≥ 0."""
    if condition in (sympy.true, sympy.false):
        return bool(condition)
    if isinstance(condition, STRICT | sympy.LessThan | sympy.GreaterThan):
        return compare(condition.gts - condition.lts, isinstance(condition, STRICT))
    parts = (
        [truth(part, compare) for part in condition.args] if isinstance(condition, sympy.logic.boolalg.Boolean) else []
    )
    if isinstance(condition, sympy.And):
        return False if False in parts else None if None in parts else True
    if isinstance(condition, sympy.Or):
        return True if True in parts else None if None in parts else False
    if isinstance(condition, sympy.Not):
        return None if parts[0] is None else not parts[0]
    if isinstance(condition, sympy.ITE):
        return None if parts[0] is None else parts[1] if parts[0] else parts[2]
    raise NotImplementedError(f"a condition of type {type(condition).__name__}")


def _times(a: Interval, b: Interval) -> Interval:
    # every number here is finite, so zero times an unbounded enclosure is zero
    return _ZERO if a.a == a.b == 0 or b.a == b.b == 0 else a * b


def _dot(a: Jet, b: Jet) -> Interval:
    total = _ZERO
    for x, y in zip(a, b, strict=True):
        total += _times(x, y)
    return total


def _product(u: Jet, v: Jet) -> Jet:
    return [_dot(u[: k + 1], v[k::-1]) for k in range(min(len(u), len(v)))]


def _pad(value: Interval) -> Interval:
    wider = 1 + _UNIT * iv.mpf(2) ** (8 - iv.prec)
    return iv.mpf([(value.a * wider).a, (value.b * wider).b])


def _clip(value: Interval) -> Interval:
    """What of it lies in [−1, 1]."""
    return iv.mpf([max(value.a, _UNIT.a).a, min(value.b, _UNIT.b).b])


def _integrated(start: Interval, slope: Jet, u: Jet) -> Jet:
    """The jet of f where f' = slope · u': f_k = (1/k) Σ j u_j slope_{k−j}."""
    result = [start]
    for k in range(1, len(u)):
        result.append(_dot([u[j] * j for j in range(1, k + 1)], slope[k - 1 :: -1][:k]) / k)
    return result


def _exp(u: Jet) -> Jet:
    lo, hi = u[0].a, u[0].b
    low = iv.exp(min(lo, iv.mpf(_HUGE))) if lo >= -_HUGE else _ZERO
    high = iv.exp(max(hi, iv.mpf(-_HUGE))) if hi <= _HUGE else _INFINITY
    exact = lo == hi == 0
    result = [iv.mpf(1) if exact else iv.mpf([_pad(low).a, _pad(high).b])]
    for k in range(1, len(u)):
        result.append(_dot([u[j] * j for j in range(1, k + 1)], result[k - 1 :: -1]) / k)
    return result


def _log(u: Jet) -> Jet:
    if u[0].b <= 0:
        raise Undefined("log of a number that is not positive")
    if u[0].a <= 0:
        return [iv.mpf(["-inf", _pad(iv.log(u[0].b)).b])]
    result = [_pad(iv.log(u[0]))]
    for k in range(1, len(u)):
        inner = _dot([result[j] * j for j in range(1, k)], [u[k - j] for j in range(1, k)])
        result.append((u[k] - inner / k) / u[0])
    return result


def _power(u: Jet, p: sympy.Rational) -> Jet:
    base = u[0]
    if p.q == 1 and p > 0:
        if base.a <= 0 <= base.b and len(u) > 1:
            result = _power(u, p - 1) if p > 1 else [iv.mpf(1), *[_ZERO] * (len(u) - 1)]
            return [base ** int(p), *_product(result, u)[1:]]
        first = base ** int(p)
    elif p.q == 1:
        if base.a == base.b == 0:
            raise Undefined("division by zero")
        if base.a <= 0 <= base.b:
            return [iv.mpf([0, "inf"]) if base.a == 0 or p.p % 2 == 0 else ALL]
        first = base ** int(p)
    else:
        if base.b < 0 or (base.b == 0 and p < 0):
            raise Undefined("a root of a negative number" if base.b < 0 else "division by zero")
        if base.a <= 0:
            if p < 0:
                return [iv.mpf([0, "inf"])]
            top = _exp([number(p) * iv.log(base.b)])[0].b if base.b > 0 else base.b
            return [iv.mpf([0, top])]
        first = iv.sqrt(base) if p == sympy.Rational(1, 2) else _exp([number(p) * iv.log(base)])[0]
    result, exponent = [first if abs(p) <= 2 and p.q == 1 else _pad(first)], number(p)
    for k in range(1, len(u)):
        weights = [_times(exponent * j - (k - j), u[j]) for j in range(1, k + 1)]
        result.append(_dot(weights, result[k - 1 :: -1]) / base / k)
    return result


def _tanh(u: Jet) -> Jet:
    lo, hi = (_tanh_at(end) for end in (u[0].a, u[0].b))
    result = [_clip(iv.mpf([lo.a, hi.b]))]
    square: Jet = []
    for k in range(1, len(u)):
        # (1 − f²) so far; its first coefficient as 1/cosh², which is tight
        square.append(_sech2(u[0]) if k == 1 else -_dot(result, result[::-1]))
        result.append(_dot([u[j] * j for j in range(1, k + 1)], square[::-1]) / k)
    return result


def _tanh_at(end: Interval) -> Interval:
    if end.a <= 0:
        return -_tanh_at(-end) if end.a < 0 else _ZERO
    decay = _exp([-2 * end])[0]
    return _pad((1 - decay) / (1 + decay))


def _sech2(u: Interval) -> Interval:
    size = abs(u)
    decay = _exp([-2 * size])[0]
    return _pad(4 * decay / (1 + decay) ** 2)


def _atan(u: Jet) -> Jet:
    raw = iv.make_mpf(libmp.libmpi.mpi_atan(u[0]._mpi_, iv.prec + 20))
    square = _product(u, u)
    return _integrated(_pad(raw), _power([1 + u[0] ** 2, *square[1:]], sympy.Integer(-1)), u)


def _erf(u: Jet) -> Jet:
    wp = iv.prec + 20
    ends = [iv.make_mpf((value, value)) for value in (libmp.mpf_erf(end, wp) for end in u[0]._mpi_)]
    raw = iv.mpf([_pad(ends[0]).a, _pad(ends[1]).b])
    square = _product(u, u)
    slope = [2 / iv.sqrt(iv.pi) * c for c in _exp([-(u[0] ** 2), *[-c for c in square[1:]]])]
    return _integrated(raw, slope, u)


def _sin_cos(u: Jet) -> tuple[Jet, Jet]:
    far = abs(u[0]).b > 10**30
    sin, cos = ([_UNIT if far else _clip(_pad(f(u[0])))] for f in (iv.sin, iv.cos))
    for k in range(1, len(u)):
        weights = [u[j] * j for j in range(1, k + 1)]
        s, c = _dot(weights, cos[k - 1 :: -1]) / k, -_dot(weights, sin[k - 1 :: -1]) / k
        sin.append(s)
        cos.append(c)
    return sin, cos


def _hyperbolic(u: Jet, parity: int) -> Jet:
    up, down = _exp(u), _exp([-c for c in u])
    return [(a + parity * b) / 2 for a, b in zip(up, down, strict=True)]


_FUNCTIONS: dict[Any, Callable[[Jet], Jet]] = {
    sympy.log: _log,
    sympy.tanh: _tanh,
    sympy.atan: _atan,
    sympy.erf: _erf,
    sympy.sin: lambda u: _sin_cos(u)[0],
    sympy.cos: lambda u: _sin_cos(u)[1],
    sympy.sinh: lambda u: _hyperbolic(u, -1),
    sympy.cosh: lambda u: _hyperbolic(u, 1),
}


def _choose(u: Jet, v: Jet, larger: bool) -> Jet:
    """Max or Min of two jets."""
    if not larger:
        return [-c for c in _choose([-c for c in u], [-c for c in v], True)]
    if u[0].a >= v[0].b and (u[0].a > v[0].b or len(u) == 1):
        return u
    if v[0].a >= u[0].b and (v[0].a > u[0].b or len(v) == 1):
        return v
    value = iv.mpf([max(u[0].a, v[0].a).a, max(u[0].b, v[0].b).b])
    slopes = [iv.mpf([min(a.a, b.a).a, max(a.b, b.b).b]) for a, b in zip(u[1:2], v[1:2], strict=False)]
    return [value, *slopes]


def prove(
    expr: sympy.Expr, symbol: sympy.Symbol, k: int, want: int, lo: Any, hi: Any, boxes: int = 400, digits: int = 15
) -> tuple[Any, Fraction | None]:
    """Whether want · expr⁽ᵏ⁾ ≥ 0 on [lo, hi] (hi may be ∞), by subdivision into at most ``boxes`` intervals.

    Returns (reached, suspect): it holds on [lo, reached]; ``suspect`` is a point where it surely fails, or None.
    """
    ends, last = [fraction(lo)], None if hi == sympy.oo else fraction(hi)
    for power in range(-1, 41):
        end = ends[0] + 2**power if power >= 0 else ends[0] + Fraction(1, 2)
        if last is not None and end >= last:
            break
        ends.append(end)
    stack: list[tuple[Any, Any]] = list(zip(ends, [*ends[1:], sympy.oo if last is None else last], strict=True))[::-1]
    smallest = Fraction(1, 10**6)
    with precision(digits):
        for _ in range(boxes):
            a, b = stack.pop()
            fine, wrong = _sign_on(expr, symbol, k, want, a, b)
            if wrong:
                return a, a + 1 if b == sympy.oo else (a + b) / 2
            if not fine:
                if b == sympy.oo or b - a < smallest * max(1, abs(a)):
                    return a, None
                stack += [((a + b) / 2, b), (a, (a + b) / 2)]
            elif not stack:
                return b, None
    return stack[-1][0], None


def _sign_on(expr: Any, symbol: Any, k: int, want: int, a: Any, b: Any) -> tuple[bool, bool]:
    """(surely of the wanted sign on all of [a, b], surely of the other sign on all of it)."""
    try:
        jets = jet(expr, symbol, hull(a, b), k + 1)
    except Undefined:
        return False, False
    value = want * jets[k]
    if value.a >= 0 or value.b < 0:
        return bool(value.a >= 0), bool(value.b < 0)
    slope = want * jets[k + 1] * (k + 1)
    if slope.a == -_INFINITY and slope.b == _INFINITY:
        return False, False
    for end, step in ((a, hull(0, b if b == sympy.oo else b - a)), (b, None if b == sympy.oo else -hull(0, b - a))):
        if step is None or (end is a and b == sympy.oo and slope.a < 0):
            continue
        try:
            at_end = want * jet(expr, symbol, number(end), k)[k]
        except Undefined:
            continue
        if (at_end + _times(slope, step)).a >= 0:
            return True, False
    return False, False
