"""``refimpl check``: whatever somebody's function does, the command reports it and lives."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from refimpl import cli

GOOD = """
import numpy as np

def attention(Y, W):
    U = Y @ W
    z = 0.5 * ((U[:, None] - U[None]) ** 2).sum(axis=2)
    return np.exp(-z) @ Y / np.exp(-z).sum(axis=1, keepdims=True)

def feedforward(Y, Wf, B):
    return np.maximum(B - Y @ (Wf + Wf.T) / 2, 0)

def layer(Y, W, Wf, B):
    return feedforward(attention(Y, W), Wf, B)

def tailed(Y, W):
    U = Y @ W
    G = 1 / (2 + 0.5 * ((U[:, None] - U[None]) ** 2).sum(axis=2))
    return G @ Y / G.sum(axis=1, keepdims=True)

def weighted(Y, W, m):
    U = Y @ W
    G = m * np.exp(-0.5 * ((U[:, None] - U[None]) ** 2).sum(axis=2))
    return G @ Y / G.sum(axis=1, keepdims=True)

def batched(Y, W):
    return np.stack([attention(y, W) for y in Y])

def plain(Y, W):
    print("a line of their own")
    E = np.exp((L := Y @ W @ W.T @ Y.T) - L.max(axis=1, keepdims=True))
    return E @ Y / E.sum(axis=1, keepdims=True)

class Module:
    def __call__(self, Y, W):
        return attention(Y, W)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of their modules, which is the current one."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="theirs"):
        (tmp_path / f"{name}.py").write_text(text)

    write(GOOD)
    return write


def run(capfd, *arguments):
    status = cli.main(["check", *arguments, "--json"])
    out, err = capfd.readouterr()
    report = json.loads(out) if out else None
    assert "Traceback" not in err
    return status, report, err


@pytest.mark.parametrize(
    "arguments",
    [
        ("attention", "theirs:attention"),
        ("attention", "theirs:attention", "--dtype", "float32"),
        ("attention", "theirs:tailed", "--rho", "log(z + 2)"),
        ("attention", "theirs:weighted", "--pair-weights"),
        ("attention", "theirs:batched", "--batched"),
        ("attention", "theirs:Module"),
        ("attention", "theirs:attention", "--rho", "-exp(-z)"),
        ("feedforward", "theirs:feedforward"),
        ("layer", "theirs:layer", "--seed", "3"),
    ],
)
def test_sound_functions(here, capfd, arguments):
    status, report, _ = run(capfd, *arguments)
    assert (status, report["ok"], report["diagnosis"]) == (0, True, None)
    assert all(check["passed"] for check in report["checks"])
    assert len(report["checks"]) >= 14
    assert set(report["checks"][0]) == {"name", "claim", "passed", "message", "counterexample"}
    assert "gradients" in report["skipped"]


def test_a_deviation_is_named_and_prints_go_elsewhere(here, capfd):
    status, report, err = run(capfd, "attention", "theirs:plain")
    assert status == 1
    assert report["diagnosis"].startswith("your step equals softmax(UUᵀ)Y to ")
    assert "β_j = exp(−½‖u_j‖²) is missing (attention.step)" in report["diagnosis"]
    assert "a line of their own" in err


def test_the_text_says_the_same(here, capfd):
    assert cli.main(["check", "attention", "theirs:plain"]) == 1
    out = capfd.readouterr().out
    assert "theirs:plain: your step equals softmax(UUᵀ)Y" in out
    assert "FAILED" in out
    assert "smallest input of 'value': Y = [[" in out
    assert cli.main(["check", "feedforward", "theirs:feedforward"]) == 0
    assert "theirs:feedforward is the feed-forward step of the paper: " in capfd.readouterr().out


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("raise ValueError('not\\ntoday')", "your function raises ValueError: not today (theirs.py:"),
        (
            "raise type('E', (Exception,), {'__str__': lambda self: 1 / 0})",
            "raises E: (an error that cannot be printed)",
        ),
        ("import numpy; numpy.abs = None; return Y", "the check could not run after your function: TypeError"),
        ("return undefined", "raises NameError: name 'undefined' is not defined (theirs.py:"),
        ("raise SystemExit(0)", "raises SystemExit: 0 (theirs.py:"),
        ("raise KeyboardInterrupt", "raises KeyboardInterrupt"),
        ("return fn(Y, W)", "raises RecursionError"),
        ("import time; time.sleep(60)", "did not return within 1 s"),
        ("import os; os._exit(7)", "ended the process, with exit status 7"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended the process, with exit status -11"),
        ("return None", "returns None, expected numpy.ndarray"),
        ("return Y.tolist()", "returns list, expected numpy.ndarray"),
        ("return Y.T", "returns shape (2, 3) for tokens of shape (3, 2)"),
        ("return Y + 0j", "returns complex128"),
        ("return Y / 0", "returns "),
        ("return Y.astype(int)", "returns int64, expected float64"),
        ("return input()", "raises EOFError"),
    ],
)
def test_whatever_the_function_does(here, capfd, body, says):
    here(f"def fn(Y, W):\n    {body}\n", "odd")
    here(f"def fn(Y, W):\n    {body}\n")
    status, report, _ = run(capfd, "attention", "theirs:fn", "--timeout", "1")
    assert status == 1
    assert says in report["diagnosis"]
    assert report["ok"] is False
    assert not report["checks"][-1]["passed"]


def test_a_function_that_holds_the_interpreter(here, capfd, monkeypatch):
    monkeypatch.setattr("refimpl.cli_check._SILENCE", 1.0)
    here("def fn(Y, W):\n    return sum(range(10**14))\n")
    begun = time.monotonic()
    status, report, _ = run(capfd, "attention", "theirs:fn", "--timeout", "1")
    assert status == 1
    assert "cannot be interrupted" in report["diagnosis"]
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def fn(Y, W:\n", "SyntaxError"),
        ("import no_such_module_anywhere\n", "No module named 'no_such_module_anywhere' (theirs.py:1"),
        ("1 / 0\n", "raises ZeroDivisionError: division by zero (theirs.py:1 in <module>: 1 / 0)"),
        ("import sys; sys.exit('bye')\n", "SystemExit: bye"),
        ("import os; os._exit(0)\n", "ended the process, with exit status 0"),
    ],
)
def test_a_module_that_does_not_import(here, capfd, text, says):
    here(text)
    status, report, _ = run(capfd, "attention", "theirs:fn")
    assert status == 1
    assert says in report["diagnosis"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["attention", "nowhere:fn"], "No module named 'nowhere'"),
        (["attention", "theirs:fn"], "has no attribute 'fn'"),
        (["attention", "theirs:np"], "fn: expected a function"),
        (["attention", "theirs"], "expected MODULE:FUNCTION"),
        (["attention", "../theirs:fn"], "expected MODULE:FUNCTION"),
        (["attention", "theirs:attention", "--rho", "sqrt(z)"], "rho: expected a finite slope at 0"),
        (["attention", "theirs:attention", "--rho", "__import__('os')"], "rho"),
        (["attention", "theirs:attention", "--framework", "mxnet"], "invalid choice"),
        (["attention", "theirs:attention", "--timeout", "0"], "expected a positive number of seconds"),
        (["attention", "theirs:attention", "--timeout", "nan"], "expected a positive number of seconds"),
        (["feedforward", "theirs:feedforward", "--rho", "exp"], "unrecognized arguments"),
        (["convolution", "theirs:feedforward"], "invalid choice"),
        ([], "a command is needed: check attention"),
    ],
)
def test_bad_input_is_one_line(here, capfd, arguments, says):
    status = cli.main(["check", *arguments])
    err = capfd.readouterr().err
    err = "\n".join(line for line in err.splitlines() if line.startswith("refimpl:"))
    assert status == 2
    assert says in err
    assert err.count("\n") == 0


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_an_interrupt_ends_the_child_too(here, tmp_path):
    here("import os, time\n\ndef fn(Y, W):\n    open('called', 'w').write(str(os.getpid()))\n    time.sleep(60)\n")
    command = [sys.executable, "-m", "refimpl", "check", "attention", "theirs:fn", "--timeout", "50"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    called = tmp_path / "called"
    deadline = time.monotonic() + 30
    while not (called.exists() and called.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err == "refimpl: interrupted\n"
    with pytest.raises(ProcessLookupError):
        os.kill(int(called.read_text()), 0)
