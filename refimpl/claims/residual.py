"""Claims of section 2: the data term and the residual connection. Derived in ``derivations/02_residual.md``."""

from __future__ import annotations

import mpmath
import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from .. import definitions
from ..attention import AttentionEnergy
from ..numerics import EPS, FloatArray
from ..residual import ResidualAttentionEnergy
from ..rho import get_rho
from ..testing import strategies
from ..testing.exact import attention_input, exact, matrix, rounded
from ..testing.rounding import TINY, U, energy_error, perturbation, spread, sum_error
from ..testing.strategies import AttentionCase
from .attention import away_from_kinks
from .ledger import Claim, require, require_close

NOTEBOOK = "02_residual.md"


def check_step(case: AttentionCase) -> float | None:
    """E_λ(Y) − E_λ(Y⁺) ≥ ½ s Tr Δᵀ (D + Γ) Δ + ½ λ ‖Δ‖²: the ratio is of the two sides."""
    attention, Y = case.energy, case.Y
    lam, X = 4 * case.fraction, Y * case.fraction + case.V
    energy = ResidualAttentionEnergy(attention, X, lam)
    Y_new = energy.step(Y)
    Delta = Y_new - Y
    s, Gamma = attention.spectral_norm, attention.kernel(Y)
    degree = Gamma.sum(axis=1)
    # Y⁺ is off by its last bit and by the error of the gradient over s d_i + λ: 8 (n + d) u of the spread and of Y − X
    size = spread(Y) + np.linalg.norm(Y - X, axis=1)
    r = U * (np.linalg.norm(Y_new, axis=1) + 8 * (sum(Y.shape) + 10) * size)
    R, R_new = Y - X, Y_new - X
    slack = energy_error(attention, Y) + energy_error(attention, Y_new) + perturbation(attention, Y_new, r)
    slack += lam * (sum_error(R * R) + sum_error(R_new * R_new))
    slack += lam * ((np.linalg.norm(R_new, axis=1) + r) * r).sum() + 1e-13 * lam * (Delta * Delta).sum()
    bound = 0.5 * s * (Delta * (degree[:, None] * Delta + Gamma @ Delta)).sum() + 0.5 * lam * (Delta * Delta).sum()
    slack += 8 * ((s * degree + lam) * (np.linalg.norm(Delta, axis=1) + r) * r).sum()
    slack += 16 * len(Y) * U * s * (degree[:, None] * Delta * Delta).sum()
    fall = energy.value(Y) - energy.value(Y_new)
    require(fall >= bound - slack, lambda: f"E_λ falls by {fall}, the bound is {bound}")

    assume(away_from_kinks(case))
    with exact():
        exact_Y, W, m, _, rho_prime = attention_input(case)
        S2 = mpmath.mpf(1) if case.W is None else mpmath.mpf(s)
        expected = rounded(definitions.residual_step(exact_Y, matrix(X), W, rho_prime, m, mpmath.mpf(lam), S2), Y.shape)
    tolerance = 1e-12 * size[:, None] + EPS * np.abs(expected) + TINY
    require_close(Y_new, expected, tolerance, "residual step")
    if case.W is None:
        tau = (lam / (degree + lam))[:, None]
        gated = (1 - tau) * attention.step(Y) + tau * X
        require_close(Y_new, gated, tolerance + 4 * EPS * (np.abs(Y) + np.abs(X) + spread(Y)), "gated form")
    return float((fall + slack) / bound) if bound > 1e6 * slack else None


def check_plain_step(case: tuple[FloatArray, float]) -> None:
    """For n = 2, X = 0 and unit pair weights the plain attention step never raises E_λ."""
    Y, lam = case
    energy = ResidualAttentionEnergy(AttentionEnergy(), 0.0, lam)
    Y_new = energy.attention.step(Y)
    rise = energy.value(Y_new) - energy.value(Y)
    slack = 2 * energy_error(energy.attention, Y) + lam * (64 * U * (Y * Y).sum()) + 64 * U * spread(Y) ** 2
    require(rise <= slack, lambda: f"E_λ rises by {rise}")


def witness_plain_step() -> str:
    with exact():
        Y, W, m = matrix(np.array([[3.5], [6.0], [6.0]])), [[1]], definitions.ones(3)
        rho, rho_prime = get_rho("exp").literal("mpmath")
        plain, X = definitions.attention_step(Y, W, rho_prime, m, 1), [[0], [0], [0]]
        before, after, gated = (
            definitions.attention_energy(T, W, rho, m) + definitions.data_energy(T, X, 1)
            for T in (Y, plain, definitions.residual_step(Y, X, W, rho_prime, m, 1, 1))
        )
        require(after > before > gated, "the plain step does not raise E_λ, or the residual step does")
        rise, fall = mpmath.nstr(after - before, 8), mpmath.nstr(before - gated, 8)
    return f"λ = 1, X = 0, W = 1, Y = (3.5, 6, 6): the plain step raises E_λ by {rise}, ours lowers it by {fall}"


CLAIMS = (
    Claim(
        "residual.step",
        "y_i⁺ = y_i − ((L Y S)_i + λ (y_i − x_i)) / (s d_i + λ) never raises E_λ; for W = I it is a gated residual",
        "ρ concave and non-decreasing, λ ≥ 0",
        NOTEBOOK,
        "refimpl.ResidualAttentionEnergy.step",
        strategies.attention_cases,
        check_step,
    ),
    Claim(
        "residual.plain_step_refuted",
        "the plain softmax_β step is not a descent step of E_λ; it is for n = 2, X = 0 and unit pair weights",
        "ρ = −e^(−z), W = I",
        NOTEBOOK,
        "refimpl.ResidualAttentionEnergy.step",
        lambda: st.tuples(strategies.tokens(n=st.just(2)), st.integers(1, 32).map(lambda i: i / 8)),
        check_plain_step,
        witness_plain_step,
    ),
)
