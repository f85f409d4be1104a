"""The conformance checks: sound implementations pass, planted faults are caught by a named check and explained."""

import dataclasses
import functools
import importlib.util
import json
import re
import threading
import time

import faults
import implementations
import numpy as np
import pytest
from caught import CAUGHT
from scipy.special import logsumexp

import refimpl
from refimpl.testing import NonConformance, check_attention, check_feedforward, check_layer
from refimpl.testing.conformance import CHECKS, KINDS, Bench, examine
from refimpl.testing.deviations import Model, Observation, explain
from refimpl.testing.subject import Subject

CHECK = {"attention": check_attention, "feedforward": check_feedforward, "layer": check_layer}


def needs(framework):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")


def attention(Y, W):
    z = 0.5 * (((Y @ W)[:, None] - Y @ W) ** 2).sum(axis=2)
    return np.exp(-z) @ Y / np.exp(-z).sum(axis=1, keepdims=True)


def feedforward(Y, Wf, B):
    return np.maximum(B - Y @ (Wf + Wf.T) / 2, 0)


def layer(Y, W, Wf, B):
    return feedforward(attention(Y, W), Wf, B)


SOUND = {"attention": attention, "feedforward": feedforward, "layer": layer}


# ------------------------------------------------------------------------------------------------ no false alarms


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        pytest.param(kind, made, id=f"{kind}-{made.name}")
        for kind, table in implementations.TABLES.items()
        for made in table
    ],
)
def test_sound_implementations_pass(kind, made):
    needs(made.framework)
    seeds = {"numpy": range(8), "torch": range(3), "jax": [0]}[made.framework]  # JAX compiles for each shape
    for seed in seeds:
        CHECK[kind](made.fn, framework=made.framework, dtype=made.dtype, batched=made.batched, seconds=60.0, seed=seed)


@pytest.mark.parametrize("rho", list(refimpl.PENALTIES))
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_penalty_passes(rho, dtype):
    slope = refimpl.get_rho(rho).derivative

    def fn(Y, W):
        z = 0.5 * (((Y @ W)[:, None] - Y @ W) ** 2).sum(axis=2)
        Gamma = np.asarray(slope(z), dtype=Y.dtype)
        return Gamma @ Y / Gamma.sum(axis=1, keepdims=True)

    assert check_attention(fn, rho, dtype=dtype).ok
    assert check_layer(lambda Y, W, Wf, B: feedforward(fn(Y, W), Wf, B), rho, dtype=dtype).ok


@pytest.mark.parametrize("rho", ["z**2", "-exp(-z**2)"])
def test_a_penalty_that_is_flat_at_zero(rho):
    """Where ρ'(0) = 0, W = 0 leaves every token without weight: it stays."""
    assert check_attention(lambda Y, W: refimpl.AttentionEnergy(W, rho).step(Y), rho).ok


@pytest.mark.parametrize("seed", range(6))
def test_weights_from_logsumexp(seed):
    def fn(Y, W):
        U = Y @ W
        logits = U @ U.T - 0.5 * (U * U).sum(axis=1)
        return np.exp(logits - logsumexp(logits, axis=1, keepdims=True)) @ Y

    assert check_attention(fn, seed=seed).ok
    assert check_attention(fn, seed=seed, dtype="float32").ok


def weighted(Y, W, m):
    z = 0.5 * (((Y @ W)[:, None] - Y @ W) ** 2).sum(axis=2)
    Gamma = m * np.exp(-z)
    return Gamma @ Y / Gamma.sum(axis=1, keepdims=True)


def test_pair_weights_pass():
    assert check_attention(weighted, pair_weights=True).ok


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: 1 + 0 * m, "the pair weights m are ignored"),
        (lambda m: 1 - m, "the mask is inverted"),
        (lambda m: 1.0 * (m > 0), "taken as a mask"),
        (np.exp, "added to the logits"),
    ],
)
def test_pair_weights_applied_wrongly(change, says):
    with pytest.raises(NonConformance, match=says):
        check_attention(lambda Y, W, m: weighted(Y, W, change(m)), pair_weights=True)


def test_gradients_are_checked_for_another_penalty_in_torch():
    needs("torch")

    def fn(Y, W):
        U = Y @ W
        z = 0.5 * ((U[:, None] - U) ** 2).sum(dim=2)
        return (Gamma := (z + 1) ** -2) @ Y / Gamma.sum(dim=1, keepdim=True)

    report = check_attention(fn, "geman_mcclure", framework="torch")
    assert "gradients" in [check.name for check in report.checks]


# ------------------------------------------------------------------------------------------------ no miss

FAULTS = [(kind, fault) for kind, table in faults.TABLES.items() for fault in table if fault.name != "prints"]


@functools.cache
def reported(kind, fault):
    try:
        return examine(
            kind,
            fault.fn,
            framework=fault.framework,
            batched=fault.batched,
            seconds=1.0 if fault.name == "sleeps for ever" else 60.0,
        )
    finally:
        faults.STOP.set()
        faults.STOP.clear()


@pytest.mark.parametrize(
    ("kind", "fault"), [pytest.param(kind, fault, id=f"{kind}-{fault.name}") for kind, fault in FAULTS]
)
def test_planted_faults_are_caught_and_explained(kind, fault):
    needs(fault.framework)
    report = reported(kind, fault)
    check, says = CAUGHT[kind][fault.name]
    assert check in [result.name for result in report.checks if not result.passed]
    assert says in report.diagnosis
    assert not report.ok


def test_the_table_lists_every_fault_once():
    assert {(kind, name) for kind, table in CAUGHT.items() for name in table} == {(k, f.name) for k, f in FAULTS}
    assert len(FAULTS) > 200
    explained = [says for table in CAUGHT.values() for _, says in table.values() if "none of the known" not in says]
    assert len(explained) > 190


@pytest.mark.parametrize("kind", KINDS)
def test_every_check_rejects_a_planted_fault(kind):
    found = [reported(kind, fault) for k, fault in FAULTS if k == kind and fault.framework == "numpy"]
    found.append(examine(kind, functools.partial(by_columns, SOUND[kind])))
    caught = {result.name for report in found for result in report.checks if not result.passed}
    without = set() if kind == "attention" else {"batch"}  # attention has the batched faults
    assert caught >= {check.name for check in CHECKS[kind]} - {"gradients"} - without
    needs("torch")
    found = [reported(kind, fault) for k, fault in FAULTS if k == kind and fault.framework == "torch"]
    assert any(result.name == "gradients" and not result.passed for report in found for result in report.checks)


def by_columns(fn, Y, *others):
    """Reads the memory of Y as if it lay row by row."""
    return fn(Y.ravel(order="K").reshape(Y.shape), *others)


def wrong_in_batches(fn, Y, *others):
    return np.stack([fn(Y[0] if len(Y) > 1 else y, *others) for y in Y])


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_of_long_sentences_alone_is_seen(kind):
    report = examine(kind, lambda Y, *others: SOUND[kind](Y, *others) if len(Y) <= 64 else Y)
    assert [result.name for result in report.checks if not result.passed] == ["many tokens"]
    assert "is right on ordinary tokens, but not in the check 'many tokens'" in report.diagnosis


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_looked_into(kind):
    fn = SOUND[kind]
    assert CHECK[kind](lambda Y, *others: np.stack([fn(y, *others) for y in Y]), batched=True).ok
    with pytest.raises(NonConformance, match="sentence 1 of a batch is not what it is alone"):
        CHECK[kind](functools.partial(wrong_in_batches, fn), batched=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "size"), [("float64", 1e-11), ("float32", 1e-3)])
def test_small_relative_errors_are_seen(kind, dtype, size):
    fn = SOUND[kind]
    with pytest.raises(NonConformance):
        CHECK[kind](lambda Y, *others: (fn(Y, *others) * (1 + size)).astype(dtype), dtype=dtype)


def test_printing_is_no_deviation(capsys):
    (fault,) = [fault for fault in faults.ATTENTION_FAULTS if fault.name == "prints"]
    assert check_attention(fault.fn).ok


def test_a_function_that_hung_is_not_called_again():
    calls, stop = [], threading.Event()

    def fn(Y, W):
        calls.append(None)
        stop.wait(60)
        return Y

    begun = time.monotonic()
    report = examine("attention", fn, seconds=0.2)
    assert time.monotonic() - begun < 5
    stop.set()
    assert len(calls) == 1
    assert report.diagnosis.startswith("your function did not return within 0.2 s")
    assert {check.message.partition(" (")[0] for check in report.checks[1:]} == {
        "not run: your function did not return before"
    }


def softmax_step(queries, keys, values):
    logits = queries @ keys.T
    A = np.exp(logits - logits.max(axis=1, keepdims=True))
    return A @ values / A.sum(axis=1, keepdims=True)


def features_without_scale(Y, W):
    U = Y @ W
    keys = np.hstack([U, -0.5 * (U * U).sum(axis=1, keepdims=True)])
    return softmax_step(np.hstack([U, np.ones((len(U), 1))]) / np.sqrt(keys.shape[1]), keys, Y)


def textbook(Y, W):
    return softmax_step(Y @ W / np.sqrt(W.shape[1]), Y @ W, Y @ W)


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (features_without_scale, "z is scaled by 1/sqrt(k + 1)"),
        (textbook, "and UUᵀ is scaled by 1/sqrt(k); and the values are projected: AYW stands for AY"),
        (lambda Y, W: attention(Y, W.astype(np.float32).astype(float)), "or uses numbers such as W that were rounded"),
        (lambda Y, W: attention(Y, W) * (1 + 1e-12), "the result is scaled by 1 + 1e-12"),
    ],
)
def test_natural_slips_are_named(fn, says):
    with pytest.raises(NonConformance, match=re.escape(says)):
        check_attention(fn)


def test_a_buffer_used_again_is_named():
    memory = {}

    def fn(Y, W):
        result = memory.setdefault(Y.shape, np.empty(Y.shape))
        result[:] = attention(Y, W)
        return result

    report = examine("attention", fn)
    assert [check.name for check in report.checks if not check.passed] == ["same answer twice"]
    assert "uses its memory again" in report.diagnosis


def test_zero_rows_are_tokens():
    report = examine("attention", lambda Y, W: np.where(Y.any(axis=1, keepdims=True), attention(Y, W), 0.0))
    assert "duplicates" in [check.name for check in report.checks if not check.passed]


# ------------------------------------------------------------------------------------------------ the search


def observations(kind, seen):
    bench = Bench(kind, Subject(SOUND[kind], "numpy", "float64", False, 10.0), refimpl.get_rho("exp"), False, 0)
    for n, d, k in [(5, 4, 4), (4, 3, 3), (9, 4, 4)]:
        inputs = bench.inputs("", n, d, k)
        yield Observation(inputs, seen(inputs), bench.tolerance(inputs))


@pytest.mark.parametrize("kind", KINDS)
def test_every_single_deviation_is_found_by_its_own_prediction(kind):
    """What a deviation predicts is explained by it, or by one that predicts the same on every input."""
    model, x = Model(kind, refimpl.get_rho("exp")), 0.7
    tried = 0
    for deviation in model.deviations():
        predict = functools.partial(model.predict, on={deviation.switch: deviation.position}, x=x)
        inputs = [seen.inputs for seen in observations(kind, lambda inputs: inputs.Y)]
        outputs = [predict(one) for one in inputs]
        if any(output is None or not np.isfinite(output).all() for output in outputs):
            continue
        found = explain(model, list(observations(kind, predict)))
        assert found is not None, deviation
        assert len(found.deviations) <= 1, (deviation, found)
        on = {d.switch: d.position for d in found.deviations}
        for one, output in zip(inputs, outputs, strict=True):
            assert np.allclose(model.predict(one, on, found.fitted or 1.0), output, rtol=1e-9, atol=1e-9)
        tried += 1
    assert tried >= 0.9 * len(model.deviations())


def test_a_correct_output_needs_no_deviation():
    for kind in KINDS:
        model = Model(kind, refimpl.get_rho("exp"))
        found = explain(model, list(observations(kind, lambda inputs, m=model: m.predict(inputs, {}))))
        assert found.deviations == ()
        assert found.precision is None


def test_noise_is_not_explained():
    rng = np.random.default_rng(0)
    for kind in ("attention", "feedforward"):
        seen = list(observations(kind, lambda inputs: rng.standard_normal(inputs.Y.shape)))
        assert explain(Model(kind, refimpl.get_rho("exp")), seen) is None


# ------------------------------------------------------------------------------------------------ arguments


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"framework": "mxnet"}, ValueError, "framework: expected one of numpy, torch, jax, got 'mxnet'"),
        ({"dtype": "float16"}, ValueError, "dtype: expected one of float64, float32, got 'float16'"),
        ({"seconds": 0}, ValueError, r"seconds: expected a number in \(0, inf\), got 0"),
        ({"seconds": "1"}, TypeError, "seconds: expected a real number, got str"),
        ({"rho": "sqrt(z)"}, ValueError, "rho: expected a finite slope at 0"),
        ({"fn": 3}, TypeError, "fn: expected a function of numpy arrays, got int"),
    ],
)
def test_bad_arguments(refused, arguments, error, says):
    with refused(error, says):
        check_attention(**({"fn": attention} | arguments))


def test_the_report_is_plain_json():
    report = examine("attention", lambda Y, W: Y)
    assert json.loads(json.dumps(report.as_dict()))["ok"] is False
    assert set(report.as_dict()["checks"][0]) == {field.name for field in dataclasses.fields(report.checks[0])}


def test_the_error_names_the_diagnosis_and_the_failed_checks():
    with pytest.raises(NonConformance) as caught:
        check_feedforward(lambda Y, Wf, B: np.maximum(B - Y @ Wf, 0))
    first, *rest = str(caught.value).splitlines()
    assert first.startswith("your feed-forward step equals ReLU(B − YW_f) to ")
    assert rest[0].startswith("  value: differs from the reference: entry (")


def test_inputs_depend_on_the_seed_alone():
    def inputs(seed):
        bench = Bench("layer", Subject(layer, "numpy", "float64", False, 10.0), refimpl.get_rho("exp"), False, seed)
        return bench.ordinary()

    for first, again, other in zip(inputs(0), inputs(0), inputs(1), strict=True):
        assert np.array_equal(first.Y, again.Y)
        assert not np.array_equal(first.Y, other.Y)
