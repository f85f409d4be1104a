"""Formulas, read safely: text → SymPy expression → function of arrays or of single numbers.

The text is never evaluated. A tokenizer and a Pratt parser turn it into a postfix program over a closed list of
functions; the program is bounded before SymPy sees it, and each step is checked as it is built, because SymPy evaluates
exact constants on sight (``9**9**9`` would be computed) and asks questions of constants that it cannot answer in time.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import sympy

T = TypeVar("T")
FloatArray = NDArray[np.float64]

MAX_LENGTH = 1000  # characters
MAX_STEPS = 200  # numbers, names, operators and functions
MAX_NESTING = 12  # brackets, calls, signs and towers of powers inside one another
MAX_EXPONENT = 300  # of a power, of nested powers together, and of exp of a constant
MAX_DIGITS = 40  # of one number as written
MAX_MAGNITUDE = 300  # constants lie within 1e-300 … 1e300
MAX_ARGUMENTS = 8  # of min and max
MAX_COMPONENTS = 12  # of a field
MAX_EVENTS = 1_000_000  # function calls and returns that SymPy may spend on one question: well under a second

_VARIABLES = {"z": {"nonnegative": True}, "x": {"real": True}}
_COMPONENTS = tuple(f"y{a}" for a in range(1, MAX_COMPONENTS + 1))
_CONSTANTS = {"pi": math.pi, "e": math.e}


class FormulaError(ValueError):
    """Not a formula this module reads. The message is one line: the column, the token, what was expected."""


class _Entry(NamedTuple):
    fewest: int  # arguments
    most: int
    number: Callable[..., Any]  # on floats: tried on constants before SymPy is
    build: Callable[..., Any]  # on SymPy expressions; s is the sympy module


# What each name means, in floats and in SymPy. This is the only place that says so.
_FUNCTIONS = {
    "exp": _Entry(1, 1, math.exp, lambda s, u: s.exp(u)),
    "log": _Entry(1, 1, math.log, lambda s, u: s.log(u)),
    "log1p": _Entry(1, 1, math.log1p, lambda s, u: s.log(1 + u)),
    "expm1": _Entry(1, 1, math.expm1, lambda s, u: s.exp(u) - 1),
    "sqrt": _Entry(1, 1, math.sqrt, lambda s, u: s.sqrt(u)),
    "tanh": _Entry(1, 1, math.tanh, lambda s, u: s.tanh(u)),
    "sinh": _Entry(1, 1, math.sinh, lambda s, u: s.sinh(u)),
    "cosh": _Entry(1, 1, math.cosh, lambda s, u: s.cosh(u)),
    "sin": _Entry(1, 1, math.sin, lambda s, u: s.sin(u)),
    "cos": _Entry(1, 1, math.cos, lambda s, u: s.cos(u)),
    "atan": _Entry(1, 1, math.atan, lambda s, u: s.atan(u)),
    "erf": _Entry(1, 1, math.erf, lambda s, u: s.erf(u)),
    "sigmoid": _Entry(1, 1, lambda u: 1 / (1 + math.exp(-u)), lambda s, u: 1 / (1 + s.exp(-u))),
    "softplus": _Entry(1, 1, lambda u: math.log1p(math.exp(u)), lambda s, u: s.log(1 + s.exp(u))),
    "relu": _Entry(1, 1, lambda u: max(u, 0.0), lambda s, u: s.Max(u, 0)),
    # The derivative of SymPy's Abs is unreadable where its argument may be complex; Max(u, −u) is the same function.
    "abs": _Entry(1, 1, abs, lambda s, u: s.Abs(u) if u.is_extended_real else s.Max(u, -u)),
    "min": _Entry(2, MAX_ARGUMENTS, min, lambda s, *u: s.Min(*u)),
    "max": _Entry(2, MAX_ARGUMENTS, max, lambda s, *u: s.Max(*u)),
    "where": _Entry(3, 3, lambda c, a, b: a if c else b, lambda s, c, a, b: s.Piecewise((a, c), (b, True))),
}
_OPERATORS = {
    "+": _Entry(2, 2, operator.add, lambda s, a, b: a + b),
    "-": _Entry(2, 2, operator.sub, lambda s, a, b: a - b),
    "*": _Entry(2, 2, operator.mul, lambda s, a, b: a * b),
    "/": _Entry(2, 2, operator.truediv, lambda s, a, b: a / b),
    "**": _Entry(2, 2, operator.pow, lambda s, a, b: a**b),
    "negate": _Entry(1, 1, operator.neg, lambda s, a: -a),
    "<": _Entry(2, 2, operator.lt, lambda s, a, b: s.Lt(a, b)),
    "<=": _Entry(2, 2, operator.le, lambda s, a, b: s.Le(a, b)),
    ">": _Entry(2, 2, operator.gt, lambda s, a, b: s.Gt(a, b)),
    ">=": _Entry(2, 2, operator.ge, lambda s, a, b: s.Ge(a, b)),
}
_TABLE = _FUNCTIONS | _OPERATORS
_EXPONENTIALS = {"exp", "expm1", "sigmoid", "softplus", "**"}
_BINDING = {"+": 1, "-": 1, "*": 2, "/": 2, "**": 4}
_SIGN_BINDING = 3  # −z**2 is −(z**2), −z*2 is (−z)*2

_NUMBER = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_TOKEN = re.compile(
    rf"[ \t\r\n]*(?:(?P<number>{_NUMBER.pattern})|(?P<name>{_NAME.pattern})"
    r"|(?P<sign>\*\*|<=|>=|==|!=|//|:=|<<|>>|.)|\Z)"
)


@functools.cache
def symbol(variable: str = "z") -> sympy.Symbol:
    """The variable of parsed formulas: ``"z"`` is non-negative (penalties), ``"x"`` is real (activations).

    ``"y1"``, ``"y2"`` and so on are real: the components that a field is a function of.
    """
    import sympy

    if variable in _COMPONENTS:
        return sympy.Symbol(variable, real=True)
    if variable not in _VARIABLES:
        raise ValueError(f"variable: expected one of {', '.join(map(repr, _VARIABLES))}, got {variable!r}")
    return sympy.Symbol(variable, **_VARIABLES[variable])


def parse(text: str, variable: str = "z", parameters: Mapping[str, float | str] | None = None) -> sympy.Expr:
    """The SymPy expression in :func:`symbol` that ``text`` writes, with decimal numbers exact (0.1 is 1/10).

    Numbers, the variable, ``parameters`` (finite numbers or decimal text), ``pi``, ``e``, ``+ - * / ** ^``,
    brackets, the functions of the table above, and ``where(a < b, then, otherwise)``. ``^`` is ``**``; precedence
    is Python's.
    Raises :class:`FormulaError` for any other text, for one beyond the bounds above, and for one with a part that is
    infinite or not real wherever it is evaluated, such as ``log(0)``; ``TypeError`` where ``text`` is not a string.
    """
    if not isinstance(text, str):
        raise TypeError(f"formula: expected text, got {type(text).__name__}")
    if variable not in _VARIABLES:
        raise ValueError(f"variable: expected one of {', '.join(map(repr, _VARIABLES))}, got {variable!r}")
    steps = _Parser(text, (variable,), _read_parameters(parameters or {}, variable)).program()
    z = symbol(variable)  # and SymPy is imported, outside the budget

    def build() -> sympy.Expr:
        expr = _build(text, steps, (variable,))
        expr.diff(z, 2)  # whoever asks for a formula goes on to differentiate it
        return expr

    try:
        return _within_budget(build, 3 * MAX_EVENTS)
    except FormulaError:
        raise
    except (NotImplementedError, RecursionError, ArithmeticError, ValueError, TypeError):
        raise FormulaError(
            f"formula: {_shorten(text)} is too complicated for SymPy to differentiate twice; expected a simpler one"
        ) from None


def partial_operations(
    text: str, variable: str = "z", parameters: Mapping[str, float | str] | None = None
) -> list[sympy.Expr]:
    """The divisions, logarithms and powers of a formula that :func:`parse` reads, each as it is written.

    SymPy cancels as it builds: ``sqrt(z - 3) * sqrt(z - 3)`` becomes z − 3, which is defined where the formula is not.
    Whoever asks where a formula is defined asks these as well.
    """
    steps = _Parser(text, (variable,), _read_parameters(parameters or {}, variable)).program()
    partial: list[Any] = []
    _within_budget(lambda: _build(text, steps, (variable,), partial))
    return [expr for expr in dict.fromkeys(partial) if expr.free_symbols]


class Field(NamedTuple):
    """A map y ↦ T(y): its components in y1, y2, …, the Jacobian J_ab = ∂T_a/∂y_b, and the operations as written."""

    symbols: list[sympy.Symbol]
    components: list[sympy.Expr]
    jacobian: list[list[sympy.Expr]]
    partial: list[sympy.Expr]


def parse_field(texts: Sequence[str]) -> Field:
    """The field that formulas in y1, y2, … write, as many as there are components, each read as :func:`parse` does.

    ``partial`` is what :func:`partial_operations` gives. Raises as :func:`parse` does, and names the component.
    """
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise TypeError(f"formulas: expected a list of texts, one a component, got {type(texts).__name__}")
    if not 1 <= len(texts) <= MAX_COMPONENTS:
        raise FormulaError(f"formulas: expected 1 to {MAX_COMPONENTS} components, got {len(texts)}")
    variables = _COMPONENTS[: len(texts)]
    symbols = [symbol(variable) for variable in variables]
    components, jacobian = [], []
    partial: list[Any] = []
    for a, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise TypeError(f"formulas: expected texts, got {type(text).__name__} as component {a}")

        def build(text: str = text) -> tuple[sympy.Expr, list[sympy.Expr]]:
            expr = _build(text, _Parser(text, variables, {}).program(), variables, partial)
            return expr, [expr.diff(y) for y in symbols]

        try:
            expr, row = _within_budget(build, 3 * MAX_EVENTS)
        except FormulaError as error:
            raise FormulaError(f"component {a}: {error}") from None
        except (NotImplementedError, RecursionError, ArithmeticError, ValueError, TypeError):
            raise FormulaError(
                f"component {a}: {_shorten(text)} is too complicated for SymPy to differentiate; expected a simpler one"
            ) from None
        components.append(expr)
        jacobian.append(row)
    return Field(symbols, components, jacobian, [expr for expr in dict.fromkeys(partial) if expr.free_symbols])


def derivative(expr: sympy.Expr, symbol: sympy.Symbol, order: int = 1) -> sympy.Expr:
    """The derivative in the shortest form that SymPy finds in its budget: the quotient rule's own form cancels."""
    import sympy

    plain = expr.diff(symbol, order)
    forms = [plain]
    if order and not plain.has(sympy.Heaviside, sympy.DiracDelta, sympy.Piecewise, sympy.sign):
        for simplify in (sympy.powsimp, sympy.factor):
            try:
                forms.append(_within_budget(functools.partial(simplify, plain)))
            except (NotImplementedError, ArithmeticError, ValueError, TypeError, AttributeError, RecursionError):
                continue
    return min(forms, key=sympy.count_ops)


def _read_parameters(parameters: Mapping[str, float | str], variable: str) -> dict[str, Fraction]:
    values = {}
    for name, value in parameters.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise FormulaError(f"parameter {name!r:.60}: a name is letters, digits and _, not beginning with a digit")
        if name in {variable, *_CONSTANTS, *_FUNCTIONS}:
            raise FormulaError(f"parameter {name!r}: this name already has a meaning in formulas")
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise TypeError(f"parameter {name!r}: expected a number or decimal text, got {type(value).__name__}")
        if isinstance(value, int):
            text = str(value) if abs(value) < 10**MAX_DIGITS else "an integer too long"
        else:
            text = value.strip() if isinstance(value, str) else repr(float(value))
        sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
        if not _NUMBER.fullmatch(digits):
            raise FormulaError(f"parameter {name!r}: expected a finite decimal number, got {text!r:.60}")
        values[name] = sign * _read_number(digits, f"parameter {name!r}")
    return values


def _read_number(text: str, place: str) -> Fraction:
    mantissa, _, exponent = text.lower().partition("e")
    digits = mantissa.replace(".", "").strip("0")
    power = exponent.lstrip("+-").lstrip("0")
    if len(mantissa) > MAX_MAGNITUDE or len(digits) > MAX_DIGITS or len(power) > 3:
        raise FormulaError(
            f"{place}: the number {_shorten(text)} is too long; expected at most {MAX_DIGITS} digits "
            f"and a size within 1e-{MAX_MAGNITUDE} to 1e{MAX_MAGNITUDE}"
        )
    value = Fraction(text)
    if value and not Fraction(1, 10**MAX_MAGNITUDE) <= value <= 10**MAX_MAGNITUDE:
        raise FormulaError(
            f"{place}: the number {_shorten(text)} is out of range; expected 1e-{MAX_MAGNITUDE} to 1e{MAX_MAGNITUDE}"
        )
    return value


def _shorten(text: str) -> str:
    # ascii: a message must survive any terminal, and show what an invisible character is
    return ascii(text if len(text) <= 40 else text[:37] + "...")


class _Token(NamedTuple):
    kind: str  # number, name, sign, or end
    text: str
    start: int
    end: int


class _Step(NamedTuple):
    """One step of the postfix program: apply ``name`` to the last ``arguments`` values, or push ``value``."""

    name: str
    arguments: int
    start: int  # text[start:end] is the whole subexpression
    end: int
    value: Fraction | None = None


class _Parser:
    def __init__(self, text: str, variables: tuple[str, ...], parameters: Mapping[str, Fraction]) -> None:
        if len(text) > MAX_LENGTH:
            raise FormulaError(f"formula: expected at most {MAX_LENGTH} characters, got {len(text)}")
        self.text, self.variables, self.parameters = text, variables, parameters
        self.steps: list[_Step] = []
        self.nesting = self.end = 0
        self.token = _Token("end", "", 0, 0)
        self.advance()

    def program(self) -> list[_Step]:
        if self.token.kind == "end":
            raise FormulaError(f"column 1: the formula is empty; expected an expression in {', '.join(self.variables)}")
        self.expression()
        if self.token.kind != "end":
            raise self.unexpected("an operator or the end")
        return self.steps

    def advance(self) -> _Token:
        """Read the next token into ``self.token``; return the one before it."""
        previous, self.end = self.token, self.token.end
        match = _TOKEN.match(self.text, self.end)
        if match and match.lastgroup:
            text = "**" if match[match.lastgroup] == "^" else match[match.lastgroup]
            self.token = _Token(match.lastgroup, text, *match.span(match.lastgroup))
        else:
            self.token = _Token("end", "", len(self.text), len(self.text))
        return previous

    def unexpected(self, expected: str) -> FormulaError:
        found = "the end" if self.token.kind == "end" else _shorten(self.token.text)
        product = expected.startswith("an operator") and self.token.kind in ("number", "name")
        hint = "; a product is written with *" if product else ""
        return FormulaError(f"column {self.token.start + 1}: expected {expected}, found {found}{hint}")

    def expect(self, text: str, instead: str | None = None) -> None:
        if self.token.text != text:
            raise self.unexpected(instead or f"{text!r}")
        self.advance()

    def emit(self, name: str, arguments: int, start: int, value: Fraction | None = None) -> None:
        self.steps.append(_Step(name, arguments, start, self.end, value))
        if len(self.steps) > MAX_STEPS:
            raise FormulaError(
                f"column {start + 1}: the formula is too long at {_shorten(self.text[start : self.end])}; expected at "
                f"most {MAX_STEPS} numbers, names and operations"
            )

    def expression(self, binding: int = 0) -> None:
        """A run of operators that bind more tightly than ``binding``."""
        start = self.token.start
        self.operand()
        while (tightness := _BINDING.get(self.token.text, 0)) > binding:
            sign = self.advance().text
            if sign == "**":  # right associative, and its exponent may carry a sign
                self.nested(lambda: self.expression(_SIGN_BINDING - 1))
            else:
                self.expression(tightness)
            self.emit(sign, 2, start)

    def nested(self, read: Callable[[], None]) -> None:
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise FormulaError(
                f"column {self.token.start + 1}: nested too deeply at {_shorten(self.token.text)}; expected at most "
                f"{MAX_NESTING} levels"
            )
        read()
        self.nesting -= 1

    def operand(self) -> None:
        token = self.token
        if token.kind == "number":
            self.advance()
            self.emit("number", 0, token.start, _read_number(token.text, f"column {token.start + 1}"))
        elif token.kind == "name":
            self.name(token)
        elif token.text in ("-", "+"):
            self.advance()
            self.nested(lambda: self.expression(_SIGN_BINDING - 1))
            if token.text == "-":
                self.emit("negate", 1, token.start)
        elif token.text == "(":
            self.advance()
            self.nested(self.expression)
            self.expect(")", "an operator or ')'")
        else:
            raise self.unexpected(f"a number, {', '.join(self.variables)}, a function or '('")

    def name(self, token: _Token) -> None:
        known = [*self.variables, *self.parameters, *_CONSTANTS, *_FUNCTIONS]
        if token.text not in known:
            near = difflib.get_close_matches(token.text[:40], known, 1)
            hint = f"did you mean {near[0]!r}? known are" if near else "expected one of"
            raise FormulaError(
                f"column {token.start + 1}: unknown name {_shorten(token.text)}; {hint} {', '.join(known)}"
            )
        self.advance()
        if token.text in _FUNCTIONS:
            self.expect("(", f"'(' after {token.text}")
            self.nested(lambda: self.call(token))
        else:
            self.emit(token.text, 0, token.start, self.parameters.get(token.text))

    def call(self, token: _Token) -> None:
        entry, count = _FUNCTIONS[token.text], 1
        takes = f"{token.text} takes {entry.fewest}" + (f" to {entry.most}" if entry.most > entry.fewest else "")
        (self.condition if token.text == "where" else self.expression)()
        while self.token.text == "," and count < entry.most:
            self.advance()
            self.expression()
            count += 1
        if count < entry.fewest:
            raise self.unexpected(f"an operator or ',' ({takes})")
        self.expect(")", f"an operator or ')' ({takes})")
        self.emit(token.text, count, token.start)

    def condition(self) -> None:
        start = self.token.start
        self.expression()
        comparison = self.token.text
        if comparison not in ("<", "<=", ">", ">="):
            raise self.unexpected("an operator or one of < <= > >= (where takes a comparison first)")
        self.advance()
        self.expression()
        self.emit(comparison, 2, start)


def _build(text: str, steps: list[_Step], variables: tuple[str, ...], partial: list[Any] | None = None) -> sympy.Expr:
    """Run the postfix program in SymPy. A constant is tried in floats before SymPy may evaluate it.

    ``partial`` receives the operations that are not defined everywhere, as they are written.
    """
    import sympy

    leaves = {"pi": sympy.pi, "e": sympy.E} | {variable: symbol(variable) for variable in variables}
    stack: list[tuple[Any, float | None]] = []  # an expression, and its value where it is constant
    seen: set[Any] = set()
    for step in steps:
        if not step.arguments:
            expr = leaves[step.name] if step.value is None else sympy.Rational(*step.value.as_integer_ratio())
            stack.append((expr, None if step.name in variables else float(expr)))
            continue
        entry, operands = _TABLE[step.name], stack[-step.arguments :]
        del stack[-step.arguments :]
        args, values = zip(*operands, strict=True)
        try:
            value = None if None in values else entry.number(*values)
            _check_value(value)
            if step.name in _EXPONENTIALS:
                _check_exponent(step.name, args, values[-1])
            expr = entry.build(sympy, *args)
            if partial is not None and value is None:
                if step.name == "/":
                    partial.append(sympy.Pow(args[1], -1))
                elif step.name in ("log", "log1p", "sqrt", "**"):
                    partial.append(expr)
            stack.append((expr, _check_built(expr, value, seen)))
        except (ArithmeticError, ValueError, TypeError) as error:
            too_large = f"too large; expected constants up to 1e{MAX_MAGNITUDE}"
            why = too_large if isinstance(error, OverflowError) else "not a finite real number"
            why = str(error) if isinstance(error, _Refused) else why
            place = _shorten(" ".join(text[step.start : step.end].split()))
            raise FormulaError(f"column {step.start + 1}: {place} is {why}") from None
    return stack[0][0]


class _Refused(ValueError):
    """Why a subexpression is refused, to follow "… is"."""


def _check_value(value: Any) -> None:
    if isinstance(value, complex) or value != value:
        raise _Refused("not a real number")
    if value is not None and abs(value) > 10.0**MAX_MAGNITUDE:
        raise _Refused(f"too large; expected constants up to 1e{MAX_MAGNITUDE}")


def _check_exponent(name: str, args: tuple[Any, ...], value: float | None) -> None:
    """Refuse a power that SymPy would multiply out into astronomically many digits."""
    from sympy import Rational, log

    exponent = args[-1]
    bound = f"expected exponents up to {MAX_EXPONENT}"
    if value is not None and abs(value) > MAX_EXPONENT:
        raise _Refused(f"a power beyond the limit; {bound}")
    # exp(k log a) becomes a**k, wherever in the exponent it stands
    if exponent.has(log) and any(abs(k) > MAX_EXPONENT for k in exponent.atoms(Rational)):
        raise _Refused(f"a power of a logarithm beyond the limit; {bound}")
    if name == "**" and value is not None and not exponent.is_Rational and not args[0].is_positive:
        raise _Refused("an irrational power of what may be 0; expected the exponent as a decimal number")
    if name == "**" and value is not None:
        if _degree(args[0]) * abs(value) > MAX_EXPONENT:
            raise _Refused(f"a nested power beyond the limit; {bound} in total")
        # a root looks for factors of the number
        if value != int(value) and any(max(k.p.bit_length(), k.q.bit_length()) > 200 for k in args[0].atoms(Rational)):
            raise _Refused("a root of a number with too many digits")


def _degree(expr: Any) -> float:
    """The largest total power in ``expr``, with powers of powers multiplied out."""
    if expr.is_Pow and expr.exp.is_number:
        return _degree(expr.base) * abs(float(expr.exp))
    degrees = [_degree(arg) for arg in expr.args]
    return sum(degrees) if expr.is_Mul else max(degrees, default=1.0 if expr.is_Symbol else 0.0)


def _check_built(expr: Any, value: Any, seen: set[Any]) -> Any:
    """Refuse what SymPy found to be infinite or not real; return the float value where ``expr`` is constant.

    ``seen`` holds the nodes already passed, so that a long sum is not walked anew for each of its terms.
    """
    import sympy

    nodes = [expr]
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        nodes.extend(node.args)
        if node in (sympy.nan, sympy.zoo, sympy.oo, -sympy.oo):
            raise _Refused("not a finite number")
        if node is sympy.I:
            raise _Refused("not a real number")
        if node.is_Rational and (abs(node) > 10**MAX_MAGNITUDE or max(node.p.bit_length(), node.q.bit_length()) > 2000):
            raise _Refused(f"too large or too precise; expected constants up to 1e{MAX_MAGNITUDE}")
    if expr.is_Rational:
        return float(expr)
    if value is None and not expr.free_symbols and not expr.is_Boolean:  # such as exp(z - z + 1)
        value = scalar(expr, symbol(), "float")(1.0)
        _check_value(value)
    return value


class _TooLong(BaseException):
    """Not an Exception, so that no handler inside SymPy swallows it."""


def _within_budget(question: Callable[[], T], most: int = MAX_EVENTS) -> T:
    """``question()``, or ``NotImplementedError`` after ``most`` calls: one count on any machine and thread."""
    if sys.getprofile() is not None:  # somebody measures this process; do not disturb them
        return question()
    events = 0

    def count(frame: FrameType, *_: object) -> None:
        nonlocal events
        events += 1
        # not into a generator: it may be closing, where an exception is lost and the count with it
        if events > most and not frame.f_code.co_flags & inspect.CO_GENERATOR:
            raise _TooLong

    sys.setprofile(count)
    try:
        return question()
    except _TooLong:
        raise NotImplementedError("SymPy found no answer in time") from None
    finally:
        sys.setprofile(None)


def vectorised(expr: sympy.Expr, symbol: sympy.Symbol) -> Callable[[FloatArray], FloatArray]:
    """``expr`` as an elementwise function of a float64 array; the result is always a new float64 array of that shape.

    It never warns. Where the argument is infinite, or so large that a step over- or underflows and leaves nan, the
    result is the limit of ``expr`` at that infinity, if SymPy finds a real one. The derivative of ``Max`` or ``Min``
    at a kink is the right derivative, that of ``Abs`` is 0. A DiracDelta counts as 0.
    """
    import sympy
    from sympy.printing.numpy import SciPyPrinter

    class Printer(SciPyPrinter):  # type: ignore[misc]
        def _print_Integer(self, expr: Any) -> str:
            return str(expr) if abs(expr) < 2**53 else _float_text(expr)  # NumPy has no larger integers

        def _print_Rational(self, expr: Any) -> str:
            return _float_text(expr)

        def _print_Piecewise(self, expr: Any) -> str:
            text = "nan"
            for value, condition in reversed(expr.args):
                text = f"where({self._print(condition)}, {self._print(value)}, {text})"
            return text

    def step(u: Any, tie: Any) -> Any:
        return np.where(u > 0, 1.0, np.where(u < 0, 0.0, tie))

    names = {"step": step, "where": np.where, "logaddexp": np.logaddexp}
    printer = Printer({"fully_qualified_modules": False, "inline": True, "user_functions": {"step": "step"}})
    t = sympy.Dummy("t", positive=True)  # SymPy finds more limits of positive symbols
    tree = _accurate(_without_heaviside(expr, symbol))
    function = sympy.lambdify(symbol, tree, modules=[names, "scipy", "numpy"], printer=printer, cse=True)

    def flows_over(u: float) -> bool:
        try:
            with np.errstate(all="ignore", over="raise", under="raise"):
                function(np.array(u))
        except FloatingPointError:
            return True
        return False

    @functools.cache
    def limit(sign: float) -> float:
        if sign < 0 and symbol.is_nonnegative:
            return math.nan
        far = sign * 1e8  # nan here without any overflow: not real there
        if math.isnan(evaluate(np.array(far))) and not flows_over(far):
            return math.nan
        try:
            value = _within_budget(lambda: _limit(expr.subs(symbol, int(sign) * t), t))
            return float(value) if value.is_extended_real else math.nan
        except (NotImplementedError, ArithmeticError, ValueError, TypeError, AttributeError, RecursionError):
            return math.nan

    def evaluate(u: FloatArray) -> FloatArray:
        with np.errstate(all="ignore"):
            result = function(u)
            if np.iscomplexobj(result):  # the derivative of (-1)**z
                result = np.where(np.imag(result) == 0, np.real(result), np.nan)
            return np.array(np.broadcast_to(result, u.shape), dtype=np.float64)

    def call(u: FloatArray) -> FloatArray:
        u = np.asarray(u, dtype=np.float64)
        result = evaluate(u)
        lost = np.isnan(result) & ~np.isnan(u)
        if lost.any():
            points, where = np.unique(u[lost], return_inverse=True)
            found = [limit(math.copysign(1, v)) if math.isinf(v) or flows_over(v) else math.nan for v in points]
            result[lost] = np.array(found)[where]
        return result

    return call


def _float_text(number: Any) -> str:
    try:
        return f"({int(number.p) / int(number.q)!r})"
    except OverflowError:
        return "inf" if number > 0 else "(-inf)"


def _without_heaviside(expr: Any, symbol: Any, depth: int = 2) -> Any:
    """``expr`` with each Heaviside(u) as step(u, tie): 0, 1 or, where u = 0, the tie.

    The tie is Heaviside(u'), where u is going: so the derivative of a Max or Min at a kink is its right derivative, the
    slope of one of its arguments, and never a sum over those that meet there.
    """
    import sympy

    expr = expr.replace(sympy.DiracDelta, lambda *_: sympy.Integer(0))
    rule = {}
    for node in expr.atoms(sympy.Heaviside):
        u, tie = node.args[0], sympy.Rational(1, 2)
        if depth:
            tie = _without_heaviside(sympy.Heaviside(u.diff(symbol)), symbol, depth - 1)
        rule[node] = sympy.Function("step")(_without_heaviside(u, symbol, depth), tie)
    return expr.xreplace(rule)


def _accurate(expr: Any) -> Any:
    """``expr`` with log(c + k exp u), log(1 + u) and k exp(u) − k as the functions that keep their digits."""
    from sympy import Add, exp, log
    from sympy.codegen.cfunctions import expm1, log1p
    from sympy.codegen.numpy_nodes import logaddexp

    def minus_one(*terms: Any) -> Any:
        total = Add(*terms)
        constant, rest = total.as_coeff_Add()
        for term in Add.make_args(rest) if constant else ():
            k, power = term.as_coeff_Mul()
            if isinstance(power, exp) and k == -constant:
                return Add(*(t for t in rest.args if t != term) if rest.is_Add else (), k * expm1(power.exp))
        return total

    def one_plus(u: Any) -> Any:
        constant, rest = u.as_coeff_Add()
        k, power = rest.as_coeff_Mul()
        if isinstance(power, exp) and constant.is_positive and k.is_positive:
            return logaddexp(log(constant), log(k) + power.exp)
        return log1p(rest) if constant == 1 and rest.free_symbols else log(u)

    return expr.replace(log, one_plus).replace(Add, minus_one)


def _limit(expr: Any, t: Any) -> Any:
    """The limit as t → ∞. A quotient of polynomials in t and exp(t) is the form that SymPy is best at."""
    import sympy

    settled = _eventually(expr, t)
    # exp(10**9 t) would be a polynomial in exp(t) of that degree
    if all(abs(number) <= MAX_EXPONENT for number in settled.atoms(sympy.Rational)):
        try:
            return sympy.limit(sympy.factor(settled.rewrite(sympy.exp)), t, sympy.oo)
        except (NotImplementedError, ValueError, TypeError, sympy.PolynomialError):
            pass
    return sympy.limit(settled, t, sympy.oo)


def _eventually(expr: Any, t: Any) -> Any:
    """``expr`` for all large t: each Max, Min, Heaviside and Piecewise settled, as SymPy's limits do not know them."""
    import sympy

    def positive(u: Any) -> bool:
        value = sympy.limit(u, t, sympy.oo)
        if not (value.is_extended_positive or value.is_extended_negative):
            raise NotImplementedError
        return bool(value.is_extended_positive)

    def settle(node: Any) -> Any:
        if isinstance(node, sympy.Heaviside):
            return sympy.Integer(positive(node.args[0]))
        if isinstance(node, sympy.Piecewise):
            return next(value for value, condition in node.args if holds(condition))
        want = isinstance(node, sympy.Max)
        return functools.reduce(lambda a, b: a if positive(a - b) is want else b, node.args)

    def holds(condition: Any) -> bool:
        if condition in (sympy.true, sympy.false):
            return bool(condition)
        if not isinstance(condition, sympy.core.relational._Inequality):
            raise NotImplementedError
        return positive(condition.gts - condition.lts)

    kinks = (sympy.Max, sympy.Min, sympy.Heaviside, sympy.Piecewise)
    return expr.replace(sympy.DiracDelta, lambda *_: sympy.Integer(0)).replace(lambda e: isinstance(e, kinks), settle)


def scalar(expr: sympy.Expr, symbol: sympy.Symbol, numbers: str = "float") -> Callable[[Any], Any]:
    """``expr`` as a function of one number: ``"float"``, ``"mpmath"`` (at its working precision) or ``"sympy"``.

    With ``"sympy"`` it substitutes any SymPy expression. Kinks, limits and overflow of floats are as in
    :func:`vectorised`.
    """
    import mpmath
    import sympy

    def step(u: Any, tie: Any) -> Any:
        return 1 if u > 0 else 0 if u < 0 else tie

    if numbers == "sympy":
        return lambda u: expr.subs(symbol, u)
    if numbers == "mpmath":
        tree = _without_heaviside(expr, symbol)
        function = sympy.lambdify(symbol, tree, modules=[{"step": step}, "mpmath"])
        return lambda u: mpmath.mpmathify(function(mpmath.mpf(u)))
    if numbers != "float":
        raise ValueError(f"numbers: expected 'float', 'mpmath' or 'sympy', got {numbers!r}")
    array = functools.cache(lambda: vectorised(expr, symbol))
    plain = sympy.lambdify(symbol, _without_heaviside(expr, symbol), modules=[{"step": step}, "math"])

    def call(u: float) -> float:
        try:
            value = plain(float(u))
            if value == value and not isinstance(value, complex):
                return float(value)
        except (ArithmeticError, ValueError, TypeError):  # TypeError: a comparison of complex numbers
            pass  # overflow on the way, or a point outside the domain: the array function knows both
        return float(array()(np.array(float(u))))

    return call
