"""Writes docs/command-line.md: the help of each command, as argparse prints it.

python tools/documentation/commands.py
"""

import os
from pathlib import Path
from unittest import mock

from gpuload import cli

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"
HEAD = """# Command line

`python -m gpuload COMMAND`, or `gpuload COMMAND` once it is installed. `tools/documentation/commands.py`
writes this page from the output of `--help`.
"""


def helps() -> dict[str, str]:
    """The help of each command, 88 columns wide."""
    with mock.patch.dict(os.environ, {"COLUMNS": "90", "NO_COLOR": "1"}):
        return {name: cli.parser_of(name).format_help() for name in cli.COMMANDS}


def page() -> str:
    return HEAD + "".join(
        f"\n## {name}\n\n```text\n{text.rstrip()}\n```\n"
        for name, text in helps().items()
    )


if __name__ == "__main__":
    PAGE.write_text(page())
