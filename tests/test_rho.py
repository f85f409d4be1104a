"""Penalties: values, traits, lookup by name and by formula, refusals."""

import dataclasses
import itertools
import pickle

import mpmath
import numpy as np
import pytest
import sympy
from mpmath import mp

import refimpl
from refimpl import PENALTIES, Rho, get_rho

EPS = np.finfo(float).eps


def log1p(z):
    return mpmath.log1p(z)


# ρ, ρ', ρ'' as section 7 of the blueprint has them, and their limits at infinity. Written here again on purpose.
TABLE = {
    "exp": (lambda z: -mp.exp(-z), lambda z: mp.exp(-z), lambda z: -mp.exp(-z), (0, 0, 0)),
    "log2": (lambda z: log1p(1 + z), lambda z: 1 / (z + 2), lambda z: -1 / (z + 2) ** 2, (np.inf, 0, 0)),
    "log1p": (log1p, lambda z: 1 / (1 + z), lambda z: -1 / (1 + z) ** 2, (np.inf, 0, 0)),
    "sqrt": (
        lambda z: mp.sqrt(1 + z),
        lambda z: 1 / (2 * mp.sqrt(1 + z)),
        lambda z: -1 / (4 * mp.sqrt(1 + z) ** 3),
        (np.inf, 0, 0),
    ),
    "geman_mcclure": (lambda z: z / (1 + z), lambda z: 1 / (1 + z) ** 2, lambda z: -2 / (1 + z) ** 3, (1, 0, 0)),
    "linear": (lambda z: z, lambda z: mp.one, lambda z: mp.zero, (np.inf, 1, 0)),
    "epanechnikov": (
        lambda z: z - z * z / 2 if z < 1 else mp.mpf("0.5"),
        lambda z: 1 - z if z < 1 else mp.zero,
        lambda z: -mp.one if z < 1 else mp.zero,
        (0.5, 0, 0),
    ),
    "truncated": (
        lambda z: z if z < 1 else mp.one,
        lambda z: mp.one if z < 1 else mp.zero,
        lambda z: mp.zero,
        (1, 0, 0),
    ),
}
BERNSTEIN = {"exp", "log2", "log1p", "sqrt", "geman_mcclure", "linear"}
ORDERS = {"value": 0, "derivative": 1, "second_derivative": 2}
POINTS = [
    0.0, 5e-324, 1e-300, 1e-16, 1e-8, 0.3, 1 - EPS / 2, 1.0, 1 + EPS, 2.5, 50.0, 708.0, 744.0, 1e8, 1e17,
    1e150, 1e160, 1e200, 1e300, 1.7e308,
]  # fmt: skip


def true(function, points):
    with mpmath.workdps(400):  # 1 + 5e-324 is told from 1
        return np.array([float(function(mpmath.mpf(z))) for z in points])


def test_the_shipped_penalties_are_the_table():
    assert set(PENALTIES) == set(TABLE)
    assert {name for name, rho in PENALTIES.items() if rho.bernstein} == BERNSTEIN
    assert all(rho.name == name and rho.concave is True for name, rho in PENALTIES.items())


@pytest.mark.parametrize("what", ORDERS)
@pytest.mark.parametrize("name", TABLE)
def test_values_are_right_to_the_last_digits_everywhere(name, what):
    expected = true(TABLE[name][ORDERS[what]], POINTS)
    got = getattr(get_rho(name), what)(np.array(POINTS))
    # 1 + z is right to ½ EPS, of which the cube takes 1½; a function or a product adds ½ or 1. Below the normal
    # numbers a unit is 5e-324.
    np.testing.assert_allclose(got, expected, rtol=4 * EPS, atol=1e-323)
    assert got.dtype == np.float64


@pytest.mark.parametrize("what", ORDERS)
@pytest.mark.parametrize("name", TABLE)
def test_the_limit_at_infinity(name, what):
    got = getattr(get_rho(name), what)(np.array([np.inf, 0.0, np.inf]))
    assert got[0] == got[2] == TABLE[name][3][ORDERS[what]]
    assert np.isfinite(got[1])


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3, 3)])
@pytest.mark.parametrize("name", TABLE)
def test_elementwise_on_any_shape_and_no_writing(name, shape):
    z = np.linspace(0, 2, int(np.prod(shape))).reshape(shape)
    z.setflags(write=False)
    for what in ORDERS:
        got = np.broadcast_to(getattr(get_rho(name), what)(z), shape)
        loop = [float(getattr(get_rho(name), what)(np.array([x]))[0]) for x in z.ravel()]
        np.testing.assert_allclose(got.ravel(), loop, rtol=2 * EPS, atol=0)  # SIMD may round otherwise


@pytest.mark.parametrize("name", TABLE)
def test_the_log_derivative_where_there_is_one(name):
    rho, points = get_rho(name), [0.0, 1e-300, 0.3, 1.0, 745.0, 5000.0, 1e300]
    if name == "exp":  # its derivative underflows
        assert rho.log_derivative is not None
    if rho.log_derivative is not None:
        expected = true(lambda z: mp.log(TABLE[name][1](z)), points)
        np.testing.assert_allclose(rho.log_derivative(np.array(points)), expected, rtol=4 * EPS)
        assert rho.log_derivative(np.array([np.inf]))[0] == -np.inf


# ------------------------------------------------------------------------------------------------ the formula


@pytest.mark.parametrize("name", TABLE)
def test_the_formula_says_the_same(name):
    value, derivative = get_rho(name).literal("mpmath")
    second = get_rho(name).expr.diff(refimpl.formula.symbol("z"), 2)
    with mpmath.workdps(60):
        for z in (mpmath.mpf(x) for x in (0, "1e-30", "0.3", 1, "2.5", 50, "1e8", "1e200")):
            assert abs(value(z) - TABLE[name][0](z)) <= 1e-55 * (1 + abs(value(z)))
            assert abs(derivative(z) - TABLE[name][1](z)) <= 1e-55
        scalar = refimpl.formula.scalar(second, refimpl.formula.symbol("z"), "mpmath")
        for z in (mpmath.mpf(x) for x in (0, "0.3", "2.5", 50)):
            assert abs(scalar(z) - TABLE[name][2](z)) <= 1e-55


@pytest.mark.parametrize("name", TABLE)
def test_the_formula_read_as_a_user_writes_it_equals_the_named_penalty(name):
    named, read = get_rho(name), get_rho(get_rho(name).formula)
    assert read is not named
    points = np.array([0.0, 1e-12, 0.3, 1.0, 2.5, 50.0, 1e3, np.inf])
    for what in ORDERS:
        # a derivative as SymPy writes it may subtract: right to a few EPS of ρ'(0) ≤ 1, not of itself
        got, expected = getattr(read, what)(points), getattr(named, what)(points)
        np.testing.assert_allclose(got, expected, rtol=8 * EPS, atol=16 * EPS)


@pytest.mark.parametrize("numbers", ["float", "mpmath", "sympy"])
def test_literal_in_each_number_system(numbers):
    value, derivative = get_rho("log(z + 2)").literal(numbers)
    if numbers == "sympy":
        assert (value(sympy.Integer(1)), derivative(sympy.Integer(1))) == (sympy.log(3), sympy.Rational(1, 3))
    else:
        number = float if numbers == "float" else mpmath.mpf
        assert float(value(number(1))) == pytest.approx(np.log(3.0), rel=4 * EPS)
        assert float(derivative(number(1))) == pytest.approx(1 / 3, rel=4 * EPS)


def test_expr():
    assert get_rho("exp").expr == -sympy.exp(-refimpl.formula.symbol("z"))


def test_functions_alone_have_no_formula(refused):
    with refused(ValueError, "rho 'two z' was given as functions only"):
        Rho("two z", lambda z: 2 * z, lambda z: 2.0).literal("mpmath")


# ------------------------------------------------------------------------------------------------ traits


def signed_differences(derivative):
    """(−1)^k Δ_h^k ρ'(z) for k ≤ 8: all non-negative iff ρ' is completely monotone (on all z, h and k)."""
    with mpmath.workdps(60):
        for z, h in itertools.product(("0", "0.1", "0.5", "0.9", "3", "10"), ("0.07", "0.3", "1", "4")):
            row = [derivative(mpmath.mpf(z) + k * mpmath.mpf(h)) for k in range(9)]
            for k in range(9):
                yield k, row[0]
                row = [a - b for a, b in itertools.pairwise(row)]


@pytest.mark.parametrize("name", TABLE)
def test_the_traits_are_what_the_differences_say(name):
    rho = get_rho(name)
    signs = list(signed_differences(rho.literal("mpmath")[1]))
    slack = mpmath.mpf("1e-50")  # 2^8 roundings of numbers up to 1, at 60 digits
    assert all(value >= -slack for k, value in signs if k == 0)  # non-decreasing
    assert all(value >= -slack for k, value in signs if k == 1)  # concave
    assert all(value >= -slack for _, value in signs) is rho.bernstein


@pytest.mark.parametrize("formula", ["1 - cos(z)", "exp(z) - 1", "z**2", "-exp(-z**2)"])
def test_the_differences_refute_what_is_not_concave(formula):
    assert any(value < 0 for k, value in signed_differences(get_rho(formula).literal("mpmath")[1]) if k == 1)


@pytest.mark.parametrize("name", TABLE)
def test_the_kernel_of_a_bernstein_penalty_is_positive_semidefinite(name):
    points = np.linspace(0, 6, 25)  # on this grid the kernels that are not have an eigenvalue below −0.1
    lowest = np.linalg.eigvalsh(get_rho(name).derivative(0.5 * (points[:, None] - points) ** 2))[0]
    assert lowest >= -25 * 25 * EPS if name in BERNSTEIN else lowest < -0.1


# ------------------------------------------------------------------------------------------------ lookup


@pytest.mark.parametrize("name", TABLE)
def test_get_by_name(name):
    assert get_rho(name) is PENALTIES[name]
    assert get_rho(PENALTIES[name]) is PENALTIES[name]
    assert get_rho(name).name == name


def test_a_formula_claims_nothing_and_is_its_own_name():
    rho = get_rho("z / (2 + z)")
    assert (rho.name, rho.formula, rho.concave, rho.bernstein) == ("z / (2 + z)", "z / (2 + z)", None, None)


@pytest.mark.parametrize(
    "text", ["nonsense text", "", "  ", "z +", "q", "Exp", "z = 1", "log(z + 2", "1 j", "z;z", "z\n)"]
)
def test_nonsense_is_refused_in_one_line_that_names_the_argument(text, refused):
    for call in (get_rho, lambda text: refimpl.AttentionEnergy(rho=text)):
        with refused(ValueError, "rho"):
            call(text)


@pytest.mark.parametrize("rho", [None, 3, 1.5, b"exp", ["exp"], np.exp, Rho], ids=repr)
def test_what_is_no_text_is_refused(rho, refused):
    for call in (get_rho, lambda rho: refimpl.AttentionEnergy(rho=rho)):
        with refused(TypeError, rf"rho: expected a name, a formula in z or a refimpl.Rho, got {type(rho).__name__}"):
            call(rho)


@pytest.mark.parametrize(
    ("rho", "slope"),
    [
        ("sqrt(z)", "inf"),
        ("z**0.5 + z", "inf"),
        ("z*log(z)", "-inf"),
        ("1/z", "-inf"),
        ("-z", "-1.0"),
        ("exp(-z)", "-1.0"),
        ("sqrt(1 - z)", "-0.5"),
        ("-log(1 + 3*z)", "-3.0"),
        (Rho("nan", lambda z: z, lambda z: np.full_like(z, np.nan)), "nan"),
        (Rho("down", lambda z: -z, lambda z: -1.0), "-1.0"),
    ],
)
def test_a_slope_at_zero_that_no_weight_can_have_is_refused(rho, slope, refused):
    name = rho.name if isinstance(rho, Rho) else rho
    with refused(ValueError, "rho: expected a finite slope at 0 that is not negative, ") as caught:
        refimpl.AttentionEnergy(rho=rho)
    assert f"{name!r} has {slope}" in str(caught.value)


def test_log_of_z_minus_1_is_refused(refused):
    with refused(ValueError, "rho: "):
        refimpl.AttentionEnergy(rho="log(z - 1)")


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        get_rho("exp").name = "other"


@pytest.mark.parametrize("slope", [2.0, 2, np.float64(2.0), np.array(2.0)], ids=repr)
def test_a_constant_derivative_may_be_a_scalar(slope):
    attn = refimpl.AttentionEnergy(rho=Rho("two z", lambda z: 2 * z, lambda z: slope))
    Y = np.array([[[0.0], [1.0], [5.0]], [[3.0], [3.0], [9.0]]])
    np.testing.assert_allclose(attn.weights(Y), np.full((2, 3, 3), 1 / 3), rtol=EPS)
    np.testing.assert_allclose(attn.step(Y), np.broadcast_to(Y.mean(axis=1, keepdims=True), Y.shape), rtol=4 * EPS)
    np.testing.assert_array_equal(attn.kernel(Y), np.full((2, 3, 3), 2.0))
    np.testing.assert_array_equal(attn.value(Y), [42.0, 72.0])  # Σ (y_i − y_j)² = 1 + 25 + 16, 0 + 36 + 36
    np.testing.assert_allclose(attn.gradient(Y), 6 * (Y - Y.mean(axis=1, keepdims=True)), rtol=4 * EPS)


def test_a_constant_value_may_be_a_scalar():
    attn = refimpl.AttentionEnergy(rho=Rho("one", lambda z: 1.0, lambda z: 0.0))
    assert attn.value([[0.0], [1.0], [5.0]]) == 3.0
    np.testing.assert_array_equal(attn.step([[0.0], [1.0], [5.0]]), [[0.0], [1.0], [5.0]])


def test_a_penalty_survives_pickle():
    """By name, by formula, or by its functions where those can be pickled."""
    for rho in [*PENALTIES.values(), get_rho("log(z + nu)", nu=3), Rho("mine", np.log1p, np.exp)]:
        assert pickle.loads(pickle.dumps(rho)) == rho
    changed = dataclasses.replace(PENALTIES["exp"], value=np.negative, derivative=np.exp, second_derivative=None)
    changed = dataclasses.replace(changed, log_derivative=None)
    again = pickle.loads(pickle.dumps(changed))
    assert (again.value, again.derivative) == (np.negative, np.exp)
