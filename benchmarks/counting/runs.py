"""Starting, watching and killing the ranks of a run, and reading what it recorded."""

import json
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from counting.rank import Checkpoint, Run, train
from counting.table import preloaded

_PATIENCE_S = 120.0
_POLL_S = 0.002


@dataclass(frozen=True)
class Step:
    """One step of all ranks. seconds: since the slowest rank began to open its loader."""

    step: int
    epoch: int
    numbers: tuple[int, ...]
    seconds: float


class RunError(Exception):
    """A rank ended with an error, or the run did not end; the message says what the first rank said."""


def context(loader: str) -> multiprocessing.context.BaseContext:
    """Starts ranks out of a process that has imported the loader's packages, and nothing else."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["counting.rank", *preloaded(loader)])
    return found


def start(run: Run, starter: multiprocessing.context.BaseContext) -> list[BaseProcess]:
    shutil.rmtree(run.folder, ignore_errors=True)
    run.folder.mkdir(parents=True)
    ranks = [
        starter.Process(target=train, args=(run, rank))
        for rank in range(run.world_size)
    ]
    for process in ranks:
        process.start()
    return ranks


def finish(run: Run, ranks: Sequence[BaseProcess]) -> list[Step]:
    """Waits for the end of a run. Raises RunError."""
    deadline = time.monotonic() + _PATIENCE_S
    try:
        while any(process.is_alive() for process in ranks):
            if any(process.exitcode not in (None, 0) for process in ranks):
                break  # the others may wait for this one
            if time.monotonic() > deadline:
                raise RunError(f"no end after {_PATIENCE_S:.0f} s")
            time.sleep(_POLL_S)
    finally:
        kill(ranks)
    _raise_first_error(run, ranks)
    return steps(run)


def kill_after(
    run: Run, ranks: Sequence[BaseProcess], step: int, chance: random.Random
) -> Checkpoint | None:
    """SIGKILL to all ranks and their workers at a random moment behind a step; the newest complete checkpoint."""
    deadline = time.monotonic() + _PATIENCE_S
    log = run.log(0)
    first = run.start.step if run.start else 0
    while not log.exists() or log.read_bytes().count(b"\n") < step - first:
        if not all(process.is_alive() for process in ranks):
            kill(ranks)
            _raise_first_error(run, ranks)
            raise RunError(f"ended before step {step}")
        if time.monotonic() > deadline:
            kill(ranks)
            raise RunError(f"no step {step} after {_PATIENCE_S:.0f} s")
        time.sleep(_POLL_S)
    time.sleep(chance.uniform(0, 0.05))
    kill(chance.sample(ranks, len(ranks)))
    return newest(run)


def kill(ranks: Sequence[BaseProcess]) -> None:
    for process in ranks:
        assert process.pid is not None
        with suppress(ProcessLookupError):  # it has ended, and so have its workers
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):  # it has not joined its own session yet
            os.kill(process.pid, signal.SIGKILL)
    for process in ranks:
        process.join()


def newest(run: Run) -> Checkpoint | None:
    """The newest step after which every rank saved its state."""
    saved = {path.stem.split("-")[1] for path in run.folder.glob("state-*.pickle")}
    for step in sorted((int(step) for step in saved), reverse=True):
        paths = [run.state(step, rank) for rank in range(run.world_size)]
        if all(path.exists() for path in paths):
            pairs = [pickle.loads(path.read_bytes()) for path in paths]
            return Checkpoint(step, pairs[0][0], [state for _, state in pairs])
    return None


def steps(run: Run) -> list[Step]:
    """The steps that all ranks recorded."""
    logs = [_lines(run.log(rank)) for rank in range(run.world_size)]
    found = []
    for lines in zip(*logs, strict=False):
        numbers = sorted(number for line in lines for number in line["numbers"])
        found.append(
            Step(
                lines[0]["step"],
                lines[0]["epoch"],
                tuple(numbers),
                max(line["s"] for line in lines),
            )
        )
    return found


def _lines(path: Path) -> list[dict]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def _raise_first_error(run: Run, ranks: Sequence[BaseProcess]) -> None:
    errors = sorted(
        run.folder.glob("error-*.txt"), key=lambda path: path.stat().st_mtime_ns
    )
    if errors:
        raise RunError(errors[0].read_text().splitlines()[0])
    codes = [process.exitcode for process in ranks if process.exitcode != 0]
    if codes:
        raise RunError(f"a rank ended with exit code {codes[0]}")
