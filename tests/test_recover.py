"""Penalties recovered from formulas of activations: the blueprint's table as known answers, and planted faults."""

import contextlib
import io
import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import sympy

from refimpl import FeedForwardEnergy, classify, formula, recover
from refimpl.activation import ACTIVATIONS, Activation, leaky_relu
from refimpl.claims.feedforward import require_prox
from refimpl.classify import Verdict
from refimpl.testing import check_activation
from refimpl.testing.search_activation import search_activation

V = np.concatenate([np.linspace(-6, 6, 49), [1e-9, -1e-9, 0.3, -17.3, 20.0, 40.0, -40.0]])

# formula, the named activation, φ recovered − φ named: the recovered one has φ(σ(0)) = −½ σ(0)²
TABLE = [
    ("x", "identity", 0),
    ("relu(x)", "relu", 0),
    ("max(x, 0)", "relu", 0),
    ("max(x - 0.5, 0)", "shifted_relu", 0),
    ("max(x - 0.5, 0) - max(-x - 0.5, 0)", "soft_threshold", 0),
    ("max(x, 0.01 * x)", "leaky_relu", 0),
    ("min(max(x, -1), 1)", "hard_tanh", 0),
    ("tanh(x)", "tanh", 0),
    ("sigmoid(x)", "sigmoid", math.log(2)),
    ("softplus(x)", "softplus", -(math.pi**2) / 12),
    ("where(x < 0, exp(x) - 1, x)", "elu", 0),
]
OTHERS = [  # formula, φ inside its domain, its domain, whether it is convex
    ("max(x, 2 * x)", lambda y: -(np.maximum(y, 0) ** 2) / 4, "(-oo, oo)", False),
    ("where(abs(x) < 1, 0, x)", lambda y: np.where(abs(y) < 1, abs(y) - y * y / 2, 0.5), "(-oo, oo)", False),
    ("where(x < 0, -1, 1)", lambda y: -y * y / 2, "[-1, 1]", False),
    ("x / (1 + abs(x))", lambda y: -abs(y) - np.log(1 - abs(y)) - y * y / 2, "(-1, 1)", True),
    ("atan(x)", lambda y: -np.log(np.cos(y)) - y * y / 2, "(-1.57079632679, 1.57079632679)", True),
    ("x / sqrt(1 + x^2)", lambda y: 1 - np.sqrt(1 - y * y) - y * y / 2, "[-1, 1]", True),
    ("min(max(x/6 + 1/2, 0), 1)", lambda y: 5 * y * y / 2 - 3 * y + 3 / 4, "[0, 1]", True),
    (
        "where(x < 0, -log(1 - x), log(1 + x))",
        lambda y: np.exp(abs(y)) - 1 - abs(y) - y * y / 2,
        "(-oo, oo)",
        True,
    ),
    ("sinh(x)", lambda y: y * np.arcsinh(y) - np.sqrt(1 + y * y) + 1 - y * y / 2, "(-oo, oo)", False),
    ("exp(x)", lambda y: y * np.log(y) - y + 1 - y * y / 2, "[0, oo)", False),
    ("0 * x + 3", lambda y: -4.5 + 0 * y, "[3, 3]", True),
]
NUMERICAL = ["x + tanh(x)", "x^3", "exp(-exp(-x))", "x/2 + 0.4*sin(x)"]
OF_NOTHING = {
    "GELU": "x * (1 + erf(x / sqrt(2))) / 2",
    "SiLU": "x * sigmoid(x)",
    "mish": "x * tanh(softplus(x))",
    "sin": "sin(x)",
    "abs": "abs(x)",
}


def made(text):
    return recover.activation(formula.parse(text, "x"), text)


def size(text, t, y):
    return 1 + np.abs(t * y) + y * y


def sigma(text, t):
    return formula.vectorised(formula.parse(text, "x"), formula.symbol("x"))(t)


@pytest.mark.parametrize(("text", "name", "constant"), TABLE)
def test_blueprint_table(text, name, constant):
    found, known = made(text), ACTIVATIONS[name]
    assert found.closed_form
    assert found.activation.convex
    assert found.max_alpha == math.inf
    assert found.error < 1e-12
    y = known.prox(V, 1.0)
    np.testing.assert_allclose(found.activation.prox(V, 1.0), y, rtol=1e-15, atol=1e-16)
    off = np.abs(found.activation.penalty(y) - known.penalty(y) - constant)
    assert (off <= (found.error + 1e-15) * size(text, V, y)).all()
    np.testing.assert_array_equal(np.isinf(found.activation.penalty(V)), np.isinf(known.penalty(V)))
    for alpha in (0.05, 0.3, 1.7, 8.0):
        expected = known.prox(V, alpha)
        np.testing.assert_allclose(found.activation.prox(V, alpha), expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(("text", "phi", "domain", "convex"), OTHERS, ids=[row[0] for row in OTHERS])
def test_other_known_penalties(text, phi, domain, convex):
    found = made(text)
    assert found.closed_form
    assert found.domain == domain
    assert found.activation.convex == convex
    y = sigma(text, V[np.abs(V) < 7])
    np.testing.assert_allclose(found.activation.penalty(y), phi(y), rtol=1e-12, atol=2e-13)


def test_no_penalty_between_two_values_is_larger_than_needed():
    """Across the jumps of the hard threshold φ is |y| − ½ y², the minimax concave penalty; its prox is a firm one."""
    firm = made("where(abs(x) < 1, 0, x)").activation
    y = np.linspace(-1, 1, 21)
    np.testing.assert_allclose(firm.penalty(y), np.abs(y) - y * y / 2, atol=1e-15)
    alpha = 0.4
    expected = np.sign(V) * np.clip((np.abs(V) - alpha) / (1 - alpha), 0, np.maximum(np.abs(V), 1))
    expected = np.where(np.abs(V) >= 1, V, expected)
    np.testing.assert_allclose(firm.prox(V, alpha), expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("text", [*(row[0] for row in OTHERS), *NUMERICAL])
def test_prox_against_its_definition(text):
    found = made(text)
    for alpha in (0.125, 0.9, 1 - 1e-12, 1.0, 2.5):
        if alpha <= found.max_alpha:
            v = V[np.abs(V) < 7]
            require_prox(found.activation, found.activation.prox(v, alpha), v, alpha, blur=64 * found.error)
    steps = np.where(V > 0, 0.5, 1.0)
    both = np.where(V > 0, found.activation.prox(V, 0.5), found.activation.prox(V, 1.0))
    np.testing.assert_array_equal(found.activation.prox(V, steps), both)


@pytest.mark.parametrize("text", ["tanh(x)", "softplus(x)", "x/2 + 0.4*sin(x)"])
def test_the_check_kit_accepts_it(text):
    check_activation(made(text).activation)


def test_empty_and_extreme_input():
    for text in ("tanh(x)", "softplus(x)", "x/2 + 0.4*sin(x)"):
        activation = made(text).activation
        assert activation.penalty(np.zeros((0, 2))).shape == activation.prox(np.zeros((0, 2)), 0.5).shape == (0, 2)
        far = activation.prox(np.array([1e300, -1e300, np.nan]), 0.5)
        assert np.isfinite(far[:2]).all()
        assert np.isnan(far[2])
        assert np.isnan(activation.penalty(np.array([np.nan]))).all()
    assert made("x/2 + 0.4*sin(x)").activation.penalty(np.array([1e5]))[0] == pytest.approx(5e9, rel=1e-3)
    np.testing.assert_array_equal(made("tanh(x)").activation.penalty(np.array([1.5, -np.inf])), np.inf)


def test_a_step_beyond_the_supported_is_refused():
    with pytest.raises(ValueError, match="alpha: expected at most 1 for sinh"):
        made("sinh(x)").activation.prox(V, 1.5)


@pytest.mark.parametrize("text", [row[0] for row in (*TABLE, *OTHERS)])
def test_quadrature_agrees_with_the_closed_form_within_its_stated_error(text, monkeypatch):
    closed = made(text)
    monkeypatch.setattr(recover, "_closed_form", lambda *_: None)
    numerical = made(text)
    assert not numerical.closed_form
    assert numerical.error < 1e-12
    t = np.concatenate([V, np.linspace(-30, 30, 200)])
    y = sigma(text, t)
    phi, expected = numerical.activation.penalty(y), closed.activation.penalty(y)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(finite, np.isfinite(phi))
    off = np.abs(phi[finite] - expected[finite])
    assert (off <= (numerical.error + closed.error) * size(text, t, y)[finite]).all()
    np.testing.assert_array_equal(np.isinf(closed.activation.penalty(V)), np.isinf(numerical.activation.penalty(V)))


@pytest.mark.parametrize("text", NUMERICAL)
def test_quadrature_agrees_with_50_digits(text):
    found = made(text)
    assert not found.closed_form
    assert found.error < 1e-12
    for y in sigma(text, np.array([-2.5, -0.3, 0.2, 1.7])):
        with mpmath.workdps(50):
            exact = found.penalty(y)
            t = (exact + y * y / 2) / y  # of the size of t at most
        assert abs(float(found.activation.penalty(np.array([y]))[0] - exact)) <= found.error * (1 + 3 * abs(t) + y * y)


def test_literal_prox_and_penalty():
    found = made("sigmoid(x)")
    with mpmath.workdps(50):
        y = mpmath.mpf("0.2")
        phi = y * mpmath.log(y) + (1 - y) * mpmath.log(1 - y) - y * y / 2 + mpmath.log(2)
        assert abs(found.penalty(y) - phi) < mpmath.mpf(10) ** -40
        p = found.prox(mpmath.mpf("0.7"), mpmath.mpf("0.3"))  # p + α φ'(p) = v
        assert abs(p + mpmath.mpf("0.3") * (mpmath.log(p / (1 - p)) - p) - mpmath.mpf("0.7")) < mpmath.mpf(10) ** -40
        with pytest.raises(ValueError, match="not reached"):
            found.penalty(mpmath.mpf(2))


# ------------------------------------------------------------------------------------------------ planted faults


@pytest.mark.parametrize("wrong", ["antiderivative", "inverse", "constant", "no real number"])
def test_a_wrong_closed_form_is_rejected(wrong, monkeypatch):
    right = {name: getattr(recover, name) for name in ("_antiderivative", "_inverse", "_closed_form")}
    y = sympy.Symbol("y", real=True)
    if wrong == "antiderivative":
        monkeypatch.setattr(recover, "_antiderivative", lambda *a: right["_antiderivative"](*a) + y**3 / 10**9)
    elif wrong == "inverse":
        monkeypatch.setattr(recover, "_inverse", lambda *a: right["_inverse"](*a) * (1 + sympy.Rational(1, 10**9)))
    elif wrong == "constant":
        monkeypatch.setattr(recover, "_closed_form", lambda *a: right["_closed_form"](*a) + sympy.Rational(1, 10**9))
    else:
        monkeypatch.setattr(recover, "_closed_form", lambda *a: sympy.log(-2 - y))
    found = made("tanh(x)")
    assert found.formula is None
    at = np.tanh(V)
    np.testing.assert_allclose(found.activation.penalty(at), ACTIVATIONS["tanh"].penalty(at), atol=1e-12)


def test_a_closed_form_whose_digits_cancel_is_shown_but_not_evaluated():
    y = sympy.Symbol("y", real=True)
    expr = formula.parse("max(x, 0.5*x)", "x")
    curve = recover._Curve(formula.vectorised(expr, formula.symbol("x")), [], None)
    good = sympy.Piecewise((y**2 / 2, y < 0), (0, True))
    assert recover._in_floats(good, y, curve) is not None
    assert recover._in_floats(good + (1e9 + sympy.exp(y / 10**6)) - 1e9 - sympy.exp(y / 10**6 + 1e-9), y, curve) is None


def test_a_mismatch_of_prox_and_penalty_is_found_and_reduced():
    tanh, leaky = ACTIVATIONS["tanh"], leaky_relu(0.25)
    wrong = Activation("wrong", lambda y: 3 * tanh.penalty(y), tanh.prox)
    found = search_activation(wrong, 1000, 0, written_as="wrong").counterexample
    assert found is not None
    assert "bound" in found.confirmed
    assert found.Y.shape == (1, 1)
    assert len(repr(found.Y.tolist())) < 12
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(found.snippet(), {"wrong": wrong})
    before, after = map(float, printed.getvalue().split())
    assert after > before
    energy = FeedForwardEnergy(found.Wf, found.B, wrong)
    assert found.alpha <= energy.max_alpha
    # in 50 digits: the prox of one slope with the penalty of another
    right, other = made("max(x, 0.25*x)"), made("max(x, 0.5*x)")
    mixed = Activation("mixed", other.activation.penalty, leaky.prox)
    found = search_activation(mixed, 1000, 0, (right.prox, other.penalty)).counterexample
    assert found is not None
    assert found.confirmed == "50-digit arithmetic"
    # and what 50 digits do not confirm does not count
    assert search_activation(mixed, 300, 0, (right.prox, right.penalty)).counterexample is None


def test_the_search_counts_and_repeats():
    tanh = ACTIVATIONS["tanh"]
    assert search_activation(tanh, 137, 3).as_dict() == {"examples": 137, "violations": 0, "counterexample": None}
    wrong = Activation("tanh", lambda y: 3 * tanh.penalty(y), tanh.prox)
    first, second = (search_activation(wrong, 500, 5).as_dict() for _ in range(2))
    assert first == second
    assert first["violations"] == 1


@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=list(ACTIVATIONS))
def test_named_activations_descend(activation):
    assert search_activation(activation, 500).counterexample is None


def test_a_decrease_that_the_classifier_missed_is_found():
    expr = formula.parse("x * sigmoid(x)", "x")
    blind = replace(classify.classify_activation(expr), nondecreasing=Verdict("unknown", "planted"))
    with pytest.raises(recover.Decreasing, match=r"σ\(-4\) = -0\.07\S* > σ\(-2\)"):
        recover.activation(expr, "SiLU", blind)


# ------------------------------------------------------------------------------------------------ the check


@pytest.mark.parametrize("text", [*(row[0] for row in TABLE), *(row[0] for row in OTHERS if row[3])])
def test_check_guarantees(text):
    report = recover.check(text, examples=100)
    assert report["verdict"] == "guaranteed"
    assert report["prox_of_some_function"]["verdict"] == report["prox_of_convex_function"]["verdict"] == "proved"
    assert report["penalty"]["closed_form"]
    assert report["penalty"]["formula"]
    assert report["penalty"]["error"] < 1e-12
    assert report["descent"] == {"examples": 100, "violations": 0, "counterexample": None}


@pytest.mark.parametrize("text", [row[0] for row in OTHERS if not row[3]])
def test_check_of_the_prox_of_a_function_that_is_not_convex(text):
    report = recover.check(text, examples=100)
    assert report["verdict"] == "no violation found"
    assert report["prox_of_some_function"]["verdict"] == "proved"
    assert report["prox_of_convex_function"]["verdict"] == "refuted"
    assert report["descent"]["examples"] == 100


@pytest.mark.parametrize("text", OF_NOTHING.values(), ids=list(OF_NOTHING))
def test_check_refutes_with_two_points(text):
    report = recover.check(text)
    assert report["verdict"] == "refuted"
    refuted = report["prox_of_some_function"]
    assert refuted["verdict"] == "refuted"
    assert refuted["witness"].count("σ(") == 2
    assert report["penalty"] == {"formula": None, "closed_form": False, "error": None, "domain": None}
    assert report["descent"]["examples"] == 0


def test_check_refutes_what_only_the_recovery_sees(monkeypatch):
    expr = formula.parse("sin(x)", "x")
    blind = replace(classify.classify_activation(expr), nondecreasing=Verdict("unknown", "planted"))
    monkeypatch.setattr(classify, "classify_activation", lambda *_: blind)
    report = recover.check("sin(x)")
    assert report["verdict"] == "refuted"
    assert report["prox_of_convex_function"]["method"] == "50-digit arithmetic"


@pytest.mark.parametrize("text", ["1/x", "log(x)", "sqrt(x)"])
def test_check_of_what_is_not_finite(text):
    report = recover.check(text)
    assert report["verdict"] == "invalid"
    assert "undefined at x = " in report["finite"]["witness"]


def test_check_reads_parameters_and_refuses_nonsense():
    report = recover.check("max(x, s*x)", {"s": 0.5}, examples=50)
    assert report["penalty"]["formula"] == "where(y < 0, y**2/2, 0)"
    with pytest.raises(formula.FormulaError, match="unknown name"):
        recover.check("gelu(x)")


def test_a_violation_makes_the_verdict_refuted(monkeypatch):
    right = recover.activation

    def planted(expr, name, traits=None):
        found = right(expr, name, traits)
        wrong = replace(found.activation, penalty=lambda y: 3 * found.activation.penalty(y))
        return replace(found, activation=wrong, penalty=lambda y: 3 * found.penalty(y))

    monkeypatch.setattr(recover, "activation", planted)
    report = recover.check("max(x, a*x)", {"a": "0.5"})
    assert report["verdict"] == "refuted"
    assert "formula.parse('max(x, a*x)', 'x', {'a': '0.5'})" in report["descent"]["counterexample"]["snippet"]
