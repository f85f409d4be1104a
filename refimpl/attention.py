"""The attention energy: softmax attention is a preconditioned descent step of it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .numerics import (
    FloatArray,
    Output,
    as_dtype,
    centred,
    half_squared_distances,
    project,
    read_array,
    read_cotangent,
    read_number,
    read_tokens,
    summed_to,
    unit,
)
from .rho import Function, Rho, get_rho

# Row sums below this are formed again from logarithms, where the penalty gives them: e^(−z) underflows at z = 745.
_TINY = 1e-250


class AttentionVjp(NamedTuple):
    """Cotangents of the attention step's inputs: Y (..., n, d) and W (d, k)."""

    Y: Output
    W: Output


@dataclass(frozen=True, eq=False)
class AttentionEnergy:
    """E_attn(Y) = Σ_{i<j} m_ij ρ(z_ij),  z_ij = ½ ‖(y_i − y_j) W‖².

    Parameters
    ----------
    W : (d, k) attention map, any rank; None is the identity. S = W Wᵀ.
    rho : a name, a formula in z, or a :class:`refimpl.Rho`. The default ρ(z) = −e^(−z) gives softmax attention.
    pair_weights : m, (n, n) or (..., n, n), symmetric and non-negative; None is all ones.

    The methods take tokens Y (..., n, d), leading axes being batches, and never change them. With
    Γ_ij = m_ij ρ'(z_ij), D = diag(Γ 1), L = D − Γ, A = D⁻¹ Γ the step is Y⁺ = (1 − α) Y + α A Y, and ρ = −e^(−z)
    makes A = softmax_β(U Uᵀ), U = Y W, β_j = exp(−½ ‖u_j‖²). A token whose weights are all zero stays where it is.

    Raises ``TypeError`` or ``ValueError``, naming the argument, for input that is not real, finite or of these shapes,
    for asymmetric or negative pair weights, and for a penalty whose slope at 0 is infinite or negative.

    Source: Yang, Huang, Wipf (2022), section 3. Derivation: ``derivations/01_attention.md``.
    """

    W: FloatArray | None = None
    rho: Rho = "exp"  # type: ignore[assignment]  # read by get_rho
    pair_weights: FloatArray | None = None

    def __init__(
        self,
        W: ArrayLike | None = None,
        rho: str | Rho = "exp",
        pair_weights: ArrayLike | None = None,
    ) -> None:
        object.__setattr__(self, "W", None if W is None else _read_map(W))
        object.__setattr__(self, "rho", _read_penalty(rho))
        object.__setattr__(self, "pair_weights", None if pair_weights is None else _read_pair_weights(pair_weights))

    def value(self, Y: ArrayLike) -> Any:
        """E_attn(Y), shape (...), summed in float64 whatever the dtype of Y; inf where ρ(∞) = ∞ is reached."""
        tokens, _ = self._read(Y)
        return self._energy(self._distances(tokens))

    def gradient(self, Y: ArrayLike) -> Output:
        """∇E_attn(Y) = L Y S, shape (..., n, d)."""
        tokens, dtype = self._read(Y)
        # L 1 = 0: the centroid drops out of L Y, and so does the diagonal of Γ
        Gamma = self._kernel(self._distances(tokens)) * (1 - np.eye(tokens.shape[-2]))
        offset, exponent = centred(tokens)
        with np.errstate(over="ignore", invalid="ignore"):
            LY = Gamma.sum(axis=-1)[..., None] * offset - Gamma @ offset
            gradient = LY if self.W is None else LY @ self.W @ self.W.T
            return as_dtype(np.ldexp(gradient, exponent) if exponent else gradient, dtype)

    def kernel(self, Y: ArrayLike) -> Output:
        """Γ_ij = m_ij ρ'(z_ij), the unnormalised attention, shape (..., n, n), diagonal included."""
        tokens, dtype = self._read(Y)
        return as_dtype(self._kernel(self._distances(tokens)), dtype)

    def weights(self, Y: ArrayLike) -> Output:
        """A = D⁻¹ Γ, shape (..., n, n): rows sum to 1; a token without any weight attends to itself."""
        tokens, dtype = self._read(Y)
        return as_dtype(self._weights(self._distances(tokens)), dtype)

    def majorizer(self, Y_new: ArrayLike, Y: ArrayLike) -> Any:
        """Q(Y' | Y) = E(Y) + ½ Tr S (Y'ᵀ L Y' − Yᵀ L Y) with L at Y, shape (...).

        For concave ρ it bounds E(Y') from above, with equality at Y' = Y.
        """
        (tokens, _), (moved, _) = self._read(Y), self._read(Y_new, "Y_new")
        if moved.shape[-2:] != tokens.shape[-2:]:
            raise ValueError(f"Y_new: expected the shape of Y, {tokens.shape}, got shape {moved.shape}")
        Z, Z_new = self._distances(tokens), self._distances(moved)
        Gamma = self._kernel(Z)
        with np.errstate(over="ignore", invalid="ignore"):
            # ½ Tr S Yᵀ L Y = Σ_{i<j} Γ_ij z_ij; where z overflows, so does E(Y), or Γ is 0
            change = np.where((Gamma == 0) | np.isinf(Z), 0.0, Gamma * (Z_new - Z))
            return self._energy(Z) + change.sum(axis=(-2, -1)) / 2

    def step(self, Y: ArrayLike, alpha: float = 1.0) -> Output:
        """Y⁺ = Y − α D⁻¹ L Y = (1 − α) Y + α A Y, shape (..., n, d).

        For concave, non-decreasing ρ the energy does not rise for 0 ≤ α ≤ ``max_alpha(Y)``; at α = 1 it falls by at
        least min_i m_ii ρ'(0) ‖(Y⁺ − Y) W‖². For α ≤ 1 every token stays in the convex hull of the tokens.
        """
        alpha = read_number(alpha, "alpha", "[0, inf)")
        tokens, dtype = self._read(Y)
        A = self._weights(self._distances(tokens))
        offset, exponent = centred(tokens)
        with np.errstate(over="ignore"):
            moved = np.ldexp(tokens, -exponent) - alpha * (offset - A @ offset)
            moved = np.ldexp(moved, exponent)
        if alpha <= 1 and tokens.shape[-2] and (A >= 0).all():
            # the exact result lies in the box that the tokens span: rounding must not leave it (nor the orthant)
            moved = np.clip(moved, tokens.min(axis=-2, keepdims=True), tokens.max(axis=-2, keepdims=True))
        return as_dtype(moved, dtype)

    def vjp(self, Y: ArrayLike, cotangent: ArrayLike, alpha: float = 1.0) -> AttentionVjp:
        """The cotangents (Ȳ, W̄) of the map (Y, W) ↦ Y⁺ = ``step(Y, alpha)``, for the cotangent V of Y⁺.

        With G_ij = v_i · (y_j − (A Y)_i), Q_ij = α m_ij ρ''(z_ij) G_ij / d_i and R = Q + Qᵀ,

            Ū = (diag(R 1) − R) U,  Ȳ = (1 − α) V + α Aᵀ V + Ū Wᵀ,  W̄ = Yᵀ Ū.

        V has the shape of Y⁺, (..., n, d); Ȳ has that of Y, and W̄ (d, k) is summed over the batches, which share W
        (at W = I where W is None). A token without any weight passes its cotangent through. Where ρ'' jumps, the
        derivative is the one-sided one that ``rho.second_derivative`` takes.

        Raises ``ValueError`` where the penalty has no second derivative. Derivation: ``derivations/06_backward.md``.
        """
        if self.rho.second_derivative is None:
            raise ValueError(f"rho: expected a penalty with a second derivative, {self.rho.name!r} has none")
        alpha = read_number(alpha, "alpha", "[0, inf)")
        tokens, dtype = self._read(Y)
        U, rest, exponent = project(tokens, self.W)
        Z = half_squared_distances(U, rest, exponent)
        A = self._weights(Z)
        V = read_cotangent(cotangent, (*A.shape[:-1], tokens.shape[-1]))
        # only differences of tokens and of U matter: each is taken from its centroid, and scaled so that no product
        # of the three factors overflows before the last
        offset, e = centred(tokens)
        (v, e_v), (y, e_y) = unit(V), unit(offset)
        u, e_u = unit(centred(U)[0] + (0.0 if rest is None else rest))
        G = v @ np.swapaxes(y, -1, -2) - (v * (A @ y)).sum(axis=-1, keepdims=True)
        Q = alpha * self._curvatures(Z, A) * G
        R = Q + np.swapaxes(Q, -1, -2)
        U_bar = R.sum(axis=-1, keepdims=True) * u - R @ u
        w = np.eye(tokens.shape[-1]) if self.W is None else self.W
        e_bar = e_v + e_y + e + e_u + (0 if exponent is None else exponent)
        with np.errstate(over="ignore", invalid="ignore"):
            through_A = (1 - alpha) * V + alpha * (np.swapaxes(A, -1, -2) @ V)
            Y_bar = through_A + np.ldexp(U_bar @ w.T, e_bar)
            W_bar = np.ldexp(np.swapaxes(y, -1, -2) @ U_bar, e_bar + e_y + e)
            W_bar = W_bar.sum(axis=tuple(range(W_bar.ndim - 2)))
            return AttentionVjp(as_dtype(summed_to(Y_bar, tokens.shape), dtype), as_dtype(W_bar, dtype))

    def step_decrease(self, Y: ArrayLike, alpha: float = 1.0) -> Any:
        """½ Tr S Δᵀ (2 D / α − L) Δ with Δ = Y⁺ − Y, shape (...): for concave ρ the step lowers E by at least this."""
        tokens, alpha = self._read(Y)[0], read_number(alpha, "alpha", "[0, inf)")
        Delta = self.step(tokens, alpha) - tokens
        Gamma = self._kernel(self._distances(tokens))
        moved = Delta if self.W is None else Delta @ self.W
        along = (2 / alpha - 1 if alpha else 0.0) * Gamma.sum(axis=-1)[..., None] * moved + Gamma @ moved
        return 0.5 * (moved * along).sum(axis=(-2, -1))

    def max_alpha(self, Y: ArrayLike) -> Any:
        """α_max = 2 / (1 − λ_min(A)), shape (...): the energy does not rise for any step size up to it.

        ρ concave and non-decreasing. It exceeds 1 wherever every m_ii > 0 and ρ'(0) > 0; for a Bernstein ρ and
        positive semidefinite pair weights it is at least 2. It is inf where no token moves.
        """
        tokens, _ = self._read(Y)
        if tokens.shape[-2] == 0:
            return np.full(tokens.shape[:-2], np.inf)[()]
        A = self._weights(self._distances(tokens))
        if (A < 0).any():
            raise ValueError(f"rho: max_alpha needs a non-decreasing penalty, and {self.rho.name!r} decreases here")
        root = np.sqrt(A)
        similar = root * np.swapaxes(root, -1, -2)  # √(A_ij A_ji) = Γ_ij / √(d_i d_j): symmetric, with A's spectrum
        with np.errstate(divide="ignore"):
            return 2 / np.maximum(1 - np.linalg.eigvalsh(similar)[..., 0], 0.0)

    def half_curvature(self, Y: ArrayLike) -> FloatArray:
        """‖S‖₂ d_i, shape (..., n): Σ_i M_i ‖δ_i‖² with these M_i bounds ½ Tr S δᵀ L δ for every δ, as L ⪯ 2 D."""
        tokens, _ = self._read(Y)
        return np.asarray(self.spectral_norm * self._kernel(self._distances(tokens)).sum(axis=-1))

    @functools.cached_property
    def spectral_norm(self) -> float:
        """‖S‖₂ = σ_max(W)²."""
        if self.W is None or self.W.size == 0:
            return 1.0 if self.W is None else 0.0
        largest = float(np.linalg.norm(self.W, 2))
        return largest * largest

    # --------------------------------------------------------------------------------------------------------------

    def _read(self, Y: ArrayLike, name: str = "Y") -> tuple[FloatArray, np.dtype[Any]]:
        tokens, dtype = read_tokens(Y, None if self.W is None else self.W.shape[0], name)
        m, n = self.pair_weights, tokens.shape[-2]
        if m is not None:
            try:
                np.broadcast_shapes(m.shape[:-2], tokens.shape[:-2])
                fits = m.shape[-1] == n
            except ValueError:
                fits = False
            if not fits:
                expected = f"(..., {n}, {n}) for {n} tokens"
                raise ValueError(f"pair_weights: expected shape {expected}, got shape {m.shape} for Y {tokens.shape}")
        return tokens, dtype

    def _distances(self, tokens: FloatArray) -> FloatArray:
        return half_squared_distances(*project(tokens, self.W))

    def _energy(self, Z: FloatArray) -> Any:
        """Σ_{i<j} m_ij ρ(z_ij)."""
        R = np.array(np.broadcast_to(self.rho.value(Z), Z.shape), dtype=np.float64)
        if np.isnan(R).any():
            raise ValueError(f"rho: expected real values, {self.rho.name!r} is nan at z = {Z[np.isnan(R)][0]:g}")
        if self.pair_weights is not None:
            with np.errstate(invalid="ignore"):
                R = np.where(self.pair_weights == 0, 0.0, self.pair_weights * R)
        index = np.arange(R.shape[-1])
        R[..., index, index] = 0.0
        return R.sum(axis=(-2, -1)) / 2

    def _kernel(self, Z: FloatArray) -> FloatArray:
        """Γ_ij = m_ij ρ'(z_ij)."""
        Gamma = np.array(np.broadcast_to(self.rho.derivative(Z), Z.shape), dtype=np.float64)
        if not np.isfinite(Gamma).all():
            z = Z[~np.isfinite(Gamma)][0]
            raise ValueError(f"rho: expected a finite derivative, {self.rho.name!r} has another at z = {z:g}")
        return np.asarray(Gamma if self.pair_weights is None else self.pair_weights * Gamma)

    def _weights(self, Z: FloatArray) -> FloatArray:
        """A = D⁻¹ Γ."""
        Gamma = self._kernel(Z)
        with np.errstate(over="ignore"):
            degree = Gamma.sum(axis=-1, keepdims=True)
        if np.isinf(degree).any():  # A does not depend on the scale of m
            Gamma = Gamma / Z.shape[-1]
            degree = Gamma.sum(axis=-1, keepdims=True)
        if self.rho.log_derivative is not None and (np.abs(degree) < _TINY).any():
            Gamma = self._scaled_kernel(Z)
            degree = Gamma.sum(axis=-1, keepdims=True)
        A = Gamma / np.where(degree == 0, 1.0, degree)
        return np.asarray(A + np.eye(Z.shape[-1]) * (degree == 0))

    def _curvatures(self, Z: FloatArray, A: FloatArray) -> FloatArray:
        """C_ij = m_ij ρ''(z_ij) / d_i, as A_ij (log ρ')'(z_ij) where the degrees underflow.

        It is set to 0 where u_i = u_j, as it is multiplied by u_i − u_j, and where z overflows, which is the limit.
        """
        assert self.rho.second_derivative is not None
        idle = (Z == 0) | np.isinf(Z)
        z = np.where(idle, 1.0, Z)
        second = np.where(idle, 0.0, self.rho.second_derivative(z))
        if not np.isfinite(second).all():
            at = z[~np.isfinite(second)][0]
            raise ValueError(f"rho: expected a finite second derivative, {self.rho.name!r} has another at z = {at:g}")
        # C does not depend on the scale of m: divided by n, no degree overflows
        m = (np.ones_like(Z) if self.pair_weights is None else self.pair_weights) / max(Z.shape[-1], 1)
        degree = (m * self.rho.derivative(Z)).sum(axis=-1, keepdims=True)
        C = np.where(degree == 0, 0.0, m * second / np.where(degree == 0, 1.0, degree))
        lost = (np.abs(degree) < _TINY) & (A != 0) & ~idle
        if self.rho.log_derivative is not None and lost.any():
            C = np.where(lost, A * self._log_slope(z), C)
        return np.asarray(C)

    @functools.cached_property
    def _log_slope(self) -> Function:
        """(log ρ')' = ρ'' / ρ', which is finite where both underflow."""
        import sympy

        from . import formula

        z = formula.symbol("z")
        slope = self.rho.expr.diff(z)
        return formula.vectorised(sympy.simplify(slope.diff(z) / slope), z)

    def _scaled_kernel(self, Z: FloatArray) -> FloatArray:
        """Γ with each row divided by its largest entry, from log Γ."""
        assert self.rho.log_derivative is not None
        with np.errstate(divide="ignore"):
            m = np.zeros(()) if self.pair_weights is None else np.log(self.pair_weights)
        logarithm = m + np.asarray(self.rho.log_derivative(Z))
        largest = logarithm.max(axis=-1, keepdims=True, initial=-np.inf)
        return np.asarray(np.exp(logarithm - np.where(np.isfinite(largest), largest, 0.0)))


def _read_map(W: ArrayLike) -> FloatArray:
    array = read_array(W, "W", "(d, k)")
    if array.ndim != 2:
        raise ValueError(f"W: expected shape (d, k), got shape {array.shape}")
    array.setflags(write=False)
    return array


def _read_penalty(rho: str | Rho) -> Rho:
    penalty = get_rho(rho)
    with np.errstate(all="ignore"):
        slope = float(np.asarray(penalty.derivative(np.zeros(1))).reshape(-1)[0])
    if not np.isfinite(slope) or slope < 0:
        raise ValueError(
            f"rho: expected a finite slope at 0 that is not negative, {penalty.name!r} has {slope} "
            "(tokens that coincide would get that weight)"
        )
    return penalty


def _read_pair_weights(pair_weights: ArrayLike) -> FloatArray:
    m = read_array(pair_weights, "pair_weights", "(n, n) or (..., n, n)", ndim=2)
    if m.shape[-1] != m.shape[-2]:
        raise ValueError(f"pair_weights: expected shape (n, n) or (..., n, n), got shape {m.shape}")
    for wrong, what in ((m < 0, "non-negative"), (m != np.swapaxes(m, -1, -2), "symmetric")):
        if wrong.any():
            index = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise ValueError(f"pair_weights: expected {what} numbers, got {m[index]} at index {index}")
    m.setflags(write=False)
    return m
