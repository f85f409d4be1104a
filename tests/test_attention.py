"""The attention energy against its definition at 50 digits, its fixed points, shapes, overflow and refusals."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl import PENALTIES, AttentionEnergy, Rho, definitions

EPS = np.finfo(float).eps
Y3 = np.array([[0.0], [1.0], [3.0]])
METHODS = ("value", "gradient", "kernel", "weights", "step", "step_decrease", "max_alpha", "half_curvature")


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def weights_of_pairs(*shape, seed=1):
    m = np.random.default_rng(seed).integers(0, 4, size=shape).astype(float)
    return m + np.swapaxes(m, -1, -2)


TIGHT = np.array([[0.0, 0.0], [1e-6, 0.0], [300.0, 400.0], [300.0, 400.0 + 1e-6], [0.0, 0.0]])
CASES = {  # Y, W, m
    "line": (Y3, None, None),
    "plane": (np.array([[0.0, 0.0], [1.0, 1.0], [3.0, 0.0]]), None, None),
    "map": (random(4, 3), random(3, 3, seed=2), None),
    "weights": (random(4, 3), random(3, 3, seed=2), weights_of_pairs(4, 4)),
    "W narrow": (random(4, 3), random(3, 1, seed=2), weights_of_pairs(4, 4)),
    "W wide (k > d)": (random(4, 2), random(2, 5, seed=2), None),
    "W singular": (random(4, 3), random(3, 1, seed=2) @ random(1, 3, seed=3), None),
    "W zero": (random(4, 3), np.zeros((3, 2)), weights_of_pairs(4, 4)),
    "identity given": (random(4, 3), np.eye(3), None),
    "duplicates": (np.repeat(random(2, 2), 2, axis=0), None, None),
    "tight clusters far apart": (TIGHT, None, None),
    "translated": (random(4, 2) + 1e8, random(2, 2, seed=2), None),
    "a direction that W nearly ignores": (random(4, 2) * [1e8, 1.0], np.diag([1e-9, 1.0]), None),
    "small": (1e-8 * random(4, 2), None, None),
    "large": (1e8 * random(4, 2), 1e-8 * random(2, 2, seed=2), None),
    "isolated": (random(4, 2), None, np.diag([0.0, 1, 1, 1]) @ np.ones((4, 4)) @ np.diag([0.0, 1, 1, 1])),
    "diagonal zero": (random(4, 2), None, 1 - np.eye(4)),
    "all zero weights": (random(4, 2), None, np.zeros((4, 4))),
    "one token": (random(1, 3), random(3, 2), None),
    "no token": (random(0, 3), random(3, 2), None),
    "one feature of many": (random(5, 1), random(1, 4), None),
}


@pytest.fixture(params=CASES.values(), ids=CASES)
def case(request):
    return request.param


@pytest.fixture(params=PENALTIES)
def rho(request):
    return request.param


def literal_input(Y, W, m):
    return np.eye(Y.shape[1]) if W is None else W, np.ones((len(Y), len(Y))) if m is None else m


def scales(attn, Y):
    """(the largest degree × the tokens' spread about their centroid, ‖S‖)."""
    degree = np.asarray(attn.kernel(Y)).sum(axis=-1).max(initial=0.0)
    spread = np.linalg.norm(Y - Y.mean(axis=0), axis=-1).max(initial=0.0) if len(Y) else 0.0
    return degree * spread, spread, 1.0 if attn.W is None else np.linalg.norm(attn.W) ** 2


def test_everything_against_fifty_digits(case, rho, exact):
    # the tolerances are the project's: 1e-12 of Σ m |ρ|, of 1, and of degree × spread (× ‖S‖), plus the last bit of Y
    Y, W, m = case
    attn, (W, m) = AttentionEnergy(W, rho, m), literal_input(*case)
    value, slope = PENALTIES[rho].literal("mpmath")
    size = exact(definitions.attention_energy, Y, W, lambda z: abs(value(z)), m)
    assert abs(attn.value(Y) - exact(definitions.attention_energy, Y, W, value, m)) <= 1e-12 * size
    Gamma = exact(definitions.kernel, Y, W, slope, m).reshape(len(Y), len(Y))
    np.testing.assert_allclose(attn.kernel(Y), Gamma, rtol=0, atol=1e-12 * m.max(initial=0))
    A = exact(lambda *a: definitions.attention_weights(definitions.kernel(*a)), Y, W, slope, m).reshape(Gamma.shape)
    np.testing.assert_allclose(attn.weights(Y), A, rtol=0, atol=1e-12)
    moved, spread, S = scales(attn, Y)
    gradient = exact(definitions.attention_gradient, Y, W, slope, m).reshape(Y.shape)
    np.testing.assert_allclose(attn.gradient(Y), gradient, rtol=0, atol=1e-12 * moved * S)
    for alpha in (0.5, 1.0, 1.75):
        step = exact(definitions.attention_step, Y, W, slope, m, alpha).reshape(Y.shape)
        np.testing.assert_allclose(attn.step(Y, alpha), step, rtol=EPS, atol=1e-12 * spread)


def test_the_majorizer_against_fifty_digits_touches_and_bounds(case, rho, exact):
    Y, W, m = case
    attn, (W, m) = AttentionEnergy(W, rho, m), literal_input(*case)
    assert attn.majorizer(Y, Y) == attn.value(Y)
    value, slope = PENALTIES[rho].literal("mpmath")
    for Z in (Y + 0.1 * random(*Y.shape, seed=9), 2 * Y, Y * 0):
        expected = exact(definitions.attention_majorizer, Z, Y, W, value, slope, m)
        size = exact(definitions.attention_majorizer, Z, Y, W, lambda z: abs(value(z)), lambda z: abs(slope(z)), m)
        both = exact(definitions.attention_majorizer, Y, Y * 0, W, lambda z: 0, lambda z: m.max(initial=0), m)
        slack = 1e-12 * (abs(size) + abs(both) + abs(expected))
        got = attn.majorizer(Z, Y)
        assert abs(got - expected) <= slack
        assert attn.value(Z) <= got + slack


def test_step_decrease_max_alpha_and_curvature_against_dense_algebra(case, rho):
    Y, W, m = case
    attn, (W, m) = AttentionEnergy(W, rho, m), literal_input(*case)
    if not len(Y):
        assert attn.max_alpha(Y) == np.inf
        assert attn.half_curvature(Y).shape == (0,)
        assert attn.step_decrease(Y) == 0.0
        return
    Gamma = attn.kernel(Y)
    degree, S = Gamma.sum(axis=1), W @ W.T
    norm = np.linalg.svd(W, compute_uv=False)[0] ** 2 if W.size else 0.0
    np.testing.assert_allclose(attn.half_curvature(Y), norm * degree, rtol=1e-14)
    for alpha in (0.5, 1.0, 1.75):
        Delta = attn.step(Y, alpha) - Y
        M = 2 * np.diag(degree) / alpha - (np.diag(degree) - Gamma)
        bound = 0.5 * np.trace(S @ Delta.T @ M @ Delta)
        size = 0.5 * np.trace(np.abs(S) @ np.abs(Delta).T @ np.abs(M) @ np.abs(Delta))
        assert abs(attn.step_decrease(Y, alpha) - bound) <= 64 * EPS * size + 1e-300
    lowest = np.linalg.eigvals(attn.weights(Y)).real.min()
    # 1 − λ is right to n² EPS ‖A‖ ‖A⁻¹‖-ish ≤ 1e-12, and dα / dλ = ½ α²; where no token moves it is inf
    assert 1 - 2 / attn.max_alpha(Y) == pytest.approx(lowest, abs=1e-12)


@pytest.mark.parametrize("Y", [np.ones((1, 2)), np.array([[0.0], [1e9], [-1e9]])], ids=["one token", "far apart"])
def test_max_alpha_is_infinite_where_no_token_moves(Y, rho):
    if rho in ("linear", "log1p", "log2", "sqrt", "geman_mcclure") and len(Y) > 1:
        Y = Y * 1e200  # tails that are not negligible at 1e9
    if rho == "linear" and len(Y) > 1:
        assert AttentionEnergy(rho=rho).max_alpha(Y) == pytest.approx(2.0, rel=8 * EPS)
    else:
        np.testing.assert_array_equal(AttentionEnergy(rho=rho).step(Y), Y)
        assert AttentionEnergy(rho=rho).max_alpha(Y) == np.inf


def test_max_alpha_by_hand():
    # truncated: tokens one apart see each other; A = ((½, ½, 0), (⅓, ⅓, ⅓), (0, ½, ½)), eigenvalues 1, ½, −1/6
    assert AttentionEnergy(rho="truncated").max_alpha([[0.0], [1.0], [2.0]]) == pytest.approx(12 / 7, rel=8 * EPS)
    assert AttentionEnergy(rho="linear").max_alpha(Y3) == pytest.approx(2.0, rel=8 * EPS)
    assert AttentionEnergy(rho="linear", pair_weights=1 - np.eye(2)).max_alpha(Y3[:2]) == pytest.approx(
        1.0, rel=8 * EPS
    )
    # two tokens: 1 − λ = 2 c / (1 + c), c = e^(−½)
    c = np.exp(-0.5)
    assert AttentionEnergy().max_alpha(Y3[:2]) == pytest.approx((1 + c) / c, rel=8 * EPS)


def test_max_alpha_of_a_decreasing_penalty_is_refused(refused):
    with refused(ValueError, "rho: max_alpha needs a non-decreasing penalty, and 'sin.z.' decreases here"):
        AttentionEnergy(rho="sin(z)").max_alpha([[0.0], [2.5]])


@given(st.data())
def test_any_small_case_against_fifty_digits(exact, data):
    entries = st.integers(-24, 24).map(lambda i: i / 8)
    n, d, k = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
    scale = 2.0 ** data.draw(st.sampled_from([0, 0, -20, 3, 20]))
    shift = data.draw(st.sampled_from([0.0, 0.0, 1e8]))
    Y, W = (
        np.array(data.draw(st.lists(entries, min_size=r * c, max_size=r * c))).reshape(r, c)
        for r, c in ((n, d), (d, k))
    )
    Y, rho = Y * scale + shift, data.draw(st.sampled_from(sorted(PENALTIES)))
    attn, (value, slope) = AttentionEnergy(W, rho), PENALTIES[rho].literal("mpmath")
    size = exact(definitions.attention_energy, Y, W, lambda z: abs(value(z)), np.ones((n, n)))
    assert abs(attn.value(Y) - exact(definitions.attention_energy, Y, W, value, np.ones((n, n)))) <= 1e-12 * size
    step = exact(definitions.attention_step, Y, W, slope, np.ones((n, n)), 1.0).reshape(Y.shape)
    np.testing.assert_allclose(attn.step(Y), step, rtol=EPS, atol=1e-12 * scales(attn, Y)[1])


# ------------------------------------------------------------------------------------------------ fixed points


def test_a_map_without_columns_sees_every_token_in_one_place(rho):
    Y, attn = random(4, 3), AttentionEnergy(np.zeros((3, 0)), rho)
    assert attn.value(Y) == 6 * PENALTIES[rho].value(np.zeros(1))[0]
    np.testing.assert_allclose(attn.step(Y), np.broadcast_to(Y.mean(axis=0), (4, 3)), rtol=0, atol=4 * EPS)
    np.testing.assert_array_equal(attn.gradient(Y), np.zeros((4, 3)))


def test_alpha_zero_is_the_identity_and_alpha_interpolates(rho):
    Y, attn = random(5, 2) + 1e6, AttentionEnergy(random(2, 2, seed=2), rho)
    np.testing.assert_array_equal(attn.step(Y, 0.0), Y)
    np.testing.assert_array_equal(attn.step(Y, 0), Y)
    mean = attn.weights(Y) @ (Y - 1e6) + 1e6
    for alpha in (0.25, 1.0, 1.5, 2.0):
        np.testing.assert_allclose(attn.step(Y, alpha), Y + alpha * (mean - Y), rtol=4 * EPS)


def test_the_gradient_does_not_feel_the_diagonal(rho):
    Y, m = random(4, 2), np.ones((4, 4))
    heavy = AttentionEnergy(rho=rho, pair_weights=m + 1e20 * np.eye(4))
    np.testing.assert_allclose(heavy.gradient(Y), AttentionEnergy(rho=rho).gradient(Y), rtol=0, atol=32 * EPS)


def test_equal_tokens_stay_and_two_tokens_that_hold_each_other_swap(rho):
    Y = np.full((4, 2), 1e8 / 3)
    np.testing.assert_array_equal(AttentionEnergy(rho=rho).step(Y), Y)
    np.testing.assert_array_equal(AttentionEnergy(rho=rho).gradient(Y), np.zeros((4, 2)))
    close = np.array([[0.0], [1.0]])
    np.testing.assert_array_equal(AttentionEnergy(rho=rho, pair_weights=1 - np.eye(2)).step(close), close[::-1])


def test_a_token_without_weight_stays_bit_for_bit_and_the_rest_moves(rho):
    Y = random(4, 2) / 3
    alive = np.array([1.0, 0.0, 1.0, 1.0])
    attn = AttentionEnergy(rho=rho, pair_weights=np.outer(alive, alive))
    for alpha in (0.5, 1.0, 1.5):
        step = attn.step(Y, alpha)
        np.testing.assert_array_equal(step[1], Y[1])
        rest = AttentionEnergy(rho=rho).step(Y[[0, 2, 3]], alpha)
        np.testing.assert_allclose(step[[0, 2, 3]], rest, rtol=4 * EPS, atol=4 * EPS)
        assert (step[[0, 2, 3]] != Y[[0, 2, 3]]).any()
    np.testing.assert_array_equal(attn.weights(Y)[1], [0, 1, 0, 0])
    np.testing.assert_array_equal(attn.gradient(Y)[1], [0, 0])


@pytest.mark.parametrize("kernel", ["epanechnikov", "truncated", "-max(1 - z, 0)**3 / 3"])
def test_a_kernel_of_compact_support(kernel):
    attn, Y = AttentionEnergy(rho=kernel), np.array([[0.0], [0.5], [10.0]])
    c = {"epanechnikov": 0.875, "truncated": 1.0}.get(kernel, 0.875**2)  # ρ'(⅛)
    np.testing.assert_allclose(
        attn.weights(Y), [[1 / (1 + c), c / (1 + c), 0], [c / (1 + c), 1 / (1 + c), 0], [0, 0, 1]], rtol=4 * EPS
    )
    expected = [[0.5 * c / (1 + c)], [0.5 / (1 + c)], [10.0]]
    np.testing.assert_allclose(attn.step(Y), expected, rtol=4 * EPS)
    assert attn.step(Y)[2, 0] == 10.0
    no_self = AttentionEnergy(rho=kernel, pair_weights=1 - np.eye(3))
    np.testing.assert_array_equal(no_self.step(Y), [[0.5], [0.0], [10.0]])


FAR = {  # tokens, pair weights with a zero diagonal: e^(−z) underflows, its ratios do not
    "z = 800": ([0.0, 40.0], [[0, 1], [1, 0]]),
    "z = 5000": ([0.0, 100.0], [[0, 1], [1, 0]]),
    "z = 745, at the edge": ([0.0, 38.6, -38.6], [[0, 1, 1], [1, 0, 1], [1, 1, 0]]),
    "two at 800": ([0.0, 40.0, -40.03], [[0, 1, 1], [1, 0, 1], [1, 1, 0]]),
    "two at 5000": ([0.0, 100.0, -100.01], [[0, 1, 1], [1, 0, 1], [1, 1, 0]]),
    "weights that count": ([0.0, 100.0, -100.01], [[0, 1, 2.5], [1, 0, 1], [2.5, 1, 0]]),
    "weights that differ much": ([0.0, 100.0, -100.5], [[0, 1e-10, 1e10], [1e-10, 0, 1], [1e10, 1, 0]]),
    "one row only": ([0.0, 100.0, 100.5], [[0, 1, 1], [1, 1, 1], [1, 1, 1]]),
    "none that is left": ([0.0, 100.0, 100.5], [[0, 0, 0], [0, 1, 1], [0, 1, 1]]),
}


@pytest.mark.parametrize(("y", "m"), FAR.values(), ids=FAR)
def test_far_neighbours_whose_weights_underflow(y, m, exact):
    Y, m = np.array(y)[:, None], np.array(m, dtype=float)
    slope, attn = PENALTIES["exp"].literal("mpmath")[1], AttentionEnergy(rho="exp", pair_weights=m)
    A = exact(lambda *a: definitions.attention_weights(definitions.kernel(*a)), Y, np.eye(1), slope, m)
    np.testing.assert_allclose(attn.weights(Y), A, rtol=0, atol=1e-12)
    step = exact(definitions.attention_step, Y, np.eye(1), slope, m, 1.0)
    np.testing.assert_allclose(attn.step(Y), step, rtol=EPS, atol=1e-12 * np.ptp(Y))
    both = np.stack([Y, Y / 50])  # beside a batch that does not underflow
    np.testing.assert_allclose(attn.step(both)[0], attn.step(Y), rtol=4 * EPS)
    np.testing.assert_allclose(attn.step(both)[1], attn.step(Y / 50), rtol=4 * EPS, atol=4 * EPS)


@pytest.mark.parametrize(("y", "m"), FAR.values(), ids=FAR)
def test_max_alpha_agrees_with_weights_that_underflow(y, m):
    Y, attn = np.array(y)[:, None], AttentionEnergy(pair_weights=np.array(m, dtype=float))
    lowest = np.linalg.eigvals(attn.weights(Y)).real.min()
    assert 1 - 2 / attn.max_alpha(Y) == pytest.approx(lowest, abs=1e-12)


def test_the_step_is_in_the_hull_and_keeps_the_orthant(rho):
    for seed in range(20):
        Y = np.abs(random(6, 2, seed=seed)) * 10.0 ** (seed - 10)
        for alpha in (0.3, 1.0):
            step = AttentionEnergy(random(2, 2, seed=1), rho).step(Y, alpha)
            assert (step >= Y.min(axis=0)).all()
            assert (step <= Y.max(axis=0)).all()


def test_invariants(rho):
    Y, W, m = random(5, 3), random(3, 3, seed=2), weights_of_pairs(5, 5) + np.eye(5)
    attn, order = AttentionEnergy(W, rho, m), np.array([3, 0, 4, 1, 2])
    permuted = AttentionEnergy(W, rho, m[np.ix_(order, order)])
    Q = np.linalg.qr(random(3, 3, seed=5))[0]
    turned = AttentionEnergy(Q.T @ W, rho, m)
    # the same sums in another order, or of numbers off by a few EPS
    np.testing.assert_allclose(permuted.value(Y[order]), attn.value(Y), rtol=1e-14)
    np.testing.assert_allclose(permuted.step(Y[order]), attn.step(Y)[order], rtol=0, atol=1e-14)
    np.testing.assert_allclose(turned.value(Y @ Q), attn.value(Y), rtol=1e-13)
    np.testing.assert_allclose(turned.step(Y @ Q), attn.step(Y) @ Q, rtol=0, atol=1e-13)
    exact_shift = np.round(Y * 1024) / 1024  # adding 2^20 is exact
    np.testing.assert_allclose(attn.value(exact_shift + 2.0**20), attn.value(exact_shift), rtol=1e-14)
    np.testing.assert_allclose(attn.step(exact_shift + 2.0**20) - 2.0**20, attn.step(exact_shift), rtol=0, atol=2e-10)
    moved = attn.kernel(Y).sum(axis=1) @ (attn.step(Y) - Y)  # 1ᵀ D Δ = 0
    np.testing.assert_allclose(moved, 0, atol=1e-13 * attn.kernel(Y).sum())


def test_the_gradient_is_the_slope_of_the_energy(rho):
    if rho in ("epanechnikov", "truncated"):
        Y = np.array([[0.0, 0.1], [0.5, 0.2], [0.3, 0.9], [7.0, 7.0]])  # away from the kink at z = 1
    else:
        Y = random(4, 2)
    attn, h = AttentionEnergy(np.array([[1.0, 0.2], [0.0, 0.7]]), rho), 1e-5
    for i, a in np.ndindex(4, 2):
        E = np.zeros_like(Y)
        E[i, a] = h
        slope = (attn.value(Y + E) - attn.value(Y - E)) / (2 * h)
        assert slope == pytest.approx(attn.gradient(Y)[i, a], abs=1e-8)  # h² ρ''' and EPS E / h, both below 1e-9


# ------------------------------------------------------------------------------------------------ shapes and dtypes


@pytest.mark.parametrize("m_shape", [None, (4, 4), (3, 4, 4), (2, 3, 4, 4), (2, 1, 4, 4)], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_a_batch_is_a_loop(method, m_shape, rho):
    Y, W = random(2, 3, 4, 2), random(2, 2, seed=2)
    m = None if m_shape is None else weights_of_pairs(*m_shape)
    batch = getattr(AttentionEnergy(W, rho, m), method)(Y)
    full = None if m is None else np.broadcast_to(m, (2, 3, 4, 4))
    for index in np.ndindex(2, 3):
        one = getattr(AttentionEnergy(W, rho, None if full is None else full[index]), method)(Y[index])
        # the products may run in another order; 1e-12 because 1 − λ of max_alpha loses digits to its inverse
        np.testing.assert_allclose(batch[index], one, rtol=1e-12, atol=1e-14)
    assert np.shape(batch) == (2, 3, *np.shape(one))


@pytest.mark.parametrize("method", METHODS)
def test_one_set_of_tokens_under_many_pair_weights(method):
    Y, m = random(4, 2), weights_of_pairs(3, 4, 4)
    batch = getattr(AttentionEnergy(pair_weights=m), method)(Y)
    loop = [getattr(AttentionEnergy(pair_weights=one), method)(Y) for one in m]
    np.testing.assert_allclose(batch, loop, rtol=1e-12, atol=1e-14)


def test_the_majorizer_of_a_batch_is_a_loop(rho):
    Y, Z, attn = random(2, 3, 4, 2), random(2, 3, 4, 2, seed=3), AttentionEnergy(random(2, 2, seed=2), rho)
    loop = [[attn.majorizer(Z[i, j], Y[i, j]) for j in range(3)] for i in range(2)]
    np.testing.assert_allclose(attn.majorizer(Z, Y), loop, rtol=1e-13)


def test_the_scale_of_one_batch_does_not_cost_another_its_digits():
    attn, small = AttentionEnergy([[1e10]]), np.array([[0.0], [1.234567e-10]])
    both = np.stack([small, [[0.0], [1e308]]])
    np.testing.assert_allclose(attn.weights(both)[0], attn.weights(small), rtol=0, atol=1e-12)


@pytest.mark.parametrize("batch", [(), (2,), (0,), (2, 0)], ids=str)
@pytest.mark.parametrize(("n", "d", "k"), [(0, 2, 2), (1, 2, 2), (3, 2, 3), (3, 0, 0), (0, 0, 0), (3, 0, 2), (3, 2, 0)])
def test_shapes(batch, n, d, k, rho):
    Y, attn = random(*batch, n, d), AttentionEnergy(random(d, k), rho)
    shapes = {
        "value": batch, "gradient": (*batch, n, d), "kernel": (*batch, n, n), "weights": (*batch, n, n),
        "step": (*batch, n, d), "step_decrease": batch, "max_alpha": batch, "half_curvature": (*batch, n),
    }  # fmt: skip
    for method, shape in shapes.items():
        got = getattr(attn, method)(Y)
        assert np.shape(got) == shape, method
        assert not np.isnan(got).any(), method
        assert np.asarray(got).dtype == np.float64
    assert np.shape(attn.majorizer(Y, Y)) == batch


@pytest.mark.parametrize("n", [0, 1])
def test_no_token_and_one_token(n, rho):
    Y, attn = random(n, 3), AttentionEnergy(random(3, 2), rho)
    assert attn.value(Y) == 0.0
    np.testing.assert_array_equal(attn.step(Y), Y)
    np.testing.assert_array_equal(attn.gradient(Y), np.zeros((n, 3)))
    np.testing.assert_array_equal(attn.weights(Y), np.eye(n))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_narrow_floats_stay_and_energies_are_float64(dtype):
    Y = random(4, 2).astype(dtype)
    attn, wide = AttentionEnergy(random(2, 2, seed=2).astype(dtype)), Y.astype(float)
    for method in ("gradient", "kernel", "weights", "step"):
        got = getattr(attn, method)(Y)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, getattr(attn, method)(wide).astype(dtype))  # rounded once, at the end
    for method in ("value", "max_alpha", "step_decrease", "half_curvature"):
        assert np.asarray(getattr(attn, method)(Y)).dtype == np.float64
        np.testing.assert_array_equal(getattr(attn, method)(Y), getattr(attn, method)(wide))
    assert isinstance(attn.value(Y), np.float64)


@pytest.mark.parametrize("Y", [
    [[0], [1], [3]], ((0, 0), (1, 0), (3, 1)), np.array([[0], [1], [255]], dtype=np.uint8),
    np.array([[-128], [1], [127]], dtype=np.int8), np.array([[False, True], [True, True]]),
    np.array([[2**63], [1]], dtype=np.uint64), np.asfortranarray(random(4, 3)), random(8, 4)[::2, ::-2],
], ids=lambda Y: str(np.asarray(Y).dtype))  # fmt: skip
def test_integers_lists_and_views_are_taken_as_float64(Y):
    attn, wide = AttentionEnergy(), np.ascontiguousarray(np.asarray(Y).astype(float))
    for method in METHODS:
        got = getattr(attn, method)(Y)
        assert np.asarray(got).dtype == np.float64
        np.testing.assert_array_equal(got, getattr(attn, method)(wide))


# ------------------------------------------------------------------------------------------------ objects


def test_inputs_are_never_written_to_and_answers_repeat(rho):
    Y, W, m = random(4, 2), random(2, 3), weights_of_pairs(4, 4)
    kept = [A.copy() for A in (Y, W, m)]
    for A in (Y, W, m):
        A.setflags(write=False)
    attn = AttentionEnergy(W, rho, m)
    for method in METHODS:
        first, second = getattr(attn, method)(Y), getattr(attn, method)(Y)
        np.testing.assert_array_equal(first, second)
        assert not np.shares_memory(first, Y)
    assert attn.majorizer(2 * Y, Y) == attn.majorizer(2 * Y, Y)
    for A, copy in zip((Y, W, m), kept, strict=True):
        np.testing.assert_array_equal(A, copy)


@pytest.mark.parametrize("method", ["step", "gradient", "kernel", "weights"])
def test_an_answer_can_be_written_to_without_touching_anything(method, rho):
    Y, attn = random(4, 2), AttentionEnergy(rho=rho)
    first = getattr(attn, method)(Y)
    kept = first.copy()
    first += 1.0
    np.testing.assert_array_equal(getattr(attn, method)(Y), kept)


def test_the_energy_is_frozen_and_keeps_its_own_copies():
    W, m = random(2, 2), np.ones((3, 3))
    attn, Y = AttentionEnergy(W, pair_weights=m), random(3, 2)
    before = attn.value(Y)
    W[:], m[:] = 9.0, 0.0
    assert attn.value(Y) == before
    for name in ("W", "rho", "pair_weights", "anything"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(attn, name, None)
    for array in (attn.W, attn.pair_weights):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1.0


# ------------------------------------------------------------------------------------------------ overflow

FAR_OUT = {
    "1e200": [[1e200], [0.0], [-1e200]],
    "1e308": [[1e308], [-1e308], [0.0]],
    "skewed, 1.7e308": [[1.7e308], [-1.7e308], [-1.7e308], [-1.7e308]],
    "all at 1.7e308": [[1.7e308]] * 3,
    "mixed": [[1e200, -1e200], [3.0, 4.0], [3.0, 4.5], [-1e200, 1e308]],
    "a tiny and a huge": [[5e-324, 0.0], [1e-300, 1e300]],
    "squares that just overflow": [[1.4e154], [0.0], [1.3e154]],
}


@pytest.fixture(params=FAR_OUT.values(), ids=FAR_OUT)
def far_out(request):
    """Tokens, and their z with overflow to infinity."""
    Y = np.array(request.param)
    with np.errstate(all="ignore"):
        return Y, np.array([[0.5 * np.sum((a - b) ** 2) for b in Y] for a in Y])


def test_the_energy_far_out_is_its_limit(far_out, rho):
    Y, Z = far_out
    limit = {"exp": 0.0, "geman_mcclure": 1.0, "epanechnikov": 0.5, "truncated": 1.0}.get(rho, np.inf)
    value, pairs = PENALTIES[rho].value, list(itertools.combinations(range(len(Y)), 2))
    terms = [limit if np.isinf(Z[pair]) else float(value(Z[pair].reshape(1))[0]) for pair in pairs]
    assert AttentionEnergy(rho=rho).value(Y) == pytest.approx(sum(terms), rel=8 * EPS)


def test_weights_and_steps_far_out_are_finite(far_out, rho):
    Y, Z = far_out
    attn = AttentionEnergy(rho=rho)
    A = attn.weights(Y)
    assert np.isfinite(A).all()
    np.testing.assert_allclose(A.sum(axis=1), 1.0, rtol=8 * EPS)
    if rho != "linear":
        assert (A[np.isinf(Z)] == 0).all()
    step, expected = attn.step(Y), (A @ (Y / 2.0**10)) * 2.0**10  # scaled, so that nothing overflows
    # right to 1e-12 of the spread; halved, so that this does not overflow either
    assert (np.abs(step / 2 - expected / 2) <= 1e-12 * np.abs(Y).max() + np.abs(Y) * EPS).all()
    if rho != "linear" and np.isinf(Z[~np.eye(len(Y), dtype=bool)]).all():
        np.testing.assert_array_equal(step, Y)
    np.testing.assert_array_equal(attn.step(Y, 0.0), Y)


def test_the_gradient_far_out_is_its_limit(far_out, rho):
    Y, Z = far_out
    gradient = AttentionEnergy(rho=rho).gradient(Y)
    assert not np.isnan(gradient).any()
    if rho != "linear" and np.isinf(Z[~np.eye(len(Y), dtype=bool)]).all():
        np.testing.assert_array_equal(np.abs(gradient), np.zeros_like(Y))


def test_the_majorizer_far_out_touches(far_out, rho):
    attn, Y = AttentionEnergy(rho=rho), far_out[0]
    assert attn.majorizer(Y, Y) == attn.value(Y)
    assert not np.isnan(attn.majorizer(Y * 0, Y))
    assert not np.isnan(attn.majorizer(Y, Y * 0))
    assert not np.isnan(attn.max_alpha(Y))


@pytest.mark.parametrize("W", [1e200, 1e308, 1e-200, 1e-308])
def test_extreme_maps(W):
    attn, Y = AttentionEnergy([[W]]), np.array([[0.0], [1.0]])
    expected = (0.0, np.eye(2)) if W > 1 else (-1.0, np.full((2, 2), 0.5))
    assert attn.value(Y) == expected[0]
    np.testing.assert_array_equal(attn.weights(Y), expected[1])
    np.testing.assert_array_equal(np.abs(attn.gradient(Y)), np.zeros((2, 1)))
    with np.errstate(over="ignore"):
        expected_norm = np.float64(W) ** 2
    assert attn.spectral_norm == expected_norm


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e200, 1e308])
def test_the_scale_of_the_pair_weights_does_not_matter_to_attention(scale, rho):
    expected = AttentionEnergy(rho=rho).weights(Y3)
    np.testing.assert_allclose(
        AttentionEnergy(rho=rho, pair_weights=np.full((3, 3), scale)).weights(Y3), expected, rtol=1e-14
    )


def test_a_slope_that_is_infinite_out_there_is_refused(refused):
    derivative = Rho("pole", lambda z: z, lambda z: np.where(z < 1, 1.0, np.inf))
    with refused(ValueError, "rho: expected a finite derivative, 'pole' has another at z = 12.5"):
        AttentionEnergy(rho=derivative).step([[0.0], [5.0]])


def test_a_value_that_is_not_real_out_there_is_refused_and_not_nan(refused):
    value = AttentionEnergy(rho="log(1 + z - z**2)")  # slope 1 at 0, not real beyond 1.618, its derivative is finite
    assert value.value([[0.0], [0.5]]) == pytest.approx(np.log(1 + 0.125 - 0.125**2), rel=4 * EPS)
    with refused(ValueError, "rho: "):
        value.value([[0.0], [5.0]])


# ------------------------------------------------------------------------------------------------ refusals

TAKES_TOKENS = {m: (lambda attn, Y, m=m: getattr(attn, m)(Y)) for m in METHODS} | {
    "majorizer": lambda attn, Y: attn.majorizer(Y3, Y),
}


@pytest.mark.parametrize("call", TAKES_TOKENS.values(), ids=TAKES_TOKENS)
def test_bad_tokens(call, bad_array, refused):
    Y, error, came = bad_array
    with refused(error, f"Y: expected .*, got .*{came}"):
        call(AttentionEnergy(), Y)


@pytest.mark.parametrize("call", TAKES_TOKENS.values(), ids=TAKES_TOKENS)
def test_tokens_of_the_wrong_shape(call, refused):
    for Y in (1.0, [], [1.0, 2.0]):
        with refused(
            ValueError, rf"Y: expected shape \(\.\.\., n, d\), .*, got shape \({np.size(Y) if np.ndim(Y) else ''}"
        ):
            call(AttentionEnergy(), Y)
    with refused(ValueError, r"Y: expected shape \(\.\.\., n, 2\), .*, got shape \(3, 3\)"):
        AttentionEnergy(np.eye(2)).value(np.ones((3, 3)))
    with refused(ValueError, r"pair_weights: expected shape \(\.\.\., 3, 3\) for 3 tokens, got shape \(2, 2\)"):
        call(AttentionEnergy(pair_weights=np.ones((2, 2))), Y3)


@pytest.mark.parametrize("method", METHODS)
def test_batches_that_do_not_fit(method, refused):
    with refused(ValueError, r"pair_weights: expected .*, got shape \(2, 3, 3\)"):
        getattr(AttentionEnergy(pair_weights=np.ones((2, 3, 3))), method)(np.ones((5, 3, 1)))


def test_the_first_argument_of_the_majorizer(bad_array, refused):
    Y, error, came = bad_array
    with refused(error, f"Y_new: expected .*, got .*{came}"):
        AttentionEnergy().majorizer(Y, Y3)


@pytest.mark.parametrize("shape", [(2, 1), (1, 1), (3, 2), (4, 1)], ids=str)
def test_the_majorizer_wants_tokens_of_one_shape(shape, refused):
    with refused(ValueError, r"Y_new: expected .*\(3, 1\).*, got shape \("):
        AttentionEnergy().majorizer(np.ones(shape), Y3)


def test_bad_maps(bad_array, refused):
    W, error, came = bad_array
    with refused(error, f"W: expected .*, got .*{came}"):
        AttentionEnergy(W)


@pytest.mark.parametrize("W", [1.0, [1.0, 2.0], np.ones((2, 2, 2))], ids=lambda W: str(np.shape(W)))
def test_maps_of_the_wrong_shape(W, refused):
    with refused(ValueError, r"W: expected shape \(d, k\), got shape \("):
        AttentionEnergy(W)


def test_bad_pair_weights(bad_array, refused):
    m, error, came = bad_array
    with refused(error, f"pair_weights: expected .*, got .*{came}"):
        AttentionEnergy(pair_weights=m)


@pytest.mark.parametrize(
    ("m", "message"),
    [
        (3.0, r"expected shape \(n, n\) or \(\.\.\., n, n\), got shape \(\)"),
        ([1.0, 2.0], r"expected shape \(n, n\) or \(\.\.\., n, n\), got shape \(2,\)"),
        ([[1.0, 2.0]], r"expected shape \(n, n\) or \(\.\.\., n, n\), got shape \(1, 2\)"),
        ([[1, 2], [2.5, 1]], r"expected symmetric numbers, got 2.0 at index \(0, 1\)"),
        ([[1, -2], [-2, 1]], r"expected non-negative numbers, got -2.0 at index \(0, 1\)"),
        ([[[1, 2], [2, 1]], [[1, 2], [3, 1]]], r"expected symmetric numbers, got 2.0 at index \(1, 0, 1\)"),
        ([[1, 1], [1 + 2 * EPS, 1]], r"expected symmetric numbers, got 1.0 at index \(0, 1\)"),
    ],
)
def test_pair_weights_that_are_no_weights(m, message, refused):
    with refused(ValueError, "pair_weights: " + message):
        AttentionEnergy(pair_weights=m)


@pytest.mark.parametrize("method", ["step", "step_decrease"])
def test_bad_step_sizes(method, bad_number, refused):
    alpha, error, came = bad_number
    with refused(error, f"alpha: expected a .*number.*, got .*{came}"):
        getattr(AttentionEnergy(), method)(Y3, alpha)


@pytest.mark.parametrize("method", ["step", "step_decrease"])
def test_negative_step_sizes(method, refused):
    with refused(ValueError, r"alpha: expected a number in [\[(]0, inf\), got -0.5"):
        getattr(AttentionEnergy(), method)(Y3, -0.5)


def test_a_step_of_size_zero_decreases_nothing():
    assert AttentionEnergy().step_decrease(Y3, 0.0) == 0.0
