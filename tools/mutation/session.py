"""What a run knows so far, in a file of one JSON object a line, so that a run that was stopped goes on."""

import ast
import hashlib
import json
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Any

from mutation.stages import ROOT


class Session:
    """Results by mutant; the last line about a mutant counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.results: dict[str, dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                result = json.loads(line)
                self.results[result["id"]] = result

    def add(self, result: dict[str, Any]) -> None:
        self.results[result["id"]] = result
        with self._path.open("a") as file:
            file.write(json.dumps(result, ensure_ascii=False) + "\n")


def change(source: str, changed: str) -> tuple[str, str]:
    """The lines that a mutant changes, before and after, each in one line."""
    lines = list(unified_diff(source.splitlines(), changed.splitlines(), lineterm="", n=0))[2:]
    before, after = ("".join(" " + line[1:].strip() for line in lines if line[0] == sign) for sign in "-+")
    return " ".join(before.split()), " ".join(after.split())


def digest(paths: Sequence[str]) -> str:
    """Changes with these files and all that is in these folders."""
    found = hashlib.sha256()
    for path in paths:
        for file in [ROOT / path] if (ROOT / path).is_file() else sorted((ROOT / path).rglob("*.py")):
            found.update(f"{file}\0".encode() + file.read_bytes())
    return found.hexdigest()[:16]


class Lines:
    """Which tests run which line of a module, by its statements: a line within one has the tests of the whole."""

    def __init__(self, source: str, tests: dict[str, list[str] | None]) -> None:
        self._tests = tests
        self._spans = sorted(_spans(ast.parse(source)), key=lambda span: span[1] - span[0])

    def tests(self, line: int) -> list[str] | None:
        """None: all, or not known since no test runs it in the process of the tests."""
        span = next((span for span in self._spans if span[0] <= line <= span[1]), (line, line))
        found = [self._tests[str(number)] for number in range(span[0], span[1] + 1) if str(number) in self._tests]
        if not found or None in found:
            return None
        return sorted({name for names in found for name in names or ()})


def _spans(tree: ast.AST) -> Iterator[tuple[int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt | ast.excepthandler):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
            yield first, max(first, last or first)
