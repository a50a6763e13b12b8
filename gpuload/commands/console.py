"""Where the commands print their tables."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def open_console() -> "Console":
    """Standard output. What is not printed on a terminal is not cut to the width of one."""
    from rich.console import Console  # 60 ms

    return Console(highlight=False, width=None if sys.stdout.isatty() else 10_000)
