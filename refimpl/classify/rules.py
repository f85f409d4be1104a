"""Rules in the manner of disciplined convex programming: what the shape of a formula proves.

Each row of the table is a theorem: where the premises hold of the parts, the property holds of the whole. Nothing here
ever refutes. Properties are meant on [0, ∞) for the variable z and on ℝ for x, where the formula is defined;
``DEFINED`` says that it is. SSV is Schilling, Song and Vondraček, *Bernstein Functions*, 2nd edition 2012; BV is Boyd
and Vandenberghe, *Convex Optimization*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import sympy
from sympy import Abs, Max, Min, atan, cos, cosh, erf, exp, log, sin, sinh, tanh

from .. import formula
from . import intervals, show

DEFINED = "finite and real"
POS, NONNEG = "positive", "non-negative"
INC, DEC = "non-decreasing", "non-increasing"
CONCAVE, CONVEX = "concave", "convex"
CM = "completely monotone"  # (−1)^k f^(k) ≥ 0, finite at 0
BERNSTEIN = "Bernstein up to a constant"  # f' completely monotone on (0, ∞), f finite at 0
COMPLETE = "complete Bernstein"

KINKS = (Max, Min, Abs, sympy.Piecewise)
_S_SHAPED = (tanh, atan, erf)  # odd, increasing, and concave from 0 on
_MAX_QUESTIONS = 2000

Premises = list[tuple[str, Any]] | None  # (goal, part); None where the rule does not apply


@dataclass(frozen=True)
class Proof:
    claim: str
    rule: str
    premises: tuple[Proof, ...]

    def lines(self, indent: str = "") -> list[str]:
        return [f"{indent}{self.claim}: {self.rule}", *(x for p in self.premises for x in p.lines(indent + "  "))]

    def __str__(self) -> str:
        return "\n".join(self.lines())


class _Node:
    """An expression, taken apart for the rules."""

    def __init__(self, expr: Any, symbol: Any) -> None:
        self.expr, self.symbol = expr, symbol
        self.constant = symbol not in expr.free_symbols
        self.sign = intervals.constant_sign(expr) if self.constant else None
        self.terms = list(expr.args) if expr.is_Add else []
        self.factors = list(expr.args) if expr.is_Mul else []
        self.scale, self.scaled = expr.as_independent(symbol, as_Add=False) if expr.is_Mul else (sympy.Integer(1), expr)
        self.exponent, self.base, self.power = None, None, sympy.Integer(0)  # of exp(u) or a^u, and of u^p
        if isinstance(expr, exp):
            self.exponent = expr.exp
        elif expr.is_Pow and symbol not in expr.base.free_symbols and intervals.constant_sign(expr.base) == 1:
            self.exponent = expr.exp * log(expr.base)
        elif expr.is_Pow and expr.exp.is_Rational:
            self.base, self.power = expr.base, expr.exp
        self.integer = self.power.q == 1  # whether p is an integer
        self.even = self.base is not None and self.integer and self.power.p % 2 == 0
        self.argument: Any = expr.args[0] if len(expr.args) == 1 and expr.is_Function else None

    def part(self, expr: Any) -> _Node:
        return _Node(expr, self.symbol)

    def variable(self) -> Premises:
        return holds(self.expr == self.symbol)

    def each(self, parts: Any, *goals: str) -> Premises:
        """Every goal of every part, if there are parts."""
        return [(goal, part) for goal in goals for part in parts] or None

    def all_of(self, function: Any, goal: str) -> Premises:
        return self.each(self.expr.args if isinstance(self.expr, function) else (), goal)

    def inside(self, functions: Any, *goals: str, shift: int = 0) -> Premises:
        """Every goal of u + shift, if the expression is one of the functions of u."""
        return self.each([self.argument + shift], *goals) if isinstance(self.expr, functions) else None

    def under(self, condition: Any, *goals: str) -> Premises:
        """Every goal of u, if the expression is u^p and p meets the condition."""
        return self.each([self.base], *goals) if self.base is not None and condition else None

    def raised(self, goal: str) -> Premises:
        """The goal of u, if the expression is exp(u) or a^u."""
        return None if self.exponent is None else [(goal, self.exponent)]

    def times(self, positive: str, negative: str | None) -> Premises:
        """The goal of u, by the sign of the constant c, if the expression is c u."""
        sign = intervals.constant_sign(self.scale) if self.scale != 1 else None
        goal = {1: positive, -1: negative}.get(sign or 0)
        return None if goal is None else [(goal, self.scaled)]

    def start(self) -> int | None:
        """The sign of the value at 0."""
        return intervals.constant_sign(self.expr.subs(self.symbol, 0))

    def least(self) -> int | None:
        """The sign of the constant among the arguments of a Max."""
        return next((self.part(u).sign for u in self.expr.args if self.symbol not in u.free_symbols), None)

    def affine(self) -> bool:
        return bool(self.expr.is_polynomial(self.symbol)) and sympy.degree(self.expr, self.symbol) <= 1


def holds(condition: Any) -> Premises:
    return [] if condition else None


def _constant_and(n: _Node) -> Premises:
    constants = [u for u in n.terms if n.symbol not in u.free_symbols]
    if not constants or intervals.constant_sign(sympy.Add(*constants)) != 1:
        return None
    return [(NONNEG, u) for u in n.terms if u not in constants]


def _log_sum_exp(n: _Node) -> Premises:
    """log Σ c exp(u) with c > 0 and convex u: a positive constant is such a term with u = 0 (BV 3.1.5)."""
    premises = []
    for part in map(n.part, n.part(n.argument).terms if isinstance(n.expr, log) else ()):
        u = n.part(part.scaled).exponent
        if part.sign != 1 and (u is None or intervals.constant_sign(part.scale) != 1):
            return None
        premises += [] if part.sign == 1 else [(CONVEX, u)]
    return premises or None


def _logistic(inner: Any, n: _Node) -> Any:
    """u, if ``inner`` is 1 + exp(u)."""
    one, rest = inner.as_independent(n.symbol, as_Add=True) if inner is not None else (0, None)
    return rest.exp if one == 1 and isinstance(rest, exp) else None


def _sigmoid(n: _Node) -> Premises:
    """1 / (1 + exp(−u)) is increasing, and concave for u ≥ 0."""
    u = _logistic(n.base, n) if n.power == -1 else None
    return None if u is None else [(CONVEX, u), (NONNEG, -u)]


def _partial_fractions(goal: str) -> Callable[[_Node], Premises]:
    def premises(n: _Node) -> Premises:
        if n.constant or n.expr == n.symbol or not n.expr.is_rational_function(n.symbol):
            return None
        try:
            parts = formula._within_budget(lambda: sympy.apart(n.expr, n.symbol))
        except (NotImplementedError, sympy.PolynomialError):
            return None
        return [(goal, parts)] if parts.is_Add and parts != n.expr else None

    return premises


def _geometric_mean(n: _Node) -> Premises:
    """u^p v^q … with p + q + … ≤ 1: the rest of the weight is on the constant 1."""
    parts = [u.as_base_exp() for u in n.factors]
    fine = all(p.is_Rational and p > 0 for _, p in parts) and sum(p for _, p in parts) <= 1
    return n.each([u for u, _ in parts], COMPLETE) if fine else None


Rule = tuple[str, str, Callable[[_Node], Premises]]  # goal, name, premises


def _monotone(same: str, other: str) -> list[Rule]:
    """The rules of one direction, from those of the other."""
    return [
        (same, "a constant", lambda n: holds(n.constant)),
        (same, "a sum of such", lambda n: n.each(n.terms, same)),
        (same, "a constant times such or, if negative, the opposite", lambda n: n.times(same, other)),
        (same, "exp of such", lambda n: n.raised(same)),
        (same, "an increasing function of such", lambda n: n.inside((log, sinh, *_S_SHAPED), same)),
        (same, "an odd power of such", lambda n: n.under(n.power > 0 and n.integer and n.power.p % 2, same)),
        (same, "a positive power of such, non-negative", lambda n: n.under(n.power > 0, same, NONNEG)),
        (same, "a negative power of the opposite, positive", lambda n: n.under(n.power < 0, other, POS)),
        (same, "the larger of such", lambda n: n.all_of(Max, same)),
        (same, "the smaller of such", lambda n: n.all_of(Min, same)),
        (same, "a product of such, non-negative", lambda n: n.each(n.factors, same, NONNEG)),
        (same, "cosh of such, non-negative", lambda n: n.inside(cosh, same, NONNEG)),
    ]


# For z and for x.
_ANYWHERE: list[Rule] = [
    # Where a formula is defined.
    (DEFINED, "a constant", lambda n: holds(n.sign is not None)),
    (DEFINED, "the variable", lambda n: n.variable()),
    (DEFINED, "a sum", lambda n: n.each(n.terms, DEFINED)),
    (DEFINED, "a product", lambda n: n.each(n.factors, DEFINED)),
    (DEFINED, "exp", lambda n: n.raised(DEFINED)),
    (DEFINED, "defined everywhere", lambda n: n.inside((*_S_SHAPED, sin, cos, sinh, cosh, Abs), DEFINED)),
    (DEFINED, "the larger of such", lambda n: n.all_of(Max, DEFINED)),
    (DEFINED, "the smaller of such", lambda n: n.all_of(Min, DEFINED)),
    (DEFINED, "log of a positive number", lambda n: n.inside(log, POS, DEFINED)),
    (DEFINED, "a power with a positive integer exponent", lambda n: n.under(n.integer and n.power > 0, DEFINED)),
    (DEFINED, "a root of a non-negative number", lambda n: n.under(n.power > 0, NONNEG, DEFINED)),
    (DEFINED, "a negative power of a positive number", lambda n: n.under(n.power < 0, POS, DEFINED)),
    # Signs.
    (POS, "a positive constant", lambda n: holds(n.sign == 1)),
    (POS, "a positive constant and non-negative terms", _constant_and),
    (POS, "a sum of such", lambda n: n.each(n.terms, POS)),
    (POS, "a product of such", lambda n: n.each(n.factors, POS)),
    (POS, "exp is positive", lambda n: holds(n.exponent is not None)),
    (POS, "cosh is positive", lambda n: holds(isinstance(n.expr, cosh))),
    (POS, "a power of such", lambda n: n.under(True, POS)),
    (POS, "log of more than 1", lambda n: n.inside(log, POS, shift=-1)),
    (POS, "the smaller of such", lambda n: n.all_of(Min, POS)),
    (NONNEG, "a non-negative constant", lambda n: holds(n.sign in (0, 1))),
    (NONNEG, "positive", lambda n: [(POS, n.expr)]),
    (NONNEG, "a sum of such", lambda n: n.each(n.terms, NONNEG)),
    (NONNEG, "a product of such", lambda n: n.each(n.factors, NONNEG)),
    (NONNEG, "an even power", lambda n: holds(n.even)),
    (NONNEG, "a root", lambda n: holds(n.base is not None and not n.integer)),
    (NONNEG, "an odd power of such", lambda n: n.under(True, NONNEG)),
    (NONNEG, "an absolute value", lambda n: holds(isinstance(n.expr, Abs))),
    (NONNEG, "log of at least 1", lambda n: n.inside(log, NONNEG, shift=-1)),
    (NONNEG, "an odd increasing function of such", lambda n: n.inside((sinh, *_S_SHAPED), NONNEG)),
    (NONNEG, "at least a non-negative constant", lambda n: holds(isinstance(n.expr, Max) and n.least() in (0, 1))),
    (NONNEG, "the larger of such", lambda n: n.all_of(Max, NONNEG)),
    (NONNEG, "the smaller of such", lambda n: n.all_of(Min, NONNEG)),
    # Monotone.
    (INC, "the variable", lambda n: n.variable()),
    *_monotone(INC, DEC),
    *_monotone(DEC, INC),
    # Concave and convex (BV 3.2).
    (CONCAVE, "affine", lambda n: holds(n.affine())),
    (CONCAVE, "a sum of such", lambda n: n.each(n.terms, CONCAVE)),
    (CONCAVE, "a constant times such or, if negative, a convex", lambda n: n.times(CONCAVE, CONVEX)),
    (CONCAVE, "the smaller of such", lambda n: n.all_of(Min, CONCAVE)),
    (CONCAVE, "log, concave and increasing, of such", lambda n: n.inside(log, CONCAVE)),
    (CONCAVE, "a root, concave and increasing, of such", lambda n: n.under(0 < n.power < 1, CONCAVE, NONNEG)),
    (CONCAVE, "concave and increasing from 0 on, of such", lambda n: n.inside(_S_SHAPED, CONCAVE, NONNEG)),
    (CONCAVE, "the sigmoid, concave and increasing from 0 on, of such", _sigmoid),
    (CONVEX, "affine", lambda n: holds(n.affine())),
    (CONVEX, "a sum of such", lambda n: n.each(n.terms, CONVEX)),
    (CONVEX, "a constant times such or, if negative, a concave", lambda n: n.times(CONVEX, CONCAVE)),
    (CONVEX, "the larger of such", lambda n: n.all_of(Max, CONVEX)),
    (CONVEX, "convex, of affine", lambda n: holds(isinstance(n.expr, Abs | cosh) and n.part(n.argument).affine())),
    (CONVEX, "an even power of affine", lambda n: holds(n.even and n.power > 0 and n.part(n.base).affine())),
    (CONVEX, "exp, convex and increasing, of such", lambda n: n.raised(CONVEX)),
    (CONVEX, "log of a sum of exponentials of such", _log_sum_exp),
    (CONVEX, "a power, convex and increasing, of such", lambda n: n.under(n.power > 1, CONVEX, NONNEG)),
    (CONVEX, "a negative power, convex and decreasing, of a concave", lambda n: n.under(n.power < 0, CONCAVE, POS)),
]

# For z ≥ 0 only.
_HALF_LINE: list[Rule] = [
    (POS, "non-decreasing, and positive at 0", lambda n: [(INC, n.expr)] if n.start() == 1 else None),
    (NONNEG, "the variable", lambda n: n.variable()),
    (NONNEG, "non-decreasing, and not negative at 0", lambda n: [(INC, n.expr)] if n.start() in (0, 1) else None),
    (INC, "its derivative is completely monotone", lambda n: [(BERNSTEIN, n.expr)]),
    (DEC, "completely monotone", lambda n: [(CM, n.expr)]),
    (CONCAVE, "its derivative is completely monotone", lambda n: [(BERNSTEIN, n.expr)]),
    (CONVEX, "completely monotone", lambda n: [(CM, n.expr)]),
    # Completely monotone: a convex cone, closed under products (SSV Corollary 1.6); of a Bernstein function it is
    # completely monotone (SSV Theorem 3.7). What is Bernstein up to a constant and non-negative is Bernstein.
    (CM, "a non-negative constant", lambda n: holds(n.sign in (0, 1))),
    (CM, "a sum of such", lambda n: n.each(n.terms, CM)),
    (CM, "a product of such", lambda n: n.each(n.factors, CM)),
    (CM, "exp(−s) of a Bernstein s", lambda n: n.each([-n.exponent], BERNSTEIN) if n.exponent is not None else None),
    (CM, "a negative power of a positive Bernstein function", lambda n: n.under(n.power < 0, BERNSTEIN, POS)),
    (CM, "an integer power of such", lambda n: n.under(n.integer and n.power > 0, CM)),
    (CM, "partial fractions", _partial_fractions(CM)),
    # Bernstein: a convex cone, closed under composition (SSV Corollary 3.8); constants are free here.
    (BERNSTEIN, "a constant", lambda n: holds(n.constant)),
    (BERNSTEIN, "the variable", lambda n: n.variable()),
    (BERNSTEIN, "a sum of such", lambda n: n.each(n.terms, BERNSTEIN)),
    (BERNSTEIN, "a constant times such or, if negative, a completely monotone", lambda n: n.times(BERNSTEIN, CM)),
    (BERNSTEIN, "log(c + s) of a Bernstein s, c > 0", lambda n: n.inside(log, BERNSTEIN, POS)),
    (BERNSTEIN, "a root, Bernstein, of such, non-negative", lambda n: n.under(0 < n.power < 1, BERNSTEIN, NONNEG)),
    (BERNSTEIN, "partial fractions", _partial_fractions(BERNSTEIN)),
    (BERNSTEIN, "complete Bernstein", lambda n: [(COMPLETE, n.expr)] if n.factors else None),
    # Complete Bernstein (SSV chapters 6 and 7): a convex cone, closed under composition and geometric means, and with f
    # it contains z / f(z) (SSV Proposition 7.1).
    (COMPLETE, "a non-negative constant", lambda n: holds(n.sign in (0, 1))),
    (COMPLETE, "the variable", lambda n: n.variable()),
    (COMPLETE, "a sum of such", lambda n: n.each(n.terms, COMPLETE)),
    (COMPLETE, "a positive constant times such", lambda n: n.times(COMPLETE, None)),
    (COMPLETE, "log(1 + such)", lambda n: n.inside(log, COMPLETE, shift=-1)),
    (COMPLETE, "a root of such", lambda n: n.under(0 < n.power < 1, COMPLETE)),
    (COMPLETE, "a weighted geometric mean of such", _geometric_mean),
    (COMPLETE, "z over such", lambda n: [(COMPLETE, n.symbol / n.expr)] if n.symbol in n.factors else None),
]


def _by_goal(rules: Iterable[Rule]) -> dict[str, list[Rule]]:
    table: dict[str, list[Rule]] = {}
    for rule in rules:
        table.setdefault(rule[0], []).append(rule)
    return table


class Prover:
    """Searches the table backwards from the goal, each question once."""

    def __init__(self, symbol: sympy.Symbol) -> None:
        self.symbol = symbol
        self.rules = _by_goal([*_ANYWHERE, *_HALF_LINE] if symbol.is_nonnegative else _ANYWHERE)
        self.known: dict[tuple[str, Any], Proof | None] = {}
        self.nodes: dict[Any, _Node] = {}

    def node(self, expr: Any) -> _Node:
        if expr not in self.nodes:
            self.nodes[expr] = _Node(expr, self.symbol)
        return self.nodes[expr]

    def prove(self, goal: str, expr: sympy.Expr) -> Proof | None:
        question = (goal, expr)
        if question in self.known or len(self.known) > _MAX_QUESTIONS:
            return self.known.get(question)
        self.known[question] = None  # while it is open, it proves nothing
        for _, name, premises in self.rules.get(goal, ()):
            proofs = self._all(premises(self.node(expr)))
            if proofs is not None:
                self.known[question] = Proof(f"{show.formula(expr)} is {goal}", name, proofs)
                break
        return self.known[question]

    def _all(self, premises: Premises) -> tuple[Proof, ...] | None:
        proofs = []
        for goal, part in premises or ():
            proof = self.prove(goal, part)
            if proof is None:
                return None
            proofs.append(proof)
        return None if premises is None else tuple(proofs)

    def bernstein(self, expr: sympy.Expr) -> Proof | None:
        """As :meth:`prove`, and by way of the derivative."""
        if (proof := self.prove(BERNSTEIN, expr)) or expr.has(*KINKS):
            return proof
        try:
            slope = formula._within_budget(lambda: sympy.factor(sympy.together(expr.diff(self.symbol))))
        except (NotImplementedError, sympy.PolynomialError):
            return None
        if proof := self.prove(CM, slope):
            return Proof(f"{show.formula(expr)} is {BERNSTEIN}", "its derivative is completely monotone", (proof,))
        return None

    def slope_bound(self, expr: sympy.Expr) -> tuple[sympy.Expr, Proof] | None:
        """A Lipschitz constant."""
        n, steep = self.node(expr), sympy.Integer(1)
        parts = [n.argument]
        if n.constant or expr == self.symbol:
            name, parts, steep = "a constant" if n.constant else "the variable", [], sympy.Integer(not n.constant)
        elif n.terms:
            name, parts = "a sum: the bounds add up", n.terms
        elif n.scale != 1:
            name, parts, steep = "a constant times a function", [n.scaled], abs(n.scale)
        elif isinstance(expr, Max | Min):
            name, parts = "one of these functions everywhere: the largest bound", list(expr.args)
        elif isinstance(expr, tanh | atan | sin | cos | Abs):
            name = f"{type(expr).__name__.lower()} has slopes up to 1"
        elif isinstance(expr, erf):
            name, steep = "erf has slopes up to 2/√π", 2 / sympy.sqrt(sympy.pi)
        elif isinstance(expr, log) and (u := _logistic(n.argument, n)) is not None:
            name, parts = "softplus has slopes up to 1", [u]
        elif n.power == -1 and (u := _logistic(n.base, n)) is not None:
            name, parts, steep = "the sigmoid has slopes up to 1/4", [u], sympy.Rational(1, 4)
        else:
            return None
        found = [self.slope_bound(part) for part in parts]
        if None in found:
            return None
        bounds, proofs = [f[0] for f in found if f], tuple(f[1] for f in found if f)
        total = steep * (sympy.Add if n.terms else sympy.Max)(*bounds) if bounds else steep
        return total, Proof(f"{show.formula(expr)} has slopes up to {show.formula(total)} in size", name, proofs)
