"""Bounds on rounding, from which the tolerance of every tested inequality follows.

u = 2⁻⁵³ is the unit roundoff. The bounds are worst cases with the constants of the code in
:mod:`refimpl.attention` and :mod:`refimpl.feedforward`; nothing is tuned until a test passes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..attention import AttentionEnergy
from ..feedforward import FeedForwardEnergy
from ..numerics import EPS, FloatArray, Output, centred, differences_are_cheap, half_squared_distances, project

U = EPS / 2
TINY = float(np.finfo(np.float64).tiny)


def spread(Y: Output) -> float:
    """The largest distance of a token (n, d) from the centroid."""
    offset, exponent = centred(np.asarray(Y, dtype=np.float64))
    return float(np.ldexp(np.linalg.norm(offset, axis=-1).max(initial=0.0), exponent))


def pairs(attention: AttentionEnergy, Y: Output) -> tuple[FloatArray, FloatArray, FloatArray]:
    """z, m |ρ| and Γ over all pairs, the diagonal of each set to 0."""
    n = Y.shape[-2]
    Z = half_squared_distances(*project(np.asarray(Y, dtype=np.float64), attention.W))
    m = (np.ones((n, n)) if attention.pair_weights is None else attention.pair_weights) * (1 - np.eye(n))
    size = np.abs(np.broadcast_to(attention.rho.value(Z), Z.shape))
    return Z, m * size, m * np.abs(np.broadcast_to(attention.rho.derivative(Z), Z.shape))


def energy_error(attention: AttentionEnergy, Y: Output) -> float:
    """A bound on the error of ``attention.value(Y)``.

    z has k squares and their sum, each difference being right to 2 u: its relative error is at most (k + 6) u, which
    moves ρ by ρ'(z) z times that. Evaluating ρ costs a few u of |ρ|, and the sum over n² pairs at most 2 n u. Of so
    many tokens that z is formed by products, |ρ| is right to 2⁻⁴⁰ of itself.
    """
    Z, size, Gamma = pairs(attention, Y)
    k = Y.shape[-1] if attention.W is None else attention.W.shape[1]
    moved = (k + 6) * np.where(Gamma == 0, 0.0, Gamma * Z).sum()
    U_rows = project(np.asarray(Y, dtype=np.float64), attention.W)
    by_products = 0.0 if differences_are_cheap(U_rows) else 2.0**-40 * size.sum()
    return float((U * (moved + (2 * len(Y) + 8) * size.sum()) + by_products) / 2 + len(Y) ** 2 * TINY)


def perturbation(attention: AttentionEnergy, Y: Output, r: FloatArray) -> float:
    """How much moving token i by at most r_i, for every i, can raise the energy at Y, for concave ρ.

    By the majorizer, with |u_i − u_j| = √(2 z) moved by at most e = ‖W‖ (r_i + r_j): Γ (√(2 z) e + ½ e²) a pair.
    """
    Z, _, Gamma = pairs(attention, Y)
    e = math.sqrt(attention.spectral_norm) * (r[:, None] + r[None, :])
    return float(np.where(Gamma == 0, 0.0, Gamma * (np.sqrt(2 * Z) * e + 0.5 * e * e)).sum() / 2)


def step_error(Y: Output, Y_new: Output, alpha: float = 1.0) -> FloatArray:
    """A bound (n,) on the distance of the computed attention step's rows from the exact step's.

    The last bit of Y⁺, and (n + 10) u of the spread about the centroid for each of the two products with A and for
    A itself, whose weights carry the error of z: ρ'(z) moves by |ρ''(z)| z (k + 6) u, of which Σ_j is within a few u
    of a row's weight for the shipped penalties (for ρ = −e^(−z) it is z e^(−z)).
    """
    n, d = Y.shape
    return np.asarray(U * (np.linalg.norm(Y_new, axis=1) + alpha * 8 * (n + d + 10) * spread(Y)))


def descent_slack(attention: AttentionEnergy, Y: Output, Y_new: Output, r: FloatArray) -> float:
    """How far the computed E(Y⁺) − E(Y) can lie above the exact one, with Y⁺ off by at most r_i in row i."""
    return energy_error(attention, Y) + energy_error(attention, Y_new) + perturbation(attention, Y_new, r)


def feedforward_error(feedforward: FeedForwardEnergy, Y: Output) -> float:
    """A bound on the error of ``feedforward.value(Y)``: (n d + d + 12) u of the sum of the magnitudes of its terms.

    The penalties of the smooth activations are differences of terms of size at most 2 (1 + y²), hence the last term.
    In a metric there is one more product of matrices, and so d more roundings.
    """
    n, d = Y.shape
    metric = feedforward.metric
    P = np.eye(d) if metric is None else np.diag(metric) if metric.ndim == 1 else np.abs(metric)
    W = np.abs(feedforward.Wf if metric is not None else 0.5 * (feedforward.Wf + feedforward.Wf.T))
    R = np.abs(Y) + np.abs(np.broadcast_to(feedforward.B, Y.shape))
    phi = np.abs(np.asarray(feedforward.activation.penalty(np.asarray(Y, dtype=np.float64))))
    phi = feedforward.penalty_weights * (phi + 2 * (1 + Y * Y))
    size = (np.abs(Y) * (np.abs(Y) @ W @ P)).sum() + (R * (R @ P)).sum() + phi.sum()
    return float((n * d + (d if metric is None else 2 * d) + 12) * U * size)


def sum_error(*terms: Any) -> float:
    """A bound on the error of adding (or taking inner products of) arrays whose magnitudes these are."""
    size = sum(float(np.abs(term).sum()) for term in terms)
    count = sum(np.size(term) for term in terms)
    return (count + 8) * U * size


# ------------------------------------------------------------------------------------------- any sound algorithm


def _kernel_errors(attention: AttentionEnergy, Y: FloatArray, eps: float) -> tuple[float, FloatArray, FloatArray]:
    """(δ, z, the relative error of each Γ_ij) where logits or distances are formed as products at precision ``eps``.

    |u_i|·|u_j| sums of products lose (d + k + 8) ε ‖u‖² at most, ‖u‖ with magnitudes in place of entries; four such
    terms make z. Γ moves with z, and costs 8 ε itself.
    """
    W = np.eye(Y.shape[1]) if attention.W is None else attention.W
    longest = float(np.linalg.norm(np.abs(Y) @ np.abs(W), axis=1).max(initial=0.0))
    delta = 4 * (sum(W.shape) + 8) * eps * longest**2
    z = half_squared_distances(*project(Y, attention.W))
    slope = _values(attention.rho.derivative, z)
    moved = _moved(attention.rho.derivative, z, delta)
    return delta, z, np.asarray(moved / np.where(slope == 0, 1.0, slope) + 8 * eps)


def _values(function: Any, z: FloatArray) -> FloatArray:
    return np.array(np.broadcast_to(function(z), z.shape), dtype=np.float64)


def _moved(function: Any, z: FloatArray, delta: float) -> FloatArray:
    """How far a function of z moves when z does by δ."""
    at = _values(function, z)
    return np.maximum(*(np.abs(_values(function, np.maximum(z + by, 0)) - at) for by in (delta, -delta)))


def attention_tolerance(attention: AttentionEnergy, Y: FloatArray, eps: float) -> FloatArray:
    """How far each entry (n, d) of A Y may be off in any sound algorithm at precision ``eps``: logits, distances, Gram.

    To first order Σ_j A_ij |y_j − y_i⁺| times the relative error of Γ_ij, taken twice; and (n + d + 8) ε of max |y|, to
    which 2 ‖u‖² ε comes where weights are exp(logit − log Σ exp) and rows sum to 1 only up to that.
    """
    delta, _, relative = _kernel_errors(attention, Y, eps)
    away = np.abs(Y[None] - np.asarray(attention.step(Y))[:, None])
    pulled = np.einsum("ij,ijc->ic", attention.weights(Y) * relative, away)
    k = Y.shape[1] if attention.W is None else attention.W.shape[1]
    squared = delta / (4 * (Y.shape[1] + k + 8))  # ε ‖u‖²
    return np.asarray(2 * pulled + ((sum(Y.shape) + 8) * eps + 2 * squared) * np.abs(Y).max(axis=0))


def feedforward_tolerance(feedforward: FeedForwardEnergy, Y: FloatArray, eps: float) -> FloatArray:
    """How far each entry (n, d) of B − Y W_fˢ, or of Y − (Y H − B), may be off: (d + 8) ε of the magnitudes."""
    Ws = np.abs(feedforward.Wf + feedforward.Wf.T) / 2
    return np.asarray((len(Ws) + 8) * eps * (2 * np.abs(Y) + np.abs(Y) @ Ws + 2 * np.abs(feedforward.B)))


def attention_vjp_tolerance(
    attention: AttentionEnergy, Y: FloatArray, V: FloatArray, V_error: FloatArray, eps: float
) -> tuple[FloatArray, FloatArray]:
    """How far the cotangents of Y and W may be off, V being off by ``V_error``, where reverse mode adds what it likes.

    The backward pass of ``derivations/06_backward.md`` with magnitudes in place of entries: nothing cancels.
    """
    W = np.eye(Y.shape[1]) if attention.W is None else attention.W
    delta, z, relative = _kernel_errors(attention, Y, eps)
    rho, A = attention.rho, np.asarray(attention.weights(Y))
    assert rho.second_derivative is not None
    slope = _values(rho.derivative, z)
    slope = np.where(slope == 0, np.inf, slope)
    ratio = np.abs(_values(rho.second_derivative, z)) / slope
    ratio_error = _moved(rho.second_derivative, z, delta) / slope + 2 * ratio * relative
    size, U = np.abs(Y), np.abs(Y) @ np.abs(W)

    def pulled(kernel: FloatArray, magnitude: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        G = magnitude @ size.T + (magnitude * (A @ size)).sum(axis=1, keepdims=True)
        R = A * kernel * G
        R = R + R.T
        U_bar = R.sum(axis=1, keepdims=True) * U + R @ U
        return A.T @ magnitude, U_bar @ np.abs(W).T, size.T @ U_bar

    steps = 4 * (sum(Y.shape) + W.shape[1] + 8) * eps
    V = np.abs(V)
    through, Y_bar, W_bar = pulled(ratio, V)
    _, Y_moved, W_moved = pulled(2 * ratio_error, V)
    also_through, Y_also, W_also = pulled(ratio, V_error)
    through = through * steps + (2 * A * relative).T @ V + also_through
    return through + steps * Y_bar + Y_moved + Y_also, steps * W_bar + W_moved + W_also


def feedforward_vjp_tolerance(
    feedforward: FeedForwardEnergy, Y: FloatArray, Y_error: FloatArray, V: FloatArray, eps: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """How far the cotangents of Y, W_f and B may be off, Y being off by ``Y_error``."""
    Ws, V = np.abs(feedforward.Wf + feedforward.Wf.T) / 2, np.abs(V)
    steps = (sum(Y.shape) + 8) * eps
    return steps * (2 * V + V @ Ws), steps * np.abs(Y).T @ V + Y_error.T @ V, steps * 2 * V
