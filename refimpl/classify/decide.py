"""The decision procedures: each property by rules, by exact signs, by intervals, and refuted at a point."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import sympy

from .. import formula
from . import intervals, pieces, rules, show, signs

RULES, SIGNS, POINT = "rules", "signs (SymPy)", f"{intervals.DIGITS}-digit arithmetic"
_FAR = Fraction(10**6)
_ENORMOUS = 10**300


@dataclass(frozen=True)
class Verdict:
    """``verdict`` is "proved", "refuted" or "unknown"; ``method`` is how it was found, in one line.

    witness : for a refutation, the points and the values there.
    proof : for a proof by rules, its tree, one step a line.
    """

    verdict: str
    method: str
    witness: str | None = None
    proof: str | None = None

    def as_dict(self) -> dict[str, str | None]:
        return {"verdict": self.verdict, "method": self.method, "witness": self.witness}


def proved(method: str, proof: rules.Proof | None = None) -> Verdict:
    return Verdict("proved", method, proof=None if proof is None else str(proof))


def refuted(witness: str, method: str = POINT) -> Verdict:
    return Verdict("refuted", method, witness)


class Function:
    """A formula with what the procedures share: its smooth pieces, its values at sample points, its proofs by rules."""

    def __init__(self, expr: sympy.Expr, variable: str) -> None:
        self.expr, self.symbol = expr, formula.symbol(variable)
        self.letter = {"z": "ρ", "x": "σ"}[variable]
        self.prover = rules.Prover(self.symbol)
        self.pieces: list[pieces.Piece] | None = None
        self.near: tuple[Fraction, ...] = ()  # where unnamed breakpoints are
        try:
            self.pieces = pieces.split(expr, self.symbol)
        except pieces.Unresolved as error:
            self.near = error.near
        except (NotImplementedError, intervals.Undefined):
            pass
        self.breaks = [p.lo for p in (self.pieces or [])[1:]]

    # --- sample points -----------------------------------------------------------------------------------------------

    def points(self) -> list[Fraction]:
        """Those with few digits first."""
        half = [Fraction(n) for n in (0, 1, 2, 3, 4, 5, 6, 8, 10, 20, 50, 100)]
        half += [Fraction(n, d) for n, d in ((1, 2), (3, 2), (5, 2), (1, 4), (3, 4), (1, 10), (1, 5), (1, 100))]
        for b in (*self.near, *map(_rounded, self.breaks)):
            half += [b + Fraction(s, 10**e) for e in (0, 1, 2, 6, 12, 18) for s in (0, 1, -1)]
            half += [b + Fraction(s, 2) for s in (1, -1)]
        half += [Fraction(m) / 4 for m in range(1, 40)]
        half += [Fraction(m) * Fraction(10) ** e for e in range(-8, 9) for m in (1, 2, 3, 5, 7)]
        half += [Fraction(10) ** e for e in (-12, 10, 12, 15, 20)]
        both = half if self.symbol.is_nonnegative else [s * x for x in half for s in (1, -1)]
        return list(dict.fromkeys(x for x in both if x >= 0 or not self.symbol.is_nonnegative))

    @functools.cached_property
    def samples(self) -> dict[Fraction, intervals.Jet | str]:
        """The value and two derivatives at each point, or why there are none."""
        return {x: self.jet(x, 2) for x in self.points()}

    def jet(self, x: Fraction, order: int) -> intervals.Jet | str:
        with intervals.precision(intervals.DIGITS):
            try:
                return intervals.jet(self.expr, self.symbol, intervals.number(x), order)
            except intervals.Undefined as why:
                return str(why)
            except NotImplementedError:
                return [intervals.ALL] * (order + 1)

    def known(self) -> Iterator[tuple[Fraction, intervals.Jet]]:
        return ((x, j) for x, j in self.samples.items() if not isinstance(j, str))

    def at(self, x: Fraction) -> str:
        return f"at {self.symbol} = {show.point(x)}"

    # --- proofs over the pieces --------------------------------------------------------------------------------------

    def nonnegative(self, h: sympy.Expr, k: int) -> tuple[str | None, str, Fraction | None]:
        """Whether h⁽ᵏ⁾ ≥ 0 inside each smooth piece: (method or None, what was reached, suspect point)."""
        try:
            parts = list(_halves(pieces.split(h, self.symbol), self.symbol, k))
        except (pieces.Unresolved, NotImplementedError, intervals.Undefined):
            if k > 1:
                return None, "no exact breakpoints", None
            start = pieces.Piece(h, sympy.Integer(0) if self.symbol.is_nonnegative else -sympy.oo, sympy.oo)
            parts = list(_halves([start], self.symbol, k))
        methods = []
        for side, part, lo, hi in parts:
            if not pieces.has_kinks(part):
                holds, suspect = signs.nonnegative(part.diff(self.symbol, k), self.symbol, lo, hi)
                if suspect is not None:
                    return None, "", side * suspect
                if holds:
                    methods.append(SIGNS)
                    continue
            try:
                reached, suspect = intervals.prove(part, self.symbol, k, 1, lo, hi)
            except NotImplementedError:
                return None, "no enclosure", None
            if suspect is not None:
                return None, "", side * suspect
            if reached != hi:
                if len(parts) > 1:
                    return None, "intervals: does not settle it", None
                up_to = _FAR if reached >= _FAR else reached
                return None, f"intervals: holds on [0, {show.point(Fraction(round(up_to, 3)))}]" if up_to else "", None
            methods.append(_range(lo, hi, side))
        distinct = list(dict.fromkeys(methods))
        return " and ".join(distinct[:3]) + (f", {len(self.breaks) + 1} pieces" if self.breaks else ""), "", None

    def junctions(self) -> Iterator[tuple[sympy.Expr, sympy.Expr | None, sympy.Expr, sympy.Expr]]:
        """(b, piece on the left, value at b, piece on the right) for each breakpoint and for the start of a penalty."""
        assert self.pieces is not None
        if self.pieces[0].lo.is_finite and pieces.has_kinks(self.expr):
            zero = self.pieces[0].lo
            yield zero, None, pieces.value_at(self.expr, self.symbol, zero), self.pieces[0].expr
        for left, right in itertools.pairwise(self.pieces):
            yield right.lo, left.expr, pieces.value_at(self.expr, self.symbol, right.lo), right.expr

    def _signs_at_junctions(self, differences: Callable[..., list[sympy.Expr]]) -> set[int | None]:
        if self.pieces is None:
            # only Max, Min and Abs, which are continuous; Piecewise may jump
            return {None} if self.expr.has(sympy.Piecewise) else {0}
        try:
            return {intervals.constant_sign(d) for j in self.junctions() for d in differences(*j)}
        except (NotImplementedError, pieces.Unresolved):
            return {None}

    def never_jumps_down(self) -> bool:
        def rises(b: Any, left: Any, value: Any, right: Any) -> list[sympy.Expr]:
            ends = [right.subs(self.symbol, b) - value]
            return ends if left is None else [*ends, value - left.subs(self.symbol, b)]

        return self._signs_at_junctions(rises) <= {0, 1}

    def continuous(self) -> bool:
        def jumps(b: Any, left: Any, value: Any, right: Any) -> list[sympy.Expr]:
            return [side.subs(self.symbol, b) - value for side in (left, right) if side is not None]

        return self._signs_at_junctions(jumps) <= {0}

    def kinks_point_up(self) -> bool:
        def bends(b: Any, left: Any, value: Any, right: Any) -> list[sympy.Expr]:
            return [] if left is None else [(left - right).diff(self.symbol).subs(self.symbol, b)]

        return self.pieces is not None and self._signs_at_junctions(bends) <= {0, 1}


def _range(lo: Fraction, hi: Any, side: int) -> str:
    near, far = show.point(side * lo), "∞" if hi == sympy.oo else show.point(side * hi)
    if side == 1:
        return f"intervals on [{near}, {far}" + (")" if hi == sympy.oo else "]")
    return "intervals on " + ("(−" if hi == sympy.oo else "[") + f"{far}, {near}]"


def _rounded(b: sympy.Expr) -> Fraction:
    return intervals.fraction(b) if b.is_Rational else round(pieces.bounds(b)[0], 8)


def _halves(parts: Iterable[pieces.Piece], x: sympy.Symbol, k: int) -> Iterator[tuple[int, sympy.Expr, Fraction, Any]]:
    """Each piece as (side, h, lo, hi) on 0 ≤ lo < hi; on the left h(−x), signed for its k-th derivative."""
    for p in parts:
        if p.hi == sympy.oo or intervals.constant_sign(p.hi) == 1:
            right = p.lo if p.lo.is_finite and intervals.constant_sign(p.lo) == 1 else sympy.Integer(0)
            yield 1, p.expr, *pieces.outer(right, p.hi)
        if p.lo == -sympy.oo or intervals.constant_sign(p.lo) == -1:
            left = -p.hi if p.hi.is_finite and intervals.constant_sign(p.hi) == -1 else sympy.Integer(0)
            yield -1, (-1) ** k * p.expr.subs(x, -x), *pieces.outer(left, -p.lo)


# --- finite and real -------------------------------------------------------------------------------------------------


def defined(f: Function) -> Verdict:
    """Whether the formula, as written, is a real number at every point."""
    if proof := f.prover.prove(rules.DEFINED, f.expr):
        return proved(RULES, proof)
    for x, found in f.samples.items():
        if isinstance(found, str):
            return refuted(f"{f.letter} is undefined {f.at(x)}: {found}")
    if f.pieces is None:
        return Verdict("unknown", "no exact breakpoints")
    methods = set()
    try:
        for p in f.pieces:
            for side, part, lo, hi in _halves([p], f.symbol, 0):
                for guard, name in _guards(part):
                    method, witness = _guard_holds(f, guard, name, lo, hi, side)
                    if witness:
                        return refuted(witness)
                    if not method:
                        return Verdict("unknown", f"{name} {show.formula(guard)} is not known")
                    methods.add(method)
        with intervals.precision(intervals.DIGITS):
            for junction in f.junctions():
                intervals.number(junction[2])
    except (NotImplementedError, intervals.Undefined, pieces.Unresolved):
        return Verdict("unknown", "a breakpoint is not settled")
    return proved(" and ".join(sorted(methods or {RULES})) + (f", {len(f.pieces)} pieces" if f.breaks else ""))


def _guards(expr: sympy.Expr) -> Iterator[tuple[sympy.Expr, str]]:
    """What must be positive, or nowhere zero, for an expression to be a real number."""
    for node in sympy.preorder_traversal(expr):
        if isinstance(node, sympy.log):
            yield node.args[0], "log of"
        elif node.is_Pow and not isinstance(node, sympy.exp):
            integer = bool(node.exp.is_Integer)
            if node.exp.is_Rational and node.exp > 0 and not integer:
                yield node.base, "root of"
            elif not integer:
                yield node.base, "power of"
            elif integer and node.exp < 0:
                yield node.base, "division by"


def _guard_holds(
    f: Function, guard: sympy.Expr, name: str, lo: Fraction, hi: Any, side: int
) -> tuple[str | None, str | None]:
    """(method, None) where the guard holds on [lo, hi]; (None, witness) where it fails."""
    if not guard.free_symbols:
        return (RULES if intervals.constant_sign(guard) in ((1, -1) if name == "division by" else (1,)) else None), None
    if f.prover.prove(rules.POS, guard) or (name == "root of" and f.prover.prove(rules.NONNEG, guard)):
        return RULES, None
    for sign in (1, -1) if name == "division by" else (1,):
        try:
            reached, _ = intervals.prove(sign * guard - sympy.Rational(1, 10**9), f.symbol, 0, 1, lo, hi, 100)
        except NotImplementedError:
            return None, None
        if reached == hi:
            return _range(lo, hi, side), None
    try:
        cells = signs.chart(guard, f.symbol, lo, hi)
    except signs.Unsupported:
        return None, None
    ends = [
        intervals.constant_sign(guard.subs(f.symbol, sympy.Rational(*e.as_integer_ratio())))
        for e in (lo, hi)
        if e != sympy.oo
    ]
    strict = len(cells) == 1 and all(ends) and (cells[0][2] == 1 or (name == "division by" and cells[0][2] == -1))
    if strict or (name == "root of" and all(s >= 0 for _, _, s in cells)):
        return SIGNS, None
    for left, right in itertools.pairwise(cells):
        if left[2] != right[2] and lo < left[1] and (hi == sympy.oo or right[0] < hi):
            near = sorted((side * left[1], side * right[0]))
            place = f"= {show.point(near[0])}" if near[0] == near[1] else f"near {float(near[0]):.12g}"
            return (
                None,
                f"{f.letter} is undefined at {f.symbol} {place}: {name} {show.formula(guard)}, which changes sign",
            )
    return None, None


def slope_at_zero(f: Function) -> tuple[float | None, str | None]:
    """(ρ'(0+), None), or (None, why it is not finite), or (None, None) where that is not known."""
    try:
        first = f.pieces[0].expr if f.pieces else pieces.after(f.expr, f.symbol, sympy.Integer(0))
    except pieces.Unresolved:
        return None, None
    starts = not isinstance(f.samples[Fraction(0)], str)
    slope = first.diff(f.symbol)
    with intervals.precision(intervals.DIGITS):
        for form in (slope, sympy.together(slope)) if starts else ():
            try:
                value = intervals.jet(form, f.symbol, intervals.number(0), 0)[0]
            except (intervals.Undefined, NotImplementedError):
                continue
            if (finite := _finite(value))[0] is not None:
                return finite
    try:
        limit = formula._within_budget(lambda: sympy.limit(slope, f.symbol, 0, "+"))
    except (NotImplementedError, ValueError, TypeError, AttributeError, RecursionError):
        limit = None
    grows = []
    for e in (20, 40, 80, 160):
        near = f.jet(Fraction(1, 10**e), 1)
        if isinstance(near, str):
            return None, None
        grows.append(near[1])
    sign = 1 if grows[-1].a > 0 else -1
    if limit == sign * sympy.oo and all((sign * (b - a)).a > 1 for a, b in itertools.pairwise(grows)):
        return None, f"{f.letter}' → {'∞' if sign > 0 else '−∞'} as {f.symbol} → 0: infinite slope at {f.symbol} = 0"
    return None, None


def _finite(value: Any) -> tuple[float | None, None]:
    return (float(value.mid.a), None) if (value.b - value.a).b < 1e-9 * (1 + abs(value).b) else (None, None)


# --- non-decreasing, concave, Lipschitz ------------------------------------------------------------------------------


def _runs(f: Function) -> Iterator[list[tuple[Fraction, intervals.Jet]]]:
    """The samples from left to right: first those with few digits, at last all."""
    ordered = sorted(f.known(), key=lambda sample: sample[0])
    for denominator, size in ((1, 10), (2, 10), (10, 100)):
        yield [(x, j) for x, j in ordered if x.denominator <= denominator and abs(x) <= size]
    yield ordered


def _neighbours(f: Function) -> Iterator[Any]:
    return (
        pair
        for run in _runs(f)
        for pair in sorted(itertools.pairwise(run), key=lambda ends: max(abs(ends[0][0]), abs(ends[1][0])))
    )


def _decreasing_pair(f: Function) -> str | None:
    """Two sample points at which the function falls; those next to each other suffice."""
    for (a, u), (b, v) in _neighbours(f):
        if v[0].b < u[0].a:
            digits = next((d for d in (4, 8, 16, 32) if show.value(u[0], d) != show.value(v[0], d)), 50)
            return (
                f"{f.letter}({show.point(a)}) = {show.value(u[0], digits)} > "
                f"{f.letter}({show.point(b)}) = {show.value(v[0], digits)}"
            )
    return None


def _wrong_sign(f: Function, k: int, want: int, name: str, among: Iterable[Fraction] = ()) -> str | None:
    order = [(x, j) for x in among if not isinstance(j := f.jet(x, k), str)] or f.known()
    for x, j in order:
        if (want * j[k]).b < 0 and abs(j[k]).b < _ENORMOUS:
            return f"{name} = {show.value(j[k] * (2 if k == 2 else 1))} {f.at(x)}"
    return None


def nondecreasing(f: Function) -> Verdict:
    if proof := f.prover.prove(rules.INC, f.expr):
        return proved(RULES, proof)
    slope = _wrong_sign(f, 1, 1, f"{f.letter}'")
    pair = _decreasing_pair(f)
    if witness := (slope or pair) if f.symbol.is_nonnegative else (pair or slope):
        return refuted(witness)
    method, reached, suspect = f.nonnegative(f.expr, 1)
    if suspect is not None and (witness := _wrong_sign(f, 1, 1, f"{f.letter}'", [suspect])):
        return refuted(witness)
    return proved(method) if method and f.never_jumps_down() else Verdict("unknown", reached or "no method settles it")


def concave(f: Function) -> Verdict:
    if proof := f.prover.prove(rules.CONCAVE, f.expr):
        return proved(RULES, proof)
    if witness := _wrong_sign(f, 2, -1, f"{f.letter}''") or _broken_chord(f):
        return refuted(witness)
    method, reached, suspect = f.nonnegative(-f.expr, 2)
    if suspect is not None and (witness := _wrong_sign(f, 2, -1, f"{f.letter}''", [suspect])):
        return refuted(witness)
    if method and f.continuous() and f.kinks_point_up():
        return proved(method)
    return Verdict("unknown", reached or "no method settles it")


def _broken_chord(f: Function) -> str | None:
    """Three sample points of which the middle one lies below the chord."""
    for run in _runs(f):
        for (a, (u, *_)), (b, (v, *_)), (c, (w, *_)) in zip(run, run[1:], run[2:], strict=False):
            with intervals.precision(intervals.DIGITS):
                chord = (intervals.number(c - b) * u + intervals.number(b - a) * w) / intervals.number(c - a)
            if v.b < chord.a:
                digits = next((d for d in (4, 8, 16, 32) if show.value(v, d) != show.value(chord, d)), 50)
                return (
                    f"{f.letter}({show.point(b)}) = {show.value(v, digits)} lies below {show.value(chord, digits)}, "
                    f"on the chord from {f.symbol} = {show.point(a)} to {show.point(c)}"
                )
    return None


def lipschitz(f: Function, rising: Verdict) -> Verdict:
    """0 ≤ σ' ≤ 1, given the verdict on 0 ≤ σ'."""
    if rising.verdict == "refuted":
        return rising
    for x, j in f.known():
        if (j[1] - 1).a > 0:
            return refuted(f"{f.letter}' = {show.value(j[1])} {f.at(x)}")
    for (a, u), (b, v) in _neighbours(f):
        with intervals.precision(intervals.DIGITS):
            steep = abs(v[0] - u[0]) > intervals.number(b - a)
        if steep:
            return refuted(
                f"{f.letter}({show.point(b)}) − {f.letter}({show.point(a)}) = {show.value(v[0] - u[0])} "
                f"> {show.point(b - a)}"
            )
    if rising.verdict != "proved":
        return Verdict("unknown", rising.method)
    found = f.prover.slope_bound(f.expr)
    if found and intervals.constant_sign(1 - found[0]) in (0, 1):
        return proved(RULES, found[1])
    method, reached, suspect = f.nonnegative(f.symbol - f.expr, 1)
    if suspect is not None and not isinstance(at := f.jet(suspect, 1), str) and (at[1] - 1).a > 0:
        return refuted(f"{f.letter}' = {show.value(at[1])} {f.at(suspect)}")
    return proved(method) if method and f.continuous() else Verdict("unknown", reached or "no method settles it")


# --- Bernstein -------------------------------------------------------------------------------------------------------


def bernstein(f: Function) -> Verdict:
    """Whether ρ' is completely monotone on (0, ∞)."""
    if proof := f.prover.bernstein(f.expr):
        return proved(RULES, proof)
    if witness := _not_smooth(f) or _wrong_order(f) or _wrong_difference(f):
        return refuted(witness)
    if f.pieces is not None and len(f.pieces) == 1 and _laplace(f.pieces[0].expr.diff(f.symbol), f.symbol):
        return proved(f"{SIGNS} of the inverse Laplace transform of ρ' (Bernstein–Widder)")
    return Verdict("unknown", "no wrong sign found up to order 40")


def _not_smooth(f: Function) -> str | None:
    """A breakpoint at which the pieces that meet differ in some derivative; a Bernstein function is analytic."""
    for left, right in itertools.pairwise(f.pieces or []):
        b = right.lo
        with intervals.precision(intervals.DIGITS):
            try:
                here = intervals.number(b)
                jets = [intervals.jet(p.expr, f.symbol, here, 8) for p in (left, right)]
            except (NotImplementedError, intervals.Undefined):
                continue
        for k, (u, v) in enumerate(zip(*jets, strict=True)):
            if (u - v).a > 0 or (u - v).b < 0:
                scale = int(sympy.factorial(k))
                name = f.letter + ("'" * k if k < 4 else f"^({k})")
                place = show.point(pieces.bounds(b)[0]) if b.is_Rational else show.formula(b)
                jump = f"{name} jumps from {show.value(u * scale)} to {show.value(v * scale)}"
                return f"not smooth: {jump} at {f.symbol} = {place}"
    return None


def _wrong_order(f: Function) -> str | None:
    for order, points in ((15, ("1", "2", "1/2", "4", "1/4", "10", "1/10", "100")), (41, ("1", "3", "1/5"))):
        best: tuple[int, str] | None = None
        for x in map(Fraction, points):
            j = f.jet(x, order)
            for k, c in enumerate([] if isinstance(j, str) else j[1:]):
                if ((-1) ** k * c).b < 0 and abs(c).b < _ENORMOUS and (best is None or k < best[0]):
                    sign = show.value((-1) ** k * c * int(sympy.factorial(k + 1)))
                    best = k, f"(−1)^k ρ^(k+1) = {sign} < 0 for k = {k} {f.at(x)}"
        if best:
            return best[1]
    return None


def _wrong_difference(f: Function) -> str | None:
    """A negative third difference near a kink; those of a Bernstein function are not (its third derivative is not)."""
    for near, step, back in itertools.product(f.near, (Fraction(1, 2), Fraction(1, 10), Fraction(1, 100)), range(1, 3)):
        start = round(near, 2) - back * step
        found = [f.jet(start + k * step, 0) for k in range(4)] if start > 0 else []
        values = [j[0] for j in found if not isinstance(j, str)]
        if len(values) == 4 and (difference := values[3] - 3 * values[2] + 3 * values[1] - values[0]).b < 0:
            size = show.value(difference)
            return (
                f"the third difference of ρ, from z = {show.point(start)} in steps of {show.point(step)}, is {size} < 0"
            )
    return None


def _laplace(slope: sympy.Expr, z: sympy.Symbol) -> bool:
    """Whether a rational function is the Laplace transform of a non-negative function, plus a non-negative constant."""
    if not slope.is_rational_function(z):
        return False
    t = sympy.Dummy("t", positive=True)
    density = sympy.Integer(0)
    for term in sympy.Add.make_args(sympy.apart(slope, z)):
        c, rest = term.as_independent(z, as_Add=False)
        base, power = (1 / rest).as_base_exp() if rest != 1 else (sympy.Integer(1), sympy.Integer(0))
        if rest == 1:
            if intervals.constant_sign(c) == -1:
                return False
            continue
        if not (base.is_polynomial(z) and sympy.degree(base, z) == 1 and power.is_Integer and power > 0):
            return False
        a, b = base.coeff(z, 1), base.coeff(z, 0)
        density += c / a**power * t ** (power - 1) / sympy.factorial(power - 1) * sympy.exp(-b / a * t)
    return signs.nonnegative(density, t, 0, sympy.oo)[0]
