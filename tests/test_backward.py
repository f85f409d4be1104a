"""The backward pass: by hand, against 50 digits, complex steps and torch, far out, and its refusals."""

import dataclasses

import mpmath
import numpy as np
import pytest

from refimpl import (
    ACTIVATIONS,
    PENALTIES,
    Activation,
    AttentionEnergy,
    FeedForwardEnergy,
    ResidualAttentionEnergy,
    Rho,
    UnfoldedTransformer,
    definitions,
    formula,
)
from refimpl.activation import clip, elu, hard_threshold, leaky_relu, relu, shifted_relu, soft_threshold

EPS = np.finfo(float).eps
ALPHAS = (0.0, 0.5, 1.0, 1.3)


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def weights_of_pairs(*shape, seed=1):
    m = np.random.default_rng(seed).integers(0, 4, size=shape).astype(float)
    return m + np.swapaxes(m, -1, -2)


def isolating(n, *alone):
    """Ones, but for the rows and columns of the tokens that are alone."""
    alive = np.ones(n)
    alive[list(alone)] = 0
    return np.outer(alive, alive)


@pytest.fixture(params=PENALTIES)
def rho(request):
    return request.param


@pytest.fixture(params=ACTIVATIONS)
def activation(request):
    return request.param


def second_derivative(rho):
    """ρ'' of one mpmath number, from the formula alone."""
    z = formula.symbol("z")
    return formula.scalar(formula.derivative(PENALTIES[rho].expr, z, 2), z, "mpmath")


def exact_attention_vjp(exact, rho, Y, W, m, alpha, V):
    """The definition at 50 digits; the two parts are asked for one by one, as they differ in shape."""
    W = np.eye(Y.shape[1]) if W is None else W
    m = np.ones((len(Y), len(Y))) if m is None else m
    args = (Y, W, PENALTIES[rho].literal("mpmath")[1], second_derivative(rho), m, alpha, V)
    return [exact(lambda *a, part=part: definitions.attention_vjp(*a)[part], *args) for part in (0, 1)]


# ------------------------------------------------------------------------------------------------ attention


CASES = {  # Y, W, m
    "identity": (random(4, 2), None, None),
    "map": (random(4, 3), random(3, 2, seed=2), None),
    "weights": (random(4, 3), random(3, 3, seed=2), weights_of_pairs(4, 4)),
    "diagonal zero": (random(4, 3), random(3, 3, seed=2), 1 - np.eye(4)),
    "isolated": (random(4, 2), random(2, 2, seed=2), isolating(4, 0, 2)),
    "all zero weights": (random(4, 2), None, np.zeros((4, 4))),
    "duplicates": (np.repeat(random(2, 2), 2, axis=0), None, None),
    "W zero": (random(4, 3), np.zeros((3, 1)), None),
    "W singular": (random(4, 3), random(3, 1, seed=2) @ random(1, 3, seed=3), None),
    "W wide (k > d)": (random(4, 2), random(2, 5, seed=2), None),
    "one token": (random(1, 3), random(3, 2), None),
}


@pytest.mark.parametrize(("Y", "W", "m"), CASES.values(), ids=CASES)
def test_attention_against_fifty_digits(Y, W, m, rho, exact):
    V = random(*Y.shape, seed=5)
    for alpha in ALPHAS:
        got = AttentionEnergy(W, rho, m).vjp(Y, V, alpha)
        for part, expected in zip(got, exact_attention_vjp(exact, rho, Y, W, m, alpha, V), strict=True):
            # sums of fewer than 100 products of numbers of order 1, of which some are 10
            np.testing.assert_allclose(part, expected, rtol=0, atol=1e-13)


SMOOTH = ("exp", "log2", "log1p", "sqrt", "geman_mcclure", "linear")


@pytest.mark.parametrize("name", SMOOTH)
def test_attention_against_complex_steps(name):
    """Im f(Y + i h E) / h, in float64 and without cancellation; ρ' of these takes complex numbers."""
    Y, W, m, V, h = random(4, 3), random(3, 2, seed=2), weights_of_pairs(4, 4), random(4, 3, seed=5), 1e-30
    for alpha in ALPHAS:
        got = AttentionEnergy(W, name, m).vjp(Y, V, alpha)
        for which, cotangent in enumerate(got):
            for index in np.ndindex(cotangent.shape):
                inputs = [Y.astype(complex), W.astype(complex)]
                inputs[which][index] += 1j * h
                slope = PENALTIES[name].derivative
                step = definitions.attention_step(*inputs, lambda z, f=slope: f(np.array(z))[()], m, alpha)
                expected = (V * np.array(step)).sum().imag / h
                assert abs(cotangent[index] - expected) <= 1e-13


def test_attention_by_hand():
    # two tokens, ρ' = 1: Y⁺ is the mean of both, whatever W is
    linear = AttentionEnergy(None, "linear").vjp([[0.0], [2.0]], [[1.0], [5.0]])
    np.testing.assert_array_equal(linear.Y, [[3.0], [3.0]])
    np.testing.assert_array_equal(linear.W, [[0.0]])
    half = AttentionEnergy(None, "linear").vjp([[0.0], [2.0]], [[1.0], [5.0]], 0.5)
    np.testing.assert_array_equal(half.Y, [[2.0], [4.0]])
    # ρ' = 1 / (1 + z), z = 2 for the gap 2: Γ = (1, ⅓), A = (¾, ¼), y_1⁺ = ½; v = (1, 0)
    # C_12 = −⅑ / (4/3) = −1/12, G_12 = 2 − ½, Q_12 = −⅛: ū_1 = Q_12 (0 − 2) = ¼
    got = AttentionEnergy([[1.0]], "log1p").vjp([[0.0], [2.0]], [[1.0], [0.0]])
    np.testing.assert_allclose(got.Y, [[1.0], [0.0]], rtol=0, atol=4 * EPS)
    np.testing.assert_allclose(got.W, [[-0.5]], rtol=4 * EPS)
    # the softmax of derivation 06
    g = np.exp(-0.5)
    pull = g / (1 + g) ** 2
    got = AttentionEnergy().vjp([[0.0], [1.0]], [[1.0], [0.0]])
    np.testing.assert_allclose(got.Y, [[1 / (1 + g) + pull], [g / (1 + g) - pull]], rtol=8 * EPS)
    np.testing.assert_allclose(got.W, [[-pull]], rtol=8 * EPS)


def test_a_step_of_size_zero_passes_the_cotangent_on(rho):
    Y, V = random(4, 2), random(4, 2, seed=5)
    got = AttentionEnergy(random(2, 3, seed=2), rho).vjp(Y, V, 0.0)
    np.testing.assert_array_equal(got.Y, V)
    np.testing.assert_array_equal(got.W, np.zeros((2, 3)))


def test_tokens_without_weight_pass_their_cotangent_on_bit_for_bit(rho):
    Y, V = random(4, 2), random(4, 2, seed=5)
    # for α = ½ and 1 the two parts of v_i add up exactly
    for alpha in (0.5, 1.0):
        got = AttentionEnergy(random(2, 2, seed=2), rho, isolating(4, 1, 3)).vjp(Y, V, alpha)
        np.testing.assert_array_equal(got.Y[[1, 3]], V[[1, 3]])
        rest = AttentionEnergy(random(2, 2, seed=2), rho).vjp(Y[::2], V[::2], alpha)
        np.testing.assert_allclose(got.Y[::2], rest.Y, rtol=0, atol=1e-14)
        np.testing.assert_allclose(got.W, rest.W, rtol=0, atol=1e-14)


def tangent(energy, Y, W, TY, TW, alpha):
    """The step's derivative along (TY, TW), written forwards: J T."""
    W, TW = (np.eye(Y.shape[1]), np.zeros((Y.shape[1],) * 2)) if W is None else (W, TW)
    U, TU = Y @ W, TY @ W + Y @ TW
    dU, dTU = U[:, None] - U[None], TU[:, None] - TU[None]
    Z, TZ = 0.5 * (dU**2).sum(-1), (dU * dTU).sum(-1)
    m = np.ones(Z.shape) if energy.pair_weights is None else energy.pair_weights
    Gamma, TGamma = m * energy.rho.derivative(Z), m * energy.rho.second_derivative(Z) * TZ
    degree = np.where(Gamma.sum(1) == 0, 1, Gamma.sum(1))[:, None]
    A = Gamma / degree + np.diag(Gamma.sum(1) == 0)
    TA = TGamma / degree - Gamma * TGamma.sum(1, keepdims=True) / degree**2
    return (1 - alpha) * TY + alpha * (A @ TY + TA @ Y)


@pytest.mark.parametrize(("Y", "W", "m"), CASES.values(), ids=CASES)
def test_attention_is_the_adjoint_of_the_tangent(Y, W, m, rho):
    energy, V, TY = AttentionEnergy(W, rho, m), random(*Y.shape, seed=5), random(*Y.shape, seed=6)
    TW = np.zeros((Y.shape[1],) * 2) if W is None else random(*W.shape, seed=7)
    for alpha in ALPHAS:
        got = energy.vjp(Y, V, alpha)
        forwards = (V * tangent(energy, Y, W, TY, TW, alpha)).sum()
        backwards = (got.Y * TY).sum() + (got.W * TW).sum()
        assert abs(forwards - backwards) <= 1e-12


def test_the_identity_is_the_map_that_is_given(rho):
    Y, V = random(4, 3), random(4, 3, seed=5)
    for part, given in zip(
        AttentionEnergy(None, rho).vjp(Y, V), AttentionEnergy(np.eye(3), rho).vjp(Y, V), strict=True
    ):
        np.testing.assert_allclose(part, given, rtol=0, atol=1e-14)


@pytest.mark.parametrize("W", [None, random(2, 3, seed=2)], ids=["identity", "map"])
def test_a_translation_costs_no_digits(W, rho):
    # multiples of 2⁻²⁴, which stay exact beside 1e8 (below 2²⁷, and 2⁻²⁴ is the 51st bit)
    Y, V = np.round(random(4, 2) * 2**24) / 2**24, random(4, 2, seed=5)
    energy = AttentionEnergy(W, rho)
    for here, there in zip(energy.vjp(Y, V), energy.vjp(Y + 1e8, V), strict=True):
        # the centroid of tokens at 1e8 is right to 1e-8, the differences from it to their last bit
        np.testing.assert_allclose(there, here, rtol=0, atol=2e-14)
    sums = energy.vjp(Y + 1e8, V).Y.sum(axis=0)
    np.testing.assert_allclose(sums, V.sum(axis=0), rtol=0, atol=1e-14)


def test_tight_clusters_far_apart(rho, exact):
    Y = np.array([[0.0, 0.0], [1e-6, 0.0], [300.0, 400.0], [300.0, 400.0 + 1e-6], [0.0, 0.0]])
    V = random(5, 2, seed=5)
    got = AttentionEnergy(None, rho).vjp(Y, V)
    for power, (part, expected) in enumerate(
        zip(got, exact_attention_vjp(exact, rho, Y, None, None, 1.0, V), strict=True), start=1
    ):
        # right relative to R, which is of order 1, times U, and times Y as well in W̄; the spread of both is 250
        np.testing.assert_allclose(part, expected, rtol=0, atol=8 * EPS * 250**power)


@pytest.mark.parametrize(("penalty", "c"), [("exp", 1.0), ("-exp(-z)", 1.0), ("-2*exp(-z*3/4)", 0.75)])
def test_where_every_weight_of_a_row_underflows(penalty, c, exact):
    """Two far neighbours that are nearly tied: their kernel values are 0, and ρ''/ρ' is what is left."""
    Y, V, m = np.array([[0.0], [50.0], [-50.0 - 2.0**-8]]), np.array([[1.0], [-2.0], [0.5]]), 1 - np.eye(3)
    slope, second = (lambda z: mpmath.exp(-c * z)), (lambda z: -c * mpmath.exp(-c * z))
    for alpha in (0.5, 1.0):
        got = AttentionEnergy(None, penalty, m).vjp(Y, V, alpha)
        for part, cotangent in enumerate(got):
            args = (Y, [[1.0]], slope, second, m, alpha, V)
            expected = exact(lambda *a, part=part: definitions.attention_vjp(*a)[part], *args)
            # weights carry an error of z · 1e-15, which is 2e-12 at z = 1250, and there are 50³ of them in W̄
            np.testing.assert_allclose(cotangent, expected, rtol=1e-11, atol=1e-11 * 50 ** (2 + part))
            assert np.abs(expected).max() > 1e3 * 1e-11 * 50 ** (2 + part)


def test_underflow_of_a_kernel_without_a_formula(refused):
    exp = dataclasses.replace(PENALTIES["exp"], formula=None)
    energy = AttentionEnergy(None, exp, 1 - np.eye(3))
    energy.vjp([[0.0], [1.0], [2.0]], np.ones((3, 1)))
    # a token without weight has no kernel to underflow
    AttentionEnergy(None, exp, isolating(3, 0)).vjp([[0.0], [1.0], [2.0]], np.ones((3, 1)))
    with refused(ValueError, "rho 'exp' was given as functions only: it has no formula"):
        energy.vjp([[0.0], [50.0], [101.0]], np.ones((3, 1)))


@pytest.mark.parametrize("scale", [1e80, 1e154, 1e200, 1e300, 1.7e308])
def test_far_out_nothing_is_nan_and_nothing_warns(scale, rho):
    Y, V = np.array([[scale, 0.0], [0.0, -scale], [0.0, -scale], [1.0, 1.0]]), random(4, 2, seed=5)
    for W in (None, np.array([[1.0], [0.5]])):
        got = AttentionEnergy(W, rho).vjp(Y, V)
        assert np.isfinite(got.Y).all()
        assert not np.isnan(got.W).any()


def test_overflowing_distances_have_no_part_in_it():
    Y, V = np.array([[1e200], [0.0], [-1e200]]), random(3, 1, seed=5)
    got = AttentionEnergy().vjp(Y, V)
    np.testing.assert_array_equal(got.Y, V)
    np.testing.assert_array_equal(got.W, [[0.0]])


@pytest.mark.parametrize("scale", [2.0**-400, 2.0**-20, 2.0**20, 2.0**400])
def test_the_scale_of_tokens_and_of_the_map_cancel(scale, rho):
    """U is the same and so is Ȳ; W̄ scales as Y⁺ over W does."""
    Y, W, V = random(4, 2), random(2, 2, seed=2), random(4, 2, seed=5)
    here, there = AttentionEnergy(W, rho).vjp(Y, V), AttentionEnergy(W / scale, rho).vjp(Y * scale, V)
    np.testing.assert_allclose(there.Y, here.Y, rtol=0, atol=1e-14)
    np.testing.assert_allclose(there.W / scale / scale, here.W, rtol=0, atol=1e-14)


@pytest.mark.parametrize("scale", [1e-300, 1e-20, 1e20, 1e307, np.float64(2.0) ** 1022])
def test_the_scale_of_the_pair_weights_does_not_matter(scale, rho):
    Y, V, m = random(4, 2), random(4, 2, seed=5), weights_of_pairs(4, 4) / 8
    here, there = (AttentionEnergy(None, rho, w).vjp(Y, V) for w in (m, m * scale))
    for part, other in zip(here, there, strict=True):
        np.testing.assert_allclose(other, part, rtol=0, atol=1e-13)


def test_a_kink_at_tokens_that_coincide_is_taken_as_zero():
    # ρ = z − z^(3/2) / 10: ρ'' is infinite at 0, where u_i − u_j is 0
    energy = AttentionEnergy(None, "z - z**(3/2) / 10")
    got = energy.vjp([[0.0], [0.0], [1.0]], np.ones((3, 1)))
    assert np.isfinite(got.Y).all()
    np.testing.assert_allclose(got.Y.sum(), 3.0, rtol=4 * EPS)


def test_tokens_as_large_as_floats_go(rho):
    """U is the same, and so are Ȳ and W̄ but for powers of two; the factors of Ū are 2^1020, too large to multiply."""
    Y, V = np.array([[0.25, 1.0], [-0.5, 0.75], [1.5, -1.0]]), np.array([[1.0, -0.5], [0.25, 0.75], [-0.5, 1.5]])
    W, scale = np.array([[1.0, 0.5], [-0.5, 1.5]]), 2.0**1020
    here = AttentionEnergy(W, rho).vjp(Y, V)
    there = AttentionEnergy(W / scale, rho).vjp(Y * scale, V * scale)
    np.testing.assert_allclose(there.Y / scale, here.Y, rtol=0, atol=1e-14)
    assert not np.isnan(there.W).any()
    there = AttentionEnergy(W / scale, rho).vjp(Y * scale, V / scale / 4)
    np.testing.assert_allclose(there.Y * 4 * scale, here.Y, rtol=0, atol=1e-14)
    np.testing.assert_allclose(there.W / scale * 4, here.W, rtol=0, atol=1e-14)


def test_a_second_derivative_is_not_asked_for_where_distances_overflow():
    """There the limit of ρ'' is 0, as ρ' is bounded, whatever a penalty of one's own says."""
    rho = Rho("mine", np.log1p, lambda z: 1 / (1 + z), lambda z: -z / z / (1 + z) ** 2)  # nan at 0 and at inf
    with np.errstate(invalid="ignore"):
        got = AttentionEnergy(None, rho).vjp([[0.0], [1.0], [1e200]], np.ones((3, 1)))
    expected = AttentionEnergy(None, "log1p").vjp([[0.0], [1.0], [1e200]], np.ones((3, 1)))
    np.testing.assert_allclose(got.Y, expected.Y, rtol=4 * EPS)
    np.testing.assert_allclose(got.W, expected.W, rtol=4 * EPS)


def test_a_token_whose_slopes_are_zero_passes_its_cotangent_on():
    # ρ' = max(z − 1, 0) is 0 at z = 0 and 1, where ρ'' is not: no weight, so no C either
    rho = Rho("mine", lambda z: np.maximum(z - 1, 0) ** 2 / 2, lambda z: np.maximum(z - 1, 0), lambda z: 1.0 * (z >= 1))
    V = np.array([[1.0, 2.0], [3.0, 5.0]])
    got = AttentionEnergy(None, rho).vjp([[0.0, 0.0], [1.0, 1.0]], V)
    np.testing.assert_array_equal(got.Y, V)
    np.testing.assert_array_equal(got.W, np.zeros((2, 2)))


@pytest.mark.parametrize("scale", [1e-300, 1.5e308])
def test_the_scale_of_the_penalty_does_not_matter(scale):
    Y, V = random(4, 2) / 8, random(4, 2, seed=5)
    rho = Rho("mine", lambda z: scale * np.log1p(z), lambda z: scale / (1 + z), lambda z: -scale / (1 + z) / (1 + z))
    here, there = (AttentionEnergy(None, penalty).vjp(Y, V) for penalty in ("log1p", rho))
    for part, other in zip(here, there, strict=True):
        np.testing.assert_allclose(other, part, rtol=0, atol=1e-13)


def test_the_scale_of_one_batch_does_not_cost_another_its_digits():
    scale = np.array([2.0**-600, 1.0])[:, None, None]
    Y, V = random(2, 4, 2) * scale, random(2, 4, 2, seed=5) / scale
    got = AttentionEnergy().vjp(Y, V)
    for i in range(2):
        np.testing.assert_array_equal(got.Y[i], AttentionEnergy().vjp(Y[i], V[i]).Y)


# ------------------------------------------------------------------------------------------------ feed-forward

WF = np.array([[0.5, 1.0, -0.25], [-2.0, 0.25, 0.0], [0.75, 0.0, -1.5]])


def away_from_kinks(sigma, v, alpha):
    """Whether each v is clear of a kink or a jump: prox' is nearly the same a little to the left and to the right."""
    left, right = (sigma.prox_derivative(v + h, alpha) for h in (-1e-6, 1e-6))
    return np.abs(left - right) < 1e-3


@pytest.mark.parametrize("alpha", [0.3, 1.0, 1.3, 4.0])
def test_prox_derivative_is_the_slope_of_the_prox(activation, alpha):
    sigma, v, h = ACTIVATIONS[activation], np.linspace(-4, 4, 161) + 1e-3, 1e-5
    slope = (sigma.prox(v + h, alpha) - sigma.prox(v - h, alpha)) / (2 * h)
    clear = away_from_kinks(sigma, v, alpha)
    assert clear.sum() > 150
    # truncation h² / 6 times a third derivative below 100 (α = 0.3), and rounding of 8 EPS · 10 over 2 h
    np.testing.assert_allclose(sigma.prox_derivative(v, alpha)[clear], slope[clear], rtol=0, atol=3e-9)


KINKS = [  # activation, α, v, prox'(v) there and on both sides
    (relu(), 0.5, [-1.0, 0.0, 5e-324], [0, 0, 1]),
    (shifted_relu(0.5), 0.5, [0.2, 0.25, 0.3], [0, 0, 1]),
    (soft_threshold(1.0), 0.5, [-0.6, -0.5, 0.0, 0.5, 0.6], [1, 0, 0, 0, 1]),
    (soft_threshold(0.0), 0.5, [-1.0, 0.0, 1.0], [1, 1, 1]),
    (hard_threshold(0.5), 4.0, [-1.1, -1.0, 0.0, 1.0, 1.1], [1, 0, 0, 0, 1]),
    (hard_threshold(0.0), 4.0, [-1.0, 0.0, 1.0], [1, 1, 1]),
    (leaky_relu(0.25), 1.0, [-1.0, 0.0, 1.0], [0.25, 0.25, 1]),
    # v / (1 + 4 · 3)
    (leaky_relu(0.25), 4.0, [-1.0, 0.0, 1.0], [1 / 13, 1 / 13, 1]),
    (leaky_relu(1.0), 4.0, [-1.0, 0.0, 1.0], [1, 1, 1]),
    (clip(), 0.5, [-2.0, -1.0, 0.0, 1.0, 2.0], [0, 0, 1, 0, 0]),
    (clip(1.0, 1.0), 0.5, [0.0, 1.0, 2.0], [0, 0, 0]),
    (elu(0.5), 1.0, [-1.0, 0.0, 1.0], [0.5 * np.exp(-1.0), 0.5, 1]),
    # ½ / (½ (1 − 4) + 4)
    (elu(0.5), 4.0, [0.0, 1.0], [0.2, 1]),
    (ACTIVATIONS["identity"], 4.0, [-1.0, 0.0], [1, 1]),
    (ACTIVATIONS["tanh"], 1.0, [0.0, 1e308, -1e308], [1, 0, 0]),
    (ACTIVATIONS["sigmoid"], 1.0, [0.0, 1e308, -1e308], [0.25, 0, 0]),
    # ¼ / (¼ (1 − 4) + 4) where v + 3 · ½ = 0
    (ACTIVATIONS["sigmoid"], 4.0, [-1.5], [1 / 13]),
    (ACTIVATIONS["softplus"], 1.0, [0.0, 1e308, -1e308], [0.5, 1, 0]),
]


@pytest.mark.parametrize(("sigma", "alpha", "v", "expected"), KINKS, ids=lambda p: getattr(p, "name", None))
def test_prox_derivative_by_hand_and_at_kinks(sigma, alpha, v, expected):
    with np.errstate(over="ignore"):  # of 2 v, as the energies do
        np.testing.assert_allclose(sigma.prox_derivative(np.array(v), alpha), expected, rtol=16 * EPS, atol=0)


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "softplus", "elu"])
def test_prox_derivative_keeps_its_digits_where_the_activation_saturates(name):
    # σ' there is 4 e^(−2 |v|), e^(−|v|), e^v, e^v up to a factor 1 − e^(−30)
    expected = {"tanh": 4 * np.exp(-60.0)}.get(name, np.exp(-30.0))
    assert ACTIVATIONS[name].prox_derivative(np.array([-30.0]), 1.0)[0] == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.parametrize("B", [0.5, random(3), random(4, 3), random(4, 1) * np.ones(3), random(1, 3)], ids=np.shape)
def test_feedforward_against_fifty_digits(activation, B, exact):
    sigma, Y, V = ACTIVATIONS[activation], random(4, 3), random(4, 3, seed=5)
    full = np.broadcast_to(B, (4, 3))

    def prox_prime(v, alpha):  # tested above and by the claim; here it is taken as it is
        return float(sigma.prox_derivative(np.array([float(v)]), float(alpha))[0])

    for alpha in (0.5, 1.0, 1.3):
        got = FeedForwardEnergy(WF, B, activation).vjp(Y, V, alpha)
        args = (Y, WF, full, prox_prime, alpha, V)
        Y_bar, Wf_bar, B_bar = (
            exact(lambda *a, part=part: definitions.feedforward_vjp(*a)[part], *args) for part in range(3)
        )
        np.testing.assert_allclose(got.Y, Y_bar, rtol=0, atol=1e-13)
        np.testing.assert_allclose(got.Wf, Wf_bar, rtol=0, atol=1e-13)
        np.testing.assert_array_equal(got.Wf, got.Wf.T)
        assert np.shape(got.B) == np.shape(B)
        summed = {(): B_bar.sum(), (3,): B_bar.sum(0), (4, 3): B_bar, (1, 3): B_bar.sum(0, keepdims=True)}
        np.testing.assert_allclose(got.B, summed[np.shape(B)], rtol=0, atol=1e-13)


def test_feedforward_by_hand():
    # derivation 06: the argument is (2, −½), and ReLU stops the second feature
    got = FeedForwardEnergy([[0.0, 1.0], [0.0, 0.0]], [3.0, 0.0]).vjp([[1.0, 2.0]], [[1.0, 1.0]])
    np.testing.assert_array_equal(got.Y, [[0.0, -0.5]])
    np.testing.assert_array_equal(got.Wf, [[-1.0, -1.0], [-1.0, 0.0]])
    np.testing.assert_array_equal(got.B, [1.0, 0.0])
    # ReLU at 0 exactly passes nothing on
    stopped = FeedForwardEnergy([[0.0]]).vjp([[1.0]], [[1.0]])
    np.testing.assert_array_equal([stopped.Y[0, 0], stopped.Wf[0, 0], stopped.B], [0.0, 0.0, 0.0])
    # identity, α = ½: y⁺ = ½ y − ½ (w y − b)
    got = FeedForwardEnergy([[3.0]], 4.0, "identity").vjp([[5.0]], [[2.0]], 0.5)
    assert (got.Y[0, 0], got.Wf[0, 0], got.B) == (-2.0, -5.0, 1.0)
    assert np.ndim(got.B) == 0


def test_feedforward_is_the_adjoint_of_the_tangent(activation):
    sigma, Y, V, B = ACTIVATIONS[activation], random(4, 3), random(4, 3, seed=5), random(3, seed=3)
    TY, TWf, TB = random(4, 3, seed=6), random(3, 3, seed=7), random(3, seed=8)
    for alpha in (0.5, 1.0, 1.3):
        Ws, TWs = (WF + WF.T) / 2, (TWf + TWf.T) / 2
        v = Y - alpha * (Y + Y @ Ws - B)
        T = TY - alpha * (TY + TY @ Ws + Y @ TWs - TB)
        forwards = (V * sigma.prox_derivative(v, alpha) * T).sum()
        got = FeedForwardEnergy(WF, B, activation).vjp(Y, V, alpha)
        backwards = (got.Y * TY).sum() + (got.Wf * TWf).sum() + (got.B * TB).sum()
        assert abs(forwards - backwards) <= 1e-13


# ------------------------------------------------------------------------------------------------ the layer


def layer(rho="exp", activation="relu", alpha=1.0, m=None, B=None):
    attention = AttentionEnergy(random(3, 2, seed=2), rho, m)
    feedforward = FeedForwardEnergy(WF, random(4, 3, seed=3) if B is None else B, activation)
    return UnfoldedTransformer(attention, feedforward, alpha=alpha)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.3])
def test_the_layer_is_the_chain_of_its_steps(alpha):
    model, Y, V = layer(alpha=alpha), random(4, 3), random(4, 3, seed=5)
    second = model.feedforward.vjp(model.attention.step(Y, alpha), V, alpha)
    first = model.attention.vjp(Y, second.Y, alpha)
    got = model.vjp(Y, V)
    for part, expected in zip(got, (first.Y, first.W, second.Wf, second.B), strict=True):
        np.testing.assert_array_equal(part, expected)


def test_the_layer_is_the_slope_of_its_result():
    """A central difference of the layer itself along every input: nothing of the vjp is used on that side."""
    Y, W, B, V, h = random(4, 3), random(3, 2, seed=2), random(3, seed=3), random(4, 3, seed=5), 1e-6

    def loss(Y, W, Wf, B):
        model = UnfoldedTransformer(AttentionEnergy(W, "log2"), FeedForwardEnergy(Wf, B, "softplus"), alpha=0.7)
        return (V * model.layer(Y)).sum()

    inputs = [Y, W, WF, B]
    got = UnfoldedTransformer(AttentionEnergy(W, "log2"), FeedForwardEnergy(WF, B, "softplus"), alpha=0.7).vjp(Y, V)
    for which, cotangent in enumerate(got):
        for index in np.ndindex(inputs[which].shape):
            up, down = ([M.copy() for M in inputs] for _ in range(2))
            up[which][index] += h
            down[which][index] -= h
            # truncation of order h², and rounding of 10 EPS · 30 over 2 h
            assert cotangent[index] == pytest.approx((loss(*up) - loss(*down)) / (2 * h), abs=1e-7)


def test_the_joint_schedule_and_the_data_term_have_no_vjp(refused):
    attention, feedforward = AttentionEnergy(), FeedForwardEnergy([[0.5]])
    with refused(ValueError, "schedule: expected 'alternating' for a vjp, got 'joint'"):
        UnfoldedTransformer(attention, feedforward, schedule="joint").vjp([[1.0]], [[1.0]])
    with refused(ValueError, "attention: expected an AttentionEnergy for a vjp, got ResidualAttentionEnergy"):
        UnfoldedTransformer(ResidualAttentionEnergy(attention), feedforward).vjp([[1.0]], [[1.0]])


# ------------------------------------------------------------------------------------------------ torch


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="torch is not installed: its derivatives are not compared with")


def torch_slope(torch, rho):
    return {
        "exp": lambda z: torch.exp(-z),
        "log2": lambda z: 1 / (z + 2),
        "log1p": lambda z: 1 / (1 + z),
        "sqrt": lambda z: 0.5 / torch.sqrt(1 + z),
        "geman_mcclure": lambda z: 1 / (1 + z) ** 2,
        "linear": lambda z: z * 0 + 1,
        "epanechnikov": lambda z: torch.clamp(1 - z, min=0),
        "truncated": lambda z: (z < 1) + 0 * z,
    }[rho]


def torch_attention(torch, Y, W, rho, m, alpha):
    U = Y @ W
    z = 0.5 * ((U[..., :, None, :] - U[..., None, :, :]) ** 2).sum(-1)
    Gamma = torch.tensor(m) * torch_slope(torch, rho)(z)
    return (1 - alpha) * Y + alpha * (Gamma / Gamma.sum(-1, keepdim=True)) @ Y


def torch_activation(torch, activation):
    """σ at α = 1, as PyTorch has it."""
    F = torch.nn.functional
    return {
        "identity": lambda v: v,
        "relu": F.relu,
        "shifted_relu": lambda v: F.relu(v - 0.5),
        "soft_threshold": lambda v: F.softshrink(v, 0.5),
        "hard_threshold": lambda v: F.hardshrink(v, 0.5),
        "leaky_relu": lambda v: F.leaky_relu(v, 0.01),
        "hard_tanh": F.hardtanh,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "softplus": lambda v: F.softplus(v, threshold=700),
        "elu": F.elu,
    }[activation]


def torch_cotangents(torch, function, V, *inputs):
    inputs = [torch.tensor(M, dtype=torch.float64, requires_grad=True) for M in inputs]
    return [g.numpy() for g in torch.autograd.grad((torch.tensor(V) * function(*inputs)).sum(), inputs)]


@pytest.mark.parametrize("shape", [(4, 3), (2, 5, 4, 3)], ids=str)
def test_attention_against_torch(torch, shape, rho):
    Y, W, V, m = random(*shape), random(3, 2, seed=2), random(*shape, seed=5), weights_of_pairs(4, 4) + np.eye(4)
    for alpha in ALPHAS:
        expected = torch_cotangents(torch, lambda Y, W, a=alpha: torch_attention(torch, Y, W, rho, m, a), V, Y, W)
        for part, other in zip(AttentionEnergy(W, rho, m).vjp(Y, V, alpha), expected, strict=True):
            np.testing.assert_allclose(part, other, rtol=0, atol=2e-13)


@pytest.mark.parametrize("shape", [(4, 3), (2, 5, 4, 3)], ids=str)
def test_the_layer_against_torch(torch, shape, activation):
    Y, V, model = random(*shape), random(*shape, seed=5), layer("log1p", activation, m=weights_of_pairs(4, 4))

    def function(Y, W, Wf, B):
        middle = torch_attention(torch, Y, W, "log1p", model.attention.pair_weights, 1.0)
        return torch_activation(torch, activation)(B - middle @ (Wf + Wf.T) / 2)

    expected = torch_cotangents(torch, function, V, Y, model.attention.W, WF, model.feedforward.B)
    for part, other in zip(model.vjp(Y, V), expected, strict=True):
        np.testing.assert_allclose(part, other, rtol=0, atol=2e-13)


@pytest.mark.parametrize(("name", "v"), [
    ("relu", 0.0), ("shifted_relu", 0.5), ("soft_threshold", 0.5), ("leaky_relu", 0.0), ("hard_tanh", 1.0),
    ("hard_tanh", -1.0), ("elu", 0.0), ("hard_threshold", 0.5),
])  # fmt: skip
def test_kinks_are_taken_as_torch_takes_them(torch, name, v):
    (expected,) = torch_cotangents(torch, torch_activation(torch, name), np.ones(1), [v])
    np.testing.assert_array_equal(ACTIVATIONS[name].prox_derivative(np.array([v]), 1.0), expected)


# ------------------------------------------------------------------------------------------------ shapes


@pytest.mark.parametrize("m_shape", [None, (4, 4), (3, 4, 4), (2, 1, 4, 4)], ids=str)
def test_a_batch_is_a_loop(m_shape, rho):
    Y, V, W = random(2, 3, 4, 2), random(2, 3, 4, 2, seed=5), random(2, 2, seed=2)
    m = None if m_shape is None else weights_of_pairs(*m_shape)
    full = np.broadcast_to(np.ones((4, 4)) if m is None else m, (2, 3, 4, 4))
    got = AttentionEnergy(W, rho, m).vjp(Y, V, 0.7)
    loop = [[AttentionEnergy(W, rho, full[i, j]).vjp(Y[i, j], V[i, j], 0.7) for j in range(3)] for i in range(2)]
    np.testing.assert_allclose(got.Y, [[one.Y for one in row] for row in loop], rtol=0, atol=1e-13)
    np.testing.assert_allclose(got.W, sum(one.W for row in loop for one in row), rtol=0, atol=1e-12)


def test_one_set_of_tokens_under_many_pair_weights(rho):
    """Y⁺ has the batch of m: V as well, and Ȳ is summed over it."""
    Y, V, m = random(4, 2), random(3, 4, 2, seed=5), weights_of_pairs(3, 4, 4)
    energy = AttentionEnergy(None, rho, m)
    assert energy.step(Y).shape == V.shape
    got, loop = energy.vjp(Y, V), [AttentionEnergy(None, rho, w).vjp(Y, v) for w, v in zip(m, V, strict=True)]
    np.testing.assert_allclose(got.Y, sum(one.Y for one in loop), rtol=0, atol=1e-13)
    np.testing.assert_allclose(got.W, sum(one.W for one in loop), rtol=0, atol=1e-12)


@pytest.mark.parametrize("B_shape", [(), (2,), (4, 2), (4, 1, 2)[1:], (3, 4, 2), (2, 1, 4, 2)], ids=str)
def test_a_feedforward_batch_is_a_loop(B_shape):
    Y, V, Wf, B = random(2, 3, 4, 2), random(2, 3, 4, 2, seed=5), random(2, 2, seed=2), random(*B_shape, seed=3)
    got, full = FeedForwardEnergy(Wf, B, "tanh").vjp(Y, V, 0.7), np.broadcast_to(B, Y.shape)
    loop = [[FeedForwardEnergy(Wf, full[i, j], "tanh").vjp(Y[i, j], V[i, j], 0.7) for j in range(3)] for i in range(2)]
    np.testing.assert_allclose(got.Y, [[one.Y for one in row] for row in loop], rtol=0, atol=1e-13)
    np.testing.assert_allclose(got.Wf, sum(one.Wf for row in loop for one in row), rtol=0, atol=1e-12)
    each = np.array([[one.B for one in row] for row in loop])  # (2, 3, 4, 2)
    summed = {
        (): each.sum(),
        (2,): each.sum((0, 1, 2)),
        (1, 2): each.sum((0, 1, 2))[None],
        (4, 2): each.sum((0, 1)),
        (3, 4, 2): each.sum(0),
        (2, 1, 4, 2): each.sum(1, keepdims=True),
    }
    assert np.shape(got.B) == B_shape
    np.testing.assert_allclose(got.B, summed[B_shape], rtol=0, atol=1e-12)


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("batch", [(), (2,), (0,)], ids=str)
def test_no_token_and_one_token(batch, n, rho):
    Y, V = random(*batch, n, 3), random(*batch, n, 3, seed=5)
    got = layer(rho, "softplus", B=0.5).vjp(Y, V)
    assert [np.shape(part) for part in got] == [Y.shape, (3, 2), (3, 3), ()]
    attention = AttentionEnergy(random(3, 2, seed=2), rho).vjp(Y, V)
    np.testing.assert_array_equal(attention.Y, V)  # a single token stays where it is
    np.testing.assert_array_equal(attention.W, np.zeros((3, 2)))


def test_maps_without_columns(rho):
    got = AttentionEnergy(np.zeros((2, 0)), rho).vjp(random(4, 2), random(4, 2, seed=5))
    assert got.W.shape == (2, 0)
    # all tokens coincide in U: Y⁺ is their mean
    np.testing.assert_allclose(got.Y, np.tile(random(4, 2, seed=5).mean(axis=0), (4, 1)), rtol=0, atol=4 * EPS)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_narrow_floats_stay(dtype):
    Y, V = random(4, 3).astype(dtype), random(4, 3, seed=5)
    model = layer(B=0.25)
    for term in (model.attention, model.feedforward):
        got, wide = term.vjp(Y, V), term.vjp(Y.astype(float), V)
        for part, other in zip(got, wide, strict=True):
            assert part.dtype == dtype
            np.testing.assert_array_equal(part, other.astype(dtype))
    # the layer's tokens between the steps are narrow as well
    second = model.feedforward.vjp(model.attention.step(Y).astype(float), V)
    first = model.attention.vjp(Y.astype(float), second.Y)
    for part, other in zip(model.vjp(Y, V), (first.Y, first.W, second.Wf, second.B), strict=True):
        assert part.dtype == dtype
        np.testing.assert_array_equal(part, other.astype(dtype))


def test_integers_lists_and_inputs_that_are_kept():
    model, Y, V = layer(), random(4, 3), random(4, 3, seed=5)
    kept, first = (Y.copy(), V.copy()), model.vjp(Y, V)
    for M in (Y, V):
        M.setflags(write=False)
    for part, again in zip(first, model.vjp(Y, V), strict=True):
        np.testing.assert_array_equal(part, again)
        part[...] = 9.0  # its own memory
    for M, before in zip((Y, V), kept, strict=True):
        np.testing.assert_array_equal(M, before)
    whole = np.arange(12).reshape(4, 3)
    for part, other in zip(
        model.vjp(whole.tolist(), whole), model.vjp(whole.astype(float), V * 0 + whole), strict=True
    ):
        assert part.dtype == np.float64
        np.testing.assert_array_equal(part, other)


# ------------------------------------------------------------------------------------------------ refusals

TERMS = {
    "attention": AttentionEnergy(),
    "feedforward": FeedForwardEnergy([[0.5]]),
    "layer": UnfoldedTransformer(AttentionEnergy(), FeedForwardEnergy([[0.5]])),
}


@pytest.fixture(params=TERMS.values(), ids=TERMS)
def term(request):
    return request.param


def test_bad_tokens(term, bad_array, refused):
    Y, error, came = bad_array
    with refused(error, f"Y: expected .*, got .*{came}"):
        term.vjp(Y, [[1.0]])


def test_bad_cotangents(term, bad_array, refused):
    V, error, came = bad_array
    with refused(error, f"cotangent: expected .*, got .*{came}"):
        term.vjp([[1.0]], V)


@pytest.mark.parametrize("shape", [(), (1,), (2, 1), (1, 2), (1, 1, 1)], ids=str)
def test_cotangents_of_another_shape(term, shape, refused):
    with refused(ValueError, r"cotangent: expected shape \(1, 1\), that of the result, got shape \("):
        term.vjp([[1.0]], np.ones(shape))


@pytest.mark.parametrize("name", ["attention", "feedforward"])
def test_bad_alpha(name, bad_number, refused):
    alpha, error, came = bad_number
    with refused(error, f"alpha: expected a .*number.*, got .*{came}"):
        TERMS[name].vjp([[1.0]], [[1.0]], alpha)


def test_alpha_out_of_range(refused):
    with refused(ValueError, r"alpha: expected a number in \[0, inf\), got -0.5"):
        TERMS["attention"].vjp([[1.0]], [[1.0]], -0.5)
    for alpha in (0, -0.5):
        with refused(ValueError, rf"alpha: expected a number in \(0, inf\), got {alpha}"):
            TERMS["feedforward"].vjp([[1.0]], [[1.0]], alpha)


def test_a_penalty_without_a_second_derivative(refused):
    rho = Rho("mine", lambda z: z, np.ones_like)
    with refused(ValueError, "rho: expected a penalty with a second derivative, 'mine' has none"):
        AttentionEnergy(None, rho).vjp([[1.0]], [[1.0]])


def test_a_second_derivative_that_is_not_finite(refused):
    rho = Rho("mine", lambda z: z, np.ones_like, lambda z: np.where(z == 0.5, np.nan, 0.0))
    with refused(ValueError, "rho: expected a finite second derivative, 'mine' has another at z = 0.5"):
        AttentionEnergy(None, rho).vjp([[0.0], [1.0]], [[1.0], [1.0]])


def test_a_constant_second_derivative_may_be_a_number():
    rho = Rho("mine", lambda z: z, lambda z: 1.0, lambda z: 0.0)
    for part, other in zip(
        AttentionEnergy(None, rho).vjp(random(3, 2), random(3, 2, seed=5)),
        AttentionEnergy(None, "linear").vjp(random(3, 2), random(3, 2, seed=5)),
        strict=True,
    ):
        np.testing.assert_array_equal(part, other)


def test_an_activation_without_a_prox_derivative(refused):
    mine = Activation("mine", np.zeros_like, lambda v, alpha: v)
    with refused(ValueError, "activation: expected one with a prox_derivative, 'mine' has none"):
        FeedForwardEnergy([[0.5]], 0.0, mine).vjp([[1.0]], [[1.0]])
    assert all(sigma.prox_derivative is not None for sigma in ACTIVATIONS.values())
