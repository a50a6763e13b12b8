"""The only way of the commands to standard output and standard error.

A terminal obeys control characters, and a class name, a path or an error may hold some. All text goes through `_line`.
"""

import json
import logging
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gpuload.errors import printable, without_secrets

_MOST = 4_000  # characters of a line, or of a cell


def say(*lines: str) -> None:
    """Prints these lines, however many line breaks each may hold."""
    for line in lines:
        print(_line(line), flush=True)


def complain(text: str) -> None:
    """Prints a line on standard error."""
    print(_line(without_secrets(text)), file=sys.stderr, flush=True)


def say_json(value: Any) -> None:
    """Prints indented JSON, in ASCII."""
    print(json.dumps(value, indent=1).replace("\x7f", "\\u007f"))


def say_table(rows: Iterable[Sequence[str]], heads: Sequence[str] = (), title: str = "", left: int = 1) -> None:
    """Prints a table without lines; on a terminal long cells are folded. left: columns that are not aligned right."""
    from rich.console import Console  # 60 ms
    from rich.table import Table
    from rich.text import Text

    heading = Text(_line(title)) if title else None
    table = Table(title=heading, title_justify="left", box=None, show_header=bool(heads), padding=(0, 2, 0, 0))
    cells = [[Text(_line(cell)) for cell in row] for row in rows]
    for number in range(max(map(len, [heads, *cells]))):
        head = Text(heads[number]) if heads else Text()
        table.add_column(head, justify="left" if number < left else "right", overflow="fold")
    for row in cells:
        table.add_row(*row)
    # What is not printed on a terminal is not cut to the width of one.
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 10_000)
    with console.capture() as captured:
        console.print(table)
    print(*(line.rstrip() for line in captured.get().splitlines()), sep="\n")


@contextmanager
def status(text: str) -> Iterator[None]:
    """A line on a terminal that shows that something goes on."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(_line(text))):
        yield


@contextmanager
def captured_streams() -> Iterator[None]:
    """Warnings and log records are complaints, too; characters that an output cannot encode are escaped."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    log, root, shown = _Complaints(logging.WARNING), logging.getLogger(), warnings.showwarning
    root.addHandler(log)
    warnings.showwarning = lambda message, category, *_, **__: complain(f"{category.__name__}: {message}")
    try:
        yield
    finally:
        warnings.showwarning = shown
        root.removeHandler(log)


class _Complaints(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        complain(record.getMessage())


def _line(text: str) -> str:
    cut = f"{text[:_MOST]}… ({len(text):,} characters)" if len(text) > _MOST else text
    return printable(cut)
