"""``refimpl gradient-field``: exit status, JSON, text, and whatever somebody's function does."""

import json

import pytest

from refimpl import cli

THEIRS = """
import numpy as np

def plain(Y):
    print("a line of their own")
    weights = np.exp(Y @ Y.T - (Y @ Y.T).max(axis=1, keepdims=True))
    return weights @ Y / weights.sum(axis=1, keepdims=True)

def scaled(Y):
    return Y @ np.array([[2.0, 4.0], [1.0, 3.0]])

def triangular(Y):
    return Y @ np.array([[1.0, 1.0], [0.0, 2.0]])

def relu(Y):
    return np.maximum(Y, 0)

def tanh(Y):
    import torch
    return torch.tanh(Y)

def ends(Y):
    import os
    os._exit(3)

def shorter(Y):
    return Y[1:]

def hangs(Y):
    import time
    time.sleep(60)

number = 3
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs.py").write_text(THEIRS)


def run(capfd, *arguments):
    status = cli.main(["gradient-field", *arguments, "--json"])
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    return status, json.loads(out), err


@pytest.mark.parametrize(
    ("arguments", "status", "verdict"),
    [
        (["theirs:relu"], 0, "euclidean"),
        (["theirs:relu", "--tokens", "1", "--dim", "5", "--dtype", "float32", "--seed", "4"], 0, "euclidean"),
        (["theirs:scaled", "--dim", "2"], 0, "diagonal"),
        (["theirs:triangular", "--dim", "2"], 1, "constant"),
        (["theirs:plain", "--tokens", "3"], 1, "none"),
        (["--formula", "-y2", "y1"], 1, "none"),
        (["--formula", "y1 + 2*y2", "8*y1"], 0, "diagonal"),
        (["--formula", "-y1"], 0, "euclidean"),
        (["--formula", "-y2/(y1^2 + y2^2)", "y1/(y1^2 + y2^2)"], 1, "undecided"),
    ],
)
def test_verdicts(capfd, arguments, status, verdict):
    found, report, _ = run(capfd, *arguments)
    assert (found, report["verdict"], report["ok"]) == (status, verdict, status == 0)
    assert set(report) - {"function", "formula"} == {
        "ok",
        "verdict",
        "diagnosis",
        "asymmetry",
        "error",
        "where",
        "in_metric",
        "metric",
        "eigenvalue",
        "route",
        "points",
    }


def test_prints_go_elsewhere_and_the_seed_counts(capfd):
    _, report, err = run(capfd, "theirs:plain")
    assert "a line of their own" in err
    _, again, _ = run(capfd, "theirs:plain")
    _, other, _ = run(capfd, "theirs:plain", "--seed", "1")
    assert report == again
    assert report["where"] != other["where"]


def test_torch(capfd):
    pytest.importorskip("torch")
    status, report, _ = run(capfd, "theirs:tanh", "--framework", "torch", "--tokens", "2")
    assert (status, report["verdict"]) == (0, "euclidean")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("theirs:ends", "your function ended the process, with exit status 3"),
        ("theirs:shorter", "your function returns shape (3, 3) for tokens of shape (4, 3)"),
        ("theirs:hangs", "your function did not return within 0.5 s"),
    ],
)
def test_whatever_the_function_does(capfd, function, says):
    status, report, _ = run(capfd, function, "--timeout", "0.5")
    assert (status, report["verdict"], report["metric"]) == (1, "undecided", None)
    assert says in report["diagnosis"]


def test_a_module_that_does_not_import(capfd, tmp_path):
    (tmp_path / "broken.py").write_text("1 / 0\n")
    status, report, _ = run(capfd, "broken:fn")
    assert (status, report["verdict"]) == (1, "undecided")
    assert "your module raises ZeroDivisionError" in report["diagnosis"]


def test_the_text(capfd):
    assert cli.main(["gradient-field", "theirs:scaled", "--dim", "2", "--tokens", "1"]) == 0
    out = capfd.readouterr().out
    assert out.startswith("theirs:scaled: your update is a gradient step in a constant diagonal metric, p = (4, 1)")
    assert "\nmetric     p = [[4, 1]]\n" in out
    assert "\nasymmetry  0.4522" in out
    assert cli.main(["gradient-field", "theirs:triangular", "--dim", "2", "--tokens", "1"]) == 1
    assert "\nmetric     P = [[" in capfd.readouterr().out
    assert cli.main(["gradient-field", "--formula", "-y2", "y1"]) == 1
    out = capfd.readouterr().out
    assert out.startswith("T = (-y2, y1): your update is a gradient step in no constant diagonal metric: ∂T1/∂y2 = -1")
    assert "\nasymmetry  0.707107, largest at Y = [" in out
    assert out.endswith("\neigenvalue 0 + 1i\n")
    assert cli.main(["gradient-field", "theirs:shorter"]) == 1
    assert capfd.readouterr().out.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "one of the arguments MODULE:FUNCTION --formula is required"),
        (["theirs:relu", "--formula", "y1"], "not allowed with argument"),
        (["nowhere:fn"], "No module named 'nowhere'"),
        (["theirs:fn"], "has no attribute 'fn'"),
        (["theirs:number"], "fn: expected a function of numpy arrays, got int"),
        (["theirs"], "expected MODULE:FUNCTION"),
        (["theirs:relu", "--tokens", "0"], "expected a whole number of at least 1, got '0'"),
        (["theirs:relu", "--dim", "x"], "expected a whole number of at least 1, got 'x'"),
        (["theirs:relu", "--timeout", "0"], "expected a positive number of seconds"),
        (["theirs:relu", "--framework", "mxnet"], "invalid choice"),
        (["--formula"], "expected at least one argument"),
        (["--formula", "y1 +"], "component 1: column 5: expected a number"),
        (["--formula", "__import__('os').abort()"], "component 1: column 1: unknown name"),
    ],
)
def test_bad_input_is_one_line(capfd, arguments, says):
    assert cli.main(["gradient-field", *arguments]) == 2
    err = capfd.readouterr().err.splitlines()
    assert len([line for line in err if line.startswith("refimpl:")]) == 1
    assert says in err[-1]
