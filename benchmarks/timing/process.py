"""The benchmark's side of a contender's process: starting it, sending orders, ending it."""

import atexit
import contextlib
import io
import json
import os
import selectors
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from timing.contenders import CONTENDERS
from timing.work import Work

_PATIENCE_S = 300.0
# Converting a large set into a peer's format may take hours.
_PATIENCE_TO_PREPARE_S = 7200.0
_BENCHMARKS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class First:
    """The first batch: seconds since the construction of the loader, after imports; its shape and dtype."""

    first_batch_s: float
    shape: Sequence[int] = ()
    dtype: str = ""


@dataclass(frozen=True)
class Round:
    """One turn. memory_bytes: of the whole process tree, without the page cache of files. began: Unix time."""

    images: int
    elapsed_s: float
    cpu_s: float
    memory_bytes: int
    began: float = field(default=0.0, compare=False)
    first_batch_s: float | None = field(default=None, compare=False)

    @property
    def rate(self) -> float:
        return self.images / self.elapsed_s


@dataclass(frozen=True)
class Start:
    """The first seconds of a new process: seconds since it was started.

    opened: when its imports were done and its loader was constructed. came: when each batch came.
    """

    opened: float
    came: Sequence[float]


class ContenderError(Exception):
    """A contender's process raised an exception or ended; the message says which."""


class ContenderProcess:
    """Runs one contender, with the interpreter of the environment that has its package."""

    def __init__(self, name: str, work: Work, python: str = sys.executable) -> None:
        self.name = name
        self._work = work
        # Output of its libraries, shown only if it fails.
        self._notes = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        command = [python, "-m", "timing.child", name]
        pipe = subprocess.PIPE
        self._started = time.monotonic()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=pipe,
                stdout=pipe,
                stderr=self._notes,
                text=True,
                env=environment(),
            )
        except OSError as error:
            self._notes.close()
            raise ContenderError(f"{name}: {python}: {error.strerror}") from None
        assert self._process.stdout is not None
        self._answers = self._process.stdout
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._answers, selectors.EVENT_READ)
        self.versions: dict[str, str] = self._receive()["versions"]

    @property
    def pid(self) -> int:
        return self._process.pid

    def prepare(self) -> None:
        """Converts the set into the contender's format, once: a folder that exists is complete."""
        contender = CONTENDERS[self.name]
        folder = contender.folder(self._work)
        if contender.prepare is None or folder.exists():
            return
        unfinished = folder.with_name(folder.name + ".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        self._ask("prepare", _PATIENCE_TO_PREPARE_S, folder=str(unfinished))
        unfinished.rename(folder)

    def examine(self) -> dict[str, Any]:
        """The fields of `examine.Examined`."""
        return self._ask("examine")

    def open(self) -> First:
        """Constructs the loader whose rounds `round` then measures."""
        return First(**self._ask("warm"))

    def round(self) -> Round:
        return Round(**self._ask("round"))

    def cold(self) -> Round:
        """A round of a new loader's first epoch."""
        return Round(**self._ask("cold"))

    def first_seconds(self, seconds: float) -> Start:
        """The batches of a new loader, of so many seconds since its construction."""
        told = self._ask("start", seconds=seconds)
        return Start(
            told["opened"] - self._started,
            [came - self._started for came in told["came"]],
        )

    def close(self) -> None:
        if self._answers.closed:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # at the end of its orders the process exits
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._selector.close()
        self._answers.close()
        self._notes.close()

    def __enter__(self) -> "ContenderProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(
        self, order: str, patience_s: float = _PATIENCE_S, **values: Any
    ) -> dict[str, Any]:
        work = {
            **self._work._asdict(),
            "folder": str(self._work.folder),
            "cache": str(self._work.cache),
        }
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `_receive` reports why
            self._process.stdin.write(
                json.dumps({"order": order, "work": work, **values}) + "\n"
            )
            self._process.stdin.flush()
        return self._receive(patience_s)

    def _receive(self, patience_s: float = _PATIENCE_S) -> dict[str, Any]:
        if not self._selector.select(patience_s):
            problem = f"did not answer for {patience_s:.0f} s"
            self._process.kill()
        elif line := self._answers.readline():
            answer: dict[str, Any] = json.loads(line)
            if "error" not in answer:
                return answer
            problem = answer["error"]
        else:
            code = self._process.wait()
            self._notes.seek(0)
            last = self._notes.read().strip().splitlines()[-1:]
            problem = ": ".join([f"its process ended with exit code {code}", *last])
        self.close()
        raise ContenderError(f"{self.name}: {problem}")


def check_out(commit: str) -> str:
    """An interpreter whose gpuload is that of a commit, with its kernels, if it has any. Raises CalledProcessError."""
    root = _BENCHMARKS.parent
    archive = subprocess.run(
        ["git", "archive", commit], cwd=root, capture_output=True, check=True
    ).stdout
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\ncd "{folder}" && PYTHONPATH="{folder}:$PYTHONPATH" exec "{sys.executable}" -W ignore "$@"\n'
    )
    python.chmod(0o700)
    build = folder / "tools" / "build_kernels.py"
    if build.exists():  # an older commit has numba compile them
        libraries = Path("gpuload", "kernels", "lib")
        # The build leaves those as they are whose sources are the same there.
        if (root / libraries).exists():
            shutil.copytree(root / libraries, folder / libraries, dirs_exist_ok=True)
        subprocess.run([python, build], capture_output=True, check=True)
    return str(python)


def environment() -> dict[str, str]:
    """This process's environment, with a PYTHONPATH to the same gpuload and the same benchmarks."""
    import gpuload

    top = _BENCHMARKS.parent
    paths = [
        _BENCHMARKS,
        top / "examples",
        top / "tests",
        Path(gpuload.__file__).resolve().parents[1],
    ]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [*map(str, paths), os.environ.get("PYTHONPATH", "")]
        ).strip(":"),
    }
