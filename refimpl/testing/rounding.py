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
from ..numerics import EPS, FloatArray, Output, centred, half_squared_distances, project

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
    moves ρ by ρ'(z) z times that. Evaluating ρ costs a few u of |ρ|, and the sum over n² pairs at most 2 n u.
    """
    Z, size, Gamma = pairs(attention, Y)
    k = Y.shape[-1] if attention.W is None else attention.W.shape[1]
    moved = (k + 6) * np.where(Gamma == 0, 0.0, Gamma * Z).sum()
    return float(U * (moved + (2 * len(Y) + 8) * size.sum()) / 2 + len(Y) ** 2 * TINY)


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
    """
    n, d = Y.shape
    Ws = np.abs(0.5 * (feedforward.Wf + feedforward.Wf.T))
    R = np.abs(Y) + np.abs(np.broadcast_to(feedforward.B, Y.shape))
    phi = np.abs(np.asarray(feedforward.activation.penalty(np.asarray(Y, dtype=np.float64))))
    size = (np.abs(Y) * (np.abs(Y) @ Ws)).sum() + (R * R).sum() + (phi + 2 * (1 + Y * Y)).sum()
    return float((n * d + d + 12) * U * size)


def sum_error(*terms: Any) -> float:
    """A bound on the error of adding (or taking inner products of) arrays whose magnitudes these are."""
    size = sum(float(np.abs(term).sum()) for term in terms)
    count = sum(np.size(term) for term in terms)
    return (count + 8) * U * size
