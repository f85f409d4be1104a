"""The metric of an asymmetric W_f, its refusals, and the Lyapunov functions."""

import pickle

import numpy as np
import pytest

from refimpl import ACTIVATIONS, AttentionEnergy, FeedForwardEnergy, UnfoldedTransformer, asymmetric, definitions
from refimpl.asymmetric import ConditionError
from refimpl.feedforward import asymmetry

EPS = np.finfo(float).eps
FUNCTIONS = [asymmetric.metric, asymmetric.diagonal_metric, asymmetric.lyapunov, asymmetric.diagonal_lyapunov]
ROTATION = np.array([[0.0, 1.0], [-1.0, 0.0]])
# signs agree, and the products along the cycle of three features are −2 in both directions
CYCLE = np.array([[-1.5, 1.0, 0.5], [2.0, -0.5, -0.5], [4.0, -2.0, -0.5]])


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def similar(d, values, seed=0):
    V = random(d, d, seed=seed)
    return V @ np.diag(values) @ np.linalg.inv(V)


# ------------------------------------------------------------------------------------------------ metric


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("repeated", [False, True])
def test_the_metric_makes_it_symmetric(seed, repeated):
    d = 2 + seed % 6
    values = np.repeat(random(d, seed=seed), 2)[:d] if repeated else random(d, seed=seed)
    W = similar(d, values, seed=seed + 100)
    P = asymmetric.metric(W)
    assert asymmetry(W, P) < 64 * d * EPS * np.linalg.cond(P) ** 0.5
    assert np.linalg.eigvalsh(P)[0] > 0
    assert np.trace(P) == pytest.approx(d, rel=8 * d * EPS)


def test_it_is_the_identity_for_symmetric_weights_and_only_for_these():
    S = random(5, 5) + random(5, 5).T
    np.testing.assert_allclose(asymmetric.metric(S), np.eye(5), rtol=0, atol=64 * EPS)
    Q = np.linalg.qr(random(5, 5, seed=3))[0]
    repeated = Q @ np.diag([1.0, 1.0, 1.0, 2.0, 2.0]) @ Q.T
    np.testing.assert_allclose(asymmetric.metric((repeated + repeated.T) / 2), np.eye(5), rtol=0, atol=64 * EPS)
    assert abs(asymmetric.metric([[0.0, 4.0], [1.0, 0.0]]) - np.eye(2)).max() > 0.1


def test_it_turns_and_does_not_scale():
    W, Q = similar(4, [1.0, 1.0, -2.0, 0.5]), np.linalg.qr(random(4, 4, seed=1))[0]
    P = asymmetric.metric(W)
    kappa = np.linalg.cond(P)
    np.testing.assert_allclose(asymmetric.metric(Q.T @ W @ Q), Q.T @ P @ Q, rtol=0, atol=256 * EPS * kappa)
    for scale in (2.0**-400, -1.0, 2.0**400):
        np.testing.assert_allclose(asymmetric.metric(scale * W), P, rtol=0, atol=256 * EPS * kappa)
    np.testing.assert_allclose(asymmetric.metric(W + 3 * np.eye(4)), P, rtol=0, atol=256 * EPS * kappa)


def test_the_metric_by_hand():
    # right eigenvectors (1, 0) for ½ and (2, −1) / √5 for 0
    np.testing.assert_allclose(asymmetric.metric([[0.5, 1], [0, 0]]), [[1.8, -0.4], [-0.4, 0.2]], rtol=0, atol=8 * EPS)
    np.testing.assert_array_equal(asymmetric.metric(np.zeros((3, 3))), np.eye(3))
    np.testing.assert_array_equal(asymmetric.metric([[7.0]]), [[1.0]])


@pytest.mark.parametrize(
    ("W", "condition", "gap"),
    [
        (ROTATION, "real eigenvalues", 1.0),
        (np.kron(np.diag([1.0, 3.0]), ROTATION), "real eigenvalues", 3.0),
        ([[1.0, 1e-3], [-1e-3, 1.0]], "real eigenvalues", 1e-3),
        ([[1.0, 1.0], [0.0, 1.0]], "a basis of eigenvectors", 0.0),
        ([[1.0, 1e-8], [0.0, 1.0]], "a basis of eigenvectors", 0.0),
        ([[1.0, 1.0], [0.0, 1 + 1e-9]], "a basis of eigenvectors", 5e-19),
        (np.eye(4) + np.eye(4, k=1), "a basis of eigenvectors", 0.0),
        (np.diag([2.0, 1.0, 1.0]) + np.eye(3, k=1), "a basis of eigenvectors", 0.0),
    ],
)
def test_no_metric(W, condition, gap, refused):
    with refused(ConditionError, f"Wf: expected {condition}, got ") as caught:
        asymmetric.metric(W)
    assert caught.value.condition == condition
    assert caught.value.gap == pytest.approx(gap, rel=1e-3, abs=1e-15)
    np.testing.assert_array_equal(caught.value.eigenvalues, np.linalg.eigvals(W))


def test_the_error_survives_another_process():
    with pytest.raises(ConditionError) as caught:
        asymmetric.metric(ROTATION)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value) == "Wf: expected real eigenvalues, got the imaginary part 1"
    assert (copy.condition, copy.gap) == (caught.value.condition, caught.value.gap)
    np.testing.assert_array_equal(copy.eigenvalues, [1j, -1j])


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_jordan_block_in_another_basis_is_refused(size):
    """Rounding spreads its eigenvalue, over a circle for size above 2: one of the two conditions fails either way."""
    for seed in range(20):
        V = random(size, size, seed=seed)
        with pytest.raises(ConditionError):
            asymmetric.metric(V @ (np.eye(size) + np.eye(size, k=1)) @ np.linalg.inv(V))


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("eigenvalue", [0.0, 1.0, -2.0])
def test_an_exact_jordan_block_lacks_eigenvectors_not_real_eigenvalues(size, eigenvalue):
    """Rounding spreads the eigenvalue of the float matrix, which is exact, by as much as ε^(1/size)."""
    V = np.array([[1, 0, 0, 0], [2, 1, 0, 0], [3, 4, 1, 0], [-1, 2, 1, 1]])[:size, :size]
    W = V @ (eigenvalue * np.eye(size) + np.eye(size, k=1)) @ np.rint(np.linalg.inv(V))
    with pytest.raises(ConditionError) as caught:
        asymmetric.metric(W)
    assert caught.value.condition == "a basis of eigenvectors"


@pytest.mark.parametrize("turn", [1e-9, 1e-13])
def test_a_slow_rotation_is_one(turn):
    W = np.eye(3)
    W[1:, 1:] = turn * ROTATION
    with pytest.raises(ConditionError) as caught:
        asymmetric.metric(W)
    assert caught.value.condition == "real eigenvalues"
    assert caught.value.gap == pytest.approx(turn, rel=1e-2)


@pytest.mark.parametrize("seed", range(20))
def test_the_energy_takes_every_metric_that_is_found(seed):
    """Near multiples of I, singular, and with eigenvectors at small angles."""
    d = 2 + seed % 4
    V = random(d, d, seed=seed)
    V[:, 1] = V[:, 0] + 1e-2 * V[:, 1]
    for W in (
        similar(d, np.full(d, 1.5), seed),
        similar(d, [0.0] * (d - 1) + [1.0], seed),
        V @ np.diag(np.arange(d)) @ np.linalg.inv(V),
    ):
        FeedForwardEnergy(W, activation="identity", metric=asymmetric.metric(W))


# ------------------------------------------------------------------------------------------------ diagonal metric


@pytest.mark.parametrize("seed", range(10))
def test_the_diagonal_metric_is_found_up_to_a_factor(seed):
    d = 1 + seed % 6
    p, S = np.exp(2 * random(d, seed=seed)), random(d, d, seed=seed + 50)
    found = asymmetric.diagonal_metric((S + S.T) / p)
    np.testing.assert_allclose(found, p / np.exp(np.log(p).mean()), rtol=64 * d * EPS)


def test_each_component_has_a_factor_of_its_own():
    W = np.zeros((5, 5))
    W[0, 3], W[3, 0] = 2.0, 8.0  # p₃ = 4 p₀
    W[1, 4], W[4, 1] = -9.0, -1.0  # p₄ = p₁ / 9
    np.testing.assert_allclose(asymmetric.diagonal_metric(W), [0.5, 3, 1, 2, 1 / 3], rtol=16 * EPS)
    np.testing.assert_array_equal(asymmetric.diagonal_metric(random(4, 4) + random(4, 4).T), np.ones(4))


def test_ratios_beyond_the_range_of_products():
    W = np.diag([1e200, 1e200], 1) + np.diag([1e-100, 1e-100], -1)  # p = 1, 1e-300, 1e-600 up to a factor
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        p = asymmetric.diagonal_metric(W)
    np.testing.assert_allclose(p, [1e300, 1, 1e-300], rtol=1e-12)
    assert FeedForwardEnergy(W, metric=p).curvature == pytest.approx(1 + 2e50**0.5 * 1e25)


def test_a_diagonal_metric_beyond_the_floats(refused):
    W = [[0, 1e-300, 0], [1e300, 0, 1e-300], [0, 1e300, 0]]  # p = 1e-600, 1, 1e600
    with refused(ConditionError, r"Wf: expected p within the floats, got \|log p\| up to 1381.55$") as caught:
        asymmetric.diagonal_metric(W)
    assert caught.value.gap == pytest.approx(600 * np.log(10) + np.log(np.finfo(float).tiny), rel=1e-12)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e160, 1e300])
def test_scales_beyond_squares(scale):
    """Squares that overflow or vanish decide nothing; a warning would be an error here."""
    W = similar(3, [1.0, 1.0, -0.5])
    P = asymmetric.metric(scale * W)
    np.testing.assert_allclose(P, asymmetric.metric(W), rtol=0, atol=256 * EPS * np.linalg.cond(P))
    assert FeedForwardEnergy(scale * W, activation="identity", metric=P).metric.shape == (3, 3)
    with pytest.raises(ConditionError) as caught:
        asymmetric.metric(scale * ROTATION)
    assert caught.value.gap == pytest.approx(scale, rel=8 * EPS)
    nilpotent = scale * np.array([[0.0, 1.0, 1.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    for function in (asymmetric.lyapunov, asymmetric.diagonal_lyapunov):
        if scale < 1:
            assert np.isfinite(function(nilpotent)).all()
        else:  # P would be beyond the floats
            with pytest.raises(ConditionError, match="a solution in floats, got none at the spectral radius 0,"):
                function(nilpotent)


@pytest.mark.parametrize(
    ("W", "condition", "gap", "got"),
    [
        (ROTATION, "pairs of equal sign", 1.0, r"1 at \(0, 1\) and -1 at \(1, 0\)"),
        ([[0.5, 3.0], [0.0, 0.0]], "pairs of equal sign", 3.0, r"3 at \(0, 1\) and 0 at \(1, 0\)"),
        (
            [[0, 1, 2], [2, 0, 1], [1, 1, 0]],
            "equal products along cycles", np.log(4), r"4 along \[1, 0, 2\] and 1 back",
        ),
        (
            [[0, 1, 0, 1], [2, 0, 3, 0], [0, 1, 0, 5], [2, 0, 1, 0]],
            "equal products along cycles", np.log(15), r"2 along \[2, 1, 0, 3\] and 30 back",
        ),
        (
            [[0, 1e-200, 2e-200], [2e-200, 0, 1e-200], [1e-200, -1e-200, 0]],
            "pairs of equal sign", 1e-200, r"1e-200 at \(1, 2\) and -1e-200 at \(2, 1\)",
        ),
        (
            [[0, 1e-200, 2e-200], [2e-200, 0, 1e-200], [1e-200, 1e-200, 0]],
            "equal products along cycles", np.log(4), r"4e-600 along \[1, 0, 2\] and 1e-600 back",
        ),
    ],
)  # fmt: skip
def test_no_diagonal_metric(W, condition, gap, got, refused):
    with refused(ConditionError, f"Wf: expected {condition}, got {got}") as caught:
        asymmetric.diagonal_metric(W)
    assert caught.value.condition == condition
    assert caught.value.gap == pytest.approx(gap, rel=8 * EPS)


@pytest.mark.parametrize("d", [3, 4, 7])
def test_the_cycle_that_is_named_has_the_products_that_are_named(d):
    for seed in range(20):
        W = np.exp(random(d, d, seed=seed))
        with pytest.raises(ConditionError) as caught:
            asymmetric.diagonal_metric(W)
        text = str(caught.value)
        cycle = [int(i) for i in text.partition("[")[2].partition("]")[0].split(",")]
        assert len(set(cycle)) == len(cycle) >= 3
        there = np.prod([W[a, b] for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True)])
        back = np.prod([W[b, a] for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True)])
        assert f"got {there:.6g} along" in text
        assert text.endswith(f"and {back:.6g} back")
        assert caught.value.gap == pytest.approx(abs(np.log(there / back)), rel=1e-10)


# ------------------------------------------------------------------------------------------------ Lyapunov


@pytest.mark.parametrize("d", [1, 2, 5, 12])  # scipy solves small ones and large ones differently
def test_the_lyapunov_equation(d):
    W = random(d, d)
    W *= 0.9 / abs(np.linalg.eigvals(W)).max()
    P = asymmetric.lyapunov(W)
    np.testing.assert_allclose(P - W @ P @ W.T, np.eye(d), rtol=0, atol=64 * d**2 * EPS * np.linalg.norm(P))
    np.testing.assert_array_equal(P, P.T)
    y = random(d, seed=1)
    assert y @ P @ y > (y @ W) @ P @ (y @ W)


def test_lyapunov_by_hand():
    np.testing.assert_allclose(asymmetric.lyapunov([[-2, 2], [-2, 2]]), [[9, 8], [8, 9]], rtol=64 * EPS)
    np.testing.assert_allclose(asymmetric.lyapunov([[0.5]]), [[4 / 3]], rtol=4 * EPS)
    # r = (I − |W|)⁻¹ 1 = (1 + ½ · 1, 1) and l = (1, 1 + ½)
    np.testing.assert_allclose(asymmetric.diagonal_lyapunov([[0, -0.5], [0, 0]]), [1.5, 1 / 1.5], rtol=4 * EPS)


def test_rows_are_multiplied_from_the_right():
    """P − W P Wᵀ, not P − Wᵀ P W: the squared lengths of y and y W, not of y and y Wᵀ."""
    W = np.array([[0.0, 3.0], [0.0, 0.0]])
    P, p = asymmetric.lyapunov(W), asymmetric.diagonal_lyapunov(W)
    np.testing.assert_allclose(P, [[10, 0], [0, 1]], atol=32 * EPS)
    assert p[0] > 9 * p[1]  # (1, 0) goes to (0, 3)
    assert asymmetric.diagonal_lyapunov(W.T)[0] < p[0]


@pytest.mark.parametrize("W", [[[0.0, 1e4], [0.0, 0.0]], [[0.5, 1e4], [0.0, 0.5]], [[0.5, 1e7], [0.0, -0.5]]])
def test_weights_far_from_normal_have_a_lyapunov_function(W):
    (a, b), (_, c) = W
    # the entries of P − W P Wᵀ = I from the last to the first
    last = 1 / (1 - c**2)
    corner = b * c * last / (1 - a * c)
    first = (1 + 2 * a * b * corner + b**2 * last) / (1 - a**2)
    np.testing.assert_allclose(asymmetric.lyapunov(W), [[first, corner], [corner, last]], rtol=64 * EPS)


def test_weights_too_far_from_normal_are_not_said_to_have_a_radius_of_1(refused):
    Q = np.linalg.qr(random(40, 40))[0]
    W = Q @ (np.triu(random(40, 40, seed=1), 1) + np.diag(np.linspace(-0.9, 0.9, 40))) @ Q.T
    with refused(ConditionError, r"Wf: expected a solution in floats, got none at the spectral radius 0\.\d+, "):
        asymmetric.lyapunov(W)


@pytest.mark.parametrize(
    ("function", "W", "gap"),
    [
        (asymmetric.lyapunov, ROTATION, 0.0),
        (asymmetric.lyapunov, [[2.0]], 1.0),
        (asymmetric.lyapunov, [[-1.5, 1.0], [0.0, 0.0]], 0.5),
        (asymmetric.diagonal_lyapunov, [[-2, 2], [-2, 2]], 3.0),
        (asymmetric.diagonal_lyapunov, 0.9 * ROTATION + 0.2 * np.eye(2), 0.1),
    ],
)
def test_no_lyapunov_function(function, W, gap, refused):
    with refused(ConditionError, r"Wf: expected a spectral radius .*below 1, got ") as caught:
        function(W)
    assert caught.value.gap == pytest.approx(gap, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("function", [asymmetric.lyapunov, asymmetric.diagonal_lyapunov])
def test_no_lyapunov_function_in_floats(function, refused):
    W = [[1 - EPS / 2, 1e300], [0.0, 1 - EPS / 2]]
    with refused(ConditionError, "Wf: expected a solution in floats, got none at the spectral radius 1, ") as caught:
        function(W)
    assert caught.value.gap == 0


def test_with_a_full_solution_alone_the_relu_layer_may_diverge():
    W = np.array([[-2.0, 2.0], [-2.0, 2.0]])
    P, y = asymmetric.lyapunov(W), np.array([1.0, 0.0])
    energies = []
    for _ in range(20):
        energies.append(y @ P @ y)
        y = np.maximum(-y @ W, 0)
    np.testing.assert_allclose(np.diff(np.log2(energies)), 2)


# ------------------------------------------------------------------------------------------------ in the energy


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("schedule", ["alternating", "joint"])
def test_layers_of_asymmetric_weights(activation, schedule):
    """The feed-forward half step is σ(B − Y W_f) for W_f as it is; the joint step never raises the energy."""
    ffn = FeedForwardEnergy(CYCLE, 0.25, activation, metric=asymmetric.diagonal_metric(CYCLE))
    model = UnfoldedTransformer(AttentionEnergy(), ffn, depth=6, schedule=schedule)
    Y = ACTIVATIONS[activation].prox(2 * random(4, 3), 1.0)
    if schedule == "joint":
        energy = model.forward(Y).energy
        assert (np.diff(energy) <= 1e-13 * (1 + np.abs(energy[:-1]))).all()
    else:
        between = model.attention.step(Y)
        argument = 0.25 - between @ CYCLE
        np.testing.assert_allclose(model.layer(Y), ACTIVATIONS[activation].prox(argument, 1.0), rtol=0, atol=128 * EPS)


def test_the_joint_step_with_a_metric_by_hand():
    # W_f P = ((0, 1), (1, 0)), so H P = ((½, 1), (1, 2))
    Wf, p = [[0.0, 0.5], [2.0, 0.0]], [0.5, 2.0]
    ffn = FeedForwardEnergy(Wf, 0.0, "soft_threshold", metric=p)  # τ = ½
    model = UnfoldedTransformer(AttentionEnergy(np.zeros((2, 1))), ffn, schedule="joint")
    # λ_max(H P) = 5/2, M = 5/4; gradient (Y H) P = (4 + 2 · 3, 2 + 3) P = (5, 10) at Y = (4, 3)
    np.testing.assert_allclose(ffn.gradient([[4.0, 3.0]]), [[5.0, 10.0]], rtol=4 * EPS)
    np.testing.assert_allclose(ffn.half_curvature([[4.0, 3.0]]), [1.25], rtol=8 * EPS)
    # 4 − 4 = 0; 3 − 8 = −5, and the threshold is ½ p / M = ½ · 2 · ⅘
    np.testing.assert_allclose(model.layer([[4.0, 3.0]]), [[0.0, -4.2]], rtol=0, atol=32 * EPS)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("method", ["value", "gradient", "step", "half_curvature"])
def test_a_batch_in_a_metric_is_a_loop(method, full):
    P, Y, B = asymmetric.metric(CYCLE) if full else asymmetric.diagonal_metric(CYCLE), random(2, 4, 3), random(2, 1, 3)
    activation = "identity" if full else "soft_threshold"
    batch = getattr(FeedForwardEnergy(CYCLE, B, activation, P), method)(Y)
    for i in range(2):
        one = getattr(FeedForwardEnergy(CYCLE, B[i], activation, P), method)(Y[i])
        np.testing.assert_allclose(batch[i], one, rtol=64 * EPS, atol=64 * EPS)
    narrow = getattr(FeedForwardEnergy(CYCLE, B, activation, P), method)(Y.astype(np.float32))
    assert narrow.dtype == (np.float32 if method in ("gradient", "step") else np.float64)


def test_definitions_agree_with_the_energy(exact):
    P, Y, B = asymmetric.metric(CYCLE), random(4, 3), random(4, 3, seed=1)
    ffn = FeedForwardEnergy(CYCLE, B, "identity", metric=P)
    value = float(exact(definitions.metric_energy, Y, CYCLE, B, P, lambda y: 0))
    assert ffn.value(Y) == pytest.approx(value, rel=0, abs=2000 * EPS)
    np.testing.assert_allclose(ffn.gradient(Y), exact(definitions.metric_gradient, Y, CYCLE, B, P), atol=256 * EPS)
    expected = exact(definitions.metric_step, Y, CYCLE, B, lambda v, alpha: v, 0.25)
    np.testing.assert_allclose(ffn.step(Y, 0.25), expected, rtol=0, atol=64 * EPS)


# ------------------------------------------------------------------------------------------------ inputs


@pytest.mark.parametrize("function", FUNCTIONS)
def test_bad_weights(function, bad_array, refused):
    Wf, error, came = bad_array
    with refused(error, f"Wf: expected .*, got .*{came}"):
        function(Wf)
    for wrong in (1.0, [1.0, 2.0], [[1.0, 2.0]], np.ones((2, 2, 2))):
        with refused(ValueError, r"Wf: expected shape \(d, d\), got shape \("):
            function(wrong)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_features_and_inputs_are_kept(function):
    assert function(np.zeros((0, 0))).size == 0
    W = 0.1 * CYCLE
    W.setflags(write=False)
    np.testing.assert_array_equal(function(W), function(W))
