"""The definitions at 50 digits, on the very floats that the NumPy code is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import mpmath
import numpy as np

from .. import definitions
from ..numerics import FloatArray

if TYPE_CHECKING:
    from .strategies import AttentionCase

DIGITS = 50
Rows = list[list[Any]]


def exact() -> AbstractContextManager[Any]:
    """A context in which mpmath works at 50 digits."""
    context: AbstractContextManager[Any] = mpmath.workdps(DIGITS)
    return context


def matrix(M: FloatArray) -> Rows:
    """An array of floats as rows of mpmath numbers, exactly."""
    return [[mpmath.mpf(float(x)) for x in row] for row in M]


def rounded(M: Sequence[Sequence[Any]], shape: tuple[int, ...]) -> FloatArray:
    """Rows of mpmath numbers as the nearest floats."""
    return np.array([[float(x) for x in row] for row in M], dtype=np.float64).reshape(shape)


def attention_input(case: AttentionCase) -> tuple[Rows, Rows, Rows, Callable[[Any], Any], Callable[[Any], Any]]:
    """(Y, W, m, ρ, ρ') of a case, for the definitions."""
    n, d = case.Y.shape
    W = definitions.identity(d) if case.W is None else matrix(case.W)
    m = definitions.ones(n) if case.m is None else matrix(case.m)
    return matrix(case.Y), W, m, *case.rho.literal("mpmath")
