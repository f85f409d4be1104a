"""The check kit: named checks of a penalty or an activation, each runnable alone, through pytest, or from the shell.

    for name, check in penalty_checks(): check(rho)

A check raises :class:`CheckFailure`, which names the claim, shows the smallest input and says what to read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..activation import Activation, get_activation
from ..attention import AttentionEnergy
from ..feedforward import FeedForwardEnergy
from ..numerics import EPS, FloatArray
from ..rho import Rho, get_rho
from .search import search_descent

_READ = {
    "rho": "derivations/01_attention.md",
    "attention": "derivations/01_attention.md",
    "ffn": "derivations/03_feedforward.md",
    "prox": "derivations/03_feedforward.md",
    "backward": "derivations/06_backward.md",
}


class CheckFailure(AssertionError):
    """What failed: the check, the claim that it stands for, the smallest input, and what to read."""

    def __init__(self, check: Check, finding: str, smallest: str | None) -> None:
        self.check, self.finding, self.smallest = check, finding, smallest
        shown = "" if smallest is None else f"\n  smallest input: {smallest}"
        super().__init__(
            f"{check.name}: {finding}{shown}\n  claim: {check.claim}; read {_READ[check.claim.split('.')[0]]}"
        )


class Finding(Exception):
    def __init__(self, finding: str, smallest: Any = None) -> None:
        super().__init__(finding, smallest)
        self.finding, self.smallest = finding, smallest


@dataclass(frozen=True)
class Check:
    """A named check of one claim: call it with a penalty (or an activation); it raises or returns None."""

    name: str
    claim: str
    body: Callable[[Any], None]
    read: Callable[[Any], Any]

    def __call__(self, subject: Any) -> None:
        try:
            self.body(self.read(subject))
        except Finding as found:
            smallest = None if found.smallest is None else str(found.smallest)
            raise CheckFailure(self, found.finding, smallest) from None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Result:
    """The outcome of one check."""

    name: str
    claim: str
    passed: bool
    message: str | None = None
    counterexample: str | None = None


def results(subject: Any, checks: Sequence[Check]) -> Iterator[Result]:
    """Run each check on its own; a failure does not stop the others. One that breaks down has failed too."""
    for check in checks:
        try:
            check(subject)
        except CheckFailure as failure:
            yield Result(check.name, check.claim, False, failure.finding, failure.smallest)
        except (Exception, SystemExit) as error:
            where = f"the check could not run on it: {type(error).__name__}: {error}"
            yield Result(check.name, check.claim, False, where)
        else:
            yield Result(check.name, check.claim, True)


# ------------------------------------------------------------------------------------------------ penalties

# 0, tiny, ordinary, far: what the points of a penalty or kernel are tried at, simplest first
_POINTS = np.array([0, 1, 0.5, 2, 3, 1e-8, 1e-3, 0.1, 0.9, 1.5, 5, 8, 13, 20, 34, 55, 100, 1e3, 1e6])


def _at(function: Callable[[FloatArray], Any], z: FloatArray, what: str) -> FloatArray:
    """The function's values as float64 of z's shape; a scalar is a constant."""
    with np.errstate(all="ignore"):
        result = np.asarray(function(z.copy()))
    if result.shape not in ((), z.shape):
        raise Finding(f"{what} of an array of shape {z.shape} has shape {result.shape}", f"z = {z.tolist()}")
    if result.dtype.kind not in "fiu":
        raise Finding(f"{what} returns {result.dtype}, not real floats", f"z = {z.tolist()}")
    return np.array(np.broadcast_to(result, z.shape), dtype=np.float64)


def _functions(rho: Rho) -> Iterator[tuple[str, Callable[[FloatArray], Any]]]:
    yield "the value", rho.value
    yield "the derivative", rho.derivative
    if rho.second_derivative is not None:
        yield "the second derivative", rho.second_derivative


def _check_shapes(rho: Rho) -> None:
    for what, function in _functions(rho):
        whole = _at(function, _POINTS, what)
        for z, at_once in zip(_POINTS, whole, strict=True):
            alone = _at(function, np.array([z]), what)[0]
            if (
                alone != at_once
                and not (np.isnan(alone) and np.isnan(at_once))
                and abs(alone - at_once) > 8 * EPS * abs(alone)
            ):
                raise Finding(f"{what} is {at_once} inside an array and {alone} alone", f"z = {z}")
        square = _at(function, _POINTS[:4].reshape(2, 2), what)
        if not np.allclose(square.ravel(), whole[:4], rtol=8 * EPS, atol=0, equal_nan=True):
            raise Finding(f"{what} of a (2, 2) array is not elementwise", f"z = {_POINTS[:4].reshape(2, 2).tolist()}")


def _check_finite(rho: Rho) -> None:
    for what, function in _functions(rho):
        values = _at(function, _POINTS, what)
        for z, value in zip(_POINTS, values, strict=True):
            if not np.isfinite(value):
                raise Finding(f"{what} is {value}: it has to be finite on [0, ∞)", f"z = {z:g}")
        far = _at(function, np.array([np.inf]), what)[0]
        if np.isnan(far):
            raise Finding(f"{what} is nan at z = inf: it has to give the limit there", "z = inf")


def _check_pure(rho: Rho) -> None:
    for what, function in _functions(rho):
        z = _POINTS.copy()
        first = np.array(function(z))
        if not np.array_equal(z, _POINTS):
            raise Finding(f"{what} changes its input", f"z = {_POINTS[z != _POINTS][:1].tolist()}")
        kept = first.copy()
        second = np.array(function(z))
        if not np.array_equal(kept, second, equal_nan=True):
            raise Finding(f"{what} gives another answer the second time", f"z = {_POINTS[:1].tolist()}")


def _check_float32(rho: Rho) -> None:
    for what, function in _functions(rho):
        z = _POINTS[_POINTS < 1e3].astype(np.float32)
        double = _at(function, z.astype(np.float64), what)
        single = np.array(np.broadcast_to(function(np.asarray(z)), z.shape), dtype=np.float64)
        # float32 rounds at 6e-8; cancellation against a constant of the size of 1 is allowed for
        wrong = ~(np.abs(single - double) <= 64 * np.finfo(np.float32).eps * (1 + np.abs(double)))
        if wrong.any():
            i = int(np.flatnonzero(wrong)[0])
            raise Finding(f"{what} of float32 is {single[i]:g}, of float64 {double[i]:g}", f"z = {z[i]:g}")


def _quotients(value: Callable[[FloatArray], Any], z: float) -> Iterator[tuple[float, float, float]]:
    """(left, right, error): difference quotients at several h, with what rounding may make of them."""
    for exponent in (-10, -14, -18):
        h = (1 + z) * 2.0**exponent
        points = np.array([max(z - h, 0.0), z, z + h])
        left, middle, right = (float(x) for x in _at(value, points, "the value"))
        error = 8 * EPS * (abs(left) + abs(middle) + abs(right)) / h
        backward = (middle - left) / (points[1] - points[0]) if points[0] < z else float("nan")
        yield backward, (right - middle) / (points[2] - points[1]), error


def _check_slope(function: Callable[[FloatArray], Any], slope: Callable[[FloatArray], Any], what: str) -> None:
    """The slope lies between the one-sided difference quotients, up to their distance: also right at a kink."""
    for z in _POINTS[_POINTS <= 100]:
        claimed = float(_at(slope, np.array([z]), what)[0])
        gaps = []
        for backward, forward, error in _quotients(function, float(z)):
            low, high = np.fmin(backward, forward), np.fmax(backward, forward)
            gaps.append(max(low - claimed, claimed - high, 0.0) - (high - low) - error)
        # at z = 0 there is one side only: the quotient is off by O(h), so it has to come closer as h shrinks
        slack = 4e-3 * (1 + abs(claimed)) if z == 0 else 1e-6 * (1 + abs(claimed))
        if not min(gaps) <= slack:
            raise Finding(f"{what} is {claimed:g} where differences give {forward:.6g}", f"z = {z:g}")


def _check_derivative(rho: Rho) -> None:
    _check_slope(rho.value, rho.derivative, "the derivative")
    if rho.second_derivative is not None:
        _check_slope(rho.derivative, rho.second_derivative, "the second derivative")


def _check_nondecreasing(rho: Rho) -> None:
    slope = _at(rho.derivative, _POINTS, "the derivative")
    if (slope < 0).any():
        i = int(np.flatnonzero(slope < 0)[0])
        raise Finding(f"the derivative is {slope[i]:g}: attention weights would be negative", f"z = {_POINTS[i]:g}")
    z = np.sort(_POINTS)
    values = _at(rho.value, z, "the value")
    falls = np.diff(values) < -8 * EPS * (np.abs(values[1:]) + np.abs(values[:-1]))
    if falls.any():
        i = int(np.flatnonzero(falls)[0])
        raise Finding(f"it falls from {values[i]:g} to {values[i + 1]:g}", f"z = {z[i]:g} and {z[i + 1]:g}")


def _check_concave(rho: Rho) -> None:
    z = np.unique(np.concatenate([_POINTS[_POINTS <= 100], np.arange(0, 16) / 4]))
    values, slopes = _at(rho.value, z, "the value"), _at(rho.derivative, z, "the derivative")
    tangents = values[:, None] + slopes[:, None] * (z - z[:, None])
    noise = 16 * EPS * (np.abs(values[:, None]) + np.abs(slopes[:, None]) * (z + z[:, None]) + np.abs(values))
    above = values - tangents > noise
    if above.any():
        pairs = np.argwhere(above)
        s, t = pairs[np.argmin([len(f"{z[i]:g}{z[j]:g}") for i, j in pairs])]
        raise Finding(
            f"it is not concave: ρ({z[t]:g}) = {values[t]:g} lies above the tangent at {z[s]:g}, which is "
            f"{tangents[s, t]:g} there; descent is not guaranteed",
            f"z = {z[s]:g} and {z[t]:g}",
        )


def _check_energy(rho: Rho) -> None:
    """What AttentionEnergy asks of a penalty, on tokens that coincide, lie apart and lie beyond the floats."""
    try:
        attention = AttentionEnergy(rho=rho)
        attention.step([[0.0], [0.0], [3.0]])
        step = attention.step([[0.0], [1.0], [1e200]])
    except ValueError as error:
        raise Finding(str(error), "Y = [[0], [0], [3]] or [[0], [1], [1e200]]") from None
    if not np.isfinite(step).all():
        raise Finding(f"the step gives {step.tolist()}", "Y = [[0], [1], [1e200]]")


def _check_descent(rho: Rho) -> None:
    found = search_descent(rho, examples=200).counterexample
    if found is not None:
        raise Finding(
            f"the step raises the energy from {found.before:.7g} to {found.after:.7g} ({found.confirmed})",
            f"Y = {found.Y.tolist()}, W = {None if found.W is None else found.W.tolist()}",
        )


def _check_bernstein(rho: Rho) -> None:
    if rho.bernstein is not True:
        return
    for spacing in (0.25, 0.5, 0.6875, 1.0, 2.0):
        for n in (2, 3, 5, 8):
            Y = spacing * np.arange(n)[:, None]
            smallest = float(np.linalg.eigvalsh(AttentionEnergy(rho=rho).kernel(Y))[0])
            if smallest < -1e-12 * n * float(_at(rho.derivative, np.zeros(1), "the derivative")[0]):
                message = f"declared Bernstein, but Γ has the eigenvalue {smallest:.3g}"
                raise Finding(message, f"{n} tokens on a line, {spacing:g} apart")


def _check_formula(rho: Rho) -> None:
    if rho.formula is None:
        return
    value, derivative = rho.literal("float")
    for what, function, literal in (("the value", rho.value, value), ("the derivative", rho.derivative, derivative)):
        for z, computed in zip(_POINTS, _at(function, _POINTS, what), strict=True):
            expected = literal(float(z))
            if not abs(computed - expected) <= 64 * EPS * (1 + abs(expected)):
                raise Finding(
                    f"{what} is {computed:.17g}, its formula {rho.formula!r} gives {expected:.17g}", f"z = {z:g}"
                )


def penalty_checks() -> list[Check]:
    """The checks of a penalty, in the order in which they make sense."""
    table: list[tuple[str, str, Callable[[Rho], None]]] = [
        ("shapes", "attention.gradient", _check_shapes),
        ("finite", "attention.half_quadratic", _check_finite),
        ("pure", "attention.gradient", _check_pure),
        ("float32", "attention.gradient", _check_float32),
        ("derivative", "attention.gradient", _check_derivative),
        ("formula", "attention.gradient", _check_formula),
        ("usable", "attention.step", _check_energy),
        ("nondecreasing", "attention.half_quadratic", _check_nondecreasing),
        ("concave", "attention.majorizer", _check_concave),
        ("bernstein", "rho.bernstein", _check_bernstein),
        ("descent", "attention.sufficient_decrease", _check_descent),
    ]
    return [Check(name, claim, body, get_rho) for name, claim, body in table]


# ------------------------------------------------------------------------------------------------ activations

_ARGUMENTS = np.array(
    [0, 1, -1, 0.5, -0.5, 2, -2, 0.25, -0.25, 0.75, -0.75, 1.5, -1.5, 3, -3, 5, -5, 8, -8, 0.01, -0.01]
)
_STEPS = (1.0, 0.5, 2.0, 0.125, 5.0)


def _sigma(activation: Activation, v: FloatArray, alpha: Any = 1.0) -> FloatArray:
    with np.errstate(all="ignore"):
        result = np.asarray(activation.prox(v.copy(), alpha))
    if result.shape != v.shape:
        raise Finding(f"the prox of an array of shape {v.shape} has shape {result.shape}", f"v = {v.tolist()}")
    return result.astype(np.float64)


def _check_prox_shapes(activation: Activation) -> None:
    whole = _sigma(activation, _ARGUMENTS)
    alone = np.array([_sigma(activation, np.array([v]))[0] for v in _ARGUMENTS])
    steps = _sigma(activation, _ARGUMENTS, np.full(_ARGUMENTS.shape, 0.5))
    for other, what in ((alone, "one by one"), (_sigma(activation, _ARGUMENTS.reshape(3, 7)).ravel(), "as a matrix")):
        if not np.allclose(whole, other, rtol=1e-14, atol=1e-15):
            raise Finding(f"the prox of the same numbers differs {what}", f"v = {_ARGUMENTS.tolist()}")
    if not np.allclose(steps, _sigma(activation, _ARGUMENTS, 0.5), rtol=1e-14, atol=1e-15):
        raise Finding("an array of steps α gives another prox than the number", "α = 0.5")
    if np.shape(activation.penalty(_ARGUMENTS.copy())) != _ARGUMENTS.shape:
        raise Finding("φ of an array has another shape", f"y = {_ARGUMENTS.tolist()}")


def _check_prox_finite(activation: Activation) -> None:
    for alpha in _STEPS:
        p = _sigma(activation, _ARGUMENTS, alpha)
        phi = np.asarray(activation.penalty(p), dtype=np.float64)
        for v, y, value in zip(_ARGUMENTS, p, phi, strict=True):
            if not (np.isfinite(y) and np.isfinite(value)):
                raise Finding(
                    f"the prox is {y:g} with φ = {value:g}: both have to be finite", f"v = {v:g}, α = {alpha:g}"
                )


def _check_prox_pure(activation: Activation) -> None:
    for what, function in (("the prox", lambda v: activation.prox(v, 0.5)), ("φ", activation.penalty)):
        v = _ARGUMENTS.copy()
        first = np.array(function(v))
        if not np.array_equal(v, _ARGUMENTS):
            raise Finding(f"{what} changes its input", f"v = {_ARGUMENTS.tolist()}")
        if not np.array_equal(first, np.array(function(v)), equal_nan=True):
            raise Finding(f"{what} gives another answer the second time", f"v = {_ARGUMENTS.tolist()}")


def _check_prox_definition(activation: Activation) -> None:
    from ..claims.feedforward import require_prox
    from ..claims.ledger import Violation

    for alpha in _STEPS:
        for v in _ARGUMENTS:  # one by one, simplest first, so that the first to fail is the smallest
            p = _sigma(activation, np.array([v]), alpha)
            try:
                require_prox(activation, p, np.array([v]), alpha)
            except Violation as violation:
                raise Finding(str(violation), f"v = {v:g}, α = {alpha:g}") from None


def _check_monotone(activation: Activation) -> None:
    v = np.sort(_ARGUMENTS)
    y = _sigma(activation, v)
    rounding = 8 * EPS * (1 + np.abs(y[1:]) + np.abs(y[:-1]))
    falls, steep = np.diff(y) < -rounding, np.diff(y) > np.diff(v) + rounding
    for wrong, what in (
        (falls, "σ decreases"),
        (steep & activation.convex, "σ rises faster than v, and φ is declared convex"),
    ):
        if wrong.any():
            i = int(np.flatnonzero(wrong)[0])
            raise Finding(
                f"{what}: σ({v[i]:g}) = {y[i]:g}, σ({v[i + 1]:g}) = {y[i + 1]:g}", f"v = {v[i]:g} and {v[i + 1]:g}"
            )


def _check_ffn_descent(activation: Activation) -> None:
    from ..testing.rounding import feedforward_error

    rng = np.random.default_rng(0)
    for n, d in ((1, 1), (2, 1), (3, 2), (4, 3)):
        for _ in range(25):
            F, B = np.round(rng.normal(size=(d, d)), 1), np.round(rng.normal(size=(n, d)), 1)
            energy = FeedForwardEnergy(F, B, activation)
            Y = _sigma(activation, np.round(2 * rng.normal(size=(n, d)), 1))
            alpha = min(energy.max_alpha, 2.0)
            Y_new = energy.step(Y, alpha)
            rise = energy.value(Y_new) - energy.value(Y)
            noise = feedforward_error(energy, Y) + feedforward_error(energy, Y_new)
            if not rise <= 64 * noise:
                raise Finding(
                    f"the step α = {alpha:g} raises the energy by {rise:.3g}",
                    f"Y = {Y.tolist()}, Wf = {F.tolist()}, B = {B.tolist()}",
                )


def activation_checks() -> list[Check]:
    """The checks of an activation, in the order in which they make sense."""
    table: list[tuple[str, str, Callable[[Activation], None]]] = [
        ("shapes", "ffn.step", _check_prox_shapes),
        ("pure", "ffn.step", _check_prox_pure),
        ("finite", "prox.definition", _check_prox_finite),
        ("monotone", "prox.activation_characterisation", _check_monotone),
        ("prox", "prox.definition", _check_prox_definition),
        ("descent", "ffn.sufficient_decrease", _check_ffn_descent),
    ]
    return [Check(name, claim, body, get_activation) for name, claim, body in table]


# ------------------------------------------------------------------------------------------------ running them


def check_rho(rho: str | Rho) -> None:
    """Run every check of a penalty; raises :class:`CheckFailure` at the first that fails."""
    for check in penalty_checks():
        check(rho)


def check_activation(activation: str | Activation) -> None:
    """Run every check of an activation; raises :class:`CheckFailure` at the first that fails."""
    for check in activation_checks():
        check(activation)


def parametrize_with_checks(subjects: Sequence[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """pytest decorator: one test for each of the subjects, penalties or activations, and each of its checks.

    The test takes the subject, under any name, and ``check``; it calls ``check(subject)``::

        @refimpl.testing.parametrize_with_checks([MyPenalty(), refimpl.get_rho("sqrt(z + 1)")])
        def test_penalty(penalty, check): check(penalty)
    """
    import pytest

    pairs = []
    for subject in subjects:
        checks = activation_checks() if hasattr(subject, "prox") else penalty_checks()
        name = subject if isinstance(subject, str) else getattr(subject, "name", type(subject).__name__)
        pairs += [pytest.param(subject, check, id=f"{name}-{check.name}") for check in checks]

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        names = list(inspect.signature(test).parameters)
        if "check" not in names or len(names) < 2:
            raise TypeError(f"{test.__name__}: expected a test of two arguments, the subject and check, got {names}")
        subject = next(name for name in names if name != "check")
        decorated: Callable[..., Any] = pytest.mark.parametrize((subject, "check"), pairs)(test)
        return decorated

    return decorate
