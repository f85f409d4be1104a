"""Somebody else's function, called safely: its framework's arrays in, float64 out, and whatever it does is a finding.

A function that raises, hangs, returns something else or leaves ``nan`` behind gives a finding about itself,
with the lines of its own code that led there.
"""

from __future__ import annotations

import contextlib
import importlib
import sysconfig
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..numerics import FloatArray
from .kit import Finding

FRAMEWORKS = ("numpy", "torch", "jax")
DTYPES = ("float64", "float32")
_OURS = Path(__file__).parent.parent
_LIBRARIES = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
_FRAMES = 4  # the lines of somebody's code that are shown


class Subject:
    """The function under test: ``subject(*arrays)`` gives its tokens as float64.

    ``arrays`` are NumPy arrays, tokens Y (n, d) first; with ``batched`` the function sees Y as (b, n, d). Each call
    runs in a thread of its own and is given up after ``seconds``; a function that hung once is not called again.
    """

    def __init__(self, fn: Callable[..., Any], framework: str, dtype: str, batched: bool, seconds: float) -> None:
        for name, value, known in (("framework", framework, FRAMEWORKS), ("dtype", dtype, DTYPES)):
            if value not in known:
                raise ValueError(f"{name}: expected one of {', '.join(known)}, got {value!r}")
        if find_spec(framework) is None:
            raise ValueError(f"framework: {framework} is not installed")
        if not callable(fn):
            raise TypeError(f"fn: expected a function of {framework} arrays, got {type(fn).__name__}")
        importlib.import_module(framework)  # not in the first call, which has a time limit
        self.fn, self.framework, self.dtype, self.batched, self.seconds = fn, framework, dtype, batched, seconds
        self.returned: str | None = None  # the dtype that came last
        self.hung = False

    def __call__(self, *arrays: FloatArray) -> FloatArray:
        """The function's tokens for one set of inputs, shape (n, d)."""
        if not self.batched:
            return self.batch(*arrays)
        result: FloatArray = self.batch(arrays[0][None], *arrays[1:])[0]
        return result

    def batch(self, *arrays: FloatArray) -> FloatArray:
        """The function's tokens for Y as it takes them, (n, d) or (b, n, d)."""
        return self.read(self.guarded(lambda: self.fn(*self.arrays(arrays))), arrays[0].shape)

    def complex_step(self, Y: FloatArray, direction: FloatArray, size: float) -> FloatArray:
        """Im fn(Y + i size direction) / size, the derivative of an analytic function of the tokens alone."""
        moved = Y + 1j * size * direction
        result = self._numpy(self.guarded(lambda: self.fn(*self.arrays([moved], dtype="complex128"))))
        if result.dtype.kind != "c" or result.shape != Y.shape or not np.isfinite(result).all():
            raise Finding("your function takes no complex tokens")
        return np.array(result.imag / size)

    def changed(self, arrays: Sequence[FloatArray], names: Sequence[str]) -> None:
        """A :class:`Finding` where a call changes its inputs."""

        def call() -> list[Any]:
            given = self.arrays(arrays)
            self.fn(*given)
            return given

        for name, before, after in zip(names, arrays, self.guarded(call), strict=True):
            if not np.array_equal(before, np.asarray(self._numpy(after), dtype=np.float64)):
                raise Finding(f"your function changes its input: {name} is another array after the call")

    def reuses_memory(self, arrays: Sequence[FloatArray], others: Sequence[FloatArray]) -> None:
        """A :class:`Finding` where a result does not stay what it is when the function is called with others."""

        def call() -> bool:
            result = self._numpy(self.fn(*self.arrays(arrays)))
            before = result.copy()
            self.fn(*self.arrays(others))
            return np.array_equal(result, before, equal_nan=True)

        if not self.guarded(call):
            raise Finding("your function uses its memory again: an earlier result changes at the next call")

    def transposed_call(self, arrays: Sequence[FloatArray]) -> FloatArray:
        """The function's tokens for the same inputs stored column by column."""
        return self.read(self.guarded(lambda: self.fn(*self.arrays(arrays, order="F"))), arrays[0].shape)

    def arrays(
        self, arrays: Sequence[NDArray[Any]], order: Literal["C", "F"] = "C", dtype: str | None = None
    ) -> list[Any]:
        """The framework's own copies, in the dtype under test unless another is asked for."""
        copies = [np.array(array, dtype=dtype or self.dtype, order=order) for array in arrays]
        if self.framework == "torch":
            import torch

            return [torch.from_numpy(copy) for copy in copies]
        if self.framework == "jax":
            import jax.numpy

            return [jax.numpy.asarray(copy) for copy in copies]
        return copies

    def read(self, result: Any, shape: tuple[int, ...]) -> FloatArray:
        """What came back, as float64; a ``Finding`` where it is not a finite real array of that shape."""
        try:
            array = self._numpy(result)
        except (RuntimeError, TypeError, ValueError) as error:  # a tensor on a device without memory, and the like
            raise Finding(f"your function's result cannot be read: {describe(error)}") from None
        if array.dtype.kind != "f":
            raise Finding(f"your function returns {array.dtype}, expected {self.dtype}")
        if array.shape != shape:
            raise Finding(f"your function returns shape {array.shape} for tokens of shape {shape}")
        self.returned = str(array.dtype)
        if not np.isfinite(array).all():
            where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            raise Finding(f"your function returns {array[where]} at index {where}")
        return np.array(array, dtype=np.float64)  # a copy: the function may use its memory again

    def vjp(self, arrays: Sequence[FloatArray], cotangent: FloatArray) -> list[FloatArray]:
        """The cotangents of the inputs, by the framework's own reverse mode: torch or jax."""
        shapes = [array.shape for array in arrays]
        if self.batched:
            arrays, cotangent = [arrays[0][None], *arrays[1:]], cotangent[None]
        pulled = self.guarded(
            lambda: (
                self._torch_vjp(arrays, cotangent) if self.framework == "torch" else self._jax_vjp(arrays, cotangent)
            )
        )
        return [self.read(pulled[0], arrays[0].shape).reshape(shapes[0])] + [
            self.read(gradient, shape) for gradient, shape in zip(pulled[1:], shapes[1:], strict=True)
        ]

    def _torch_vjp(self, arrays: Sequence[FloatArray], cotangent: FloatArray) -> list[Any]:
        import torch

        inputs = [tensor.requires_grad_(True) for tensor in self.arrays(arrays)]
        result = self.fn(*inputs)
        if not (isinstance(result, torch.Tensor) and result.requires_grad):
            raise Finding("your function's result carries no gradient: it is detached from its inputs")
        (direction,) = self.arrays([cotangent])
        gradients = torch.autograd.grad(result, inputs, direction, allow_unused=True)
        return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, gradients, strict=True)]

    def _jax_vjp(self, arrays: Sequence[FloatArray], cotangent: FloatArray) -> list[Any]:
        import jax

        _, pull = jax.vjp(self.fn, *self.arrays(arrays))
        return list(pull(*self.arrays([cotangent])))

    def _numpy(self, result: Any) -> NDArray[Any]:
        if self.framework == "torch":
            import torch

            if isinstance(result, torch.Tensor):
                tensor = result.detach().cpu()
                # NumPy has no bfloat16
                return np.asarray((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())
        elif self.framework == "jax":
            import jax

            if isinstance(result, jax.Array):
                return np.asarray(result)
        elif isinstance(result, np.ndarray):
            return np.asarray(result)
        expected = {"numpy": "numpy.ndarray", "torch": "torch.Tensor", "jax": "jax.Array"}[self.framework]
        came = "None" if result is None else type(result).__name__
        raise Finding(f"your function returns {came}, expected {expected}")

    def guarded(self, call: Callable[[], Any]) -> Any:
        """The result of ``call``, or a ``Finding`` about what it did instead."""
        if self.hung:
            raise Finding("not run: your function did not return before")
        outcome: list[Any] = []

        def run() -> None:
            try:
                with _scope(self.framework), np.errstate(all="ignore"):
                    outcome.extend([True, call()])
            except BaseException as error:  # SystemExit and KeyboardInterrupt too: it is their function that raises
                outcome.extend([False, error])

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            thread = threading.Thread(target=run, daemon=True)
            thread.start()
            thread.join(self.seconds)
        if not outcome:
            self.hung = True
            raise Finding(
                f"your function did not return within {self.seconds:g} s (a first call that compiles may need more: "
                "--timeout, or seconds=)"
            )
        returned, result = outcome
        if returned:
            return result
        if isinstance(result, Finding):
            raise result
        raise Finding(f"your function raises {describe(result)}")


def same_answer(answers: Sequence[FloatArray]) -> None:
    """A :class:`Finding` unless all answers to one question are the first."""
    for later in answers[1:]:
        if not np.array_equal(answers[0], later):
            gap = float(np.abs(answers[0] - later).max())
            raise Finding(f"your function gives another answer the second time, off by {gap:.2g}")


def describe(error: BaseException) -> str:
    """The error on one line, with the last lines of code outside this package that led to it."""
    try:
        message = str(error)
    except Exception:  # theirs as well
        message = "(an error that cannot be printed)"
    text = " ".join(f"{type(error).__name__}: {message}".split())
    if len(text) > 300:
        text = text[:300] + " ..."
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if _OURS not in Path(frame.filename).parents and frame.filename[:1] != "<"
    ]
    # their own code before that of the libraries it calls
    own = [frame for frame in frames if not any(Path(frame.filename).is_relative_to(path) for path in _LIBRARIES)]
    lines = [f"{Path(f.filename).name}:{f.lineno} in {f.name}: {f.line}" for f in (own or frames)[-_FRAMES:]]
    if isinstance(error, SyntaxError) and error.filename:
        lines = [f"{Path(error.filename).name}:{error.lineno}: {(error.text or '').strip()}"]
    return text + (f" ({'; '.join(lines)})" if lines else "")


def _scope(framework: str) -> contextlib.AbstractContextManager[Any]:
    """JAX works in float32 unless it is asked for more."""
    if framework != "jax":
        return contextlib.nullcontext()
    import jax

    scope: contextlib.AbstractContextManager[Any] = jax.enable_x64(True)
    return scope
