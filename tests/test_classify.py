"""The classifier attacked: no verdict on a random formula may contradict what 50 digits say of it."""

import dataclasses
import itertools
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from refimpl import formula
from refimpl.classify import (
    ActivationTraits,
    PenaltyTraits,
    Verdict,
    classify_activation,
    classify_penalty,
    intervals,
    pieces,
    rules,
    signs,
)

Z, X = formula.symbol("z"), formula.symbol("x")
SLACK = mpmath.mpf(10) ** -35

CONSTANTS = st.sampled_from(["1", "2", "3", "1/2", "0.1", "0.3", "7/4", "1e-3", "pi"])
SEVERAL = {"min", "max", "where"}  # of several arguments


def formulas(variable: str) -> st.SearchStrategy[str]:
    def grow(u: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.one_of(
            st.builds("({} + {})".format, u, u),
            st.builds("({} - {})".format, u, u),
            st.builds("{} * {}".format, CONSTANTS, u),
            st.builds("({} * {})".format, u, u),
            st.builds("({} / {})".format, u, u),
            st.builds("({})**{}".format, u, st.sampled_from(["2", "0.5", "-1", "-2", "(1/3)", "3", "-0.5"])),
            st.builds("{}({})".format, st.sampled_from([f for f in formula._FUNCTIONS if f not in SEVERAL]), u),
            st.builds("-exp(-({}))".format, u),
            st.builds("log(1 + {})".format, u),
            st.builds("{}({}, {})".format, st.sampled_from(["min", "max"]), u, u),
            st.builds("where({} {} {}, {}, {})".format, u, st.sampled_from(["<", "<=", ">"]), CONSTANTS, u, u),
        )

    return st.recursive(st.sampled_from([variable, variable, variable]) | CONSTANTS, grow, max_leaves=6)


def evaluator(expr: sympy.Expr, symbol: sympy.Symbol) -> Callable[[Any], Any]:
    """The value, or None where it is not a finite real number."""
    function = formula.scalar(expr, symbol, "mpmath")

    def call(x: Any) -> Any:
        with mpmath.workdps(50):
            try:
                value = +function(x)
            except (ArithmeticError, ValueError, TypeError):
                return None
            return value if isinstance(value, mpmath.mpf) and mpmath.isfinite(value) else None

    return call


def points(symbol: sympy.Symbol) -> list[Any]:
    half = [mpmath.mpf(k) / 8 for k in range(49)] + [mpmath.mpf(10) ** -e for e in (3, 6, 9)]
    return sorted(half if symbol.is_nonnegative else {s * x for x in half for s in (1, -1)})


@mpmath.workdps(50)
def contradiction(expr: sympy.Expr, symbol: sympy.Symbol, traits: PenaltyTraits | ActivationTraits) -> str | None:
    """Why a verdict is wrong, by values of the function alone."""
    f = evaluator(expr, symbol)
    values = [(x, f(x)) for x in points(symbol)]
    if traits.finite.verdict == "proved" and None in [v for _, v in values]:
        return "said finite"
    known = [(x, v) for x, v in values if v is not None]
    if traits.nondecreasing.verdict == "proved":
        for (a, u), (b, v) in itertools.pairwise(known):
            if v < u - SLACK * (1 + abs(u) + abs(v)):
                return f"said non-decreasing, falls from {a} to {b}"
    if isinstance(traits, ActivationTraits) and traits.lipschitz.verdict == "proved":
        for (a, u), (b, v) in itertools.pairwise(known):
            if abs(v - u) > (b - a) + SLACK * (1 + abs(u) + abs(v)):
                return f"said 1-Lipschitz, too steep from {a} to {b}"
    if isinstance(traits, PenaltyTraits):
        if traits.concave.verdict == "proved":
            for (a, u), (b, v), (c, w) in zip(known, known[1:], known[2:], strict=False):
                if v < ((c - b) * u + (b - a) * w) / (c - a) - SLACK * (1 + abs(u) + abs(v) + abs(w)):
                    return f"said concave, below its chord at {b}"
        if traits.bernstein.verdict == "proved":
            if not traits.nondecreasing.verdict == traits.concave.verdict == "proved":
                return "said Bernstein, not non-decreasing and concave"
            for step in (mpmath.mpf(1) / 8, mpmath.mpf(1)):  # the differences of a Bernstein function alternate
                row = [v for v in (f(k * step) for k in range(20)) if v is not None]
                size = 1 + max(map(abs, row))
                for n in range(1, len(row)):
                    row = [a - b for a, b in itertools.pairwise(row)]
                    if max(row) > SLACK * size * 2**n:
                        return f"said Bernstein, a difference of order {n} has the wrong sign"
    return wrong_witness(expr, symbol, f, traits)


def number(text: str) -> Any:
    with mpmath.workdps(60):
        return mpmath.mpf(Fraction(text).numerator) / Fraction(text).denominator


def wrong_witness(expr: sympy.Expr, symbol: sympy.Symbol, f: Callable[[Any], Any], traits: Any) -> str | None:
    """Evaluate the points that a refutation names again."""
    for name in ("nondecreasing", "concave", "lipschitz"):
        witness = getattr(getattr(traits, name, None), "witness", None) or ""
        if match := re.match(r"[ρσ]\((\S+)\) = \S+ > [ρσ]\((\S+)\) = ", witness):
            a, b = number(match[1]), number(match[2])
            if not (a < b and f(a) > f(b)):
                return witness
        if (match := re.match(r"[ρσ]('+) = (\S+) at [zx] = (\S+)$", witness)) and number(match[3]):
            x, order = number(match[3]), len(match[1])
            with mpmath.workdps(120):
                g, h = formula.scalar(expr, symbol, "mpmath"), mpmath.mpf(10) ** -30 * x
                slope = (g(x + h) - g(x - h)) / (2 * h) if order == 1 else (g(x + h) - 2 * g(x) + g(x - h)) / h**2
                if abs(slope - mpmath.mpf(match[2])) > abs(slope) / 100:
                    return witness
        if match := re.match(r"ρ\((\S+)\) = \S+ lies below \S+, on the chord from z = (\S+) to (\S+)$", witness):
            b, a, c = map(number, match.groups())
            if not (a < b < c and f(b) < ((c - b) * f(a) + (b - a) * f(c)) / (c - a)):
                return witness
    return None


def parsed(text: str, variable: str) -> sympy.Expr | None:
    try:
        return formula.parse(text, variable)
    except formula.FormulaError:
        return None


@settings(max_examples=80, deadline=None)
@given(formulas("z"))
def test_no_verdict_on_a_random_penalty_is_wrong(text: str) -> None:
    if (expr := parsed(text, "z")) is not None:
        assert contradiction(expr, Z, classify_penalty(expr)) is None


@settings(max_examples=60, deadline=None)
@given(formulas("x"))
def test_no_verdict_on_a_random_activation_is_wrong(text: str) -> None:
    if (expr := parsed(text, "x")) is not None:
        assert contradiction(expr, X, classify_activation(expr)) is None


@pytest.mark.parametrize(
    ("text", "lie"),
    [
        ("where(z < 1, z, z - 5)", {"nondecreasing": Verdict("proved", "a lie")}),
        ("max(z, 2*z - 1)", {"concave": Verdict("proved", "a lie")}),
        ("tanh(z)", {"bernstein": Verdict("proved", "a lie")}),
        ("1 / (z - 3)", {"finite": Verdict("proved", "a lie")}),
        ("z", {"nondecreasing": Verdict("refuted", "a lie", "ρ(1) = 1 > ρ(2) = 0")}),
        ("z", {"nondecreasing": Verdict("refuted", "a lie", "ρ' = -1 at z = 2")}),
        ("z**2", {"concave": Verdict("refuted", "a lie", "ρ'' = 3 at z = 2")}),
        ("z", {"concave": Verdict("refuted", "a lie", "ρ(1) = 1 lies below 2, on the chord from z = 0 to 2")}),
    ],
)
def test_the_attack_notices_a_lie(text: str, lie: dict[str, Verdict]) -> None:
    expr = formula.parse(text)
    traits = classify_penalty(expr)
    assert contradiction(expr, Z, traits) is None
    assert contradiction(expr, Z, dataclasses.replace(traits, **lie)) is not None


# --- rules ----------------------------------------------------------------------------------------------------------


def test_a_proof_by_rules_is_a_tree() -> None:
    proof = classify_penalty(formula.parse("1 - exp(-sqrt(1 + z))")).bernstein.proof
    assert proof is not None
    lines = proof.splitlines()
    assert lines[0].startswith("1 - exp(-sqrt(z + 1)) is Bernstein up to a constant: a sum of such")
    assert "        z + 1 is Bernstein up to a constant: a sum of such" in lines
    assert all(line.count(" is ") >= 1 for line in lines)


@pytest.mark.parametrize("text", ["exp(exp(-z))", "exp(-z)/(1 + z)**2", "1/log(2 + z)", "(1 + exp(-2*z))**3"])
def test_rules_prove_completely_monotone(text: str) -> None:
    assert rules.Prover(Z).prove(rules.CM, formula.parse(text)) is not None


@pytest.mark.parametrize("goal", [rules.CM, rules.BERNSTEIN, rules.COMPLETE])
def test_rules_of_the_half_line_prove_nothing_on_the_line(goal: str) -> None:
    assert rules.Prover(X).prove(goal, formula.parse("exp(-x)", "x")) is None


def test_every_method_decides_something() -> None:
    methods = {
        "rules": "log(z + 2)",
        "signs (SymPy)": "2*log(1 + z) - log(2 + z)",
        "intervals on [0, ∞)": "z + sin(z)/2",
        "50-digit arithmetic": "1 - cos(z)",
    }
    for method, text in methods.items():
        assert classify_penalty(formula.parse(text)).nondecreasing.method == method


def test_a_range_short_of_infinity_is_no_proof() -> None:
    verdict = classify_penalty(formula.parse("z + exp(-z)*sin(3*z)/4 - sin(z)*z/10**9")).nondecreasing
    assert verdict.verdict != "proved"


def test_as_dict() -> None:
    assert Verdict("proved", "rules", proof="…").as_dict() == {"verdict": "proved", "method": "rules", "witness": None}


# --- intervals ------------------------------------------------------------------------------------------------------

SMOOTH = re.split(
    " ",
    "exp(-z) log(1+z) sqrt(1+z) z/(1+z) tanh(z) atan(z) erf(z) sin(z)*cos(2*z) sinh(z)/cosh(z) (1+z)**0.3 2**(-z) "
    "log(1+log(1+z)) z**3-z exp(-z**2)*erf(z/2) sigmoid(z) atan(z-1)*tanh(1-z) (z-1)**4/(1+z**2) (1+z)**z",
)


@pytest.mark.parametrize("text", SMOOTH)
def test_jets_are_taylor_coefficients(text: str) -> None:
    expr = formula.parse(text)
    with mpmath.workdps(60):
        expected = mpmath.taylor(formula.scalar(expr, Z, "mpmath"), mpmath.mpf(5) / 2, 6)
    with intervals.precision(50):
        found = intervals.jet(expr, Z, intervals.number(Fraction(5, 2)), 6)
    with mpmath.workdps(50):
        for enclosure, value in zip(found, expected, strict=True):
            for end in map(mpmath.mpf, enclosure._mpi_):
                assert abs(end - value) < mpmath.mpf(10) ** -20 * (1 + abs(value))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(SMOOTH), st.fractions(0, 5, max_denominator=50), st.fractions(0, 3), st.fractions(0, 1))
def test_the_jet_of_an_interval_holds_those_of_its_points(
    text: str, lo: Fraction, width: Fraction, at: Fraction
) -> None:
    expr = formula.parse(text)
    with intervals.precision(15):
        wide = intervals.jet(expr, Z, intervals.hull(lo, lo + width), 3)
    with intervals.precision(40):
        for inside, outside in zip(intervals.jet(expr, Z, intervals.number(lo + at * width), 3), wide, strict=True):
            assert outside.a <= inside.b
            assert inside.a <= outside.b


@pytest.mark.parametrize("text", ["sqrt(z)", "cos(sqrt(z))", "sqrt(z)*tanh(sqrt(z))", "where(z <= 0, z, 2*z)"])
def test_no_derivative_where_there_is_none(text: str) -> None:
    found = intervals.jet(formula.parse(text), Z, intervals.number(0), 1)
    assert found[1].a == -mpmath.inf
    assert found[1].b == mpmath.inf


def test_an_interval_proof_needs_no_luck_at_infinity() -> None:
    reached, _ = intervals.prove(formula.parse("log(1 + log(1 + z))"), Z, 1, 1, 0, sympy.oo)
    assert reached == sympy.oo
    reached, suspect = intervals.prove(formula.parse("z - z**2/10**6"), Z, 1, 1, 0, sympy.oo)
    assert reached < 500001
    assert suspect is None or suspect > 500000


# --- exact signs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "zeros"),
    [
        ("z**3 - z", [1]),
        ("(z - 1)**2 * (z - 3)", [1, 3]),
        ("exp(-z) - 1/2", [0.6931471805599453]),
        ("z*exp(-z) - 1/10", [0.11183255915896297, 3.577152063957297]),
        ("log(1 + z)/(1 + z) - 1/3", [0.8571535, 3.5364004]),
        ("sqrt(1 + z) + sqrt(2 + z) - z", [5.1563252]),
        ("tanh(z) - z/2", [1.9150080481545]),
        ("pi*exp(-z) - sqrt(2)*exp(-2*z) - 1", [0.95437449]),
        ("log(1 + z)**2 - log(2 + z)", [2.3674603]),
        ("exp(-z**2) - (1 + z)**0.3/2", [0.72743144]),
        ("1 + z + exp(-3*z)", []),
    ],
)
def test_a_chart_has_the_zeros_and_the_signs(text: str, zeros: list[float]) -> None:
    expr = formula.parse(text)
    cells = signs.chart(expr, Z, 0, sympy.oo)
    assert [float(cell[1]) for cell in cells[:-1]] == pytest.approx(zeros, rel=1e-4)
    f = evaluator(expr, Z)
    for lo, hi, sign in cells:
        for k in range(1, 12):
            x = lo + k if hi == sympy.oo else lo + (hi - lo) * k / 12
            assert mpmath.sign(f(mpmath.mpf(x.numerator) / x.denominator)) == sign


@settings(max_examples=100, deadline=None)
@given(st.fractions(0, 100), st.fractions(Fraction(1, 10**6), 100))
def test_the_simplest_fraction_lies_between(lo: Fraction, width: Fraction) -> None:
    found = signs.simplest(lo, lo + width)
    assert lo < found < lo + width
    assert found.denominator <= 1 + 2 / width


# --- pieces ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "breaks"),
    [
        ("min(z, 1)", ["1"]),
        ("abs(z**2 - 2)", ["sqrt(2)"]),
        ("min(log(1 + z), 1)", ["-1 + E"]),
        ("max(min(z, 2), z - 1)", ["2", "3"]),
        ("where(z < 1, z*(z + 1), z**2 + z)", []),
        ("where(where(z < 5, 2, z) > 6, z, 1)", ["5", "6"]),
    ],
)
def test_breakpoints_are_exact(text: str, breaks: list[str]) -> None:
    found = pieces.split(formula.parse(text), Z)
    assert {str(p.lo) for p in found[1:]} <= set(breaks)
    f = evaluator(formula.parse(text), Z)
    for p in found:
        x = pieces.between(p.lo, p.hi)
        with mpmath.workdps(50):
            assert abs(evaluator(p.expr, Z)(mpmath.mpf(x.p) / x.q) - f(mpmath.mpf(x.p) / x.q)) < 1e-40


def test_a_breakpoint_without_a_name_is_unresolved() -> None:
    with pytest.raises(pieces.Unresolved) as caught:
        pieces.split(formula.parse("min(z, 3*exp(-z))"), Z)
    assert caught.value.near == (pytest.approx(1.0499, abs=1e-3),)
