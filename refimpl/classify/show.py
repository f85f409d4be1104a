"""Text of formulas, points and values in verdicts."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import mpmath
import sympy
from sympy.printing.str import StrPrinter


class _Printer(StrPrinter):  # type: ignore[misc]
    """In the notation that :mod:`refimpl.formula` reads."""

    def _print_Max(self, expr: Any) -> str:
        return f"max({self.stringify(expr.args, ', ')})"

    def _print_Min(self, expr: Any) -> str:
        return f"min({self.stringify(expr.args, ', ')})"

    def _print_Abs(self, expr: Any) -> str:
        return f"abs({self._print(expr.args[0])})"

    def _print_Heaviside(self, expr: Any) -> str:
        return f"where({self._print(expr.args[0])} > 0, 1, 0)"

    def _print_Exp1(self, expr: Any) -> str:
        return "e"

    def _print_Piecewise(self, expr: Any) -> str:
        *cases, (last, _) = expr.args
        text: str = self._print(last)
        for value, condition in reversed(cases):
            text = f"where({self._print(condition)}, {self._print(value)}, {text})"
        return text


def formula(expr: sympy.Expr) -> str:
    return str(_Printer({"order": None}).doprint(expr))


def point(x: Fraction) -> str:
    if x.denominator == 1:
        return str(x.numerator) if abs(x) < 10**6 else _shortest(x)
    return f"{x.numerator}/{x.denominator}" if x.denominator < 100 else _shortest(x)


def _shortest(x: Fraction) -> str:
    decimal = f"{float(x):.6g}"
    return decimal if Fraction(decimal) == x else str(x)


def value(enclosure: Any, digits: int = 4) -> str:
    with mpmath.workdps(60):
        middle = sum(map(mpmath.mpf, enclosure._mpi_)) / 2
    return str(mpmath.nstr(middle, digits)).removesuffix(".0")
