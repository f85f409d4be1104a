"""Activations as proximal operators: σ = prox_φ, with the penalty φ beside the operator.

    prox_{αφ}(v) = argmin_y ½ (y − v)² + α φ(y),  elementwise.

A scalar σ is the proximal operator of some function iff it is non-decreasing, of a convex one iff it is also
1-Lipschitz (Moreau; Combettes and Pesquet 2020; Gribonval and Nikolova 2020). The step α matters unless φ is the
indicator of a set. Derivation of every row: ``derivations/03_feedforward.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .numerics import FloatArray, read_number

Penalty = Callable[[FloatArray], Any]
Prox = Callable[[FloatArray, Any], Any]


@dataclass(frozen=True)
class Activation:
    """σ = prox_φ.

    name : how messages refer to it.
    penalty : φ of a float64 array, elementwise; +inf outside its domain.
    prox : ``prox(v, alpha)`` = prox_{αφ}(v), elementwise, for α > 0 that broadcasts to v.
    convex : whether φ is convex, on which the step sizes that descend depend.
    prox_derivative : the derivative of ``prox`` by v, of the same arguments; at a kink the smaller of the one-sided
        derivatives, which is 0 for ReLU. None where it is not known; only ``vjp`` needs it.
    """

    name: str
    penalty: Penalty
    prox: Prox
    convex: bool = True
    prox_derivative: Prox | None = None


def _outside(y: FloatArray, wrong: Any, phi: Any = 0.0) -> FloatArray:
    """φ, and +inf where ``wrong``."""
    return np.where(wrong, np.inf, phi)


def identity() -> Activation:
    """σ(v) = v; φ = 0."""
    return Activation("identity", np.zeros_like, lambda v, alpha: v, prox_derivative=lambda v, alpha: np.ones_like(v))


def relu() -> Activation:
    """σ(v) = max(v, 0); φ = ι_{≥0}."""
    return Activation(
        "relu",
        lambda y: _outside(y, y < 0),
        lambda v, alpha: np.maximum(v, 0.0),
        prox_derivative=lambda v, alpha: 1.0 * (v > 0),
    )


def shifted_relu(tau: float = 0.5) -> Activation:
    """σ(v) = max(v − τ, 0); φ(y) = ι_{≥0}(y) + τ y."""
    tau = read_number(tau, "tau")
    return Activation(
        "shifted_relu",
        lambda y: _outside(y, y < 0, tau * y),
        lambda v, alpha: np.maximum(v - alpha * tau, 0.0),
        prox_derivative=lambda v, alpha: 1.0 * (v > alpha * tau),
    )


def soft_threshold(tau: float = 0.5) -> Activation:
    """σ(v) = sign(v) max(|v| − τ, 0); φ(y) = τ |y|."""
    tau = read_number(tau, "tau", "[0, inf)")
    return Activation(
        "soft_threshold",
        lambda y: tau * np.abs(y),
        lambda v, alpha: np.copysign(np.maximum(np.abs(v) - alpha * tau, 0.0), v),
        prox_derivative=lambda v, alpha: 1.0 * ((np.abs(v) > alpha * tau) | (tau == 0)),
    )


def hard_threshold(tau: float = 0.5) -> Activation:
    """σ(v) = v where |v| ≥ τ, else 0; φ(y) = ½ τ² [y ≠ 0], not convex. With a step, the threshold is τ √α."""
    tau = read_number(tau, "tau", "[0, inf)")
    return Activation(
        "hard_threshold",
        lambda y: 0.5 * tau**2 * (y != 0),
        lambda v, alpha: np.where(np.abs(v) >= tau * np.sqrt(alpha), v, 0.0),
        convex=False,
        prox_derivative=lambda v, alpha: 1.0 * ((np.abs(v) > tau * np.sqrt(alpha)) | (tau == 0)),
    )


def leaky_relu(slope: float = 0.01) -> Activation:
    """σ(v) = v for v ≥ 0, s v below, 0 < s ≤ 1; φ(y) = (1 − s) / (2 s) min(y, 0)²."""
    s = read_number(slope, "slope", "(0, 1]")
    return Activation(
        "leaky_relu",
        lambda y: (1 - s) / (2 * s) * np.minimum(y, 0.0) ** 2,
        lambda v, alpha: np.where(v < 0, v * (s / (s + alpha * (1 - s))), v),
        prox_derivative=lambda v, alpha: np.where(v > 0, 1.0, s / (s + alpha * (1 - s))),
    )


def clip(lower: float = -1.0, upper: float = 1.0) -> Activation:
    """σ(v) = min(max(v, a), b); φ = ι_{[a, b]}. The default is hard tanh."""
    lower, upper = read_number(lower, "lower"), read_number(upper, "upper")
    if lower > upper:
        raise ValueError(f"upper: expected a number of at least lower = {lower:g}, got {upper:g}")
    return Activation(
        "hard_tanh" if (lower, upper) == (-1.0, 1.0) else "clip",
        lambda y: _outside(y, (y < lower) | (y > upper)),
        lambda v, alpha: np.clip(v, lower, upper),
        prox_derivative=lambda v, alpha: 1.0 * ((v > lower) & (v < upper)),
    )


def tanh() -> Activation:
    """σ = tanh; φ(y) = y artanh y + ½ log(1 − y²) − ½ y² on [−1, 1]."""

    def penalty(y: FloatArray) -> FloatArray:
        from scipy.special import xlog1py

        inside = np.clip(y, -1.0, 1.0)  # written so that the ends ±1, which rounding reaches, are finite
        phi = 0.5 * (xlog1py(1 + inside, inside) + xlog1py(1 - inside, -inside)) - 0.5 * inside**2
        return _outside(y, np.abs(y) > 1, phi)

    def slope(t: FloatArray) -> FloatArray:
        from scipy.special import expit

        return np.asarray(4 * expit(2 * t) * expit(-2 * t))  # 1 − tanh², without its cancellation

    return _smooth("tanh", penalty, np.tanh, slope)


def sigmoid() -> Activation:
    """σ(v) = 1 / (1 + e^(−v)); φ(y) = y log y + (1 − y) log(1 − y) − ½ y² on [0, 1]."""

    def function(v: FloatArray) -> FloatArray:
        from scipy.special import expit

        return np.asarray(expit(v))

    def penalty(y: FloatArray) -> FloatArray:
        from scipy.special import entr

        return np.asarray(-entr(y) - entr(1 - y) - 0.5 * y**2)  # entr is −inf outside its domain

    return _smooth("sigmoid", penalty, function, lambda t: function(t) * function(-t))


def softplus() -> Activation:
    """σ(v) = log(1 + e^v); φ(y) = Li₂(e^(−y)) on [0, ∞)."""

    def penalty(y: FloatArray) -> FloatArray:
        from scipy.special import spence

        return _outside(y, y < 0, spence(-np.expm1(-np.maximum(y, 0.0))))  # Li₂(x) is spence(1 − x)

    def slope(t: FloatArray) -> FloatArray:
        from scipy.special import expit

        return np.asarray(expit(t))

    return _smooth("softplus", penalty, lambda v: np.logaddexp(0.0, v), slope)


def elu(a: float = 1.0) -> Activation:
    """σ(v) = v for v ≥ 0, a (e^v − 1) below, 0 < a ≤ 1; φ(y) = (a + y) log(1 + y/a) − y − ½ y² on [−a, 0], 0 above."""
    a = read_number(a, "a", "(0, 1]")

    def function(v: FloatArray) -> FloatArray:
        return np.where(v < 0, a * np.expm1(np.minimum(v, 0.0)), v)

    def penalty(y: FloatArray) -> FloatArray:
        from scipy.special import xlog1py

        below = np.clip(y, -a, 0.0)
        return _outside(y, y < -a, xlog1py(a + below, below / a) - below - 0.5 * below**2)

    return _smooth("elu", penalty, function, lambda t: np.where(t > 0, 1.0, a * np.exp(np.minimum(t, 0.0))))


def _smooth(
    name: str, penalty: Penalty, sigma: Callable[[FloatArray], FloatArray], slope: Callable[[FloatArray], FloatArray]
) -> Activation:
    """The activation σ = prox_φ with ``slope`` σ', 0 ≤ σ' ≤ 1: prox_{αφ}(v) = σ(t), (1 − α) σ(t) + α t = v.

    For y = σ(t) the optimality condition of σ is t = y + φ'(y); that of the step α is y + α φ'(y) = v.
    """

    def prox(v: FloatArray, alpha: Any) -> FloatArray:
        alpha = np.broadcast_to(np.asarray(alpha, dtype=np.float64), v.shape)
        if (alpha == 1).all():
            return sigma(v)
        from scipy.optimize.elementwise import find_root

        def excess(t: FloatArray, v: FloatArray, alpha: FloatArray) -> FloatArray:
            return (1 - alpha) * sigma(t) + alpha * t - v

        # the excess is 0 within its value at v over its smallest slope, min(1, α); widened against rounding
        radius = 1.01 * np.abs(excess(v, v, alpha)) / np.minimum(1.0, alpha) + 1e-9 * (1 + np.abs(v))
        return sigma(find_root(excess, (v - radius, v + radius), args=(v, alpha)).x)

    def prox_derivative(v: FloatArray, alpha: Any) -> FloatArray:
        at_t = slope((v - (1 - alpha) * prox(v, alpha)) / alpha)
        return np.asarray(at_t / ((1 - alpha) * at_t + alpha))

    return Activation(name, penalty, prox, prox_derivative=prox_derivative)


_CONSTRUCTORS = (
    identity,
    relu,
    shifted_relu,
    soft_threshold,
    hard_threshold,
    leaky_relu,
    clip,
    tanh,
    sigmoid,
    softplus,
    elu,
)

ACTIVATIONS: dict[str, Activation] = {a.name: a for a in (make() for make in _CONSTRUCTORS)}


def get_activation(activation: str | Activation) -> Activation:
    """The activation of that name with its default parameters, or the one given.

    Raises ``ValueError`` for a name that is none, and ``TypeError`` for anything but text or :class:`Activation`.
    """
    if isinstance(activation, Activation):
        return activation
    if not isinstance(activation, str):
        raise TypeError(f"activation: expected a name or a refimpl.Activation, got {type(activation).__name__}")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation: expected one of {', '.join(ACTIVATIONS)}, got {activation!r}")
    return ACTIVATIONS[activation]
