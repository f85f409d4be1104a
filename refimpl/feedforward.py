"""The feed-forward energy: a ReLU layer is a proximal gradient step of it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .activation import Activation, get_activation
from .numerics import (
    FloatArray,
    Output,
    as_dtype,
    read_array,
    read_cotangent,
    read_number,
    read_tokens,
    summed_to,
)


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

    The methods take tokens Y (..., n, d), leading axes being batches, and never change them. At α = 1 and with ReLU
    the step is Y⁺ = ReLU(B − Y W_fˢ).

    Raises ``TypeError`` or ``ValueError``, naming the argument, for input that is not real, finite or of these shapes.

    Source: Yang, Huang, Wipf (2022), section 3. Derivation: ``derivations/03_feedforward.md``.
    """

    Wf: FloatArray
    B: FloatArray
    activation: Activation

    def __init__(self, Wf: ArrayLike, B: ArrayLike = 0.0, activation: str | Activation = "relu") -> None:
        weights, bias = read_array(Wf, "Wf", "(d, d)"), read_array(B, "B", "(d,), (n, d) or (..., n, d)")
        if weights.ndim != 2 or weights.shape[0] != weights.shape[1]:
            raise ValueError(f"Wf: expected shape (d, d), got shape {weights.shape}")
        if bias.ndim and bias.shape[-1] != weights.shape[0]:
            raise ValueError(f"B: expected a last axis of {weights.shape[0]}, as Wf has, got shape {bias.shape}")
        for array in (weights, bias):
            array.setflags(write=False)
        object.__setattr__(self, "Wf", weights)
        object.__setattr__(self, "B", bias)
        object.__setattr__(self, "activation", get_activation(activation))

    def value(self, Y: ArrayLike) -> Any:
        """E_ffn(Y), shape (...), summed in float64; +inf where a token leaves the domain of φ."""
        tokens, _ = self._read(Y)
        phi = np.asarray(self.activation.penalty(tokens)).sum(axis=(-2, -1))
        with np.errstate(over="ignore", invalid="ignore"):
            smooth = self._smooth(tokens, self.B)
            if not np.isfinite(smooth).all():  # its sign decides: the smooth part is homogeneous in (Y, B)
                limit = np.ldexp(self._smooth(np.ldexp(tokens, -600), np.ldexp(self.B, -600)), 1200)
                smooth = np.where(np.isfinite(smooth), smooth, limit)
            return np.where(phi == np.inf, np.inf, smooth + phi)[()]

    def gradient(self, Y: ArrayLike) -> Output:
        """∇ of the smooth part, Y H − B, shape (..., n, d)."""
        tokens, dtype = self._read(Y)
        with np.errstate(over="ignore", invalid="ignore"):
            return as_dtype(tokens + (tokens @ self._Ws - self.B), dtype)

    def step(self, Y: ArrayLike, alpha: float = 1.0) -> Output:
        """Y⁺ = prox_{αφ}(Y − α (Y H − B)), shape (..., n, d).

        From a point of finite energy and for 0 < α ≤ ``max_alpha`` the energy does not rise; for convex φ it falls by
        at least (1/α − ½ λ_max(H)) ‖Y⁺ − Y‖².
        """
        alpha = read_number(alpha, "alpha", "(0, inf)")
        tokens, dtype = self._read(Y)
        return as_dtype(np.asarray(self.activation.prox(self._moved(tokens, alpha), alpha)), dtype)

    def vjp(self, Y: ArrayLike, cotangent: ArrayLike, alpha: float = 1.0) -> FeedForwardVjp:
        """The cotangents (Ȳ, W̄_f, B̄) of the map (Y, W_f, B) ↦ Y⁺ = ``step(Y, alpha)``, for the cotangent V of Y⁺.

        With P = V ∘ prox'_{αφ}(Y − α (Y H − B)), entry by entry,

            Ȳ = P (I − α H),  W̄_f = −½ α (Yᵀ P + Pᵀ Y),  B̄ = α P.

        V has the shape of Y⁺, (..., n, d). W̄_f (d, d) is symmetric, as only W_fˢ acts, and summed over the batches;
        B̄ is summed over the axes along which B is broadcast, to B's shape. At a kink the derivative of the prox is
        the smaller of the one-sided ones: 0 for ReLU at 0.

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
            Y_bar = (1 - alpha) * P - alpha * (P @ self._Ws)
            half = -0.5 * alpha * (np.swapaxes(tokens, -1, -2) @ P).sum(axis=tuple(range(tokens.ndim - 2)))
            B_bar = summed_to(alpha * P, self.B.shape)
        return FeedForwardVjp(as_dtype(Y_bar, dtype), as_dtype(half + half.T, dtype), as_dtype(B_bar, dtype)[()])

    @functools.cached_property
    def max_alpha(self) -> float:
        """The largest step size that is known to descend: 2 / λ_max(H), half of that where φ is not convex."""
        if self.curvature <= 0:
            return float("inf")
        return (2.0 if self.activation.convex else 1.0) / self.curvature

    @functools.cached_property
    def curvature(self) -> float:
        """λ_max(H), the largest curvature of the smooth part."""
        return 1.0 + float(np.linalg.eigvalsh(self._Ws)[-1]) if self._Ws.size else 1.0

    def half_curvature(self, Y: ArrayLike) -> FloatArray:
        """½ max(λ_max(H), 0), shape (..., n): Σ_i M_i ‖δ_i‖² bounds the second-order term of the smooth part."""
        return np.full(self._read(Y)[0].shape[:-1], max(self.curvature, 0.0) / 2)

    def _moved(self, tokens: FloatArray, alpha: float) -> FloatArray:
        """Y − α (Y H − B), of which the step is the prox."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray((1 - alpha) * tokens - alpha * (tokens @ self._Ws - self.B))

    def _smooth(self, tokens: FloatArray, B: FloatArray) -> Any:
        """½ Tr(Y W_f Yᵀ) + ½ ‖Y − B‖²_F."""
        residual = tokens - B
        return 0.5 * (tokens * (tokens @ self._Ws) + residual * residual).sum(axis=(-2, -1))

    @functools.cached_property
    def _Ws(self) -> FloatArray:
        """W_fˢ."""
        return 0.5 * self.Wf + 0.5 * self.Wf.T

    def _read(self, Y: ArrayLike) -> tuple[FloatArray, np.dtype[Any]]:
        tokens, dtype = read_tokens(Y, self.Wf.shape[0])
        try:
            np.broadcast_to(self.B, tokens.shape)
        except ValueError:
            raise ValueError(f"B: expected a shape that fits Y's {tokens.shape}, got shape {self.B.shape}") from None
        return tokens, dtype
