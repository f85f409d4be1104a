"""The benchmarks run and compare the same; the page about speed is what they measured. No test looks at a time."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import refimpl

ROOT = Path(__file__).parent.parent
REPORT = json.loads((ROOT / "docs" / "benchmarks.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
EPS = np.finfo(float).eps


@pytest.fixture(scope="module")
def run() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("run")


@pytest.fixture(scope="module")
def page(run: ModuleType) -> ModuleType:
    return importlib.import_module("page")


def test_one_command_measures_everything(
    run: ModuleType, page: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    assert run.main(["--quick", "--out", str(path)]) == 0
    report = json.loads(path.read_text(encoding="utf-8"))
    plan = run.plan(True)
    assert set(report) == {"date", "machine", "complete", "growth", *plan}
    assert report["complete"]
    assert {part: len(report[part]) for part in plan} == {part: len(calls) for part, calls in plan.items()}
    assert {row["operation"] for row in report["sizes"]} == {"energy", "gradient", "step", "vjp", "forward"}
    assert {row["rho"] for row in report["penalties"]} == set(refimpl.rho.PENALTIES)
    assert all(t > 0 for part in ("sizes", "penalties", "routes") for r in report[part] for t in r["seconds"].values())
    out = capsys.readouterr().out
    assert all(table in out for table in page.tables(report).values())
    page.plot(report, tmp_path / "speed.png")
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("timings", [0, 1, 20])
def test_an_interrupt_keeps_what_was_measured(
    run: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, timings: int
) -> None:
    path, left = tmp_path / "report.json", iter(range(timings))

    def timed(call: object) -> float:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return 10.0  # a row is done after one round

    monkeypatch.setattr(run, "_timed", timed)
    # refimpl alone: one timing a row
    monkeypatch.setattr(run, "competitors", lambda operation, Y: ({"refimpl": run.ours(operation, Y)}, {}))
    monkeypatch.setattr(run, "PATIENCE", 0.0)
    assert run.main(["--quick", "--only", "sizes", "--out", str(path)]) == 130
    report = json.loads(path.read_text(encoding="utf-8"))
    assert not report["complete"]
    assert len(report["sizes"]) == timings


def test_competitors_compute_the_same(run: ModuleType) -> None:
    Y = run.tokens(16, 8, "float64")
    calls, not_run = run.competitors("energy", Y)
    assert {"refimpl", "floor", "NumPy", "gather", "literal"} <= set(calls)
    assert not_run == {}
    energy = refimpl.AttentionEnergy().value(Y)
    # 120 pairs of at most 1, each of z off by some 16 roundings of at most max ‖y‖²
    slack = 120 * 16 * EPS * (1 + (Y * Y).sum(axis=1).max())
    for name in set(calls) - {"floor"}:
        assert abs(float(calls[name]()) - energy) <= slack, name
    calls, _ = run.competitors("step", Y)
    step = refimpl.AttentionEnergy().step(Y)
    for name in ("NumPy", "literal"):  # PyTorch's has no β
        np.testing.assert_allclose(calls[name](), step, rtol=0, atol=slack)


def test_who_needs_too_much_memory_is_not_run(run: ModuleType) -> None:
    calls, not_run = run.competitors("energy", run.tokens(2048, 300, "float32"))
    assert "gather" not in calls
    assert not_run == {"gather": "2.5 GB", "literal": "not run"}


@pytest.mark.parametrize(
    ("rho", "n", "scale", "words"),
    [
        ("exp", 16, None, "differences"),
        ("exp", 64, None, "one product"),
        ("exp", 64, 2.0, "split product"),
        ("truncated", 64, None, "split product, near pairs by differences"),
    ],
)
def test_the_route_is_seen(run: ModuleType, rho: str, n: int, scale: float | None, words: str) -> None:
    assert run.route(refimpl.AttentionEnergy(rho=rho), run.tokens(n, 64, "float64", scale)) == words


def test_growth_is_the_exponent(run: ModuleType) -> None:
    rows = [
        {"operation": "step", "d": 8, "dtype": "float64", "n": n, "seconds": {"floor": 7e-9 * n**p}}
        for n, p in ((4, 9.0), (16, 1.5), (64, 1.5), (256, 1.5))
    ]
    (found,) = run.growth(rows)  # of the largest three
    assert found["exponent"] == pytest.approx(1.5, abs=1e-12)


def test_the_page_is_what_was_measured(run: ModuleType, page: ModuleType) -> None:
    assert REPORT["complete"]
    plan = run.plan(False)
    assert {part: len(REPORT[part]) for part in plan} == {part: len(calls) for part, calls in plan.items()}
    assert page.renewed(PAGE, REPORT) == PAGE
    assert all(table in PAGE for table in page.tables(REPORT).values())


def test_a_page_of_other_figures_is_noticed(page: ModuleType) -> None:
    other = json.loads(json.dumps(REPORT))
    other["routes"][0]["seconds"]["refimpl"] *= 2
    assert page.renewed(PAGE, other) != PAGE
