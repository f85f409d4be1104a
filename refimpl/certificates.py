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
from .numerics import FloatArray, half_squared_distances, norm, project, read_array, read_number, read_tokens


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
    (f, g), e = _read(grad_f=grad_f, grad_g=grad_g)
    norm_f, norm_g, norm_h = norm(f), norm(g), norm(f + g)
    margin = norm_h - norm_f
    decrease = 0.5 * alpha * (margin * (norm_h + norm_f) + (1 - L_h * alpha) * norm_g**2)
    return _certificate(margin, e, decrease, 2 * e, L_h * alpha <= 1)


def apollonius(
    y: ArrayLike, y_f: ArrayLike, y_h: ArrayLike, *, L_f: float, m_h: float, L_h: float, alpha: float
) -> Certificate:
    """L_f ‖y − y_f‖ ≤ m_h ‖y − y_h‖ and α ≤ 1 / L_h, for y⁺ = y − α ∇g.

    f is convex and L_f-smooth with minimiser y_f, h is m_h-strongly convex and L_h-smooth with minimiser y_h. The
    points are those whose distances have a ratio of at most C = m_h / L_f: a ball of Apollonius that contains y_f
    for C < 1, a half-space for C = 1, the outside of a ball that contains y_h for C > 1. Yang, Huang, Wipf (2022),
    section 4. The bound is ½ α (m_h² ‖y − y_h‖² − L_f² ‖y − y_f‖²).
    """
    L_f, m_h, L_h = (_read_smoothness(L, name) for L, name in ((L_f, "L_f"), (m_h, "m_h"), (L_h, "L_h")))
    alpha = _read_step(alpha)
    (point, near, far), e = _read(y=y, y_f=y_f, y_h=y_h)
    to_f, to_h = L_f * norm(point - near), m_h * norm(point - far)
    margin = to_h - to_f
    return _certificate(margin, e, 0.5 * alpha * margin * (to_h + to_f), 2 * e, L_h * alpha <= 1)


def prox_mapping(grad_f: ArrayLike, G: ArrayLike, *, L_h: float, alpha: float) -> Certificate:
    """‖∇f‖ ≤ (1 − ½ L_h α) ‖G‖, for y⁺ = prox_{αφ}(y − α ∇g), G = (y − y⁺) / α, φ convex, h L_h-smooth.

    It guarantees (h + φ)(y⁺) ≤ (h + φ)(y); the bound is α ‖G‖ times the margin.
    """
    L_h, alpha = _read_smoothness(L_h, "L_h"), _read_step(alpha)
    (f, mapping), e = _read(grad_f=grad_f, G=G)
    norm_G = norm(mapping)
    margin = (1 - 0.5 * L_h * alpha) * norm_G - norm(f)
    return _certificate(margin, e, alpha * norm_G * margin, 2 * e)


def truncated_share(y: ArrayLike, xi: ArrayLike) -> Any:
    """κ = Σ_{|ξ_i| > |y_i|} (ξ_i² − y_i²) / ‖ξ‖², shape (...): the share of the step ξ that ReLU can cut off."""
    point, step = (read_array(array, name, _SHAPE, ndim=2) for array, name in ((y, "y"), (xi, "xi")))
    _require_one_shape(y=point, xi=step)
    v, x = np.abs(point), np.abs(step)
    largest = x.max(axis=(-2, -1), keepdims=True, initial=0.0)
    largest = np.where(largest == 0, 1.0, largest)
    v, x = np.minimum(v, largest) / largest, x / largest  # so that squares neither overflow nor vanish
    cut = np.where(x > v, (x - v) * (x + v), 0.0).sum(axis=(-2, -1))
    total = (x * x).sum(axis=(-2, -1))
    return cut / np.where(total == 0, 1.0, total)


def truncation(y: ArrayLike, grad_f: ArrayLike, grad_g: ArrayLike, *, L_h: float, alpha: float) -> Certificate:
    """‖∇h‖² + (1 − L_h α) ‖∇g‖² − ‖∇f‖² − 2 √κ ‖∇h‖ ‖∇g‖ ≥ 0, for y ≥ 0 and y⁺ = ReLU(y − α ∇g).

    κ is ``truncated_share(y, α ∇g)`` and h is L_h-smooth. Yang, Huang, Wipf (2022), section 4. The bound is ½ α times
    the margin. Raises ``ValueError`` for negative entries of y, where ReLU's energy is infinite.
    """
    L_h, alpha = _read_smoothness(L_h, "L_h"), _read_step(alpha)
    point = read_array(y, "y", _SHAPE, ndim=2)
    if (point < 0).any():
        raise ValueError(f"y: expected non-negative entries, got {point[point < 0][0]}")
    (f, g), e = _read(grad_f=grad_f, grad_g=grad_g)
    _require_one_shape(y=point, grad_g=g)
    with np.errstate(over="ignore"):
        room = np.minimum(np.ldexp(point, -e[..., None, None]) / alpha, 2.0)  # entries of g are at most 1
    kappa = truncated_share(room, g)
    norm_f, norm_g, norm_h = norm(f), norm(g), norm(f + g)
    change = (norm_h - norm_f) * (norm_h + norm_f)
    margin = change + (1 - L_h * alpha) * norm_g**2 - 2 * np.sqrt(kappa) * norm_h * norm_g
    return _certificate(margin, 2 * e, 0.5 * alpha * margin, 2 * e)


def attention_metric(
    attention: AttentionEnergy, Y: ArrayLike, grad_f: ArrayLike, *, L_f: float, alpha: float = 1.0
) -> Certificate:
    """⟨∇f, Δ⟩ + ½ L_f ‖Δ‖² ≤ ½ Tr S Δᵀ (2 D / α − L) Δ, for g = E_attn, Δ = Y⁺ − Y its step, f L_f-smooth, ρ concave.

    The bound is the margin.
    """
    _require_attention(attention)
    L_f, alpha = _read_smoothness(L_f, "L_f"), _read_step(alpha)
    tokens, f = read_tokens(Y, None)[0], read_array(grad_f, "grad_f", _SHAPE, ndim=2)
    _require_one_shape(Y=tokens, grad_f=f)
    with np.errstate(over="ignore", invalid="ignore"):
        Delta = attention.step(tokens, alpha) - tokens
        linear = (f * Delta).sum(axis=(-2, -1)) + 0.5 * L_f * (Delta * Delta).sum(axis=(-2, -1))
        margin = attention.step_decrease(tokens, alpha) - linear
    return Certificate(margin >= 0, margin, margin)


def majorizer(
    attention: AttentionEnergy, Y: ArrayLike, Y_new: ArrayLike, *, L_g: float, alpha: float = 1.0
) -> Certificate:
    """⟨∇f, Δ⟩ + ½ Tr S Δᵀ L Δ ≤ (1/α − ½ L_g) ‖Δ‖², for f = E_attn, ρ concave, Y⁺ = prox_{αφ}(Y − α ∇g), Δ = Y⁺ − Y.

    It guarantees (f + g + φ)(Y⁺) ≤ (f + g + φ)(Y), for g L_g-smooth and φ convex and finite at Y; the bound is the
    margin. For E_ffn without a metric L_g is max(λ_max(H), 0). Where φ is not convex, ``alpha`` is 2 α. The norms are
    Euclidean: a step of E_ffn in a metric is not Y⁺ above, and nothing is guaranteed for it.
    """
    _require_attention(attention)
    L_g, alpha = _read_smoothness(L_g, "L_g"), _read_step(alpha)
    tokens = read_tokens(Y, None)[0]
    (y, y_new), e = _read(Y=tokens, Y_new=Y_new)
    Delta, Gamma = y_new - y, attention.kernel(tokens)
    with np.errstate(over="ignore", invalid="ignore"):
        # not Q(Y⁺ | Y) − E(Y), the same number: a difference of energies has no digits left near a fixed point
        Z = half_squared_distances(*project(Delta, attention.W))
        quadratic = np.where(Gamma == 0, 0.0, Gamma * Z).sum(axis=(-2, -1)) / 2  # ½ Tr S Δᵀ L Δ = Σ_{i<j} Γ_ij z_ij(Δ)
        linear = (np.ldexp(attention.gradient(tokens), -e[..., None, None]) * Delta).sum(axis=(-2, -1))
        margin = (1 / alpha - 0.5 * L_g) * (Delta * Delta).sum(axis=(-2, -1)) - linear - quadratic
    return _certificate(margin, 2 * e, margin, 2 * e)


_SHAPE = "(..., n, d)"


def _read(**arrays: ArrayLike) -> tuple[list[FloatArray], Any]:
    """The arrays over 2^e, which brings their largest entry to 1, and e (...): squares neither overflow nor vanish.

    What the certificates compare is homogeneous, so this changes no comparison.
    """
    read = {name: read_array(array, name, _SHAPE, ndim=2) for name, array in arrays.items()}
    _require_one_shape(**read)
    together = np.broadcast_arrays(*read.values())
    largest = np.max([np.abs(array).max(axis=(-2, -1), initial=0.0) for array in together], axis=0)
    e = np.frexp(largest)[1]
    return [np.ldexp(array, -e[..., None, None]) for array in together], e


def _require_one_shape(**arrays: FloatArray) -> None:
    """Tokens and gradients are taken at one point: their last two axes agree, and their leading axes broadcast."""
    (first, reference), *others = arrays.items()
    for name, array in others:
        try:
            np.broadcast_shapes(reference.shape[:-2], array.shape[:-2])
            fits = array.shape[-2:] == reference.shape[-2:]
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(f"{name}: expected the shape of {first}, {reference.shape}, got shape {array.shape}")


def _certificate(margin: Any, margin_exponent: Any, decrease: Any, exponent: Any, also: Any = True) -> Certificate:
    """The certificate of a margin and a bound that were computed on scaled arrays."""
    with np.errstate(over="ignore", under="ignore"):
        return Certificate((margin >= 0) & also, np.ldexp(margin, margin_exponent), np.ldexp(decrease, exponent))


def _require_attention(attention: AttentionEnergy) -> None:
    if not isinstance(attention, AttentionEnergy):
        raise TypeError(f"attention: expected a refimpl.AttentionEnergy, got {type(attention).__name__}")


def _read_smoothness(value: float, name: str) -> float:
    return read_number(value, name, "[0, inf)")


def _read_step(alpha: float) -> float:
    return read_number(alpha, "alpha", "(0, inf)")
