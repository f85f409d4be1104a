"""The data term and the residual step."""

import dataclasses

import numpy as np
import pytest

from refimpl import PENALTIES, AttentionEnergy, ResidualAttentionEnergy, definitions

EPS = np.finfo(float).eps


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def weights_of_pairs(*shape, seed=1):
    m = np.random.default_rng(seed).integers(0, 4, size=shape).astype(float)
    return m + np.swapaxes(m, -1, -2)


@pytest.fixture(params=PENALTIES)
def rho(request):
    return request.param


CASES = {  # Y, X, W, m, λ
    "identity": (random(4, 2), random(4, 2, seed=3), None, None, 0.7),
    "map": (random(4, 3), random(4, 3, seed=3), random(3, 2, seed=2), None, 0.7),
    "weights": (random(4, 3), random(4, 3, seed=3), random(3, 3, seed=2), weights_of_pairs(4, 4), 2.5),
    "W zero": (random(4, 3), random(4, 3, seed=3), np.zeros((3, 1)), None, 0.7),
    "no data term": (random(4, 3), random(4, 3, seed=3), random(3, 3, seed=2), None, 0.0),
    "no attention": (random(4, 3), random(4, 3, seed=3), None, np.zeros((4, 4)), 0.7),
    "neither": (random(4, 3), random(4, 3, seed=3), None, np.zeros((4, 4)), 0.0),
    "one token": (random(1, 3), random(1, 3, seed=3), None, None, 0.7),
    "no token": (random(0, 3), random(0, 3), None, None, 0.7),
}


@pytest.mark.parametrize(("Y", "X", "W", "m", "lam"), CASES.values(), ids=CASES)
def test_against_fifty_digits(Y, X, W, m, lam, rho, exact):
    attn = AttentionEnergy(W, rho, m)
    energy = ResidualAttentionEnergy(attn, X, lam)
    W = np.eye(Y.shape[1]) if W is None else W
    m = np.ones((len(Y), len(Y))) if m is None else m
    s = np.linalg.svd(W, compute_uv=False)[0] ** 2
    value, slope = PENALTIES[rho].literal("mpmath")
    data = exact(definitions.data_energy, Y, X, lam)
    size = exact(definitions.attention_energy, Y, W, lambda z: abs(value(z)), m) + data
    assert energy.data_value(Y) == pytest.approx(float(data), rel=1e-14)
    assert abs(energy.value(Y) - exact(definitions.attention_energy, Y, W, value, m) - data) <= 1e-12 * size
    gradient = exact(definitions.attention_gradient, Y, W, slope, m).reshape(Y.shape) + lam * (Y - X)
    # numbers of order 1, sums of fewer than 100 of them
    np.testing.assert_allclose(energy.gradient(Y), gradient, rtol=0, atol=1e-13 * (1 + s * 4 * m.max(initial=0)))
    step = exact(definitions.residual_step, Y, X, W, slope, m, lam, s).reshape(Y.shape)
    np.testing.assert_allclose(energy.step(Y), step, rtol=0, atol=1e-13)
    for alpha in (0.0, 0.25, 1.5):
        np.testing.assert_allclose(energy.step(Y, alpha), Y + alpha * (step - Y), rtol=0, atol=1e-13)
    np.testing.assert_allclose(energy.half_curvature(Y), attn.half_curvature(Y) + lam / 2, rtol=EPS)
    assert energy.value(energy.step(Y)) <= energy.value(Y) + 1e-12 * size


def test_with_the_identity_it_is_attention_gated_by_density(rho):
    Y, X, lam = random(5, 2), random(5, 2, seed=3), 0.7
    for W in (None, np.eye(2)):
        attn = AttentionEnergy(W, rho)
        tau = (lam / (attn.kernel(Y).sum(axis=1) + lam))[:, None]
        gated = (1 - tau) * attn.step(Y) + tau * X
        np.testing.assert_allclose(ResidualAttentionEnergy(attn, X, lam).step(Y), gated, rtol=0, atol=1e-14)


def test_without_a_data_term_it_is_the_attention_step(rho):
    Y, attn = random(5, 2), AttentionEnergy(None, rho)
    energy = ResidualAttentionEnergy(attn, random(5, 2, seed=3), 0.0)
    np.testing.assert_allclose(energy.step(Y), attn.step(Y), rtol=0, atol=1e-14)
    np.testing.assert_array_equal(energy.gradient(Y), attn.gradient(Y))
    assert energy.value(Y) == attn.value(Y)


def test_by_hand():
    # one token: s d = 1, λ = 3: (1 · 5 + 3 · 1) / 4; energy ½ · 3 · 16
    energy = ResidualAttentionEnergy(AttentionEnergy(), X=[[1.0]], lam=3.0)
    np.testing.assert_array_equal(energy.step([[5.0]]), [[2.0]])
    np.testing.assert_array_equal(energy.step([[5.0]], 0.5), [[3.5]])
    np.testing.assert_array_equal(energy.gradient([[5.0]]), [[12.0]])
    assert energy.value([[5.0]]) == energy.data_value([[5.0]]) == 24.0
    np.testing.assert_array_equal(energy.half_curvature([[5.0]]), [2.5])
    # no attention at all: one step reaches X
    alone = ResidualAttentionEnergy(AttentionEnergy(pair_weights=np.zeros((2, 2))), X=[[1.0], [7.0]], lam=0.25)
    np.testing.assert_array_equal(alone.step([[5.0], [-3.0]]), [[1.0], [7.0]])
    # two equal tokens under ρ = z and W = 2: s d = 8, λ = 8: half way to X
    pair = ResidualAttentionEnergy(AttentionEnergy([[2.0]], "linear"), X=4.0, lam=8.0)
    np.testing.assert_array_equal(pair.step([[2.0], [2.0]]), [[3.0], [3.0]])


def test_x_is_a_fixed_point_where_all_tokens_agree(rho):
    X = np.full((3, 2), 0.3)
    np.testing.assert_array_equal(ResidualAttentionEnergy(AttentionEnergy(rho=rho), X, 2.0).step(X), X)


def test_neither_term_moves_nothing():
    Y = random(3, 2) / 3
    energy = ResidualAttentionEnergy(AttentionEnergy(pair_weights=np.zeros((3, 3))), 9.0, 0.0)
    np.testing.assert_array_equal(energy.step(Y), Y)


# ------------------------------------------------------------------------------------------------ shapes


SHAPES = [(4, 2), (1, 2), (4, 1), (3, 4, 2), (2, 1, 4, 2)]


@pytest.mark.parametrize("X", [0.0, 1, np.float32(0.5), *(random(*s) for s in SHAPES)], ids=lambda X: str(np.shape(X)))
def test_X_broadcasts_and_a_batch_is_a_loop(X):
    Y = random(2, 3, 4, 2)
    attn = AttentionEnergy(random(2, 2, seed=2))
    energy, full = ResidualAttentionEnergy(attn, X, 0.7), np.broadcast_to(X, Y.shape)
    for method in ("value", "data_value", "gradient", "step", "half_curvature"):
        batch = getattr(energy, method)(Y)
        loop = np.stack(
            [
                [getattr(ResidualAttentionEnergy(attn, full[i, j], 0.7), method)(Y[i, j]) for j in range(3)]
                for i in range(2)
            ]
        )
        np.testing.assert_allclose(batch, loop, rtol=1e-13, atol=1e-14)  # fmt: skip


@pytest.mark.parametrize("shape", [(3, 2), (4, 3), (2, 4, 2), (5, 1, 1)], ids=str)
def test_X_that_does_not_fit(shape, refused):
    energy = ResidualAttentionEnergy(AttentionEnergy(), np.ones(shape))
    for method in ("value", "data_value", "gradient", "step"):
        with refused(ValueError, r"X: expected a shape that fits Y's \(4, 2\), got shape \("):
            getattr(energy, method)(np.ones((4, 2)))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_narrow_floats_stay_and_energies_are_float64(dtype):
    Y, energy = random(4, 2).astype(dtype), ResidualAttentionEnergy(AttentionEnergy(), random(4, 2, seed=3), 0.7)
    for method in ("gradient", "step"):
        got = getattr(energy, method)(Y)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, getattr(energy, method)(Y.astype(float)).astype(dtype))
    for method in ("value", "data_value", "half_curvature"):
        assert np.asarray(getattr(energy, method)(Y)).dtype == np.float64


def test_integers_and_lists():
    energy = ResidualAttentionEnergy(AttentionEnergy(), [[0], [0], [0]], 2)
    Y = np.array([[0], [1], [255]], dtype=np.uint8)
    assert energy.data_value(Y) == 65026.0
    assert energy.step(Y).dtype == np.float64
    np.testing.assert_array_equal(energy.step(Y), energy.step([[0.0], [1.0], [255.0]]))


def test_inputs_are_kept_and_the_object_is_frozen():
    Y, X = random(4, 2), random(4, 2, seed=3)
    Y.setflags(write=False)
    energy = ResidualAttentionEnergy(AttentionEnergy(), X, 0.7)
    before = energy.step(Y)
    X[:] = 9.0
    np.testing.assert_array_equal(energy.step(Y), before)
    for name in ("attention", "X", "lam", "anything"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(energy, name, None)
    with pytest.raises(ValueError, match="read-only"):
        energy.X[0, 0] = 1.0


def test_overflow_of_the_squared_distance_to_X_is_infinite_without_nan_or_warning(rho):
    energy, Y = ResidualAttentionEnergy(AttentionEnergy(rho=rho)), np.array([[1e200], [0.0], [-1e200]])
    assert energy.data_value(Y) == np.inf
    assert energy.value(Y) == np.inf


def test_the_step_from_far_out_is_finite(rho):
    energy, Y = ResidualAttentionEnergy(AttentionEnergy(rho=rho)), np.array([[1e200], [0.0], [-1e200]])
    for alpha in (0.5, 1.0):
        step = energy.step(Y, alpha)
        assert np.isfinite(step).all()
        assert (np.abs(step) <= np.abs(Y).max()).all()


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("attention", [None, "exp", AttentionEnergy, 3], ids=repr)
def test_bad_attention(attention, refused):
    with refused(TypeError, f"attention: expected a refimpl.AttentionEnergy, got {type(attention).__name__}"):
        ResidualAttentionEnergy(attention)


def test_bad_X(bad_array, refused):
    X, error, came = bad_array
    with refused(error, f"X: expected .*, got .*{came}"):
        ResidualAttentionEnergy(AttentionEnergy(), X)


@pytest.mark.parametrize("X", [None, "zero", True, 1j, object(), {}], ids=lambda X: type(X).__name__)
def test_X_that_is_no_number(X, refused):
    with refused(TypeError, f"X: expected .*, got {type(X).__name__}"):
        ResidualAttentionEnergy(AttentionEnergy(), X)


@pytest.mark.parametrize("X", [np.nan, np.inf, [1.0, 2.0]], ids=repr)
def test_X_of_a_bad_value_or_shape(X, refused):
    with refused(ValueError, "X: expected .*, got "):
        ResidualAttentionEnergy(AttentionEnergy(), X)


def test_bad_lambda(bad_number, refused):
    lam, error, came = bad_number
    with refused(error, f"lam: expected a .*number.*, got .*{came}"):
        ResidualAttentionEnergy(AttentionEnergy(), 0.0, lam)


def test_negative_numbers(refused):
    with refused(ValueError, r"lam: expected a number in \[0, inf\), got -0.5"):
        ResidualAttentionEnergy(AttentionEnergy(), 0.0, -0.5)
    with refused(ValueError, r"alpha: expected a number in \[0, inf\), got -0.5"):
        ResidualAttentionEnergy(AttentionEnergy()).step([[1.0]], -0.5)


def test_bad_alpha(bad_number, refused):
    alpha, error, came = bad_number
    with refused(error, f"alpha: expected a .*number.*, got .*{came}"):
        ResidualAttentionEnergy(AttentionEnergy()).step([[1.0]], alpha)


@pytest.mark.parametrize("method", ["value", "data_value", "gradient", "step", "half_curvature"])
def test_bad_tokens(method, bad_array, refused):
    Y, error, came = bad_array
    with refused(error, f"Y: expected .*, got .*{came}"):
        getattr(ResidualAttentionEnergy(AttentionEnergy()), method)(Y)


@pytest.mark.parametrize("method", ["value", "gradient", "step", "half_curvature"])
def test_tokens_of_the_wrong_width(method, refused):
    with refused(ValueError, r"Y: expected shape \(\.\.\., n, 2\), .*, got shape \(3, 1\)"):
        getattr(ResidualAttentionEnergy(AttentionEnergy(np.eye(2))), method)(np.ones((3, 1)))
