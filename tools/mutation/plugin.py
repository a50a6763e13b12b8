"""How a test run with a change differs from a usual one: chosen tests, fewer examples, sets that are there already."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

EXAMPLES = 100
TOO_SLOW = 124
# Fixtures, and where they are defined: packed sets for tests of loading. A survey makes them once for all runs.
MADE_BEFOREHAND = {"photos": "tests", "packed": "tests", "sorted_set": "tests/order/test_mixedness.py"}


class Quick:
    """A pytest plugin.

    chosen: names of the tests to run, in this order; None: all. made: file with the paths of the fixtures made by an
    earlier run; the first run writes it. limits: processor seconds, by test; a test that takes more ends the process
    with exit status TOO_SLOW. coverage: told which test runs.
    """

    def __init__(
        self, chosen: list[str] | None, made: Path, limits: dict[str, float] | None = None, coverage: Any = None
    ) -> None:
        self.chosen, self.made, self.limits, self.coverage = chosen, made, limits or {}, coverage
        signal.signal(signal.SIGPROF, lambda *_: os._exit(TOO_SLOW))
        self.paths: dict[str, str] = json.loads(made.read_text()) if made.exists() else {}
        self.seconds: dict[str, float] = {}  # of the processor, by test
        self.elapsed: dict[str, float] = {}  # with what its child processes take
        self.failed: list[str] = []
        self.running = ""
        self.users: dict[str, list[str]] = {}  # of each fixture: the tests

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for item in items:
            test = getattr(item.obj, "hypothesis", None) and item.obj
            if test is not None:
                found = test._hypothesis_internal_use_settings
                test._hypothesis_internal_use_settings = settings(
                    found,
                    max_examples=min(found.max_examples, EXAMPLES),
                    derandomize=True,
                    database=None,
                    deadline=None,
                    phases=(Phase.explicit, Phase.generate),
                    suppress_health_check=list(HealthCheck),
                )
        for item in items:
            for name in item.fixturenames:
                self.users.setdefault(name, []).append(item.nodeid)
        if self.chosen is not None:
            by_name = {item.nodeid: item for item in items}
            items[:] = [by_name[name] for name in self.chosen if name in by_name]

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Any:
        name = fixturedef.argname
        if self.coverage is not None and fixturedef.scope != "function":  # made once, for all the tests that use it
            self.coverage.switch_context(f"fixture {name}")
            try:
                return (yield from self._made(fixturedef))
            finally:
                self.coverage.switch_context(self.running)
        return (yield from self._made(fixturedef))

    def _made(self, fixturedef: Any) -> Any:
        name = fixturedef.argname
        if MADE_BEFOREHAND.get(name) != fixturedef.baseid:
            return (yield)
        if name in self.paths:
            made = Path(self.paths[name])
            fixturedef.func = lambda *_, **__: made
        value = yield
        self.paths[name] = str(value)
        return value

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Any:
        if self.coverage is not None:
            self.running = item.nodeid
            self.coverage.switch_context(item.nodeid)
        begun, begun_at = time.process_time(), time.monotonic()
        signal.setitimer(signal.ITIMER_PROF, self.limits.get(item.nodeid, 0))
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self.seconds[item.nodeid] = time.process_time() - begun
            self.elapsed[item.nodeid] = time.monotonic() - begun_at
            if self.coverage is not None:
                self.coverage.switch_context("")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def tests_of(self, contexts: list[str]) -> list[str] | None:
        """The tests that run a line which these contexts run; None: all, since importing runs it."""
        if "" in contexts:
            return None
        found = set()
        for context in contexts:
            kind, _, name = context.partition(" ")
            found.update(self.users[name] if kind == "fixture" else [context])
        return sorted(found)
