"""The data term ½ λ ‖Y − X‖²: attention with a residual connection to the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .attention import AttentionEnergy
from .numerics import FloatArray, Output, as_dtype, read_array, read_number, read_tokens


@dataclass(frozen=True, eq=False)
class ResidualAttentionEnergy:
    """E_λ(Y) = E_attn(Y) + ½ λ ‖Y − X‖²_F.

    Parameters
    ----------
    attention : the :class:`refimpl.AttentionEnergy` of the first term.
    X : input tokens (..., n, d), or a number; 0 gives the Frobenius regulariser ½ λ ‖Y‖².
    lam : λ ≥ 0.

    The methods take tokens Y (..., n, d). Raises as :class:`refimpl.AttentionEnergy` does, and ``ValueError`` for a
    negative λ or an X that does not broadcast to Y.

    Source: Yang, Huang, Wipf (2022), section 3, for the energy; the step is ours. Derivation:
    ``derivations/02_residual.md``.
    """

    attention: AttentionEnergy
    X: FloatArray
    lam: float

    def __init__(self, attention: AttentionEnergy, X: ArrayLike = 0.0, lam: float = 1.0) -> None:
        if not isinstance(attention, AttentionEnergy):
            raise TypeError(f"attention: expected a refimpl.AttentionEnergy, got {type(attention).__name__}")
        many = isinstance(X, list | tuple) or hasattr(X, "__array__")
        target = read_array(X, "X", "(..., n, d), or a number") if many else np.asarray(read_number(X, "X"))
        if target.ndim == 1:
            raise ValueError(f"X: expected shape (..., n, d), or a number, got shape {target.shape}")
        target.setflags(write=False)
        object.__setattr__(self, "attention", attention)
        object.__setattr__(self, "X", target)
        object.__setattr__(self, "lam", read_number(lam, "lam", "[0, inf)"))

    def value(self, Y: ArrayLike) -> Any:
        """E_λ(Y), shape (...), summed in float64."""
        return self.attention.value(Y) + self.data_value(Y)

    def data_value(self, Y: ArrayLike) -> Any:
        """½ λ ‖Y − X‖²_F, shape (...)."""
        residual = self._residual(Y)
        if self.lam == 0:
            return np.zeros(residual.shape[:-2])[()]
        with np.errstate(over="ignore"):
            return 0.5 * self.lam * (residual * residual).sum(axis=(-2, -1))

    def gradient(self, Y: ArrayLike) -> Output:
        """∇E_λ(Y) = L Y S + λ (Y − X), shape (..., n, d)."""
        tokens, dtype = read_tokens(Y, None)
        with np.errstate(over="ignore", invalid="ignore"):
            return as_dtype(self.attention.gradient(tokens) + self.lam * self._residual(tokens), dtype)

    def step(self, Y: ArrayLike, alpha: float = 1.0) -> Output:
        """y_i⁺ = y_i − α ((L Y S)_i + λ (y_i − x_i)) / (s d_i + λ) with s = ‖S‖₂, shape (..., n, d).

        For concave, non-decreasing ρ and 0 ≤ α ≤ 1 it never raises E_λ. With W the identity and α = 1 it is
        (1 − τ_i) (A Y)_i + τ_i x_i, τ_i = λ / (d_i + λ). A row with s d_i + λ = 0 stays where it is.
        """
        alpha = read_number(alpha, "alpha", "[0, inf)")
        tokens, dtype = read_tokens(Y, None)
        M = self.half_curvature(tokens)[..., None] + self.lam / 2  # s d_i + λ
        gradient = self.gradient(tokens)
        with np.errstate(over="ignore", invalid="ignore"):
            return as_dtype(tokens - alpha * gradient / np.where(M == 0, 1.0, M), dtype)

    def half_curvature(self, Y: ArrayLike) -> FloatArray:
        """‖S‖₂ d_i + ½ λ, shape (..., n): Σ_i M_i ‖δ_i‖² bounds the second-order term of the majorizer of E_λ."""
        return self.attention.half_curvature(Y) + self.lam / 2

    def _residual(self, Y: ArrayLike) -> FloatArray:
        """Y − X."""
        tokens, _ = read_tokens(Y, None)
        try:
            with np.errstate(over="ignore"):
                return np.asarray(tokens - np.broadcast_to(self.X, tokens.shape))
        except ValueError:
            raise ValueError(f"X: expected a shape that fits Y's {tokens.shape}, got shape {self.X.shape}") from None
