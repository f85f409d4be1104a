"""The ledger: what a claim is, and how it is checked.

A claim is an id of the text, a statement with its conditions, the notebook that derives it, a property that is checked
on examples drawn under the conditions, and, where the conditions matter, a witness outside them. Running a claim
executes the check on Hypothesis examples, looking for the tightest one; nothing here is remembered between runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


class Violation(AssertionError):
    """The check of a claim found an example on which the claim fails."""


def require(condition: Any, message: Callable[[], str] | str = "") -> None:
    """Raise :class:`Violation` unless ``condition``; a NaN comparison is a violation too."""
    if not condition:
        raise Violation(message() if callable(message) else message)


def require_close(actual: Any, expected: Any, tolerance: Any, what: str) -> None:
    """|actual − expected| ≤ tolerance, entry by entry; equal infinities are close."""
    import numpy as np

    actual, expected = np.asarray(actual, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    require(actual.shape == expected.shape, f"{what}: shape {actual.shape} instead of {expected.shape}")
    with np.errstate(invalid="ignore"):
        close = (actual == expected) | (np.abs(actual - expected) <= tolerance)
        worst = np.abs(actual - expected)[~close].max(initial=0.0)
    require(close.all(), f"{what}: off by {worst:.3g}")


@dataclass(frozen=True)
class Claim:
    """One entry of the ledger.

    id : as in the text, ``section.name``.
    statement, conditions : one line each.
    notebook : the file in ``derivations/`` that discharges it.
    code : the function that the claim is about.
    cases : a function that returns the Hypothesis strategy of the examples under the conditions.
    check : takes an example, raises :class:`Violation` where the claim fails, and returns how tight the inequality
        is there: the quantity that is bounded, with what rounding may have taken from it, over its bound (at least
        1), or None where there is no such ratio or the claim's hypothesis does not hold on this example.
    witness : for a condition that matters, a function that shows what happens without it: it raises
        :class:`Violation` unless the conclusion really fails there, and returns a description with the figures.
    """

    id: str
    statement: str
    conditions: str
    notebook: str
    code: str
    cases: Callable[[], SearchStrategy[Any]]
    check: Callable[[Any], float | None]
    witness: Callable[[], str] | None = None


@dataclass
class Finding:
    """What running a claim's check found. ``tightest`` is the smallest ratio; ``measured`` is how many had one."""

    examples: int = 0
    violations: int = 0
    measured: int = 0
    tightest: float | None = None
    witness: str | None = None
    error: str | None = None


def run(claim: Claim, examples: int, seed: int = 0) -> Finding:
    """Check a claim on ``examples`` random examples.

    A violation is shrunk and becomes the witness, with the message in ``error``; without one, the witness is the
    claim's own counterexample outside its conditions.
    """
    import hypothesis

    finding = Finding()
    failure: tuple[Any, AssertionError] | None = None

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.generate, hypothesis.Phase.target, hypothesis.Phase.shrink),
    )
    @hypothesis.given(claim.cases())
    def attack(case: Any) -> None:
        nonlocal failure
        try:
            ratio = claim.check(case)
        except AssertionError as violation:
            failure = case, violation
            raise
        if failure is None:
            finding.examples += 1
            if ratio is not None:
                finding.measured += 1
                ratio = float(f"{ratio:.12g}")
                finding.tightest = ratio if finding.tightest is None else min(ratio, finding.tightest)
                hypothesis.target(-min(ratio, 1e9))

    try:
        with contextlib.suppress(hypothesis.errors.Unsatisfiable):  # no example: not ok, and said so in the count
            attack()
    except AssertionError:
        assert failure is not None
        finding.violations = 1
        finding.witness, finding.error = str(failure[0]), str(failure[1])
    else:
        if claim.witness is not None:
            try:
                finding.witness = claim.witness()
            except AssertionError as violation:
                finding.error = f"the witness does not show what it should: {violation}"
    return finding
