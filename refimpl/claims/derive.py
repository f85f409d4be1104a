"""Discharging a claim in SymPy, and executing the notebooks that do so.

A notebook calls ``derived(id, lhs, rhs)`` for each identity behind a claim. The difference is simplified to zero, and
is then evaluated at random points as well, because a simplifier can be wrong. ``execute`` runs a notebook's code
cells and says which claims it discharged: nothing counts as derived that was not just derived.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_discharged: Counter[str] = Counter()
_POINTS = 3
_DIGITS = 30


class DerivationError(AssertionError):
    """An identity that a derivation claims does not hold, or could not be shown to."""


def derived(claim: str, lhs: Any, rhs: Any) -> None:
    """Discharge ``claim`` by the identity lhs = rhs, or raise :class:`DerivationError`.

    ``lhs`` and ``rhs`` are SymPy expressions, numbers, matrices, or nested sequences of them, of one shape. Each
    entry of lhs − rhs must simplify to 0, and must vanish to 30 digits at three random points that respect the
    symbols' assumptions, undefined functions being replaced by a concrete one.
    """
    import sympy

    pairs = list(_entries(lhs, rhs, claim))
    if not pairs:
        raise DerivationError(f"{claim}: nothing to compare")
    rng = random.Random(claim)
    for left, right in pairs:
        difference = sympy.sympify(left, strict=True) - sympy.sympify(right, strict=True)
        _refute_numerically(claim, difference, rng)
        if not _simplifies_to_zero(difference):
            raise DerivationError(f"{claim}: lhs - rhs does not simplify to 0 but to {sympy.simplify(difference)}")
    _discharged[claim] += len(pairs)
    print(f"derived {claim}: {len(pairs)} {'identity' if len(pairs) == 1 else 'identities'}")


def _entries(lhs: Any, rhs: Any, claim: str) -> Iterator[tuple[Any, Any]]:
    """The pairs of entries of two nested sequences (or matrices) of the same shape."""
    lhs, rhs = (side.tolist() if hasattr(side, "tolist") else side for side in (lhs, rhs))
    if isinstance(lhs, list | tuple) and isinstance(rhs, list | tuple):
        if len(lhs) != len(rhs):
            raise DerivationError(f"{claim}: lhs has {len(lhs)} entries and rhs has {len(rhs)}")
        for left, right in zip(lhs, rhs, strict=True):
            yield from _entries(left, right, claim)
    elif isinstance(lhs, list | tuple) or isinstance(rhs, list | tuple):
        raise DerivationError(f"{claim}: lhs and rhs differ in shape")
    else:
        yield lhs, rhs


def _simplifies_to_zero(difference: Any) -> bool:
    import sympy

    steps = (sympy.expand, lambda e: sympy.expand(e.doit()), sympy.together, sympy.simplify)
    return any(step(difference) == 0 for step in steps)


def _refute_numerically(claim: str, difference: Any, rng: random.Random) -> None:
    """Raise unless ``difference`` vanishes at random points of the symbols' domains."""
    import mpmath
    import sympy
    from sympy.core.function import AppliedUndef

    for function, count in {(f.func, len(f.args)) for f in difference.atoms(AppliedUndef)}:
        t = sympy.symbols(f"t:{count}")
        body = sum(sympy.log(u + 2 + k) + u / (u + 3) ** (k + 1) for k, u in enumerate(t))
        difference = difference.replace(function, sympy.Lambda(t, body))
    difference = difference.doit()
    symbols = sorted(difference.free_symbols, key=str)
    evaluate = sympy.lambdify(symbols, difference, "mpmath", cse=True)
    for _ in range(_POINTS if symbols else 1):
        point = []
        for symbol in symbols:
            value = sympy.Rational(rng.randint(1, 97), 1 if symbol.is_integer else 97)
            point.append(-value if not symbol.is_nonnegative and rng.random() < 0.5 else value)
        with mpmath.workdps(3 * _DIGITS):
            try:
                value = evaluate(*(mpmath.mpf(v.p) / v.q for v in point))
            except (NameError, TypeError):  # an integral or another object that only SymPy can evaluate
                value = sympy.N(difference.subs(dict(zip(symbols, point, strict=True))), _DIGITS, maxn=200)
            if not abs(value) <= mpmath.mpf(10) ** -_DIGITS:
                where = ", ".join(f"{symbol} = {v}" for symbol, v in zip(symbols, point, strict=True))
                raise DerivationError(f"{claim}: lhs - rhs is {sympy.N(value, 6)} at {where or 'the given numbers'}")


_FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*(.*)$")


def code_cells(text: str) -> list[str]:
    """The code of a MyST Markdown notebook's cells, without their option lines.

    Raises ``ValueError`` for a cell that is indented or never closed: no cell is passed over in silence.
    """
    cells: list[str] = []
    fence = ""  # the one that is open
    cell: list[str] | None = None  # the lines of the cell in it
    for number, line in enumerate(text.splitlines(), start=1):
        match = _FENCE.match(line)
        if not fence and match:
            fence = match[2]
            if match[3].startswith("{code-cell}"):
                if match[1]:
                    raise ValueError(f"line {number}: expected a code cell that is not indented")
                cell = []
        elif fence and match and match[2].startswith(fence) and not match[3].strip():
            if cell is not None:
                cells.append(re.sub(r"\A(?::[^\n]*\n)+", "", "".join(cell)))
            fence, cell = "", None
        elif cell is not None:
            cell.append(line + "\n")
    if cell is not None:
        raise ValueError("expected the last code cell to be closed")
    return cells


def folder() -> Path:
    """Where the notebooks are: inside the installed package, or beside it in a checkout."""
    here = Path(__file__).parent.parent
    for candidate in (here / "derivations", here.parent / "derivations"):
        if any(candidate.glob("*.md")):
            return candidate
    raise FileNotFoundError("the derivations are not installed: expected refimpl/derivations/*.md")


def execute(notebook: Path) -> dict[str, int]:
    """Run a notebook's code cells in order; return the claims discharged, with the number of identities of each."""
    before = _discharged.copy()
    namespace: dict[str, Any] = {"__name__": notebook.stem}
    for number, cell in enumerate(code_cells(notebook.read_text(encoding="utf-8")), start=1):
        exec(compile(cell, f"{notebook.name}, cell {number}", "exec"), namespace)
    return dict(_discharged - before)
