"""Examining a penalty: what is proved of it, whether a rise of the energy is found, and what its attention is like."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from . import formula
from .attention import AttentionEnergy
from .rho import PENALTIES, Rho, get_rho

Progress = Callable[[int, int, str], None]

_OBJECT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def examine_penalty(
    text: str,
    parameters: Mapping[str, float | str] | None = None,
    examples: int = 1000,
    seed: int = 0,
    alpha: float = 1.0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """What is known of a penalty, with the keys that ``refimpl rho check`` prints.

    ``text`` is a name, a formula in z, or ``MODULE:OBJECT``, which imports an object with ``value`` and ``derivative``.
    ``verdict`` is "guaranteed" (finite, non-decreasing and concave are proved, and no rise was found), "no violation
    found", "refuted" (a rise is confirmed at α = 1 or the α asked for) or "invalid" (not finite or not real on [0, ∞),
    or a slope at 0 that is infinite or negative). ``descent`` is about unit pair weights, ``weighted`` about others:
    a penalty outside the theorem may pass the one and fail the other.

    Raises ``ValueError`` for text that cannot be read or imported.
    """
    text = text.strip()
    with contextlib.redirect_stdout(sys.stderr), np.errstate(all="ignore"):  # the callables may be anybody's
        return _examine(text, dict(parameters or {}), examples, seed, alpha, progress)


def _examine(
    text: str,
    parameters: dict[str, float | str],
    examples: int,
    seed: int,
    alpha: float,
    progress: Progress | None,
) -> dict[str, Any]:
    report, rho = _of_object(text) if _OBJECT.fullmatch(text) else _of_formula(text, parameters)
    report["alpha"] = alpha
    nothing = {"examples": 0, "violations": 0, "counterexample": None}
    report |= {"descent": nothing, "weighted": nothing, "max_alpha": None, "kernel": None, "verdict": "invalid"}
    if report["finite"]["verdict"] == "refuted":
        report["reason"] = f"not finite on [0, inf): {report['finite']['witness']}"
        return report
    try:
        AttentionEnergy(rho=rho)
    except ValueError as error:
        report["reason"] = str(error).removeprefix("rho: ")
        return report
    from .kernel import describe
    from .testing.search import search_descent

    steps = [1.0] if alpha == 1 else [1.0, alpha]
    searches = [search_descent(rho, examples, seed, step, False, progress) for step in steps]
    found = next((search for search in searches if search.counterexample is not None), searches[-1])
    report["descent"] = found.as_dict() | {"examples": sum(search.examples for search in searches)}
    if found.counterexample is None:  # a rise with unit pair weights needs no other
        report["weighted"] = search_descent(rho, max(examples // 3, 1), seed, 1.0, True, progress).as_dict()
    report["kernel"] = describe(rho)
    proved = {
        name for name in ("finite", "nondecreasing", "concave", "bernstein") if report[name]["verdict"] == "proved"
    }
    theorem = {"finite", "nondecreasing", "concave"} <= proved
    limit = (2.0 if "bernstein" in proved else 1.0) if theorem else None
    report["max_alpha"] = limit
    if found.counterexample is not None:
        report["verdict"] = "refuted"
    elif limit is not None and alpha <= limit:
        report["verdict"] = "guaranteed"
    else:
        report["verdict"] = "no violation found"
    return report


def _of_formula(text: str, parameters: dict[str, float | str]) -> tuple[dict[str, Any], Rho]:
    from .classify import classify_penalty

    rho = get_rho(text, **parameters)
    partial = formula.partial_operations(rho.formula or "", "z", dict(rho.parameters))
    traits = classify_penalty(rho.expr, partial)
    verdicts = {name: getattr(traits, name) for name in ("finite", "nondecreasing", "concave", "bernstein")}
    report: dict[str, Any] = {
        "expr": traits.expr,
        "derivative": traits.derivative,
        "slope_at_zero": traits.slope_at_zero,
        **{name: verdict.as_dict() for name, verdict in verdicts.items()},
        "proofs": {name: verdict.proof for name, verdict in verdicts.items() if verdict.proof},
        "checks": [],
    }
    return report, rho


def _of_object(text: str) -> tuple[dict[str, Any], Rho]:
    """The same of plain callables, whose text is not seen: the check kit can refute, and proves nothing."""
    from .testing.kit import penalty_checks, results

    try:
        rho = get_rho(load(text))
    except TypeError as error:
        raise ValueError(f"{text}: expected an object with value and derivative, functions of z ({error})") from None
    outcome = {result.name: result for result in results(rho, [c for c in penalty_checks() if c.name != "descent"])}

    def verdict(*names: str) -> dict[str, Any]:
        failed = [outcome[name] for name in names if not outcome[name].passed]
        if not failed:
            return {"verdict": "unknown", "method": "plain callables: sampled, nothing found", "witness": None}
        witness = f"{failed[0].message} at {failed[0].counterexample}"
        return {"verdict": "refuted", "method": f"check {failed[0].name}", "witness": witness}

    unknown = {"verdict": "unknown", "method": "plain callables: not sampled", "witness": None}
    concave = verdict("concave")
    report: dict[str, Any] = {
        "expr": rho.name,
        "derivative": None,
        "slope_at_zero": None,
        "finite": verdict("shapes", "finite", "derivative"),
        "nondecreasing": verdict("nondecreasing"),
        "concave": concave,
        "bernstein": concave if concave["verdict"] == "refuted" else unknown,
        "proofs": {},
        "checks": [asdict(result) for result in outcome.values()],
    }
    return report, rho


def load(text: str) -> Any:
    """The object that ``MODULE:OBJECT`` names, imported from the current folder or the installed packages."""
    module, _, path = text.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        thing: Any = importlib.import_module(module)
        for part in path.split("."):
            thing = getattr(thing, part)
        return thing() if isinstance(thing, type) else thing
    except (Exception, SystemExit) as error:  # whatever somebody else's module does
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{text}: expected MODULE:OBJECT that can be imported, got {reason}") from None


def penalty_table() -> list[dict[str, Any]]:
    """The shipped penalties: name, formula, derivative and traits."""
    from .classify import show

    z = formula.symbol("z")
    return [
        {
            "name": rho.name,
            "formula": rho.formula,
            "derivative": show.formula(formula.derivative(rho.expr, z)),
            "concave": rho.concave,
            "bernstein": rho.bernstein,
        }
        for rho in PENALTIES.values()
    ]
