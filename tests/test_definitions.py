"""The definitions: by hand, in four number systems through the same text, and differentiated by SymPy."""

import ast
import math
from fractions import Fraction
from pathlib import Path

import mpmath
import pytest
import sympy

from refimpl import definitions as D

F = Fraction

# Tuples, so that a definition that writes to its input fails.
Y = ((F(1), F(-2)), (F(1, 2), F(3)), (F(0), F(1, 4)))
Y2 = ((F(0), F(-1)), (F(1, 2), F(2)), (F(1), F(1, 3)))
W = ((F(1), F(1, 2), F(0)), (F(-1, 3), F(0), F(2)))
M = ((F(1), F(2), F(0)), (F(2), F(1, 2), F(1)), (F(0), F(1), F(3)))
WF = ((F(1, 2), F(1)), (F(-2), F(1, 3)))
B = ((F(1), F(0)), (F(2), F(-1)), (F(1, 5), F(1)))


P = ((F(2), F(1, 3)), (F(1, 3), F(1)))


def rho(z):  # z / (1 + z), rational on purpose
    return z / (1 + z)


def rho_prime(z):
    return 1 / ((1 + z) * (1 + z))


def rho_second(z):
    return -2 / ((1 + z) * (1 + z) * (1 + z))


def relu(v, alpha):
    return max(v, 0)


def one(z):
    return 1


def square(t):  # in the place of exp
    return 1 + t * t


def half_square(y):
    return y * y / 2


CALLS = {
    "transpose": (D.transpose, Y),
    "matmul": (D.matmul, Y, W),
    "symmetric_part": (D.symmetric_part, WF),
    "frobenius": (D.frobenius, Y, Y2),
    "subtract": (D.subtract, Y, Y2),
    "distance": (lambda Y, W: D.distance(Y, W, 0, 2), Y, W),
    "attention_energy": (D.attention_energy, Y, W, rho, M),
    "kernel": (D.kernel, Y, W, rho_prime, M),
    "degrees": (D.degrees, M),
    "laplacian": (D.laplacian, M),
    "attention_weights": (D.attention_weights, M),
    "attention_gradient": (D.attention_gradient, Y, W, rho_prime, M),
    "attention_majorizer": (D.attention_majorizer, Y2, Y, W, rho, rho_prime, M),
    "attention_step": (D.attention_step, Y, W, rho_prime, M, F(3, 4)),
    "attention_vjp": (lambda *args: list(D.attention_vjp(*args)), Y, W, rho_prime, rho_second, M, F(3, 4), Y2),
    "softmax_attention": (D.softmax_attention, Y, W, lambda t: 1 + t * t, lambda u: 1 + u[0] * u[0]),
    "data_energy": (D.data_energy, Y, Y2, F(3, 4)),
    "residual_step": (D.residual_step, Y, Y2, W, rho_prime, M, F(3, 4), F(5)),
    "feedforward_energy": (D.feedforward_energy, Y, WF, B, half_square),
    "feedforward_gradient": (D.feedforward_gradient, Y, WF, B),
    "feedforward_step": (D.feedforward_step, Y, WF, B, relu, F(1, 3)),
    "feedforward_vjp": (lambda *args: list(D.feedforward_vjp(*args)), Y, WF, B, lambda v, a: v * v - a, F(1, 3), Y2),
    "metric_energy": (D.metric_energy, Y, WF, B, P, half_square),
    "metric_gradient": (D.metric_gradient, Y, WF, B, P),
    "metric_step": (D.metric_step, Y, WF, B, relu, F(1, 3)),
    "exponentials": (D.exponentials, Y, WF, square),
    "two_sided_energy": (D.two_sided_energy, Y, WF, square),
    "query_side": (D.query_side, Y, WF, square),
    "two_sided_gradient": (D.two_sided_gradient, Y, WF, square),
    "prox_objective": (D.prox_objective, F(1, 2), F(2), half_square, F(1, 4)),
    "joint_step": (D.joint_step, Y, W, rho_prime, M, WF, B, relu, F(5), F(2)),
    "truncated_share": (D.truncated_share, Y[0], Y2[2]),
}


def convert(value, number):
    """Every Fraction inside ``value`` as ``number``; lists of rows come out flat enough to compare."""
    if isinstance(value, tuple | list):
        return [convert(item, number) for item in value]
    return number(value) if isinstance(value, Fraction | int) else value


def flat(value):
    return [x for item in value for x in flat(item)] if isinstance(value, list) else [value]


def as_sympy(x):
    return sympy.Rational(x.numerator, x.denominator)


def as_mpf(x):
    return mpmath.mpf(x.numerator) / x.denominator


def test_the_text_imports_no_numbers():
    tree = ast.parse(Path(D.__file__).read_text())
    imported = {
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported == {"collections.abc", "typing"}
    assert not {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} & {"np", "numpy", "math", "mpmath", "sympy"}
    assert not {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, float)}


@pytest.mark.parametrize("name", CALLS)
def test_one_text_in_four_number_systems(name):
    function, *args = CALLS[name]
    expected = flat(function(*args))
    assert all(isinstance(x, Fraction | int) for x in expected)
    assert flat(function(*convert(args, as_sympy))) == [as_sympy(F(x)) for x in expected]
    with mpmath.workdps(50):
        got = flat(function(*convert(args, as_mpf)))
        # fewer than 100 operations on numbers below 100
        assert all(abs(x - as_mpf(F(y))) <= 1e-46 for x, y in zip(got, expected, strict=True))
    got = flat(function(*convert(args, float)))
    assert all(abs(x - float(y)) <= 1e-13 for x, y in zip(got, expected, strict=True))


def test_every_definition_is_tried():
    public = {n for n, f in vars(D).items() if callable(f) and getattr(f, "__module__", "") == D.__name__}
    assert public == {*CALLS, "identity", "ones"}


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (D.identity(2), [[1, 0], [0, 1]]),
        (D.identity(0), []),
        (D.ones(2), [[1, 1], [1, 1]]),
        (D.ones(0), []),
        (D.transpose([[1, 2], [3, 4], [5, 6]]), [[1, 3, 5], [2, 4, 6]]),
        (D.matmul([[1, 2], [3, 4]], [[5], [6]]), [[17], [39]]),
        (D.symmetric_part([[0, 1], [0, 0]]), [[0, 0.5], [0.5, 0]]),
        (D.frobenius([[1, 2], [3, 4]], [[5, 6], [7, 8]]), 70),
        (D.subtract([[1, 2]], [[3, 5]]), [[-2, -3]]),
        # ½ (3² + 4²), summed over features and not averaged
        (D.distance([[0, 0], [3, 4]], D.identity(2), 0, 1), 12.5),
        # S = W Wᵀ, not Wᵀ W: (1, 0) W = (1, 2), (0, 1) W = (0, 1)
        (D.distance([[0, 0], [1, 0], [0, 1]], [[1, 2], [0, 1]], 0, 1), 2.5),
        (D.distance([[0, 0], [1, 0], [0, 1]], [[1, 2], [0, 1]], 0, 2), 0.5),
        (D.laplacian([[7, 2], [2, 5]]), [[2, -2], [-2, 2]]),
        (D.attention_weights([[1, 3], [0, 0]]), [[0.25, 0.75], [0, 1]]),
        # z = 0.5, 4.5, 2: pairs once, each with its weight
        (D.attention_energy([[0], [1], [3]], [[1]], lambda z: z, [[9, 1, 2], [1, 9, 3], [2, 3, 9]]), 15.5),
        (D.attention_step([[0], [1], [3], [4]], [[1]], lambda z: 1, D.ones(4), 0.5), [[1], [1.5], [2.5], [3]]),
        # a row without weight stays, even beside rows that move
        (D.attention_step([[0], [1], [3]], [[1]], one, [[1, 1, 0], [1, 1, 0], [0] * 3], 1), [[0.5], [0.5], [3]]),
        (D.attention_gradient([[0], [1], [3]], [[2]], lambda z: 1, D.ones(3)), [[-16], [-4], [20]]),
        (D.data_energy([[1, 2]], [[0, 0]], 3), 7.5),
        # s d + λ = 0: nothing to divide by
        (D.residual_step([[5]], [[1]], [[0]], lambda z: 1, [[0]], 0, 0), [[5]]),
        # n = 1, d_1 = 1: (d y + λ x) / (d + λ)
        (D.residual_step([[5]], [[1]], [[1]], lambda z: 1, [[1]], 3, 1), [[2]]),
        (D.feedforward_energy([[1, 2]], [[0, 1], [0, 0]], [[0, 0]], lambda y: y), 6.5),
        (D.feedforward_gradient([[1, 2]], [[0, 1], [0, 0]], [[0, 0]]), [[2, 2.5]]),
        (D.feedforward_step([[1, 2]], [[0, 1], [0, 0]], [[0, 0]], lambda v, alpha: v, 1), [[-1, -0.5]]),
        # W_f P = ((0, 1), (1, 0)) for P = diag(1, ½): ½ · 2 · 2 + ½ (1 + ½ · 4) + 1 · 1 + ½ · 2
        (D.metric_energy([[1, 2]], [[0, 2], [1, 0]], [[0, 0]], [[1, 0], [0, 0.5]], lambda y: y), 5.5),
        # Y H − B = (1 + 2, 2 + 2), the second halved by P
        (D.metric_gradient([[1, 2]], [[0, 2], [1, 0]], [[0, 0]], [[1, 0], [0, 0.5]]), [[3, 2]]),
        (D.metric_step([[1, 2]], [[0, 2], [1, 0]], [[0, 0]], lambda v, alpha: v, 0.5), [[-0.5, 0]]),
        # y₁ M y₂ᵀ = 1 · 1 · 2 for the query 1 and the key 2, and 0 the other way
        (D.exponentials([[1, 0], [0, 2]], [[0, 1], [0, 0]], lambda t: t), [[0, 2], [0, 0]]),
        (D.two_sided_energy([[1, 0], [0, 2]], [[0, 1], [0, 0]], lambda t: t), -2),
        (D.query_side([[1, 0], [0, 2]], [[0, 1], [0, 0]], lambda t: t), [[-4, 0], [0, 0]]),
        (D.two_sided_gradient([[1, 0], [0, 2]], [[0, 1], [0, 0]], lambda t: t), [[-4, 0], [0, -2]]),
        (D.prox_objective(1, 3, abs, 0.25), 2.25),
        # M = s d + ½ h = 1 · 1 + ½ · 2 = 2, gradient 0 + (2 · 4 − 2) = 6
        (D.joint_step([[4]], [[1]], lambda z: 1, [[1]], [[1]], [[2]], lambda v, a: (v, a), 1, 2), [[(1, 0.5)]]),
        # the prox is told 1 / M, here 1 / (3 · 1 + ½ · 2)
        (D.joint_step([[4]], [[1]], lambda z: 1, [[1]], [[1]], [[0]], lambda v, a: (v, a), 3, 2), [[(2, 0.25)]]),
        # M = 0, and a negative h does not count
        (D.joint_step([[4]], [[0]], lambda z: 1, [[1]], [[-3]], [[2]], lambda v, alpha: 99, 0, -2), [[4]]),
        (D.truncated_share([1, 2], [2, 1]), 0.6),
        (D.truncated_share([1, 2], [1, -2]), 0),  # |ξ| = |y| is not cut
        (D.truncated_share([0, 0], [3, 4]), 1),
        (D.truncated_share([1, 2], [0, 0]), 0),
    ],
)  # fmt: skip
def test_by_hand(got, expected):
    assert got == expected


def test_attention_of_three_tokens_by_hand():
    a, b, c = (math.exp(-z) for z in (0.5, 2.0, 4.5))
    Y, W, m = ((0.0,), (1.0,), (3.0,)), ((1.0,),), D.ones(3)
    assert D.attention_energy(Y, W, lambda z: -math.exp(-z), m) == pytest.approx(-(a + b + c), rel=1e-15)
    gradient = D.attention_gradient(Y, W, lambda z: math.exp(-z), m)
    assert flat(gradient) == pytest.approx([-a - 3 * c, a - 2 * b, 2 * b + 3 * c], rel=1e-14)
    step = D.attention_step(Y, W, lambda z: math.exp(-z), m, 1.0)
    expected = [(a + 3 * c) / (1 + a + c), (1 + 3 * b) / (a + 1 + b), (b + 3) / (c + b + 1)]
    assert flat(step) == pytest.approx(expected, rel=1e-14)


def test_reweighted_softmax_is_the_step_and_plain_softmax_is_not():
    Y, W = ((0.3, -1.0), (1.2, 0.4), (-0.7, 0.9)), ((1.0, 0.5), (0.2, -1.0))
    step = flat(D.attention_step(Y, W, lambda z: math.exp(-z), D.ones(3), 1.0))
    beta = flat(D.softmax_attention(Y, W, math.exp, lambda u: math.exp(-sum(x * x for x in u) / 2)))
    plain = flat(D.softmax_attention(Y, W, math.exp, lambda u: 1.0))
    assert beta == pytest.approx(step, abs=1e-15)
    assert max(abs(x - y) for x, y in zip(plain, step, strict=True)) > 0.05


@pytest.mark.parametrize("n", [0, 1])
def test_none_and_one_token(n):
    Y, W, m = ((2.0, 3.0),) * n, D.identity(2), D.ones(n)
    assert D.attention_energy(Y, W, rho, m) == 0
    assert D.attention_gradient(Y, W, rho_prime, m) == [[0.0, 0.0]] * n
    assert D.attention_step(Y, W, rho_prime, m, 1.0) == [[2.0, 3.0]] * n
    assert D.attention_majorizer(Y, Y, W, rho, rho_prime, m) == 0


# ------------------------------------------------------------------------------------------------ by SymPy


class drho(sympy.Function):
    """ρ' of an undefined penalty."""


class Rho(sympy.Function):
    """An undefined penalty ρ, of which nothing is known but the name of its derivative."""

    def fdiff(self, argindex=1):
        return drho(self.args[0])


def symbols(name, rows, columns, symmetric=False):
    def symbol(i, j):
        i, j = sorted((i, j)) if symmetric else (i, j)
        return sympy.Symbol(f"{name}{i}{j}", real=True)

    return [[symbol(i, j) for j in range(columns)] for i in range(rows)]


def assert_gradient(energy, Y, gradient):
    # expanded arguments: z_ij and z_ji become the same expression
    got = [[sympy.diff(energy, y) for y in row] for row in Y]
    assert [sympy.expand(x - y) for x, y in zip(flat(got), flat(gradient), strict=True)] == [0] * len(flat(Y))


@pytest.mark.parametrize(("n", "d", "k"), [(2, 1, 1), (2, 2, 1), (2, 2, 2), (3, 1, 2), (3, 2, 1)])
def test_the_derivative_of_the_attention_energy_is_its_gradient_for_every_penalty(n, d, k):
    Y, W, m = symbols("y", n, d), symbols("w", d, k), symbols("m", n, n, symmetric=True)
    energy = D.attention_energy(Y, W, lambda z: Rho(sympy.expand(z)), m)
    assert energy.has(Rho)
    assert_gradient(energy, Y, D.attention_gradient(Y, W, lambda z: drho(sympy.expand(z)), m))


def test_the_derivative_of_the_softmax_energy_is_its_gradient():
    Y, W, m = symbols("y", 3, 1), symbols("w", 1, 1), symbols("m", 3, 3, symmetric=True)
    energy = D.attention_energy(Y, W, lambda z: -sympy.exp(-sympy.expand(z)), m)
    assert_gradient(energy, Y, D.attention_gradient(Y, W, lambda z: sympy.exp(-sympy.expand(z)), m))


def test_the_majorizer_is_the_quadratic_that_touches_with_the_same_slope():
    Y, Z, W, m = symbols("y", 3, 1), symbols("x", 3, 1), symbols("w", 1, 1), symbols("m", 3, 3, symmetric=True)
    rho, slope = (lambda z: Rho(sympy.expand(z))), (lambda z: drho(sympy.expand(z)))
    Q = D.attention_majorizer(Z, Y, W, rho, slope, m)
    L, S = D.laplacian(D.kernel(Y, W, slope, m)), D.matmul(W, D.transpose(W))
    assert_gradient(Q, Z, D.matmul(D.matmul(L, Z), S))
    assert sympy.expand(D.attention_majorizer(Y, Y, W, rho, slope, m) - D.attention_energy(Y, W, rho, m)) == 0


def test_the_derivatives_of_the_data_and_feedforward_energies_are_their_gradients():
    Y, X, Wf = symbols("y", 2, 2), symbols("x", 2, 2), symbols("w", 2, 2)
    lam = sympy.Symbol("lam")
    assert_gradient(D.data_energy(Y, X, lam), Y, [[lam * (Y[i][a] - X[i][a]) for a in range(2)] for i in range(2)])
    assert_gradient(D.feedforward_energy(Y, Wf, X, lambda y: 0), Y, D.feedforward_gradient(Y, Wf, X))
