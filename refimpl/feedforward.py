"""The feed-forward energy: a ReLU layer is a proximal gradient step of it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .activation import Activation, get_activation
from .numerics import FloatArray, Output, as_dtype, read_array, read_number, read_tokens


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
        with np.errstate(over="ignore", invalid="ignore"):
            moved = (1 - alpha) * tokens - alpha * (tokens @ self._Ws - self.B)
        return as_dtype(np.asarray(self.activation.prox(moved, alpha)), dtype)

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
