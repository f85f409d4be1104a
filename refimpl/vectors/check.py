"""``refimpl vectors check``: the results of another program against the vectors.

Both are somebody's files: they are parsed as JSON, within limits of size, and every number is read by its spelling.
Nothing is evaluated, and what does not fit is one line that names the file.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .cases import FAMILIES

FORMAT, VERSION, SCHEMA = "refimpl-vectors", 1, "vectors.schema.json"

DType = Literal["float64", "float32"]
Object = dict[str, Any]

FACTOR = 8  # roundings that each number of the input may cost
_MOST_BYTES = 16 << 20
_LONGEST_NUMBER = 1000
_BEYOND = "a number beyond the range of float64"
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf")
_HEX = re.compile(r"[+-]?0[xX]([0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)([pP][+-]?[0-9]{1,6})?")


def check(directory: Path, results: Path, dtype: DType = "float64") -> Object:
    """Compare the file ``results`` with the vectors in ``directory``, at the precision of ``dtype``.

    The error of a case is max |got − expected| / max |expected|, with 1 for the denominator where that is 0; a case
    passes if it is at most ``tolerance``. An infinite result must be expected, with its sign. A case outside the range
    of ``dtype``, or so ill-conditioned that no digit is left in it, is listed under ``skipped``, with the reason.

    Raises ``OSError`` for a file that cannot be read and ``ValueError``, naming it, for one that is not of the format.
    """
    cases = read_vectors(directory)
    answers = _read_results(results)
    failed: list[Object] = []
    skipped: list[Object] = []
    missing: list[str] = []
    errors: dict[str, Object] = {}
    for name, case in cases.items():
        bound = tolerance(case, dtype)
        if reason := _beyond(case, bound, dtype):
            skipped.append({"id": name, "reason": reason})
            continue
        error, why = None, "missing"
        if name in answers:
            try:
                got = _flat(answers[name], case["expected"]["shape"])
            except ValueError as problem:
                why = str(problem)
            else:
                error, why = _error(got, case["expected"]["floats"], dtype)
                errors[name] = {"error": error, "tolerance": bound}
        else:
            missing.append(name)
        if error is None or not error <= bound:
            failed.append({"id": name, "reason": why, "error": error, "tolerance": bound})
    measured = [(e["error"] / e["tolerance"], name) for name, e in errors.items() if e["error"] is not None]
    worst = max(measured, default=None)
    return {
        "cases": len(cases),
        "passed": len(cases) - len(failed) - len(skipped),
        "failed": failed,
        "missing": missing,
        "skipped": skipped,
        "unknown": sorted(set(answers) - set(cases)),
        "worst": None if worst is None else {"id": worst[1], "share": worst[0]} | errors[worst[1]],
        "errors": errors,
        "dtype": dtype,
    }


def tolerance(case: Object, dtype: DType) -> float:
    """8 u (condition + terms + 2), u = 2⁻⁵³ or 2⁻²⁴: what the input's rounding does, and a rounding for each number."""
    roundoff = float(np.finfo(dtype).eps) / 2
    return float(FACTOR * roundoff * (case["condition"] + case["terms"] + 2))


def size(floats: list[float]) -> float:
    """The largest finite magnitude, or 1 where that is 0: what errors are relative to."""
    return max((abs(x) for x in floats if math.isfinite(x)), default=0.0) or 1.0


def _beyond(case: Object, bound: float, dtype: DType) -> str | None:
    """Why a case says nothing in ``dtype``, if so."""
    limits = np.finfo(dtype)
    if dtype != "float64":
        arrays = [*case["inputs"].values(), case["expected"]]
        largest = [max((abs(x) for x in a["floats"] if math.isfinite(x)), default=0.0) for a in arrays]
        if any(x > float(limits.max) or 0 < x < float(limits.tiny) for x in largest):
            return f"outside the range of {dtype}"
    if bound > 0.1:
        return f"no digit is left in {dtype}: condition {case['condition']:.1e}"
    return None


def _error(got: list[float], expected: list[float], dtype: DType) -> tuple[float | None, str]:
    """(The error, None where it is not finite; what is wrong if it is too large.)"""
    if any(x != y for x, y in zip(got, expected, strict=True) if math.isinf(x) or math.isinf(y)):
        return None, "infinite where it should not be, or the reverse"
    scale, smallest = size(expected), float(np.finfo(dtype).smallest_subnormal)
    error = 0.0
    for x, y in zip(got, expected, strict=True):
        # halves: the difference of two large numbers may overflow; a subnormal result is as good as its spacing
        difference = 0.0 if x == y else abs(x / 2 - y / 2) * (2 / scale) if scale > 1 else abs(x - y) / scale
        error = max(error, 0.0 if abs(x - y) <= smallest else difference)
    return (error, "too far from the expected result") if math.isfinite(error) else (None, "infinitely far off")


# ------------------------------------------------------------------------------------------------ reading


def read_vectors(directory: Path) -> dict[str, Object]:
    """The cases of every family by id, each array with its ``floats``, after a check of all that is read of them."""
    cases: dict[str, Object] = {}
    for family in FAMILIES:
        path = directory / f"{family}.json"
        document = _load(path)
        if document.get("format") != FORMAT or document.get("version") != VERSION:
            raise ValueError(f"{path}: expected format {FORMAT!r}, version {VERSION}")
        if document.get("family") != family or not isinstance(document.get("cases"), list) or not document["cases"]:
            raise ValueError(f"{path}: expected cases of the family {family!r}")
        if document.get("count") != len(document["cases"]):
            raise ValueError(f"{path}: expected {document.get('count')!r:.20} cases, got {len(document['cases'])}")
        for number, case in enumerate(document["cases"]):
            try:
                _read_case(case)
                if case["id"] in cases:
                    raise ValueError(f"the id {case['id'][:80]!r} occurs twice")
            except ValueError as error:
                raise ValueError(f"{path}: case {number}: {error}") from None
            cases[case["id"]] = case
    return cases


def _read_case(case: Any) -> None:
    if not isinstance(case, dict) or not isinstance(case.get("id"), str) or not isinstance(case.get("inputs"), dict):
        raise ValueError("expected an object with id, inputs and expected")
    for name in ("condition", "terms"):
        value = case.get(name)
        if not isinstance(value, float) or not 0 <= value < math.inf:
            raise ValueError(f"{name}: expected a number of at least 0")
    for name, array in (*case["inputs"].items(), ("expected", case.get("expected"))):
        try:
            _read_array(array)
        except ValueError as error:
            raise ValueError(f"{name[:80]}: {error}") from None


def _read_array(array: Any) -> None:
    keys = ("shape", "decimal", "hex")
    if not isinstance(array, dict) or not all(isinstance(array.get(key), list) for key in keys):
        raise ValueError("expected an object with the lists shape, decimal and hex")
    shape = array["shape"]
    if len(shape) > 2 or not all(isinstance(n, float) and n.is_integer() and 0 <= n < 2**20 for n in shape):
        raise ValueError("expected a shape of at most two whole numbers")
    array["shape"] = [int(n) for n in shape]
    if not len(array["decimal"]) == len(array["hex"]) == math.prod(array["shape"]):
        raise ValueError(f"expected {math.prod(array['shape'])} numbers, as the shape {array['shape']} says")
    array["floats"] = [_number(x) for x in array["hex"]]
    if [_number(x) for x in array["decimal"]] != array["floats"]:
        raise ValueError("the decimal and the hexadecimal numbers differ")


def _read_results(path: Path) -> Object:
    results = _load(path).get("results")
    if not isinstance(results, dict):
        raise ValueError(f'{path}: expected {{"results": {{"case id": value, ...}}}}')
    return results


def _flat(value: Any, shape: list[int]) -> list[float]:
    """The numbers of a nested list of that shape, row after row."""
    if not shape:
        return [_number(value)]
    if not isinstance(value, list) or len(value) != shape[0]:
        raise ValueError("wrong shape")
    return [x for item in value for x in _flat(item, shape[1:])]


def _number(value: Any) -> float:
    """A JSON number, or the text of a decimal or hexadecimal one; both round to the nearest float."""
    if isinstance(value, list):
        raise ValueError("wrong shape")
    if isinstance(value, float):  # every JSON number is read as one
        return value
    if isinstance(value, str) and len(value) <= _LONGEST_NUMBER:
        if _DECIMAL.fullmatch(value):
            return _in_range(value) if "inf" not in value else float(value)
        if _HEX.fullmatch(value):
            try:
                return float.fromhex(value)
            except OverflowError:
                raise ValueError(_BEYOND) from None
    raise ValueError("not a number")


def _in_range(text: str) -> float:
    """The float nearest to a decimal number: infinity is written as inf, or it is none."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(_BEYOND)
    return number


def _load(path: Path) -> Object:
    """The JSON object in a file."""
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"{path}: expected at most {_MOST_BYTES >> 20} MiB")
    try:
        document = json.loads(
            data.decode(),
            parse_int=_digits,
            parse_float=_digits,
            parse_constant=_refused,
            object_pairs_hook=_object,
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected UTF-8, got another byte at {error.start}") from None
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{path}: not the JSON expected: {error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(document).__name__}")
    return document


def _digits(text: str) -> float:
    if len(text) > _LONGEST_NUMBER:
        raise ValueError(f"a number of {len(text)} characters")
    return _in_range(text)


def _refused(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON: write it as text")


def _object(pairs: list[tuple[str, Any]]) -> Object:
    result: Object = {}
    for name, value in pairs:
        if name in result:
            raise ValueError(f"the key {name[:80]!r} occurs twice")
        result[name] = value
    return result
