"""The server and the children of `benchmarks/bench_remote.py`. All of them end with it, also when it is killed."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
_PATIENCE_S = 300


class Stats(NamedTuple):
    """sent: bytes of bodies by path. cpu_s: processor time of the server."""

    sent: dict[str, int]
    requests: int
    cpu_s: float

    @property
    def bytes(self) -> int:
        return sum(self.sent.values())


def stats(url: str) -> Stats:
    with urllib.request.urlopen(f"{url}/.stats") as answer:
        return Stats(**json.loads(answer.read()))


@contextmanager
def served(folder: Path, rate: float = 0, latency: float = 0) -> Iterator[str]:
    """The URL of a folder."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.remote.server",
        str(folder),
        "--rate",
        str(rate),
    ]
    server = Child([*command, "--latency", str(latency), "--until-stdin-ends"])
    try:
        yield f"http://127.0.0.1:{server.answer()}"
    finally:
        server.end()


class ChildError(Exception):
    """A process has ended before it answered, or does not answer."""


class Child:
    """A process of Python, in a session of its own, that calls `end_with_parent` and answers in lines of JSON.

    quiet: what it prints to standard error is kept for `ChildError` alone.
    """

    def __init__(self, command: list[str], quiet: bool = False) -> None:
        self._notes = tempfile.TemporaryFile() if quiet else None  # noqa: SIM115 -- closed with the process
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._notes,
            start_new_session=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(
                    str(ROOT / folder)
                    for folder in ("", "benchmarks", "tools", "tests")
                ),
            },
        )

    def answer(self) -> Any:
        """The next one.

        Raises:
            ChildError: there is none.
        """
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], _PATIENCE_S)[0]:
            raise ChildError(f"did not answer for {_PATIENCE_S} s")
        if line := self._process.stdout.readline():
            return json.loads(line)
        while not self._has_ended():
            time.sleep(0.01)
        problem = "its process has ended"
        if self._notes is not None:
            self._notes.seek(0)
            problem = ": ".join(
                [
                    problem,
                    *self._notes.read()
                    .decode(errors="replace")
                    .strip()
                    .splitlines()[-1:],
                ]
            )
        raise ChildError(problem)

    def end(self, patience_s: float = 0) -> None:
        """Ends it, and all that it started. patience_s: in which it may end by itself."""
        give_up = time.monotonic() + patience_s
        while time.monotonic() < give_up and not self._has_ended():
            time.sleep(0.01)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._notes):
            if file is not None:
                file.close()

    def _has_ended(self) -> bool:
        """It is not waited for, so that its number stays its own until its group was killed."""
        return (
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            is not None
        )


def end_with_parent() -> None:
    """To be called once, where standard input is a pipe: this process ends with it, that is, also where the process
    that holds its other end is killed. One that was started in a session of its own takes its own processes with it.
    """

    def wait() -> None:
        # os.read takes no lock, which a worker that is forked meanwhile would inherit.
        while os.read(0, 1):
            pass
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def now() -> float:
    """Seconds of a clock that all processes of the machine share."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)
