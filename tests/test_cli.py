"""The command line: exit statuses, what goes to which stream, JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refimpl.claims
from refimpl import cli, console

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def read_json(output: str) -> Any:
    assert output.count("\n") == 1
    return json.loads(output, parse_constant=refuse_constant)


def assert_bad_input(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("refimpl: error: ")
    assert err.count("\n") == 1
    assert message in err


# ------------------------------------------------------------------------------------------------ the shell


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, expected in (
        (["--version"], f"refimpl {refimpl.__version__}\n"),
        (["--help"], "curve"),
        (["curve", "--help"], "--embeddings"),
        (["verify", "--help"], "--claim"),
    ):
        assert cli.main(arguments) == 0
        out, err = capsys.readouterr()
        assert expected in out
        assert err == ""


def test_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    out, err = capsys.readouterr()
    assert "usage: refimpl" in out
    assert err == f"refimpl: error: a command is needed: {', '.join(cli.COMMANDS)}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "nonsense"),
        (["--nonsense"], "--nonsense"),
        (["verify", "--nonsense"], "--nonsense"),
        (["verify", "--exam", "3"], "--exam"),
        (["verify", "a\nb"], "a b"),
        (["verify", "--examples", "0"], "--examples: expected a whole number of at least 1, got '0'"),
        (["verify", "--seed", "-1"], "--seed: expected a whole number of at least 0, got '-1'"),
        (["verify", "--seed", "9" * 5000], "--seed: expected a whole number"),
        (["verify", "--claim"], "--claim"),
        (["curve"], "one of the arguments --sentences --dataset is required (see refimpl curve --help)"),
        (["curve", "--sentences", "s.tsv"], "embeddings: --sentences needs --embeddings F"),
        (["curve", "--sentences", "s.tsv", "--dataset", "imdb"], "--dataset: not allowed with argument --sentences"),
        (["curve", "--dataset", "reuters"], "--dataset: invalid choice: 'reuters'"),
        (["curve", "--max-words", "0"], "--max-words: expected a whole number of at least 1, got '0'"),
        (["curve", "--layers", "x"], "--layers: expected a whole number of at least 1, got 'x'"),
        (["curve", "--samples", "0"], "--samples: expected a whole number of at least 1, got '0'"),
    ],
)
def test_bad_usage(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert_bad_input(capsys, arguments, message)


# ------------------------------------------------------------------------------------------------ verify


def claim(**changes: object) -> dict[str, object]:
    return {
        "id": "attention.step",
        "statement": "The step is softmax attention, and " + "a long statement is wrapped " * 6,
        "conditions": "ρ concave",
        "derivation": "proved",
        "notebook": "01_attention.md",
        "identities": 3,
        "examples": 200,
        "violations": 0,
        "tightest": 0.9999,
        "witness": None,
        "code": "refimpl.AttentionEnergy.step",
        "error": None,
    } | changes


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands in for the ledger: what it returns or raises, and what it was called with."""
    state: dict[str, Any] = {"claims": [claim()], "ok": True, "calls": []}

    def stub(claims: list[str] | None, examples: int, seed: int, progress: object) -> dict[str, Any]:
        state["calls"].append((claims, examples, seed, progress))
        if "raises" in state:
            raise state["raises"]
        report = {"ok": state["ok"], "examples": examples, "seed": seed, "seconds": 41.3}
        return report | {"claims": state["claims"]}

    monkeypatch.setattr(refimpl.claims, "verify", stub, raising=False)
    return state


@pytest.mark.parametrize("rich", [True, False])
def test_verify(
    capsys: pytest.CaptureFixture[str], verify: dict[str, Any], monkeypatch: pytest.MonkeyPatch, rich: bool
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    if not rich:
        monkeypatch.setitem(sys.modules, "rich", None)
    verify["claims"].append(claim(id="attention.unweighted_refuted", tightest=None, witness="Y = (-1/2, 0, 4)"))
    assert cli.main(["verify", "--claim", "a", "--claim", "b", "--examples", "7", "--seed", "5"]) == 0
    assert verify["calls"] == [(["a", "b"], 7, 5, None)]
    out, err = capsys.readouterr()
    assert err == ""
    assert "attention.step" in out
    assert "proved (3)" in out
    assert "0.9999" in out
    assert "witness  attention.unweighted_refuted: Y = (-1/2, 0, 4)" in out
    assert out.endswith("2 claims: 2 derived, 400 examples, 0 violations in 41 s\n")
    assert "FAILED" not in out
    assert max(map(len, out.splitlines())) <= 120


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"violations": 2, "witness": "Y = 0"}, "2 violations"),
        ({"derivation": "missing"}, "the derivation is missing"),
        ({"error": "no check"}, "no check"),
    ],
)
def test_verify_that_fails(
    capsys: pytest.CaptureFixture[str], verify: dict[str, Any], changes: dict[str, object], reason: str
) -> None:
    verify |= {"ok": False, "claims": [claim(), claim(id="prox.definition", **changes)]}
    assert cli.main(["verify"]) == 1
    assert verify["calls"] == [(None, 200, 0, None)]
    out = capsys.readouterr().out
    assert f"FAILED   prox.definition: {reason}\n" in out
    assert "FAILED   attention.step" not in out
    assert out.endswith(": FAILED (1)\n")
    assert cli.main(["verify", "--json"]) == 1
    assert read_json(capsys.readouterr().out)["ok"] is False


def test_verify_json(capsys: pytest.CaptureFixture[str], verify: dict[str, Any]) -> None:
    verify["claims"] = [claim(tightest=float("nan")), claim(tightest=float("inf"))]
    assert cli.main(["verify", "--json", "--seed", "3"]) == 0
    out, err = capsys.readouterr()
    report = read_json(out)
    assert err == ""
    assert (report["ok"], report["seed"], report["examples"]) == (True, 3, 200)
    assert [entry["tightest"] for entry in report["claims"]] == [None, None]
    assert report["claims"][0]["conditions"] == "ρ concave"


def test_verify_of_an_unknown_claim(capsys: pytest.CaptureFixture[str], verify: dict[str, Any]) -> None:
    verify["raises"] = ValueError("claim: 'attention.stop' is unknown,\ndid you mean attention.step?")
    assert_bad_input(capsys, ["verify", "--claim", "attention.stop"], "did you mean attention.step?")


def test_interrupted(capsys: pytest.CaptureFixture[str], verify: dict[str, Any]) -> None:
    verify["raises"] = KeyboardInterrupt()
    assert cli.main(["verify"]) == 130
    assert capsys.readouterr() == ("", "refimpl: interrupted\n")


def test_a_fault_of_ours_is_not_bad_input(verify: dict[str, Any]) -> None:
    verify["raises"] = AssertionError("a bug")
    with pytest.raises(AssertionError):
        cli.main(["verify"])


# ------------------------------------------------------------------------------------------------ curve


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "s.tsv").write_text("sentence\tlabel\nA b<br />c!\t1\nunknown\t0\nb a b\t1\n", encoding="utf-8")
    vectors = np.random.default_rng(0).normal(size=(4, 3))
    np.savez(tmp_path / "v.npz", words=np.array(["a", "b", "c", "!"]), vectors=vectors)
    lines = [" ".join([word, *map(repr, map(float, row))]) for word, row in zip("abc!", vectors, strict=True)]
    (tmp_path / "v.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return ["curve", "--sentences", str(tmp_path / "s.tsv"), "--embeddings", str(tmp_path / "v.npz")]


def test_curve_json(capsys: pytest.CaptureFixture[str], files: list[str], tmp_path: Path) -> None:
    assert cli.main([*files, "--json", "--layers", "4", "--seed", "2"]) == 0
    out, err = capsys.readouterr()
    report = read_json(out)
    assert err == ""
    assert len(report["mean_energy"]) == 5
    assert [len(row) for row in report["quartiles"]] == [5, 5, 5]
    expected = {"layers": 4, "samples": 2, "words": 7, "unknown_words": 1, "empty_sentences": [1], "seed": 2}
    expected |= {"monotone_fraction": 1.0, "first_increase": None, "relu": True, "rho": "exp", "plot": None}
    assert expected.items() <= report.items()
    # the same vectors as text give the same report
    files[-1] = str(tmp_path / "v.txt")
    assert cli.main([*files, "--json", "--layers", "4", "--seed", "2"]) == 0
    assert read_json(capsys.readouterr().out) == report


def test_curve_options(capsys: pytest.CaptureFixture[str], files: list[str]) -> None:
    assert cli.main([*files, "--json", "--no-relu", "--rho", "log2", "--samples", "1"]) == 0
    report = read_json(capsys.readouterr().out)
    assert {"relu": False, "rho": "log2", "samples": 1, "layers": 12, "start": "x"}.items() <= report.items()


@pytest.mark.parametrize("rich", [True, False])
def test_curve_text(
    capsys: pytest.CaptureFixture[str], files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rich: bool
) -> None:
    pytest.importorskip("matplotlib")
    if not rich:
        monkeypatch.setitem(sys.modules, "rich", None)
    assert cli.main([*files, "--plot", str(tmp_path / "out.png")]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for line in (
        "2 sentences, 12 layers, rho = exp, ReLU, tokens start at max(x, 0) for word vectors x",
        "7 words with a vector, 1 without (skipped)",
        "1 sentence without any word, not averaged; index from 0: 1",
        "the energy falls at every layer for 2 of 2 sentences",
        f"plot: {tmp_path / 'out.png'}",
    ):
        assert line in out.splitlines()
    assert (tmp_path / "out.png").stat().st_size > 10_000


def test_curve_that_rises(
    capsys: pytest.CaptureFixture[str], files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = refimpl.FeedForwardEnergy.step
    monkeypatch.setattr(refimpl.FeedForwardEnergy, "step", lambda self, Y, _=1.0: step(self, Y, 3.0))
    assert cli.main([*files, "--json"]) == 0
    report = read_json(capsys.readouterr().out)
    assert report["monotone_fraction"] < 1
    assert report["first_increase"] == report["increase"]["layer"] >= 1
    assert cli.main(files) == 0
    assert f"first rise: layer {report['first_increase']}, by " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--sentences", "none.tsv", "sentences: expected a file"),
        ("--sentences", ".", "is a directory"),
        ("--embeddings", "none.npz", "embeddings: expected a file"),
        ("--embeddings", "s.tsv", "ends in .npz or .txt"),
        ("--rho", "nonsense", "nonsense"),
        ("--rho", "sqrt(z)", "finite slope"),
        ("--rho", "-z", "not negative"),
        ("--rho", "", "error"),
        ("--rho", "__import__('os').getpid()", "error"),
        ("--plot", "out.jpg", "plot: expected a file that ends in"),
        ("--plot", "none/out.png", "existing directory"),
    ],
)
def test_bad_curve_input(
    capsys: pytest.CaptureFixture[str], files: list[str], tmp_path: Path, option: str, value: str, message: str
) -> None:
    value = value if option == "--rho" else str(tmp_path / value)
    before = sorted(tmp_path.iterdir())
    assert_bad_input(capsys, [*files, f"{option}={value}"], message)
    assert sorted(tmp_path.iterdir()) == before


def test_matplotlib_is_asked_for_before_the_work(
    capsys: pytest.CaptureFixture[str], files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    files[2] = str(tmp_path / "none.tsv")  # the plot comes first
    assert_bad_input(capsys, [*files, "--plot", str(tmp_path / "o.png")], "pip install 'refimpl[figures]'")


# ------------------------------------------------------------------------------------------------ as a process


def start(arguments: list[str], **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "refimpl", *arguments]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen(command, text=True, encoding="utf-8", **options)


def test_processes(files: list[str], tmp_path: Path) -> None:
    process = start([*files, "--json"])
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert read_json(out)["samples"] == 2

    process = start([*files, f"--rho={'(' * 500}"])
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.count("\n")) == (2, "", 1)


def test_a_closed_pipe_is_quiet(files: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = start([*files, "--json"], stdout=writer)
    os.close(writer)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 0


def test_output_that_cannot_show_greek(files: list[str]) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    process = start(files, env=environment)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 0


@pytest.mark.skipif(os.name == "nt", reason="there are no named pipes")
def test_control_c(files: list[str], tmp_path: Path) -> None:
    files[2] = str(tmp_path / "pipe.tsv")
    os.mkfifo(files[2])
    process = start(files)
    deadline = time.monotonic() + 60
    while True:  # until the process reads the pipe, where it waits
        try:
            writer = os.open(files[2], os.O_WRONLY | os.O_NONBLOCK)
            break
        except OSError:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    os.close(writer)
    assert (process.returncode, out, err) == (130, "", "refimpl: interrupted\n")


@pytest.mark.skipif(not DATA.is_dir(), reason="the data sets of ../shared/data are not here")
def test_raw_reviews(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["curve", "--sentences", str(DATA / "imdb_sample200.tsv")]
    arguments += ["--embeddings", str(DATA / "glove6B_50d_subset.npz"), "--samples", "2", "--layers", "2", "--json"]
    assert cli.main(arguments) == 0
    report = read_json(capsys.readouterr().out)
    assert report["unknown_words"] < 0.005 * report["words"]


# ------------------------------------------------------------------------------------------------ the console


@pytest.mark.parametrize("rich", [True, False])
def test_tables(monkeypatch: pytest.MonkeyPatch, rich: bool) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    if not rich:
        monkeypatch.setitem(sys.modules, "rich", None)
    table = console.table(["id", "text", "n"], [["a [b]", "word " * 20, "10"], ["b", ":smile:", "9"]], wrap=1)
    lines = table.splitlines()
    assert max(map(len, lines)) <= 50
    assert table.count("word") == 20
    assert "a [b]" in table
    assert ":smile:" in table
    # numbers end in the same column
    assert {len(line) for line in lines if line.endswith(("10", " 9"))} == {len(lines[0])}
    assert console.table(["id"], [])


def test_no_progress_bar_where_there_is_no_terminal() -> None:
    with console.progress() as progress:
        assert progress is None


@pytest.mark.parametrize("rich", [True, False])
def test_progress_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, rich: bool) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    if not rich:
        monkeypatch.setitem(sys.modules, "rich.progress", None)
        monkeypatch.setitem(sys.modules, "rich.console", None)
    with console.progress() as progress:
        assert (progress is not None) == rich
        if progress is not None:
            progress(1, 2, "sentences")
    out, err = capsys.readouterr()
    assert out == ""
    assert ("sentences" in err) == rich
