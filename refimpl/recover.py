"""From an activation σ(x) to the penalty φ that it is the proximal operator of.

    φ(y) = sup_v (v y − Σ(v)) − ½ y²,   Σ(v) = ∫₀ᵛ σ,   so that   φ(σ(t)) = t σ(t) − Σ(t) − ½ σ(t)².

For a non-decreasing σ, Σ is convex with σ(v) ∈ ∂Σ(v), hence v ∈ ∂Σ*(σ(v)): σ(v) minimises Σ*(y) − v y, which is
½ (y − v)² + φ(y) up to a constant. No other penalty with this prox is smaller. Where σ is smooth, φ' = σ⁻¹ − id; where
σ is flat φ has a kink; where σ jumps, at b, φ' = b − y across the gap; φ is +∞ outside the closed range of σ. The
constant is such that φ(σ(0)) = −½ σ(0)². The prox with a step, y = prox_{αφ}(v), satisfies (1 − α) y + α t = v with
y between σ(t−) and σ(t+): one solution for α ≤ 1, and for every α > 0 where σ is 1-Lipschitz as well (φ convex).

Sources: Moreau (1965); Combettes and Pesquet (2020); Gribonval and Nikolova (2020). Derivation:
``derivations/03_feedforward.md``, ``prox.activation_characterisation``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import formula
from .activation import Activation, Prox
from .numerics import EPS, FloatArray

if TYPE_CHECKING:
    import sympy

    from .classify import ActivationTraits

TOLERANCE = 1e-12  # of a closed form against the definition, relative to 1 + |t y| + y²
_FAR = 1024.0  # how far out in t the error is stated
_LONGEST = 300  # characters of a closed form worth showing
_EVENTS = 2 * formula.MAX_EVENTS  # for SymPy to invert or to integrate one piece: about a second
_FAILURES = (NotImplementedError, ArithmeticError, ValueError, TypeError, AttributeError, RecursionError, KeyError)


@dataclass(frozen=True, eq=False)
class Recovered:
    """An activation made from σ(x) alone.

    activation : σ as a :class:`refimpl.Activation`. Its prox raises ``ValueError`` for α > ``max_alpha``.
    formula : φ(y) as text, ``where(condition, then, otherwise)`` between pieces; None where no closed form was found.
    error : |computed φ − φ| ≤ error (1 + |t y| + y²) at y = σ(t), |t| ≤ 1024, or up to the power of two before |σ|
        passes 1e150 (nan beyond 2⁶⁰). Estimated by halving panels, and by comparison with the definition at 30 digits.
    domain : where φ is finite.
    max_alpha : the largest supported α, ∞ where φ is proved convex, else 1.
    prox, penalty : prox_{αφ}(v) and φ(y) of one mpmath number at its working precision, straight from the definition;
        ``penalty`` raises ``ValueError`` where it cannot find t with σ(t) = y.
    """

    activation: Activation
    formula: str | None
    error: float
    domain: str
    max_alpha: float
    prox: Callable[[Any, Any], Any]
    penalty: Callable[[Any], Any]

    @property
    def closed_form(self) -> bool:
        return self.formula is not None


class Decreasing(ValueError):
    """σ decreases, so that it is the prox of nothing. The message is two points at which 50 digits show it."""


def activation(expr: sympy.Expr, name: str, traits: ActivationTraits | None = None) -> Recovered:
    """The activation with σ(x) = ``expr``, an expression in ``formula.symbol("x")`` that is finite on ℝ.

    φ is in closed form where SymPy inverts σ and integrates piece by piece, and the result agrees with the definition
    at 30 digits; else it is computed by Gauss-Legendre quadrature. ``traits`` are those of ``classify_activation``.

    Raises :class:`Decreasing` where σ is found to decrease, ``ValueError`` where it is not finite.
    """
    import sympy

    from . import classify

    traits = classify.classify_activation(expr) if traits is None else traits
    x, y = formula.symbol("x"), sympy.Symbol("y", real=True)
    pieces = _pieces(expr, x)
    breaks = sorted({float(edge) for piece in pieces or () for edge in (piece.lo, piece.hi) if edge.is_finite})
    sigma, literal = formula.vectorised(expr, x), _Literal(formula.scalar(expr, x, "mpmath"), pieces or ())
    curve = _Curve(sigma, breaks, literal.sigma)
    text, error = None, curve.error
    penalty: Callable[[FloatArray], FloatArray] = curve.penalty
    if pieces:
        samples, closed = _samples(pieces, literal), _closed_form(pieces, x, y)
        if closed is not None and _deviation(formula.scalar(closed, y, "mpmath"), samples) <= TOLERANCE:
            text = classify.show.formula(closed)
            penalty = _in_floats(closed, y, curve) or penalty
        error = max(error, 2 * _deviation(lambda y: float(penalty(np.array([float(y)]))[0]), samples))
    convex = traits.lipschitz.verdict == "proved"
    max_alpha = math.inf if convex else 1.0
    made = Activation(name, penalty, _prox(sigma, max_alpha, name), convex)
    return Recovered(made, text, error, curve.domain, max_alpha, literal.prox, literal.penalty)


def _prox(sigma: Callable[[FloatArray], FloatArray], max_alpha: float, name: str) -> Prox:
    """prox_{αφ}(v), with t where (1 − α) σ(t) + α t passes v, and y the value between σ(t−) and σ(t+) that fits."""

    def excess(t: FloatArray, v: FloatArray, alpha: FloatArray) -> FloatArray:
        return np.clip((1 - alpha) * sigma(t) + alpha * t - v, -1e300, 1e300)

    def prox(v: FloatArray, alpha: Any) -> FloatArray:
        alpha = np.broadcast_to(np.asarray(alpha, dtype=np.float64), v.shape)
        if (alpha > max_alpha).any():
            raise ValueError(
                f"alpha: expected at most {max_alpha:g} for {name}, whose penalty is not known to be convex, "
                f"got {alpha.max():g}"
            )
        if (alpha == 1).all():
            return sigma(v)
        from scipy.optimize.elementwise import find_root

        # its root is at most the excess at 0 over the smallest slope, min(1, α), away from 0; widened against rounding
        far = 1.01 * (v - (1 - alpha) * sigma(np.zeros(1))) / np.minimum(1.0, alpha)
        near = 1e-9 * (1 + np.abs(v))
        ends = (np.minimum(far, 0.0) - near, np.maximum(far, 0.0) + near)
        with np.errstate(all="ignore"):  # a jump at 0 would be followed to 1e-308
            found = find_root(excess, ends, args=(v, alpha), tolerances={"xatol": 1e-30})
            lo, hi = np.minimum(*found.bracket), np.maximum(*found.bracket)
            between = (v - alpha * found.x) / (1 - alpha)  # in the gap, if σ jumps there
        jumps = (alpha < 1) & (found.f_x != 0)  # where the excess is exactly 0 the bracket may still be wide
        return np.where(jumps, np.fmin(np.fmax(between, sigma(lo)), sigma(hi)), sigma(np.where(alpha == 1, v, found.x)))

    return prox


# ------------------------------------------------------------------------------------------------ in floats


class _Curve:
    """φ by quadrature: σ and Σ at the edges of panels on which a Gauss-Legendre rule is exact to rounding."""

    def __init__(self, sigma: Callable[[FloatArray], FloatArray], breaks: Sequence[float], literal: Any) -> None:
        self.sigma = sigma
        self.nodes, self.weights = np.polynomial.legendre.leggauss(16)
        powers = 2.0 ** np.arange(-4, 61)
        edges = np.unique(np.concatenate([-powers, [0.0], powers, breaks]))
        with np.errstate(invalid="ignore"):
            usable = np.abs(sigma(edges)) <= 1e150
        zero = int(np.searchsorted(edges, 0.0))
        if not usable[[zero - 1, zero, zero + 1]].all():
            raise ValueError("σ is not finite on the real line")
        first = zero - int(np.argmin([*usable[:zero][::-1], False]))
        last = zero + int(np.argmin([*usable[zero:], False]))
        self.edges, panels, errors = self._refined(edges[first:last])
        values = sigma(self.edges)
        self._check_monotone(values, literal)
        self.values = np.maximum.accumulate(values)
        zero = int(np.searchsorted(self.edges, 0.0))
        self.integral = _outward(panels, zero)  # Σ at the edges
        size = 1 + np.abs(self.edges * values) + values * values
        doubts = np.abs(_outward(errors, zero)) / size
        self.error = float(64 * EPS + doubts[np.abs(self.edges) <= _FAR].max())
        (self.low, self.at_low), (self.high, self.at_high) = self._end(-1), self._end(1)
        self.domain = _interval(self.low, self.high, math.isfinite(self.at_low), math.isfinite(self.at_high))

    def _quadrature(self, a: FloatArray, b: FloatArray, level: float = 0.0) -> FloatArray:
        """∫ₐᵇ (σ − level), elementwise, without subdivision."""
        half = (b - a) / 2
        return half * ((self.sigma(a[..., None] + half[..., None] * (1 + self.nodes)) - level) @ self.weights)

    def _refined(self, edges: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(edges, integrals, estimated errors), with panels halved until two halves give what the whole gives."""
        done: list[tuple[FloatArray, FloatArray, FloatArray]] = []
        a, b = edges[:-1], edges[1:]
        for depth in range(41):
            middle = a + (b - a) / 2
            whole, halves = self._quadrature(a, b), self._quadrature(a, middle) + self._quadrature(middle, b)
            error = np.abs(whole - halves)
            # σ that keeps oscillating far out is not followed there: the stated error says so
            settled = (error <= 8 * EPS * (np.abs(halves) + (b - a) * 1e-3)) | (depth == 40) | (len(a) > 4000)
            done.append((a[settled], halves[settled], error[settled]))
            a, middle, b = a[~settled], middle[~settled], b[~settled]
            a, b = np.concatenate([a, middle]), np.concatenate([middle, b])
            if not len(a):
                break
        starts, panels, errors = (np.concatenate(parts) for parts in zip(*done, strict=True))
        order = np.argsort(starts)
        return np.append(starts[order], edges[-1]), panels[order], errors[order]

    def _check_monotone(self, values: FloatArray, literal: Any) -> None:
        for i in np.argsort(np.diff(values))[:3]:
            a, b = float(self.edges[i]), float(self.edges[i + 1])
            if values[i + 1] < values[i] and (exact := _decrease(literal, a, b)) is not None:
                raise Decreasing(f"σ({a:.6g}) = {exact[0]:.6g} > σ({b:.6g}) = {exact[1]:.6g}")

    def _end(self, sign: int) -> tuple[float, float]:
        """(the limit e of σ at ±∞, φ(e)). φ(e) is infinite where ∫ |e − σ| is, as its dyadic parts tell."""
        end, last = float(self.sigma(np.array(sign * math.inf))), self.edges[-1 if sign > 0 else 0]
        if math.isnan(end):
            end, before = (float(self.sigma(np.array(t))) for t in (last, last / 2))
            end = end if abs(end - before) <= 1e-9 * (1 + abs(end)) else sign * math.inf
        if math.isinf(end) or abs(last) < 2.0**20:
            return end, math.inf
        a, b = (sign * self.edges[:-1], sign * self.edges[1:])[::sign]
        areas = np.abs(self._quadrature(self.edges[:-1], self.edges[1:], end))
        total, before, after = (
            areas[(lo <= a) & (b <= hi)].sum() for lo, hi in ((0, 2**20), (2**18, 2**19), (2**19, 2**20))
        )
        ratio = after / before if after > 1e-9 * (1 + abs(end)) else 0.0
        return end, math.inf if ratio > 0.99 else float(total + after * ratio / (1 - ratio) - end * end / 2)

    def penalty(self, y: FloatArray) -> FloatArray:
        """φ(y), elementwise: t with σ(t) = y by bisection, which the supremum forgives to second order."""
        y = np.asarray(y, dtype=np.float64)
        k = np.clip(np.searchsorted(self.values, y) - 1, 0, len(self.edges) - 2)
        start, lo, hi = self.edges[k], self.edges[k], self.edges[k + 1]
        for _ in range(54):
            middle = lo + (hi - lo) / 2
            below = self.sigma(middle) < y
            lo, hi = np.where(below, middle, lo), np.where(below, hi, middle)
        with np.errstate(over="ignore", invalid="ignore"):
            phi = hi * y - (self.integral[k] + self._quadrature(start, hi)) - 0.5 * y * y
        known = (self.values[0] <= y) & (y <= self.values[-1])
        return self.ends(y, np.where(known, phi, np.nan))

    def ends(self, y: FloatArray, phi: FloatArray) -> FloatArray:
        """``phi`` with what it has to be at the ends of the range of σ and outside."""
        phi = np.where(y == self.low, self.at_low, np.where(y == self.high, self.at_high, phi))
        return np.where((y < self.low) | (y > self.high), np.inf, phi)


def _outward(parts: FloatArray, zero: int) -> FloatArray:
    """Sums of the parts from edge ``zero`` to every edge, negative to its left."""
    return np.concatenate([-np.cumsum(parts[:zero][::-1])[::-1], [0.0], np.cumsum(parts[zero:])])


def _in_floats(closed: sympy.Expr, y: sympy.Symbol, curve: _Curve) -> Callable[[FloatArray], FloatArray] | None:
    """The closed form on arrays, or None where SciPy lacks one of its functions or its digits cancel."""

    def penalty(y: FloatArray) -> FloatArray:
        phi = curve.ends(y, fast(np.clip(y, curve.low, curve.high)))
        return np.where(np.isnan(phi), curve.penalty(y), phi) if np.isnan(phi).any() else phi

    t = curve.edges[np.abs(curve.edges) <= _FAR]
    values = curve.sigma(t)
    size = 1 + np.abs(t * values) + values * values
    try:
        fast = formula.vectorised(closed, y)
        with np.errstate(invalid="ignore"):
            off = np.abs(penalty(values) - curve.penalty(values))
    except (*_FAILURES, NameError):
        return None
    return penalty if (off[~np.isnan(off)] <= TOLERANCE * size[~np.isnan(off)]).all() else None


def _interval(low: Any, high: Any, with_low: bool, with_high: bool) -> str:
    left, right = ("oo" if abs(end) == math.inf else f"{end:.12g}" for end in (low, high))
    left = f"-{left}" if low == -math.inf else left
    return f"{'[' if with_low else '('}{left}, {right}{']' if with_high else ')'}"


# ------------------------------------------------------------------------------------- in 50 digits, literally


class _Literal:
    """σ, φ and prox_{αφ} of one mpmath number, from the definition alone: bisection, and quadrature between breaks."""

    def __init__(self, sigma: Callable[[Any], Any], pieces: Sequence[Any]) -> None:
        self.sigma = sigma
        self.edges = sorted({edge for piece in pieces for edge in (piece.lo, piece.hi) if edge.is_finite}, key=float)

    def breaks(self) -> list[Any]:
        import mpmath
        import sympy

        return [mpmath.mpmathify(sympy.N(edge, mpmath.mp.dps + 5)) for edge in self.edges]

    def integral(self, a: Any, b: Any) -> Any:
        """∫ₐᵇ σ for a ≤ b."""
        import mpmath

        return mpmath.quad(self.sigma, [a, *(c for c in self.breaks() if a < c < b), b]) if a < b else mpmath.mpf(0)

    def penalty(self, y: Any) -> Any:
        import mpmath

        y = mpmath.mpf(y)
        _, t = self._passes(self.sigma, y)
        area = self.integral(mpmath.mpf(0), t) if t > 0 else -self.integral(t, mpmath.mpf(0))
        return t * y - area - y * y / 2

    def prox(self, v: Any, alpha: Any) -> Any:
        import mpmath

        if alpha == 1:
            return self.sigma(v)
        lo, hi = self._passes(lambda t: (1 - alpha) * self.sigma(t) + alpha * t, mpmath.mpf(v))
        return min(max((v - alpha * hi) / (1 - alpha), self.sigma(lo)), self.sigma(hi))

    def _passes(self, function: Callable[[Any], Any], target: Any) -> tuple[Any, Any]:
        """Neighbours lo < hi with function(lo) < target ≤ function(hi), for a non-decreasing function."""
        import mpmath

        lo, hi = mpmath.mpf(-1), mpmath.mpf(1)
        while function(lo) >= target and lo > -(2**20):
            lo *= 2
        while function(hi) < target and hi < 2**20:
            hi *= 2
        if not function(hi) >= target or (function(lo) >= target and function(lo) != target):
            raise ValueError("not reached")
        if function(lo) == target:  # flat from here to −∞
            return lo, lo
        while hi - lo > mpmath.eps * max(1, abs(lo)):
            middle = (lo + hi) / 2
            lo, hi = (middle, hi) if function(middle) < target else (lo, middle)
        return lo, hi


def _decrease(sigma: Callable[[Any], Any], a: float, b: float) -> tuple[float, float] | None:
    """(σ(a), σ(b)) if σ(a) > σ(b) in 50 digits."""
    import mpmath

    with mpmath.workdps(50):
        first, second = sigma(a), sigma(b)
        return (float(first), float(second)) if first - second > mpmath.mpf(10) ** -40 * abs(first) else None


def _samples(pieces: Sequence[Any], literal: _Literal) -> list[tuple[Any, Any, Any]]:
    """(y, φ(y) from the definition, 1 + |t y| + y²) at points of every piece and of every jump, in 30 digits."""
    import mpmath

    with mpmath.workdps(30):
        cuts = literal.breaks()
        points = [mpmath.mpf(p) / q for piece in pieces for p, q in (s.as_numer_denom() for s in _inside(piece))]
        points, pairs = sorted({*map(mpmath.mpf, points), *cuts}), []
        for t in points:
            values = [literal.sigma(t)]
            if t in cuts:
                left, right = (literal.sigma(t + side * mpmath.mpf(10) ** -25) for side in (-1, 1))
                values = [left + (right - left) * share / 4 for share in (1, 2, 3)]
            area = literal.integral(mpmath.mpf(0), t) if t > 0 else -literal.integral(t, mpmath.mpf(0))
            pairs += [(y, t * y - area - y * y / 2, 1 + abs(t * y) + y * y) for y in values]
        return pairs


def _deviation(penalty: Callable[[Any], Any], samples: Sequence[tuple[Any, Any, Any]]) -> float:
    """The largest |penalty(y) − φ(y)| / (1 + |t y| + y²) over the samples; infinite where one is no real number."""
    import mpmath

    worst = 0.0
    with mpmath.workdps(30):
        for y, phi, size in samples:
            try:
                off = float(abs(penalty(y) - phi) / size)
            except _FAILURES:
                return math.inf
            worst = max(worst, math.inf if math.isnan(off) else off)
    return worst


# ------------------------------------------------------------------------------------------------ in closed form


def _pieces(expr: sympy.Expr, x: sympy.Symbol) -> list[Any] | None:
    """σ as smooth pieces between exact breaks, or None where they are not found."""
    from .classify import pieces

    try:
        return pieces.split(expr, x)
    except (pieces.Unresolved, *_FAILURES):
        return None


def _inside(piece: Any) -> list[Any]:
    """Three rational points of a piece."""
    import sympy

    third = sympy.Rational(1, 3)
    if piece.lo.is_finite and piece.hi.is_finite:
        width = piece.hi - piece.lo
        return [sympy.Rational(float(piece.lo + width * share)) for share in (third, 3 * third / 2, 7 * third / 3)]
    if not piece.lo.is_finite and not piece.hi.is_finite:
        return [-4 * third, third, sympy.Integer(2)]
    edge, side = (piece.lo, 1) if piece.lo.is_finite else (piece.hi, -1)
    return [sympy.Rational(float(edge)) + side * step for step in (third, sympy.Rational(3, 2), sympy.Integer(4))]


def _closed_form(pieces: Sequence[Any], x: sympy.Symbol, y: sympy.Symbol) -> sympy.Expr | None:
    """φ(y) between the ends of the range, or None. Nothing here is trusted: the caller compares with the definition.

    From y = σ(0), where φ = −½ y², outward over the pieces and jumps; φ is continuous in between.
    """
    home = next(i for i, piece in enumerate(pieces) if piece.lo < 0 <= piece.hi)
    try:
        right = _sweep(pieces[home:], x, y, 1)
        left = _sweep(pieces[home::-1], x, y, -1)[::-1]
    except _FAILURES:
        return None
    closed = _joined([*left, *right], y) if left or right else -(pieces[home].expr ** 2) / 2
    return closed if len(str(closed)) <= _LONGEST else None


_Part = tuple[Any, Any, Any]  # from y, to y, φ there


def _sweep(pieces: Sequence[Any], x: sympy.Symbol, y: sympy.Symbol, side: int) -> list[_Part]:
    """The parts of φ from t = 0 to ∞ (side 1) or −∞ (side −1)."""
    import sympy

    parts: list[_Part] = []
    start = sympy.Integer(0)
    at = _value(pieces[0].expr, x, start, -1)
    phi = -at * at / 2
    for piece in pieces:
        near = _value(piece.expr, x, start, side if parts or start != 0 else -1)
        if _differ(near, at):  # σ jumps
            across = phi + start * (y - at) - (y**2 - at**2) / 2
            parts.append((at, near, across))
            at, phi = near, across.subs(y, near)
        end = piece.hi if side > 0 else piece.lo
        if x in piece.expr.free_symbols and end != start:
            F = _antiderivative(piece, x, y)
            F += phi - _value(F, y, at, side)
            far = _value(piece.expr, x, end, -side) if end.is_finite else side * sympy.oo
            parts.append((at, far, F))
            if end.is_finite:
                at, phi = far, _value(F, y, far, -side)
        start = end
    return [(min_, max_, part) if side > 0 else (max_, min_, part) for min_, max_, part in parts]


def _joined(parts: Sequence[_Part], y: sympy.Symbol) -> sympy.Expr:
    """One expression of neighbouring parts, with equal ones merged."""
    import sympy

    merged: list[tuple[Any, Any]] = []
    for _, end, part in parts:
        part = min(part, sympy.expand(part), key=lambda e: len(str(e)))
        if merged and sympy.expand(merged[-1][1] - part) == 0:
            merged.pop()
        merged.append((end, part))
    return sympy.Piecewise(*((part, y < end) for end, part in merged[:-1]), (merged[-1][1], True))


def _value(expr: sympy.Expr, symbol: sympy.Symbol, point: Any, side: int) -> sympy.Expr:
    """The value at a point, or the limit from the right (side 1) or from the left."""
    import sympy

    value = expr.subs(symbol, point)
    if not value.is_finite:
        value = formula._within_budget(lambda: sympy.limit(expr, symbol, point, "+" if side > 0 else "-"))
    if not value.is_finite:
        raise NotImplementedError("no finite value")
    return value


def _differ(a: Any, b: Any) -> bool:
    from .classify import intervals

    found = intervals.constant_sign(a - b)
    if found is None:
        raise NotImplementedError("too close to call")
    return found != 0


def _antiderivative(piece: Any, x: sympy.Symbol, y: sympy.Symbol) -> sympy.Expr:
    """∫ (σ⁻¹(y) − y) dy on a piece; or y t − ∫ σ − ½ y² at t = σ⁻¹(y), which is the same up to a constant."""
    import sympy

    inverse = _inverse(piece, x, y)
    middle = piece.expr.subs(x, _inside(piece)[1])

    def real(F: Any) -> Any:  # log(y − 1) for log(1 − y): off by a constant, which is fixed elsewhere
        return F.replace(sympy.log, lambda u: sympy.log(-u if u.subs(y, middle).is_negative else u))

    for candidate in (
        lambda: sum(map(lambda term: _integral(term, y), sympy.Add.make_args(inverse - y))),
        lambda: y * inverse - sympy.integrate(piece.expr, x).subs(x, inverse) - y**2 / 2,
    ):
        try:
            F = formula._within_budget(candidate, _EVENTS)
        except _FAILURES:
            continue
        if not F.has(sympy.Integral, x):
            return real(F)
    raise NotImplementedError("no antiderivative")


def _integral(term: Any, y: Any) -> Any:
    """∫ of one term of the inverse; c log(e^(ky) − 1), which SymPy lacks, is c (½ k y² + Li₂(e^(−ky)) / k)."""
    import sympy

    c, rest = term.as_independent(y, as_Add=False)
    k = sympy.Wild("k", exclude=[y])
    if isinstance(rest, sympy.log) and (found := rest.args[0].match(sympy.exp(k * y) - 1)):
        return c * (found[k] * y**2 / 2 + sympy.polylog(2, sympy.exp(-found[k] * y)) / found[k])
    return sympy.integrate(term, y)


def _inverse(piece: Any, x: sympy.Symbol, y: sympy.Symbol) -> sympy.Expr:
    """σ⁻¹(y) on a piece: outer functions undone one by one, what remains solved, the right branch picked by value."""
    import sympy

    undo = {sympy.tanh: sympy.atanh, sympy.sinh: sympy.asinh, sympy.atan: sympy.tan, sympy.erf: sympy.erfinv}
    undo |= {sympy.log: sympy.exp, sympy.exp: sympy.log}
    left, right = piece.expr, y
    while left != x:
        c, rest = left.as_independent(x, as_Add=left.is_Add)
        if (left.is_Add or left.is_Mul) and rest != left:
            left, right = rest, right - c if left.is_Add else right / c
        elif type(left) in undo:
            left, right = left.args[0], undo[type(left)](right)
        else:
            break
    w = sympy.Symbol("y", real=True)
    solutions = [x] if left == x else formula._within_budget(lambda: sympy.solve(left - w, x), _EVENTS)
    for solution in solutions:
        inverse = right if left == x else solution.subs(w, right)
        if all(_is_inverse(inverse.subs(y, piece.expr.subs(x, t)), t) for t in _inside(piece)):
            return inverse
    raise NotImplementedError("no inverse")


def _is_inverse(value: Any, t: Any) -> bool:
    return bool(abs(complex(value.evalf(25)) - float(t)) <= 1e-12 * (1 + abs(float(t))))


# ------------------------------------------------------------------------------------------------ the check


# the shipped activations, with their default parameters, as formulas
_NAMED = {
    "identity": "x",
    "relu": "relu(x)",
    "shifted_relu": "relu(x - 0.5)",
    "soft_threshold": "relu(x - 0.5) - relu(-x - 0.5)",
    "hard_threshold": "where(abs(x) < 0.5, 0, x)",
    "leaky_relu": "max(x, 0.01*x)",
    "hard_tanh": "min(max(x, -1), 1)",
    "tanh": "tanh(x)",
    "sigmoid": "sigmoid(x)",
    "softplus": "softplus(x)",
    "elu": "where(x < 0, exp(x) - 1, x)",
}


def check(
    text: str, parameters: Mapping[str, float | str] | None = None, examples: int = 1000, seed: int = 0
) -> dict[str, Any]:
    """What is known of the activation that ``text`` writes, with the keys that ``refimpl activation check`` prints.

    ``verdict`` is "guaranteed" (proved to be the prox of a convex function, and no rise found), "no violation found",
    "refuted" (σ decreases, or a rise was confirmed) or "invalid" (not finite or not real somewhere on ℝ).
    Raises :class:`refimpl.formula.FormulaError` for text that cannot be read.
    """
    from .classify import Verdict, classify_activation
    from .testing.search import Search
    from .testing.search_activation import FeedForwardRise, search_activation

    text = _NAMED.get(text, text)
    expr = formula.parse(text, "x", parameters)
    traits = classify_activation(expr, formula.partial_operations(text, "x", parameters))
    some, convex, recovered = traits.nondecreasing, traits.lipschitz, None
    if "refuted" not in (traits.finite.verdict, some.verdict):
        try:
            recovered = activation(expr, text, traits)
        except Decreasing as found:
            some = convex = Verdict("refuted", "50-digit arithmetic", str(found))
    search: Search[FeedForwardRise] = Search(0, None)
    if recovered is not None:
        given = f", {dict(parameters)!r}" if parameters else ""
        python = f"recover.activation(formula.parse({text!r}, 'x'{given}), {text!r}).activation"
        literal = (recovered.prox, recovered.penalty)
        search = search_activation(recovered.activation, examples, seed, literal, recovered.max_alpha, python)
    verdict = "no violation found"
    if traits.finite.verdict == "refuted":
        verdict = "invalid"
    elif some.verdict == "refuted" or search.counterexample is not None:
        verdict = "refuted"
    elif traits.finite.verdict == some.verdict == convex.verdict == "proved":
        verdict = "guaranteed"
    return {
        "expr": traits.expr,
        "derivative": traits.derivative,
        "finite": traits.finite.as_dict(),
        "prox_of_some_function": some.as_dict(),
        "prox_of_convex_function": convex.as_dict(),
        "penalty": {
            "formula": recovered.formula if recovered else None,
            "closed_form": bool(recovered and recovered.closed_form),
            "error": recovered.error if recovered else None,
            "domain": recovered.domain if recovered else None,
        },
        "descent": search.as_dict(),
        "verdict": verdict,
    }
