"""Which tests reach which line, measured once by coverage.py in a run of the whole suite."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path

from coverage import CoverageData

ROOT = Path(__file__).resolve().parents[2]

# Of tests, where it is not that of the room.
_NAMES = {
    "loader": "iterator",
    "checks": "arguments",
}
_DURATION = re.compile(r"([\d.]+)s (?:setup|call|teardown) +(tests/.*)")


class Reach:
    """Tests by the lines of gpuload that they reach in their own process, and how long each takes.

    folder: where the run's coverage and output are kept; it is made unless they are there.
    """

    def __init__(self, folder: Path) -> None:
        log = folder / "suite.log"
        kept = folder / "coverage"
        if not kept.exists():
            _run_suite(log, kept)
        self._data = CoverageData(str(kept))
        self._data.read()
        self._lines: dict[str, dict[int, list[str]]] = {}
        self._seconds: dict[str, float] = {}
        for seconds, test in _DURATION.findall(log.read_text()):
            self._seconds[test] = self._seconds.get(test, 0.0) + float(seconds)

    def rounds(
        self, module: str, first: int, last: int, most_s: float
    ) -> list[list[str]]:
        """The tests to ask, fastest first: those of the module's room that reach one of these lines, those of other
        rooms that do, and the rest of the room, which may start processes or share what another test has made.

        Each round takes about `most_s` seconds at most. Of lines that run while the module is imported, the tests that
        reach any line of it, or else any tests.
        """
        lines = self._contexts(module)
        reaching = _tests(lines, range(first, last + 1)) or _tests(lines, lines)
        room = module.removeprefix("gpuload/").removesuffix(".py").split("/")[0]
        tests_of_lines = set(
            self.tests_of([f"tests/{_NAMES.get(room, room)}/", f"tests/test_{room}.py"])
        )
        rounds = (
            reaching & tests_of_lines,
            reaching - tests_of_lines,
            (tests_of_lines or {*self._seconds}) - reaching,
        )
        return [
            fastest for tests in rounds if (fastest := self._fastest(tests, most_s))
        ]

    def _fastest(self, tests: set[str], most_s: float) -> list[str]:
        fastest = sorted(tests, key=lambda test: (self._seconds.get(test, 0.0), test))
        until = accumulate(0.02 + self._seconds.get(test, 0.0) for test in fastest)
        return [test for test, end in zip(fastest, until, strict=True) if end < most_s]

    def _contexts(self, module: str) -> dict[int, list[str]]:
        if module not in self._lines:
            self._lines[module] = self._data.contexts_by_lineno(str(ROOT / module))
        return self._lines[module]

    def tests_of(self, names: list[str]) -> list[str]:
        """The tests of these folders or files, fastest first."""
        return sorted(
            filter(lambda test: test.startswith(tuple(names)), self._seconds),
            key=self._seconds.__getitem__,
        )

    def is_new(self, test: str) -> bool:
        """Whether the test was added since the run."""
        return test not in self._seconds

    def seconds(self, tests: list[str]) -> float:
        """How long these tests take together."""
        return sum(self._seconds.get(test, 0.0) for test in tests)


def _tests(contexts: dict[int, list[str]], lines: Iterable[int]) -> set[str]:
    named = {
        context.rpartition("|")[0]
        for line in lines
        for context in contexts.get(line, ())
    }
    return named - {""}


def _run_suite(log: Path, kept: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-vv",
        "--numprocesses=3",
        "--dist=worksteal",
    ]
    command += ["--durations=0", "--durations-min=0"]
    cover = ["--cov=gpuload", "--cov-context=test", "--cov-report="]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COVERAGE_FILE": str(kept)}
    with log.open("wb") as file:
        run = subprocess.run(
            [*command, *cover],
            cwd=ROOT,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    if run.returncode:
        kept.unlink(missing_ok=True)
        raise SystemExit(f"the tests fail without a change: {log} tells why")
