"""The attention energy: softmax attention is a preconditioned descent step of it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .numerics import (
    BLOCK,
    Block,
    FloatArray,
    Map,
    Output,
    Projection,
    add_symmetric_product,
    as_dtype,
    centred,
    distance_blocks,
    half_squared_distances,
    project,
    read_array,
    read_cotangent,
    read_number,
    read_tokens,
    sliced,
    sum_of_pairs,
    summed_to,
    unit,
)
from .rho import Function, Rho, get_rho

# Row sums below this are formed again from logarithms, where the penalty gives them: e^(−z) underflows at z = 745.
_TINY = 1e-250
# In float32 the same, in float64 then; and larger tokens than this are taken in float64.
_TINY_SINGLE = 1e-30
_LARGE_SINGLE = 1e15
# Row sums above this may have overflowed, or do in what they are multiplied by.
_HUGE = 1e250
_ALL = slice(None)


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
        """E_attn(Y), shape (...), a float64 whatever the dtype of Y; inf where ρ(∞) = ∞ is reached.

        Of many tokens in float32 each ρ(z_ij) and the sums of a row of a block are in float32, the rest in float64.
        """
        tokens, dtype = self._read(Y)
        return self._energy(self._blocks(self._project(tokens), dtype, values=True), self._batch(tokens))

    def gradient(self, Y: ArrayLike) -> Output:
        """∇E_attn(Y) = L Y S, shape (..., n, d)."""
        tokens, dtype = self._read(Y)
        offset, exponent = centred(tokens)  # L 1 = 0: the centroid drops out of L Y
        with np.errstate(over="ignore", invalid="ignore"):
            sums = self._sums(self._blocks(self._project(tokens), dtype), offset, self.pair_weights, diagonal=False)
            LY = sums.degree * offset - sums.product
            gradient = LY if self.W is None else LY @ self.W @ self.W.T
            return as_dtype(np.ldexp(gradient, exponent) if exponent else gradient, dtype)

    def kernel(self, Y: ArrayLike) -> Output:
        """Γ_ij = m_ij ρ'(z_ij), the unnormalised attention, shape (..., n, n), diagonal included."""
        tokens, dtype = self._read(Y)
        return as_dtype(self._kernel(self._distances(tokens), self.pair_weights), dtype)

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
        tokens, moved = np.broadcast_arrays(tokens, moved)
        change = np.zeros(self._batch(tokens))
        with np.errstate(over="ignore", invalid="ignore"):
            U, U_new = self._project(tokens), self._project(moved)
            blocks, moved_blocks = self._blocks(U, values=True), self._blocks(U_new, values=True)
            for block, new in zip(blocks, moved_blocks, strict=True):
                # ½ Tr S Yᵀ L Y = Σ_{i<j} Γ_ij z_ij; where z overflows, so does E(Y), or Γ is 0
                Gamma = self._kernel(block.Z, _part(self.pair_weights, block))
                moves = np.where((Gamma == 0) | np.isinf(block.Z), 0.0, Gamma * (new.Z - block.Z))
                change += sum_of_pairs(block, moves)
            return self._energy(self._blocks(U, values=True), change.shape) + change

    def step(self, Y: ArrayLike, alpha: float = 1.0) -> Output:
        """Y⁺ = Y − α D⁻¹ L Y = (1 − α) Y + α A Y, shape (..., n, d).

        For concave, non-decreasing ρ the energy does not rise for 0 ≤ α ≤ ``max_alpha(Y)``; at α = 1 it falls by at
        least min_i m_ii ρ'(0) ‖(Y⁺ − Y) W‖². For α ≤ 1 every token stays in the convex hull of the tokens.
        """
        alpha = read_number(alpha, "alpha", "[0, inf)")
        tokens, dtype = self._read(Y)
        offset, exponent = centred(tokens)
        A = self._means(self._project(tokens), offset, dtype)
        if exponent:
            with np.errstate(over="ignore"):
                moved = np.ldexp(np.ldexp(tokens, -exponent) - alpha * (offset - A.mean), exponent)
        else:
            moved = tokens - alpha * (offset - A.mean)
        if alpha <= 1 and tokens.shape[-2] and A.smallest >= 0:
            # the exact result lies in the box that the tokens span: rounding must not leave it (nor the orthant)
            moved = np.maximum(moved, tokens.min(axis=-2, keepdims=True))
            moved = np.minimum(moved, tokens.max(axis=-2, keepdims=True))
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
        V = read_cotangent(cotangent, (*self._batch(tokens), *tokens.shape[-2:]))
        U = self._project(tokens)
        # only differences of tokens and of U matter: each is taken from its centroid, and scaled so that no product
        # of the three factors overflows before the last
        offset, e = centred(tokens)
        (v, e_v), (y, e_y) = unit(V), unit(offset)
        u, e_u = unit(centred(U.high)[0] + (0.0 if U.low is None else U.low))
        U_bar, AtV = self._vjp_of_weights(U, alpha, v, y, u)
        w = np.eye(tokens.shape[-1]) if self.W is None else self.W
        e_bar = e_v + e_y + e + e_u + (0 if U.exponent is None else U.exponent)
        with np.errstate(over="ignore", invalid="ignore"):
            through_A = (1 - alpha) * V + alpha * np.ldexp(AtV, e_v)
            Y_bar = through_A + np.ldexp(U_bar @ w.T, e_bar)
            W_bar = np.ldexp(np.swapaxes(y, -1, -2) @ U_bar, e_bar + e_y + e)
            W_bar = W_bar.sum(axis=tuple(range(W_bar.ndim - 2)))
            return AttentionVjp(as_dtype(summed_to(Y_bar, tokens.shape), dtype), as_dtype(W_bar, dtype))

    def step_decrease(self, Y: ArrayLike, alpha: float = 1.0) -> Any:
        """½ Tr S Δᵀ (2 D / α − L) Δ with Δ = Y⁺ − Y, shape (...): for concave ρ the step lowers E by at least this."""
        tokens, alpha = self._read(Y)[0], read_number(alpha, "alpha", "[0, inf)")
        Delta = self.step(tokens, alpha) - tokens
        moved = Delta if self.W is None else Delta @ self.W
        sums = self._sums(self._blocks(self._project(tokens)), moved, self.pair_weights)
        along = (2 / alpha - 1 if alpha else 0.0) * sums.degree * moved + sums.product
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
        sums = self._sums(self._blocks(self._project(tokens)), tokens[..., :0], self.pair_weights)
        return self.spectral_norm * sums.degree[..., 0]

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

    def _batch(self, tokens: FloatArray) -> tuple[int, ...]:
        m = () if self.pair_weights is None else self.pair_weights.shape[:-2]
        return np.broadcast_shapes(m, tokens.shape[:-2])

    def _project(self, tokens: FloatArray) -> Projection:
        """U = Y W."""
        return project(tokens, self._map)

    @functools.cached_property
    def _map(self) -> Map | None:
        return None if self.W is None else sliced(self.W)

    def _distances(self, tokens: FloatArray) -> FloatArray:
        """z_ij, all of them: for the methods that return a matrix."""
        Z = np.empty((*tokens.shape[:-1], tokens.shape[-2]))
        for block in self._blocks(self._project(tokens)):
            Z[..., block.rows, block.columns] = block.Z
            Z[..., block.columns, block.rows] = np.swapaxes(block.Z, -1, -2)
        return Z

    def _blocks(self, U: Projection, dtype: Any = np.float64, values: bool = False) -> Iterator[Block]:
        """z_ij in blocks, for ρ' or, with ``values``, for ρ as well.

        In float32 where the tokens are, are many, and neither z nor ρ' leaves its range.
        """
        fits = self.pair_weights is None and bool(self.rho.concave) and np.abs(U.high).max(initial=0.0) < _LARGE_SINGLE
        functions = (self.rho.derivative, self.rho.value) if values else (self.rho.derivative,)
        return distance_blocks(U, functools.partial(self._harmless, functions), bool(dtype == np.float32 and fits))

    def _harmless(self, functions: tuple[Function, ...], delta: float, epsilon: float) -> bool:
        """Whether errors δ in z change these by at most ε of themselves: a Bernstein ρ and its ρ' change most at 0."""
        if not self.rho.bernstein:
            return False
        z = np.array([0.0, delta])
        ends = [np.broadcast_to(function(z), 2) for function in functions]
        return all(bool(abs(at_0 - at_delta) <= epsilon * abs(at_0)) for at_0, at_delta in ends)

    def _energy(self, blocks: Iterator[Block], batch: tuple[int, ...]) -> Any:
        """Σ_{i<j} m_ij ρ(z_ij)."""
        total = np.zeros(batch)
        for block in blocks:
            R = _applied(self.rho.value, block.Z)
            m = _part(self.pair_weights, block)
            if m is not None:
                with np.errstate(invalid="ignore"):
                    R = np.where(m == 0, 0.0, m * R)
            if block.beyond:
                R = _without_diagonal(R, block)
            pairs = sum_of_pairs(block, R)
            if np.isnan(pairs).any():
                z = block.Z[np.isnan(_applied(self.rho.value, block.Z))]
                raise ValueError(f"rho: expected real values, {self.rho.name!r} is nan at z = {z[0]:g}")
            total += pairs
        return total[()]

    def _kernel(self, Z: FloatArray, m: FloatArray | None) -> FloatArray:
        """Γ_ij = m_ij ρ'(z_ij)."""
        Gamma = _applied(self.rho.derivative, Z)
        if not (Gamma.min(initial=0.0) > -np.inf and Gamma.max(initial=0.0) < np.inf):
            z = Z[~np.isfinite(Gamma)][0]
            raise ValueError(f"rho: expected a finite derivative, {self.rho.name!r} has another at z = {z:g}")
        return np.asarray(Gamma if m is None else m * Gamma)

    def _sums(self, blocks: Iterator[Block], M: FloatArray, m: FloatArray | None, diagonal: bool = True) -> _Sums:
        """Γ M and Γ 1, for pair weights m; ``diagonal=False`` takes the diagonal of Γ as 0."""
        # Γ M must neither overflow nor vanish in float32, if the blocks are: each column of M is scaled to 1
        e = np.frexp(np.abs(M).max(axis=-2, keepdims=True, initial=0.0))[1]
        M = np.concatenate([np.ldexp(M, -e), np.ones((*M.shape[:-1], 1))], axis=-1)
        batch = np.broadcast_shapes(() if m is None else m.shape[:-2], M.shape[:-2])
        total, smallest = np.zeros((*batch, *M.shape[-2:])), 0.0
        for block in blocks:
            Gamma = self._kernel(block.Z, _part(m, block))
            if block.beyond and not diagonal:
                Gamma = _without_diagonal(Gamma, block)
            M = M.astype(Gamma.dtype, copy=False)
            add_symmetric_product(total, block, Gamma, M)
            smallest = min(smallest, float(Gamma.min(initial=0.0)))
        return _Sums(np.ldexp(total[..., :-1], e), total[..., -1:], smallest)

    def _means(self, U: Projection, M: FloatArray, dtype: Any = np.float64) -> _Means:
        """A M. Rows whose degree is 0, underflows or overflows are formed one by one."""
        with np.errstate(over="ignore", invalid="ignore"):
            sums = self._sums(self._blocks(U, dtype), M, self.pair_weights)
        tiny = _TINY if self.rho.log_derivative is not None else 0.0
        size = np.abs(sums.degree)
        lost = (size <= (_TINY_SINGLE if dtype == np.float32 else tiny)) | (size >= _HUGE)
        if not lost.any():
            return _Means(sums.product / sums.degree, sums.degree, lost, sums.smallest)
        mean = np.where(lost, 0.0, sums.product / np.where(lost, 1.0, sums.degree))
        for rows, A in self._lost_rows(U, lost):
            mean[..., rows, :] = np.where(lost[..., rows, :], A @ M, mean[..., rows, :])
        return _Means(mean, sums.degree, lost, sums.smallest)

    def _lost_rows(self, U: Projection, lost: Any) -> Iterator[tuple[NDArray[np.intp], FloatArray]]:
        """(i, A_i) for the rows that are lost in any of the batch, some at a time."""
        index = np.flatnonzero(lost.any(axis=tuple(range(lost.ndim - 2)))[..., 0])
        at_once = max(1, BLOCK // max(1, lost.size))
        for start in range(0, len(index), at_once):
            rows = index[start : start + at_once]
            yield rows, self._weights(half_squared_distances(*U, rows), rows)

    def _weights(self, Z: FloatArray, rows: Any = _ALL) -> FloatArray:
        """A = D⁻¹ Γ, these rows of it."""
        m = None if self.pair_weights is None else self.pair_weights[..., rows, :]
        Gamma = self._kernel(Z, m)
        with np.errstate(over="ignore"):
            degree = Gamma.sum(axis=-1, keepdims=True)
        if np.isinf(degree).any():  # A does not depend on the scale of Γ
            Gamma = Gamma / Z.shape[-1]
            degree = Gamma.sum(axis=-1, keepdims=True)
        if self.rho.log_derivative is not None and (np.abs(degree) < _TINY).any():
            Gamma = self._from_logarithms(Z, m)
            degree = Gamma.sum(axis=-1, keepdims=True)
        A = Gamma / np.where(degree == 0, 1.0, degree)
        index = np.arange(Z.shape[-1])
        return np.asarray(A + (index[rows][:, None] == index) * (degree == 0))

    def _from_logarithms(self, Z: FloatArray, m: FloatArray | None) -> FloatArray:
        """Γ with each row divided by its largest entry, from log Γ."""
        assert self.rho.log_derivative is not None
        with np.errstate(divide="ignore"):
            logarithm = np.asarray(self.rho.log_derivative(Z)) + (0.0 if m is None else np.log(m))
        largest = logarithm.max(axis=-1, keepdims=True, initial=-np.inf)
        return np.asarray(np.exp(logarithm - np.where(np.isfinite(largest), largest, 0.0)))

    def _vjp_of_weights(
        self, U: Projection, alpha: float, v: FloatArray, y: FloatArray, u: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """(diag(R 1) − R) u and Aᵀ v, for tokens y and the cotangent v, as ``vjp`` defines R."""
        A, m = self._means(U, y), self.pair_weights
        s = (v * A.mean).sum(axis=-1, keepdims=True)
        inverse = np.where(A.lost, 0.0, 1 / np.where(A.lost, 1.0, A.degree))
        y = np.broadcast_to(y, v.shape)
        one = np.ones_like(s)
        # G_ij / d_i + G_ji / d_j is one product
        left = np.concatenate([inverse * v, y, -inverse * s, one], axis=-1)
        right = np.concatenate([y, inverse * v, one, -inverse * s], axis=-1)
        u1 = np.concatenate([np.broadcast_to(u, (*v.shape[:-1], u.shape[-1])), one], axis=-1)
        Ru, Atv = np.zeros_like(u1), np.zeros_like(v)
        for block in self._blocks(U):
            part = _part(m, block)
            G = left[..., block.rows, :] @ np.swapaxes(right[..., block.columns, :], -1, -2)
            add_symmetric_product(Ru, block, alpha * self._curvatures(block.Z, part) * G, u1)
            add_symmetric_product(Atv, block, self._kernel(block.Z, part), inverse * v)
        for rows, weights in self._lost_rows(U, A.lost):
            weights = np.where(A.lost[..., rows, :], weights, 0.0)
            Atv += np.swapaxes(weights, -1, -2) @ v[..., rows, :]
            C = weights * self._relative_slopes(half_squared_distances(*U, rows))
            Q = alpha * C * (v[..., rows, :] @ np.swapaxes(y, -1, -2) - s[..., rows, :])
            Ru[..., rows, :] += Q @ u1
            Ru += np.swapaxes(Q, -1, -2) @ u1[..., rows, :]
        return Ru[..., -1:] * u - Ru[..., :-1], Atv

    def _curvatures(self, Z: FloatArray, m: FloatArray | None) -> FloatArray:
        """m_ij ρ''(z_ij); 0 where u_i = u_j, as it is multiplied by u_i − u_j, and where z overflows: the limit."""
        assert self.rho.second_derivative is not None
        idle = (Z == 0) | np.isinf(Z)
        z = np.where(idle, 1.0, Z)
        second = np.where(idle, 0.0, self.rho.second_derivative(z))
        if not np.isfinite(second).all():
            at = z[~np.isfinite(second)][0]
            raise ValueError(f"rho: expected a finite second derivative, {self.rho.name!r} has another at z = {at:g}")
        return np.asarray(second if m is None else m * second)

    def _relative_slopes(self, Z: FloatArray) -> FloatArray:
        """ρ''(z) / ρ'(z), finite where both underflow; 0 where ``_curvatures`` is."""
        second, first = self._curvatures(Z, None), self._kernel(Z, None)
        slopes = second / np.where(first == 0, 1.0, first)
        lost = (np.abs(first) < _TINY) & (Z != 0) & ~np.isinf(Z)
        if self.rho.log_derivative is not None and lost.any():
            slopes = np.where(lost, self._log_slope(np.where(lost, Z, 1.0)), slopes)
        return np.asarray(slopes)

    @functools.cached_property
    def _log_slope(self) -> Function:
        """(log ρ')' = ρ'' / ρ', which is finite where both underflow."""
        import sympy

        from . import formula

        z = formula.symbol("z")
        slope = self.rho.expr.diff(z)
        return formula.vectorised(sympy.simplify(slope.diff(z) / slope), z)


class _Sums(NamedTuple):
    """Γ M (..., n, c), Γ 1 (..., n, 1), and the smallest entry of Γ, or 0."""

    product: FloatArray
    degree: FloatArray
    smallest: float


class _Means(NamedTuple):
    """A M (..., n, c), Γ 1, the rows that are not Γ over it (..., n, 1), and the smallest entry of Γ, or 0."""

    mean: FloatArray
    degree: FloatArray
    lost: Any
    smallest: float


def _part(m: FloatArray | None, block: Block) -> FloatArray | None:
    return None if m is None else m[..., block.rows, block.columns]


def _applied(function: Function, Z: FloatArray) -> FloatArray:
    """function(Z), which may be a scalar, in Z's shape and dtype."""
    values = np.asarray(function(Z), dtype=Z.dtype)
    return values if values.shape == Z.shape else np.broadcast_to(values, Z.shape)


def _without_diagonal(G: FloatArray, block: Block) -> FloatArray:
    index, G = np.arange(block.beyond), G.copy()
    G[..., index, index] = 0.0
    return G


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
