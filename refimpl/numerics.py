"""Floating point: reading arrays, U = Y W to twice the working precision, pairwise distances, rounding bounds.

Everything is computed in float64. What makes the energies right to the last digits is that tokens that are close in
the metric of W get an accurate distance wherever they lie: neither a translation of 1e8 nor a direction that W
nearly ignores may cost digits. For that u_i is kept as an unevaluated sum of two floats, and distances are formed
from differences of tokens, never from the Gram matrix, whose products cancel.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
Output = NDArray[np.floating[Any]]

EPS = float(np.finfo(np.float64).eps)
# The size of the blocks that distances are computed in: 2^17 float64 values, which fit a level-2 cache.
_BLOCK = 1 << 17
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
    array = array.astype(np.float64)
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
    e = np.frexp(np.abs(M).max(axis=(-2, -1), keepdims=True, initial=0.0))[1]
    if (e <= _LARGE_EXPONENT).all():
        return M, None
    e = np.where(e > _LARGE_EXPONENT, e, 0)
    return np.ldexp(M, -e), e


def project(Y: FloatArray, W: FloatArray | None) -> tuple[FloatArray, FloatArray | None, Exponent]:
    """U = Y W as (high, low, exponent): U = (high + low) 2^exponent, to about 2⁻⁹⁵ of |Y| |W|.

    Y is (..., n, d) and W is (d, k); high and low are (..., n, k) and exponent is (..., 1, 1). ``low`` is None where
    W is None (the identity), ``exponent`` where no scaling was needed.
    Y and W are cut into two leading slices, short enough that products of slices sum without rounding, and a rest
    (Ozaki, Ogita, Oishi, Rump, *Error-free transformations of matrix multiplication*, 2012).
    """
    Y, exponent = _scaled(Y)
    if W is None:
        return Y, None, exponent
    W, exponent_W = _scaled(W)
    if exponent_W is not None:
        exponent = exponent_W if exponent is None else exponent + exponent_W
    bits = (53 - math.ceil(math.log2(max(W.shape[0], 1)))) // 2
    Y1 = _leading_bits(Y, bits, axis=-1)
    Y2 = _leading_bits(Y - Y1, bits, axis=-1)
    W1 = _leading_bits(W, bits, axis=0)
    W2 = _leading_bits(W - W1, bits, axis=0)
    high, low = _two_sum(Y1 @ W1, Y1 @ W2)
    high, error = _two_sum(high, Y2 @ W1)
    high, rest = _two_sum(high, Y1 @ (W - W1 - W2) + Y2 @ (W - W1) + (Y - Y1 - Y2) @ W)
    high, low = _two_sum(high, low + error + rest)
    return high, low, exponent


def half_squared_distances(high: FloatArray, low: FloatArray | None, exponent: Exponent = None) -> FloatArray:
    """z_ij = ½ ‖u_i − u_j‖² (..., n, n) from ``project``: symmetric, zero diagonal, inf where it overflows.

    The differences are formed a block of rows and a feature at a time, so that no (n, n, k) array exists.
    """
    n, k = high.shape[-2:]
    Z = np.zeros((*high.shape[:-1], n))
    rows = max(1, _BLOCK // max(1, Z.size // max(n, 1)))
    # (..., k, n): a feature is then a contiguous row
    columns = [np.ascontiguousarray(np.swapaxes(part, -1, -2)) for part in (high, low) if part is not None]
    with np.errstate(over="ignore", under="ignore"):
        for start in range(0, n, rows):
            block = slice(start, start + rows)
            for feature in range(k):
                difference = _outer_difference(columns[0][..., feature, :], block)
                if low is not None:
                    difference += _outer_difference(columns[1][..., feature, :], block)
                if exponent is not None:
                    difference = np.ldexp(difference, exponent)
                difference *= difference
                Z[..., block, :] += difference
        Z *= 0.5
    return Z


def _outer_difference(u: FloatArray, block: slice) -> FloatArray:
    return np.asarray(u[..., block, None] - u[..., None, :])


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
