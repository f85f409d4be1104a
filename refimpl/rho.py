"""Penalties ρ: [0, ∞) → ℝ. The attention kernel is ρ', so a penalty is a choice of attention.

The energy of a pair of tokens is ρ(z), z = ½ ‖u_i − u_j‖². Descent of the attention step needs ρ concave and
non-decreasing; if ρ' is completely monotone as well (ρ is a Bernstein function up to a constant), the matrix Γ is
positive semidefinite and steps up to α = 2 descend.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .numerics import FloatArray

if TYPE_CHECKING:
    import sympy

Function = Callable[[FloatArray], Any]


@dataclass(frozen=True)
class Rho:
    """A penalty: ρ with its first and second derivative.

    name : how messages refer to it.
    value, derivative, second_derivative : ρ, ρ', ρ'' as functions of a float64 array z ≥ 0, elementwise. A constant
        may return a scalar. At z = inf they give the limit.
    log_derivative : log ρ', for a ρ' that underflows far out: with it, weights stay right where every ρ' of a row does.
    formula : ρ(z) as text that :mod:`refimpl.formula` reads; the symbolic side of the same penalty.
    concave, bernstein : what is known of it; None where nothing is claimed.
    """

    name: str
    value: Function
    derivative: Function
    second_derivative: Function | None = None
    log_derivative: Function | None = None
    formula: str | None = None
    concave: bool | None = None
    bernstein: bool | None = None

    @functools.cached_property
    def expr(self) -> sympy.Expr:
        """ρ(z) as a SymPy expression in :func:`refimpl.formula.symbol`."""
        from . import formula

        if self.formula is None:
            raise ValueError(f"rho {self.name!r} was given as functions only: it has no formula")
        return formula.parse(self.formula)

    def literal(self, numbers: str = "float") -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
        """(ρ, ρ') made from the formula alone, as functions of one ``"float"``, ``"mpmath"`` or ``"sympy"`` number.

        They are what :mod:`refimpl.definitions` takes, and share nothing with ``value`` and ``derivative``.
        """
        return _literal(self.expr, numbers)


@functools.lru_cache(maxsize=256)
def _literal(expr: sympy.Expr, numbers: str) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    from . import formula

    z = formula.symbol("z")
    return formula.scalar(expr, z, numbers), formula.scalar(expr.diff(z), z, numbers)


def _power(z: FloatArray, exponent: float) -> FloatArray:
    return np.asarray((1 + z) ** exponent)


_PENALTIES = (
    # softmax attention; Welsch's function
    Rho(
        "exp",
        lambda z: -np.exp(-z),
        lambda z: np.exp(-z),
        lambda z: -np.exp(-z),
        log_derivative=np.negative,
        formula="-exp(-z)",
        concave=True,
        bernstein=True,
    ),
    # the paper's second example
    Rho(
        "log2",
        lambda z: np.log(z + 2),
        lambda z: 1 / (z + 2),
        lambda z: -1 / (z + 2) ** 2,
        formula="log(z + 2)",
        concave=True,
        bernstein=True,
    ),
    # Cauchy, Student-t
    Rho(
        "log1p",
        np.log1p,
        lambda z: 1 / (1 + z),
        lambda z: -_power(z, -2),
        formula="log(1 + z)",
        concave=True,
        bernstein=True,
    ),
    # Charbonnier
    Rho(
        "sqrt",
        lambda z: np.sqrt(z + 1),
        lambda z: 0.5 * _power(z, -0.5),
        lambda z: -0.25 * _power(z, -1.5),
        formula="sqrt(z + 1)",
        concave=True,
        bernstein=True,
    ),
    Rho(
        "geman_mcclure",
        lambda z: np.minimum(z, 1e300) / (1 + np.minimum(z, 1e300)),
        lambda z: _power(z, -2),
        lambda z: -2 * _power(z, -3),
        formula="z / (1 + z)",
        concave=True,
        bernstein=True,
    ),
    # uniform attention
    Rho("linear", lambda z: z, np.ones_like, np.zeros_like, formula="z", concave=True, bernstein=True),
    # sparse attention
    Rho(
        "epanechnikov",
        lambda z: np.minimum(z, 1) - 0.5 * np.minimum(z, 1) ** 2,
        lambda z: np.maximum(1 - z, 0),
        lambda z: -1.0 * (z < 1),
        formula="min(z, 1) - min(z, 1)**2 / 2",
        concave=True,
        bernstein=False,
    ),
    Rho(
        "truncated",
        lambda z: np.minimum(z, 1),
        lambda z: 1.0 * (z < 1),
        np.zeros_like,
        formula="min(z, 1)",
        concave=True,
        bernstein=False,
    ),
)

PENALTIES: dict[str, Rho] = {rho.name: rho for rho in _PENALTIES}


def get_rho(rho: str | Rho) -> Rho:
    """The penalty of that name, or the one that a formula in z defines: ``get_rho("log(z + 2)")``.

    A formula is read by :mod:`refimpl.formula`, never evaluated. Raises ``ValueError`` where it cannot be read, and
    ``TypeError`` where ``rho`` is neither text nor a :class:`Rho`.
    """
    if isinstance(rho, Rho):
        return rho
    if not isinstance(rho, str):
        raise TypeError(f"rho: expected a name, a formula in z or a refimpl.Rho, got {type(rho).__name__}")
    return PENALTIES[rho] if rho in PENALTIES else _from_formula(rho)


@functools.lru_cache(maxsize=256)
def _from_formula(text: str) -> Rho:
    from . import formula

    z, expr = formula.symbol("z"), formula.parse(text)
    value, derivative, second = (formula.vectorised(expr.diff(z, k), z) for k in range(3))
    return Rho(text, value, derivative, second, formula=text)
