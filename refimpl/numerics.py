"""Floating point: reading arrays, U = Y W to twice the working precision, pairwise distances, rounding bounds.

Everything is computed in float64. What makes the energies right to the last digits is that tokens that are close in
the metric of W get an accurate distance wherever they lie: neither a translation of 1e8 nor a direction that W
nearly ignores may cost digits. For that u_i is kept as an unevaluated sum of two floats, and distances are formed
from differences of tokens, or, of many tokens, from products that are as good: those of the Gram matrix cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
Output = NDArray[np.floating[Any]]

EPS = float(np.finfo(np.float64).eps)
# The size of the blocks that pairs are taken in: 2^17 float64 values, which fit a level-2 cache.
BLOCK = 1 << 17
# Up to so many n² k, differences cost less than what products need besides.
_SMALL = 1 << 16
_ALL = slice(None)
# Made and freed, this teaches glibc to keep arrays of up to 32 MB in the heap, where a block finds those of the last
# one: fresh pages from the kernel would cost as much as the arithmetic on them.
np.empty((1 << 22) - 1024)
# Magnitudes above 2^400 are scaled down exactly (by a power of two) before they are multiplied or split.
_LARGE_EXPONENT = 400


def _described(array: NDArray[Any]) -> str:
    if array.dtype == object:
        return f"{type(array.flat[0]).__name__} objects"
    return "text" if array.dtype.kind == "U" else str(array.dtype)


def read_array(value: ArrayLike, name: str, shape: str, ndim: int | None = None) -> FloatArray:
    """``value`` as a float64 array with at least ``ndim`` axes, never the caller's own memory.

    Raises ``TypeError`` for anything but real numbers and ``ValueError`` for a wrong number of axes, NaN or infinity;
    the message names the argument, what was expected (``shape`` in words) and what came.
    """
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(f"{name}: expected numbers of shape {shape}, got rows of different lengths") from None
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise TypeError(f"{name}: expected real numbers (float64 or float32), got {_described(array)}")
    if ndim is not None and array.ndim < ndim:
        raise ValueError(f"{name}: expected shape {shape}, got shape {array.shape}")
    array = array.astype(np.float64, order="C")
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ValueError(f"{name}: expected finite numbers, got {array[where]} at index {where}")
    return array


def read_tokens(Y: ArrayLike, d: int | None, name: str = "Y") -> tuple[FloatArray, np.dtype[Any]]:
    """Tokens (..., n, d) in float64, and the dtype that results have: float32 and float16 stay, the rest is float64."""
    expected = f"(..., n, {'d' if d is None else d}), a row a token"
    tokens = read_array(Y, name, expected, ndim=2)
    if d is not None and tokens.shape[-1] != d:
        raise ValueError(f"{name}: expected shape {expected}, got shape {tokens.shape}")
    dtype = np.asarray(Y).dtype
    return tokens, dtype if dtype.kind == "f" else np.dtype(np.float64)


def read_cotangent(cotangent: ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    """The cotangent V of a result of this shape, in float64; raises as ``read_array`` does, or for another shape."""
    V = read_array(cotangent, "cotangent", str(shape))
    if V.shape != shape:
        raise ValueError(f"cotangent: expected shape {shape}, that of the result, got shape {V.shape}")
    return V


def read_number(value: Any, name: str, interval: str = "(-inf, inf)") -> float:
    """A real number in ``interval``, "[a, b)" and the like, or an error that names the argument."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name}: expected a real number, got {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{name}: expected a number in {interval}, got an integer beyond the floats") from None
    lower, upper = (float(end) for end in interval[1:-1].split(","))
    above = number >= lower if interval[0] == "[" else number > lower
    below = number <= upper if interval[-1] == "]" else number < upper
    if not (above and below):
        raise ValueError(f"{name}: expected a number in {interval}, got {value}")
    return number


# ------------------------------------------------------------------------------------------------ U = Y W


def _two_sum(a: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
    """s + e = a + b exactly, s the rounded sum (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _leading_bits(M: FloatArray, bits: int, axis: int) -> FloatArray:
    """M rounded to multiples of 2^(1 − bits) times the power of two above max |M| along ``axis``."""
    largest = np.abs(M).max(axis=axis, keepdims=True, initial=0.0)
    sigma = np.ldexp(1.5, np.frexp(largest)[1] + 53 - bits)
    return np.asarray((sigma + M) - sigma)


Exponent: TypeAlias = NDArray[np.intc] | None


def _scaled(M: FloatArray) -> tuple[FloatArray, Exponent]:
    """M as (M', e) with M = M' 2^e exactly, e (..., 1, 1): matrices of large entries scaled to 1, the others as is."""
    if np.abs(M).max(initial=0.0) < 2.0**_LARGE_EXPONENT:
        return M, None
    e = np.frexp(np.abs(M).max(axis=(-2, -1), keepdims=True, initial=0.0))[1]
    e = np.where(e > _LARGE_EXPONENT, e, 0)
    return np.ldexp(M, -e), e


class Projection(NamedTuple):
    """U = (high + low) 2^exponent, rows u_i."""

    high: FloatArray
    low: FloatArray | None
    exponent: Exponent


class Map(NamedTuple):
    """W = whole 2^exponent, with two leading slices of it, of ``bits`` bits each."""

    whole: FloatArray
    first: FloatArray
    second: FloatArray
    exponent: Exponent
    bits: int


def sliced(W: FloatArray) -> Map:
    """W (d, k) as ``project`` needs it: slices so short that products of two of them sum without rounding."""
    W, exponent = _scaled(W)
    bits = (53 - math.ceil(math.log2(max(W.shape[0], 1)))) // 2
    first = _leading_bits(W, bits, axis=0)
    return Map(W, first, _leading_bits(W - first, bits, axis=0), exponent, bits)


def project(Y: FloatArray, W: Map | FloatArray | None) -> Projection:
    """U = Y W as (high, low, exponent): U = (high + low) 2^exponent, to about 2⁻⁹⁵ of |Y| |W|.

    Y is (..., n, d) and W is (d, k), ``sliced`` or not; high and low are (..., n, k) and exponent is (..., 1, 1).
    ``low`` is None where W is None (the identity), ``exponent`` where no scaling was needed. Y is cut as W is
    (Ozaki, Ogita, Oishi, Rump, *Error-free transformations of matrix multiplication*, 2012).
    """
    Y, exponent = _scaled(Y)
    if W is None:
        return Projection(Y, None, exponent)
    W = W if isinstance(W, Map) else sliced(W)
    if W.exponent is not None:
        exponent = W.exponent if exponent is None else exponent + W.exponent
    Y1 = _leading_bits(Y, W.bits, axis=-1)
    Y2 = _leading_bits(Y - Y1, W.bits, axis=-1)
    rest = W.whole - W.first
    high, low = _two_sum(Y1 @ W.first, Y1 @ W.second)
    high, error = _two_sum(high, Y2 @ W.first)
    high, rest = _two_sum(high, Y1 @ (rest - W.second) + Y2 @ rest + (Y - Y1 - Y2) @ W.whole)
    high, low = _two_sum(high, low + error + rest)
    return Projection(high, low, exponent)


def half_squared_distances(
    high: FloatArray, low: FloatArray | None, exponent: Exponent = None, rows: Any = _ALL, columns: Any = _ALL
) -> FloatArray:
    """z_ij = ½ ‖u_i − u_j‖² (..., rows, columns) from ``project``, by differences: 0 where u_i = u_j, inf for overflow.

    The differences are formed some rows at a time, so that no (n, n, k) array exists.
    """
    parts = [part for part in (high, low) if part is not None]
    left, right = ([part[..., index, :] for part in parts] for index in (rows, columns))
    Z = np.empty((*left[0].shape[:-1], right[0].shape[-2]))
    at_once = max(1, BLOCK * Z.shape[-2] // max(1, Z.size * high.shape[-1]))
    with np.errstate(over="ignore", under="ignore"):
        for start in range(0, Z.shape[-2], at_once):
            some = slice(start, start + at_once)
            u = left[0][..., some, None, :] - right[0][..., None, :, :]
            if low is not None:
                u += left[1][..., some, None, :] - right[1][..., None, :, :]
            if exponent is not None:
                u = np.ldexp(u, exponent[..., None])
            Z[..., some, :] = np.einsum("...k,...k->...", u, u)
        Z *= 0.5
    return Z


class Block(NamedTuple):
    """z_ij for i in ``rows`` and j in ``columns``; blocks cover the pairs i ≤ j.

    Columns from ``beyond`` on, an index into the block, lie after all of its rows: there the block stands for its
    transpose as well. Those before ``beyond`` are a square on the diagonal.
    """

    rows: slice
    columns: slice
    beyond: int
    Z: FloatArray


def distance_blocks(U: Projection, harmless: Callable[[float, float], bool], single: bool = False) -> Iterator[Block]:
    """z_ij = ½ ‖u_i − u_j‖² of U from ``project``, in blocks: as by differences, at the speed of products where it can.

    ``harmless(δ, ε)`` says whether errors of δ in all z_ij change what is made of them by at most ε of itself; ε is
    2⁻⁴⁰. With R the largest ‖u_i‖, taken from the centroid, the Gram matrix, summed over 128 columns at a time, gives
    δ = ½ (min(k, 128) + k / 12 + 28) EPS R². Where that is harmful u_i is cut into a multiple of 2⁻²⁵ R and a rest.
    What the multiples contribute to z_ij has no rounding error at all, in whatever order it is summed, and the rest
    contributes 2⁻²⁵ times as much (Ozaki, Ogita, Oishi, Rump, 2012): z_ij is right to its last bit and
    δ = (5 k + 8) √k 2⁻²⁵ EPS R². Where that is harmful, pairs with δ > 2⁻⁴⁶ z_ij are formed again by differences.

    ``single`` asks for what float32 holds: one product with ‖u_i‖² in it and twice that δ, ε = 2⁻²³, pairs with
    δ > 2⁻²⁶ z_ij by differences, Z in float32.

    Derivation: ``derivations/08_rounding.md``.
    """
    n = U.high.shape[-2]
    area = max(BLOCK // max(math.prod(U.high.shape[:-2]), 1), 1)
    tall = n if n * n <= area else max(math.isqrt(area) // 2, 1)
    products, close = None, None
    if differences_are_cheap(U):
        single = False
    else:
        epsilon, relative = (2.0**-23, 2.0**-26) if single else (2.0**-40, 2.0**-46)
        products = _joined_products(U) if single else _products(U)
        if not single and not harmless(float(products.delta.max(initial=0.0)), epsilon):
            products = _split_products(U)
        if not harmless(float(products.delta.max(initial=0.0)), epsilon):
            close = products.delta / relative
    for top in range(0, n, tall or 1):
        rows = slice(top, min(top + tall, n))
        for left in range(top, n, 4 * tall):
            columns = slice(left, min(left + 4 * tall, n))
            Z = half_squared_distances(*U, rows, columns) if products is None else _gram(products, rows, columns)
            if close is not None:
                Z = _near_pairs_by_differences(Z, np.less(Z, close), U, rows, columns)
            elif left == top and products is not None:
                index = np.arange(rows.stop - rows.start)
                Z[..., index, index] = 0.0
            yield Block(rows, columns, max(rows.stop - left, 0), Z.astype(np.float32) if single else Z)


def differences_are_cheap(U: Projection) -> bool:
    """Whether ``distance_blocks`` takes differences, because there are few or because products could overflow."""
    n, k = U.high.shape[-2:]
    return n * n * k <= _SMALL or U.exponent is not None or np.abs(U.high).max(initial=0.0) >= 2.0**_LARGE_EXPONENT


class _Products(NamedTuple):
    """z_ij = half_i + half_j + Σ (P Qᵀ)_ij over the factors (P, Q), with errors of at most delta (..., 1, 1).

    Without ``half`` the factors have it in two more columns.
    """

    half: FloatArray | None
    factors: tuple[tuple[FloatArray, FloatArray], ...]
    delta: FloatArray


def _products(U: Projection) -> _Products:
    """u_i as they are."""
    k = U.high.shape[-1]
    u = U.high - U.high.mean(axis=-2, keepdims=True)
    if U.low is not None:
        u += U.low
    # in sixteens, so that the error of ‖u_i‖² is (k / 16 + 16) EPS / 2 of it
    squares = np.add.reduceat(u * u, np.arange(0, k, 16), axis=-1).sum(axis=-1, keepdims=True)
    factors = tuple((part, -part) for part in np.split(u, range(128, k, 128), axis=-1))
    delta = 0.5 * (min(k, 128) + k / 12 + 28) * EPS * squares.max(axis=(-2, -1), keepdims=True)
    return _Products(0.5 * squares, factors, delta)


def _joined_products(U: Projection) -> _Products:
    """As ``_products``, in fewer passes over Z and with twice the error, as partial sums may be twice as large."""
    half, ((P, Q), *others), delta = _products(U)
    assert half is not None
    one = np.ones_like(half)
    first = np.concatenate([P, half, one], axis=-1), np.concatenate([Q, one, half], axis=-1)
    return _Products(None, (first, *others), 2 * delta)


def _split_products(U: Projection) -> _Products:
    """u_i as a multiple of 2⁻²⁵ R and a rest."""
    k = U.high.shape[-1]
    u, rest = _two_sum(U.high, -U.high.mean(axis=-2, keepdims=True))
    if U.low is not None:  # which is all there is of u_i where the tokens share their leading digits
        u, low = _two_sum(u, U.low)
        rest += low
    R2 = (u * u).sum(axis=-1, keepdims=True).max(axis=-2, keepdims=True)
    grid = np.ldexp(1.0, np.frexp(np.sqrt(R2))[1] - 25)
    multiple = np.rint(u / grid) * grid
    rest = (u - multiple) + rest
    half = 0.5 * (multiple * multiple).sum(axis=-1, keepdims=True)
    half_rest = ((multiple + 0.5 * rest) * rest).sum(axis=-1, keepdims=True)
    one = np.ones_like(half)
    left = np.concatenate([multiple, rest, half_rest, one], axis=-1)
    right = np.concatenate([-rest, -(multiple + rest), one, half_rest], axis=-1)
    return _Products(half, ((multiple, -multiple), (left, right)), (5 * k + 8) * math.sqrt(k) * 2.0**-25 * EPS * R2)


def _gram(products: _Products, rows: slice, columns: slice) -> FloatArray:
    (P, Q), *others = products.factors
    Z = P[..., rows, :] @ np.swapaxes(Q[..., columns, :], -1, -2)
    if products.half is not None:
        Z += products.half[..., rows, :]
        Z += np.swapaxes(products.half[..., columns, :], -1, -2)
    for P, Q in others:
        Z += P[..., rows, :] @ np.swapaxes(Q[..., columns, :], -1, -2)
    if rows.start == columns.start:  # the square on the diagonal, which rounding leaves not quite symmetric
        square = Z[..., : Z.shape[-2]]
        square[...] = np.maximum(square, np.swapaxes(square, -1, -2))
    return np.maximum(Z, 0.0, out=Z)


def _near_pairs_by_differences(
    Z: FloatArray, near: NDArray[np.bool_], U: Projection, rows: slice, columns: slice
) -> FloatArray:
    """Z with the pairs ``near`` formed again by differences, or all of it where they are many."""
    count = np.count_nonzero(near)
    if 8 * count > near.size:
        return half_squared_distances(*U, rows, columns)
    pairs, at_once = np.nonzero(near), max(1, BLOCK // max(1, U.high.shape[-1]))
    for start in range(0, count, at_once):
        *batch, i, j = (index[start : start + at_once] for index in pairs)
        u = U.high[(*batch, i + rows.start)] - U.high[(*batch, j + columns.start)]
        if U.low is not None:
            u += U.low[(*batch, i + rows.start)] - U.low[(*batch, j + columns.start)]
        Z[(*batch, i, j)] = 0.5 * (u * u).sum(axis=-1)
    return Z


def add_symmetric_product(total: FloatArray, block: Block, G: FloatArray, M: FloatArray) -> None:
    """Add to ``total`` (..., n, c) what ``block`` contributes to G M, for the symmetric G (..., n, n) given on it."""
    total[..., block.rows, :] += G @ M[..., block.columns, :]
    if block.beyond < G.shape[-1]:
        later = slice(block.columns.start + block.beyond, block.columns.stop)
        total[..., later, :] += np.swapaxes(G[..., block.beyond :], -1, -2) @ M[..., block.rows, :]


def sum_of_pairs(block: Block, G: FloatArray) -> Any:
    """What ``block`` contributes to Σ_{i<j} G_ij, in float64, for a symmetric G with a zero diagonal."""
    by_row = 0.5 * G[..., : block.beyond].sum(axis=-1) + G[..., block.beyond :].sum(axis=-1)
    return by_row.sum(axis=-1, dtype=np.float64)


def centred(Y: FloatArray) -> tuple[FloatArray, int]:
    """(offset, e) with Y − c = offset 2^e, c the centroid, rounded: exact up to the last bit of the difference.

    e is 0 unless the tokens are so large that their difference could overflow.
    """
    e = 4 if np.abs(Y).max(initial=0.0) > 1e307 else 0
    Y = np.ldexp(Y, -e) if e else Y
    return Y - (Y / max(Y.shape[-2], 1)).sum(axis=-2, keepdims=True), e


def unit(M: FloatArray) -> tuple[FloatArray, NDArray[np.intc]]:
    """M as (M', e) with M = M' 2^e exactly, e (..., 1, 1): every matrix scaled to entries of at most 1."""
    e = np.frexp(np.abs(M).max(axis=(-2, -1), keepdims=True, initial=0.0))[1]
    return np.ldexp(M, -e), e


def summed_to(M: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    """M summed over the axes along which an array of ``shape`` was broadcast to it: broadcasting, transposed."""
    M = M.sum(axis=tuple(range(M.ndim - len(shape))))
    widened = tuple(axis for axis, size in enumerate(shape) if size != M.shape[axis])
    return np.asarray(M.sum(axis=widened, keepdims=True))


def norm(M: FloatArray) -> Any:
    """The Frobenius norm over the last two axes; the squares neither overflow nor vanish."""
    largest = np.abs(M).max(axis=(-2, -1), keepdims=True, initial=0.0)
    largest = np.where(largest == 0, 1.0, largest)
    with np.errstate(over="ignore"):
        return largest[..., 0, 0] * np.sqrt(((M / largest) ** 2).sum(axis=(-2, -1)))


def as_dtype(M: FloatArray, dtype: np.dtype[Any]) -> Output:
    """M in the dtype of the input; what float32 cannot hold becomes inf."""
    with np.errstate(over="ignore"):
        return M.astype(dtype, copy=False)
