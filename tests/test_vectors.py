"""The published vectors: made, read and checked; our own code and a plain one pass, planted faults do not."""

import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import mpmath
import numpy as np
import pytest

import refimpl
from refimpl import cli, definitions, vectors
from refimpl.vectors import exact
from refimpl.vectors.cases import FAMILIES
from refimpl.vectors.check import SCHEMA, read_vectors, tolerance
from refimpl.vectors.operations import OPERATIONS

ROOT = Path(__file__).parent.parent
EPS = np.finfo(float).eps


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("vectors")
    vectors.write(path)
    return path


@pytest.fixture(scope="module")
def cases(directory):
    return read_vectors(directory)


def array(a, dtype=np.float64):
    return np.array(a["floats"], dtype=dtype).reshape(a["shape"])


# ---------------------------------------------------------------------- a plain NumPy program that knows only the files


def bisected(sigma):
    def prox(v, alpha):
        low, high = v - 800 * (1 + 1 / alpha), v + 800 * (1 + 1 / alpha)
        for _ in range(120):
            middle = (low + high) / 2
            below = (1 - alpha) * sigma(middle) + alpha * middle < v
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return sigma(v if np.all(alpha == 1) else (low + high) / 2)

    return prox


def dilog(x):
    return np.where(x <= 0.5, series(np.minimum(x, 0.5)), reflected(np.maximum(x, 0.5)))


def series(x):
    return sum(x**k / k**2 for k in range(1, 60))


def reflected(x):
    inner = np.where(x < 1, x, 0.5)
    return np.where(x < 1, np.pi**2 / 6 - np.log(inner) * np.log1p(-inner) - series(1 - inner), np.pi**2 / 6)


def xlog(x):
    return x * np.log(np.where(x == 0, 1.0, x))


def on(inside, phi, y, safe):
    """φ where ``inside``, else infinite; ``safe`` stands in outside."""
    return np.where(inside, phi(np.where(inside, y, safe)), np.inf)


RHO = {
    "exp": (lambda z: -np.exp(-z), lambda z: np.exp(-z)),
    "log2": (lambda z: np.log(z + 2), lambda z: 1 / (z + 2)),
    "log1p": (np.log1p, lambda z: 1 / (1 + z)),
    "sqrt": (lambda z: np.sqrt(z + 1), lambda z: 0.5 / np.sqrt(z + 1)),
    "geman_mcclure": (
        lambda z: np.where(np.isinf(z), 1, z / (1 + np.where(np.isinf(z), 0, z))),
        lambda z: (1 + z) ** -2,
    ),
    "linear": (lambda z: z, np.ones_like),
    "epanechnikov": (lambda z: np.where(z < 1, z - z * np.minimum(z, 1) / 2, 0.5), lambda z: np.maximum(1 - z, 0)),
    "truncated": (lambda z: np.minimum(z, 1), lambda z: np.where(z < 1, 1.0, 0.0)),
}
SIGMA = {  # prox and penalty, parameters at their defaults
    "identity": (lambda v, a: v, np.zeros_like),
    "relu": (lambda v, a: np.maximum(v, 0), lambda y: np.where(y >= 0, 0, np.inf)),
    "shifted_relu": (lambda v, a: np.maximum(v - a / 2, 0), lambda y: np.where(y >= 0, y / 2, np.inf)),
    "soft_threshold": (lambda v, a: np.sign(v) * np.maximum(np.abs(v) - a / 2, 0), lambda y: np.abs(y) / 2),
    "hard_threshold": (lambda v, a: np.where(np.abs(v) >= np.sqrt(a) / 2, v, 0), lambda y: (y != 0) / 8),
    "leaky_relu": (
        lambda v, a: np.where(v >= 0, v, v * 0.01 / (0.01 + a * 0.99)),
        lambda y: 0.99 / 0.02 * np.minimum(y, 0) ** 2,
    ),
    "hard_tanh": (lambda v, a: np.clip(v, -1, 1), lambda y: np.where(np.abs(y) <= 1, 0, np.inf)),
    "tanh": (
        bisected(np.tanh),
        lambda y: on(np.abs(y) <= 1, lambda t: (xlog(1 + t) + xlog(1 - t) - t * t) / 2, y, 0),
    ),
    "sigmoid": (
        bisected(lambda t: np.exp(-np.logaddexp(0, -t))),
        lambda y: on((y >= 0) & (y <= 1), lambda t: xlog(t) + xlog(1 - t) - t * t / 2, y, 0),
    ),
    "softplus": (bisected(lambda t: np.logaddexp(0, t)), lambda y: on(y >= 0, lambda t: dilog(np.exp(-t)), y, 1)),
    "elu": (
        bisected(lambda t: np.where(t >= 0, t, np.expm1(np.minimum(t, 0)))),
        lambda y: on(y >= -1, lambda t: np.where(t >= 0, 0, xlog(1 + np.minimum(t, 0)) - t - t * t / 2), y, 0),
    ),
}


class Plain:
    """Every operation as one would write it; the faults below replace a method each."""

    dtype = np.float64

    def answer(self, case):
        x = {name: array(a, self.dtype) for name, a in case["inputs"].items()}
        self.name = case.get("rho", {}).get("name")
        self.rho, self.slope = RHO.get(self.name, (None, None))
        self.prox, self.penalty = SIGMA[case.get("activation", {}).get("name", "identity")]
        with np.errstate(over="ignore", under="ignore"):
            return self.changed(np.asarray(getattr(self, case["operation"].replace(".", "_"))(**x)))

    def changed(self, result):
        return result

    def half(self, squares):
        return squares / 2

    def distances(self, Y, W):
        U = (Y[:, None] - Y[None]) @ W
        return self.half((U * U).sum(axis=-1))

    def kernel(self, Y, W, m):
        return m * self.slope(self.distances(Y, W))

    def metric(self, W):
        return W @ W.T

    def pairs(self, terms):
        return np.triu(terms, 1).sum()

    def normalised(self, Gamma):
        d = Gamma.sum(axis=1, keepdims=True)
        return np.where(d == 0, np.eye(len(Gamma)), Gamma / np.where(d == 0, 1, d))

    def attention_energy(self, Y, W, m):
        return self.pairs(m * self.rho(self.distances(Y, W)))

    def attention_gradient(self, Y, W, m):
        pull = (self.kernel(Y, W, m)[..., None] * (Y[:, None] - Y[None])).sum(axis=1)
        return pull @ self.metric(W)

    def attention_weights(self, Y, W, m):
        if self.name == "exp" and len(Y):  # softmax, less the largest exponent
            Z = np.where(m > 0, self.distances(Y, W), np.inf)
            least = Z.min(axis=1, keepdims=True)
            return self.normalised(m * np.exp(np.where(np.isinf(least), 0, least) - Z))
        return self.normalised(self.kernel(Y, W, m))

    def attention_step(self, Y, W, m, alpha):
        return (1 - alpha) * Y + alpha * (self.attention_weights(Y, W, m) @ Y)

    def attention_majorizer(self, Y, W, m, Y_new):
        change = self.distances(Y_new, W) - self.distances(Y, W)
        return self.attention_energy(Y, W, m) + self.pairs(self.kernel(Y, W, m) * change)

    def data(self, lam):
        return lam

    def spectral(self, W):
        return np.linalg.norm(W, 2) ** 2

    def residual_energy(self, Y, W, m, X, lam):
        return self.attention_energy(Y, W, m) + self.data(lam) / 2 * ((Y - X) ** 2).sum()

    def residual_gradient(self, Y, W, m, X, lam):
        return self.attention_gradient(Y, W, m) + self.data(lam) * (Y - X)

    def residual_step(self, Y, W, m, X, lam):
        M = self.spectral(W) * self.kernel(Y, W, m).sum(axis=1, keepdims=True) + lam
        return Y - self.residual_gradient(Y, W, m, X, lam) / M

    def hessian(self, Wf):
        return np.eye(len(Wf)) + (Wf + Wf.T) / 2

    def feedforward_energy(self, Y, Wf, B):
        quadratic = ((Y @ Wf) * Y).sum() / 2 + ((Y - B) ** 2).sum() / 2
        return quadratic + self.penalty(Y).sum()

    def feedforward_gradient(self, Y, Wf, B):
        return Y @ self.hessian(Wf) - B

    def moved(self, Y, Wf, B, alpha):
        return Y - alpha * self.feedforward_gradient(Y, Wf, B)

    def feedforward_step(self, Y, Wf, B, alpha):
        return self.prox(self.moved(Y, Wf, B, alpha), alpha)

    def prox_operator(self, v, alpha):
        return self.prox(v, alpha)

    def prox_penalty(self, y):
        return self.penalty(y)

    def layer_alternating(self, Y, W, m, Wf, B, alpha):
        return self.feedforward_step(self.attention_step(Y, W, m, alpha), Wf, B, alpha)

    def scale(self, Y, W, m, Wf):
        h = np.linalg.eigvalsh(self.hessian(Wf)).max()
        return self.spectral(W) * self.kernel(Y, W, m).sum(axis=1, keepdims=True) + max(h, 0) / 2

    def layer_joint(self, Y, W, m, Wf, B):
        M = self.scale(Y, W, m, Wf)
        gradient = self.attention_gradient(Y, W, m) + self.feedforward_gradient(Y, Wf, B)
        return self.prox(Y - gradient / M, np.broadcast_to(1 / M, Y.shape))


def core(case):
    """The same by refimpl itself."""
    x, operation = {name: array(a) for name, a in case["inputs"].items()}, case["operation"]
    activation = case.get("activation", {}).get("name", "identity")
    if operation == "prox.operator":
        return refimpl.get_activation(activation).prox(x["v"], x["alpha"][()])
    if operation == "prox.penalty":
        return refimpl.get_activation(activation).penalty(x["y"])
    family, method = operation.split(".")
    method = {"energy": "value"}.get(method, method)
    alpha = {"alpha": float(x["alpha"])} if "alpha" in x else {}
    ffn = refimpl.FeedForwardEnergy(x["Wf"], x["B"], activation) if "Wf" in x else None
    if family == "feedforward":
        return getattr(ffn, method)(x["Y"], **alpha)
    attn = refimpl.AttentionEnergy(x["W"], case["rho"]["name"], x["m"])
    if family == "residual":
        return getattr(refimpl.ResidualAttentionEnergy(attn, x["X"], float(x["lam"])), method)(x["Y"])
    if family == "layer":
        return refimpl.UnfoldedTransformer(attn, ffn, schedule=method, **alpha).layer(x["Y"])
    arguments = (x["Y_new"], x["Y"]) if method == "majorizer" else (x["Y"],)
    return getattr(attn, method)(*arguments, **alpha)


def spelled(value):
    """A result as JSON takes it: hexadecimal text, so that no digit and no infinity is lost."""
    return [spelled(v) for v in value] if isinstance(value, list) else float(value).hex()


def checked(tmp_path, directory, answers, dtype="float64"):
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"results": {name: spelled(np.asarray(a).tolist()) for name, a in answers.items()}}))
    return vectors.check(directory, path, dtype)


def test_our_own_code_passes_to_the_last_digits(tmp_path, directory, cases):
    report = checked(tmp_path, directory, {name: core(case) for name, case in cases.items()})
    assert report["failed"] == report["missing"] == report["skipped"] == report["unknown"] == []
    assert report["cases"] == report["passed"] == len(report["errors"])
    worst = max(report["errors"], key=lambda name: report["errors"][name]["error"])
    assert report["errors"][worst]["error"] <= 1e-12, worst


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_plain_program_passes(tmp_path, directory, cases, dtype):
    plain = Plain()
    plain.dtype = np.dtype(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        answers = {name: plain.answer(case) for name, case in cases.items()}
    report = checked(tmp_path, directory, answers, dtype)
    assert report["failed"] == []
    reasons = {item["reason"].split(":")[0] for item in report["skipped"]}
    assert reasons == (set() if dtype == "float64" else {"outside the range of float32", "no digit is left in float32"})
    assert len(report["skipped"]) < 60
    assert report["passed"] + len(report["skipped"]) == report["cases"]


def fault(**methods):
    return type("Faulty", (Plain,), methods)()


def softmax(logits, m):
    weights = m * np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
    return weights / weights.sum(axis=1, keepdims=True)


def beta(U):
    return (U * U).sum(axis=1) / 2


def logits(Y, W, m, reweighted=True, divisor=1.0):
    U = Y @ W
    return softmax((U @ U.T - reweighted * beta(U)) / divisor, m)


def gram(Y, W):
    U = Y @ W
    return np.maximum((U * U).sum(axis=1)[:, None] / 2 + (U * U).sum(axis=1)[None] / 2 - U @ U.T, 0)


def flushed(self, result):
    return np.where(np.abs(result) < 1e-30, 0.0, result)


# what is wrong, a case that tells and the program
FAULTS = {
    "no beta": ("attention.weights/exp/ordinary", {"attention_weights": lambda s, Y, W, m: logits(Y, W, m, False)}),
    "1/sqrt(d)": (
        "attention.weights/exp/ordinary",
        {"attention_weights": lambda s, Y, W, m: logits(Y, W, m, divisor=math.sqrt(W.shape[1]))},
    ),
    "no half": ("attention.energy/log2/ordinary", {"half": lambda s, x: x}),
    "Gram matrix": ("attention.energy/exp/translated", {"distances": lambda s, Y, W: gram(Y, W)}),
    "pairs twice": ("attention.energy/sqrt/ordinary", {"pairs": lambda s, t: t.sum() - np.trace(t)}),
    "the diagonal in the energy": ("attention.energy/exp/ordinary", {"pairs": lambda s, t: np.triu(t).sum()}),
    "mean of pairs": ("attention.energy/linear/ordinary", {"pairs": lambda s, t: np.triu(t, 1).sum() / max(t.size, 1)}),
    "no pair weights": ("attention.step/log2/pair-weights", {"kernel": lambda s, Y, W, m: s.slope(s.distances(Y, W))}),
    "WT W": (
        "attention.gradient/exp/square-map",
        {"metric": lambda s, W: W.T @ W if W.shape[0] == W.shape[1] else W @ W.T},
    ),
    "no metric": ("attention.gradient/exp/ordinary", {"metric": lambda s, W: np.eye(len(W))}),
    "columns normalised": ("attention.weights/log2/ordinary", {"normalised": lambda s, G: Plain.normalised(s, G.T).T}),
    "no diagonal": (
        "attention.weights/log2/ordinary",
        {"normalised": lambda s, G: Plain.normalised(s, G * (1 - np.eye(len(G))))},
    ),
    "zero for an isolated token": (
        "attention.step/exp/isolated-token",
        {"normalised": lambda s, G: Plain.normalised(s, G) * (G.sum(axis=1, keepdims=True) != 0)},
    ),
    "underflow of a row": (
        "attention.weights/exp/row-underflow",
        {"attention_weights": lambda s, Y, W, m: s.normalised(s.kernel(Y, W, m))},
    ),
    "uphill": (
        "attention.step/exp/ordinary",
        {"attention_step": lambda s, Y, W, m, alpha: (1 + alpha) * Y - alpha * (s.attention_weights(Y, W, m) @ Y)},
    ),
    "no step size": (
        "attention.step/exp/alpha-0.5",
        {"attention_step": lambda s, Y, W, m, alpha: s.attention_weights(Y, W, m) @ Y},
    ),
    "sign of the gradient": (
        "attention.gradient/linear/ordinary",
        {"attention_gradient": lambda s, Y, W, m: -Plain.attention_gradient(s, Y, W, m)},
    ),
    "tiny flushed": ("attention.step/exp/underflow", {"changed": flushed}),
    "tiny energy flushed": ("attention.energy/log1p/tiny", {"changed": flushed}),
    "log(1 + z)": (
        "attention.energy/log1p/tiny",
        {"attention_energy": lambda s, Y, W, m: s.pairs(m * np.log(1 + s.distances(Y, W)))},
    ),
    "no lambda": ("residual.energy/exp/ordinary", {"data": lambda s, lam: 1.0}),
    "lambda doubled": ("residual.gradient/exp/ordinary", {"data": lambda s, lam: 2 * lam}),
    "s left out": ("residual.step/exp/ordinary", {"spectral": lambda s, W: 1.0}),
    "norm of W, not of S": ("layer.joint/exp/relu/ordinary", {"spectral": lambda s, W: np.linalg.norm(W, 2)}),
    "Frobenius norm": ("residual.step/log1p/square-map", {"spectral": lambda s, W: (W * W).sum()}),
    "Wf not symmetrised": ("feedforward.gradient/antisymmetric", {"hessian": lambda s, Wf: np.eye(len(Wf)) + Wf}),
    "no identity in H": ("feedforward.gradient/three-channels", {"hessian": lambda s, Wf: (Wf + Wf.T) / 2}),
    "sign of the bias": (
        "feedforward.gradient/bias-only",
        {"feedforward_gradient": lambda s, Y, Wf, B: Y @ s.hessian(Wf) + B},
    ),
    "bias unscaled": (
        "feedforward.step/relu/alpha-0.25",
        {"moved": lambda s, Y, Wf, B, alpha: Y - alpha * (Y @ s.hessian(Wf)) + B},
    ),
    "prox of step 1": (
        "feedforward.step/tanh/alpha-0.25",
        {"feedforward_step": lambda s, Y, Wf, B, alpha: s.prox(s.moved(Y, Wf, B, alpha), 1.0)},
    ),
    "threshold unscaled": (
        "prox.operator/soft_threshold/alpha-0.25",
        {"prox_operator": lambda s, v, alpha: s.prox(v, 1.0)},
    ),
    "no penalty": (
        "feedforward.energy/shifted_relu/ordinary",
        {"feedforward_energy": lambda s, Y, Wf, B: ((Y @ Wf) * Y).sum() / 2 + ((Y - B) ** 2).sum() / 2},
    ),
    "finite outside": ("prox.penalty/relu/outside", {"prox_penalty": lambda s, y: np.minimum(s.penalty(y), 1e300)}),
    "layer reversed": (
        "layer.alternating/exp/relu/ordinary",
        {
            "layer_alternating": lambda s, Y, W, m, Wf, B, alpha: s.attention_step(
                s.feedforward_step(Y, Wf, B, alpha), W, m, alpha
            )
        },
    ),
    "whole curvature": (
        "layer.joint/log2/relu/ordinary",
        {"scale": lambda s, Y, W, m, Wf: 2 * Plain.scale(s, Y, W, m, Wf)},
    ),
    "negative curvature": (
        "layer.joint/log1p/relu/concave",
        {
            "scale": lambda s, Y, W, m, Wf: (
                s.spectral(W) * s.kernel(Y, W, m).sum(axis=1, keepdims=True)
                + np.linalg.eigvalsh(s.hessian(Wf)).max() / 2
            )
        },
    ),
    "joint prox unscaled": (
        "layer.joint/exp/soft_threshold/ordinary",
        {
            "layer_joint": lambda s, Y, W, m, Wf, B: s.prox(
                Y - (s.attention_gradient(Y, W, m) + s.feedforward_gradient(Y, Wf, B)) / s.scale(Y, W, m, Wf), 1.0
            )
        },
    ),
    "nan": ("attention.step/exp/ordinary", {"changed": lambda s, r: r * np.nan}),
    "transposed weights": ("attention.weights/exp/ordinary", {"changed": lambda s, r: r.T}),
    "float32 inside": ("attention.step/exp/ordinary", {"changed": lambda s, r: r.astype(np.float32)}),
}


@pytest.mark.parametrize(("case", "methods"), FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_fails(tmp_path, directory, cases, case, methods):
    assert Plain().answer(cases[case]).tolist() == fault().answer(cases[case]).tolist()
    report = checked(tmp_path, directory, {case: fault(**methods).answer(cases[case])})
    assert case not in report["missing"]
    assert case in [item["id"] for item in report["failed"]]
    assert report["passed"] == 0


def test_a_relative_error_of_1e_9_fails_every_ordinary_case(tmp_path, directory, cases):
    ordinary = {name: case for name, case in cases.items() if "Ordinary" in case["flags"]}
    assert len(ordinary) > 150
    answers = {name: np.multiply(core(case), 1 + 1e-9) for name, case in ordinary.items()}
    zero = {name for name, case in ordinary.items() if not any(case["expected"]["floats"])}
    zero |= {n for n, c in ordinary.items() if not any(math.isfinite(x) and x for x in c["expected"]["floats"])}
    failed = {item["id"] for item in checked(tmp_path, directory, answers)["failed"] if item["reason"] != "missing"}
    assert failed == set(ordinary) - zero
    assert len(zero) < 5


# ---------------------------------------------------------------------------------------------------- what is written


def test_byte_for_byte_and_small(tmp_path, directory):
    (tmp_path / "attention.json").write_text("old")
    (tmp_path / "mine.txt").write_text("mine")
    report = vectors.write(tmp_path)
    names = {*(f"{name}.json" for name in FAMILIES), SCHEMA}
    assert set(report["files"]) == names == {path.name for path in directory.iterdir()}
    assert {path.name for path in tmp_path.iterdir()} == names | {"mine.txt"}
    for name in names:
        data = (tmp_path / name).read_bytes()
        assert data == (directory / name).read_bytes()
        assert b"\r" not in data
        assert data.endswith(b"\n")
    assert 300 <= report["cases"] < 450
    assert sum(report["files"].values()) < 2e6


def test_what_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch):
    (tmp_path / "attention.json").write_text("old")
    seen = []

    def stop(done, total, label):
        seen.append(done)
        if done == 300:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vectors.write(tmp_path, stop)
    assert seen == list(range(1, 301))
    assert [path.name for path in tmp_path.iterdir()] == ["attention.json"]
    assert (tmp_path / "attention.json").read_text() == "old"


def test_the_files_follow_the_schema(directory):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((directory / SCHEMA).read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    for family in FAMILIES:
        document = json.loads((directory / f"{family}.json").read_text(encoding="utf-8"))
        validator.validate(document)
        del document["cases"][3]["condition"]
        assert not validator.is_valid(document)


def test_every_shipped_function_operation_and_kind_of_input_has_cases(cases):
    used = [case.get(key, {}).get("name") for case in cases.values() for key in ("rho", "activation")]
    assert set(used) - {None} == {*refimpl.PENALTIES, *refimpl.activation.ACTIVATIONS}
    flags = {flag for case in cases.values() for flag in case["flags"]}
    expected = "Ordinary Tiny Huge Translated Duplicate Collinear RankDeficient Empty SingleToken PairWeights"
    assert {*expected.split()} <= flags
    assert all(case["note"] for case in cases.values())


def test_the_numbers(cases):
    """Hex and decimal are the same float; the expected value has 40 digits and is the definition's at 80 digits."""
    case = cases["attention.step/exp/ordinary"]
    rho = exact.penalty("exp")
    with mpmath.workdps(80):
        x = {
            k: [[mpmath.mpf(v) for v in row] for row in array(a).tolist()]
            for k, a in case["inputs"].items()
            if k != "alpha"
        }
        step = definitions.attention_step(x["Y"], x["W"], rho.derivative, x["m"], 1)
        for got, value in zip(case["expected"]["decimal"], [v for row in step for v in row], strict=True):
            assert abs(mpmath.mpf(got) - value) <= mpmath.mpf(10) ** -39 * abs(value)
    inputs = [text for c in cases.values() for a in c["inputs"].values() for text in a["decimal"]]
    assert all(len(re.sub(r"^-?0\.0*|e.*$|\D", "", text)) <= 40 for text in inputs)


def test_the_digits_do_not_depend_on_the_working_precision(tmp_path, cases, monkeypatch):
    monkeypatch.setitem(vectors.write.__globals__, "_WORKING", 150)  # the function hides its module
    vectors.write(tmp_path)
    with mpmath.workdps(60):
        for name, again in read_vectors(tmp_path).items():
            numbers = [[mpmath.mpf(x) for x in case["expected"]["decimal"]] for case in (cases[name], again)]
            largest = max((abs(x) for x in numbers[0] if mpmath.isfinite(x)), default=0)
            for x, y in zip(*numbers, strict=True):
                assert x == y or abs(x - y) <= mpmath.mpf(10) ** -39 * largest, name
            assert again["condition"] == cases[name]["condition"]


def test_the_page_names_every_operation_and_its_inputs(cases):
    page = (ROOT / "docs" / "vectors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+\.\w+)` \| ([\w, ]+) \|", page, re.MULTILINE)
    assert {name: set(inputs.split(", ")) for name, inputs in rows} == {
        name: set(operation.inputs) for name, operation in OPERATIONS.items()
    }
    assert {case["operation"] for case in cases.values()} == set(OPERATIONS)


def test_formulas_as_text(cases):
    """What is said of ρ' is the shipped derivative; no case sits on a kink, where programs may differ."""
    z = np.array([0.0, 0.3, 0.9, 1.1, 7.0])
    for name in refimpl.PENALTIES:
        text = (
            exact.penalty(name)
            .text["derivative"]
            .replace("^", "**")
            .replace(", else", " else")
            .replace("max", "np.maximum")
        )
        text = text.replace("exp", "np.exp").replace("sqrt", "np.sqrt")
        got = [eval(text, {"np": np, "z": float(t)}) for t in z]  # our own text, in a test
        np.testing.assert_allclose(got, np.broadcast_to(refimpl.PENALTIES[name].derivative(z), z.shape), rtol=4 * EPS)
    plain = Plain()
    for name, case in cases.items():
        if case.get("rho", {}).get("name") in ("epanechnikov", "truncated") and "Overflow" not in case["flags"]:
            x = {key: array(a) for key, a in case["inputs"].items()}
            distances = plain.distances(x["Y"], x["W"])
            assert not (np.abs(distances - 1) < 1e-4).any(), name


@pytest.mark.parametrize("name", exact.ACTIVATIONS)
def test_the_exact_prox_minimises_its_definition(name):
    prox, phi = exact.ACTIVATIONS[name][:2]
    with mpmath.workdps(50):
        for alpha in (mpmath.mpf(1), mpmath.mpf(0.25), mpmath.mpf(4)):
            for v in map(mpmath.mpf, (-20.0, -1.3, -0.3, 0.0, 0.2, 0.7, 3.0)):
                y = prox(v, alpha)
                best = definitions.prox_objective(y, v, phi, alpha)
                near = [y + s * mpmath.mpf(10) ** -k for k in range(13) for s in (-1, 1)]
                for other in [*near, v, mpmath.mpf(0)]:
                    # the value at the minimiser is formed with errors of 1e-47 of v²
                    assert best <= definitions.prox_objective(other, v, phi, alpha) + mpmath.mpf(10) ** -44, (alpha, v)


# ---------------------------------------------------------------------------------------------------- what is refused


ONE = "attention.step/exp/single"


def results_file(tmp_path, text):
    path = tmp_path / "results.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not the JSON expected"),
        ('{"results": {"a": [1, 2', "not the JSON expected"),
        ("[1]", "expected a JSON object, got list"),
        ("{}", 'expected {"results"'),
        ('{"results": [1]}', 'expected {"results"'),
        ('{"results": {"a": 1, "a": 2}}', "the key 'a' occurs twice"),
        ('{"results": {"a": NaN}}', "NaN is no number of JSON"),
        ('{"results": {"a": -Infinity}}', "-Infinity is no number of JSON"),
        ('{"results": {"a": ' + "1" * 10**7 + "}}", "a number of 10000000 characters"),
        ('{"results": {"a": ' + "[" * 10**6 + "]" * 10**6 + "}}", "nested too deeply"),
        (b'{"results": {"\xff": 1}}', "expected UTF-8"),
        (b"\x80\x04K\x01.", "expected UTF-8"),
        (b" " * (16 * 2**20 + 1), "expected at most 16 MiB"),
        ('{"results": {"a": 1e999999999}}', "a number beyond the range of float64"),
    ],
    ids=lambda value: str(value[:20]),
)
def test_results_that_are_refused(tmp_path, directory, capsys, text, message):
    path = results_file(tmp_path, text)
    assert cli.main(["vectors", "check", str(directory), str(path), "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"refimpl: error: {path}: ")
    assert err.count("\n") == 1
    assert message in err
    assert len(err) < 400


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("null", "wrong shape"),
        ("true", "wrong shape"),
        ("{}", "wrong shape"),
        ("[]", "wrong shape"),
        ("[1, 2, 3]", "wrong shape"),
        ("[[1, 2]]", "wrong shape"),
        ("[[1, 2, null]]", "not a number"),
        ('[[1, 2, "__import__(0)"]]', "not a number"),
        ('[[1, 2, "nan"]]', "not a number"),
        ('[[1, 2, "1_0"]]', "not a number"),
        ('[[1, 2, "1e999999999"]]', "a number beyond"),
        ('[[1, 2, "0x1p+999999"]]', "a number beyond"),
        ('[[1, 2, "-inf"]]', "infinite"),
        ("[[1, 2, [3]]]", "wrong shape"),
        ("[[1e308, 2, -1e308]]", "too far"),
    ],
)
def test_a_value_that_fails(tmp_path, directory, value, reason):
    report = vectors.check(directory, results_file(tmp_path, f'{{"results": {{"{ONE}": {value}}}}}'))
    (item,) = [item for item in report["failed"] if item["reason"] != "missing"]
    assert item["id"] == ONE
    assert item["reason"].startswith(reason)


def test_every_spelling_of_a_number(tmp_path, directory, cases):
    expected = cases[ONE]["expected"]
    for texts in (expected["decimal"], expected["hex"], expected["floats"]):
        report = vectors.check(directory, results_file(tmp_path, json.dumps({"results": {ONE: [texts], "x/y": 1}})))
        assert report["errors"] == {ONE: {"error": 0.0, "tolerance": tolerance(cases[ONE], "float64")}}
        assert report["unknown"] == ["x/y"]
        assert len(report["missing"]) == report["cases"] - 1 == len(report["failed"])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"version": 1', '"version": 2', "expected format"),
        ('"family": "prox"', '"family": "x"', "of the family"),
        ('"count": ', '"count": 1', "cases, got "),
        ('"shape":[10]', '"shape":[11]', "expected 11 numbers"),
        ('"shape":[10]', '"shape":[-1]', "at most two whole numbers"),
        ('"shape":[10]', '"shape":10', "the lists shape"),
        ('"0x1.4000000000000p+4"', '"0x1.4000000000001p+4"', "numbers differ"),
        ('"0x1.4000000000000p+4"', '"open(0)"', "not a number"),
        ("prox.operator/relu/alpha-0.25", "prox.operator/relu/alpha-1.0", "occurs twice"),
        ('"terms":11', '"terms":"11"', "terms: expected a number"),
        ('"terms":11', '"terms":-11', "terms: expected a number"),
    ],
)
def test_vectors_that_are_refused(tmp_path, directory, capsys, old, new, message):
    copy = shutil.copytree(directory, tmp_path / "copy")
    text = (copy / "prox.json").read_text(encoding="utf-8")
    assert old in text
    (copy / "prox.json").write_text(text.replace(old, new, 1), encoding="utf-8")
    assert cli.main(["vectors", "check", str(copy), str(results_file(tmp_path, '{"results": {}}'))]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"refimpl: error: {copy / 'prox.json'}: ")
    assert message in err
    assert err.count("\n") == 1


def test_a_truncated_or_absent_file_of_vectors_is_refused(tmp_path, directory, capsys):
    copy = shutil.copytree(directory, tmp_path / "copy")
    results = str(results_file(tmp_path, '{"results": {}}'))
    data = (copy / "layer.json").read_bytes()
    (copy / "layer.json").write_bytes(data[: len(data) // 2])
    assert cli.main(["vectors", "check", str(copy), results]) == 2
    assert "layer.json: not the JSON expected" in capsys.readouterr().err
    (copy / "layer.json").unlink()
    assert cli.main(["vectors", "check", str(copy), results]) == 2
    assert "layer.json: No such file" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------- the command line


def test_the_commands(tmp_path, directory, cases, capsys):
    assert cli.main(["vectors", "write", str(tmp_path / "new" / "folder"), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert (written["cases"], written["failed"]) == (len(cases), [])
    (tmp_path / "file").write_text("")
    assert cli.main(["vectors", "write", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err == f"refimpl: error: {tmp_path / 'file'}: File exists\n"
    answers = {name: spelled(np.asarray(core(case)).tolist()) for name, case in cases.items()}
    good = results_file(tmp_path, json.dumps({"results": answers}))
    assert cli.main(["vectors", "check", str(directory), str(good)]) == 0
    assert f"{len(cases)} cases in float64: {len(cases)} passed, 0 FAILED, 0 missing" in capsys.readouterr().out
    answers[ONE] = [[0, 0, 0]]
    del answers["prox.operator/relu/alpha-1.0"]
    bad = results_file(tmp_path, json.dumps({"results": answers | {"no/such": 1}}))
    assert cli.main(["vectors", "check", str(directory), str(bad)]) == 1
    out = capsys.readouterr().out
    assert ONE in out
    assert "missing: prox.operator/relu/alpha-1.0" in out
    assert "unknown: 'no/such' is the id of no case" in out
    assert "1 FAILED, 1 missing, 0 skipped" in out
    assert cli.main(["vectors", "check", str(directory), str(bad), "--dtype", "float32", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [item["id"] for item in report["failed"]] == [ONE, "prox.operator/relu/alpha-1.0"]
    assert report["skipped"]


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_javascript_example_passes_every_case(tmp_path, directory):
    results = tmp_path / "results.json"
    command = ["node", str(ROOT / "docs" / "read_vectors.mjs"), str(directory), str(results)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    report = vectors.check(directory, results)
    assert report["failed"] == []
    assert report["passed"] == report["cases"]
