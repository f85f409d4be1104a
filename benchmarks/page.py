"""What ``run.py`` measured, as Markdown tables and a plot; as a command, those of ``docs/speed.md`` renewed.

python benchmarks/page.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from refimpl.experiments import canvas

Row = dict[str, Any]

DOCS = Path(__file__).parent.parent / "docs"
NAMES = ("refimpl", "floor", "NumPy", "PyTorch", "gather", "literal")
LINES = {
    "refimpl": {"color": "black", "linestyle": "-", "marker": "o"},
    "floor": {"color": canvas.BLUE, "linestyle": "--", "marker": "s"},
    "NumPy": {"color": canvas.GREEN, "linestyle": (0, (5, 1, 1, 1)), "marker": "v"},
    "PyTorch": {"color": canvas.ORANGE, "linestyle": "-.", "marker": "^"},
    "gather": {"color": canvas.VERMILION, "linestyle": ":", "marker": "D"},
}


def tables(report: Row) -> dict[str, str]:
    """The report as Markdown tables, by name: each operation, and each other part that was measured."""
    found = {"machine": markdown(["machine", f"{report['date']}"], [[k, str(v)] for k, v in report["machine"].items()])}
    if rows := list(targets(report)):
        found["targets"] = markdown(["target", "wanted", "measured", "met"], rows)
    sizes = report.get("sizes", [])
    for operation in dict.fromkeys(row["operation"] for row in sizes):
        found[operation] = _times([row for row in sizes if row["operation"] == operation], ["n", "d", "dtype", "route"])
    if rows := report.get("growth"):
        exponents = {(r["operation"], r["d"], r["dtype"], r["name"]): f"{r['exponent']:.2f}" for r in rows}
        keys = dict.fromkeys(key[:3] for key in exponents)
        found["growth"] = markdown(
            ["operation", "d", "dtype", *NAMES],
            [[*map(str, key), *(exponents.get((*key, name), "") for name in NAMES)] for key in keys],
        )
    for part, keys in (
        ("penalties", ["operation", "rho", "dtype", "route"]),
        ("routes", ["operation", "n", "d", "dtype", "route"]),
    ):
        if rows := report.get(part):
            found[part] = _times(rows, keys)
    if rows := report.get("small"):
        figures = {name: value for row in rows for name, value in row.items()}
        found["small"] = markdown(
            ["what", "time, or number"],
            [[name, f"{v:,.0f}" if "a second" in name else _time(v)] for name, v in figures.items()],
        )
    if rows := report.get("profile"):
        stages = list(rows[0]["seconds"])
        found["profile"] = markdown(
            ["n", "d", "dtype", *stages],
            [[*_words(row, ["n", "d", "dtype"]), *(_time(row["seconds"][stage]) for stage in stages)] for row in rows],
        )
    if rows := report.get("passes"):
        dtypes = [row["dtype"] for row in rows]
        found["passes"] = markdown(
            ["ns a pair of the block", *dtypes],
            [[name, *(f"{row['nanoseconds'][name]:.2f}" for row in rows)] for name in rows[0]["nanoseconds"]],
        )
    if rows := report.get("memory"):
        keys = ["operation", "n", "d", "dtype"]
        found["memory"] = markdown(
            [*keys, "peak above the inputs", "time"],
            [[*_words(row, keys), f"{row['peak_mib']:.0f} MiB", _time(row["seconds"])] for row in rows],
        )
    return found


def targets(report: Row) -> Iterator[list[str]]:
    """What was to be reached and what was: the worst of the rows that a target is about."""

    def worst(operation: str, other: str, dtype: str, least_n: int) -> float | None:
        rows = [
            row["seconds"]["refimpl"] / row["seconds"][other]
            for row in report.get("sizes", [])
            if (row["operation"], row["dtype"]) == (operation, dtype)
            and row["n"] >= least_n
            and other in row["seconds"]
        ]
        return max(rows, default=None)

    for operation in ("energy", "step"):
        for dtype in ("float64", "float32"):
            if (ratio := worst(operation, "floor", dtype, 1024)) is not None:
                yield [f"{operation} / floor, n ≥ 1024, {dtype}", "≤ 1.3", f"{ratio:.2f}", _met(ratio <= 1.3)]
    if (ratio := worst("step", "PyTorch", "float32", 256)) is not None:
        yield ["step / PyTorch, n ≥ 256, float32", "≤ 1", f"{ratio:.2f}", _met(ratio <= 1)]
    for row in report.get("sizes", []):
        if (row["operation"], row["n"], row["d"]) == ("energy", 1024, 300) and "gather" in row["seconds"]:
            times = row["seconds"]["gather"] / row["seconds"]["refimpl"]
            yield [f"gather / energy, n = 1024, d = 300, {row['dtype']}", "≥ 100", f"{times:.0f}", _met(times >= 100)]
    figures = {name: value for row in report.get("small", []) for name, value in row.items()}
    for name, time in figures.items():
        if name in ("step", "step, W given"):
            yield [f"{name}, n = 16, d = 8", "≤ 60 µs", _time(time), _met(time <= 60e-6)]
        elif "a second" in name:
            yield [f"{name}, of the search, on one core", "≥ 10,000", f"{time:,.0f}", _met(time >= 10_000)]
    for row in report.get("memory", []):
        what = f"memory of the {row['operation']}, n = {row['n']}, d = {row['d']}, {row['dtype']}"
        yield [what, "≤ 1024 MiB", f"{row['peak_mib']:.0f} MiB", _met(row["peak_mib"] <= 1024)]


def _met(holds: bool) -> str:
    return "yes" if holds else "no"


def _words(row: Row, keys: Sequence[str]) -> list[str]:
    return [str(row[key]) for key in keys]


def _times(rows: Sequence[Row], keys: Sequence[str]) -> str:
    names = [name for name in NAMES if any(name in row["seconds"] for row in rows)]
    with_floor = "floor" in names
    lines = []
    for row in rows:
        took = row["seconds"]
        times = [_time(took[name]) if name in took else row["not_run"].get(name, "") for name in names]
        ratio = [f"{took['refimpl'] / took['floor']:.2f}" if "floor" in took else ""] if with_floor else []
        lines.append([*_words(row, keys), *times, *ratio])
    return markdown([*keys, *names, *(["refimpl / floor"] if with_floor else [])], lines)


def _time(seconds: float) -> str:
    scale, unit = next((s, u) for s, u in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")) if seconds * s >= 1 or u == "µs")
    return f"{seconds * scale:.3g} {unit}"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows))


def renewed(page: str, report: Row) -> str:
    """The page with the text from each ``<!-- table NAME -->`` to ``<!-- end -->`` replaced by that table."""
    found = tables(report)
    fill: Callable[[re.Match[str]], str] = lambda match: f"{match[1]}\n{found[match[2]]}\n{match[3]}"  # noqa: E731
    return re.sub(r"(<!-- table (\w+) -->)\n.*?\n?(<!-- end -->)", fill, page, flags=re.DOTALL)


def plot(report: Row, path: Path) -> None:
    """Energy and step by n, in float64 and float32, of d = 64: time on log axes, a line a competitor."""
    figure, axes = canvas.panels(2, 2, 8.0, 6.0)
    for row_of_axes, operation in zip(axes, ("energy", "step"), strict=True):
        for axis, dtype in zip(row_of_axes, ("float64", "float32"), strict=True):
            rows = [r for r in report["sizes"] if (r["operation"], r["dtype"]) == (operation, dtype)]
            rows = [row for row in rows if row["d"] == min(row["d"] for row in rows)]
            for name, style in LINES.items():
                points = [(row["n"], row["seconds"][name]) for row in rows if name in row["seconds"]]
                if points:
                    axis.loglog(*zip(*points, strict=True), label=name, markersize=5, **style)
            axis.set(title=f"{operation}, {dtype}, d = {rows[0]['d']}", xlabel="tokens n", ylabel="seconds")
            axis.set_xticks([row["n"] for row in rows], [str(row["n"]) for row in rows], minor=False)
            axis.minorticks_off()
            axis.grid(alpha=0.3)
    axes[0, 0].legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    report = json.loads((DOCS / "benchmarks.json").read_text(encoding="utf-8"))
    page = DOCS / "speed.md"
    page.write_text(renewed(page.read_text(encoding="utf-8"), report), encoding="utf-8")
    plot(report, DOCS / "speed.png")


if __name__ == "__main__":
    main()
