"""Running the ledger: every notebook executed, every claim attacked, on all cores."""

from __future__ import annotations

import difflib
import io
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import redirect_stdout
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from . import derive

if TYPE_CHECKING:
    from .ledger import Claim

Progress = Callable[[int, int, str], None]


def all_claims() -> dict[str, Claim]:
    """Every claim by id, in the order of the text."""
    from . import alternating, asymmetric, attention, backward, feedforward, gradient_field, residual, rounding

    sections = (attention, residual, feedforward, alternating, asymmetric, gradient_field, backward, rounding)
    return {claim.id: claim for section in sections for claim in section.CLAIMS}


def verify(
    claims: Sequence[str] | None = None, examples: int = 200, seed: int = 0, progress: Progress | None = None
) -> dict[str, Any]:
    """Execute the derivations of these claims (None: all) and check each on ``examples`` random examples.

    Returns {"ok", "examples", "seed", "seconds", "claims"}; each claim has its id, statement, conditions, notebook
    and code, "derivation" ("proved" only if its notebook just ran to the end and discharged it, else "missing") with
    the number of identities, and what :func:`refimpl.claims.ledger.run` found. ``ok`` means that every claim is
    derived, was checked, and has no violation. ``progress(done, total, label)`` is called as parts finish.

    Raises ``ValueError`` for an id that is no claim, or for fewer than one example.
    """
    ledger = all_claims()
    wanted = list(ledger) if claims is None else list(dict.fromkeys(claims))
    for name in wanted:
        if name not in ledger:
            close = difflib.get_close_matches(name, ledger, n=3, cutoff=0.3) or list(ledger)
            raise ValueError(f"claim: expected the id of a claim, such as {', '.join(close)}; got {name!r}")
    if examples < 1:
        raise ValueError(f"examples: expected at least 1, got {examples}")

    started = time.perf_counter()
    notebooks = sorted({ledger[name].notebook for name in wanted})
    results: dict[tuple[str, str], Any] = {}
    context = multiprocessing.get_context("spawn")
    workers = min(os.cpu_count() or 1, len(notebooks) + len(wanted))
    # an interrupt from the keyboard reaches every process: the workers leave it to this one
    with ProcessPoolExecutor(workers, context, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        jobs: dict[Future[Any], tuple[str, str]] = {
            pool.submit(_execute, name): ("notebook", name) for name in notebooks
        }
        jobs |= {pool.submit(_check, name, examples, seed): ("claim", name) for name in wanted}
        try:
            for done, job in enumerate(as_completed(jobs), start=1):
                results[jobs[job]] = job.result()
                if progress is not None:
                    progress(done, len(jobs), jobs[job][1])
        except BaseException:  # an interrupt must not wait for the examples in progress
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise
    rows = [_row(ledger[name], results["notebook", ledger[name].notebook], results["claim", name]) for name in wanted]
    return {
        "ok": all(row["ok"] for row in rows),
        "examples": examples,
        "seed": seed,
        "seconds": time.perf_counter() - started,
        "claims": rows,
    }


def _row(claim: Claim, derivation: tuple[dict[str, int], str | None], finding: dict[str, Any]) -> dict[str, Any]:
    identities, failure = derivation
    count = 0 if failure else identities.get(claim.id, 0)
    errors = [text for text in (finding.pop("error"), failure) if text]
    if not failure and not count:
        errors.append(f"{claim.notebook} does not discharge it")
    if not finding["examples"] and not finding["violations"]:
        errors.append("the check ran on no example")
    return {
        "id": claim.id,
        "statement": claim.statement,
        "conditions": claim.conditions,
        "derivation": "proved" if count else "missing",
        "notebook": claim.notebook,
        "identities": count,
        "code": claim.code,
        **finding,
        "error": "; ".join(errors) or None,
        "ok": not errors and not finding["violations"],
    }


def _execute(notebook: str) -> tuple[dict[str, int], str | None]:
    """(identities by claim, why it stopped): a notebook that does not run to its end discharges nothing."""
    try:
        with redirect_stdout(io.StringIO()):
            return derive.execute(derive.folder() / notebook), None
    except (Exception, SystemExit) as error:
        place = next((f for f in reversed(traceback.extract_tb(error.__traceback__)) if notebook in f.filename), None)
        where = f"{place.filename}, line {place.lineno}" if place else notebook
        return {}, f"{where}: {type(error).__name__}: {error}"


def _check(name: str, examples: int, seed: int) -> dict[str, Any]:
    from .ledger import run

    return asdict(run(all_claims()[name], examples, seed))
