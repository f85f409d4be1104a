"""``refimpl rho list|check|plot`` and ``refimpl activation list|check``: what was found of a formula, as text."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import console
from .numerics import read_number

Report = dict[str, Any]

# the exit status that a verdict gives
_STATUS = {"guaranteed": 0, "no violation found": 0, "refuted": 1, "invalid": 2}


def _parameter(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    return name, value


def _formula_arguments(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("expr", metavar="EXPR", help=what)
    parser.add_argument(
        "--param", action="append", type=_parameter, default=[], metavar="NAME=VALUE", help="a parameter"
    )
    parser.add_argument(
        "--examples",
        type=at_least(1),
        default=1000,
        metavar="N",
        help="random examples a search, after a sweep (1000)",
    )


def at_least(least: int) -> Callable[[str], int]:
    """The reader of a whole number of at least ``least`` from the command line."""

    def read(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}, got {value!r}")
        return number

    return read


def _step_size(text: str) -> float:
    try:
        return read_number(float(text), "alpha", "(0, inf)")
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}") from None


# ------------------------------------------------------------------------------------------------ rho


def rho_check_arguments(parser: argparse.ArgumentParser) -> None:
    _formula_arguments(parser, "a penalty: a formula in z, a name, or MODULE:OBJECT")
    parser.add_argument("--alpha", type=_step_size, default=1.0, metavar="A", help="also search at this step size")


def rho_check(arguments: argparse.Namespace) -> tuple[int, Report]:
    from .examine import examine_penalty

    with console.progress() as progress:
        report = examine_penalty(
            arguments.expr, dict(arguments.param), arguments.examples, arguments.seed, arguments.alpha, progress
        )
    return _STATUS[report["verdict"]], report


def show_rho_check(report: Report) -> str:
    lines = [f"rho(z)  = {report['expr']}"]
    if report["derivative"] is not None:
        slope = "infinite or not known" if report["slope_at_zero"] is None else f"{report['slope_at_zero']:g}"
        lines.append(f"rho'(z) = {report['derivative']}, at zero {slope}")
    lines += ["", _verdicts(report, ("finite", "nondecreasing", "concave", "bernstein")), ""]
    for name in ("bernstein", "concave", "nondecreasing"):
        if name in report["proofs"]:
            lines += [f"proof ({name}):", *(f"  {line}" for line in report["proofs"][name].splitlines()), ""]
            break
    failed = [check for check in report["checks"] if not check["passed"]]
    lines += [f"check {check['name']} FAILED: {check['message']} ({check['counterexample']})" for check in failed]
    if report["verdict"] != "invalid":
        lines += [*_descent(report["descent"], "descent, unit pair weights")]
        if report["weighted"]["examples"]:
            lines += _descent(report["weighted"], "descent, other pair weights")
        lines += [*report["kernel"]["text"], ""]
    lines.append(f"verdict: {_penalty_verdict(report)}")
    return "\n".join(lines)


def _penalty_verdict(report: Report) -> str:
    verdict = report["verdict"]
    if verdict == "guaranteed":
        up_to = (
            "2, whatever the tokens"
            if report["max_alpha"] == 2
            else "1, and somewhat beyond (AttentionEnergy.max_alpha)"
        )
        return f"guaranteed: the attention step never raises the energy, for alpha up to {up_to}"
    if verdict == "invalid":
        return f"invalid: {report['reason']}"
    if verdict == "refuted":
        return "refuted: the attention step can raise the energy, as above"
    text = "no violation found, and no theorem covers it"
    return text + (
        "; with other pair weights the energy can rise, as above" if report["weighted"]["violations"] else ""
    )


def _verdicts(report: Report, names: tuple[str, ...]) -> str:
    rows = [
        [name.replace("_", " "), *(report[name][key] or "" for key in ("verdict", "method", "witness"))]
        for name in names
    ]
    return console.table(["property", "verdict", "method", "witness"], rows, wrap=3)


def _descent(search: Report, what: str) -> Iterator[str]:
    found = search["counterexample"]
    if found is None:
        yield f"{what}: {search['examples']:,} examples, no rise of the energy found"
        return
    yield f"{what}: a rise after {search['examples']:,} examples, confirmed by {found['confirmed']}:"
    yield ""
    yield from (f"    {line}" if line else "" for line in found["snippet"].splitlines())
    yield ""


def no_arguments(parser: argparse.ArgumentParser) -> None:
    """A command that takes none of its own."""


def rho_list(arguments: argparse.Namespace) -> tuple[int, Report]:
    from .examine import penalty_table

    return 0, {"penalties": penalty_table()}


def show_rho_list(report: Report) -> str:
    classes = {True: "Bernstein", False: "concave"}
    rows = [[p["name"], p["formula"], p["derivative"], classes[p["bernstein"]]] for p in report["penalties"]]
    return console.table(["name", "rho(z)", "rho'(z)", "class"], rows)


def rho_plot_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("expr", nargs="+", metavar="EXPR", help="penalties: names or formulas in z, 8 at most")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the picture: .png, .svg or .pdf")


def rho_plot(arguments: argparse.Namespace) -> tuple[int, Report]:
    from . import rhoplot
    from .rho import get_rho

    return 0, rhoplot.plot([get_rho(expr.strip()) for expr in arguments.expr], arguments.out)


def show_rho_plot(report: Report) -> str:
    return f"plot: {report['plot']}"


# ------------------------------------------------------------------------------------------------ activation


def activation_check_arguments(parser: argparse.ArgumentParser) -> None:
    _formula_arguments(parser, "an activation: a formula in x, or a name")


def activation_check(arguments: argparse.Namespace) -> tuple[int, Report]:
    from . import recover

    report = recover.check(arguments.expr.strip(), dict(arguments.param), arguments.examples, arguments.seed)
    if report["verdict"] == "invalid":
        report["reason"] = f"not finite on the real line: {report['finite']['witness']}"
    return _STATUS[report["verdict"]], report


def show_activation_check(report: Report) -> str:
    lines = [f"sigma(x)  = {report['expr']}", f"sigma'(x) = {report['derivative']}", ""]
    lines += [_verdicts(report, ("finite", "prox_of_some_function", "prox_of_convex_function")), ""]
    penalty = report["penalty"]
    if penalty["domain"] is not None:
        form = penalty["formula"] or "no closed form found"
        error = "" if penalty["error"] is None else f", evaluated to {penalty['error']:.1g}"
        lines.append(f"penalty phi(y) = {form}, on {penalty['domain']}{error}")
    if report["descent"]["examples"]:
        lines += _descent(report["descent"], "descent of the feed-forward step")
    words = {
        "guaranteed": "guaranteed: the proximal operator of a convex function; its step descends for alpha up to 2 / L",
        "no violation found": "no violation found, and it is not proved to be the prox of a convex function",
        "refuted": "refuted: it decreases, so it is the proximal operator of nothing, or its step can raise the energy",
        "invalid": f"invalid: {report['finite']['witness']}",
    }
    lines += ["", f"verdict: {words[report['verdict']]}"]
    return "\n".join(lines)


def activation_list(arguments: argparse.Namespace) -> tuple[int, Report]:
    from . import activation

    makers = {maker().name: maker for maker in activation._CONSTRUCTORS}
    rows = [
        {"name": a.name, "convex": a.convex, "definition": (makers[a.name].__doc__ or "").strip()}
        for a in activation.ACTIVATIONS.values()
    ]
    return 0, {"activations": rows}


def show_activation_list(report: Report) -> str:
    rows = [[a["name"], "convex" if a["convex"] else "not convex", a["definition"]] for a in report["activations"]]
    return console.table(["name", "penalty", "definition"], rows, wrap=2)
