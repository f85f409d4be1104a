"""Is this update a gradient step: the table of verdicts, exact Jacobians, and what tries to fool the check."""

import functools
import json
import re
import time
from pathlib import Path

import numpy as np
import pytest
import sympy
from gradient_fields import ROWS, W, kernel, linear, softmax

from refimpl import formula
from refimpl.testing import GradientField, NonConformance, check_gradient_field
from refimpl.testing.gradient_field import (
    PRECISION,
    _look,
    asymmetry_of,
    examine_field,
    fit_constant,
    fit_diagonal,
)
from refimpl.testing.gradient_formula import examine_formulas
from refimpl.testing.subject import Subject

PAGE = (Path(__file__).parent.parent / "docs" / "gradient-field.md").read_text(encoding="utf-8")
EPS = np.finfo(float).eps
CLAIM = "(gradient_field.integrability)"


def look(update, n, d, framework="numpy", dtype="float64"):
    return _look(Subject(update, framework, dtype, False, 10.0), n, d, 0)


@functools.cache
def verdict_of(name):
    """The report on a row of the table."""
    row = ROWS[name]
    return examine_field(row.update, row.tokens, row.dim)


# ------------------------------------------------------------------------------------------------ the table


@pytest.mark.parametrize("name", ROWS)
def test_verdict(name):
    row, report = ROWS[name], verdict_of(name)
    assert report.verdict == row.verdict, report.diagnosis
    assert report.route == "complex step"
    assert report.error < 1e-7
    assert (report.asymmetry <= report.error) == (row.verdict == "euclidean")
    assert report.diagnosis.endswith(CLAIM)
    if row.p is not None:
        p = report.metric / np.broadcast_to(row.p, report.metric.shape)
        np.testing.assert_allclose(p, p.flat[0], rtol=1e-9)  # J is known to 1e-12, its entries are above 1e-2
        assert report.metric.min() == 1
        assert report.in_metric <= report.error
        assert ("per feature" if len(row.p) == 1 else "per token") in report.diagnosis


def test_the_page_has_the_table():
    rows = re.findall(r"^\| `(.+?)` \| (\w+) \| (.+?) \| ([\d.]+) \| .+ \|$", PAGE, re.MULTILINE)
    assert [name for name, *_ in rows] == list(ROWS)
    for name, euclidean, diagonal, asymmetry in rows:
        report = verdict_of(name)
        assert euclidean == ("yes" if report.verdict == "euclidean" else "no"), name
        assert diagonal.startswith("yes" if report.ok else "no"), name
        assert ("mixes" in diagonal) == (report.verdict == "constant"), name
        assert ("nor any other" in diagonal) == ("nor in any other" in report.diagnosis), name
        assert float(asymmetry) == pytest.approx(report.asymmetry, abs=5e-4), name


def test_the_metric_of_y_minus_ly_is_s():
    """∇E_attn = L Y S: S, of features. Where all tokens move together nothing does work, and the metric is free."""
    P = verdict_of("Y − LY, any other W").metric
    centre = np.kron(np.eye(4) - 1 / 4, np.eye(3))
    expected, found = centre @ np.kron(np.eye(4), W @ W.T) @ centre, centre @ P @ centre
    np.testing.assert_allclose(found / np.linalg.norm(found), expected / np.linalg.norm(expected), rtol=0, atol=1e-9)


# ------------------------------------------------------------------------------------------------ exact Jacobians


FIELDS = {
    "polynomial": ["y1**2*y2 - y3", "y1*y3", "y2**3 + y1"],
    "softmax_β": [
        f"({' + '.join(f'exp(-(y{i} - y{j})**2/2)*y{j}' for j in (1, 2, 3))}) / "
        f"({' + '.join(f'exp(-(y{i} - y{j})**2/2)' for j in (1, 2, 3))})"
        for i in (1, 2, 3)
    ],
    "softmax": [f"(exp(y{i}*y1)*y1 + exp(y{i}*y2)*y2) / (exp(y{i}*y1) + exp(y{i}*y2))" for i in (1, 2)],
    "with a square root": ["sqrt(1 + y1**2 + y2**2)", "sin(y1*y2)"],
    "with kinks": ["relu(y1 + 2*y2)", "abs(y1 - y2) + max(y1, 2*y2)"],
}


@pytest.mark.parametrize("hidden", [False, True], ids=["complex step", "central differences"])
@pytest.mark.parametrize("name", FIELDS)
def test_against_exact_jacobians(name, hidden):
    """The derivatives of SymPy at the points, in 30 digits; ``hidden`` takes the imaginary part away on the way."""
    field = formula.parse_field(FIELDS[name])
    N = len(field.symbols)
    steps = [sympy.lambdify(field.symbols, expr, "numpy") for expr in field.components]

    def update(Y):
        y = np.real(Y).ravel() + 0 * Y.ravel() if hidden else Y.ravel()
        return np.array([step(*y) for step in steps]).reshape(Y.shape)

    seen = look(update, 1, N)
    assert seen.route == ("central differences" if hidden or name == "with kinks" else "complex step")
    for Y, J, error in zip(seen.points, seen.J, seen.error, strict=True):
        point = {y: sympy.Float(float(x), 40) for y, x in zip(field.symbols, Y.ravel(), strict=True)}
        exact = [[float(sympy.N(entry.subs(point), 30)) for entry in row] for row in field.jacobian]
        assert np.abs(J - exact).max() <= error
        assert error <= (1e-6 if seen.route == "central differences" else 1e-11) * max(1, np.abs(exact).max())


@pytest.mark.parametrize("name", FIELDS)
def test_formulas_and_functions_agree(name):
    field = formula.parse_field(FIELDS[name])
    steps = [sympy.lambdify(field.symbols, expr, "numpy") for expr in field.components]
    numeric = examine_field(
        lambda Y: np.array([step(*Y.ravel()) for step in steps]).reshape(Y.shape), 1, len(field.symbols)
    )
    symbolic = examine_formulas(FIELDS[name])
    assert numeric.verdict == symbolic.verdict == "none"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("seed", range(5))
def test_energies_drawn_at_random(dtype, seed):
    """A deep energy of NumPy alone: E = Σ log cosh(B tanh(A y)), its gradient by hand."""
    rng = np.random.default_rng(seed)
    A, B = rng.normal(size=(2, 6, 6)) / 2
    p = 2.0 ** rng.integers(-2, 3, 6)

    def update(Y):
        t = np.tanh(A @ Y.ravel())
        gradient = A.T @ ((1 - t * t) * (B.T @ np.tanh(B @ t)))
        return (Y - (gradient / p).reshape(Y.shape)).astype(Y.dtype)

    report = check_gradient_field(update, 3, 2, dtype=dtype, seed=seed)
    assert report.verdict == "diagonal"
    rtol = {"float64": 1e-9, "float32": 1e-2}[dtype]  # errors of J over its smallest entries
    np.testing.assert_allclose(report.metric.ravel(), p / p.min(), rtol=rtol)


# ------------------------------------------------------------------------------------------------ asymmetry


@pytest.mark.parametrize("degrees", [30, 90, 150, 180])
def test_asymmetry_of_a_rotation(degrees):
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    report = examine_field(linear([c, s], [-s, c]), 1, 2)
    expected = abs(s) / np.hypot(s, 1 - c)  # cos(θ / 2)
    assert report.asymmetry == pytest.approx(expected, abs=1e-14)
    assert (report.verdict == "euclidean") == (degrees == 180)


@pytest.mark.parametrize("alpha", [1e-3, 1.0, 1e3])
def test_asymmetry_does_not_depend_on_the_step_size(alpha):
    def update(Y):
        return Y + alpha * (softmax(Y @ Y.T) @ Y - Y)

    report = examine_field(update)
    assert report.verdict == "none"
    assert report.asymmetry == pytest.approx(verdict_of("softmax(YYᵀ) Y, plain attention").asymmetry)


def test_asymmetry_where_nothing_moves():
    assert asymmetry_of(np.eye(3)[None]) == [0]
    report = examine_field(lambda Y: Y.copy())
    assert (report.verdict, report.asymmetry, report.in_metric) == ("euclidean", 0, 0)


# ------------------------------------------------------------------------------------------------ metrics


def name(a):
    return f"#{a}"


@pytest.mark.parametrize("error", [1e-11, 1e-8])  # the entries are up to 1e3, rounded
def test_a_metric_from_a_chain_of_pairs(error):
    rng = np.random.default_rng(3)
    p = 10.0 ** rng.uniform(-3, 3, 8)
    H = np.triu(np.tril(rng.normal(size=(5, 8, 8)), 1), -1)
    J = (H + H.transpose(0, 2, 1)) / p[:, None]
    J = J + error * rng.uniform(-1, 1, J.shape)
    fit = fit_diagonal(J, np.full(5, error), 1e6, name)
    assert fit.found
    seen = np.minimum(np.abs(J), np.abs(J.transpose(0, 2, 1))).max(axis=0)  # of each pair, where it is seen best
    assert np.abs(np.log(fit.p * p.min() / p)).max() <= 4 * (error / seen[H[0] != 0]).sum()


def test_groups_have_their_own_scale():
    J = np.zeros((1, 4, 4))
    J[0, 0, 1], J[0, 1, 0] = 1, 4
    J[0, 2, 3], J[0, 3, 2] = 9, 3
    fit = fit_diagonal(J, np.array([1e-15]), 1e6, name)
    assert fit.found
    np.testing.assert_allclose(fit.p, [4, 1, 1, 3], rtol=1e-14)


@pytest.mark.parametrize(
    ("J", "why"),
    [
        ([[[0, 1], [-1, 0]]], "#0 and #1 act on each other with opposite signs: J = 1 and -1"),
        ([[[0, 1], [0, 0]]], "#1 acts on #0, J = 1, and the other way J is 0 to within"),
        ([[[0, 1], [2, 0]], [[0, 1], [3, 0]]], "would need the ratio 2 for some pairs and points and 3 for others"),
        ([[[0, 1], [2, 0]], [[0, 1], [0, 0]]], "would need the ratio 2 for some pairs and points and 0 for others"),
        ([[[0, 1], [0, 0]], [[0, 0], [2, 0]]], "acts on"),
        ([[[0, 1, 2], [1, 0, 1], [1, 1, 0]]], "would need the ratio"),
    ],
    ids=["signs", "one way", "ratio", "one way at one point", "one way each", "cycle"],
)
def test_no_diagonal_metric(J, why):
    J = np.array(J, dtype=float)
    fit = fit_diagonal(J, np.full(len(J), 1e-15), 1e6, name)
    assert fit.found is False
    assert why in fit.why


@pytest.mark.parametrize(("asymmetry", "found"), [(0.5, True), (5, None), (100, False)])
def test_asymmetry_near_the_error_is_undecided(asymmetry, found):
    """A triangle whose third pair misses the ratio 1 by so many times what the errors explain."""
    error = 1e-9
    J = np.array([[[0, 1, 1], [1, 0, 1], [1, 1, 0]]]) + np.zeros((1, 3, 3))
    J[0, 1, 2] += asymmetry * 6 * error  # the pairs' own errors, and those of the two ratios that p is made of
    assert fit_diagonal(J, np.array([error]), 1e6, name).found is found


def test_a_weak_pair_is_undecided():
    J = np.array([[[0, 1e-5], [0, 0]]])
    assert fit_diagonal(J, np.array([1e-8]), 1e6, name).found is None


EXACT = np.full(3, 1e-15)


def test_a_metric_that_mixes():
    rng = np.random.default_rng(0)
    B = rng.normal(size=(4, 4))
    P = B @ B.T + np.eye(4)
    H = rng.normal(size=(3, 4, 4))
    mixing = fit_constant(np.linalg.solve(P, H + H.transpose(0, 2, 1)), EXACT, PRECISION["float64"])
    np.testing.assert_allclose(mixing.P, P / np.linalg.eigvalsh(P)[0], rtol=1e-9)


@pytest.mark.parametrize(
    ("J", "why"),
    [
        ([[0, 1], [-1, 0]], "J has the eigenvalues 0 ± 1i"),
        ([[1, 1], [0, 1]], ""),  # defective: every matrix near it is not
    ],
)
def test_no_metric_that_mixes(J, why):
    mixing = fit_constant(np.array([J] * 3, dtype=float), EXACT, PRECISION["float64"])
    assert mixing.P is None
    assert mixing.why == why
    assert (mixing.eigenvalue is None) == (why == "")


def test_points_that_ask_for_different_metrics():
    """Each has real eigenvalues, and so a metric of its own."""
    J = np.array([[[1, 1], [0, 2]], [[1, 0], [1, 3]], [[2, 1], [0, 4]]], dtype=float)
    assert fit_constant(J, EXACT, PRECISION["float64"]).why == "the points ask for different ones"


def test_an_eigenvalue_within_the_error_refutes_nothing():
    J = np.array([[[1, 1e-9], [-1e-9, 1]]] * 3)
    assert fit_constant(J, np.full(3, 1e-9), PRECISION["float64"]).eigenvalue is None
    assert fit_constant(J, EXACT, PRECISION["float64"]).eigenvalue is not None


# ------------------------------------------------------------------------------------------------ hard to fool


def in_place(Y):
    Y *= 2
    return Y


def random(Y):
    return Y + 1e-12 * np.random.default_rng().normal(size=Y.shape)


class Stateful:
    """Another answer at each call, another one after many, the memory of the one before."""

    def __init__(self, kind):
        self.kind, self.calls, self.memory = kind, 0, None

    def __call__(self, Y):
        self.calls += 1
        if self.kind == "memory":
            self.memory = np.zeros_like(Y) if self.memory is None else self.memory
            self.memory[...] = Y
            return self.memory
        return Y * (1 + (1e-9 * self.calls if self.kind == "each" else self.calls > 100))


@pytest.mark.parametrize(
    ("update", "says"),
    [
        (in_place, "changes its input: Y is another array after the call"),
        (random, "gives another answer the second time"),
        (Stateful("each"), "gives another answer the second time"),
        (Stateful("later"), "gives another answer the second time, off by"),
        (Stateful("memory"), "uses its memory again"),
        (lambda Y: Y.astype(np.float32), "returns float32 for float64 tokens"),
        (lambda Y: Y[:2], r"returns shape \(2, 3\) for tokens of shape \(4, 3\)"),
        (lambda Y: Y.tolist(), "returns list, expected numpy.ndarray"),
        (lambda Y: None, "returns None"),
        (lambda Y: Y + 0j, "returns complex128"),
        (lambda Y: np.where(Y > 1, np.nan, Y), "returns nan at index"),
        (lambda Y: 1 / 0, "raises ZeroDivisionError"),
    ],
)
def test_what_is_no_function_is_named(update, says):
    with pytest.raises(NonConformance, match=says) as caught:
        check_gradient_field(update)
    assert caught.value.report.verdict == "undecided"


def test_a_function_that_hangs(tmp_path):
    begun = []

    def update(Y):
        begun.append(1)
        while len(begun) < 10**6 and not (tmp_path / "end").exists():
            time.sleep(0.01)
        return Y

    try:
        report = examine_field(update, seconds=0.1)
        assert report.diagnosis.startswith("your function did not return within 0.1 s")
    finally:
        (tmp_path / "end").touch()


def complex_lost(Y):
    """The same as plain attention, which is asymmetric, where the imaginary part is lost: J seems to be 0."""
    return np.real(ROWS["softmax(YYᵀ) Y, plain attention"].update(np.real(Y))) + 0 * Y


def complex_symmetric(Y):
    """Asymmetric, and symmetric in its imaginary part."""
    return (
        np.real(Y) @ np.array([[1.0, 2], [0, 1]]) + 1j * np.imag(Y)
        if np.iscomplexobj(Y)
        else complex_symmetric(Y.astype(complex)).real
    )


def complex_raises(Y):
    if np.iscomplexobj(Y):
        raise TypeError("real numbers")
    return Y @ np.array([[1.0, 2], [0, 1]])


@pytest.mark.parametrize("update", [complex_lost, complex_symmetric, complex_raises])
def test_complex_steps_are_not_trusted(update):
    report = examine_field(update, 3, 2)
    assert report.route == "central differences"
    assert report.verdict in ("none", "constant")
    assert report.asymmetry > 0.3


def test_abs_takes_central_differences():
    report = check_gradient_field(np.abs)
    assert (report.verdict, report.route) == ("euclidean", "central differences")


@pytest.mark.parametrize("update", [ROWS["Y − ReLU(YW) Wᵀ, tied"].update, lambda Y: np.clip(Y, -0.5, 0.5), np.abs])
@pytest.mark.parametrize("seed", range(4))
def test_points_keep_away_from_kinks(update, seed):
    report = examine_field(update, 6, 3, seed=seed)
    assert report.verdict == "euclidean"
    assert report.error < 1e-10


def jump(Y):
    return np.where(Y[:, :1] > 0, Y + np.array([0, 1, 0]), Y).astype(Y.dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("seed", range(4))
def test_a_jump_is_no_gradient_step(seed, dtype):
    """J = I at every point, and yet the way around a loop takes work."""
    report = examine_field(jump, dtype=dtype, seed=seed)
    assert report.verdict == "undecided"
    assert "does work around a closed path" in report.diagnosis


def test_a_derivative_that_is_not_seen_is_undecided():
    report = examine_field(lambda Y: np.round(Y, 3))
    assert report.verdict == "undecided"
    assert "the derivatives of T(y) − y are known to" in report.diagnosis


@pytest.mark.parametrize("alpha", [1e-6, 1e-9, 1e-12, 1e-15])
def test_a_step_too_small_to_be_seen_is_undecided(alpha):
    """An asymmetry of 10 times the error is seen. A step is known to be symmetric to what differences see: 1e-11."""
    rotation = np.array([[0.0, 1.0], [-1.0, 0.0]])
    turns = examine_field(lambda Y: Y + alpha * Y @ rotation, 1, 2)
    assert turns.verdict == ("none" if alpha > 1e-13 else "undecided")
    still = examine_field(lambda Y: Y - alpha * np.tanh(Y), 1, 2)
    assert still.verdict == ("euclidean" if alpha > 1e-7 else "undecided")


def test_asymmetry_below_the_rounding_of_float32_is_not_seen():
    """ε is found down to 1e-9 in float64; float32 says neither yes nor no, or that nothing was found to its error."""
    for epsilon in (1e-3, 1e-6, 1e-9):
        assert examine_field(linear([1, epsilon], [-epsilon, 1]), 2, 2).verdict == "none"
        assert examine_field(lambda Y, e=epsilon: Y @ np.float32([[1, 1 + e], [1, 0]]), 2, 2, dtype="float32").error > (
            1e-6
        )


@pytest.mark.parametrize("seed", range(3))
def test_inside_float32_of_a_float64_function(seed):
    report = examine_field(lambda Y: (Y.real.astype(np.float32) @ np.float32(np.sqrt(2) * W)).astype(float), seed=seed)
    assert report.verdict in ("none", "undecided")
    assert report.error > 1e-6


def test_float32_sees_what_it_can():
    for name in ("softmax(YYᵀ) Y, plain attention", "Y − LYS, the gradient of E_attn", "Y − LY, W = diag(1, 2, 3)"):
        row = ROWS[name]
        report = examine_field(lambda Y, row=row: row.update(Y).astype(np.float32), dtype="float32")
        assert report.verdict == row.verdict
        assert report.route == "central differences"


# ------------------------------------------------------------------------------------------------ frameworks


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_frameworks(framework, dtype):
    pytest.importorskip(framework)
    if framework == "torch":
        from torch import exp, softmax
    else:
        from jax.nn import softmax
        from jax.numpy import exp

    def plain(Y):
        return softmax(Y @ Y.T, 1) @ Y

    def step(Y):
        Z = (Y * Y) @ (0 * Y + 1).T / 2
        Gamma = exp(Y @ Y.T - Z - Z.T)
        return Y - Gamma.sum(1)[:, None] * Y + Gamma @ Y

    assert examine_field(plain, 3, 2, framework, dtype).verdict == "none"
    assert check_gradient_field(step, 3, 2, framework=framework, dtype=dtype).verdict == "euclidean"


# ------------------------------------------------------------------------------------------------ the report


def test_raises_with_the_report():
    with pytest.raises(NonConformance, match=re.escape(CLAIM)) as caught:
        check_gradient_field(ROWS["softmax(YYᵀ) Y, plain attention"].update)
    report = caught.value.report
    assert isinstance(report, GradientField)
    assert report.where.shape == (4, 3)
    assert report.points.shape == (6, 4, 3)
    # no real symmetric matrix has such an eigenvalue
    assert abs(report.eigenvalue.imag) > 0.01
    assert report.metric is None
    with pytest.raises(NonConformance, match="in one that mixes entries"):
        check_gradient_field(ROWS["YW, ((1, 1), (0, 2)), real eigenvalues"].update, 2, 2)


def test_the_eigenvalue_is_one():
    report = verdict_of("softmax(YYᵀ) Y, plain attention")
    J = look(ROWS["softmax(YYᵀ) Y, plain attention"].update, 4, 3).J
    assert min(np.abs(np.linalg.eigvals(A) - report.eigenvalue).min() for A in J) < 1e-12


def test_a_report_is_plain_json():
    for name in ("softmax(YYᵀ) Y, plain attention", "layer norm", "YW, ((1, 1), (0, 2)), real eigenvalues"):
        row, report = ROWS[name], verdict_of(name)
        read = json.loads(json.dumps(report.as_dict(), allow_nan=False))
        assert read["verdict"] == row.verdict
        assert read["ok"] == report.ok
        assert np.shape(read["where"]) == (row.tokens, row.dim)


def test_the_same_seed_gives_the_same_report():
    update = ROWS["causal attention"].update
    first, again, other = (examine_field(update, seed=seed).as_dict() for seed in (5, 5, 6))
    assert first == again
    assert first["asymmetry"] != other["asymmetry"]


def test_progress_is_told():
    told = []
    examine_field(np.tanh, 2, 2, progress=lambda *tick: told.append(tick))
    assert [(number, total) for number, total, _ in told] == [(k, 6) for k in range(6)]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"update": 3}, TypeError, "formulas: expected a list of texts, one a component, got int"),
        ({"update": "-y2"}, TypeError, "formulas: expected a list of texts, one a component, got str"),
        ({"update": np.tanh, "tokens": 0}, ValueError, "tokens: expected a whole number of at least 1, got 0"),
        ({"update": np.tanh, "dim": 1.5}, ValueError, "dim: expected a whole number of at least 1, got 1.5"),
        ({"update": np.tanh, "framework": "mxnet"}, ValueError, "framework: expected one of numpy, torch, jax"),
        ({"update": np.tanh, "dtype": "float16"}, ValueError, "dtype: expected one of float64, float32"),
        ({"update": np.tanh, "seconds": 0}, ValueError, "seconds: expected"),
    ],
)
def test_refused(refused, arguments, error, says):
    with refused(error, re.escape(says)):
        check_gradient_field(**arguments)


def test_gradient_steps_do_not_compose():
    """Two symmetric Jacobians have an asymmetric product: a layer of two steps is no step of one energy."""
    A, B = np.array([[2.0, 1], [1, 0]]), np.array([[1.0, 0], [0, 3]])
    assert all(examine_field(lambda Y, M=M: Y @ M, 1, 2).verdict == "euclidean" for M in (A, B))
    assert examine_field(lambda Y: Y @ A @ B, 1, 2).verdict == "diagonal"
    C = np.array([[1.0, 2], [2, 0]])
    verdicts = [examine_field(lambda Y, M=M: Y @ M, 1, 2).verdict for M in (A @ C, A @ B @ C)]
    assert "euclidean" not in verdicts


def test_two_tokens_are_the_exception():
    """For 2 tokens softmax_β keeps their mean and scales their difference by (1 − γ) / (1 + γ), γ = Γ_12."""
    update = ROWS["the same, 2 tokens"].update
    for Y in np.random.default_rng(0).normal(size=(5, 2, 3)):
        mean, half = (Y[0] + Y[1]) / 2, (Y[0] - Y[1]) / 2
        gamma = kernel(Y)[0, 1]
        factor = (1 - gamma) / (1 + gamma)
        np.testing.assert_allclose(update(Y), [mean + factor * half, mean - factor * half], rtol=0, atol=8 * EPS)
    verdicts = [examine_field(update, n, 1).verdict for n in (2, 3, 4)]
    assert verdicts == ["euclidean", "none", "none"]


# ------------------------------------------------------------------------------------------------ hard to fool

ROTATION = np.array([[0.0, 1.0], [-1.0, 0.0]])


def wide_relu(Y):
    """Tied ReLU of 1024 features, a gradient, and a small rotation of |Y|, which complex steps do not see."""
    W = np.random.default_rng(0).normal(size=(3, 1024)) / 32
    turn = np.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    return Y - np.maximum(Y @ W, 0) @ W.T + 1e-3 * np.abs(Y) @ turn


@pytest.mark.parametrize(
    "update",
    [
        wide_relu,
        lambda Y: np.sin(80 * Y) / 80 + 1e-5 * np.abs(Y) @ np.array([[0, 1, 0], [-1, 0, 0], [0, 0, 0.0]]),
        lambda Y: Y + 1e-11 * np.abs(Y) @ np.array([[0, 1, 0], [-1, 0, 0], [0, 0, 0.0]]),
    ],
    ids=["wide ReLU", "fast sine", "rotation alone"],
)
def test_what_complex_steps_do_not_see_is_not_called_symmetric(update):
    report = examine_field(update)
    assert report.verdict == "undecided" or report.error > 1e-6  # of 1e-5, and the sentence says beyond what


@pytest.mark.parametrize(
    "update",
    [
        lambda Y: np.sin(3 * Y) + 3e-5 * np.abs(Y) @ ROTATION,
        lambda Y: np.tanh(3 * Y) + 3e-5 * np.abs(Y) @ ROTATION,
        lambda Y: np.sin(10 * Y) + 3e-4 * np.abs(Y) @ ROTATION,
    ],
)
def test_no_metric_that_leaves_as_much_asymmetry_as_there_was(update):
    assert examine_field(update, 2, 2).verdict != "constant"


def test_hard_attention_moves_tokens_at_some_point():
    """Tokens far apart pick themselves, T = I; close ones do not, and the update jumps."""
    assert examine_field(lambda Y: Y[np.argmax(Y @ Y.T, axis=1)], 4, 16).verdict != "euclidean"


def test_a_ratio_of_weights_beyond_what_float32_shows():
    W = np.array([[2, 1], [1e-4, 3]], np.float32)
    report = examine_field(lambda Y: Y @ W, 2, 2, dtype="float32")
    assert report.ok or report.verdict == "undecided" or "leaves weights that differ by more than" in report.diagnosis


@pytest.mark.parametrize("name", ["tokens", "dim", "seed"])
def test_bad_numbers_are_named(name):
    with pytest.raises(ValueError, match=f"{name}: expected a whole number"):
        examine_field(lambda Y: Y, **{name: -1})
    with pytest.raises(ValueError, match=f"{name}: expected a whole number"):
        examine_field(lambda Y: Y, **{name: True})
