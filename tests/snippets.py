"""The code blocks of a Markdown page, and how each is run."""

import argparse
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gpuload import cli

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
# At the line above a block: it is not run, for this reason. Programs and commands are still parsed.
_NOT_RUN = re.compile(r"<!-- not run: (.+) -->")
_FENCE = re.compile(r"( *)(`{3,})\s*(\w*)")
PROGRAMS = ("benchmarks", "examples", "tools")  # folders of programs
RUN = ("python -m gpuload ", "python tools/", "python benchmarks/")  # commands that are run; others are parsed
_OURS = re.compile(r"python (?:-m gpuload|(?:benchmarks|examples|tools)/)")


class Block(NamedTuple):
    """A fenced block. line: number of its first line of code. not_run: the reason, or None."""

    language: str
    text: str
    line: int
    not_run: str | None


class ParsedError(Exception):
    """The arguments of a command were accepted."""


def blocks(text: str) -> list[Block]:
    """All fenced blocks of a page, also indented ones (in tabs and notes)."""
    found = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        fence = _FENCE.fullmatch(lines[at]) or _FENCE.match(lines[at])
        if not fence:
            at += 1
            continue
        comment = _NOT_RUN.fullmatch(lines[at - 1].strip()) if at else None
        end = at + 1
        while end < len(lines) and lines[end].strip() != fence[2]:
            end += 1
        assert end < len(lines), f"line {at + 1}: this block has no end"
        body = textwrap.dedent("\n".join(lines[at + 1 : end]))
        found.append(Block(fence[3], body + "\n", at + 2, comment[1] if comment else None))
        at = end + 1
    return found


def commands(text: str) -> list[str]:
    """The commands of a bash block: without comments, a line that ends with a backslash joined with the next one."""
    joined = text.replace("\\\n", " ")
    return [found for line in joined.splitlines() if (found := re.sub(r"(^|\s+)#.*", "", line).strip())]


def run_python(words: list[str]) -> int:
    """Runs what follows `python` on a command line, in this process; returns its exit code."""
    if words[:2] == ["-m", "gpuload"]:
        return cli.main(words[2:])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", words)
        patch.setattr(sys, "path", [*sys.path])  # which scripts change
        try:
            runpy.run_path(words[0], run_name="__main__")
        except SystemExit as exit:
            return int(exit.code or 0) if not isinstance(exit.code, str) else 1
    return 0


def parse_python(words: list[str]) -> None:
    """Has the arguments of what follows `python` parsed, and nothing else done."""
    if words[:2] == ["-m", "gpuload"]:
        cli.parse(words[2:])
        return
    parse_args = argparse.ArgumentParser.parse_args

    def parse_only(self: Any, *arguments: Any) -> None:
        parse_args(self, *arguments)
        raise ParsedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
        patch.setattr(sys, "argv", words)
        patch.setattr(sys, "path", [*sys.path])
        with pytest.raises(ParsedError):
            runpy.run_path(words[0], run_name="__main__")


def parse_command(command: str) -> None:
    """Checks a command without running it: its arguments, if it is one of ours, its extras, or bash's grammar."""
    words = [word for word in shlex.split(command) if not re.fullmatch(r"[A-Z_]+=\S*", word)]
    if words[0] == "torchrun":
        from torch.distributed.run import get_args_parser

        known, _ = get_args_parser().parse_known_args(words[1:])
        assert Path(known.training_script).exists() or "/" not in known.training_script, command
        words = ["python", known.training_script, *known.training_script_args]
    if _OURS.match(" ".join(words)):
        script = "ArgumentParser" if words[1] == "-m" else (ROOT / words[1]).read_text()
        if "ArgumentParser" in script and "pytorch_lightning" not in script:  # whose import takes seconds
            parse_python(words[1:])
    elif found := re.search(r"pip install .*'(?:\.|gpuload)\[([\w,]+)\]'", command):
        project = (ROOT / "pyproject.toml").read_text()
        assert all(f"\n{extra} = [" in project for extra in found[1].split(",")), command
    else:
        assert words[0] != "bash" or (ROOT / words[1]).exists(), command
        assert subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True).stderr == ""


def run_command(words: list[str]) -> int:
    """Runs a command, and returns its exit code; a set that an earlier one packed makes room for that of a later one."""
    if words[1:4] == ["-m", "gpuload", "pack"]:
        out = Path(words[5])
        if out.exists() and not {"--append", "--overwrite", "--resume"} & set(words):
            shutil.rmtree(out)
        words = [*words, "--workers", "1"]
    return run_python(words[1:])


def run_page(
    page: Path, text: str, names: dict[str, Any], watch: Callable[[list[str]], None] = lambda words: None
) -> None:
    """Runs the blocks of a page in the current folder, programs in one namespace.

    watch: is called after each command that was run.
    """
    for block in blocks(text):
        if block.language == "python":
            # Lines of an error are those of the page.
            program = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
            if block.not_run is None:
                exec(program, names)
        elif block.language == "bash":
            for command in commands(block.text):
                if block.not_run is None and command.startswith(RUN):
                    assert run_command(shlex.split(command)) == 0, f"{page.name}:{block.line}: {command}"
                    watch(shlex.split(command))
                else:
                    parse_command(command)
