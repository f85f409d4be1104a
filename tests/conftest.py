"""Hypothesis profiles, and the tools that several test files share."""

import contextlib
import os

import mpmath
import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None, database=None)
settings.register_profile("nightly", max_examples=5000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def _number(value):
    if callable(value):
        return value
    array = np.asarray(value, dtype=float)
    return [_number(row) for row in array] if array.ndim else mpmath.mpf(float(array))


def _float(value):
    return [_float(row) for row in value] if isinstance(value, list) else float(value)


@pytest.fixture(scope="session")
def exact():
    """``exact(definition, *args)``: a definition at 50 digits on the very floats given, rounded at the end."""

    def call(definition, *args):
        with mpmath.workdps(50):
            return np.array(_float(definition(*map(_number, args))))

    return call


@pytest.fixture(scope="session")
def refused():
    """``with refused(error, match):`` the block raises, in one line that begins with what ``match`` says."""

    @contextlib.contextmanager
    def check(error, match):
        with pytest.raises(error, match="^" + match) as caught:
            yield caught
        assert "\n" not in str(caught.value)

    return check


_BAD_ARRAYS = {
    "complex": ([[1j]], TypeError, "complex128"),
    "nan": ([[np.nan]], ValueError, r"nan at index \(0, 0\)"),
    "inf": ([[np.inf]], ValueError, r"inf at index \(0, 0\)"),
    "minus inf": ([[-np.inf]], ValueError, r"-inf at index \(0, 0\)"),
    "text": ([["a"]], TypeError, ""),
    "ragged": ([[1.0], [1.0, 2.0]], ValueError, "rows of different lengths"),
    "none": ([[None]], TypeError, "NoneType"),
    "object": ([[object()]], TypeError, "object"),
    "objects": ([[object()], [object()]], TypeError, "object"),
    "huge integer": ([[10**400]], TypeError, ""),
    "date": (np.array([["2022-01-01"]], dtype="M8[D]"), TypeError, "datetime64"),
}


@pytest.fixture(params=_BAD_ARRAYS.values(), ids=_BAD_ARRAYS)
def bad_array(request):
    """(value, error, what the message says came) of what is no matrix of finite real numbers."""
    return request.param


_BAD_NUMBERS = {
    "nan": (np.nan, ValueError, "nan"),
    "inf": (np.inf, ValueError, "inf"),
    "minus inf": (-np.inf, ValueError, "-inf"),
    "huge integer": (10**400, ValueError, ""),
    "text": ("1", TypeError, "str"),
    "none": (None, TypeError, "NoneType"),
    "bool": (True, TypeError, "bool"),
    "complex": (1j, TypeError, "complex"),
    "array": (np.ones(2), TypeError, "ndarray"),
    "list": ([1.0], TypeError, "list"),
}


@pytest.fixture(params=_BAD_NUMBERS.values(), ids=_BAD_NUMBERS)
def bad_number(request):
    """(value, error, what the message says came) of what is no finite number."""
    return request.param
