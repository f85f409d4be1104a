"""Formulas as updates: proved, refuted at a rational point, or neither; and text that is no formula."""

import json
import re
import time

import numpy as np
import pytest
import sympy

from refimpl import formula
from refimpl.formula import FormulaError
from refimpl.testing import NonConformance, check_gradient_field, gradient_formula
from refimpl.testing.gradient_formula import _is_zero, _sign, examine_formulas

GAUSS = "exp(-(y1 - y2)**2/2)"
PROVED = {  # formulas, verdict, metric
    "constant": (["1", "2"], "euclidean", [1, 1]),
    "one component": (["y1**3 - sin(y1)"], "euclidean", [1]),
    "linear": (["y1 + 2*y2", "2*y1 + 3*y2"], "euclidean", [1, 1]),
    "linear, a metric": (["y1 + 2*y2", "8*y1 + 3*y2"], "diagonal", [4, 1]),
    "three, a metric": (["y2*y3", "2*y1*y3", "3*y1*y2"], "diagonal", [3, 1.5, 1]),
    "two groups": (["2*y2", "y1", "y4", "5*y3"], "diagonal", [1, 2, 5, 1]),
    "an irrational metric": (["sqrt(2)*y2", "y1"], "diagonal", [1, 2**0.5]),
    "sine": (["sin(y1*y2)*y2", "3*sin(y1*y2)*y1"], "diagonal", [3, 1]),
    "softmax_β of two tokens": (
        [f"(y1 + {GAUSS}*y2)/(1 + {GAUSS})", f"(y2 + {GAUSS}*y1)/(1 + {GAUSS})"],
        "euclidean",
        [1, 1],
    ),
    "log Σ exp": (["exp(y1)/(exp(y1) + exp(y2))", "exp(y2)/(exp(y1) + exp(y2))"], "euclidean", [1, 1]),
    "tied ReLU": (["y1 - relu(y1 + 2*y2)", "y2 - 2*relu(y1 + 2*y2)"], "euclidean", [1, 1]),
    "on a half-space": (["log(y1 + y2) + y2", "log(y1 + y2) + y1"], "euclidean", [1, 1]),
    "on both sides of a line": (["-y2/y1**2", "1/y1"], "euclidean", [1, 1]),
    "on both sides of a point": (["log(y1**2)"], "euclidean", [1]),
    "in the quadrants": (["1/(y1*y2)*y2", "1/(y1*y2)*y1"], "euclidean", [1, 1]),
    "between parallel lines": (["1/sin(y1)", "y2"], "euclidean", [1, 1]),
}
SIDES = {
    "on a half-space": "y1 + y2 = 0",
    "on both sides of a line": "y1 = 0",
    "on both sides of a point": "y1 = 0",
    "in the quadrants": "y1 = 0 and y2 = 0",
    "between parallel lines": "sin(y1) = 0",
}


@pytest.mark.parametrize("name", PROVED)
def test_decided(name):
    texts, verdict, metric = PROVED[name]
    report = check_gradient_field(texts)
    assert report.verdict == verdict
    assert "is proved" in report.diagnosis
    assert (f"on each side of {SIDES[name]} (" if name in SIDES else "is proved (") in report.diagnosis
    np.testing.assert_allclose(report.metric, metric, rtol=1e-15)
    assert (report.route, report.error, report.in_metric) == ("symbolic", 0, 0)
    assert (report.asymmetry == 0) == (verdict == "euclidean")


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["-y2", "y1"], "∂T1/∂y2 = -1 and ∂T2/∂y1 = 1 at y = (4/7, 6/7) have opposite signs"),
        (["y1 + y2", "y2"], "∂T1/∂y2 = 1 and ∂T2/∂y1 = 0 at y = (4/7, 6/7): one is 0 and the other is not"),
        (["y2*exp(y3)", "y1", "y3"], "one is 0 and the other is not"),
        (["y2 + 2*y3", "y1 + y3", "y1 + y2"], "do not fit ∂T2/∂y3 = 1 and ∂T3/∂y2 = 1"),
        (["relu(y1 + 2*y2)", "relu(2*y1 + y2)"], "one is 0 and the other is not"),
        (["where(y1 > 0, 1, 0)", "y1"], "one is 0 and the other is not"),
        (["y1*y2**2", "y1**2*y2 + y1/1000000000000"], "do not fit"),
    ],
)
def test_refuted_at_a_point(texts, says):
    with pytest.raises(NonConformance, match=re.escape(says)) as caught:
        check_gradient_field(texts)
    report = caught.value.report
    assert report.verdict in ("none", "constant")
    assert report.metric is None or report.verdict == "constant"
    # the point and the asymmetry there, formed anew
    field = formula.parse_field(texts)
    point = dict(zip(field.symbols, map(sympy.Rational, map(str, report.where)), strict=True))
    J = np.array([[float(entry.subs(point)) for entry in row] for row in field.jacobian])
    expected = np.linalg.norm(J - J.T) / 2 / np.linalg.norm(J - np.eye(len(J)))
    assert report.asymmetry == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["-y2/(y1**2 + y2**2)", "y1/(y1**2 + y2**2)"], "1/(y1**2 + y2**2) may leave holes"),
        (["-y2/(2*y1**2 + 2*y2**2)", "y1/(2*y1**2 + 2*y2**2)"], "may leave holes"),
        (["-y2/sqrt(9*y1**2 + 9*y2**2)**2", "y1/sqrt(9*y1**2 + 9*y2**2)**2"], "may leave holes"),
        (["y1*log(2*y1**2 + 2*y2**2)", "y2*log(2*y1**2 + 2*y2**2)"], "may leave holes"),
        (["where(y1 > 0, y1, 0)", "y2"], "where(...) may jump"),
        (["sqrt(-1 - y1**2)"], "the formulas have no value at any point tried"),
    ],
)
def test_undecided(texts, says):
    report = examine_formulas(texts)
    assert report.verdict == "undecided"
    assert says in report.diagnosis


def test_the_field_around_a_hole_turns():
    """J is symmetric wherever it exists, and the way around the hole takes 2π: that is why it is not proved."""
    t = np.linspace(0, 2 * np.pi, 1001)[:-1]
    x, y = np.cos(t), np.sin(t)
    work = (-y * -np.sin(t) + x * np.cos(t)).mean() * 2 * np.pi
    assert work == pytest.approx(2 * np.pi)
    assert examine_formulas(["-y2/(y1**2 + y2**2)", "y1/(y1**2 + y2**2)"]).asymmetry < 1e-15
    # the same far from the hole, where a denominator without zeros keeps it: it does turn
    assert examine_formulas(["-y2/(1 + y1**2 + y2**2)", "y1/(1 + y1**2 + y2**2)"]).verdict == "none"


def test_points_are_not_at_kinks():
    """Heaviside(0) = ½ is the slope of neither side: a field that is symmetric must not be refuted there."""
    for seed in range(20):
        report = examine_formulas(["max(y1, y2)", "relu(y2 - y1)"], seed)
        assert report.verdict == "none"
        assert all(y1 != y2 for y1, y2 in report.points)
        assert examine_formulas(["relu(y1 - y2)", "-relu(y1 - y2)"], seed).verdict == "euclidean"


def test_three_tokens_of_one_feature_have_no_metric_at_all():
    texts = [
        f"({' + '.join(f'exp(-(y{i} - y{j})**2/2)*y{j}' for j in (1, 2, 3))}) / "
        f"({' + '.join(f'exp(-(y{i} - y{j})**2/2)' for j in (1, 2, 3))})"
        for i in (1, 2, 3)
    ]
    report = examine_formulas(texts)
    assert report.verdict == "none"
    assert "nor in any other constant metric: the points ask for different ones" in report.diagnosis


y = sympy.Symbol("y1", real=True)


@pytest.mark.parametrize(
    ("number", "sign"),
    [
        (sympy.Rational(-1, 3), -1),
        (sympy.Integer(0), 0),
        (sympy.exp(2) - sympy.exp(1) ** 2, 0),
        (sympy.sqrt(2) - sympy.Rational(1414213562373095048, 10**18), 1),
        (sympy.sin(1) ** 2 + sympy.cos(1) ** 2 - 1, 0),
        (sympy.I, None),
        (sympy.zoo, None),
        (sympy.nan, None),
        (y, None),
    ],
)
def test_exact_signs(number, sign):
    assert _sign(number) == sign


def test_zero_is_proved_or_not_said():
    assert _is_zero((y + 1) ** 2 - y**2 - 2 * y - 1)
    assert not _is_zero(y - sympy.Rational(1, 10**30))


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ([], "formulas: expected 1 to 12 components, got 0"),
        (["1"] * 13, "formulas: expected 1 to 12 components, got 13"),
        (["y1", "y3"], "component 2: column 1: unknown name 'y3'"),
        (["z", "y1"], "component 1: column 1: unknown name 'z'"),
        (["y1 +"], "component 1: column 5: expected a number, y1, a function or '(', found the end"),
        (["y1", ""], "component 2: column 1: the formula is empty; expected an expression in y1, y2"),
        (["__import__('os').system('touch broken')"], "component 1: column 1: unknown name '__import__'"),
        (["y1.__class__"], "component 1: column 3"),
        (["lambda: 1"], "component 1: column 1: unknown name 'lambda'"),
        (["9**9**9"], "component 1: column 1"),
        (["1/0"], "component 1: column 1"),
        (["(" * 50 + "y1" + ")" * 50], "component 1: column 14: nested too deeply"),
        (["y1+" * 400 + "y1"], "component 1: formula: expected at most 1000 characters"),
    ],
)
def test_text_that_is_no_field(refused, tmp_path, monkeypatch, texts, says):
    monkeypatch.chdir(tmp_path)
    with refused(FormulaError, re.escape(says)):
        check_gradient_field(texts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("texts", [[1, 2], ["y1", None]])
def test_components_are_texts(refused, texts):
    with refused(TypeError, "formulas: expected texts, got "):
        check_gradient_field(texts)


def test_symbols_are_real_and_bounded(refused):
    assert formula.symbol("y12").is_real
    assert formula.symbol("y12").is_nonnegative is None
    with refused(ValueError, "variable: expected one of 'z', 'x', got 'y13'"):
        formula.symbol("y13")


def test_what_sympy_cannot_decide_takes_no_longer_for_it():
    texts = [
        "tanh(sin(y1*y2)*exp(cos(y1 + y2)))**7/(1 + exp(sin(y1)*y2))",
        "erf(atan(y1*y2) + sigmoid(y2*softplus(y1)))**5",
    ]
    begun = time.process_time()
    assert examine_formulas(texts).verdict == "none"
    assert time.process_time() - begun < 60


@pytest.mark.parametrize(
    ("texts", "verdict"),
    [
        (["exp(exp(y2**4))", "exp(exp(y1**4))"], "none"),
        (["exp(300*y1**2*y2)*y2", "exp(200*y1*y2)"], "none"),
        (["exp(300*y2)", "exp(200*y1)"], "none"),
        (["1e200*y2", "1e-200*y1"], "diagonal"),
        (["where(y1 > 0, y2, 0)", "0*y1"], "none"),  # J = 0 at some points
    ],
)
def test_numbers_beyond_the_floats(texts, verdict):
    report = examine_formulas(texts)
    assert report.verdict == verdict
    assert not np.isnan(report.asymmetry)
    json.dumps(report.as_dict(), allow_nan=False)


def test_a_number_that_is_too_long_to_write():
    """∂T1/∂y2 is e^e^e^(3 + y1²) at every point, of more than 10⁸ digits: there is no asymmetry in floats."""
    report = examine_formulas(["exp(exp(exp(3 + y1**2)))*y2", "y1"])
    assert (report.verdict, report.asymmetry, report.where) == ("none", None, None)
    assert "∂T1/∂y2 = a number beyond the floats" in report.diagnosis


def test_what_is_proved_is_not_computed_first(monkeypatch):
    """That two values are equal SymPy sees in the formula, and not in the digits of their difference."""
    answers, right = [], gradient_formula._answer
    monkeypatch.setattr(gradient_formula, "_answer", lambda question: answers.append(right(question)) or answers[-1])
    q = "(1 + exp(y1) + exp(y2) + exp(y3))"
    texts = [f"exp(y{a})/{q}*(1 + log({q})**2/sqrt({q})) + sigmoid(y{a})" for a in (1, 2, 3)]
    assert examine_formulas(texts).verdict == "euclidean"
    assert answers
    assert None not in answers


def test_small_differences_are_seen_where_nothing_is_proved():
    """e^30 + e^-30 and e^30 agree to 1e-26 of themselves: the digits of the difference tell them apart."""
    report = examine_formulas(["(exp(30) + exp(-30))*y2", "exp(30)*y1"])
    assert report.verdict == "diagonal"


def test_a_jump_is_said_to_leave_two_sides():
    report = examine_formulas(["0*y1", "atan(1/y1) + atan(y1)"])
    assert report.verdict == "euclidean"
    assert "on each side of y1 = 0" in report.diagnosis
