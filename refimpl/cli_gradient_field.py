"""``refimpl gradient-field MODULE:FUNCTION`` or ``--formula T1 T2 …``: is this update a gradient step?"""

from __future__ import annotations

import argparse
from typing import Any

from . import console
from .cli_check import call_arguments, supervised
from .cli_rho import at_least

Report = dict[str, Any]


def gradient_field_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``refimpl gradient-field``."""
    update = parser.add_mutually_exclusive_group(required=True)
    update.add_argument("function", nargs="?", metavar="MODULE:FUNCTION", help="fn(Y), importable from here")
    update.add_argument("--formula", nargs="+", metavar="T", help="formulas in y1, y2, ..., one a component, instead")
    parser.add_argument("--tokens", type=at_least(1), default=4, metavar="N", help="the n of Y (n, d) (4)")
    parser.add_argument("--dim", type=at_least(1), default=3, metavar="D", help="the d of Y (3)")
    call_arguments(parser)


def gradient_field(arguments: argparse.Namespace) -> tuple[int, Report]:
    """The work of ``refimpl gradient-field``: status 0 for a Euclidean or a diagonal metric, 1 otherwise."""
    if arguments.formula is not None:
        from .testing.gradient_formula import examine_formulas

        update = [formula.strip() for formula in arguments.formula]
        report = examine_formulas(update, arguments.seed).as_dict()
        return 0 if report["ok"] else 1, {"formula": update} | report
    task = {
        "kind": "gradient field",
        "function": arguments.function,
        "tokens": arguments.tokens,
        "dim": arguments.dim,
        "framework": arguments.framework,
        "dtype": arguments.dtype,
        "seconds": arguments.timeout,
        "seed": arguments.seed,
    }
    with console.progress() as progress:
        report = supervised(task, progress)
    if "verdict" not in report:  # it was not imported, or its process is gone
        from .testing.gradient_field import GradientField

        report = GradientField("undecided", report["diagnosis"]).as_dict()
    return 0 if report["ok"] else 1, {"function": arguments.function} | report


def show_gradient_field(report: Report) -> str:
    """The report as text."""
    lines = [f"{report.get('function') or 'T = (' + ', '.join(report['formula']) + ')'}: {report['diagnosis']}"]
    if report["asymmetry"] is not None:
        error = "" if report["route"] == "symbolic" else f", known to {report['error']:.1g}"
        lines += ["", f"asymmetry  {report['asymmetry']:.6g}{error}, largest at Y = {_rows(report['where'])}"]
    if report["in_metric"] is not None:
        lines.append(f"in metric  {report['in_metric']:.1g}")
    if report["metric"] is not None:
        lines.append(f"metric     {'P' if report['verdict'] == 'constant' else 'p'} = {_rows(report['metric'])}")
    if report["eigenvalue"] is not None:
        real, imaginary = report["eigenvalue"]
        lines.append(f"eigenvalue {real:.6g} + {imaginary:.6g}i")
    return "\n".join(lines)


def _rows(array: list[Any]) -> str:
    return "[" + ", ".join(_rows(row) if isinstance(row, list) else f"{row:.6g}" for row in array) + "]"
