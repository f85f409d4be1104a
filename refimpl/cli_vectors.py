"""``refimpl vectors write|check``: test vectors for implementations in any language."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from . import console

Report = dict[str, Any]


def write_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", help="where the files go; made if it does not exist")


def write(arguments: argparse.Namespace) -> tuple[int, Report]:
    from . import vectors

    with console.progress() as progress:
        return 0, vectors.write(arguments.directory, progress)


def show_write(report: Report) -> str:
    table = console.table(["file", "bytes"], [[name, f"{size:,}"] for name, size in report["files"].items()])
    return f"{table}\n\n{report['cases']:,} cases in {report['directory']}"


def check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", help="the vectors, as refimpl vectors write wrote them")
    parser.add_argument("results", type=Path, metavar="RESULTS", help='JSON: {"results": {"case id": value, ...}}')
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64", help="what the program worked in")


def check(arguments: argparse.Namespace) -> tuple[int, Report]:
    from . import vectors

    report = vectors.check(arguments.directory, arguments.results, arguments.dtype)
    return 1 if report["failed"] else 0, report


def show_check(report: Report) -> str:
    lines = []
    wrong = [item for item in report["failed"] if item["reason"] != "missing"]
    if wrong:
        rows = [
            [
                item["id"],
                "-" if item["error"] is None else f"{item['error']:.1e}",
                f"{item['tolerance']:.1e}",
                item["reason"],
            ]
            for item in wrong
        ]
        lines += [console.table(["case", "error", "tolerance", "what is wrong"], rows), ""]
    lines += [f"missing: {name}" for name in report["missing"]]
    lines += [f"skipped: {item['id']} ({item['reason']})" for item in report["skipped"]]
    lines += [f"unknown: {name[:120]!r} is the id of no case" for name in report["unknown"]]
    if worst := report["worst"]:
        lines.append(f"closest to its tolerance: {worst['id']}, {worst['error']:.1e} of {worst['tolerance']:.1e}")
    lines.append(
        f"{report['cases']:,} cases in {report['dtype']}: {report['passed']:,} passed, {len(wrong):,} FAILED, "
        f"{len(report['missing']):,} missing, {len(report['skipped']):,} skipped"
    )
    return "\n".join(lines)
