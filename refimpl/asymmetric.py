"""Asymmetric weights: the metric in which W_f is symmetric, and Lyapunov functions where there is none.

W_f acts on rows, y ↦ b − y W_f. With P symmetric positive definite and W_f P symmetric this is a gradient step of
E(y) = ½ y W_f P yᵀ + ½ (y − b) P (y − b)ᵀ in the metric P; with ReLU after it, a proximal gradient step if P is
diagonal: ``FeedForwardEnergy(Wf, B, metric=P)``. Each function returns what it is named after, or raises
:class:`ConditionError`, which says which condition fails and by how much. Derivation:
``derivations/07_asymmetric.md``.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import LinAlgWarning, eig, solve_discrete_lyapunov

from .feedforward import SYMMETRY, asymmetry, read_weights
from .numerics import EPS, FloatArray, unit

# Eigenvalues that differ by at most this much of ‖W_f‖_F are one, if they have as many eigenvectors
_EQUAL = 2.0**-42
# The smallest eigenvalue that P may have: rounding parts a double eigenvalue without a basis of eigenvectors by about
# this much of ‖W_f‖_F, and its eigenvectors with it
_SMALL = EPS**0.5
# An imaginary part is seen beyond so many roundings of the eigenvalue, ε ‖W_f‖_F / |x yᴴ| for its unit eigenvectors
_SEEN = 64
# −log of the least float of full precision: 1/p is a float too
_LOG_MAX = float(-np.log(np.finfo(float).tiny))


class ConditionError(ValueError):
    """W_f does not meet a condition.

    condition : which one, in words.
    gap : how far W_f is from meeting it, in the units that the message names.
    eigenvalues : those of W_f.
    """

    def __init__(self, condition: str, gap: float, got: str, Wf: FloatArray) -> None:
        super().__init__(condition, gap, got, Wf)  # what pickle calls it with
        self.condition, self.gap, self.eigenvalues = condition, gap, np.linalg.eigvals(Wf)

    def __str__(self) -> str:
        return f"Wf: expected {self.condition}, got {self.args[2]}"


def metric(Wf: ArrayLike) -> FloatArray:
    """P = Σ_λ Π_λ, shape (d, d): Π_λ is the orthogonal projector onto the eigenvectors of the eigenvalue λ of W_f.

    P is symmetric positive definite and W_f P is symmetric, so that y ↦ b − y W_f is a gradient step in P. Such a P
    exists iff W_f is diagonalisable with real eigenvalues. It is then V C Vᵀ, V the eigenvectors and C any positive
    definite matrix that commutes with the eigenvalues; this one has trace d, is I iff W_f is symmetric, and turns
    with W_f: Qᵀ P Q is the metric of Qᵀ W_f Q. For simple eigenvalues the unit columns of V make its condition
    number at most d times the least possible (van der Sluis 1969).

    In floats the question is ill-posed, as matrices without such a P lie arbitrarily close to others. Eigenvalues
    within 2⁻⁴² ‖W_f‖_F of each other count as one if they have as many eigenvectors to that precision; a P whose
    least eigenvalue is below √ε d is refused; and the P returned makes W_f P symmetric to 2⁻³⁶, as
    :class:`refimpl.FeedForwardEnergy` wants it. An imaginary part that rounding explains, as that of an eigenvalue with
    too few eigenvectors, counts as 0.

    Raises :class:`ConditionError`: "real eigenvalues" (gap: the largest imaginary part) or "a basis of
    eigenvectors" (gap: the least eigenvalue of P, 0 for a Jordan block).
    """
    W = read_weights(Wf)
    M, exponent = unit(W)  # the same metric, and no overflow
    d, size = len(M), float(np.linalg.norm(M))
    if not d:
        return M
    found: Any = eig(M, left=True)  # three arrays, of which its stubs forget one
    values, left, vectors = found
    with np.errstate(divide="ignore"):  # left and right are orthogonal at a Jordan block
        seen = np.abs(values.imag) > _SEEN * EPS * size / np.abs((left.conj() * vectors).sum(axis=0))
    order = np.argsort(values.real)
    bases, one = [], np.zeros(d, dtype=bool)
    for group in np.split(order, np.flatnonzero(np.diff(values.real[order]) > _EQUAL * size) + 1):
        basis = vectors[:, group]
        if group.size > 1:
            _, sigma, right = np.linalg.svd(M - values[group].real.mean() * np.eye(d))
            together = sigma <= _EQUAL * size
            if together.sum() == group.size:
                basis, one[group] = right[together].T, True
        bases.append(basis)
    V = np.concatenate(bases, axis=1).real
    V = V / np.where((lengths := np.linalg.norm(V, axis=0)) == 0, 1.0, lengths)
    P: FloatArray = V @ V.T
    least = float(np.linalg.eigvalsh(P).min())
    off = asymmetry(M, P) if least >= _SMALL * d else np.inf
    if off <= SYMMETRY and not (seen & ~one).any():
        return P
    if seen.any():
        imaginary = float(np.ldexp(np.abs(values.imag[seen]).max(), exponent)[0, 0])
        raise ConditionError("real eigenvalues", imaginary, f"the imaginary part {imaginary:.3g}", W)
    got = f"unit eigenvectors V with the least eigenvalue {max(least, 0.0):.3g} of V Vᵀ"
    if off < np.inf:
        got += f" and Wf V Vᵀ off by {off:.3g} from symmetric"
    raise ConditionError("a basis of eigenvectors", max(least, 0.0), got, W)


def diagonal_metric(Wf: ArrayLike) -> FloatArray:
    """p, shape (d,), with w_ab p_b = w_ba p_a: the metric diag(p), in which ReLU is a proximal operator too.

    It exists iff w_ab and w_ba have the same sign, or are both 0, and the products of the weights along every cycle
    of features are the same in both directions (Kolmogorov). Features that no chain of weights connects have
    separate factors; p is unique up to these, and the one returned has geometric mean 1 over each such component. It
    is 1 where W_f is symmetric.

    Raises :class:`ConditionError`: "pairs of equal sign" (gap: the larger of the two weights), "equal products along
    cycles" (gap: |log| of their ratio; the message names the cycle and both products), which counts as met up to 2⁻³⁶,
    or, where both are met, "p within the floats" (gap: by how much the largest |log p_a| is beyond them). Zeros have to
    be zeros.
    """
    W = read_weights(Wf)
    d = len(W)
    wrong = np.argwhere((np.sign(W) != np.sign(W.T)) & ~np.eye(d, dtype=bool))
    if wrong.size:
        a, b = min((int(a), int(b)) for a, b in wrong)
        gap = float(max(abs(W[a, b]), abs(W[b, a])))
        got = f"{W[a, b]:.6g} at {a, b} and {W[b, a]:.6g} at {b, a}"
        raise ConditionError("pairs of equal sign", gap, got, W)
    linked = W != 0
    ratio = np.zeros((d, d))  # log p_b − log p_a along an edge
    ratio[linked] = np.log(np.abs(W.T[linked])) - np.log(np.abs(W[linked]))
    log_p, parent = np.full(d, np.nan), np.full(d, -1)
    for root in range(d):
        if np.isnan(log_p[root]):
            log_p[root], component = 0.0, [root]
            for a in component:  # breadth first: it grows on the way
                for b in np.flatnonzero(linked[a] & np.isnan(log_p)).tolist():
                    log_p[b], parent[b] = log_p[a] + ratio[a, b], a
                    component.append(b)
            log_p[component] -= log_p[component].mean()
    off = np.where(linked, np.abs(log_p[:, None] + ratio - log_p), 0.0)
    if off.max(initial=0.0) > SYMMETRY:
        a, b = (int(i) for i in np.unravel_index(off.argmax(), off.shape))
        cycle = _cycle(parent, a, b)
        got = f"{_product(W, cycle)} along {cycle} and {_product(W, cycle[::-1])} back"
        raise ConditionError("equal products along cycles", float(off.max()), got, W)
    if (largest := float(np.abs(log_p).max(initial=0.0))) > _LOG_MAX:
        raise ConditionError("p within the floats", largest - _LOG_MAX, f"|log p| up to {largest:.6g}", W)
    return np.asarray(np.exp(log_p))


def _product(W: FloatArray, cycle: list[int]) -> str:
    """The product of the weights along the cycle, which may be beyond the floats, in decimals."""
    weights = W[cycle, np.roll(cycle, -1)]
    log = float(np.log10(np.abs(weights)).sum())
    tens = 0 if abs(log) < 300 else int(np.floor(log))
    return f"{np.sign(weights).prod() * 10 ** (log - tens):.6g}" + (f"e{tens}" if tens else "")


def _cycle(parent: NDArray[np.int_], a: int, b: int) -> list[int]:
    """The cycle of the edge from b to a and the tree's path from a to b."""
    above: list[list[int]] = []
    for end in (a, b):
        path = [end]
        while parent[path[-1]] >= 0:
            path.append(int(parent[path[-1]]))
        above.append(path)
    while len(above[0]) > 1 and len(above[1]) > 1 and above[0][-2] == above[1][-2]:
        above = [path[:-1] for path in above]
    return above[0] + above[1][-2::-1]


def lyapunov(Wf: ArrayLike) -> FloatArray:
    """P = Σ_k W_f^k (W_f^k)ᵀ, shape (d, d), the solution of P − W_f P W_fᵀ = I.

    It exists iff the spectral radius of W_f is below 1. Along y⁺ = b − y W_f the square of the distance from the
    fixed point, (y − y*) P (y − y*)ᵀ, then falls by ‖y − y*‖² at every step. This says nothing of ReLU, unless P has
    no positive entry off its diagonal and b = 0.

    Raises :class:`ConditionError`: "a spectral radius below 1" (gap: how far above), or "a solution in floats" (gap:
    0) where no P that was found has P − W_f P W_fᵀ ≻ ½ I, as the radius is too close to 1 or W_f too far from normal.
    The radius is that of the eigenvalues as floats give them: far from normal it may be well above the true one.
    """
    W = read_weights(Wf)
    radius = float(np.abs(np.linalg.eigvals(W)).max(initial=0.0))
    if not W.size:
        return W
    if radius < 1:
        with warnings.catch_warnings(), np.errstate(all="ignore"), contextlib.suppress(ValueError):
            # W_f far from normal makes for an ill-conditioned system, and may well have a P: it is P that is judged.
            # LinAlgError is a ValueError, as is that of infinities
            warnings.simplefilter("ignore", LinAlgWarning)
            P = solve_discrete_lyapunov(W, np.eye(len(W)))
            P = 0.5 * P + 0.5 * P.T
            if np.linalg.eigvalsh(P - W @ P @ W.T)[0] > 0.5:
                return np.asarray(P)
    raise _unsolved("a spectral radius below 1", radius, W)


def diagonal_lyapunov(Wf: ArrayLike) -> FloatArray:
    """p = r / l, shape (d,), with r = (I − |W_f|)⁻¹ 1 and l = (I − |W_f|ᵀ)⁻¹ 1, for a spectral radius of |W_f| below 1.

    Σ_a p_a y_a² falls by at least Σ_a y_a² / l_a along y ↦ −y W_f, and, as p is diagonal, along y ↦ ReLU(−y W_f) too;
    with a bias, the same holds of the distance of two tokens, hence of that from the fixed point. The condition is
    sufficient; so is ‖W_f‖₂ < 1, with p = 1.

    Raises :class:`ConditionError`: "a spectral radius of |Wf| below 1" (gap: how far above), or "a solution in floats"
    (gap: 0) where r or l is none.
    """
    W = read_weights(Wf)
    A, eye, one = np.abs(W), np.eye(len(W)), np.ones(len(W))
    radius = float(np.abs(np.linalg.eigvals(A)).max(initial=0.0))
    if radius < 1:
        with np.errstate(all="ignore"), contextlib.suppress(ValueError):
            r, l = np.linalg.solve(eye - A, one), np.linalg.solve(eye - A.T, one)
            p = r / l
            # with r > 0, A r = r − 1 < r is the condition itself
            if r.min(initial=1.0) > 0 and l.min(initial=1.0) > 0 and p.min(initial=1.0) > 0 and np.isfinite(p).all():
                return np.asarray(p)
    raise _unsolved("a spectral radius of |Wf| below 1", radius, W)


def _unsolved(condition: str, radius: float, W: FloatArray) -> ConditionError:
    if radius >= 1:
        return ConditionError(condition, radius - 1, f"{radius:.9g}", W)
    got = f"none at the spectral radius {radius:.9g}, too close to 1 or of weights too far from normal"
    return ConditionError("a solution in floats", 0.0, got, W)
