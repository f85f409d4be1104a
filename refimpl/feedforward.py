"""The feed-forward energy: a ReLU layer is a proximal gradient step of it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .activation import Activation, get_activation
from .numerics import (
    EPS,
    FloatArray,
    Output,
    as_dtype,
    read_array,
    read_cotangent,
    read_number,
    read_tokens,
    summed_to,
    unit,
)

# W_f P counts as symmetric where ``asymmetry`` is at most this
SYMMETRY = 2.0**-36


class FeedForwardVjp(NamedTuple):
    """Cotangents of the feed-forward step's inputs: Y (..., n, d), Wf (d, d) and B, a number or of B's shape."""

    Y: Output
    Wf: Output
    B: Any


@dataclass(frozen=True, eq=False)
class FeedForwardEnergy:
    """E_ffn(Y) = ½ Tr(Y W_f Yᵀ) + ½ ‖Y − B‖²_F + Σ φ(y_ia).

    Parameters
    ----------
    Wf : W_f, (d, d). Only its symmetric part W_fˢ = ½ (W_f + W_fᵀ) acts; H = I + W_fˢ is the Hessian.
    B : bias, the residual target: a number, (d,), (n, d) or (..., n, d).
    activation : a name or a :class:`refimpl.Activation`, which carries φ and its proximal operator.
    metric : P, symmetric positive definite (d, d) with W_f P symmetric, or its diagonal p (d,). Then W_f itself acts,
        H = I + W_f, and the energy and the length of a step are measured in P:

            E(Y) = ½ Tr(Y W_f P Yᵀ) + ½ Tr (Y − B) P (Y − B)ᵀ + Σ_a p_a Σ_i φ(y_ia),  ‖Δ‖² = Tr Δ P Δᵀ.

        An activation other than "identity" needs a diagonal P. :mod:`refimpl.asymmetric` finds P where there is one.

    The methods take tokens Y (..., n, d), leading axes being batches, and never change them. At α = 1 and with ReLU
    the step is Y⁺ = ReLU(B − Y W_fˢ), and ReLU(B − Y W_f) in a metric.

    Raises ``TypeError`` or ``ValueError``, naming the argument, for input that is not real, finite or of these shapes,
    and for a metric that is not one of W_f.

    Source: Yang, Huang, Wipf (2022), section 3; the metric is ours. Derivations: ``derivations/03_feedforward.md``,
    ``derivations/07_asymmetric.md``.
    """

    Wf: FloatArray
    B: FloatArray
    activation: Activation
    metric: FloatArray | None

    def __init__(
        self,
        Wf: ArrayLike,
        B: ArrayLike = 0.0,
        activation: str | Activation = "relu",
        metric: ArrayLike | None = None,
    ) -> None:
        weights, bias = read_weights(Wf), read_array(B, "B", "(d,), (n, d) or (..., n, d)")
        if bias.ndim and bias.shape[-1] != weights.shape[0]:
            raise ValueError(f"B: expected a last axis of {weights.shape[0]}, as Wf has, got shape {bias.shape}")
        sigma = get_activation(activation)
        P = None if metric is None else _read_metric(metric, weights, sigma.name == "identity")
        if P is not None and P.ndim == 2 and sigma.name != "identity":
            raise ValueError(f"metric: expected a diagonal one for the activation {sigma.name!r}, got shape {P.shape}")
        for array in (weights, bias):
            array.setflags(write=False)
        object.__setattr__(self, "Wf", weights)
        object.__setattr__(self, "B", bias)
        object.__setattr__(self, "activation", sigma)
        object.__setattr__(self, "metric", P)

    def value(self, Y: ArrayLike) -> Any:
        """E_ffn(Y), shape (...), summed in float64; +inf where a token leaves the domain of φ."""
        tokens, _ = self._read(Y)
        phi = (self.penalty_weights * np.asarray(self.activation.penalty(tokens))).sum(axis=(-2, -1))
        with np.errstate(over="ignore", invalid="ignore"):
            smooth = self._smooth(tokens, self.B)
            if not np.isfinite(smooth).all():  # its sign decides: the smooth part is homogeneous in (Y, B)
                limit = np.ldexp(self._smooth(np.ldexp(tokens, -600), np.ldexp(self.B, -600)), 1200)
                smooth = np.where(np.isfinite(smooth), smooth, limit)
            return np.where(phi == np.inf, np.inf, smooth + phi)[()]

    def gradient(self, Y: ArrayLike) -> Output:
        """∇ of the smooth part, Y H − B, or (Y H − B) P in a metric, shape (..., n, d)."""
        tokens, dtype = self._read(Y)
        with np.errstate(over="ignore", invalid="ignore"):
            return as_dtype(self._measured(tokens + (tokens @ self._acting - self.B)), dtype)

    def step(self, Y: ArrayLike, alpha: float = 1.0) -> Output:
        """Y⁺ = prox_{αφ}(Y − α (Y H − B)), shape (..., n, d).

        From a point of finite energy and for 0 < α ≤ ``max_alpha`` the energy does not rise; for convex φ it falls by
        at least (1/α − ½ λ_max(H)) ‖Y⁺ − Y‖², in the norm of the metric.
        """
        alpha = read_number(alpha, "alpha", "(0, inf)")
        tokens, dtype = self._read(Y)
        return as_dtype(np.asarray(self.activation.prox(self._moved(tokens, alpha), alpha)), dtype)

    def vjp(self, Y: ArrayLike, cotangent: ArrayLike, alpha: float = 1.0) -> FeedForwardVjp:
        """The cotangents (Ȳ, W̄_f, B̄) of the map (Y, W_f, B) ↦ Y⁺ = ``step(Y, alpha)``, for the cotangent V of Y⁺.

        With P = V ∘ prox'_{αφ}(Y − α (Y H − B)), entry by entry,

            Ȳ = P (I − α Hᵀ),  W̄_f = −½ α (Yᵀ P + Pᵀ Y),  B̄ = α P.

        V has the shape of Y⁺, (..., n, d). W̄_f (d, d) is symmetric, as only W_fˢ acts, and summed over the batches;
        in a metric, where W_f itself acts, it is −α Yᵀ P. B̄ is summed over the axes along which B is broadcast, to
        B's shape. At a kink the derivative of the prox is the smaller of the one-sided ones: 0 for ReLU at 0.

        Raises ``ValueError`` for an activation without a ``prox_derivative``. Derivation:
        ``derivations/06_backward.md``.
        """
        if self.activation.prox_derivative is None:
            raise ValueError(f"activation: expected one with a prox_derivative, {self.activation.name!r} has none")
        alpha = read_number(alpha, "alpha", "(0, inf)")
        tokens, dtype = self._read(Y)
        V = read_cotangent(cotangent, tokens.shape)
        with np.errstate(over="ignore", invalid="ignore"):
            P = V * self.activation.prox_derivative(self._moved(tokens, alpha), alpha)
            Y_bar = (1 - alpha) * P - alpha * (P @ self._acting.T)
            Wf_bar = -alpha * (np.swapaxes(tokens, -1, -2) @ P).sum(axis=tuple(range(tokens.ndim - 2)))
            if self.metric is None:
                Wf_bar = 0.5 * Wf_bar + 0.5 * Wf_bar.T
            B_bar = summed_to(alpha * P, self.B.shape)
        return FeedForwardVjp(as_dtype(Y_bar, dtype), as_dtype(Wf_bar, dtype), as_dtype(B_bar, dtype)[()])

    @functools.cached_property
    def max_alpha(self) -> float:
        """The largest step size that is known to descend: 2 / λ_max(H), half of that where φ is not convex."""
        if self.curvature <= 0:
            return float("inf")
        return (2.0 if self.activation.convex else 1.0) / self.curvature

    @functools.cached_property
    def curvature(self) -> float:
        """λ_max(H), the largest curvature of the smooth part, along moves of length 1 in the metric."""
        if not self.Wf.size:
            return 1.0
        if self.metric is None:
            return 1.0 + float(np.linalg.eigvalsh(self._acting)[-1])
        return 1.0 + float(np.linalg.eigvals(self.Wf).real.max())

    def half_curvature(self, Y: ArrayLike) -> FloatArray:
        """½ max(λ_max(H), 0), shape (..., n): Σ_i M_i ‖δ_i‖² bounds the second-order term of the smooth part.

        ‖δ_i‖ is the Euclidean norm, in a metric too: there it is ½ max(λ_max(H P), 0).
        """
        largest = self.curvature
        if self.metric is not None and self.Wf.size:
            HP = self._measured(np.eye(len(self.Wf)) + self.Wf)
            largest = float(np.linalg.eigvalsh(0.5 * HP + 0.5 * HP.T)[-1])
        return np.full(self._read(Y)[0].shape[:-1], max(largest, 0.0) / 2)

    @functools.cached_property
    def penalty_weights(self) -> FloatArray | float:
        """p, (d,), the weights of φ by feature: the diagonal of a diagonal metric, else 1."""
        return self.metric if self.metric is not None and self.metric.ndim == 1 else 1.0

    def _moved(self, tokens: FloatArray, alpha: float) -> FloatArray:
        """Y − α (Y H − B), of which the step is the prox."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray((1 - alpha) * tokens - alpha * (tokens @ self._acting - self.B))

    def _smooth(self, tokens: FloatArray, B: FloatArray) -> Any:
        """½ Tr(Y W_f P Yᵀ) + ½ Tr (Y − B) P (Y − B)ᵀ."""
        residual = tokens - B
        quadratic = tokens * self._measured(tokens @ self._acting) + residual * self._measured(residual)
        return 0.5 * quadratic.sum(axis=(-2, -1))

    def _measured(self, M: FloatArray) -> FloatArray:
        """M P; M itself without a metric."""
        if self.metric is None:
            return M
        return np.asarray(M * self.metric if self.metric.ndim == 1 else M @ self.metric)

    @functools.cached_property
    def _acting(self) -> FloatArray:
        """W_fˢ; W_f itself in a metric."""
        return 0.5 * self.Wf + 0.5 * self.Wf.T if self.metric is None else self.Wf

    def _read(self, Y: ArrayLike) -> tuple[FloatArray, np.dtype[Any]]:
        tokens, dtype = read_tokens(Y, self.Wf.shape[0])
        try:
            np.broadcast_to(self.B, tokens.shape)
        except ValueError:
            raise ValueError(f"B: expected a shape that fits Y's {tokens.shape}, got shape {self.B.shape}") from None
        return tokens, dtype


def read_weights(Wf: ArrayLike) -> FloatArray:
    """W_f, (d, d), in float64; raises as ``read_array`` does, or for another shape."""
    weights = read_array(Wf, "Wf", "(d, d)")
    if weights.ndim != 2 or weights.shape[0] != weights.shape[1]:
        raise ValueError(f"Wf: expected shape (d, d), got shape {weights.shape}")
    return weights


def asymmetry(Wf: FloatArray, P: FloatArray) -> float:
    """How far W_f P is from symmetric, K = P^(−½) W_f P^½ from Kᵀ: the largest |k_ab − k_ba| over |k_ab| + |k_ba|.

    So, entry by entry, for a diagonal p (d,). For P (d, d) it is what the rounding of W_f P leaves of K − Kᵀ, in the
    eigenbasis of ½ (K + Kᵀ), over |λ_a| + |λ_b| and the rounding of K times 2³⁶, and at most 1. Not over the largest
    entry of W_f P: an asymmetry that is small beside that may be all there is in directions where P or W_f is small.
    """
    d = len(Wf)
    if P.ndim == 1:
        # |k_ab| √(p_a p_b) = |w_ab| p_b, over a power of two for each pair: no overflow, no vanishing
        mantissa, exponent = np.frexp(Wf)
        scale, shift = np.frexp(P)
        exponent = np.where(mantissa == 0, -10000, exponent + shift)
        WP = np.ldexp(mantissa * scale, exponent - np.maximum(exponent, exponent.T))
        size = np.abs(WP) + np.abs(WP.T)
        return float((np.abs(WP - WP.T) / np.where(size == 0, 1.0, size)).max(initial=0.0))
    M = unit(Wf)[0]  # the same ratio, and no overflow
    p, Q = np.linalg.eigh(unit(P)[0])
    root = np.sqrt(p)
    K = (Q / root).T @ M @ (Q * root)
    skew, rounding = K - K.T, d * EPS * np.abs(M).max() * p[-1] / np.outer(root, root)
    eigenvalues, U = np.linalg.eigh(0.5 * K + 0.5 * K.T)
    skew = U.T @ (np.sign(skew) * np.maximum(np.abs(skew) - rounding, 0.0)) @ U
    size = np.abs(eigenvalues)[:, None] + np.abs(eigenvalues) + d * EPS / SYMMETRY * np.abs(K).max()
    return float(min((np.abs(skew) / np.where(size == 0, 1.0, size)).max(), 1.0))


def _read_metric(metric: ArrayLike, Wf: FloatArray, linear: bool) -> FloatArray:
    """P, (d, d), or p, (d,), where it is diagonal: positive definite, with W_f P symmetric."""
    P, d = read_array(metric, "metric", "(d,) or (d, d)"), len(Wf)
    if P.shape not in ((d,), (d, d)):
        raise ValueError(f"metric: expected shape ({d},) or ({d}, {d}), as Wf has, got shape {P.shape}")
    if P.ndim == 2 and not (P - np.diag(np.diag(P))).any():
        diagonal = np.diag(P).copy()
        # judged entry by entry; but a linear layer may have P = I for W_f = c I that rounding made asymmetric
        if not linear or asymmetry(Wf, diagonal) <= SYMMETRY:
            P = diagonal
    gap = 0.0 if P.ndim == 1 else asymmetry(P, np.ones(d))
    if gap > SYMMETRY:
        raise ValueError(f"metric: expected a symmetric matrix, got one that is off by {gap:.3g} of its entries")
    rounding = 0.0 if P.ndim == 1 else d * EPS * float(np.abs(P).max())
    smallest = float((P if P.ndim == 1 else np.linalg.eigvalsh(P)).min(initial=1.0))
    if smallest <= rounding:
        raise ValueError(f"metric: expected a positive definite one, got the eigenvalue {smallest:.3g}")
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.abs(P).sum() + np.abs(Wf * P if P.ndim == 1 else Wf @ P).sum()
    if not np.isfinite(total):
        raise ValueError("metric: expected P and Wf P within the floats, got entries whose sum is not")
    gap = asymmetry(Wf, P)
    if not gap <= SYMMETRY:
        raise ValueError(f"metric: expected P with Wf P symmetric, got one off by {gap:.3g} of the terms of Wf P")
    P.setflags(write=False)
    return P
