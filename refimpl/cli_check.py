"""``refimpl check attention|feedforward|layer MODULE:FUNCTION``: somebody else's code, in a process of its own.

``refimpl gradient-field`` runs it here as well.

A function may end the process, hold the interpreter for ever or print a novel; none of it reaches the command's own
process, which reads one JSON object a line from the child and gives it up when the child falls silent.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from . import console
from .numerics import read_number

Report = dict[str, Any]
Message = dict[str, Any]

_BEAT = 0.5  # seconds between the child's signs of life
_SILENCE = 10.0  # how much longer than the time limit of a call the child may be silent
_IMPORT = 120.0  # seconds for the import of the module


def _time_limit(text: str) -> float:
    try:
        return read_number(float(text), "timeout", "(0, inf)")
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, got {text!r}") from None


def check_arguments(kind: str) -> Callable[[argparse.ArgumentParser], None]:
    """The arguments of ``refimpl check KIND``."""

    def add(parser: argparse.ArgumentParser) -> None:
        signature = {"attention": "fn(Y, W)", "feedforward": "fn(Y, Wf, B)", "layer": "fn(Y, W, Wf, B)"}[kind]
        parser.add_argument("function", metavar="MODULE:FUNCTION", help=f"{signature}, importable from here")
        call_arguments(parser)
        parser.add_argument("--batched", action="store_true", help="Y is (b, n, d)")
        if kind != "feedforward":
            parser.add_argument("--rho", default="exp", metavar="R", help="the penalty: a name or a formula in z (exp)")
        if kind == "attention":
            parser.add_argument("--pair-weights", action="store_true", help="fn(Y, W, m) takes the pair weights (n, n)")

    return add


def call_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say how a function is called."""
    parser.add_argument("--framework", choices=("numpy", "torch", "jax"), default="numpy", help="whose arrays")
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64", help="of the arrays")
    parser.add_argument("--timeout", type=_time_limit, default=10.0, metavar="S", help="seconds for one call (10)")


def check(kind: str) -> Callable[[argparse.Namespace], tuple[int, Report]]:
    """The work of ``refimpl check KIND``."""

    def run(arguments: argparse.Namespace) -> tuple[int, Report]:
        task = {
            "kind": kind,
            "function": arguments.function,
            "rho": getattr(arguments, "rho", "exp").strip(),
            "framework": arguments.framework,
            "dtype": arguments.dtype,
            "batched": arguments.batched,
            "pair_weights": getattr(arguments, "pair_weights", False),
            "seconds": arguments.timeout,
            "seed": arguments.seed,
        }
        with console.progress() as progress:
            report = supervised(task, progress)
        return 0 if report["ok"] else 1, {"function": arguments.function, "kind": kind} | report

    return run


def show_check(report: Report) -> str:
    """The report as text."""
    rows = [
        [c["name"], c["claim"], "passed" if c["passed"] else "FAILED", c["message"] or ""] for c in report["checks"]
    ]
    lines = [console.table(["check", "claim", "result", "what was found"], rows, wrap=3), ""]
    lines += [f"not checked: {name}, {reason}" for name, reason in report["skipped"].items()]
    failed = [c for c in report["checks"] if not c["passed"]]
    if failed and failed[0]["counterexample"]:
        lines.append(f"smallest input of {failed[0]['name']!r}: {failed[0]['counterexample']}")
    if report["ok"]:
        lines.append(f"{report['function']} is the {WHAT[report['kind']]} of the paper: {len(rows)} checks passed")
    else:
        lines += ["", f"{report['function']}: {report['diagnosis']}"]
    return "\n".join(lines)


WHAT = {"attention": "attention step", "feedforward": "feed-forward step", "layer": "layer"}


# ------------------------------------------------------------------------------------------------ the parent


def supervised(task: Message, progress: console.Progress | None) -> Report:
    """The report of a child process, or what can be said when it is gone."""
    child = subprocess.Popen(
        [sys.executable, "-m", "refimpl.cli_check", json.dumps(task)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,  # an interrupt reaches the parent, which ends the child
    )
    checks: list[Message] = []
    at = "import"
    try:
        for message in _messages(child, task["seconds"] + _SILENCE):
            if "report" in message:
                report: Report = message["report"]
                return report
            if "invalid" in message:
                raise ValueError(message["invalid"])
            if "found" in message:
                checks.append(message["found"])
            if "at" in message:
                number, total, at = message["at"]
                if progress is not None:
                    progress(number, total, at)
        status = child.poll()
        if status is None:
            finding = "your function does not return and cannot be interrupted, so its process was ended"
        else:
            finding = f"your function ended the process, with exit status {status}"
    finally:
        child.kill()
        child.wait()
    claim = "attention.step" if task["kind"] == "attention" else "ffn.step"
    checks.append({"name": at, "claim": claim, "passed": False, "message": finding, "counterexample": None})
    return {"ok": False, "diagnosis": finding, "checks": checks, "skipped": {"the rest": "the process was gone"}}


def _messages(child: subprocess.Popen[bytes], silence: float) -> Iterator[Message]:
    """What the child says, until it ends or is silent for too long."""
    lines: queue.Queue[bytes | None] = queue.Queue()

    def read() -> None:
        assert child.stdout is not None
        with child.stdout as stdout:
            for line in stdout:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    with contextlib.suppress(queue.Empty):
        while (line := lines.get(timeout=silence)) is not None:
            yield json.loads(line)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=1.0)


# ------------------------------------------------------------------------------------------------ the child


def _child(task: Message) -> None:
    """Import and examine the function; one JSON object a line goes to the standard output that the parent reads."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the function prints goes to standard error
    lock = threading.Lock()

    def say(**message: Any) -> None:
        with lock:
            print(json.dumps(message), file=channel, flush=True)

    def beat() -> None:
        while True:
            time.sleep(_BEAT)
            say(alive=True)

    threading.Thread(target=beat, daemon=True).start()
    try:
        say(report=_examined(task, say))
    except (ValueError, TypeError) as error:
        say(invalid=str(error))
    except BaseException:
        traceback.print_exc()
        os._exit(70)
    os._exit(0)  # a thread of theirs that still runs is no reason to wait


def _examined(task: Message, say: Callable[..., None]) -> Report:
    from .attention import AttentionEnergy
    from .examine import load
    from .testing.conformance import examine
    from .testing.gradient_field import examine_field
    from .testing.kit import Finding
    from .testing.subject import Subject

    rho = AttentionEnergy(rho=task.get("rho", "exp")).rho
    module = task["function"].partition(":")[0]
    if not all(part.isidentifier() for part in module.split(".")) or ":" not in task["function"]:
        raise ValueError(f"function: expected MODULE:FUNCTION, got {task['function']!r}")
    try:
        Subject(_import, task["framework"], task["dtype"], False, _IMPORT).guarded(lambda: _import(module))
    except Finding as finding:
        message = finding.finding.replace("your function", "your module", 1)
        check = {"name": "import", "claim": "", "passed": False, "message": message, "counterexample": None}
        return {"ok": False, "diagnosis": message, "checks": [check], "skipped": {"the rest": "there is no function"}}
    call = {name: task[name] for name in ("framework", "dtype", "seconds", "seed")}

    def progress(number: int, total: int, name: str) -> None:
        say(at=[number, total, name])

    if task["kind"] == "gradient field":
        return examine_field(load(task["function"]), task["tokens"], task["dim"], **call, progress=progress).as_dict()
    return examine(
        task["kind"],
        load(task["function"]),
        rho,
        **call,
        **{name: task[name] for name in ("batched", "pair_weights")},
        progress=progress,
        found=lambda result: say(found=vars(result)),
    ).as_dict()


def _import(module: str) -> None:
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # a module that theirs needs


if __name__ == "__main__":
    _child(json.loads(sys.argv[1]))
