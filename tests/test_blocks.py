"""Pairs in blocks: distances by products as good as those by differences, energies that do not depend on the blocks.

The slow twin is ``half_squared_distances`` (differences), or rational arithmetic. Both are reached for any number of
tokens by ``numerics._SMALL``, up to which differences are taken: 0 for products always, a huge number for never.
"""

import itertools
import tracemalloc
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl import PENALTIES, AttentionEnergy, Rho, attention, definitions, numerics
from refimpl.numerics import EPS, distance_blocks, half_squared_distances, project
from refimpl.testing import strategies
from refimpl.testing.exact import attention_input, exact, matrix
from refimpl.testing.rounding import TINY, attention_vjp_tolerance, energy_error, pairs, spread
from refimpl.testing.strategies import AttentionCase

ALWAYS, NEVER = 0, 1 << 60
RELATIVE = 2.0**-46 / (1 - 2.0**-46)


@pytest.fixture
def products(monkeypatch):
    """Products for any number of tokens, and ``products(BLOCK)`` for blocks of that size."""
    monkeypatch.setattr(numerics, "_SMALL", ALWAYS)

    def blocks(size):
        for module in (numerics, attention):
            monkeypatch.setattr(module, "BLOCK", size)

    return blocks


def by_differences(function, *args):
    """The same, with all distances from differences of tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numerics, "_SMALL", NEVER)
        return function(*args)


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def clusters(apart, n=48, d=5):
    """Two clusters with distances from 1e-8 to 1 inside."""
    rng = np.random.default_rng(int(np.log10(apart)))
    return apart * rng.integers(0, 2, size=(n, 1)) + rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-8, 0, size=(n, 1))


INPUTS = {  # Y, W
    "generic": (random(48, 5), random(5, 4, seed=1)),
    "identity": (random(48, 5), None),
    "translated by 1e8": (random(48, 5) + 1e8, random(5, 4, seed=1)),
    **{f"clusters, {apart:g} apart": (clusters(apart), None) for apart in (1e3, 1e6, 1e8, 1e12)},
    **{f"clusters, {apart:g} apart, W": (clusters(apart), random(5, 4, seed=1)) for apart in (1e3, 1e8)},
    "one outlier": (np.vstack([random(47, 5), np.full((1, 5), 1e7)]), None),
    "duplicates": (np.repeat(random(6, 5), 8, axis=0), random(5, 4, seed=1)),
    "all equal": (np.full((48, 5), 1e8 / 3), random(5, 4, seed=1)),
    "rows of all sizes": (random(48, 5) * 10.0 ** np.linspace(-12, 12, 48)[:, None], None),
    "small": (1e-8 * random(48, 5), None),
    "squares that are just normal": (1e-152 * random(48, 5), None),
    "subnormal": (5e-324 * np.arange(240.0).reshape(48, 5), None),
    "huge": (1e200 * random(48, 5), None),
    "huge products": (1e100 * random(48, 5), 1e100 * np.eye(5)),
    "rank one": (random(48, 5), random(5, 1, seed=1) @ random(1, 4, seed=2)),
    "a direction that W nearly ignores": (random(48, 5) * [1e8, 1, 1, 1, 1], np.diag([1e-9, 1, 1, 1, 1])),
    "high halves agree": (
        np.hstack([np.full((48, 1), 2.0**75), np.round(2.0**18 * clusters(1.0))]),
        np.vstack([np.ones((1, 5)), np.eye(5)]),
    ),
    **{f"k = {k}": (clusters(1e3, n=20, d=k), None) for k in (1, 2, 127, 128, 129, 300)},
    "no column": (random(48, 5), np.zeros((5, 0))),
    "a batch of unlike sizes": (np.stack([random(48, 5), 1e6 * random(48, 5), clusters(1e8)]), None),
}
BLOCKS = (1, 300, 1 << 17)


def all_pairs(U, harmless):
    """z, each pair i ≤ j from the block that has it; every one is in exactly one block."""
    *batch, n, _ = U.high.shape
    Z, seen = np.zeros((*batch, n, n)), np.zeros((n, n), dtype=int)
    for block in distance_blocks(U, harmless):
        rows, columns = np.arange(n)[block.rows], np.arange(n)[block.columns]
        assert block.Z.shape == (*batch, len(rows), len(columns))
        assert np.array_equal(columns[: block.beyond], rows[: block.beyond])  # a square, and then the pairs beyond it
        assert block.beyond in (0, len(rows))
        assert (columns[block.beyond :] > rows.max()).all()
        Z[..., block.rows, block.columns] = block.Z
        Z[..., block.columns, block.rows] = np.swapaxes(block.Z, -1, -2)
        seen[np.ix_(rows, columns)] += 1
        seen[np.ix_(columns[block.beyond :], rows)] += 1
    assert (seen == 1).all()
    assert (Z >= 0).all()
    assert (np.diagonal(Z, axis1=-2, axis2=-1) == 0).all()
    assert np.array_equal(Z, np.swapaxes(Z, -1, -2))
    return Z


def check_relative(Y, W):
    """Where no absolute error is harmless, every z is right to 2⁻⁴⁶ of itself, and differences to (k + 6) EPS / 2."""
    U = project(Y, W)
    Z, twin = all_pairs(U, lambda delta, epsilon: delta == 0), half_squared_distances(*U)
    with np.errstate(invalid="ignore"):
        wrong = np.abs(Z - twin) > (RELATIVE + (U.high.shape[-1] + 8) * EPS) * twin + TINY
    assert not (wrong & (twin != Z)).any()


def check_absolute(Y, W):
    """Where an error of ε is harmless, z is right to that, or to 2⁻⁴⁶ of itself."""
    U = project(Y, W)
    Z, twin = all_pairs(U, lambda delta, epsilon: delta <= epsilon), half_squared_distances(*U)
    with np.errstate(invalid="ignore"):
        wrong = np.abs(Z - twin) > 2.0**-40 + (RELATIVE + (U.high.shape[-1] + 8) * EPS) * twin
    assert not (wrong & (twin != Z)).any()


@pytest.mark.parametrize("size", BLOCKS)
@pytest.mark.parametrize(("Y", "W"), INPUTS.values(), ids=INPUTS)
def test_distances_against_differences(Y, W, size, products):
    products(size)
    check_relative(Y, W)
    check_absolute(Y, W)


@pytest.mark.parametrize(
    "name", ["generic", "clusters, 1e+06 apart", "clusters, 1e+08 apart, W", "k = 129", "one outlier"]
)
def test_distances_against_rational_arithmetic(name, products):
    Y, W = INPUTS[name]
    U = project(Y[:16], W)
    low = np.zeros_like(U.high) if U.low is None else U.low
    rows = [
        [Fraction(a) + Fraction(b) for a, b in zip(*row, strict=True)]
        for row in zip(U.high.tolist(), low.tolist(), strict=True)
    ]
    Z = all_pairs(U, lambda delta, epsilon: delta == 0)
    for i, j in itertools.combinations(range(16), 2):
        z = sum((a - b) ** 2 for a, b in zip(rows[i], rows[j], strict=True)) / 2
        assert abs(Fraction(Z[i, j]) - z) <= Fraction(RELATIVE + (U.high.shape[-1] + 6) * EPS / 2) * z


@given(st.data())
def test_distances_of_any_tokens(data):
    Y = data.draw(strategies.tokens(n=st.integers(0, 12)))
    W = data.draw(strategies.maps(Y.shape[1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numerics, "_SMALL", ALWAYS)
        patch.setattr(numerics, "BLOCK", data.draw(st.sampled_from([1, 7, 30, 1000])))
        shift = data.draw(st.sampled_from([0.0, 1e8, 2.0**60]))
        check_relative(Y + shift, W)
        check_absolute(Y + shift, W)


def test_single_precision_holds_what_float32_does(products):
    for Y, W in (
        INPUTS[name] for name in ("generic", "clusters, 1000 apart", "clusters, 1e+08 apart, W", "duplicates")
    ):
        U = project(Y, W)
        twin = half_squared_distances(*U)
        for block in distance_blocks(U, lambda delta, epsilon: delta == 0, single=True):
            right = twin[block.rows, block.columns]
            assert block.Z.dtype == np.float32
            assert (np.abs(block.Z - right) <= (2.0**-26 + 2.0**-24) * 1.001 * right).all()


def test_few_pairs_are_formed_again(monkeypatch):
    """Of tokens in general position only the diagonal, of clusters the pairs in them; all where those are many."""
    formed = []

    def counting(right=numerics._near_pairs_by_differences):
        def near_pairs(Z, near, *rest):
            formed.append(np.count_nonzero(near))
            return right(Z, near, *rest)

        return near_pairs

    monkeypatch.setattr(numerics, "_near_pairs_by_differences", counting())
    centres = 100 * random(40, 16)
    for Y, most in (
        (random(400, 16), 400),
        (random(400, 16) + 1e8, 400),
        (np.repeat(centres, 10, axis=0) + 1e-3 * random(400, 16, seed=3), 40 * 100),
    ):
        formed.clear()
        list(distance_blocks(project(Y, None), lambda delta, epsilon: False))
        assert 400 <= sum(formed) <= most
    formed.clear()
    list(distance_blocks(project(random(400, 16), None), lambda delta, epsilon: True))
    assert not formed
    Y = np.repeat(random(4, 16), 100, axis=0)
    assert np.array_equal(all_pairs(project(Y, None), lambda *_: False), half_squared_distances(Y, None))


# ------------------------------------------------------------------------------------------------ energies


def masked(n, seed=4):
    m = np.random.default_rng(seed).integers(0, 3, size=(n, n)).astype(float)
    return m + m.T + np.eye(n)


def blocks_of_pairs(n):
    """Pairs inside the two clusters only."""
    return np.kron(np.eye(2), np.ones((n // 2, n // 2)))


SORTED = np.sort(random(60, 1, seed=5) > 0, axis=0)
TOKENS = {  # Y, W, m
    "generic": (random(60, 5), random(5, 4, seed=1), None),
    "weights": (random(60, 5), None, masked(60)),
    "translated": (random(60, 5) + 1e8, None, None),
    "close pairs alone count": (
        np.repeat([[0.0], [1.0]], 30, axis=0) + 1e-8 * random(60, 5),
        None,
        blocks_of_pairs(60),
    ),
    "clusters far apart": (1e8 * SORTED + random(60, 5) * 10.0 ** np.linspace(-8, 0, 60)[:, None], None, None),
    "duplicates": (np.repeat(random(6, 5), 10, axis=0), None, masked(60)),
    "no self": (random(60, 5), None, 1 - np.eye(60)),
    "a batch": (random(2, 60, 5) * [[[1.0]], [[1e5]]], random(5, 4, seed=1), None),
    "pair weights with more axes": (random(60, 5), None, np.stack([masked(60), np.ones((60, 60))])),
}
SCALAR = Rho("constant", lambda z: z, lambda z: 1.0, lambda z: 0.0)
KINKS = "min(z, 1) + log(1 + z)"
RHOS = (*PENALTIES, "-exp(-z)", KINKS, SCALAR)


def each(Y, m):
    """(index, Y, m) of the batches."""
    shape = np.broadcast_shapes(Y.shape[:-2], () if m is None else m.shape[:-2])
    Y = np.broadcast_to(Y, (*shape, *Y.shape[-2:]))
    m = None if m is None else np.broadcast_to(m, (*shape, *m.shape[-2:]))
    return [(index, Y[index], None if m is None else m[index]) for index in np.ndindex(shape)]


def check_energy(rho, Y, W, m):
    """Everything, against sums over all pairs at once of distances by differences, to 1e-12 of what is summed."""
    attn, moved = AttentionEnergy(W, rho, m), Y + random(*Y.shape, seed=7)
    V = np.broadcast_to(random(*Y.shape, seed=6), (*attn._batch(Y), *Y.shape[-2:]))
    names = ("value", "gradient", "step", "half_curvature", "step_decrease", "kernel", "weights")
    got = {name: np.asarray(getattr(attn, name)(Y)) for name in names}
    majorizer, vjp, W_bar, W_bar_error = np.asarray(attn.majorizer(moved, Y)), attn.vjp(Y, V), 0.0, 0.0
    for (index, y, weights), (_, y_new, _) in zip(each(Y, m), each(moved, m), strict=True):
        one, offset = AttentionEnergy(W, rho, weights), y - y.mean(axis=0)
        Z, size, off_diagonal = pairs(one, y)
        own = np.broadcast_to(one.rho.derivative(np.zeros(len(y))), len(y))
        Gamma = off_diagonal + np.diag(own if weights is None else own * np.diag(weights))
        degree = Gamma.sum(axis=1, keepdims=True)
        A = Gamma / np.where(degree == 0, 1.0, degree) + np.eye(len(y)) * (degree == 0)
        metric = 1.0 if W is None else W @ W.T

        def close(name, expected, allowed, index=index):
            assert (np.abs(got[name][index] - expected) <= 1e-12 * allowed).all(), name

        E = np.sign(one.rho.value(np.full(1, 1.0))) * size.sum() / 2  # no penalty here changes its sign
        close("value", E, size.sum() / 2)
        assert abs(got["value"][index] - E) <= 2 * energy_error(one, y)
        close("kernel", Gamma, Gamma.max())
        close("weights", A, 1.0)
        close("step", y.mean(axis=0) + A @ offset, spread(y) + 1e12 * EPS * np.abs(y).max())
        LY = degree * offset - Gamma @ offset
        close("gradient", LY if W is None else LY @ metric, 2 * degree * spread(y) * one.spectral_norm)
        close("half_curvature", one.spectral_norm * degree[:, 0], one.spectral_norm * degree[:, 0])
        Delta = got["step"][index] - y if W is None else (got["step"][index] - y) @ W
        along = degree * np.abs(Delta) + Gamma @ np.abs(Delta)
        close("step_decrease", (Delta * (degree * Delta + Gamma @ Delta)).sum() / 2, (np.abs(Delta) * along).sum() / 2)
        change = off_diagonal * (pairs(one, y_new)[0] - Z)
        magnitude = size + off_diagonal * (pairs(one, y_new)[0] + Z)
        assert abs(majorizer[index] - E - change.sum() / 2) <= 1e-12 * magnitude.sum() / 2
        cotangents, twin = one.vjp(y, V[index]), by_differences(one.vjp, y, V[index])
        Y_bar_error, part = attention_vjp_tolerance(one, y, V[index], 0 * y, EPS)
        assert (np.abs(cotangents.Y - twin.Y) <= Y_bar_error).all()
        if attn._batch(Y) == Y.shape[:-2]:
            assert (np.abs(vjp.Y[index] - twin.Y) <= Y_bar_error).all()
        W_bar, W_bar_error = W_bar + twin.W, W_bar_error + part
    assert (np.abs(vjp.W - W_bar) <= W_bar_error).all()


@pytest.mark.parametrize("size", [100, 1 << 17])
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("rho", RHOS, ids=lambda rho: getattr(rho, "name", rho))
def test_everything_against_differences(rho, tokens, size, products):
    products(size)
    check_energy(rho, *TOKENS[tokens])


@pytest.mark.parametrize("rho", PENALTIES)
@pytest.mark.parametrize("size", [40, 1 << 17])
def test_clusters_against_fifty_digits(rho, size, products):
    products(size)
    Y, m = clusters(1e8, n=18, d=3), blocks_of_pairs(18) + 1.0
    case = AttentionCase(Y, random(3, 2, seed=1), m, PENALTIES[rho], Y, 1.0)
    attn = case.energy
    with exact():
        exact_Y, W, m, value, slope = attention_input(case)
        E = definitions.attention_energy(exact_Y, W, value, m)
        magnitude = definitions.attention_energy(exact_Y, W, lambda z: abs(value(z)), m)
        Gamma = definitions.kernel(exact_Y, W, slope, m)
        A, degree = definitions.attention_weights(Gamma), definitions.degrees(Gamma)
        step = definitions.matmul(A, exact_Y)
        gradient = definitions.attention_gradient(exact_Y, W, slope, m)

        def off(got, expected):
            rows = zip(matrix(np.asarray(got)), expected, strict=True)
            return np.array([[float(abs(a - b)) for a, b in zip(*row, strict=True)] for row in rows])

        assert abs(mpmath.mpf(float(attn.value(Y))) - E) <= 1e-12 * magnitude
        assert off(attn.weights(Y), A).max() <= 1e-12
        assert (off(attn.step(Y), step) <= 1e-12 * spread(Y) + EPS * np.abs(Y)).all()
        allowed = 1e-12 * np.array([[float(x)] for x in degree]) * spread(Y) * attn.spectral_norm
        assert (off(attn.gradient(Y), gradient) <= allowed).all()


FAR = {  # tokens in pairs, far from each other and farther from the rest: e^(−z) underflows, or all but does
    "z = 100": 14.0,
    "z = 550, at the edge of what is formed again": 33.2,
    "z = 745, at the edge of underflow": 38.6,
    "z = 5000": 100.0,
    "z = 5e9": 1e5,
}


@pytest.mark.parametrize("apart", FAR.values(), ids=FAR)
@pytest.mark.parametrize("size", [40, 1 << 17])
def test_rows_whose_degree_underflows(apart, size, products):
    products(size)
    Y = apart * np.arange(60.0)[:, None] + 0.01 * random(60, 1)
    m = 1 - np.eye(60)
    attn, V = AttentionEnergy(pair_weights=m), random(60, 1, seed=1)
    # a weight is off by the error of its logarithm z: 2^-46 z at most
    error = 2 * (RELATIVE + 4 * EPS) * apart**2
    expected = by_differences(attn.step, Y)
    near = 4 * apart + EPS * np.abs(Y)
    assert (np.abs(attn.step(Y) - expected) <= near * (error + 1e-12)).all()
    Ybar = by_differences(attn.vjp, Y, V).Y
    assert np.isfinite(Ybar).all()
    assert (np.abs(attn.vjp(Y, V).Y - Ybar) <= 64 * (1 + apart**2) * (error + 1e-12) * np.abs(V).max()).all()
    both = np.stack([Y, Y / (20 * apart)])  # beside a batch that does not underflow
    np.testing.assert_allclose(attn.step(both)[0], attn.step(Y), rtol=1e-12, atol=1e-12 * apart)
    np.testing.assert_allclose(attn.step(both)[1], attn.step(both[1]), rtol=0, atol=1e-12 * spread(both[1]))


def test_rows_whose_degree_overflows(products):
    products(100)
    Y, m = random(60, 3), np.full((60, 60), 1e308)
    expected = by_differences(AttentionEnergy().step, Y)
    np.testing.assert_allclose(AttentionEnergy(pair_weights=m).step(Y), expected, rtol=0, atol=1e-12 * spread(Y))


@pytest.mark.parametrize("rho", [rho.name for rho in PENALTIES.values() if rho.bernstein])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e3, 1e12, 1e30])
def test_float32_against_float64_of_the_same_tokens(rho, scale):
    """ε = 2⁻²³ in a weight, the last bit of z and of ρ', and n roundings of each of two sums, all of float32."""
    Y = (scale * random(200, 16)).astype(np.float32)
    attn, wide = AttentionEnergy(np.eye(16) / scale / 4, rho), Y.astype(float)
    assert numerics._SMALL < 200 * 200 * 16
    unit = 2.0**-24
    step, gradient = attn.step(Y), attn.gradient(Y)
    assert step.dtype == gradient.dtype == np.float32
    z_slope = 8  # |ρ''| z / ρ' for the z of these tokens, e^(−z) the steepest
    error = (2 + z_slope + 4 + 2 * 200) * unit
    assert (np.abs(step - attn.step(wide)) <= error * spread(wide) + unit * np.abs(step)).all()
    degree = attn.kernel(wide).sum(axis=-1, keepdims=True)
    assert (np.abs(gradient - attn.gradient(wide)) <= 2 * error * degree * spread(wide) * attn.spectral_norm).all()
    size = pairs(attn, wide)[1].sum() / 2
    assert abs(attn.value(Y) - attn.value(wide)) <= (2 + z_slope + 4) * unit * size
    assert np.asarray(attn.value(Y)).dtype == np.float64


@pytest.mark.parametrize("shape", [(0, 300, 4), (2, 0, 300, 4), (3, 0, 4), (300, 0), (3, 1, 4)], ids=str)
def test_nothing_to_do(shape, products):
    Y, attn = random(*shape), AttentionEnergy()
    np.testing.assert_array_equal(attn.value(Y), np.full(shape[:-2], -44850.0 if shape == (300, 0) else 0.0))
    np.testing.assert_array_equal(attn.majorizer(Y, Y), attn.value(Y))
    for method in ("step", "gradient"):
        assert getattr(attn, method)(Y).shape == shape
    assert attn.vjp(Y, Y).Y.shape == shape


# ------------------------------------------------------------------------------------------------ memory

CALLS = {
    "value": lambda attn, Y: attn.value(Y),
    "gradient": lambda attn, Y: attn.gradient(Y),
    "step": lambda attn, Y: attn.step(Y),
    "vjp": lambda attn, Y: attn.vjp(Y, Y),
    "majorizer": lambda attn, Y: attn.majorizer(Y, Y),
    "half_curvature": lambda attn, Y: attn.half_curvature(Y),
    "step_decrease": lambda attn, Y: attn.step_decrease(Y),
}


def never(delta, epsilon):
    return False


def peak_memory(call, attn, Y):
    tracemalloc.start()
    try:
        call(attn, Y)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("rho", ["exp", "epanechnikov"])
def test_memory_grows_with_the_number_of_tokens_not_of_pairs(rho, call):
    """One float64 a pair of 3000 tokens is 72 MB; blocks and a few arrays of the size of Y are below 16 MB."""
    attn = AttentionEnergy(random(16, 16, seed=1) / 4, rho)
    small, large = (peak_memory(call, attn, random(n, 16)) for n in (1500, 3000))
    assert large < 16e6
    assert large < 2.5 * small


def test_memory_of_rows_that_are_formed_one_by_one():
    """Without any weight every row is one of the identity, which is not formed whole."""
    weightless = AttentionEnergy(None, Rho("weightless", lambda z: 0 * z, lambda z: 0 * z))
    Y = random(3000, 4)
    assert peak_memory(lambda attn, Y: attn.step(Y), weightless, Y) < 16e6
    np.testing.assert_array_equal(weightless.step(Y), Y)


def test_memory_of_pairs_that_are_formed_again():
    """An eighth of the pairs of a block, with all their features: k = 1000 of them at once would be 130 MB."""
    Y = np.repeat(random(120, 1000), 10, axis=0)
    U = project(Y, None)
    own = numerics._split_products(U)
    held = sum(part.nbytes for factors in own.factors for part in factors)
    peak = peak_memory(lambda U, harmless: list(zip(distance_blocks(U, harmless), range(1), strict=False)), U, never)
    assert peak < 2 * held + 16e6


# ------------------------------------------------------------------------------------------------ planted faults


def run_distances(products):
    for Y, W in INPUTS.values():
        check_relative(Y, W)
        check_absolute(Y, W)


def run_energies(products):
    products(100)
    for name, rho in itertools.product(TOKENS, ("exp", "log1p", "epanechnikov")):
        check_energy(rho, *TOKENS[name])


def coarse_grid(right=numerics._split_products, frexp=np.frexp):
    """A grid of 2^-30 R: R is taken for 2^-5 of itself where the grid is made of it."""

    def fault(U):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(numerics.np, "frexp", lambda x: (frexp(x)[0], frexp(x)[1] - 5))
            return right(U)

    return fault


def no_differences(Z, near, U, rows, columns):
    """z of the product, with the diagonal set to 0."""
    if rows.start == columns.start:
        index = np.arange(Z.shape[-2])
        Z[..., index, index] = 0.0
    return Z


def without_half_j(products, rows, columns, right=numerics._gram):
    if rows.start == columns.start:
        return right(products, rows, columns)
    return np.maximum(right(products, rows, columns) - np.swapaxes(products.half[..., columns, :], -1, -2), 0.0)


def without_transpose(total, block, G, M):
    total[..., block.rows, :] += G @ M[..., block.columns, :]


def square_twice(block, G):
    return G.sum(axis=(-2, -1), dtype=np.float64)


FAULTS = {
    "a grid of 2^-30": (numerics, "_split_products", coarse_grid(), run_distances),
    "no pair formed again": (numerics, "_near_pairs_by_differences", no_differences, run_distances),
    "one half left out": (numerics, "_gram", without_half_j, run_distances),
    "always harmless": (AttentionEnergy, "_harmless", lambda *_: True, run_energies),
    "harmless to ρ' is taken for harmless to ρ": (
        AttentionEnergy,
        "_harmless",
        lambda self, functions, *args, right=AttentionEnergy._harmless: right(self, functions[:1], *args),
        run_energies,
    ),
    "the transpose forgotten": (attention, "add_symmetric_product", without_transpose, run_energies),
    "the square counted twice": (attention, "sum_of_pairs", square_twice, run_energies),
}


@pytest.mark.parametrize(("owner", "name", "fault", "run"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_found(owner, name, fault, run, products, monkeypatch):
    products(300)
    run(products)
    monkeypatch.setattr(owner, name, fault)
    with pytest.raises(AssertionError):
        run(products)
