"""Runs pytest and writes the results after each test, so that they survive a test that hangs or crashes.

    python tools/gpu_tests.py FILE -m gpu tests/gpu

FILE, in JSON: how many tests passed, failed and were skipped; the messages of failed tests; what tests recorded with
`record_property`; the running test, which tells where a crash happened. Exit codes are those of pytest.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest


class Recorder:
    """A pytest plug-in that writes results to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.found: dict[str, Any] = {
            "passed": 0,
            "failed": 0,
            "skipped": 0,
            "running": None,
            "failures": {},
            "recorded": {},
        }

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._note(running=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:  # failures and skips may come before or after the call
            self.found[report.outcome] += 1
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.found["failures"][report.nodeid] = (crash.message if crash else report.longreprtext)[:500]
        if report.when == "teardown":
            name = report.nodeid.rpartition("::")[2]
            self.found["recorded"] |= {f"{name}: {key}": value for key, value in report.user_properties}
            self._note(running=None)

    def _note(self, running: str | None) -> None:
        self.found["running"] = running
        temporary = self._path.with_name(self._path.name + ".tmp")
        temporary.write_text(json.dumps(self.found, indent=1, default=str) + "\n")
        temporary.replace(self._path)


def main(argv: list[str]) -> int:
    # The project's pytest settings need plug-ins that the host may not have.
    options = ["-q", "-o", "addopts=", "-o", "filterwarnings=default", "-p", "no:cacheprovider"]
    return int(pytest.main([*options, *argv[1:]], plugins=[Recorder(Path(argv[0]))]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
