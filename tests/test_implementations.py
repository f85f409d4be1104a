"""The independent implementations agree with each other, and every planted fault is a fault."""

import contextlib
import threading

import numpy as np
import pytest
from faults import ATTENTION_FAULTS, STOP
from faults import TABLES as FAULTS
from implementations import TABLES, feedforward_loops, loops, torch_linear, torch_logits

PLAIN = {  # what the others are compared with: no array operations
    "attention": loops,
    "feedforward": feedforward_loops,
    "layer": lambda Y, W, Wf, B: feedforward_loops(loops(Y, W), Wf, B),
}
SIZES = {"square": (5, 4, 4), "narrow": (6, 3, 2), "wide": (4, 2, 3), "one feature": (3, 1, 1), "one token": (1, 3, 3)}


def inputs(kind, n, d, k, seed=0, batch=()):
    """Y, and what else the kind takes."""
    rng = np.random.default_rng(seed)
    Y, W, Wf, B = (
        rng.normal(size=(*batch, n, d)),
        rng.normal(size=(d, k)),
        rng.normal(size=(d, d)),
        rng.normal(size=(n, d)),
    )
    return {"attention": (Y, W), "feedforward": (Y, Wf, B), "layer": (Y, W, Wf, B)}[kind]


def tolerance(kind, arrays, dtype="float64"):
    """A bound of the rounding: sums of n + d + k terms; a weight is off by its relative error times |y|."""
    eps = np.finfo(dtype).eps
    Y = arrays[0]
    size, terms = np.abs(Y).max(), Y.shape[-2] + Y.shape[-1]
    error = 0.0
    if kind != "feedforward":
        W = arrays[1]
        terms += W.shape[1]
        # z and the logits are sums of products of U and have errors of their terms' size; w e^(δ) ≈ w (1 + δ)
        logits = Y.shape[-1] * np.abs(Y).max() ** 2 * np.linalg.norm(W) ** 2
        error = 2 * terms * eps * (1 + logits) * size
    if kind != "attention":
        Wf, B = arrays[-2:]
        norm = np.abs(Wf + Wf.T).sum(axis=0).max() / 2
        error = error * norm + 2 * terms * eps * (size * (1 + norm) + np.abs(B).max())
    return error


@contextlib.contextmanager
def in_framework(framework):
    """A function that makes the framework's arrays, in float64."""
    if framework == "torch":
        torch = pytest.importorskip("torch", reason="torch is not installed")
        yield lambda arrays: [torch.tensor(array) for array in arrays]
    elif framework == "jax":
        jax = pytest.importorskip("jax", reason="jax is not installed")
        with jax.enable_x64(True):  # float32 is its default
            yield lambda arrays: [jax.numpy.asarray(array) for array in arrays]
    else:
        yield lambda arrays: [array.copy() for array in arrays]


def plain(kind, arrays):
    Y, *rest = arrays
    return PLAIN[kind](Y, *rest) if Y.ndim == 2 else np.stack([PLAIN[kind](tokens, *rest) for tokens in Y])


def rows(tables, keep=lambda row: True):
    return [
        pytest.param(kind, row, id=f"{kind}-{row.name}") for kind, table in tables.items() for row in table if keep(row)
    ]


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize(("kind", "made"), rows(TABLES))
def test_implementations_agree(kind, made, size):
    for seed in range(3):
        arrays = inputs(kind, *size, seed=seed, batch=(3,) * made.batched)
        with in_framework(made.framework) as of:
            result = np.asarray(made.fn(*of(arrays)))
        assert result.dtype == made.dtype
        np.testing.assert_allclose(result, plain(kind, arrays), rtol=0, atol=tolerance(kind, arrays, made.dtype))


@pytest.mark.parametrize(("kind", "made"), rows(TABLES, lambda made: made.dtype == "float64"))
def test_implementations_agree_on_large_and_on_equal_tokens(kind, made):
    for factor in (0.0, 1e-8, 60.0):  # at 60, e^(½|u|²) overflows
        Y, *rest = inputs(kind, 5, 4, 4, batch=(3,) * made.batched)
        arrays = (factor * Y, *rest)
        with in_framework(made.framework) as of:
            result = np.asarray(made.fn(*of(arrays)))
        np.testing.assert_allclose(result, plain(kind, arrays), rtol=0, atol=tolerance(kind, arrays))


@pytest.mark.parametrize("table", [*TABLES.values(), *FAULTS.values()])
def test_names_are_unique(table):
    names = [row.name for row in table]
    assert len(set(names)) == len(names)


def test_enough_faults():
    assert sum(map(len, FAULTS.values())) >= 70


# ------------------------------------------------------------------------------------------------ faults

RAISE = {"raises": RuntimeError, "exits": SystemExit, "attention: raises": RuntimeError}
OF_ANOTHER_KIND = {  # type, dtype, shape or place
    "float32 returned",
    "complex returned",
    "integers returned",
    "list returned",
    "None returned",
    "axis added",
    "row missing",
    "transposed returned",
    "flattened",
    "batch axis lost",
    "torch float32 returned",
    "torch array returned",
    "torch other device",
}
WRONG_GRADIENT = {
    "torch detached",
    "torch detached weights",
    "torch W detached",
    "torch wrong backward",
    "torch square root",
    "torch straight through",
    "torch attention detached",
    "jax detached weights",
    "jax Wf detached",
}
CHANGES_ITS_INPUTS = {"tokens changed", "bias changed", "feed-forward: bias changed"}
WRONG_ELSEWHERE = {  # right on ordinary tokens, wrong on these
    "overflows": lambda Y: 60 * Y,
    "logits clipped": lambda Y: 10 * Y,
    "nan for duplicates": lambda Y: Y[[0, 1, 2, 0]],
}
ON_THEIR_OWN = {"raises for one token", "sleeps for ever", "prints", "second call differs"}
RIGHT_IN_VALUE = {*RAISE, *OF_ANOTHER_KIND, *WRONG_GRADIENT, *CHANGES_ITS_INPUTS, *WRONG_ELSEWHERE, *ON_THEIR_OWN}


def named(*names):
    return rows(FAULTS, lambda fault: fault.name in names)


def one(table, name):
    return next(fault for fault in table if fault.name == name)


def is_right(kind, result, arrays):
    return np.abs(np.asarray(result) - plain(kind, arrays)).max() <= tolerance(kind, arrays)


def deviates(kind, result, arrays):
    """Not finite, or off by far more than rounding."""
    off = np.abs(np.asarray(result) - plain(kind, arrays)).max()
    return not off <= 1000 * tolerance(kind, arrays)


def test_every_exception_is_a_fault():
    assert {fault.name for table in FAULTS.values() for fault in table} >= RIGHT_IN_VALUE


@pytest.mark.parametrize(("kind", "fault"), rows(FAULTS, lambda fault: fault.name not in RIGHT_IN_VALUE))
def test_faults_deviate(kind, fault):
    arrays = inputs(kind, 5, 4, 4, batch=(3,) * fault.batched)
    with in_framework(fault.framework) as of:
        given = of(arrays)
        result = fault.fn(*given)
        assert type(result) is type(given[0])
        assert result.shape == given[0].shape
        assert result.dtype == given[0].dtype
        assert deviates(kind, result, arrays)


@pytest.mark.parametrize(("kind", "fault"), named(*RAISE))
def test_faults_that_raise(kind, fault):
    with pytest.raises(RAISE[fault.name]):
        fault.fn(*inputs(kind, 5, 4, 4))


@pytest.mark.parametrize(("kind", "fault"), named(*OF_ANOTHER_KIND))
def test_faults_of_another_kind(kind, fault):
    arrays = inputs(kind, 5, 4, 4, batch=(3,) * fault.batched)
    with in_framework(fault.framework) as of:
        given = of(arrays)

        def described(array):
            return type(array), *(str(getattr(array, name, None)) for name in ("dtype", "shape", "device"))

        assert described(fault.fn(*given)) != described(given[0])


def gradients(framework, fn, given, V):
    """The cotangents of the inputs, None where there are none."""
    if framework == "jax":
        import jax

        return jax.vjp(fn, *given)[1](V)
    import torch

    given = [array.requires_grad_() for array in given]
    result = fn(*given)
    return torch.autograd.grad(result, given, V, allow_unused=True) if result.requires_grad else [None] * len(given)


@pytest.mark.parametrize(("kind", "fault"), named(*WRONG_GRADIENT))
def test_faults_in_the_gradient(kind, fault):
    arrays = inputs(kind, 5, 4, 4)
    right = {
        "attention": torch_logits,
        "feedforward": torch_linear,
        "layer": lambda Y, W, Wf, B: torch_linear(torch_logits(Y, W), Wf, B),
    }[kind]
    with in_framework("torch") as of:
        *given, V = of([*arrays, np.random.default_rng(9).normal(size=arrays[0].shape)])
        expected = [gradient.numpy() for gradient in gradients("torch", right, given, V)]
    with in_framework(fault.framework) as of:
        *given, V = of([*arrays, np.random.default_rng(9).normal(size=arrays[0].shape)])
        assert is_right(kind, fault.fn(*given), arrays)
        found = gradients(fault.framework, fault.fn, given, V)
    off = [np.inf if g is None else np.abs(np.asarray(g) - e).max() for g, e in zip(found, expected, strict=True)]
    assert not max(off) <= 1e-3


def test_the_same_gradient_in_jax_as_in_torch():
    arrays = inputs("layer", 5, 4, 3)
    V = np.random.default_rng(9).normal(size=arrays[0].shape)
    found = {}
    for framework, name in {"torch": "torch sdpa, linear", "jax": "jax jit"}.items():
        with in_framework(framework) as of:
            *given, direction = of([*arrays, V])
            made = one(TABLES["layer"], name)
            found[framework] = [np.asarray(g) for g in gradients(framework, made.fn, given, direction)]
    for a, b in zip(found["torch"], found["jax"], strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e3 * tolerance("layer", arrays))


@pytest.mark.parametrize(("kind", "fault"), named(*CHANGES_ITS_INPUTS))
def test_faults_that_change_their_inputs(kind, fault):
    arrays = inputs(kind, 5, 4, 4)
    given = [array.copy() for array in arrays]
    assert is_right(kind, fault.fn(*given), arrays)
    assert any((a != b).any() for a, b in zip(given, arrays, strict=True))


@pytest.mark.parametrize(("kind", "fault"), named(*WRONG_ELSEWHERE))
def test_faults_on_some_tokens_only(kind, fault):
    Y, *rest = inputs(kind, 5, 4, 4)
    Y = 0.5 * Y
    elsewhere = WRONG_ELSEWHERE[fault.name](Y)
    assert is_right(kind, fault.fn(Y, *rest), (Y, *rest))
    assert deviates(kind, fault.fn(elsewhere, *rest), (elsewhere, *rest))


def test_raises_for_one_token():
    fn = one(ATTENTION_FAULTS, "raises for one token").fn
    assert is_right("attention", fn(*inputs("attention", 2, 3, 3)), inputs("attention", 2, 3, 3))
    with pytest.raises(IndexError):
        fn(*inputs("attention", 1, 3, 3))


def test_sleeps_until_it_is_stopped():
    fn = one(ATTENTION_FAULTS, "sleeps for ever").fn
    thread = threading.Thread(target=fn, args=inputs("attention", 2, 3, 3), daemon=True)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    STOP.set()
    thread.join(10)
    STOP.clear()
    assert not thread.is_alive()


def test_prints(capsys):
    arrays = inputs("attention", 5, 4, 4)
    assert is_right("attention", one(ATTENTION_FAULTS, "prints").fn(*arrays), arrays)
    assert capsys.readouterr().out.count("\n") == 1000


def test_second_call_differs():
    arrays = inputs("attention", 5, 4, 4)
    results = [one(ATTENTION_FAULTS, "second call differs").fn(*arrays) for _ in range(4)]
    assert sorted(is_right("attention", result, arrays) for result in results) == [False, False, True, True]
    assert (results[0] != results[1]).any()


def test_dropout_differs_from_call_to_call():
    fn = one(ATTENTION_FAULTS, "random dropout").fn
    arrays = inputs("attention", 5, 4, 4)
    assert (fn(*arrays) != fn(*arrays)).any()


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("factor", [0.0, 1.0, 60.0, 1e4])
def test_faults_do_not_warn(size, factor):
    """A warning is an error here; shapes that don't fit are ValueErrors."""
    for kind, table in FAULTS.items():
        for fault in table:
            if fault.framework == "numpy" and fault.name not in {*RAISE, "sleeps for ever"}:
                Y, *rest = inputs(kind, *size, batch=(3,) * fault.batched)
                with contextlib.suppress(ValueError, IndexError), contextlib.redirect_stdout(None):
                    fault.fn(factor * Y, *rest)
