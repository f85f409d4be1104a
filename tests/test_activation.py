"""Activations: exact values, φ at the ends of its domain, and the definition of the proximal operator."""

import dataclasses
import itertools

import mpmath
import numpy as np
import pytest
from mpmath import mp

from refimpl import ACTIVATIONS, Activation, get_activation
from refimpl.activation import (
    clip,
    elu,
    hard_threshold,
    identity,
    leaky_relu,
    relu,
    shifted_relu,
    sigmoid,
    soft_threshold,
    softplus,
    tanh,
)

EPS = np.finfo(float).eps
INF = np.inf

# (activation, step α, v, prox_{αφ}(v)), the right side by hand from the definition; α ≠ 1 wherever it matters.
PROX = [
    (identity(), 0.25, [-3.0, 0.0, 5e-324, 1e308], [-3.0, 0.0, 5e-324, 1e308]),
    (relu(), 0.25, [-3.0, -5e-324, 0.0, 5e-324, 3.0, 1e308], [0.0, 0.0, 0.0, 5e-324, 3.0, 1e308]),
    (relu(), 4.0, [-3.0, 3.0], [0.0, 3.0]),
    (shifted_relu(0.5), 1.0, [-1.0, 0.25, 0.5, 3.0], [0.0, 0.0, 0.0, 2.5]),
    (shifted_relu(0.5), 0.25, [-1.0, 0.125, 0.25, 3.0], [0.0, 0.0, 0.125, 2.875]),
    (shifted_relu(-2.0), 0.25, [-1.0, -0.5, 0.0, 3.0], [0.0, 0.0, 0.5, 3.5]),
    (soft_threshold(1.0), 0.25, [3.0, -3.0, 0.25, -0.25, 0.0, 0.375], [2.75, -2.75, 0.0, 0.0, 0.0, 0.125]),
    (soft_threshold(0.5), 4.0, [3.0, -3.0, 2.0, 1e308], [1.0, -1.0, 0.0, 1e308]),
    (soft_threshold(0.0), 4.0, [3.0, -3.0, 0.0], [3.0, -3.0, 0.0]),
    (hard_threshold(0.5), 1.0, [0.5, -0.5, 0.4999, -0.4999, 3.0, 0.0], [0.5, -0.5, 0.0, 0.0, 3.0, 0.0]),
    # τ √α = 1 for α = 4 and ¼ for α = ¼
    (hard_threshold(0.5), 4.0, [1.0, -1.0, 0.9999, 3.0], [1.0, -1.0, 0.0, 3.0]),
    (hard_threshold(0.5), 0.25, [0.25, -0.25, 0.2499, 3.0], [0.25, -0.25, 0.0, 3.0]),
    (leaky_relu(0.25), 1.0, [-4.0, 0.0, 3.0], [-1.0, 0.0, 3.0]),
    # y + α (1 − s) / s y = v: v / (1 + ¼ · 3) and v / (1 + 4 · 3)
    (leaky_relu(0.25), 0.25, [-7.0, 3.0], [-4.0, 3.0]),
    (leaky_relu(0.25), 4.0, [-13.0, 3.0], [-1.0, 3.0]),
    (leaky_relu(1.0), 4.0, [-13.0, 3.0], [-13.0, 3.0]),
    (clip(), 0.25, [-3.0, -1.0, 0.5, 1.0, 1e308], [-1.0, -1.0, 0.5, 1.0, 1.0]),
    (clip(-2.0, 0.5), 4.0, [-3.0, 0.25, 3.0], [-2.0, 0.25, 0.5]),
    (clip(2.0, 2.0), 4.0, [-3.0, 3.0], [2.0, 2.0]),
    (tanh(), 1.0, [0.0, 1e308, -1e308, 1e-300], [0.0, 1.0, -1.0, 1e-300]),
    (sigmoid(), 1.0, [0.0, 1e308, -1e308], [0.5, 1.0, 0.0]),
    (softplus(), 1.0, [1e308, -1e308], [1e308, 0.0]),
    (elu(0.5), 1.0, [3.0, 0.0, -1e308, 1e308], [3.0, 0.0, -0.5, 1e308]),
    # the root of y + α φ'(y) = v far out: φ' is bounded or the domain is
    (tanh(), 0.25, [1e300, -1e300, 1e6, 0.0], [1.0, -1.0, 1.0, 0.0]),
    (sigmoid(), 4.0, [1e300, -1e300, 1e6, -1.5], [1.0, 0.0, 1.0, 0.5]),
    (softplus(), 4.0, [1e300, -1e300, 1e6], [1e300, 0.0, 1e6]),
    (elu(1.0), 0.25, [1e300, -1e300, 3.0, 0.0], [1e300, -1.0, 3.0, 0.0]),
]


@pytest.mark.parametrize(("activation", "alpha", "v", "expected"), PROX, ids=lambda p: getattr(p, "name", None))
def test_prox_by_hand(activation, alpha, v, expected):
    # one product and one difference: 2 roundings
    np.testing.assert_allclose(activation.prox(np.array(v), alpha), expected, rtol=EPS, atol=0)


# φ at the ends of its domain, inside, and +inf outside; by hand.
LOG2 = np.log(2.0)
PENALTY = [
    (identity(), [-3.0, 1e308], [0, 0]),
    (relu(), [0.0, -0.0, 1e308, -5e-324], [0, 0, 0, INF]),
    (shifted_relu(0.5), [0.0, 3.0, -5e-324, -1.0], [0, 1.5, INF, INF]),
    (shifted_relu(-2.0), [0.0, 3.0, -5e-324], [0, -6.0, INF]),
    (soft_threshold(0.5), [3.0, -3.0, 0.0], [1.5, 1.5, 0]),
    (hard_threshold(0.5), [3.0, -5e-324, 0.0, -0.0], [0.125, 0.125, 0, 0]),
    (leaky_relu(0.25), [-2.0, 0.0, 3.0], [6.0, 0, 0]),
    (leaky_relu(1.0), [-2.0, 3.0], [0, 0]),
    (clip(), [-1.0, 1.0, 0.0, 1 + EPS, -1 - EPS], [0, 0, 0, INF, INF]),
    (clip(-2.0, 0.5), [-2.0, 0.5, 0.6, -2.1], [0, 0, INF, INF]),
    # y artanh y + ½ log(1 − y²) − ½ y² → log 2 − ½
    (tanh(), [-1.0, 1.0, 0.0, 1 + EPS, -1 - EPS, 1e308], [LOG2 - 0.5, LOG2 - 0.5, 0, INF, INF, INF]),
    (sigmoid(), [0.0, 1.0, 0.5, 1 + EPS, -5e-324], [0, -0.5, -LOG2 - 0.125, INF, INF]),
    (softplus(), [0.0, 1e308, LOG2, -5e-324], [np.pi**2 / 6, 0, np.pi**2 / 12 - LOG2**2 / 2, INF]),
    (elu(1.0), [-1.0, 0.0, 3.0, -1 - EPS], [0.5, 0, 0, INF]),
    (elu(0.5), [-0.5, 0.0, 3.0, -0.5 - EPS], [0.375, 0, 0, INF]),
]


@pytest.mark.parametrize(("activation", "y", "expected"), PENALTY, ids=lambda p: getattr(p, "name", None))
def test_penalty_by_hand(activation, y, expected):
    got = activation.penalty(np.array(y))
    # sums of terms of size up to 2, each right to a few EPS
    np.testing.assert_allclose(got, expected, rtol=4 * EPS, atol=8 * EPS)


# φ again, of one number, at any precision: from the blueprint's table, and where it says "derive" by integrating
# φ' = σ⁻¹ − id. Outside the domain None.
PHI = {
    "identity": lambda y: mp.zero,
    "relu": lambda y: mp.zero if y >= 0 else None,
    "shifted_relu": lambda y: y / 2 if y >= 0 else None,
    "soft_threshold": lambda y: abs(y) / 2,
    "hard_threshold": lambda y: mp.mpf(y != 0) / 8,
    "leaky_relu": lambda y: (1 - mp.mpf(0.01)) / (2 * mp.mpf(0.01)) * min(y, 0) ** 2,
    "hard_tanh": lambda y: mp.zero if abs(y) <= 1 else None,
    "tanh": lambda y: y * mp.atanh(y) + mp.log(1 - y * y) / 2 - y * y / 2 if abs(y) < 1 else None,
    "sigmoid": lambda y: y * mp.log(y) + (1 - y) * mp.log(1 - y) - y * y / 2 if 0 < y < 1 else None,
    "softplus": lambda y: mp.polylog(2, mp.exp(-y)) if y >= 0 else None,
    "elu": lambda y: mp.zero if y >= 0 else (1 + y) * mp.log(1 + y) - y - y * y / 2 if y > -1 else None,
}
SMOOTH = {  # σ, σ⁻¹, and the open range of σ
    "tanh": (np.tanh, mp.atanh, (-1, 1)),
    "sigmoid": (lambda v: 1 / (1 + np.exp(-v)), lambda y: mp.log(y / (1 - y)), (0, 1)),
    "softplus": (lambda v: np.log(1 + np.exp(v)), lambda y: mp.log(mp.expm1(y)), (0, 200)),
    "elu": (lambda v: np.where(v < 0, np.exp(v) - 1, v), lambda y: mp.log1p(y) if y < 0 else y, (-1, 200)),
}
GRID = [-1.5, -1.0, -0.99, -0.5, -0.1, -1e-8, 0.0, 1e-8, 0.1, 0.3, 0.5, 0.9, 0.999, 1.0, 2.0, 7.5]


def test_the_shipped_activations_are_the_table():
    assert set(ACTIVATIONS) == set(PHI)
    assert all(activation.name == name for name, activation in ACTIVATIONS.items())
    assert [name for name, activation in ACTIVATIONS.items() if not activation.convex] == ["hard_threshold"]


@pytest.mark.parametrize("name", PHI)
def test_penalty_against_fifty_digits(name):
    got = ACTIVATIONS[name].penalty(np.array(GRID))
    with mpmath.workdps(50):
        for y, phi in zip(GRID, got, strict=True):
            expected = PHI[name](mpmath.mpf(y))
            if expected is not None:
                assert abs(phi - expected) <= 8 * EPS * (1 + y * y)  # differences of terms up to 1 + y²
            elif not (abs(y) == 1 and name in ("tanh", "elu", "sigmoid")) and not (y == 0 and name == "sigmoid"):
                assert phi == INF


@pytest.mark.parametrize("name", SMOOTH)
def test_the_penalty_integrates_the_inverse_minus_the_identity(name):
    inverse, (low, high) = SMOOTH[name][1:]
    with mpmath.workdps(30):
        points = [low + (min(high, 3) - low) * mpmath.mpf(k) / 7 for k in (1, 3, 6)]
        for a, b in itertools.pairwise(points):
            area = mpmath.quad(lambda y: inverse(y) - y, [a, 0, b] if a < 0 < b else [a, b])
            assert abs(PHI[name](b) - PHI[name](a) - area) < 1e-20


@pytest.mark.parametrize("name", SMOOTH)
def test_step_one_is_the_activation(name):
    v = np.array([-30.0, -3.0, -0.5, 0.0, 0.5, 3.0, 30.0])
    # absolute: log(1 + e^v) of the oracle is right to EPS of 1
    np.testing.assert_allclose(ACTIVATIONS[name].prox(v, 1.0), SMOOTH[name][0](v), rtol=4 * EPS, atol=2 * EPS)


@pytest.mark.parametrize("alpha", [1e-3, 0.25, 0.9, 1 - 1e-12, 1.0, 4.0, 100.0])
@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_prox_against_the_root_of_its_optimality_condition(name, alpha):
    inverse, (low, high) = SMOOTH[name][1:]
    V = [-30.0, -2.0, -0.3, -1e-6, 0.0, 1e-6, 0.3, 0.7, 2.0, 30.0]
    got = ACTIVATIONS[name].prox(np.array(V), alpha)
    with mpmath.workdps(50):
        for v, y in zip(V, got, strict=True):
            a, b = mpmath.mpf(low), mpmath.mpf(high)
            for _ in range(150):  # y + α (σ⁻¹(y) − y) increases from −∞ to ∞ over the range
                c = (a + b) / 2
                if c + alpha * (inverse(c) - c) < v:
                    a = c
                else:
                    b = c
            # prox is 1-Lipschitz in v, and the equation that it solves is formed with errors of a few EPS of v and
            # (1 − α) y; the root is found to 4 EPS
            assert abs(y - a) <= 8 * EPS * (1 + abs(v) + abs(1 - alpha) * abs(a)) + 1e-42, (v, y)


@pytest.mark.parametrize("alpha", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("name", PHI)
def test_the_prox_minimises_its_definition(name, alpha):
    V = np.array([-3.0, -1.0, -0.3, 0.0, 0.2, 0.6, 1.0, 3.0])
    got = ACTIVATIONS[name].prox(V, alpha)

    def objective(y, v):
        phi = PHI[name](y)
        return None if phi is None else (y - v) ** 2 / 2 + alpha * phi

    with mpmath.workdps(50):
        for v, y in zip(V, (mpmath.mpf(float(y)) for y in got), strict=True):
            best = objective(y, v)
            assert best is not None
            near = [y + s * mpmath.mpf(10) ** -k for k in range(8) for s in (-1, 1)]
            for other in [*map(mpmath.mpf, GRID), mpmath.mpf(float(v)), *near]:
                value = objective(other, v)
                # y is off by at most δ = 1e-14 from the minimiser, where the objective is flat: δ² times a curvature
                # below 400 (leaky ReLU), and δ times a slope only at a kink, where y is exact
                assert value is None or best <= value + mpmath.mpf("1e-25"), (v, y, other)


def test_at_the_kink_of_relu_every_slope_between_is_a_subgradient():
    for v in (-7.0, -1e-300, 0.0):  # v − 0 ∈ α ∂ι(0) = (−∞, 0]
        assert relu().prox(np.array([v]), 0.25)[0] == 0.0
    for v in (-0.25, 0.1, 0.25):  # |v| ≤ α τ: v − 0 ∈ α ∂|·|(0)
        assert soft_threshold(1.0).prox(np.array([v]), 0.25)[0] == 0.0


def test_at_the_threshold_of_the_hard_threshold_both_values_are_minimisers():
    for alpha, v in ((1.0, 0.5), (4.0, 1.0), (0.25, 0.25)):
        phi = hard_threshold(0.5).penalty(np.array([0.0, v]))
        objective = 0.5 * (np.array([0.0, v]) - v) ** 2 + alpha * phi
        assert objective[0] == objective[1]
        assert hard_threshold(0.5).prox(np.array([v]), alpha)[0] in (0.0, v)


@pytest.mark.parametrize("alpha", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("name", PHI)
def test_the_prox_is_firmly_nonexpansive_iff_the_penalty_is_convex(name, alpha):
    v = np.linspace(-4, 4, 81)
    p = ACTIVATIONS[name].prox(v, alpha)
    rise, run = np.subtract.outer(p, p), np.subtract.outer(v, v)
    assert (rise * run >= -1e-14).all()  # non-decreasing: the prox of some function
    assert ((rise * rise <= rise * run + 1e-13).all()) == ACTIVATIONS[name].convex


@pytest.mark.parametrize("name", PHI)
def test_the_step_broadcasts_and_shapes_stay(name):
    activation = ACTIVATIONS[name]
    v = np.linspace(-2, 2, 12).reshape(3, 4)
    v.setflags(write=False)
    alpha = np.array([[0.25], [1.0], [4.0]])
    rows = np.stack([activation.prox(row, a) for row, a in zip(v, alpha[:, 0], strict=True)])
    # the root finder may stop elsewhere within its tolerance
    np.testing.assert_allclose(activation.prox(v, np.broadcast_to(alpha, v.shape)), rows, rtol=8 * EPS, atol=8 * EPS)
    for shape in ((0,), (2, 0, 3)):
        for step in (1.0, 0.5):
            assert np.asarray(activation.prox(np.zeros(shape), step)).shape == shape
        assert np.asarray(activation.penalty(np.zeros(shape))).shape == shape


@pytest.mark.parametrize(("constructor", "name"), [
    (shifted_relu, "tau"), (soft_threshold, "tau"), (hard_threshold, "tau"), (leaky_relu, "slope"), (clip, "lower"),
    (lambda b: clip(-1.0, b), "upper"), (elu, "a"),
])  # fmt: skip
def test_parameters_that_are_no_numbers(constructor, name, bad_number, refused):
    value, error, came = bad_number
    with refused(error, rf"{name}: expected a .*number.*, got .*{came}"):
        constructor(value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: leaky_relu(0.0), r"slope: expected a number in \(0, 1\], got 0.0"),
        (lambda: leaky_relu(1.5), r"slope: expected a number in \(0, 1\], got 1.5"),
        (lambda: elu(0.0), r"a: expected a number in \(0, 1\], got 0.0"),
        (lambda: elu(2), r"a: expected a number in \(0, 1\], got 2"),
        (lambda: clip(1.0, -1.0), r"upper: expected a number of at least lower = 1, got -1"),
        (lambda: soft_threshold(-1.0), r"tau: expected a number in \[0, inf\), got -1.0"),
        (lambda: hard_threshold(-1.0), r"tau: expected a number in \[0, inf\), got -1.0"),
    ],
)
def test_parameters_out_of_range(make, message, refused):
    with refused(ValueError, message):
        make()


@pytest.mark.parametrize("name", PHI)
def test_get_by_name(name):
    assert get_activation(name) is ACTIVATIONS[name]
    assert get_activation(ACTIVATIONS[name]) is ACTIVATIONS[name]


@pytest.mark.parametrize("name", ["gelu", "", "ReLU", "relu ", "clip\n"])
def test_unknown_names(name, refused):
    with refused(ValueError, f"activation: expected one of identity, relu, .*, got {name!r}".replace("\\", "\\\\")):
        get_activation(name)


@pytest.mark.parametrize("value", [None, 3, b"relu", ["relu"], np.tanh, Activation], ids=repr)
def test_what_is_no_name(value, refused):
    with refused(TypeError, f"activation: expected a name or a refimpl.Activation, got {type(value).__name__}"):
        get_activation(value)


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        get_activation("relu").name = "other"
