"""The only way of the commands to standard output and standard error.

A terminal obeys control characters, and a class name, a path or an error may hold some. All text goes through `_line`.
"""

import io
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuload.errors import OutputError, printable, without_secrets
from gpuload.machine.untrusted import open_regular
from gpuload.store.files import replaced

_MOST = 4_000  # characters of a line, or of a cell

_NAMES = 6  # that are shown of many
_NAME = 60  # characters of a name that are shown

_HEAD_BYTES = 4096


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


def say_table(
    rows: Iterable[Sequence[str]],
    heads: Sequence[str] = (),
    title: str = "",
    left: int = 1,
) -> None:
    """Prints a table without lines; on a terminal long cells are folded.

    Args:
        rows: Texts of the cells.
        heads: Of the columns; () without.
        title: Above the table; "" without.
        left: Number of the first columns, which are aligned left; the others are aligned right.
    """
    from rich.console import Console  # 60 ms
    from rich.table import Table
    from rich.text import Text

    heading = Text(_line(title)) if title else None
    table = Table(
        title=heading,
        title_justify="left",
        box=None,
        show_header=bool(heads),
        padding=(0, 2, 0, 0),
    )
    cells = [[Text(_line(cell)) for cell in row] for row in rows]
    for number in range(max(map(len, [heads, *cells]))):
        head = Text(heads[number]) if heads else Text()
        table.add_column(
            head, justify="left" if number < left else "right", overflow="fold"
        )
    for row in cells:
        table.add_row(*row)
    # What is not printed on a terminal is not cut to the width of one.
    console = Console(
        highlight=False, markup=False, width=None if sys.stdout.isatty() else 10_000
    )
    with console.capture() as captured:
        console.print(table)
    print(*(line.rstrip() for line in captured.get().splitlines()), sep="\n")


def listed(names: Sequence[str]) -> str:
    """How many names there are, and the first of them, such as "3: cat, dog, fox"."""
    shown = [name[:_NAME] for name in names[:_NAMES]]
    more = ["…"] if len(names) > _NAMES else []
    return f"{len(names):,}: {', '.join([*shown, *more])}"


@contextmanager
def captured_streams() -> Iterator[None]:
    """Warnings and log records are complaints, too; characters that an output cannot encode are escaped."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    log = _Complaints(logging.WARNING)
    root = logging.getLogger()
    shown = warnings.showwarning
    root.addHandler(log)
    warnings.showwarning = lambda message, category, *_, **__: complain(
        f"{category.__name__}: {message}"
    )
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


@dataclass(frozen=True)
class OutputFile:
    """A file to write.

    Attributes:
        path: As the user gave it.
        option: Of the command, that names the file, for messages.
        mark: Stands in the first 4 KiB of each file of this kind. Where the path leads to anything else but an empty
            file, that is kept.

    Raises:
        OutputError: it cannot be written, or is not of this kind. It says so before the work, not after it.
    """

    path: Path
    option: str
    mark: bytes

    def __post_init__(self) -> None:
        folder = self.path.absolute().parent
        faults = {
            "is a folder": self.path.is_dir(),
            "its folder does not exist": not folder.is_dir(),
            "its folder cannot be written": not os.access(folder, os.W_OK),
            "is there, and was not written by this command": os.path.lexists(self.path)
            and not self._is_own(),
        }
        for fault, is_so in faults.items():
            if is_so:
                raise OutputError(
                    f"{self.path}: {fault}. Give another file by {self.option}"
                )

    def write(self, content: bytes) -> None:
        """Raises OutputError where it cannot be written."""
        try:
            with replaced(self.path) as temporary:
                temporary.write_bytes(content)
        except OSError as error:
            raise OutputError(
                f"{self.path}: cannot be written ({error.strerror}). Free space, or give another {self.option}"
            ) from None

    def _is_own(self) -> bool:
        try:
            with open_regular(self.path) as file:
                head = file.read(_HEAD_BYTES)
            return not self.path.is_symlink() and (not head or self.mark in head)
        except OSError:
            return False


def save_picture(picture: Any, path: Path, software: str, option: str = "") -> None:
    """Writes a PNG and says so. Files that the command did not write are kept.

    Args:
        picture: An image of Pillow.
        path: Of the file.
        software: The command, such as "gpuload show", which the file names.
        option: Of the command, that names the file.
    """
    from PIL import PngImagePlugin

    output = OutputFile(path, option or str(path), b"Software\0" + software.encode())
    about = PngImagePlugin.PngInfo()
    about.add_text("Software", software)
    data = io.BytesIO()
    picture.save(data, "PNG", pnginfo=about)
    output.write(data.getvalue())
    say(f"  written: {path}")
