"""Times of the energy, its gradient and its step beside other ways to get them; prints tables and writes JSON.

    python benchmarks/run.py [--quick] [--only PART ...] [--out FILE.json]
    python benchmarks/run.py --out docs/benchmarks.json && python benchmarks/page.py    # the page docs/speed.md

The competitors of a row take turns (A B C A B C ...), so that load on the machine meets all alike, and each has its
median. Tokens are N(0, 1) d^(−1/4), so that logits have the usual scale of 1/√d, unless the row says otherwise.

sizes     : every operation by n and d, in both dtypes, for softmax; growth exponents over the largest three n.
penalties : energy and step of every shipped penalty.
routes    : tokens for which distances are not one product: ``numerics.distance_blocks``.
small     : the step of 16 tokens in 8 dimensions, and what the search for a rise of the energy does with an example.
profile   : where the time of a step goes.
passes    : what one block of pairs costs, operation by operation.
memory    : peak above the inputs, and time, at n = 32,768.

The floor is what nothing that forms n² weights avoids: the product Y Yᵀ, exp in place and, for a step, a product with
Y, all into arrays that exist already. Others that need an array of more than 2 GB are not run; nor is the literal
definition, but for few tokens.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib.metadata
import json
import os
import platform
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import hypothesis
import numpy as np
from page import tables
from scipy.spatial.distance import pdist
from scipy.special import softmax

import refimpl
from refimpl import attention, console, definitions, numerics
from refimpl.rho import PENALTIES
from refimpl.testing import search

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

Call = Callable[[], Any]
Row = dict[str, Any]

OPERATIONS = ("energy", "gradient", "step", "vjp", "forward")
DTYPES = ("float64", "float32")
LAYERS = 12
# about how many products of an n × n with an n × d matrix; rows of more than MOST_WORK in all are left out
WORK = {"energy": 1, "gradient": 2, "step": 2, "vjp": 8, "forward": 40}
MOST_WORK = 1.7e11
MOST_BYTES = 2e9  # of the largest array of a competitor
# the literal definition runs up to so many n d
LITERAL = 16 * 64
# a row is repeated for half a second, at most MOST times; and FEWEST times, where that takes no longer than PATIENCE
SECONDS, MOST, FEWEST, PATIENCE = 1.0, 25, 3, 6.0
# threads of BLAS and OpenMP spin for a while after their work, and would do so on the cores of whoever is next: each
# turn waits for that, and starts with a call that is not timed
REST = 0.04


def tokens(n: int, d: int, dtype: str, scale: float | None = None) -> Any:
    """N(0, 1) times ``scale``, d^(−1/4) where it is None."""
    Y = np.random.default_rng(0).normal(size=(n, d)) * (d**-0.25 if scale is None else scale)
    return Y.astype(dtype)


def seconds(calls: Sequence[Call]) -> tuple[list[float], int]:
    """The median time of each, and how often each ran; they take turns."""
    times: list[list[float]] = [[] for _ in calls]
    start, rounds, enough = time.perf_counter(), 0, False
    while not enough:
        for call, mine in zip(calls, times, strict=True):
            time.sleep(REST)
            if not mine or mine[-1] < REST:
                call()
            mine.append(_timed(call))
        rounds, spent = rounds + 1, time.perf_counter() - start
        enough = rounds == MOST or spent > (SECONDS if rounds >= FEWEST else PATIENCE)
    return [median(mine) for mine in times], rounds


def _timed(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


# ------------------------------------------------------------------------------------------------ who takes part


def ours(operation: str, Y: Any, rho: str = "exp") -> Call:
    E = refimpl.AttentionEnergy(rho=rho)
    if operation == "forward":
        layer = refimpl.FeedForwardEnergy(0.5 * np.eye(Y.shape[1]))
        return lambda: refimpl.UnfoldedTransformer(E, layer, depth=LAYERS).forward(Y)
    if operation == "vjp":
        return lambda: E.vjp(Y, Y)
    return functools.partial(getattr(E, "value" if operation == "energy" else operation), Y)


def floor(operation: str, Y: Any) -> Call | None:
    if operation not in ("energy", "gradient", "step"):
        return None
    Y = tokens(*Y.shape, Y.dtype)  # of the usual scale: exp takes another time where it overflows
    Gamma, AY = np.empty((len(Y), len(Y)), Y.dtype), np.empty_like(Y)

    def best_product(right: Any) -> float:
        few = slice(None, 2048)
        return min(_timed(functools.partial(np.matmul, Y[few], right[:, few], out=Gamma[few, few])) for _ in range(3))

    # the product with a view of the transpose is another routine (syrk) than that with a copy: the faster is the floor
    right = min(Y.T, np.ascontiguousarray(Y.T), key=best_product)

    def run() -> None:
        np.matmul(Y, right, out=Gamma)
        np.exp(Gamma, out=Gamma)
        if operation != "energy":
            np.matmul(Gamma, Y, out=AY)

    return run


def one_line(operation: str, Y: Any) -> Call | None:
    """What one writes in NumPy and SciPy for softmax."""
    if operation == "energy":
        return lambda: -np.exp(-0.5 * pdist(Y, "sqeuclidean")).sum()
    if operation == "step":
        return lambda: softmax(Y @ Y.T - 0.5 * (Y * Y).sum(axis=1), axis=1) @ Y
    return None


def pytorch(operation: str, Y: Any) -> Call | None:
    """``torch.cdist``, and ``scaled_dot_product_attention``, which leaves β out, with its backward pass."""
    if torch is None or operation not in ("energy", "step", "vjp"):
        return None
    T = torch.from_numpy(Y)
    if operation == "energy":
        return lambda: 0.5 * (len(Y) - torch.exp(-0.5 * torch.cdist(T, T) ** 2).sum(dtype=torch.float64))
    head = T[None, None]
    if operation == "step":
        return lambda: torch.nn.functional.scaled_dot_product_attention(head, head, head, scale=1.0)

    def vjp() -> Any:
        X = head.clone().requires_grad_()
        AX = torch.nn.functional.scaled_dot_product_attention(X, X, X, scale=1.0)
        return torch.autograd.grad(AX, X, head)

    return vjp


def gather(operation: str, Y: Any) -> Call | None:
    """As the authors' released code has the energy: tokens i and j of every pair, gathered and subtracted."""

    def energy() -> Any:
        i, j = np.triu_indices(len(Y), 1)
        difference = Y[i] - Y[j]
        return -np.exp(-0.5 * (difference * difference).sum(axis=1)).sum()

    return energy if operation == "energy" else None


def literal(operation: str, Y: Any) -> Call | None:
    value, slope = PENALTIES["exp"].literal()
    rows, W, m = Y.tolist(), definitions.identity(Y.shape[1]), definitions.ones(len(Y))
    calls: dict[str, Call] = {
        "energy": lambda: definitions.attention_energy(rows, W, value, m),
        "gradient": lambda: definitions.attention_gradient(rows, W, slope, m),
        "step": lambda: definitions.attention_step(rows, W, slope, m, 1.0),
        "vjp": lambda: definitions.attention_vjp(rows, W, slope, lambda z: -slope(z), m, 1.0, rows),
    }
    return calls.get(operation)


COMPETITORS = {"floor": floor, "NumPy": one_line, "PyTorch": pytorch, "gather": gather, "literal": literal}


def competitors(operation: str, Y: Any) -> tuple[dict[str, Call], dict[str, str]]:
    """Those that run, by name, and why those that have the operation do not."""
    n, d = Y.shape
    # the largest array of those that have one; the floor runs whatever it needs
    entries = {"NumPy": n * n, "PyTorch": n * n if operation == "energy" else 0, "gather": n * (n - 1) // 2 * d}
    calls, not_run = {"refimpl": ours(operation, Y)}, {}
    for name, make in COMPETITORS.items():
        size = entries.get(name, 0) * Y.itemsize
        if make(operation, Y[:2]) is None:
            continue
        if size > MOST_BYTES or (name == "literal" and (n * d > LITERAL or Y.dtype != np.float64)):
            not_run[name] = f"{size / 1e9:.1f} GB" if size else "not run"
        else:
            calls[name] = make(operation, Y)  # type: ignore[assignment]
    return calls, not_run


def route(E: refimpl.AttentionEnergy, Y: Any) -> str:
    """How ``numerics.distance_blocks`` takes the distances of these tokens, seen by what it calls."""
    names = ("_products", "_split_products", "_near_pairs_by_differences")
    spies = {name: mock.Mock(wraps=getattr(numerics, name)) for name in names}
    with mock.patch.multiple(numerics, **spies):
        next(E._blocks(E._project(E._read(Y)[0]), Y.dtype))
    one, split, near = (spies[name].called for name in names)
    words = "split product" if split else "one product" if one else "differences"
    return f"{words}, near pairs by differences" if near else words


# ------------------------------------------------------------------------------------------------ the parts


def _row(operation: str, n: int, d: int, dtype: str, rho: str = "exp", scale: float | None = None) -> Row:
    Y = tokens(n, d, dtype, scale)
    calls, not_run = competitors(operation, Y)
    if rho != "exp" or scale is not None:
        calls, not_run = {"refimpl": ours(operation, Y, rho), "floor": calls["floor"]}, {}
    medians, repetitions = seconds(list(calls.values()))
    return {
        "operation": operation,
        "rho": rho,
        "n": n,
        "d": d,
        "dtype": dtype,
        "scale": "d^(-1/4)" if scale is None else scale,
        "route": route(refimpl.AttentionEnergy(rho=rho), Y),
        "repetitions": repetitions,
        "seconds": dict(zip(calls, medians, strict=True)),
        "not_run": not_run,
    }


def _plan_sizes(quick: bool) -> list[Callable[[], Row]]:
    ns, ds = ((16, 32, 64), (8,)) if quick else ((16, 64, 256, 1024, 4096, 16384), (64, 300))
    return [
        functools.partial(_row, operation, n, d, dtype)
        for n in ns
        for d in ds
        for dtype in DTYPES
        for operation in OPERATIONS
        if WORK[operation] * n * n * d <= MOST_WORK
    ]


def _plan_penalties(quick: bool) -> list[Callable[[], Row]]:
    return [
        functools.partial(_row, operation, 64 if quick else 1024, 64, dtype, rho)
        for rho in PENALTIES
        for dtype in DTYPES
        for operation in ("energy", "step")
    ]


def _plan_routes(quick: bool) -> list[Callable[[], Row]]:
    return [
        functools.partial(_row, operation, 64 if quick else 1024, d, dtype, "exp", scale)
        for d, scale in ((64, 1.0), (300, 1.0))
        for dtype in DTYPES
        for operation in ("energy", "step")
    ]


def _small_step() -> Row:
    """Seconds of one call, and of one of 256 in a batch."""
    Y, batch = tokens(16, 8, "float64"), tokens(256 * 16, 8, "float64").reshape(256, 16, 8)
    found: Row = {}
    for words, E in (("", refimpl.AttentionEnergy()), (", W given", refimpl.AttentionEnergy(np.eye(8)))):
        for operation, call in (("energy", E.value), ("step", E.step)):
            # a hundred at a time: one is about as short as a reading of the clock
            alone = functools.partial(_repeat, functools.partial(call, Y), 100)
            (hundred, together), _ = seconds([alone, functools.partial(call, batch)])
            found |= {operation + words: hundred / 100, f"{operation}{words}, in a batch": together / len(batch)}
    return found


def _repeat(call: Call, times: int) -> None:
    for _ in range(times):
        call()


def _search() -> Row:
    """Examples a second of what ``search_descent`` does with the candidates that Hypothesis draws for it."""
    drawn: list[Any] = []

    @hypothesis.seed(0)
    @hypothesis.settings(max_examples=300, database=None, deadline=None, phases=(hypothesis.Phase.generate,))
    @hypothesis.given(search._candidates(False))
    def collect(candidate: Any) -> None:
        drawn.append(candidate)

    collect()
    rho = PENALTIES["exp"]
    (median_time,), _ = seconds([lambda: [search._relative_rise(rho, candidate, 1.0) for candidate in drawn]])
    return {"examples, a second": len(drawn) / median_time}


def _profile(n: int, d: int, dtype: str) -> Row:
    """Seconds of a step by stage: the median over repetitions of what each function took, the rest apart."""
    E, Y = refimpl.AttentionEnergy(), tokens(n, d, dtype)
    stages = {
        "distances": (numerics, "_gram"),
        "kernel": (attention.AttentionEnergy, "_kernel"),
        "sums": (attention, "add_symmetric_product"),
        "prepare": (numerics, "_products"),
        "read": (attention.AttentionEnergy, "_read"),
        "centre": (attention, "centred"),
    }
    spent: dict[str, float] = {}

    def clocked(stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = function(*arguments)
            spent[stage] += time.perf_counter() - start
            return result

        return run

    patches = [mock.patch.object(at, name, clocked(stage, getattr(at, name))) for stage, (at, name) in stages.items()]
    runs: list[dict[str, float]] = []
    for _ in range(MOST):
        spent = dict.fromkeys(stages, 0.0)
        for patch in patches:
            patch.start()
        whole = _timed(lambda: E.step(Y))
        for patch in patches:
            patch.stop()
        runs.append(spent | {"rest": whole - sum(spent.values())})
    return {"n": n, "d": d, "dtype": dtype, "seconds": {stage: median(run[stage] for run in runs) for stage in runs[0]}}


def _passes(dtype: str) -> Row:
    """Nanoseconds an entry of what a step does to a block of 181 × 724 pairs, the default, in 64 dimensions."""
    u, v = tokens(181, 64, "float64"), tokens(724, 64, "float64")
    Z, column, row = 0.5 * np.abs(u @ v.T), np.zeros((181, 1)), np.zeros((1, 724))
    G, left, right = Z.astype(dtype), u.astype(dtype), v.astype(dtype)
    calls: dict[str, Call] = {
        "product": lambda: u @ v.T,
        "first addition": lambda: np.add(Z, column, out=Z),
        "second addition": lambda: np.add(Z, row, out=Z),
        "maximum": lambda: np.maximum(Z, 0.0, out=Z),
        "cast": lambda: Z.astype(dtype, copy=False),
        "exp": lambda: np.exp(-G),
        "three extrema": lambda: (G.min(), G.max(), G.min()),
        "product with columns": lambda: G @ right,
        "product with rows": lambda: G.T @ left,
    }
    medians, _ = seconds(list(calls.values()))
    return {"dtype": dtype, "nanoseconds": {name: m / G.size * 1e9 for name, m in zip(calls, medians, strict=True)}}


def _memory(operation: str, n: int, d: int, dtype: str) -> Row:
    Y = tokens(n, d, dtype)
    call = ours(operation, Y)
    taken = _timed(call)
    tracemalloc.start()
    call()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"operation": operation, "n": n, "d": d, "dtype": dtype, "seconds": taken, "peak_mib": peak / 2**20}


def plan(quick: bool) -> dict[str, list[Callable[[], Row]]]:
    """What each part measures, one after the other."""
    return {
        "sizes": _plan_sizes(quick),
        "penalties": _plan_penalties(quick),
        "routes": _plan_routes(quick),
        "small": [_small_step, _search],
        "profile": [
            functools.partial(_profile, n, 64, dt) for n in ((64,) if quick else (1024, 4096)) for dt in DTYPES
        ],
        "passes": [functools.partial(_passes, dtype) for dtype in DTYPES],
        "memory": [functools.partial(_memory, op, 256 if quick else 32768, 64, "float64") for op in ("energy", "step")],
    }


def growth(rows: Sequence[Row]) -> list[Row]:
    """The exponent p of n^p by operation, d, dtype and competitor: least squares of logarithms, the largest three n."""
    times: dict[tuple[Any, ...], list[tuple[int, float]]] = {}
    for row in rows:
        for name, time_taken in row["seconds"].items():
            times.setdefault((row["operation"], row["d"], row["dtype"], name), []).append((row["n"], time_taken))
    found = []
    for key, points in times.items():
        n, t = np.log(np.array(sorted(points)[-3:])).T
        if len(n) == 3:
            exponent = float(np.polyfit(n, t, 1)[0])
            found.append({**dict(zip(("operation", "d", "dtype", "name"), key, strict=True)), "exponent": exponent})
    return found


def machine() -> dict[str, Any]:
    """What the figures depend on, and no names."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    packages = ("numpy", "scipy", "torch") if torch else ("numpy", "scipy")
    threads = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS")
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "threads": int(threads or os.cpu_count() or 1),
        "python": ".".join(map(str, sys.version_info[:3])),
        **{package: importlib.metadata.version(package) for package in packages},
        "blas": f"{blas['name']} {blas['version']}",
    }


# ------------------------------------------------------------------------------------------------ the command


def measure(parts: Sequence[str], quick: bool) -> Row:
    """The report; an interrupt keeps what was measured and makes it ``complete: false``."""
    report: Row = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "complete": False,
    }
    chosen = {part: calls for part, calls in plan(quick).items() if part in parts}
    done, total = 0, sum(map(len, chosen.values()))
    try:
        with console.progress() as progress:
            for part, calls in chosen.items():
                rows = report[part] = []
                for call in calls:
                    rows.append(call())
                    done += 1
                    if progress is not None:
                        progress(done, total, part)
        report["complete"] = True
    except KeyboardInterrupt:
        print(f"interrupted after {done} of {total} rows", file=sys.stderr)
    if "sizes" in report:
        report["growth"] = growth(report["sizes"])
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--only", nargs="+", choices=list(plan(True)), metavar="PART", help="these parts, not all")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="the report as JSON")
    options = parser.parse_args(arguments)
    if torch is not None:
        torch.set_num_threads(machine()["threads"])
    report = measure(options.only or list(plan(True)), options.quick)
    for part, text in tables(report).items():
        print(f"\n{part}\n\n{text}")
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0 if report["complete"] else 130


if __name__ == "__main__":
    sys.exit(main())
