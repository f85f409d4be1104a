"""The formula reader: what it means, what it refuses and where, and how accurately it evaluates."""

import math
import subprocess
import sys

import mpmath
import numpy as np
import pytest
import sympy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from refimpl import formula
from refimpl.formula import FormulaError, parse, scalar, symbol, vectorised

z, x = symbol("z"), symbol("x")
R = sympy.Rational


def values(text, points, variable="z", order=0):
    expr = parse(text, variable).diff(symbol(variable), order)
    return vectorised(expr, symbol(variable))(np.array(points, dtype=float))


# Python's own values, written out: the precedence is Python's.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2*3", 7),
        ("(1 + 2)*3", 9),
        ("7 - 2 - 1", 4),
        ("12/3/2", 2),
        ("12/3*2", 8),
        ("2**3**2", 512),
        ("2^3^2", 512),
        ("-2**2", -4),
        ("(-2)**2", 4),
        ("2**-1", R(1, 2)),
        ("2**-2**2", R(1, 16)),
        ("-2*-3", 6),
        ("2 - -3", 5),
        ("- -3", 3),
        ("+-+3", -3),
        ("2*3**2", 18),
        ("-3*2", -6),
        ("1 - 2*3 + 4/2", -3),
        ("0.1", R(1, 10)),
        ("5.", 5),
        (".5e-3", R(1, 2000)),
        ("1E+3", 1000),
        ("0e999", 0),
        ("000123", 123),
        ("\t1 \n+ 1 ", 2),
        ("min(3, 1, 2)", 1),
        ("max(3, 1, 2)", 3),
        ("where(1 < 2, 3, 4)", 3),
        ("where(1 >= 2, 3, 4)", 4),
        ("abs(-2/3)", R(2, 3)),
        ("relu(-1)", 0),
        ("sqrt(9/4)", R(3, 2)),
        ("log(e)", 1),
        ("2*cos(pi)", -2),
    ],
)
def test_exact_value(text, expected):
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("exp(x)", sympy.exp(x)),
        ("log(x)", sympy.log(x)),
        ("log1p(x)", sympy.log(1 + x)),
        ("expm1(x)", sympy.exp(x) - 1),
        ("sqrt(x)", sympy.sqrt(x)),
        ("tanh(x)", sympy.tanh(x)),
        ("sinh(x)", sympy.sinh(x)),
        ("cosh(x)", sympy.cosh(x)),
        ("sin(x)", sympy.sin(x)),
        ("cos(x)", sympy.cos(x)),
        ("atan(x)", sympy.atan(x)),
        ("erf(x)", sympy.erf(x)),
        ("sigmoid(x)", 1 / (1 + sympy.exp(-x))),
        ("softplus(x)", sympy.log(1 + sympy.exp(x))),
        ("relu(x)", sympy.Max(x, 0)),
        ("abs(x)", sympy.Abs(x)),
        ("min(x, 1)", sympy.Min(x, 1)),
        ("max(x, 1, 2*x)", sympy.Max(x, 1, 2 * x)),
        ("where(x <= 1, x, 1)", sympy.Piecewise((x, x <= 1), (1, True))),
        ("-x**2", -(x**2)),
        ("x^-1/2", 1 / (2 * x)),
    ],
)
def test_meaning_in_sympy(text, expected):
    assert parse(text, "x") == expected


def test_every_function_has_the_same_meaning_in_floats_and_in_sympy():
    for name, entry in formula._FUNCTIONS.items():
        if name != "where":
            args = [0.7, 0.2, 0.9][: entry.fewest]
            built = entry.build(sympy, *[sympy.Float(a, 30) for a in args])
            assert float(built) == pytest.approx(entry.number(*args), rel=1e-14), name


def test_symbols_are_the_callers_symbols():
    assert symbol("z") is symbol("z") == sympy.Symbol("z", nonnegative=True)
    assert symbol("x") == sympy.Symbol("x", real=True)
    assert parse("z").free_symbols == {z}
    with pytest.raises(ValueError, match="expected one of 'z', 'x', got 'y'"):
        symbol("y")
    with pytest.raises(ValueError, match="expected one of 'z', 'x', got 'y'"):
        parse("1", "y")


@pytest.mark.parametrize("text", [None, 1, b"z", ["z"], z])
def test_only_text_is_read(text):
    with pytest.raises(TypeError, match="formula: expected text, got"):
        parse(text)


REFUSED = [  # text, the place, and a word of the reason
    ("", "column 1", "empty"),
    ("  \n", "column 1", "empty"),
    ("z +", "column 4", "found the end"),
    ("(z", "column 3", r"'\)', found the end"),
    ("z)", "column 2", r"found '\)'"),
    ("()", "column 2", r"expected a number, z, a function or '\('"),
    ("2z", "column 2", "found 'z'; a product is written with"),
    ("2 z", "column 3", "found 'z'; a product is written with"),
    ("z(2)", "column 2", r"found '\('"),
    ("z 2", "column 3", "found '2'"),
    ("x", "column 1", "unknown name 'x'; .*z, pi, e, exp"),
    ("1 + lgo(z)", "column 5", "'lgo'; did you mean 'log'"),
    ("exp", "column 4", r"expected '\(' after exp"),
    ("exp()", "column 5", r"found '\)'"),
    ("exp(z, 1)", "column 6", "exp takes 1"),
    ("min(z)", "column 6", "min takes 2 to 8"),
    ("max(" + "z," * 8 + "z)", "column 20", "max takes 2 to 8"),
    ("where(z, 1, 2)", "column 8", "< <= > >="),
    ("where(z < 1, 2)", "column 15", "where takes 3"),
    ("where(1 < z < 3, z, 3)", "column 13", "found '<'"),
    ("where(z == 1, z, 3)", "column 9", "found '=='"),
    ("z < 1", "column 3", "found '<'"),
    ("z // 2", "column 3", "found '//'"),
    ("z % 2", "column 3", "found '%'"),
    ("z.__class__", "column 2", "found '.'"),
    ("z[0]", "column 2", r"found '\['"),
    ("__import__('os').getpid()", "column 1", "unknown name '__import__'"),
    ("factorial(10**7)", "column 1", "unknown name 'factorial'"),
    ("lambda: z", "column 1", "unknown name 'lambda'"),
    ("f'{z}'", "column 1", "unknown name 'f'"),
    ("'z'", "column 1", "found"),
    ("z if 1 else 2", "column 3", "found 'if'"),
    ("(z := 3)", "column 4", "found ':='"),
    ("1_000", "column 2", "found '_000'"),
    ("0x10", "column 2", "found 'x10'"),
    ("1j", "column 2", "found 'j'"),
    ("1..2", "column 3", "found '.2'"),
    ("z \u2212 1", "column 3", r"\\u2212"),
    ("\u0437", "column 1", r"\\u0437"),
    ("z + \u00b2", "column 5", r"\\xb2"),
    ("z + \u0661", "column 5", r"\\u0661"),
    ("z\x00", "column 2", r"\\x00"),
    ("nan", "column 1", "unknown name"),
    ("z + inf", "column 5", "unknown name"),
    ("1 + 1e999999999", "column 5", "too long"),
    ("1e301", "column 1", "out of range"),
    ("1e-301", "column 1", "out of range"),
    ("9" * 41, "column 1", "too long"),
    ("9**9**9", "column 1", "too large"),
    ("2**1000000", "column 1", "too large"),
    ("10**400", "column 1", "too large"),
    ("2**-1000000", "column 1", "beyond the limit"),
    ("1 + z**(10**9)", "column 5", "beyond the limit"),
    ("(1+z)**100000", "column 1", "beyond the limit"),
    ("((z**50)**50)**50", "column 2", "nested power"),
    ("2**(z/z*10**9)", "column 1", "too large"),
    ("(1e40*z)**300", "column 1", "too large"),
    ("exp(9999999999)", "column 1", "too large"),
    ("exp(-9999999999)", "column 1", "beyond the limit"),
    ("exp(exp(exp(100)))", "column 5", "too large"),
    ("exp(z + 1e9*log(2))", "column 1", "logarithm"),
    ("2**((1e9*log(3) + z)/log(2))", "column 1", "logarithm"),
    ("1 + log(0)", "column 5", r"'log\(0\)' is not a finite"),
    ("1/0", "column 1", "'1/0' is not a finite"),
    ("z + sqrt(-1)", "column 5", r"'sqrt\(-1\)' is not a finite real"),
    ("(-8)**(1/3)", "column 1", "not a real number"),
    ("log(z - z)", "column 1", "not a finite"),
    ("1/(z - z)", "column 1", "not a finite"),
    ("sqrt(-z)", "column 1", "not a real number"),
    ("-" * 20 + "z", "column 14", "nested too deeply"),
    ("(" * 20 + "z" + ")" * 20, "column 14", "nested too deeply"),
    ("z**" * 20 + "z", "column 40", "nested too deeply"),
    ("+".join(["z"] * 300), "column 1", "at most 200"),
    ("z" * 1000, "column 1", "unknown name"),
    ("z" * 1001, "formula", "at most 1000 characters, got 1001"),
]


@pytest.mark.parametrize(("text", "place", "reason"), REFUSED, ids=[ascii(text[:30]) for text, *_ in REFUSED])
def test_refused_with_one_line_that_says_where_and_why(text, place, reason):
    with pytest.raises(FormulaError, match=rf"\A{place}: .*{reason}") as refusal:
        parse(text)
    message = str(refusal.value)
    assert "\n" not in message
    assert len(message) < 300
    assert message.isascii()


def test_parameters_are_exact():
    assert parse("a*z + b - c", parameters={"a": 0.1, "b": "-2.5e-1", "c": 3}) == R(1, 10) * z + R(-1, 4) - 3
    assert parse("number + negate", parameters={"number": np.float64(0.1), "negate": 1}) == R(11, 10)


@pytest.mark.parametrize(
    ("parameters", "error", "reason"),
    [
        ({"z": 1}, FormulaError, "already has a meaning"),
        ({"exp": 1}, FormulaError, "already has a meaning"),
        ({"pi": 3}, FormulaError, "already has a meaning"),
        ({"a b": 1}, FormulaError, "a name is letters"),
        ({"é": 1}, FormulaError, "a name is letters"),
        ({"a": math.nan}, FormulaError, "expected a finite decimal number, got 'nan'"),
        ({"a": -math.inf}, FormulaError, "expected a finite decimal number"),
        ({"a": "1/3"}, FormulaError, "expected a finite decimal number"),
        ({"a": "__import__('os')"}, FormulaError, "expected a finite decimal number"),
        ({"a": "1e999999999"}, FormulaError, "too long"),
        ({"a": 10**5000}, FormulaError, "an integer too long"),
        ({"a": True}, TypeError, "got bool"),
        ({"a": [1]}, TypeError, "got list"),
    ],
)
def test_parameters_refused(parameters, error, reason):
    with pytest.raises(error, match=reason):
        parse("z", parameters=parameters)


HOSTILE = [
    "(" * 10_000 + "z" + ")" * 10_000,
    "z" * 1_000_000,
    "-" * 10_000 + "z",
    "exp(exp(exp(exp(z))))",
    "exp(z)*exp(1e10 - z)",
    "(10**50)**(1/3)",
    "(1e40 - 1)**(1/7)",
    "max(exp(300), exp(exp(exp(1.7))), z)",
    "max(log(6) - log(2) - log(3), z)",
    "sin(1e300*z)",
    "1/(z+" * 12 + "z" + ")" * 12,
    "where(sin(" * 6 + "z" + ")<z/2,z+1,z**2)" * 6,
    "max(" + ",".join(f"sin({k}*z)+z**{k}" for k in range(2, 10)) + ")",
    "*".join(f"(z+{k})" for k in range(1, 50)),
    "abs(" * 6 + "log(z-1)-2" + ")-1" * 6,
    "cosh(sin(" * 6 + "z" + "))" * 6,
    "z**z**z**z**z",
    "(-1)**z",
    "+".join(f"sin({k}*z)" for k in range(40)),
]


def test_hostile_texts_end():
    # In a child, so that a hang is a failure and not a stuck test run; the limit is generous.
    program = (
        "import sys, numpy as np\n"
        "from refimpl import formula as f\n"
        "assert 'sympy' not in sys.modules\n"
        "for text in eval(sys.stdin.read()):\n"
        "    try: expr = f.parse(text)\n"
        "    except f.FormulaError: continue\n"
        "    for k in range(3):\n"
        "        f.vectorised(expr.diff(f.symbol('z'), k), f.symbol('z'))(np.array([0, 0.5, 10, 1e200, np.inf]))\n"
        "        f.scalar(expr.diff(f.symbol('z'), k), f.symbol('z'))(10.0)\n"
    )
    command = [sys.executable, "-W", "error", "-c", program]
    result = subprocess.run(command, input=repr(HOSTILE), text=True, capture_output=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr


ALPHABET = st.sampled_from([*"z0123456789.+-*/^(), <>=", "**", "1e", *(f"{n}(" for n in formula._FUNCTIONS), "pi", "e"])


@settings(deadline=None, max_examples=300)
@given(st.one_of(st.text(max_size=40), st.lists(ALPHABET, max_size=20).map("".join)))
@example("min(z,1)-min(z,1)^2/2")
def test_any_text_is_a_formula_of_the_variable_or_a_formula_error(text):
    try:
        expr = parse(text)
    except FormulaError:
        return  # any other exception fails the test
    assert expr.free_symbols <= {z}
    assert vectorised(expr, z)(np.array([0.0, 1.0, np.inf])).shape == (3,)


@pytest.mark.parametrize(
    ("text", "at_infinity"),
    [
        ("exp(-z)", 0),
        ("z/(1 + z)", 1),
        ("z**2/(1 + z**2)", 1),
        ("exp(z)/(1 + exp(z))", 1),
        ("sqrt(z + 1) - sqrt(z)", 0),
        ("min(z, 1)*z/(1 + z)", 1),
        ("max(2 - z, z/2)/z", 0.5),
        ("where(z < 1, z, z/(z + 2))", 1),
        ("z*tanh(z)/(1 + z)", 1),
        ("log(z)", math.inf),
        ("log(5 - z)", math.nan),
        ("sin(z)", math.nan),
        ("-(1/3)", -1 / 3),
    ],
)
def test_limit_at_infinity(text, at_infinity):
    np.testing.assert_allclose(values(text, [np.inf, 1e200])[0], at_infinity, rtol=1e-15)
    np.testing.assert_allclose(scalar(parse(text), z)(math.inf), at_infinity, rtol=1e-15)
    if math.isfinite(at_infinity):
        np.testing.assert_allclose(values(text, [1e200]), at_infinity, rtol=1e-15, atol=1e-99)


def test_limits_at_both_ends_and_where_steps_overflow():
    ends = [-np.inf, -1e200, -1000, 1000, 1e200, np.inf]
    np.testing.assert_array_equal(values("x*sigmoid(x)", ends, "x"), [0, 0, 0, 1000, 1e200, np.inf])
    np.testing.assert_array_equal(values("x*sigmoid(x)", ends, "x", 1), [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(values("softplus(x)", ends, "x"), [0, 0, 0, 1000, 1e200, np.inf])
    np.testing.assert_array_equal(values("softplus(x)", ends, "x", 1), [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(values("x*tanh(x)", ends, "x", 1), [-1, -1, -1, 1, 1, 1])
    # outside its domain a function stays nan, though it has a limit
    np.testing.assert_array_equal(values("sqrt((z - 10)*(z - 100))/z", [50, np.inf]), [np.nan, 1])


def test_double_exponential_overflows_to_infinity():
    assert values("exp(exp(exp(exp(z))))", 10.0) == math.inf
    assert scalar(parse("exp(exp(exp(exp(z))))"), z)(10.0) == math.inf


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize(
    "text", ["log(1 + z)", "log1p(z/3)", "1 - exp(-z)", "expm1(z)*2", "log(z + 2)", "softplus(z)", "erf(z)"]
)
def test_accuracy(text, order):
    if (text, order) == ("softplus(z)", 2):
        return  # SymPy's form of it is a difference of two near-equal terms: absolutely accurate only
    expr, points = parse(text).diff(z, order), [1e-300, 1e-20, 1e-8, 0.1, 1.0, 7.0, 300.0]
    with mpmath.workdps(400):
        exact = [float(scalar(expr, z, "mpmath")(u)) for u in points]
    np.testing.assert_allclose(vectorised(expr, z)(np.array(points)), exact, rtol=4e-15, atol=1e-300)


def test_kinks_take_the_right_derivative():
    np.testing.assert_array_equal(values("min(z, 1)", [0, 1, 2], order=1), [1, 0, 0])
    np.testing.assert_array_equal(values("min(1, z)", [0, 1, 2], order=2), [0, 0, 0])
    np.testing.assert_array_equal(values("relu(x)", [-1, 0, 1], "x", 1), [0, 1, 1])
    np.testing.assert_array_equal(values("min(2*z, z + 1)", [0, 1, 2], order=1), [2, 1, 1])
    np.testing.assert_array_equal(values("abs(x)", [-1, 0, 1], "x", 1), [-1, 0, 1])
    # three slopes meet: the result is one of them, not a sum
    np.testing.assert_array_equal(values("min(4*z - 3, 3*z - 2, 2*z - 1)", [0, 1, 2], order=1), [4, 2, 2])
    assert scalar(parse("min(4*z - 3, 3*z - 2, 2*z - 1)").diff(z), z)(1.0) == 2
    np.testing.assert_array_equal(values("min(z, 1) - min(z, 1)**2/2", [0, 0.5, 1, 2], order=1), [1, 0.5, 0, 0])


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
@pytest.mark.parametrize("text", ["1/3", "z", "z/(1 + z)", "where(z < 1, 2, 3)"])
def test_result_is_a_new_float64_array_of_the_same_shape(text, shape):
    u = np.full(shape, np.inf)
    result = vectorised(parse(text), z)(u)
    assert isinstance(result, np.ndarray)
    assert result.shape == shape
    assert result.dtype == np.float64
    assert result.flags.writeable
    assert not np.shares_memory(result, u)
    assert np.isinf(u).all()


def test_mpmath_keeps_its_precision():
    with mpmath.workdps(50):
        assert mpmath.almosteq(scalar(parse("0.1 + 1/3"), z, "mpmath")(0), mpmath.mpf(13) / 30, 1e-49)
        assert mpmath.almosteq(scalar(parse("z**(1/3)"), z, "mpmath")(2) ** 3, 2, 1e-49)
        assert mpmath.almosteq(scalar(parse("pi*z"), z, "mpmath")(1), mpmath.pi, 1e-49)
    slope = scalar(parse("min(z, 1)").diff(z), z, "mpmath")
    assert [slope(u) for u in (0.5, 1, 2)] == [1, 0, 0]


def test_sympy_substitutes():
    y = sympy.symbols("y_0 y_1", real=True)
    u = (y[0] - y[1]) ** 2 / 2
    assert scalar(parse("log(z + 2)"), z, "sympy")(u) == sympy.log(u + 2)
    assert scalar(parse("min(z, 1)").diff(z), z, "sympy")(u) == sympy.Heaviside(1 - u)
    assert scalar(parse("min(z, 1)").diff(z, 2), z, "sympy")(u) == -sympy.DiracDelta(u - 1)


def test_scalar_of_floats_and_other_numbers():
    assert scalar(parse("log(1 + z)"), z)(1) == math.log(2)
    assert scalar(parse("log(z)"), z)(0) == -math.inf
    assert scalar(parse("exp(z)"), z)(1e6) == math.inf
    assert math.isnan(scalar(parse("(z - 1)**0.5"), z)(0))
    with pytest.raises(ValueError, match="expected 'float', 'mpmath' or 'sympy', got 'decimal'"):
        scalar(parse("z"), z, "decimal")
