"""What attention with a penalty is like: its kernel ρ' beside softmax's e^(−z), on tokens that never change."""

from __future__ import annotations

import contextlib
import math
from statistics import NormalDist
from typing import Any

import numpy as np

from . import formula
from .attention import AttentionEnergy
from .numerics import FloatArray, half_squared_distances
from .rho import Rho, get_rho

POINTS = (0.5, 1.0, 2.0, 4.0, 8.0)
DISSIMILAR = 2.0  # z beyond which two tokens count as dissimilar: softmax's kernel is below e⁻² there
_TAILS = {"compact": "0 from z = {:.3g} on", "exponential": "exponential, rate {:.3g}"}
_TAILS |= {"power": "power, rho' ~ z^-{:.3g}", "constant": "constant, {:.3g}"}
_TOKENS = {"line": "33 tokens on a line, from -4 to 4", "cloud": "64 normally distributed tokens in 2 dimensions"}
_UNDECIDED = (NotImplementedError, ArithmeticError, ValueError, TypeError, AttributeError, RecursionError)


def line() -> FloatArray:
    """33 tokens in one dimension, from −4 to 4, 1/4 apart."""
    return np.linspace(-4.0, 4.0, 33)[:, None]


def cloud() -> FloatArray:
    """64 tokens in two dimensions: (Φ⁻¹((i + ½)/64), Φ⁻¹((r_i + ½)/64)), r_i the six bits of i in reverse order.

    These are Hammersley's points through the normal quantile function, a standard normal cloud without a seed.
    """
    quantile = NormalDist().inv_cdf
    return np.array([[quantile((k + 0.5) / 64) for k in (i, int(f"{i:06b}"[::-1], 2))] for i in range(64)])


def describe(rho: Rho) -> dict[str, Any]:
    """The kernel in numbers, and under ``softmax`` the same numbers for ρ' = e^(−z); None where one has no meaning.

    kernel : ρ'(z)/ρ'(0) at ``z``. half_width : the first z where it is ½; None where it never is.
    line, cloud : of the attention A between those tokens, W = I, ``effective_tokens``, the exponential of the entropy
        of a row averaged over rows, and ``dissimilar_share``, the mean share of a row on tokens with z > 2.
    tail : how ρ' ends. ``kind`` is one of these, and ``value`` what is in brackets: compact (where the zeros begin),
        exponential (rate), power (p of z^(−p)), constant (the limit), growing, "faster than exponential",
        "between power and exponential", unclear. ``method`` says how it was found.
    text : the same in words, a line each.
    """
    own, softmax, tail = _figures(rho), _figures(get_rho("exp")), _tail(rho)
    width = "never falls to half" if own["half_width"] is None else f"falls to half at z = {own['half_width']:.3g}"
    text = [
        f"kernel: {own['reason'] or width + ' (softmax: 0.693)'}",
        f"tail: {_in_words(tail['kind'], tail['value'])} (softmax: exponential, rate 1); {tail['method']}",
    ]
    for key, tokens in _TOKENS.items():
        (count, share, reason), (base, base_share, _) = own[key].values(), softmax[key].values()
        figures = reason or (
            f"compared with softmax, it attends to {count / base:.2f} times as many ({count:.1f}, softmax {base:.1f}); "
            f"{share:.1%} of its attention goes to dissimilar ones, z > 2 (softmax {base_share:.1%})"
        )
        text.append(f"{tokens}: {figures}")
    return {"name": rho.name, "z": list(POINTS), **own, "tail": tail, "softmax": softmax, "text": text}


def slopes(rho: Rho, z: FloatArray) -> FloatArray:
    """ρ'(z) as a new array, without warnings."""
    with np.errstate(all="ignore"):
        return np.array(np.broadcast_to(rho.derivative(z), z.shape), dtype=np.float64)


def _figures(rho: Rho) -> dict[str, Any]:
    slope, *values = slopes(rho, np.array([0.0, *POINTS])).tolist()
    usable, width = 0 < slope < math.inf, None
    if usable:
        z = np.concatenate([[0.0], 2.0 ** np.arange(-60, 100, 1 / 16)], dtype=np.float64)
        low = np.flatnonzero(slopes(rho, z) <= slope / 2)
        width = _crossing(rho, slope / 2, z[low[0] - 1], z[low[0]]) if low.size else None
    return {
        "slope_at_zero": slope if math.isfinite(slope) else None,
        "kernel": [k / slope if math.isfinite(k) else None for k in values] if usable else None,
        "half_width": width,
        "reason": None if usable else f"rho'(0) = {slope:g}, so there is no rho'(z) / rho'(0)",
        "line": _attention(rho, line()),
        "cloud": _attention(rho, cloud()),
    }


def _crossing(rho: Rho, level: float, a: float, b: float) -> float:
    """A float of (a, b] where ρ' comes down to ``level``, being above it at a and not at b."""
    while a < (middle := (a + b) / 2) < b:
        a, b = (a, middle) if slopes(rho, np.array([middle]))[0] <= level else (middle, b)
    return float(b)


def _attention(rho: Rho, Y: FloatArray) -> dict[str, Any]:
    effective, share, reason = None, None, None
    try:
        attention = AttentionEnergy(rho=rho)
        with np.errstate(all="ignore"):
            Gamma, A = attention.kernel(Y), np.asarray(attention.weights(Y))
        if (Gamma < 0).any():
            raise ValueError("some weights are negative, because rho decreases somewhere")
        effective = float(np.exp(-(A * np.log(np.where(A > 0, A, 1.0))).sum(axis=1)).mean())
        share = float((A * (half_squared_distances(Y, None) > DISSIMILAR)).sum(axis=1).mean())
    except ValueError as error:
        reason = str(error)
    return {"effective_tokens": effective, "dissimilar_share": share, "reason": reason}


def _in_words(kind: str, value: float | None) -> str:
    return kind if value is None else _TAILS[kind].format(value)


def _tail(rho: Rho) -> dict[str, Any]:
    (kind, value), method = _sampled_tail(rho), "sampled at powers of 2 up to 2^40"
    with contextlib.suppress(*_UNDECIDED):
        z = formula.symbol("z")
        slope = rho.expr.diff(z)  # ValueError without a formula
        found, number = formula._within_budget(lambda: _tail_limits(slope, z), 3 * formula.MAX_EVENTS)
        near = number is None or value is None or abs(number - value) <= 0.1 * max(abs(number), abs(value), 1.0)
        if kind == "unclear" or (kind == found and near):
            # only the samples know where the zeros begin
            kind, value, method = found, value if found == "compact" else number, "limits by SymPy"
        else:
            method = f"the formula says {_in_words(found, number)}, its functions {_in_words(kind, value)}"
            kind, value = "unclear", None
    return {"kind": kind, "value": value, "method": method}


def _tail_limits(slope: Any, z: Any) -> tuple[str, float | None]:
    """From the limits of ρ', −ρ''/ρ' and −z ρ''/ρ'."""
    import sympy

    def limit(expr: Any) -> Any:
        value = formula._limit(expr, t)
        if value.is_extended_nonnegative:
            return value
        raise NotImplementedError  # it oscillates, or ρ decreases

    t = sympy.Dummy("t", positive=True)
    kernel = formula._eventually(slope.subs(z, t), t)
    if sympy.simplify(kernel) == 0:
        return "compact", None
    if level := limit(kernel):
        return ("growing", None) if level == sympy.oo else ("constant", float(level))
    decay = sympy.simplify(-kernel.diff(t) / kernel)
    if rate := limit(decay):
        return ("faster than exponential", None) if rate == sympy.oo else ("exponential", float(rate))
    exponent = limit(t * decay)
    return ("between power and exponential", None) if exponent == sympy.oo else ("power", float(exponent))


def _sampled_tail(rho: Rho) -> tuple[str, float | None]:
    """From the fall of log ρ' over the last two doublings of z at which ρ' is a positive float."""
    z = np.asarray(2.0 ** np.arange(-10, 41), dtype=np.float64)
    k = slopes(rho, z)
    if not ((k >= 0).all() and k.any()):
        return "unclear", None
    last = int(np.flatnonzero(k)[-1])
    if last < len(z) - 1:
        end = _crossing(rho, 0.0, z[last], z[last + 1])
        # neither underflow nor what is left of a difference like 1 − tanh²
        if slopes(rho, np.array([0.99 * end]))[0] > 1e-12 * k.max():
            return "compact", end
    z, k = z[(k > 1e-300) & (z >= 1)], k[(k > 1e-300) & (z >= 1)]
    if len(k) < 3 or np.isinf(k).any():
        return "growing" if np.isinf(k).any() else "unclear", None
    first, second = -np.diff(np.log2(k[-3:]))
    if max(abs(first), abs(second)) < 1e-6:
        return "constant", float(k[-1])
    if min(first, second) <= 0:
        return "growing" if max(first, second) < 0 else "unclear", None
    if abs(second / first - 1) < 0.02:
        return "power", float(second)
    if abs(second / first - 2) < 0.1:
        return "exponential", float(second * math.log(2) / (z[-1] - z[-2]))
    return "faster than exponential" if second > 2 * first else "unclear", None
