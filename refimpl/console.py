"""Tables and progress bars for the command line: by ``rich`` where it is installed, in plain text where it is not."""

from __future__ import annotations

import contextlib
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

Progress = Callable[[int, int, str], None]

# the width where standard output is not a terminal
_WIDTH = 120


def table(header: Sequence[str], rows: Sequence[Sequence[str]], wrap: int | None = None) -> str:
    """The rows under a header, columns aligned and numbers to the right; column ``wrap`` is wrapped to fit."""
    width = shutil.get_terminal_size((_WIDTH, 24)).columns
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        return _plain(header, rows, wrap, width)
    view = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for index, name in enumerate(header):
        view.add_column(name, justify=_justify(rows, index), no_wrap=index != wrap, overflow="fold")
    for row in rows:
        view.add_row(*row)
    console = Console(width=max(width, _narrowest(header, rows, wrap)), markup=False, highlight=False, emoji=False)
    with console.capture() as captured:
        console.print(view)
    return "\n".join(line.rstrip() for line in captured.get().split("\n")).strip("\n")


def _plain(header: Sequence[str], rows: Sequence[Sequence[str]], wrap: int | None, width: int) -> str:
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    if wrap is not None:
        widths[wrap] = min(widths[wrap], max(20, width - sum(widths) + widths[wrap] - 2 * (len(widths) - 1)))
    lines: list[list[str]] = []
    for row in (header, ["-" * w for w in widths], *rows):
        parts = textwrap.wrap(row[wrap], widths[wrap]) if wrap is not None else []
        for number in range(max(1, len(parts))):
            line = list(row) if number == 0 else [""] * len(row)
            if wrap is not None:
                line[wrap] = parts[number] if parts else ""
            lines.append(line)
    right = [_justify(rows, i) == "right" for i in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def _narrowest(header: Sequence[str], rows: Sequence[Sequence[str]], wrap: int | None) -> int:
    """The width that leaves room for every column that is not wrapped, and 20 characters for the one that is."""
    widths = [20 if i == wrap else max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    return sum(widths) + 3 * len(widths) + 1


def _justify(rows: Sequence[Sequence[str]], column: int) -> Literal["left", "right"]:
    cells = [row[column] for row in rows]
    return "right" if all(cell == "-" or cell[:1] in "+-0123456789" for cell in cells) else "left"


@contextlib.contextmanager
def progress() -> Iterator[Progress | None]:
    """A progress bar on standard error, as a function of (done, total, label); None where it is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress as Bar
    except ImportError:
        yield None
        return
    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, label: bar.update(task, completed=done, total=total, description=label)
