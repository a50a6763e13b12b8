"""Trials of one loader: a run that is killed, its resumed run, and what came in both.

    python -m counting.trials NAME FOLDER SEED

reads pairs of numbers of ranks, one a line, and answers each with a trial, in JSON. It is a process of its own, since a
loader may have an environment of its own; nothing imported here needs gpuload.
"""

import importlib.metadata
import json
import os
import platform
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from counting.rank import EPOCHS, SAVE_EVERY, Run
from counting.runs import RunError, Step, context, finish, kill_after, start, steps
from counting.samples import SAMPLES
from counting.table import loader_class


@dataclass(frozen=True)
class Trial:
    """One kill.

    ranks, resumed_on: numbers of ranks. killed_at: step of the SIGKILL. after: step whose states were loaded.
    lost, doubled: samples, of both epochs together; whole_lost, whole_doubled: those of the run that nobody kills.
    same_order: whether each step had the samples that it has in that run. next_batch_s: from opening the loader to the
    first batch after the resume; None: none was left. error: of the resumed run, which then counted nothing.
    """

    ranks: int
    resumed_on: int
    killed_at: int
    after: int
    whole_lost: int
    whole_doubled: int
    lost: int = 0
    doubled: int = 0
    same_order: bool = False
    next_batch_s: float | None = None
    error: str = ""


def count(run: Sequence[Step]) -> tuple[int, int]:
    """(lost, doubled) samples over all epochs."""
    lost = 0
    doubled = 0
    for epoch in range(EPOCHS):
        times = Counter(
            number for step in run if step.epoch == epoch for number in step.numbers
        )
        lost += SAMPLES - len(times)
        doubled += times.total() - len(times)
    return lost, doubled


class Course:
    """All trials of one loader, in a folder of its own."""

    def __init__(self, name: str, folder: Path, seed: int) -> None:
        self._name = name
        self._folder = folder
        self._data = folder / "data"
        self._context = context(name)
        self._chance = random.Random(seed)
        self._whole: dict[int, list[Step]] = {}

    def prepare(self) -> None:
        self._data.mkdir(parents=True)
        process = self._context.Process(
            target=loader_class(self._name).prepare, args=(self._data,)
        )
        process.start()
        process.join()
        if process.exitcode != 0:
            raise RunError(
                f"its data could not be written (exit code {process.exitcode})"
            )

    def trial(self, ranks: int, resumed_on: int) -> Trial:
        """Raises RunError where the first run itself fails."""
        whole = self._uninterrupted(ranks)
        killed = Run(self._name, self._data, self._folder / "killed", ranks)
        killed_at = self._chance.randrange(SAVE_EVERY, len(whole))
        checkpoint = kill_after(
            killed, start(killed, self._context), killed_at, self._chance
        )
        after = checkpoint.step if checkpoint else 0
        told = (ranks, resumed_on, killed_at, after, *count(whole))
        resumed = Run(
            self._name, self._data, self._folder / "resumed", resumed_on, checkpoint
        )
        try:
            rest = finish(resumed, start(resumed, self._context))
        except RunError as error:
            return Trial(*told, error=str(error))
        seen = [*(step for step in steps(killed) if step.step <= after), *rest]
        same_order = [step.numbers for step in seen] == [step.numbers for step in whole]
        return Trial(*told, *count(seen), same_order, rest[0].seconds if rest else None)

    def _uninterrupted(self, ranks: int) -> list[Step]:
        if ranks not in self._whole:
            run = Run(self._name, self._data, self._folder / f"whole-{ranks}", ranks)
            self._whole[ranks] = finish(run, start(run, self._context))
        return self._whole[ranks]


def main(argv: list[str]) -> int:
    name, folder, seed = argv
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print

    def answer(**values: object) -> None:
        answers.write(json.dumps(values) + "\n")

    try:
        course = Course(name, Path(folder), int(seed))
        course.prepare()
        kind = loader_class(name)
        answer(
            version=importlib.metadata.version(kind.DISTRIBUTION),
            python=platform.python_version(),
            means=kind.MEANS,
        )
        for line in sys.stdin:
            answer(**asdict(course.trial(*json.loads(line))))
    except (RunError, ImportError, importlib.metadata.PackageNotFoundError) as error:
        answer(failed=f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
