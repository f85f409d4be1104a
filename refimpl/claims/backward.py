"""Claims of section 6: the backward pass. Derived in ``derivations/06_backward.md``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import mpmath
import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from .. import definitions, formula
from ..activation import ACTIVATIONS
from ..numerics import EPS, FloatArray
from ..testing import strategies
from ..testing.exact import Rows, attention_input, exact, matrix, rounded
from ..testing.rounding import TINY, U, pairs, spread
from ..testing.strategies import AttentionCase, FeedForwardCase, matrices
from .attention import away_from_kinks
from .feedforward import argument_error
from .ledger import Claim, require, require_close

NOTEBOOK = "06_backward.md"


@dataclass(frozen=True, eq=False)
class AttentionDirection(AttentionCase):
    """A case, whose V is the cotangent, and a direction for Y and W to move in."""

    TY: FloatArray
    TW: FloatArray


@st.composite
def attention_directions(draw: st.DrawFn) -> AttentionDirection:
    case = draw(strategies.attention_cases())
    d = case.Y.shape[1]
    shapes = case.Y.shape, (d, d) if case.W is None else case.W.shape
    return AttentionDirection(
        *(getattr(case, field.name) for field in fields(case)), *(draw(matrices(*shape)) for shape in shapes)
    )


@dataclass(frozen=True, eq=False)
class FeedForwardDirection(FeedForwardCase):
    """A case, whose V is the cotangent, and a direction for Y, Wf and B to move in."""

    TY: FloatArray
    TWf: FloatArray
    TB: FloatArray


@st.composite
def feedforward_directions(draw: st.DrawFn) -> FeedForwardDirection:
    case = draw(strategies.feedforward_cases())
    shapes = case.Y.shape, case.Wf.shape, case.B.shape
    return FeedForwardDirection(
        *(getattr(case, field.name) for field in fields(case)), *(draw(matrices(*shape)) for shape in shapes)
    )


def require_slope(
    step: Callable[..., Rows], at: Sequence[Rows], along: Sequence[Rows], V: Rows, cotangents: Sequence[Rows]
) -> None:
    """Σ ⟨cotangent, direction⟩ is the slope of ⟨V, step⟩: a central difference, right to 1e-15 with h = 1e-22.

    Of 50 digits the difference loses 22, and h² is 1e-44: next to it the third derivative, of tokens up to 1e7 that
    move at 1e8, is no larger than 1e24 times the first.
    """
    h = mpmath.mpf(10) ** -22
    ahead, behind = (
        definitions.frobenius(
            V, step(*([[x + s * h * t for x, t in zip(*rows, strict=True)] for rows in zip(M, T, strict=True)]
                      for M, T in zip(at, along, strict=True)))
        )
        for s in (1, -1)
    )  # fmt: skip
    terms = [c * t for C, T in zip(cotangents, along, strict=True) for c_, t_ in zip(C, T, strict=True)
             for c, t in zip(c_, t_, strict=True)]  # fmt: skip
    slope, total, size = (ahead - behind) / (2 * h), sum(terms), sum(abs(term) for term in terms)
    require(
        abs(slope - total) <= mpmath.mpf(10) ** -15 * (1 + size),
        lambda: f"⟨V, Y⁺⟩ rises by {mpmath.nstr(slope, 12)} along the direction, the vjp says {mpmath.nstr(total, 12)}",
    )


# ------------------------------------------------------------------------------------------------ attention


def vjp_error(case: AttentionCase, alpha: float) -> tuple[FloatArray, FloatArray]:
    """Bounds on the rounding of (Ȳ, W̄), entry by entry, from the magnitudes of the terms of their sums.

    A weight and the derivative of one carry the error of z, at most (k + 6) u z times |ρ''/ρ'| or |ρ'''/ρ''|, which
    are at most 3 (1 + 1/z) for the shipped penalties, and that of sums of n terms. G is right to (n + d) u of
    |v_i| times the spread, as differences of tokens are, and so is U.
    """
    energy, Y, V = case.energy, case.Y, np.abs(case.V)
    n, d = Y.shape
    W = np.eye(d) if case.W is None else case.W
    u = 16 * (n + d + W.shape[1] + 10) * U
    Z = pairs(energy, Y)[0]
    A = energy.weights(np.asarray(Y)).astype(np.float64)
    far = 1 + np.where(np.isinf(Z), 0.0, Z)
    # the definition does not centre: it is right to 1e-45 of the tokens themselves
    y, x = (spread(M) + 1e-30 * np.abs(M).max(initial=0.0) for M in (Y, Y @ W))
    x += U * (np.abs(Y) @ np.abs(W)).max(initial=0.0)
    C = far * A * np.abs(energy._relative_slopes(Z)) + 2 * A * (Z == 0)  # |ρ''| ≤ 2 ρ' at 0, which the code leaves out
    Q = alpha * C * np.linalg.norm(V, axis=1)[:, None] * 2 * y
    U_bar = np.repeat(2 * x * (Q + Q.T).sum(axis=1)[:, None], W.shape[1], axis=1)
    Y_bar = abs(1 - alpha) * V + alpha * (A * far).T @ V + U_bar @ np.abs(W).T
    return u * Y_bar + TINY, u * y * np.ones((d, n)) @ U_bar + TINY


def check_attention(case: AttentionDirection) -> None:
    """(Ȳ, W̄): NumPy against the definition at 50 digits, and that against a difference quotient of the step."""
    assume(away_from_kinks(case) and len(case.Y))
    alpha = 2 * case.fraction
    computed = case.energy.vjp(case.Y, case.V, alpha)
    with exact():
        Y, W, m, _, rho_prime = attention_input(case)
        z = formula.symbol("z")
        rho_second = formula.scalar(formula.derivative(case.rho.expr, z, 2), z, "mpmath")
        V, size = matrix(case.V), mpmath.mpf(alpha)
        Y_bar, W_bar = definitions.attention_vjp(Y, W, rho_prime, rho_second, m, size, V)

        def step(Y: Rows, W: Rows) -> Rows:
            return definitions.attention_step(Y, W, rho_prime, m, size)

        require_slope(step, (Y, W), (matrix(case.TY), matrix(case.TW)), V, (Y_bar, W_bar))
        expected = rounded(Y_bar, computed.Y.shape), rounded(W_bar, computed.W.shape)
    for got, right, tolerance, name in zip(computed, expected, vjp_error(case, alpha), ("Ȳ", "W̄"), strict=True):
        require_close(got, right, tolerance + EPS * np.abs(right), name)


# ------------------------------------------------------------------------------------------------ feed-forward


def _root(name: str, sigma: Callable[[Any], Any], slope: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """prox_{αφ}(v) = σ(t) for σ = prox_φ with slope 0 ≤ σ' ≤ 1, where (1 − α) σ(t) + α t = v has one root t."""

    def prox(v: Any, alpha: Any) -> Any:
        def excess(t: Any) -> Any:
            return (1 - alpha) * sigma(t) + alpha * t - v

        def polished(t: Any) -> Any:
            for _ in range(4):  # Newton doubles the digits
                t -= excess(t) / ((1 - alpha) * slope(t) + alpha)
            return t

        # where the NumPy prox is right its root is near; where it is not, bisection finds it all the same
        p = float(ACTIVATIONS[name].prox(np.array(float(v)), float(alpha)))
        t = polished((v - (1 - alpha) * p) / alpha)
        if not abs(excess(t)) <= mpmath.mpf(10) ** -40 * (1 + abs(v)):
            radius = 1.01 * abs(excess(v)) / min(1, alpha)
            low, high = v - radius, v + radius
            for _ in range(30):
                t = (low + high) / 2
                low, high = (t, high) if excess(t) < 0 else (low, t)
            t = polished(t)
        return sigma(t)

    return prox


# prox_{αφ} of the shipped activations, of one number at any precision
_PROX: dict[str, Callable[[Any, Any], Any]] = {
    "identity": lambda v, alpha: v,
    "relu": lambda v, alpha: max(v, 0),
    "shifted_relu": lambda v, alpha: max(v - alpha / 2, 0),
    "soft_threshold": lambda v, alpha: mpmath.sign(v) * max(abs(v) - alpha / 2, 0),
    "hard_threshold": lambda v, alpha: v if abs(v) >= mpmath.sqrt(alpha) / 2 else 0,
    "leaky_relu": lambda v, alpha: v if v >= 0 else v / (1 + alpha * (1 / mpmath.mpf(0.01) - 1)),
    "hard_tanh": lambda v, alpha: min(max(v, -1), 1),
    "tanh": _root("tanh", mpmath.tanh, lambda t: mpmath.sech(t) ** 2),
    "sigmoid": _root("sigmoid", lambda t: 1 / (1 + mpmath.exp(-t)), lambda t: mpmath.sech(t / 2) ** 2 / 4),
    "softplus": _root("softplus", lambda t: mpmath.log1p(mpmath.exp(t)), lambda t: 1 / (1 + mpmath.exp(-t))),
    "elu": _root("elu", lambda t: mpmath.expm1(t) if t < 0 else t, lambda t: mpmath.exp(min(t, 0))),
}


def _at_kink(prox: Callable[[Any, Any], Any], v: Any, alpha: Any) -> bool:
    """Whether the one-sided slopes differ within 1e-9 of v; those of a smooth one do by less than 1e-9 / α²."""
    h = mpmath.mpf(10) ** -9
    behind, here, ahead = (prox(v + s * h, alpha) for s in (-1, 0, 1))
    return bool(abs(ahead - 2 * here + behind) > mpmath.mpf(10) ** -6 * h)


def check_feedforward(case: FeedForwardDirection) -> None:
    """(Ȳ, W̄f, B̄): NumPy against the definition at 50 digits, and that against a difference quotient of the step.

    The cotangent is 0 where the prox has a kink.
    """
    assume(len(case.Y))
    alpha, prox = 2 * case.fraction, _PROX[case.activation.name]
    with exact():
        Y, Wf, B = (matrix(M) for M in (case.Y, case.Wf, case.B))
        step_size, h = mpmath.mpf(alpha), mpmath.mpf(10) ** -22
        argument = definitions.feedforward_step(Y, Wf, B, lambda v, a: v, step_size)
        kinks = np.array([[_at_kink(prox, v, step_size) for v in row] for row in argument])
        cotangent = np.where(kinks, 0.0, case.V)
        V = matrix(cotangent)

        def prox_prime(v: Any, a: Any) -> Any:
            return (prox(v + h, a) - prox(v - h, a)) / (2 * h)

        def step(Y: Rows, Wf: Rows, B: Rows) -> Rows:
            return definitions.feedforward_step(Y, Wf, B, prox, step_size)

        cotangents = definitions.feedforward_vjp(Y, Wf, B, prox_prime, step_size, V)
        require_slope(step, (Y, Wf, B), [matrix(T) for T in (case.TY, case.TWf, case.TB)], V, cotangents)
        slopes = np.array([[float(prox_prime(v, step_size)) for v in row] for row in argument])
        expected = [
            rounded(M, shape)
            for M, shape in zip(cotangents, (Y_.shape for Y_ in (case.Y, case.Wf, case.B)), strict=True)
        ]
    computed = case.energy.vjp(case.Y, cotangent, alpha)
    # prox' has the slope α σ'' / ((1 − α) σ' + α)³, |σ''| ≤ 1; its argument is off by its rounding, and by a few last
    # bits where a root is found
    n, d = case.Y.shape
    blur = argument_error(case, alpha) + 16 * EPS * (1 + np.abs(rounded(argument, case.Y.shape)))
    P = np.abs(cotangent) * (
        alpha / min(1.0, alpha) ** 3 * blur + 16 * EPS + (n + d + 8) * U * np.where(kinks, 0.0, np.abs(slopes))
    )
    H = np.eye(d) + np.abs(case.Wf + case.Wf.T) / 2
    YtP = np.abs(case.Y).T @ P
    for got, right, tolerance, name in zip(
        computed, expected, (P + alpha * P @ H, alpha * (YtP + YtP.T) / 2, alpha * P), ("Ȳ", "W̄f", "B̄"), strict=True
    ):
        require_close(got, right, tolerance + TINY, name)


CLAIMS = (
    Claim(
        "backward.attention",
        "Ū = (diag(R 1) − R) U: Ȳ = (1−α) V + α Aᵀ V + Ū Wᵀ, W̄ = Yᵀ Ū; R = Q + Qᵀ, Q_ij = α C_ij v_i·(y_j − (A Y)_i)",
        "ρ twice differentiable at every z_ij, C_ij = m_ij ρ''(z_ij) / d_i",
        NOTEBOOK,
        "refimpl.AttentionEnergy.vjp",
        attention_directions,
        check_attention,
    ),
    Claim(
        "backward.ffn",
        "P = V ∘ prox'_{αφ}(Y − α (Y H − B)): Ȳ = P (I − α H), W̄_f = −½ α (Yᵀ P + Pᵀ Y), B̄ = α P",
        "prox_{αφ} differentiable at every entry; α > 0",
        NOTEBOOK,
        "refimpl.FeedForwardEnergy.vjp",
        feedforward_directions,
        check_feedforward,
    ),
)
