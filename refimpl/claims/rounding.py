"""Claims about rounding in the distances of many tokens. Derived in ``derivations/08_rounding.md``."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import mpmath
import numpy as np
from hypothesis import strategies as st

from .. import numerics
from ..attention import AttentionEnergy
from ..numerics import EPS, FloatArray, Projection
from ..rho import PENALTIES, Rho
from ..testing import strategies
from ..testing.exact import exact
from ..testing.strategies import Case
from .ledger import Claim, require, require_close

NOTEBOOK = "08_rounding.md"
_ALL = slice(None)
Exact = list[list[Fraction]]


@dataclass(frozen=True, eq=False)
class RowsCase(Case):
    """Rows u_i = high_i + low_i (n, k)."""

    high: FloatArray
    low: FloatArray | None

    @property
    def U(self) -> Projection:
        return Projection(self.high, self.low, None)

    def exactly(self) -> Exact:
        """u_i less the rounded centroid, which moves no distance."""
        low = np.zeros_like(self.high) if self.low is None else self.low
        c = _exact(self.high.mean(axis=-2, keepdims=True))[0]
        return [
            [a + b - x for a, b, x in zip(*row, c, strict=True)]
            for row in zip(_exact(self.high), _exact(low), strict=True)
        ]


@st.composite
def rows(draw: st.DrawFn) -> RowsCase:
    """Few rows of up to 140 entries with all their bits, translated by up to 2^60; ``low`` may be all that differs."""
    Y = draw(strategies.tokens(n=st.integers(2, 4), d=st.integers(1, 3)))
    k = draw(st.sampled_from([1, 2, 3, 16, 17, 127, 128, 129, 140]))
    factors = 1 + np.arange(k) * 0.6180339887498949 % 1
    high = np.tile(Y, k)[:, :k] * factors + draw(st.sampled_from([0.0, 0.0, 1e8, 2.0**60]))
    share = draw(st.none() | strategies.matrices(len(Y), 1))
    return RowsCase(high, None if share is None else np.spacing(np.abs(high)) * (share / 6.5) * factors / 2)


def _exact(M: FloatArray) -> Exact:
    return [[Fraction(float(x)) for x in row] for row in M]


def _half_squared(a: list[Fraction], b: list[Fraction]) -> Fraction:
    return sum(((x - y) ** 2 for x, y in zip(a, b, strict=True)), Fraction(0)) / 2


def _within(case: RowsCase, products: numerics._Products, constant: float, last_bits: Fraction) -> float | None:
    """|ẑ_ij − z_ij| ≤ δ + last_bits z_ij with δ = constant EPS R², ẑ ≥ 0; the smallest ratio of δ to what it bounds."""
    u = case.exactly()
    R2 = max(sum((x * x for x in row), Fraction(0)) for row in u)
    delta = Fraction(constant * EPS) * R2
    require_close(products.delta, np.full((1, 1), float(delta)), 1e-9 * float(delta), "δ")
    Z, largest = numerics._gram(products, _ALL, _ALL), Fraction(0)
    require((Z >= 0).all(), lambda: f"a distance is {Z.min()}")
    for i, j in np.ndindex(Z.shape):
        z = _half_squared(u[i], u[j])
        largest = max(largest, abs(Fraction(float(Z[i, j])) - z) - last_bits * z)
    require(largest <= delta, lambda: f"z is off by {float(largest):.3g}, the bound is {float(delta):.3g}")
    return float(delta / largest) if largest > 0 else None


def check_products(case: RowsCase) -> float | None:
    k = case.high.shape[-1]
    constant = 0.5 * (min(k, 128) + k / 12 + 28)
    _within(case, numerics._joined_products(case.U), 2 * constant, Fraction(0))
    return _within(case, numerics._products(case.U), constant, Fraction(0))


def check_split(case: RowsCase) -> float | None:
    k, products = case.high.shape[-1], numerics._split_products(case.U)
    assert products.half is not None
    P, Q = products.factors[0]
    u, m = case.exactly(), _exact(P)
    R2 = max(sum((x * x for x in row), Fraction(0)) for row in u)
    for row, multiple in zip(u, m, strict=True):
        away = max(abs(x - y) for x, y in zip(row, multiple, strict=True))
        near = away**2 <= Fraction(2) ** -50 * R2 * (1 + Fraction(2) ** -20)
        require(near, "u is further from its multiple than 2⁻²⁵ R")
    in_turn = P[:, None, ::-1] * Q[None, :, ::-1]
    for G in (P @ Q.T, np.add.accumulate(in_turn, axis=-1)[..., -1]):
        Z = (G + products.half) + products.half.T
        for i, j in np.ndindex(Z.shape):
            require(Fraction(float(Z[i, j])) == _half_squared(m[i], m[j]), "the products of the multiples are rounded")
    return _within(case, products, (5 * k + 8) * k**0.5 * 2.0**-25, Fraction(2) ** -53)


def witness_products() -> str:
    """In plain floats, so that the order of summation is the same everywhere."""
    U = [[1e8 + 1 / 3, 1e8 + 1 / 7, 1e8 + 1 / 11], [1e8 + 2 / 3, 1e8 + 3 / 7, 1e8 + 4 / 11]]
    half = [0.5 * (u[0] * u[0] + u[1] * u[1] + u[2] * u[2]) for u in U]

    def plain(i: int, j: int) -> float:
        a, b = U[i], U[j]
        return half[i] + half[j] - (a[2] * b[2] + a[1] * b[1] + a[0] * b[0])

    z, (a, b) = plain(0, 1), _exact(np.array(U))
    right = float(_half_squared(a, b))
    require(z < 0 < right and (plain(0, 0) != 0 or plain(1, 1) != 0))
    diagonal = f"{plain(0, 0):g} and {plain(1, 1):g}"
    return f"three features at 1e8, not centred: z = {z:g} for {right:.3g}, and {diagonal} on the diagonal"


# ------------------------------------------------------------------------------------------------ what δ does


@dataclass(frozen=True, eq=False)
class ErrorCase(Case):
    """An error δ in a distance z."""

    rho: Rho
    z: float
    delta: float
    epsilon: float


@st.composite
def errors(draw: st.DrawFn) -> ErrorCase:
    rho, epsilon = draw(strategies.penalties(bernstein=True)), draw(st.sampled_from([2.0**-40, 2.0**-23]))
    delta = epsilon * draw(st.integers(1, 64)) / draw(st.sampled_from([16, 32, 2**20]))
    z = draw(st.integers(0, 64)) * draw(st.sampled_from([delta, 2.0**-20, 0.125, 4.0]))
    return ErrorCase(rho, z, delta, epsilon)


def check_weights(case: ErrorCase) -> float | None:
    attention, rho_prime = AttentionEnergy(rho=case.rho), case.rho.literal("mpmath")[1]
    if not attention._harmless((case.rho.derivative,), case.delta, case.epsilon):
        return None
    with exact():
        z, delta = mpmath.mpf(case.z), mpmath.mpf(case.delta)
        at_z = rho_prime(z)
        change = max(abs(rho_prime(near) - at_z) for near in (z + delta, max(z - delta, mpmath.mpf(0))))
        # the code's own ρ'(0) − ρ'(δ) is off by 4 EPS at most
        bound = (case.epsilon + 4 * EPS) / (1 - mpmath.mpf(case.epsilon)) * at_z
        require(change <= bound, lambda: f"ρ' changes by {mpmath.nstr(change, 3)}, allowed is {mpmath.nstr(bound, 3)}")
        return float(bound / change) if change else None


def witness_weights() -> str:
    slope, delta = PENALTIES["epanechnikov"].derivative, 2.0**-60
    at_0, z = float(slope(np.zeros(1))[0] - slope(np.array([delta]))[0]), 1 - 2.0**-52
    change = float(slope(np.array([z]))[0] - slope(np.array([z + 2.0**-52]))[0]) / float(slope(np.array([z]))[0])
    require(at_0 == 0 and change == 1)
    return f"epanechnikov: harmless at 0, but at z = 1 − EPS an error of EPS in z takes {change:.0%} of the weight"


CLAIMS = (
    Claim(
        "rounding.products",
        "½ ‖u_i‖² + ½ ‖u_j‖² − u_i · u_j, centred, is z_ij to δ = ½ (min(k, 128) + k / 12 + 28) EPS R², in any order",
        "R = max ‖u_i‖ from the rounded centroid; R² not subnormal",
        NOTEBOOK,
        "refimpl.numerics.distance_blocks",
        rows,
        check_products,
        witness_products,
    ),
    Claim(
        "rounding.split",
        "products of multiples of 2⁻²⁵ R are not rounded; the rest leaves δ = (5 k + 8) √k 2⁻²⁵ EPS R² and a last bit",
        "k ≤ 30,000; R² not subnormal",
        NOTEBOOK,
        "refimpl.numerics.distance_blocks",
        rows,
        check_split,
    ),
    Claim(
        "rounding.weights",
        "ρ'(0) − ρ'(δ) ≤ ε ρ'(0) implies |ρ'(z ± δ) − ρ'(z)| ≤ ε / (1 − ε) ρ'(z) for every z: one test for all pairs",
        "ρ' completely monotone",
        NOTEBOOK,
        "refimpl.AttentionEnergy",
        errors,
        check_weights,
        witness_weights,
    ),
)
