"""``refimpl vectors write``: the cases evaluated by the definitions at 100 digits, as JSON."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import mpmath

from ..console import Progress
from .cases import FAMILIES, Case
from .check import FORMAT, SCHEMA, VERSION, size
from .exact import ACTIVATIONS, penalty
from .operations import OPERATIONS, Array, flattened

_WORKING, _DIGITS = 100, 40  # the definitions may lose 1 + z of z = 1e-36, or 2^27 of a translation
_PATTERNS = 4  # perturbations of the inputs from which the condition is measured


def write(directory: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Write the vectors of every family, and the schema, to ``directory``, which is made where it does not exist.

    Files of those names are replaced once all are complete; no other file is touched. The bytes are always the same.
    Raises ``OSError`` where the directory cannot be made or written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".vectors-") as temporary:
        families = {name: list(make()) for name, make in FAMILIES.items()}
        total, done = sum(map(len, families.values())), 0
        for name, cases in families.items():
            lines = []
            for case in cases:
                lines.append(json.dumps(described(case), sort_keys=True, ensure_ascii=False, separators=(",", ":")))
                done += 1
                if progress is not None:
                    progress(done, total, case.operation)
            head = json.dumps(
                {"family": name, "format": FORMAT, "schema": SCHEMA, "version": VERSION, "count": len(cases)}
            )
            text = head[:-1] + ', "cases": [\n' + ",\n".join(lines) + "\n]}\n"
            Path(temporary, f"{name}.json").write_bytes(text.encode())
        schema = resources.files(__package__).joinpath(SCHEMA).read_bytes()
        Path(temporary, SCHEMA).write_bytes(schema)
        files = [*(f"{name}.json" for name in families), SCHEMA]
        sizes = {name: Path(temporary, name).stat().st_size for name in files}
        for name in files:
            os.replace(Path(temporary, name), directory / name)
    return {"cases": total, "failed": [], "directory": str(directory), "files": sizes}


def described(case: Case) -> dict[str, Any]:
    """The JSON object of a case, expected result included."""
    operation = OPERATIONS[case.operation]
    shapes = {name: array.shape for name, array in case.inputs.items()}
    assert set(shapes) == set(operation.inputs), case.id
    with mpmath.workdps(_WORKING):
        expected = Array(operation.shape(shapes), _evaluated(case))
        assert len(expected.flat) == math.prod(expected.shape), case.id
        record: dict[str, Any] = {
            "id": case.id,
            "operation": case.operation,
            "note": case.note,
            "flags": list(case.flags),
            "inputs": {name: _written(array) for name, array in case.inputs.items()},
            "expected": _written(expected),
            "condition": _condition(case, expected.flat),
            "terms": sum(len(array.flat) for array in case.inputs.values()),
        }
    if case.rho is not None:
        record["rho"] = {"name": case.rho} | penalty(case.rho).text
    if case.activation is not None:
        activation = ACTIVATIONS[case.activation]
        parameters = {name: _written(Array((), [value])) for name, value in activation.parameters.items()}
        record["activation"] = {"name": case.activation, "parameters": parameters} | activation.text
    return record


def _evaluated(case: Case, pattern: int = 0) -> list[Any]:
    """The result, row after row, of the inputs; of inputs off by a factor 1 ± 2⁻⁵³ each, if ``pattern`` > 0."""
    values, count = {}, 0
    for name, array in case.inputs.items():
        flat = []
        for x in array.flat:
            count += 1
            flat.append(mpmath.mpf(x) * (1 + _sign(count, pattern) * mpmath.mpf(2) ** -53))
        values[name] = Array(array.shape, flat).nested()
    rho = penalty(case.rho or "linear")  # an operation without one does not look at it
    activation = ACTIVATIONS[case.activation or "identity"]
    return [mpmath.mpf(x) for x in flattened(OPERATIONS[case.operation].run(values, rho, activation))]


def _sign(count: int, pattern: int) -> int:
    """0 for pattern 0; else ±1, the signs of the numbers of the input in that pattern."""
    if pattern == 0:
        return 0
    mixed = (2654435761 * (count + 64 * pattern)) % 2**32 >> 16
    return 1 - 2 * (mixed & 1)


def _condition(case: Case, expected: Sequence[Any]) -> float:
    """How much larger the relative error of the result is than one of 2⁻⁵³ in every input, rounded up."""
    finite = [mpmath.isfinite(x) for x in expected]
    scale = size([_float(x) for x in expected])
    largest = mpmath.mpf(0)
    for pattern in range(1, _PATTERNS + 1):
        moved = _evaluated(case, pattern)
        assert [mpmath.isfinite(x) for x in moved] == finite, f"{case.id}: an input at the edge of a domain"
        change = [abs(x - y) for x, y, ok in zip(moved, expected, finite, strict=True) if ok]
        largest = max([largest, *change])
    condition = largest / mpmath.mpf(scale) * mpmath.mpf(2) ** 53
    if condition == 0:
        return 0.0
    digits = 1 - int(mpmath.floor(mpmath.log10(condition)))  # two of them
    return float(mpmath.nstr(mpmath.ceil(condition * mpmath.mpf(10) ** digits) / mpmath.mpf(10) ** digits, 2))


def _written(array: Array) -> dict[str, Any]:
    return {
        "shape": list(array.shape),
        "decimal": [_decimal(mpmath.mpf(x)) for x in array.flat],
        "hex": [_float(mpmath.mpf(x)).hex() for x in array.flat],
    }


def _decimal(x: Any) -> str:
    """40 significant digits; 0 for what is smaller than any float of up to 128 bits."""
    if abs(x) < mpmath.mpf(10) ** -5000:
        return "0"
    return str(mpmath.nstr(x, _DIGITS)).replace("+inf", "inf").removesuffix(".0")


def _float(x: Any) -> float:
    """The float64 nearest to an mpmath number; its own conversion rounds a subnormal number twice."""
    return float(_decimal(x))
