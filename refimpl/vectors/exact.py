"""The shipped penalties and activations at the working precision of mpmath, with their formulas as text.

Nothing here is shared with the NumPy code: a prox is written from its optimality condition y + α φ'(y) ∋ v.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mpmath

from ..rho import get_rho

Number = Any
Function = Callable[[Number], Number]


class Penalty(NamedTuple):
    """ρ and ρ' of one number, and both as text."""

    value: Function
    derivative: Function
    text: dict[str, str]


class Activation(NamedTuple):
    """prox_{αφ}(v) and φ(y) of numbers, both as text, and the parameters that the text names."""

    prox: Callable[[Number, Number], Number]
    penalty: Function
    text: dict[str, str]
    parameters: dict[str, float]


_SLOPES = {
    "exp": "exp(-z)",
    "log2": "1/(z + 2)",
    "log1p": "1/(1 + z)",
    "sqrt": "1/(2*sqrt(z + 1))",
    "geman_mcclure": "1/(1 + z)^2",
    "linear": "1",
    "epanechnikov": "max(1 - z, 0)",
    "truncated": "1 if z < 1, else 0",
}


def penalty(name: str) -> Penalty:
    """The shipped penalty of that name, from its formula alone."""
    rho = get_rho(name)
    assert rho.formula is not None
    value, derivative = rho.literal("mpmath")
    return Penalty(value, derivative, {"value": rho.formula.replace("**", "^"), "derivative": _SLOPES[name]})


def _within(y: Number, inside: bool, phi: Callable[[], Number]) -> Number:
    return phi() if inside else mpmath.inf


def _xlog(x: Number) -> Number:
    """x log x."""
    return x * mpmath.log(x) if x else mpmath.mpf(0)


def _sign(v: Number) -> int:
    return 1 if v > 0 else -1


def _smooth(sigma: Function, slope: Function) -> Callable[[Number, Number], Number]:
    """prox_{αφ}(v) = σ(t) with (1 − α) σ(t) + α t = v; ``slope`` is σ' at t as a function of y = σ(t)."""

    def prox(v: Number, alpha: Number) -> Number:
        if alpha == 1:
            return sigma(v)

        def excess(t: Number) -> Number:
            return (1 - alpha) * sigma(t) + alpha * t - v

        radius = abs(excess(v)) / min(1, alpha) + 1  # the excess rises with a slope of at least min(1, α)
        low, high, t = v - radius, v + radius, v
        while high - low > mpmath.eps * (1 + abs(t)):
            gap = excess(t)
            low, high = (t, high) if gap < 0 else (low, t)
            newton = t - gap / ((1 - alpha) * slope(sigma(t)) + alpha)
            if abs(newton - t) <= mpmath.eps * (1 + abs(t)):
                return sigma(newton)
            t = newton if low < newton < high else (low + high) / 2
        return sigma(t)

    return prox


_TAU, _SLOPE, _A = 0.5, 0.01, 1.0  # the defaults of refimpl.activation
_s = mpmath.mpf(_SLOPE)

_IMPLICIT = "sigma(t), where t solves (1 - alpha)*sigma(t) + alpha*t = v; sigma(t) = "


ACTIVATIONS = {
    "identity": Activation(lambda v, alpha: v, lambda y: mpmath.mpf(0), {"prox": "v", "penalty": "0"}, {}),
    "relu": Activation(
        lambda v, alpha: max(v, 0),
        lambda y: _within(y, y >= 0, lambda: mpmath.mpf(0)),
        {"prox": "max(v, 0)", "penalty": "0 if y >= 0, else inf"},
        {},
    ),
    "shifted_relu": Activation(
        lambda v, alpha: max(v - alpha * _TAU, 0),
        lambda y: _within(y, y >= 0, lambda: _TAU * y),
        {"prox": "max(v - alpha*tau, 0)", "penalty": "tau*y if y >= 0, else inf"},
        {"tau": _TAU},
    ),
    "soft_threshold": Activation(
        lambda v, alpha: _sign(v) * max(abs(v) - alpha * _TAU, 0),
        lambda y: _TAU * abs(y),
        {"prox": "sign(v)*max(|v| - alpha*tau, 0)", "penalty": "tau*|y|"},
        {"tau": _TAU},
    ),
    "hard_threshold": Activation(
        lambda v, alpha: v if v * v >= alpha * _TAU**2 else mpmath.mpf(0),
        lambda y: mpmath.mpf(_TAU**2 / 2 if y else 0),
        {"prox": "v if |v| >= tau*sqrt(alpha), else 0", "penalty": "tau^2/2 if y != 0, else 0"},
        {"tau": _TAU},
    ),
    "leaky_relu": Activation(
        lambda v, alpha: v if v >= 0 else v * _s / (_s + alpha * (1 - _s)),
        lambda y: (1 - _s) / (2 * _s) * min(y, 0) ** 2,
        {
            "prox": "v if v >= 0, else v*slope/(slope + alpha*(1 - slope))",
            "penalty": "(1 - slope)/(2*slope)*min(y, 0)^2",
        },
        {"slope": _SLOPE},
    ),
    "hard_tanh": Activation(
        lambda v, alpha: min(max(v, -1), 1),
        lambda y: _within(y, abs(y) <= 1, lambda: mpmath.mpf(0)),
        {"prox": "min(max(v, -1), 1)", "penalty": "0 if |y| <= 1, else inf"},
        {},
    ),
    "tanh": Activation(
        _smooth(mpmath.tanh, lambda y: 1 - y * y),
        lambda y: _within(y, abs(y) <= 1, lambda: (_xlog(1 + y) + _xlog(1 - y) - y * y) / 2),
        {
            "prox": _IMPLICIT + "tanh(t)",
            "penalty": "((1 + y)*log(1 + y) + (1 - y)*log(1 - y) - y^2)/2 if |y| <= 1, else inf; 0*log(0) = 0",
        },
        {},
    ),
    "sigmoid": Activation(
        _smooth(lambda t: 1 / (1 + mpmath.exp(-t)), lambda y: y * (1 - y)),
        lambda y: _within(y, 0 <= y <= 1, lambda: _xlog(y) + _xlog(1 - y) - y * y / 2),
        {
            "prox": _IMPLICIT + "1/(1 + exp(-t))",
            "penalty": "y*log(y) + (1 - y)*log(1 - y) - y^2/2 if 0 <= y <= 1, else inf; 0*log(0) = 0",
        },
        {},
    ),
    "softplus": Activation(
        _smooth(lambda t: mpmath.log1p(mpmath.exp(t)), lambda y: -mpmath.expm1(-y)),
        lambda y: _within(y, y >= 0, lambda: mpmath.re(mpmath.polylog(2, mpmath.exp(-y)))),
        {
            "prox": _IMPLICIT + "log(1 + exp(t))",
            "penalty": "Li2(exp(-y)) if y >= 0, else inf; Li2(x) = sum of x^k/k^2 over k = 1, 2, ...",
        },
        {},
    ),
    "elu": Activation(
        _smooth(lambda t: t if t >= 0 else _A * mpmath.expm1(t), lambda y: mpmath.mpf(1) if y >= 0 else y + _A),
        lambda y: _within(
            y,
            y >= -_A,
            lambda: mpmath.mpf(0) if y >= 0 else (_A * _xlog(1 + y / _A) - y - y * y / 2),
        ),
        {
            "prox": _IMPLICIT + "t if t >= 0, else a*(exp(t) - 1)",
            "penalty": "0 if y >= 0, (a + y)*log(1 + y/a) - y - y^2/2 if -a <= y < 0, else inf; 0*log(0) = 0",
        },
        {"a": _A},
    ),
}
