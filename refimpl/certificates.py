"""Certificates: the hypotheses under which a step on one term lowers the whole sum, checked at the current point.

h = f + g, and the step is taken on g alone. Each function returns a :class:`Certificate`. One that holds guarantees
h(y⁺) ≤ h(y); one that does not says nothing. Arrays are tokens or gradients (..., n, d), leading axes being batches.
Derivations, and a point outside each certificate where the energy does rise: ``derivations/04_alternating.md``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .attention import AttentionEnergy
from .numerics import FloatArray, norm, read_array, read_number, read_tokens


class Certificate(NamedTuple):
    """holds : whether the hypothesis is met, shape (...).

    margin : left side minus right side of its inequality, which must not be negative.
    decrease : the lower bound on h(y) − h(y⁺) that the proof gives.
    """

    holds: Any
    margin: Any
    decrease: Any


def gradient_norm(grad_f: ArrayLike, grad_g: ArrayLike, *, L_h: float, alpha: float) -> Certificate:
    """‖∇f‖ ≤ ‖∇h‖ and α ≤ 1 / L_h, for y⁺ = y − α ∇g and h that is L_h-smooth.

    The bound is ½ α (‖∇h‖² − ‖∇f‖² + (1 − L_h α) ‖∇g‖²).
    """
    L_h, alpha = _read_smoothness(L_h, "L_h"), _read_step(alpha)
    norm_f, norm_g, norm_h = _norms(grad_f, grad_g)
    margin = norm_h - norm_f
    decrease = 0.5 * alpha * (margin * (norm_h + norm_f) + (1 - L_h * alpha) * norm_g**2)
    return Certificate((margin >= 0) & (L_h * alpha <= 1), margin, decrease)


def apollonius(
    y: ArrayLike, y_f: ArrayLike, y_h: ArrayLike, *, L_f: float, m_h: float, L_h: float, alpha: float
) -> Certificate:
    """L_f ‖y − y_f‖ ≤ m_h ‖y − y_h‖ and α ≤ 1 / L_h, for y⁺ = y − α ∇g.

    f is convex and L_f-smooth with minimiser y_f, h is m_h-strongly convex and L_h-smooth with minimiser y_h. The
    points are those whose distances have a ratio of at most C = m_h / L_f: a ball of Apollonius that contains y_f
    for C < 1, a half-space for C = 1, the outside of a ball that contains y_h for C > 1. Yang, Huang, Wipf (2022),
    section 4. The bound is ½ α (m_h² ‖y − y_h‖² − L_f² ‖y − y_f‖²).
    """
    point, alpha = _read(y, "y"), _read_step(alpha)
    L_f, m_h, L_h = (_read_smoothness(L, name) for L, name in ((L_f, "L_f"), (m_h, "m_h"), (L_h, "L_h")))
    near, far = L_f * norm(point - _read(y_f, "y_f")), m_h * norm(point - _read(y_h, "y_h"))
    margin = far - near
    return Certificate((margin >= 0) & (L_h * alpha <= 1), margin, 0.5 * alpha * margin * (far + near))


def prox_mapping(grad_f: ArrayLike, G: ArrayLike, *, L_h: float, alpha: float) -> Certificate:
    """‖∇f‖ ≤ (1 − ½ L_h α) ‖G‖, for y⁺ = prox_{αφ}(y − α ∇g), G = (y − y⁺) / α, φ convex, h L_h-smooth.

    It guarantees (h + φ)(y⁺) ≤ (h + φ)(y); the bound is α ‖G‖ times the margin.
    """
    L_h, alpha = _read_smoothness(L_h, "L_h"), _read_step(alpha)
    norm_f, norm_G = norm(_read(grad_f, "grad_f")), norm(_read(G, "G"))
    margin = (1 - 0.5 * L_h * alpha) * norm_G - norm_f
    return Certificate(margin >= 0, margin, alpha * norm_G * margin)


def truncated_share(y: ArrayLike, xi: ArrayLike) -> Any:
    """κ = Σ_{|ξ_i| > |y_i|} (ξ_i² − y_i²) / ‖ξ‖², shape (...): the share of the step ξ that ReLU can cut off."""
    v, x = np.abs(_read(y, "y")), np.abs(_read(xi, "xi"))
    largest = x.max(axis=(-2, -1), keepdims=True, initial=0.0)
    largest = np.where(largest == 0, 1.0, largest)  # scaled, so that squares neither overflow nor vanish
    v, x = v / largest, x / largest
    cut = np.where(x > v, (x - v) * (x + v), 0.0).sum(axis=(-2, -1))
    total = (x * x).sum(axis=(-2, -1))
    return cut / np.where(total == 0, 1.0, total)


def truncation(y: ArrayLike, grad_f: ArrayLike, grad_g: ArrayLike, *, L_h: float, alpha: float) -> Certificate:
    """‖∇h‖² + (1 − L_h α) ‖∇g‖² − ‖∇f‖² − 2 √κ ‖∇h‖ ‖∇g‖ ≥ 0, for y ≥ 0 and y⁺ = ReLU(y − α ∇g).

    κ is ``truncated_share(y, α ∇g)`` and h is L_h-smooth. Yang, Huang, Wipf (2022), section 4. The bound is ½ α times
    the margin. Raises ``ValueError`` for negative entries of y, where ReLU's energy is infinite.
    """
    point, alpha, L_h = _read(y, "y"), _read_step(alpha), _read_smoothness(L_h, "L_h")
    if (point < 0).any():
        raise ValueError(f"y: expected non-negative entries, got {point[point < 0][0]}")
    norm_f, norm_g, norm_h = _norms(grad_f, grad_g)
    kappa = truncated_share(point, alpha * _read(grad_g, "grad_g"))
    margin = (
        (norm_h - norm_f) * (norm_h + norm_f) + (1 - L_h * alpha) * norm_g**2 - 2 * np.sqrt(kappa) * norm_h * norm_g
    )
    return Certificate(margin >= 0, margin, 0.5 * alpha * margin)


def attention_metric(
    attention: AttentionEnergy, Y: ArrayLike, grad_f: ArrayLike, *, L_f: float, alpha: float = 1.0
) -> Certificate:
    """⟨∇f, Δ⟩ + ½ L_f ‖Δ‖² ≤ ½ Tr S Δᵀ (2 D / α − L) Δ, for g = E_attn, Δ = Y⁺ − Y its step, f L_f-smooth, ρ concave.

    The bound is the margin.
    """
    tokens, gradient = read_tokens(Y, None)[0], _read(grad_f, "grad_f")
    L_f, alpha = _read_smoothness(L_f, "L_f"), _read_step(alpha)
    Delta = attention.step(tokens, alpha) - tokens
    linear = (gradient * Delta).sum(axis=(-2, -1)) + 0.5 * L_f * (Delta * Delta).sum(axis=(-2, -1))
    margin = attention.step_decrease(tokens, alpha) - linear
    return Certificate(margin >= 0, margin, margin)


def _norms(grad_f: ArrayLike, grad_g: ArrayLike) -> tuple[Any, Any, Any]:
    """‖∇f‖, ‖∇g‖ and ‖∇h‖ = ‖∇f + ∇g‖."""
    f, g = _read(grad_f, "grad_f"), _read(grad_g, "grad_g")
    return norm(f), norm(g), norm(f + g)


def _read(value: ArrayLike, name: str) -> FloatArray:
    return read_array(value, name, "(..., n, d)", ndim=2)


def _read_smoothness(value: float, name: str) -> float:
    return read_number(value, name, "[0, inf)")


def _read_step(alpha: float) -> float:
    return read_number(alpha, "alpha", "(0, inf)")
