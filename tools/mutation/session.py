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
        self._tests, tree = tests, ast.parse(source)
        self._spans = sorted(_spans(tree), key=lambda span: span[1] - span[0])
        # A private constant is run by whoever imports the module, but used by the tests of the lines that name it.
        self._used_at: dict[int, list[int]] = {}
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(name := node.targets[0], ast.Name) and name.id[0] == "_":
                uses = [one.lineno for one in ast.walk(tree) if isinstance(one, ast.Name) and one.id == name.id]
                for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    self._used_at[line] = [use for use in uses if use not in range(node.lineno, line + 1)]

    def tests(self, line: int) -> list[str] | None:
        """None: all, or not known since no test runs it in the process of the tests."""
        found = [names for at in self._used_at.get(line) or [line] for names in self._of_statement(at)]
        if not found or None in found:
            return None
        return sorted({name for names in found for name in names or ()})

    def _of_statement(self, line: int) -> list[list[str] | None]:
        first, last = next((span for span in self._spans if span[0] <= line <= span[1]), (line, line))
        return [self._tests[str(number)] for number in range(first, last + 1) if str(number) in self._tests]


def _spans(tree: ast.AST) -> Iterator[tuple[int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt | ast.excepthandler):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
            yield first, max(first, last or first)
