"""Accuracy against 50-digit arithmetic on the very same floats, and memory.

The promise, for a tolerance of 1e-12: energies relative to Σ m |ρ|, attention weights absolutely, the step relative to
the spread of the tokens about their centroid plus the last bit of Y, the gradient relative to degree × spread × ‖S‖.
Numbers below the smallest normal float (2.2e-308) are allowed to underflow.
"""

import tracemalloc

import mpmath
import numpy as np
import pytest

import refimpl
from refimpl import definitions
from refimpl.numerics import EPS, centred, half_squared_distances, project
from refimpl.testing.exact import exact, matrix
from refimpl.testing.rounding import TINY, spread

TOLERANCE = 1e-12


def hard_inputs():
    """(kind, Y, W, m): norms from 1e-8 to 1e8, translations, duplicates, tight clusters, directions that W loses."""
    rng = np.random.default_rng(2022)
    for trial in range(3):
        n, d, k = rng.integers(2, 7), rng.integers(2, 6), rng.integers(1, 6)
        Y, integers = rng.normal(size=(n, d)), rng.integers(0, 4, size=(n, d))
        rank_one = np.outer(rng.normal(size=d), rng.normal(size=k))
        lost = rng.normal(size=(n, d))  # made orthogonal to the one direction that the map of rank one sees
        lost -= np.outer(lost @ rank_one[:, 0], rank_one[:, 0]) / (rank_one[:, 0] @ rank_one[:, 0])
        centres = 1e8 * rng.choice([-1.0, 0.0, 1.0], size=(n, 1))
        kinds = {
            "ordinary": Y,
            "norm 1e-8": 1e-8 * Y,
            "norm 1e8": 1e8 * Y,
            "weights down to e^-700": 12 * Y,
            "translated by 1e8": Y + 1e8 * rng.normal(size=d),
            "near duplicates at 1e8": 1e8 + integers * 2.0**-26,
            "near duplicates": Y[:1] + integers * 2.0**-50,
            "duplicates": np.repeat(Y[:1], n, axis=0),
            "tight clusters, 1e8 apart": centres + Y,
            "clusters of neighbouring floats": centres + integers * 2.0**-26,
            "apart where W is blind": Y + 1e8 * lost,
            "mixed scales": Y * 10.0 ** rng.integers(-8, 9, size=(n, 1)),
        }
        m = rng.integers(0, 3, size=(n, n)).astype(float)
        m = m + m.T + np.eye(n)
        for kind, tokens in kinds.items():
            for name, W in (("identity", None), ("full", rng.normal(size=(d, k))), ("rank one", rank_one)):
                for weights in (None, m):
                    yield pytest.param(
                        tokens, W, weights, id=f"{kind}-{name}-{'weighted' if weights is not None else 'plain'}-{trial}"
                    )


@pytest.mark.parametrize(("Y", "W", "m"), list(hard_inputs()))
def test_fifty_digits(Y, W, m):
    n, d = Y.shape
    for rho in refimpl.PENALTIES.values():
        attention = refimpl.AttentionEnergy(W, rho, m)
        with exact():
            exact_Y = matrix(Y)
            exact_W = definitions.identity(d) if W is None else matrix(W)
            exact_m = definitions.ones(n) if m is None else matrix(m)
            value, derivative = rho.literal("mpmath")
            distances = [definitions.distance(exact_Y, exact_W, i, j) for i in range(n) for j in range(i)]
            if rho.name in ("truncated", "epanechnikov") and any(abs(z - 1) < 1e-9 for z in distances):
                continue  # the kernel jumps or bends at z = 1, where no accuracy of the weights can be promised
            E = definitions.attention_energy(exact_Y, exact_W, value, exact_m)
            size = definitions.attention_energy(exact_Y, exact_W, lambda z, rho=value: abs(rho(z)), exact_m)
            Gamma = definitions.kernel(exact_Y, exact_W, derivative, exact_m)
            A, degree = definitions.attention_weights(Gamma), definitions.degrees(Gamma)
            gradient = definitions.attention_gradient(exact_Y, exact_W, derivative, exact_m)
            steps = {
                a: definitions.attention_step(exact_Y, exact_W, derivative, exact_m, mpmath.mpf(a)) for a in (1, 1.5)
            }

            def error(computed, expected):
                return [
                    [float(abs(mpmath.mpf(float(x)) - y)) for x, y in zip(*rows, strict=True)]
                    for rows in zip(computed, expected, strict=True)
                ]

            assert abs(mpmath.mpf(float(attention.value(Y))) - E) <= TOLERANCE * size + n * n * TINY, rho.name
            assert np.max(error(attention.weights(Y), A)) <= TOLERANCE, rho.name
            allowed = np.array([[float(x)] for x in degree]) * spread(Y) * attention.spectral_norm
            assert (error(attention.gradient(Y), gradient) <= TOLERANCE * allowed + TINY).all(), rho.name
            for alpha, step in steps.items():
                last_bit = EPS * np.abs(np.array([[float(x) for x in row] for row in step]))
                assert (error(attention.step(Y, alpha), step) <= TOLERANCE * alpha * spread(Y) + last_bit).all(), (
                    rho.name
                )


def test_projection_is_a_sum_of_two_floats():
    rng = np.random.default_rng(0)
    for scale in (1.0, 1e8, 1e-8, 2.0**500):
        Y, W = scale * rng.normal(size=(4, 6)) * 10.0 ** rng.integers(-6, 7, size=(4, 6)), rng.normal(size=(6, 3))
        high, low, exponent = project(Y, W)
        with exact():
            expected = definitions.matmul(matrix(Y), matrix(W))
            for i, row in enumerate(expected):
                for c, u in enumerate(row):
                    power = 0 if exponent is None else int(exponent.item())
                    computed = (mpmath.mpf(high[i, c]) + mpmath.mpf(low[i, c])) * mpmath.mpf(2) ** power
                    bound = mpmath.mpf(2) ** -90 * float(np.abs(Y[i]).max()) * float(np.abs(W[:, c]).max())
                    assert abs(computed - u) <= bound


def test_distances_are_symmetric_with_a_zero_diagonal():
    rng = np.random.default_rng(1)
    Y = rng.normal(size=(3, 40, 5)) + 1e8
    Z = half_squared_distances(*project(Y, rng.normal(size=(5, 4))))
    assert np.array_equal(Z, np.swapaxes(Z, -1, -2))
    assert (np.diagonal(Z, axis1=-2, axis2=-1) == 0).all()
    assert (Z >= 0).all()


def test_blocks_do_not_change_distances(monkeypatch):
    rng = np.random.default_rng(2)
    Y, W = rng.normal(size=(2, 37, 5)), rng.normal(size=(5, 4))
    whole = half_squared_distances(*project(Y, W))
    monkeypatch.setattr(refimpl.numerics, "BLOCK", 200)
    assert np.array_equal(half_squared_distances(*project(Y, W)), whole)
    for part, distances in zip(Y, whole, strict=True):
        assert np.array_equal(half_squared_distances(*project(part, W)), distances)


def test_centred_survives_the_largest_floats():
    offset, exponent = centred(np.array([[1.7e308], [-1.7e308], [-1.7e308], [-1.7e308]]))
    expected = np.array([2.55e8, -0.85e8, -0.85e8, -0.85e8]) / 2.0**exponent
    assert np.allclose(offset[:, 0] / 1e300, expected, rtol=1e-15)


@pytest.mark.parametrize("call", ["value", "gradient", "step", "weights", "max_alpha"])
def test_memory_stays_quadratic(call):
    """n = 2048, d = 300: an (n, n, d) array would be 10 GB; less than 300 MB is used above the inputs."""
    rng = np.random.default_rng(3)
    Y, W = rng.normal(size=(2048, 300)), rng.normal(size=(300, 300)) / 20
    attention = refimpl.AttentionEnergy(W)
    if call == "max_alpha":
        Y = Y[:512]  # the eigenvalue solver is cubic
    tracemalloc.start()
    try:
        getattr(attention, call)(Y)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 300e6, f"{peak / 1e6:.0f} MB"
