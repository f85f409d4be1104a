"""Penalties ρ: [0, ∞) → ℝ. The attention kernel is ρ', so a penalty is a choice of attention.

The energy of a pair of tokens is ρ(z), z = ½ ‖u_i − u_j‖². Descent of the attention step needs ρ concave and
non-decreasing; if ρ' is completely monotone as well (ρ is a Bernstein function up to a constant), the matrix Γ is
positive semidefinite and steps up to α = 2 descend.
"""

from __future__ import annotations

import dataclasses
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
    formula, parameters : ρ(z) as text that :mod:`refimpl.formula` reads; the symbolic side of the same penalty.
    concave, bernstein : what is known of it; None where nothing is claimed.
    """

    name: str
    value: Function
    derivative: Function
    second_derivative: Function | None = None
    log_derivative: Function | None = None
    formula: str | None = None
    parameters: tuple[tuple[str, float | str], ...] = ()
    concave: bool | None = None
    bernstein: bool | None = None

    def __post_init__(self) -> None:
        for name in ("value", "derivative", "second_derivative", "log_derivative"):
            function = getattr(self, name)
            if not callable(function) and (function is not None or name in ("value", "derivative")):
                raise TypeError(f"{name}: expected a function of an array z, got {type(function).__name__}")

    def __reduce__(self) -> tuple[Callable[..., Rho], tuple[Any, ...]]:
        """Pickled by name or by formula where that is all it is; its functions are closures, which pickle refuses."""
        if PENALTIES.get(self.name) == self:
            return get_rho, (self.name,)
        if self.formula is not None and _from_formula(self.formula, self.parameters) == self:
            return _from_formula, (self.formula, self.parameters)
        return type(self), tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    @functools.cached_property
    def expr(self) -> sympy.Expr:
        """ρ(z) as a SymPy expression in :func:`refimpl.formula.symbol`."""
        from . import formula

        if self.formula is None:
            raise ValueError(f"rho {self.name!r} was given as functions only: it has no formula")
        return formula.parse(self.formula, "z", dict(self.parameters))

    def literal(self, numbers: str = "float") -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
        """(ρ, ρ') made from the formula alone, as functions of one ``"float"``, ``"mpmath"`` or ``"sympy"`` number.

        They are what :mod:`refimpl.definitions` takes, and share nothing with ``value`` and ``derivative``.
        """
        return _literal(self.expr, numbers)


@functools.lru_cache(maxsize=256)
def _literal(expr: sympy.Expr, numbers: str) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    from . import formula

    z = formula.symbol("z")
    return formula.scalar(expr, z, numbers), formula.scalar(formula.derivative(expr, z), z, numbers)


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
        lambda z: -((z + 2) ** -2.0),
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
        lambda z: np.minimum(z, 1e30) / (1 + np.minimum(z, 1e30)),  # the limit 1 at inf
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


def get_rho(rho: Any, **parameters: float | str) -> Rho:
    """The penalty of that name, or the one that a formula in z defines: ``get_rho("log(z + nu)", nu=3)``.

    A formula is read by :mod:`refimpl.formula`, never evaluated. A :class:`Rho` is returned as it is, and another
    object that has ``value`` and ``derivative`` (and may have ``second_derivative`` and ``name``) as one. Raises
    ``ValueError`` where a formula cannot be read, and ``TypeError`` where ``rho`` is none of these.
    """
    if isinstance(rho, Rho):
        return rho
    if isinstance(rho, str):
        return PENALTIES[rho] if rho in PENALTIES and not parameters else _from_formula(rho, tuple(parameters.items()))
    if callable(getattr(rho, "value", None)) and callable(getattr(rho, "derivative", None)):
        name = str(getattr(rho, "name", type(rho).__name__))
        return Rho(name, rho.value, rho.derivative, getattr(rho, "second_derivative", None))
    raise TypeError(f"rho: expected a name, a formula in z or a refimpl.Rho, got {type(rho).__name__}")


@functools.lru_cache(maxsize=256)
def _from_formula(text: str, parameters: tuple[tuple[str, float | str], ...]) -> Rho:
    from . import formula

    try:
        z, expr = formula.symbol("z"), formula.parse(text, "z", dict(parameters))
    except formula.FormulaError as error:
        raise formula.FormulaError(f"rho: {error}") from None
    value, derivative, second = (formula.vectorised(formula.derivative(expr, z, k), z) for k in range(3))
    return Rho(text, value, derivative, second, _log(expr.diff(z)), text, parameters)


def _log(derivative: sympy.Expr) -> Function | None:
    """log ρ' where ρ' = e^(p(z)) up to a positive factor, with p a polynomial; None elsewhere."""
    import sympy

    from . import formula

    z = formula.symbol("z")
    factor, exponential = derivative.as_independent(z)
    if not (isinstance(exponential, sympy.exp) and exponential.exp.is_polynomial(z) and factor.is_positive):
        return None
    return formula.vectorised(sympy.log(factor) + exponential.exp, z)
