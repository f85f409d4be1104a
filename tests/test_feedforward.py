"""The feed-forward energy and its proximal step."""

import dataclasses

import numpy as np
import pytest

from refimpl import ACTIVATIONS, FeedForwardEnergy, definitions
from refimpl.activation import leaky_relu, shifted_relu, soft_threshold

EPS = np.finfo(float).eps
WF = np.array([[0.5, 1.0, -0.25], [-2.0, 0.25, 0.0], [0.75, 0.0, -1.5]])


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.fixture(params=ACTIVATIONS)
def activation(request):
    return request.param


def inside(activation, *shape, seed=0):
    """Tokens in the domain of φ."""
    return ACTIVATIONS[activation].prox(random(*shape, seed=seed), 1.0)


@pytest.mark.parametrize("B", [0.0, 0.5, random(3), random(4, 3)], ids=lambda B: str(np.shape(B)))
def test_against_fifty_digits(activation, B, exact):
    sigma, Y = ACTIVATIONS[activation], inside(activation, 4, 3)
    ffn, full = FeedForwardEnergy(WF, B, activation), np.broadcast_to(B, (4, 3))

    # φ and the prox are tested against theirs in test_activation.py; here they are taken as they are
    def phi(y):
        return float(sigma.penalty(np.array([float(y)]))[0])

    value = float(exact(definitions.feedforward_energy, Y, WF, full, phi))
    assert ffn.value(Y) == pytest.approx(value, rel=0, abs=100 * EPS * (1 + np.abs(Y).sum() ** 2))
    gradient = exact(definitions.feedforward_gradient, Y, WF, full)
    np.testing.assert_allclose(ffn.gradient(Y), gradient, rtol=0, atol=32 * EPS)  # sums of 5 terms up to 5
    for alpha in (0.25, 1.0, 1.7):
        inner = exact(definitions.feedforward_step, Y, WF, full, lambda v, alpha: v, alpha)
        # prox is 1-Lipschitz, or the argument is away from the jump
        np.testing.assert_allclose(ffn.step(Y, alpha), sigma.prox(inner, alpha), rtol=0, atol=64 * EPS)


def test_at_step_one_with_relu_it_is_the_layer():
    Y, B = np.abs(random(4, 3)), random(4, 3, seed=2)
    expected = np.maximum(B - Y @ (WF + WF.T) / 2, 0)
    np.testing.assert_allclose(FeedForwardEnergy(WF, B).step(Y), expected, rtol=0, atol=16 * EPS)


@pytest.mark.parametrize("shift", [0.0, 1.0, -7.5])
def test_only_the_symmetric_part_acts(shift, activation):
    Y, skew = inside(activation, 4, 3), np.array([[0.0, 1.0, 2.0], [-1.0, 0.0, 4.0], [-2.0, -4.0, 0.0]])
    one, other = (FeedForwardEnergy(W, 0.25, activation) for W in (WF, WF + shift * skew))
    assert one.value(Y) == pytest.approx(other.value(Y), abs=64 * EPS * (1 + abs(shift)))
    for method in ("gradient", "step"):
        got, expected = getattr(other, method)(Y), getattr(one, method)(Y)
        np.testing.assert_allclose(got, expected, rtol=0, atol=64 * EPS)
    assert one.curvature == pytest.approx(other.curvature, rel=8 * EPS)


def test_by_hand():
    ffn = FeedForwardEnergy([[0, 1], [0, 0]], 0.0, "identity")
    np.testing.assert_array_equal(ffn.step([[1, 2]]), [[-1.0, -0.5]])
    np.testing.assert_array_equal(ffn.step([[1, 2]], 0.5), [[0.0, 0.75]])
    np.testing.assert_array_equal(ffn.gradient([[1, 2]]), [[2.0, 2.5]])
    assert ffn.value([[1, 2]]) == 3.5  # ½ · (1 · 1 · 2) + ½ (1 + 4)
    np.testing.assert_array_equal(FeedForwardEnergy([[0, 1], [0, 0]]).step([[1, 2]]), [[0.0, 0.0]])
    assert (ffn.curvature, ffn.max_alpha) == (1.5, pytest.approx(4 / 3))
    np.testing.assert_array_equal(ffn.half_curvature([[1, 2], [3, 4]]), [0.75, 0.75])
    # prox scale: argument 3, α = ¼: soft threshold 1 takes away ¼, leaky ReLU divides by 1 + ¼ · 3
    zero = np.zeros((1, 1))
    assert FeedForwardEnergy(zero, 3.0, soft_threshold(1.0)).step([[3.0]], 0.25) == 2.75
    assert FeedForwardEnergy(zero, -7.0, leaky_relu(0.25)).step([[-7.0]], 0.25) == -4.0
    assert FeedForwardEnergy(zero, 3.0, shifted_relu(1.0)).step([[3.0]], 0.25) == 2.75


@pytest.mark.parametrize(
    ("Wf", "activation", "curvature", "max_alpha"),
    [
        ([[3.0]], "relu", 4.0, 0.5),
        ([[3.0]], "hard_threshold", 4.0, 0.25),
        ([[-1.0]], "relu", 0.0, np.inf),
        ([[-3.0]], "hard_threshold", -2.0, np.inf),
        ([[1.0, 2.0], [2.0, 1.0]], "tanh", 4.0, 0.5),
        ([[0.0, 4.0], [0.0, 0.0]], "tanh", 3.0, 2 / 3),
        (np.zeros((0, 0)), "relu", 1.0, 2.0),
    ],
)
def test_curvature_and_max_alpha(Wf, activation, curvature, max_alpha):
    ffn = FeedForwardEnergy(Wf, 0.0, activation)
    assert ffn.curvature == pytest.approx(curvature, abs=8 * EPS)
    assert ffn.max_alpha == pytest.approx(max_alpha, rel=8 * EPS)
    Y = np.ones((2, 3, len(np.asarray(Wf))))
    np.testing.assert_allclose(ffn.half_curvature(Y), np.full((2, 3), max(curvature, 0) / 2), atol=8 * EPS)


def test_the_longest_step_is_the_longest():
    # ½ λ y² + ½ (y − b)² from y: α = max_alpha reflects at the minimiser, and a little more rises
    ffn = FeedForwardEnergy([[3.0]], 4.0, "identity")
    assert ffn.step([[5.0]], ffn.max_alpha) == -3.0
    assert ffn.value([[-3.0]]) == ffn.value([[5.0]])
    assert ffn.value(ffn.step([[5.0]], 1.01 * ffn.max_alpha)) > ffn.value([[5.0]])
    assert ffn.value(ffn.step([[5.0]], 0.99 * ffn.max_alpha)) < ffn.value([[5.0]])


def test_descent_by_the_stated_amount(activation):
    sigma = ACTIVATIONS[activation]
    for seed in range(5):
        Wf, Y = random(3, 3, seed=seed), inside(activation, 4, 3, seed=seed)
        ffn = FeedForwardEnergy(Wf, random(4, 3, seed=seed + 50), activation)
        for part in (0.1, 0.5, 1.0):
            alpha = part * min(ffn.max_alpha, 4.0)
            step = ffn.step(Y, alpha)
            bound = (1 / alpha - ffn.curvature / 2) * np.sum((step - Y) ** 2) if sigma.convex else 0.0
            assert ffn.value(Y) - ffn.value(step) >= bound - 1e-12 * (1 + abs(ffn.value(Y)))


def test_a_minimiser_is_a_fixed_point():
    H = np.eye(3) + WF @ WF.T  # positive definite
    B = random(4, 3)
    ffn, Y = FeedForwardEnergy(WF @ WF.T, B, "identity"), B @ np.linalg.inv(H)
    np.testing.assert_allclose(ffn.step(Y, 0.5), Y, rtol=0, atol=1e-14)
    relu = FeedForwardEnergy(np.zeros((3, 3)), B)
    np.testing.assert_array_equal(relu.step(np.maximum(B, 0)), np.maximum(B, 0))


@pytest.mark.parametrize(("activation", "y"), [
    ("relu", -5e-324), ("shifted_relu", -1.0), ("hard_tanh", 1 + EPS), ("tanh", -1 - EPS), ("sigmoid", -1e-9),
    ("sigmoid", 1.5), ("softplus", -1.0), ("elu", -1.5),
])  # fmt: skip
def test_outside_the_domain_the_energy_is_infinite_and_one_step_returns(activation, y):
    ffn, Y = FeedForwardEnergy(np.zeros((1, 1)), 0.0, activation), np.array([[[y]], [[0.5]]])
    assert ffn.value(Y)[0] == np.inf
    assert np.isfinite(ffn.value(Y)[1])
    assert np.isfinite(ffn.gradient(Y)).all()
    assert np.isfinite(ffn.value(ffn.step(Y))).all()


# ------------------------------------------------------------------------------------------------ in a metric

SIMILAR, P_DIAGONAL = [[0.0, 2.0], [1.0, 0.0]], [1.0, 2.0]  # w_01 p_1 = 4, w_10 p_0 = 1: not its metric
METRIC = [1.0, 0.5]  # w_01 p_1 = 1 = w_10 p_0


def test_a_metric_by_hand():
    ffn, Y = FeedForwardEnergy(SIMILAR, 0.0, "identity", METRIC), [[1.0, 2.0]]
    assert ffn.value(Y) == 3.5  # ½ (1 · 2 + 2 · 1) + ½ (1 + ½ · 4)
    np.testing.assert_array_equal(ffn.gradient(Y), [[3.0, 2.0]])  # Y H = (3, 4), times p
    np.testing.assert_array_equal(ffn.step(Y, 0.5), [[-0.5, 0.0]])
    np.testing.assert_array_equal(ffn.step(Y), [[-2.0, -2.0]])  # −Y W_f, not −Y W_fˢ
    assert ffn.curvature == pytest.approx(1 + np.sqrt(2), rel=8 * EPS)
    # λ_max of H P = ((1, 1), (1, ½))
    np.testing.assert_allclose(ffn.half_curvature(Y), [0.5 * (0.75 + np.sqrt(0.0625 + 1))], rtol=8 * EPS)
    soft = FeedForwardEnergy(SIMILAR, 0.0, soft_threshold(1.0), METRIC)
    assert soft.value(Y) == 3.5 + 1 + 0.5 * 2  # Σ p_a τ |y_a|
    np.testing.assert_array_equal(soft.step([[4.0, -4.0]]), [[3.0, -7.0]])  # the prox itself has no p


@pytest.mark.parametrize("metric", [np.eye(3), np.ones(3), 4 * np.ones(3)], ids=["I", "1", "4"])
def test_the_identity_is_a_metric_of_symmetric_weights(metric, activation):
    S, B, Y = (WF + WF.T) / 2, random(4, 3), inside(activation, 4, 3)
    one, other = FeedForwardEnergy(WF, B, activation), FeedForwardEnergy(S, B, activation, metric)
    factor = np.max(metric)
    assert other.value(Y) == pytest.approx(factor * one.value(Y), abs=256 * EPS)
    np.testing.assert_allclose(other.gradient(Y), factor * one.gradient(Y), rtol=0, atol=128 * EPS)
    for alpha in (0.25, 1.0):
        np.testing.assert_allclose(other.step(Y, alpha), one.step(Y, alpha), rtol=0, atol=64 * EPS)
    assert other.max_alpha == pytest.approx(one.max_alpha, rel=32 * EPS)
    np.testing.assert_allclose(other.half_curvature(Y), factor * one.half_curvature(Y), rtol=32 * EPS)


def test_a_full_and_a_diagonal_metric_are_one():
    Y = random(4, 2)
    here, there = (FeedForwardEnergy(SIMILAR, 0.5, "relu", P) for P in (METRIC, np.diag(METRIC)))
    np.testing.assert_array_equal(here.metric, there.metric)
    assert here.value(np.abs(Y)) == there.value(np.abs(Y))
    with pytest.raises(ValueError, match="read-only"):
        there.metric[0] = 1.0


def test_the_vjp_in_a_metric():
    Y, V = np.array([[1.0, 2.0]]), np.ones((1, 2))
    got = FeedForwardEnergy(SIMILAR, 0.0, "identity", METRIC).vjp(Y, V, 0.5)
    np.testing.assert_array_equal(got.Y, [[-0.5, 0.0]])  # ½ V − ½ V W_fᵀ = (½ − 1, ½ − ½)
    np.testing.assert_array_equal(got.Wf, [[-0.5, -0.5], [-1.0, -1.0]])  # −½ Yᵀ V
    assert got.B == 1.0
    stopped = FeedForwardEnergy(SIMILAR, [[3.0, 1.0]], "relu", METRIC).vjp(Y, V)  # B − Y W_f = (1, −1)
    np.testing.assert_array_equal(stopped.Y, [[0.0, -1.0]])
    np.testing.assert_array_equal(stopped.Wf, [[-1.0, 0.0], [-2.0, 0.0]])


def test_the_vjp_in_a_metric_is_the_slope_of_the_step():
    Y, V, T = random(2, 4, 2), random(2, 4, 2, seed=1), random(2, 4, 2, seed=2)
    ffn, h = FeedForwardEnergy(SIMILAR, 0.25, "tanh", METRIC), 2.0**-17
    ahead, behind = ((V * ffn.step(Y + s * h * T, 0.7)).sum() for s in (1, -1))
    # third derivatives of at most 100 and sums of 16 terms of at most 10
    assert (ahead - behind) / (2 * h) == pytest.approx((ffn.vjp(Y, V, 0.7).Y * T).sum(), abs=100 * h**2 + 160 * EPS / h)


@pytest.mark.parametrize(
    ("metric", "match"),
    [
        (P_DIAGONAL, "expected P with Wf P symmetric, got one off by 0.6 "),
        (np.array([[2.0, 1.0], [1.0, 2.0]]), "expected P with Wf P symmetric, got one off by "),
        ([1.0, 0.0], "expected a positive definite one, got the eigenvalue 0"),
        ([[1.0, 2.0], [2.0, 1.0]], "expected a positive definite one, got the eigenvalue -1"),
        ([[1.0, 1.0], [0.0, 1.0]], "expected a symmetric matrix, got one that is off by 1 "),
        (1.0, r"expected shape \(2,\) or \(2, 2\), as Wf has, got shape \(\)"),
        ([1.0, 1.0, 1.0], r"expected shape \(2,\) or \(2, 2\), as Wf has, got shape \(3,\)"),
        ([np.nan, 1.0], "expected finite numbers, got nan"),
    ],
)
def test_what_is_no_metric(metric, match, refused):
    with refused(ValueError, f"metric: {match}"):
        FeedForwardEnergy(SIMILAR, 0.0, "relu", metric)


@pytest.mark.parametrize("metric", [np.ones(3), np.eye(3)], ids=["1", "I"])
@pytest.mark.parametrize("name", ["relu", "identity"])
def test_a_rotation_beside_a_large_weight_has_no_metric(name, metric, refused):
    """At the threshold of the largest entry it would pass, and E would rise from 0 to 1 at α = 1 ≤ ``max_alpha``."""
    Wf = np.array([[-1e11, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]])
    with refused(ValueError, "metric: expected P with Wf P symmetric, got one off by "):
        FeedForwardEnergy(Wf, [0.0, 1.0, 1.0], name, metric)


@pytest.mark.parametrize(
    ("large", "least"), [(0.0, 1.0), (0.0, 1e-4), (0.0, 1e-8), (0.0, 1e-12), (-1e11, 1.0), (-1e11, 1e-4)]
)
def test_a_rotation_where_the_metric_is_small_has_none(large, least, refused):
    Q, W = np.linalg.qr(random(3, 3))[0], np.zeros((3, 3))
    W[0, 0], W[1, 2], W[2, 1] = large, 5.0, -5.0
    P = Q @ np.diag([2.0, least, least]) @ Q.T
    with refused(ValueError, "metric: expected P with Wf P symmetric, got one off by "):
        FeedForwardEnergy(Q @ W @ Q.T, 0.0, "identity", (P + P.T) / 2)


@pytest.mark.parametrize("least", [1.0, 1e-4, 1e-8, 1e-12])
def test_what_rounding_explains_where_the_metric_is_small_it_does_not_where_it_is_large(least, refused):
    Q, W = np.linalg.qr(random(3, 3))[0], np.diag([1.0, 2.0, 3.0])
    W[0, 1] = 1e-6
    P = Q @ np.diag([1.0, 1.0, least]) @ Q.T
    with refused(ValueError, "metric: expected P with Wf P symmetric, got one off by "):
        FeedForwardEnergy(Q @ W @ Q.T, 0.0, "identity", (P + P.T) / 2)


@pytest.mark.parametrize("least", [1.0, 1e-4, 1e-8, 1e-12])
def test_an_ill_conditioned_metric_is_one(least):
    Q, S = np.linalg.qr(random(3, 3))[0], random(3, 3, seed=1)
    root = np.sqrt([2.0, least, least])
    W, P = Q @ ((S + S.T) * root[:, None] / root) @ Q.T, Q * root**2 @ Q.T
    FeedForwardEnergy(W, 0.0, "identity", (P + P.T) / 2)


def test_a_metric_at_the_ends_of_the_floats(refused):
    assert FeedForwardEnergy(SIMILAR, metric=[1e-300, 5e-301]).curvature == pytest.approx(1 + np.sqrt(2), rel=8 * EPS)
    ffn = FeedForwardEnergy(SIMILAR, metric=[4e307, 2e307])
    np.testing.assert_allclose(ffn.half_curvature([[0.0, 0.0]]), [2e307 * (0.75 + np.sqrt(1.0625))], rtol=8 * EPS)
    with refused(ValueError, "metric: expected P with Wf P symmetric, got one off by 0.111 "):
        FeedForwardEnergy(SIMILAR, metric=[2e307, 8e306])
    with refused(ValueError, "metric: expected P and Wf P within the floats, got entries whose sum is not"):
        FeedForwardEnergy(SIMILAR, metric=[1e308, 4e307])


def test_a_metric_that_is_not_diagonal_is_for_the_linear_layer(activation, refused):
    P = [[2.0, 0.5], [0.5, 1.0]]  # W_f P = ((1, 2), (2, ½))
    if activation == "identity":
        assert FeedForwardEnergy(SIMILAR, 0.0, activation, P).max_alpha == pytest.approx(2 / (1 + np.sqrt(2)))
    else:
        with refused(ValueError, "metric: expected a diagonal one for the activation '" + activation):
            FeedForwardEnergy(SIMILAR, 0.0, activation, P)


# ------------------------------------------------------------------------------------------------ shapes and dtypes


@pytest.mark.parametrize("B_shape", [(), (2,), (4, 2), (1, 2), (3, 4, 2), (2, 1, 4, 2), (2, 3, 1, 2)], ids=str)
@pytest.mark.parametrize("method", ["value", "gradient", "step", "half_curvature"])
def test_a_batch_is_a_loop(method, B_shape, activation):
    Y, B = inside(activation, 2, 3, 4, 2), random(*B_shape, seed=4)
    full = np.broadcast_to(B, Y.shape)
    batch = getattr(FeedForwardEnergy(WF[:2, :2], B, activation), method)(Y)
    for index in np.ndindex(2, 3):
        one = getattr(FeedForwardEnergy(WF[:2, :2], full[index], activation), method)(Y[index])
        np.testing.assert_allclose(batch[index], one, rtol=1e-13, atol=1e-14)
    assert np.shape(batch) == (2, 3, *np.shape(one))


@pytest.mark.parametrize("batch", [(), (2,), (0,)], ids=str)
@pytest.mark.parametrize(("n", "d"), [(0, 2), (1, 2), (3, 0), (0, 0)])
def test_empty_shapes(batch, n, d, activation):
    ffn, Y = FeedForwardEnergy(np.zeros((d, d)), np.zeros(d), activation), np.full((*batch, n, d), 0.5)
    assert np.shape(ffn.value(Y)) == batch
    for alpha in (1.0, 0.5):
        assert ffn.step(Y, alpha).shape == Y.shape
    assert ffn.gradient(Y).shape == Y.shape
    assert ffn.half_curvature(Y).shape == Y.shape[:-1]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_narrow_floats_stay_and_energies_are_float64(dtype, activation):
    Y = inside(activation, 4, 3).astype(dtype)
    ffn = FeedForwardEnergy(WF.astype(np.float32), 0.25, activation)
    for method in ("gradient", "step"):
        got = getattr(ffn, method)(Y)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, getattr(ffn, method)(Y.astype(float)).astype(dtype))
    assert np.asarray(ffn.value(Y)).dtype == np.float64
    assert ffn.value(Y) == ffn.value(Y.astype(float))


@pytest.mark.parametrize("Y", [[[0, 1, 255]], np.array([[0, 1, 255]], dtype=np.uint8), np.array([[True, False, True]])],
                         ids=lambda Y: str(np.asarray(Y).dtype))  # fmt: skip
def test_integers_are_taken_as_float64(Y):
    ffn, wide = FeedForwardEnergy(WF), np.asarray(Y).astype(float)
    for method in ("value", "gradient", "step"):
        got = getattr(ffn, method)(Y)
        assert np.asarray(got).dtype == np.float64
        np.testing.assert_array_equal(got, getattr(ffn, method)(wide))
    assert ffn.step(np.array([[-1, 1, 0]], dtype=np.int8)).dtype == np.float64


def test_inputs_are_kept_answers_repeat_and_the_object_is_frozen(activation):
    Y, Wf, B = inside(activation, 4, 3), WF.copy(), random(4, 3)
    kept = Y.copy()
    Y.setflags(write=False)
    ffn = FeedForwardEnergy(Wf, B, activation)
    before = {method: getattr(ffn, method)(Y) for method in ("value", "gradient", "step")}
    Wf[:], B[:] = 9.0, 9.0
    for method, answer in before.items():
        np.testing.assert_array_equal(getattr(ffn, method)(Y), answer)
        assert not np.shares_memory(answer, Y)
    np.testing.assert_array_equal(Y, kept)
    for name in ("Wf", "B", "activation", "metric", "anything"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(ffn, name, None)
    for array in (ffn.Wf, ffn.B):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1.0


@pytest.mark.parametrize(("Wf", "value"), [(1.0, np.inf), (0.0, np.inf), (-2.0, -np.inf)])
def test_overflow_of_the_energy_gives_its_limit_without_nan_or_warning(Wf, value):
    ffn = FeedForwardEnergy([[Wf]])
    assert ffn.value([[1e200]]) == value  # ½ (1 + W_f) y²
    np.testing.assert_array_equal(ffn.step([[1e200]], 0.5), [[max((1 - 0.5 * (1 + Wf)) * 1e200, 0)]])


# ------------------------------------------------------------------------------------------------ refusals


def test_bad_weights(bad_array, refused):
    Wf, error, came = bad_array
    with refused(error, f"Wf: expected .*, got .*{came}"):
        FeedForwardEnergy(Wf)


@pytest.mark.parametrize("Wf", [1.0, [1.0, 2.0], [[1.0, 2.0]], np.ones((2, 2, 2))], ids=lambda W: str(np.shape(W)))
def test_weights_of_the_wrong_shape(Wf, refused):
    with refused(ValueError, r"Wf: expected shape \(d, d\), got shape \("):
        FeedForwardEnergy(Wf)


def test_bad_bias(bad_array, refused):
    B, error, came = bad_array
    with refused(error, f"B: expected .*, got .*{came}"):
        FeedForwardEnergy(np.eye(1), B)


@pytest.mark.parametrize("B", [None, "zero", 1j, object()], ids=lambda B: type(B).__name__)
def test_bias_that_is_no_number(B, refused):
    with refused(TypeError, "B: expected .*, got "):
        FeedForwardEnergy(np.eye(1), B)


@pytest.mark.parametrize("B", [np.ones(3), np.ones(1), np.ones((4, 3)), np.ones((2, 1))], ids=lambda B: str(B.shape))
def test_bias_of_another_width(B, refused):
    with refused(ValueError, r"B: expected a last axis of 2, as Wf has, got shape \("):
        FeedForwardEnergy(np.eye(2), B)


@pytest.mark.parametrize("B", [np.ones((3, 2)), np.ones((2, 4, 2)), np.ones((1, 4, 2))], ids=lambda B: str(B.shape))
@pytest.mark.parametrize("method", ["value", "gradient", "step"])
def test_bias_that_does_not_fit_the_tokens(B, method, refused):
    with refused(ValueError, r"B: expected a shape that fits Y's \(4, 2\), got shape \("):
        getattr(FeedForwardEnergy(np.eye(2), B), method)(np.ones((4, 2)))


@pytest.mark.parametrize("method", ["value", "gradient", "step", "half_curvature"])
def test_bad_tokens(method, bad_array, refused):
    Y, error, came = bad_array
    with refused(error, f"Y: expected .*, got .*{came}"):
        getattr(FeedForwardEnergy(np.eye(1)), method)(Y)
    with refused(ValueError, r"Y: expected shape \(\.\.\., n, 1\), .*, got shape \(3, 2\)"):
        getattr(FeedForwardEnergy(np.eye(1)), method)(np.ones((3, 2)))
    with refused(ValueError, r"Y: expected shape \(\.\.\., n, 1\), .*, got shape \(3,\)"):
        getattr(FeedForwardEnergy(np.eye(1)), method)(np.ones(3))


def test_bad_activation(refused):
    with refused(ValueError, "activation: expected one of .*, got 'gelu'"):
        FeedForwardEnergy(np.eye(1), activation="gelu")
    with refused(TypeError, "activation: expected a name or a refimpl.Activation, got NoneType"):
        FeedForwardEnergy(np.eye(1), activation=None)


def test_bad_step_sizes(bad_number, refused):
    alpha, error, came = bad_number
    with refused(error, f"alpha: expected a .*number.*, got .*{came}"):
        FeedForwardEnergy(np.eye(1)).step([[1.0]], alpha)
    for alpha in (0.0, -0.5):
        with refused(ValueError, r"alpha: expected a number in \(0, inf\), got "):
            FeedForwardEnergy(np.eye(1)).step([[1.0]], alpha)
