"""The course of a benchmark: each contender is examined once, then come warm rounds in turn, then cold ones."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from timing import page_cache
from timing.ceiling import Ceiling
from timing.contenders import CONTENDERS
from timing.examine import Examined, faults
from timing.process import ContenderError, ContenderProcess, First, Round
from timing.usage import PeakMemory
from timing.work import Work

# Pages that a process has mapped, or that are not yet written, stay cached. Above this share the cache was not cold.
STILL_CACHED = 0.05


@dataclass
class Result:
    """All measurements of one contender. memory_bytes: the largest during an epoch or at the end of a round."""

    versions: dict[str, str]
    examined: Examined | None = None
    first: First | None = None
    memory_bytes: int = 0
    warm: list[Round] = field(default_factory=list)
    cold: list[Round] = field(default_factory=list)
    cached_share: float = 0.0


class Course:
    """Compares contenders on one work.

    pythons: interpreters of contenders that have their own. labels: the number of samples of each label. after_round:
        called whenever every contender has completed the same number of rounds.
    """

    def __init__(
        self,
        work: Work,
        pythons: dict[str, str],
        labels: dict[str, int],
        after_round: Callable[[], None] = lambda: None,
    ) -> None:
        self._work = work
        self._pythons = pythons
        self._labels = labels
        self._after_round = after_round
        self.results: dict[str, Result] = {}
        self.left_out: dict[str, str] = {}

    def leave_out(self, name: str, reason: str) -> None:
        """Excludes a contender and reports the reason at once."""
        show("")
        self.left_out[name] = reason
        self.results.pop(name, None)
        print(f"left out: {name}: {reason}", file=sys.stderr)

    def examine(self, names: list[str]) -> None:
        """Prepares the data of each contender, and checks that it delivers what the first one does."""
        for name in names:
            show(f"examining {name}")
            try:
                with self._start(name) as process:
                    process.prepare()
                    with PeakMemory(process.pid) as peak:
                        examined = Examined(**process.examine())
                    result = Result(process.versions, examined, memory_bytes=peak.bytes)
            except ContenderError as error:
                self.leave_out(name, str(error).removeprefix(f"{name}: "))
                continue
            first = next((other.examined for other in self.results.values()), None)
            if fault := faults(examined, self._labels, first, self._work):
                self.leave_out(name, fault)
            else:
                self.results[name] = result

    def take(self, names: list[str]) -> None:
        """Accepts contenders without examining them."""
        for name in names:
            self.results[name] = Result({})

    def prepare(self) -> None:
        """Makes the data of those that were accepted, where it does not exist."""
        for name in list(self.results):
            if (
                CONTENDERS[name].prepare is None
                or CONTENDERS[name].folder(self._work).exists()
            ):
                continue
            show(f"preparing {name}")
            try:
                with self._start(name) as process:
                    process.prepare()
            except ContenderError as error:
                self.leave_out(name, str(error).removeprefix(f"{name}: "))

    def run_warm(self, rounds: int, ceiling: Ceiling | None) -> None:
        """Rounds in turn, with everything in the page cache and one open loader per contender."""
        for name in self.results:
            page_cache.warm(page_cache.data_files(CONTENDERS[name].folder(self._work)))
        open_ones: dict[str, ContenderProcess] = {}
        try:
            for name in list(self.results):
                show(f"opening {name}")
                try:
                    open_ones[name] = self._start(name)
                    self.results[name].first = open_ones[name].open()
                except ContenderError as error:
                    self.leave_out(name, str(error).removeprefix(f"{name}: "))
                    open_ones.pop(name, None)
            for number, name in _turns(rounds, open_ones):
                if name is None:
                    if number:
                        self._after_round()
                    if ceiling is not None:
                        show(f"round {number + 1} of {rounds}: the ceiling")
                        ceiling.measure()
                    continue
                if name not in self.results:  # it failed in an earlier round
                    continue
                show(f"round {number + 1} of {rounds}: {name}")
                try:
                    turn = open_ones[name].round()
                except ContenderError as error:
                    self.leave_out(name, str(error).removeprefix(f"{name}: "))
                    continue
                self.results[name].warm.append(turn)
                self.results[name].memory_bytes = max(
                    self.results[name].memory_bytes, turn.memory_bytes
                )
            self._after_round()
        finally:
            show("")
            for process in open_ones.values():
                process.close()

    def run_cold(self, rounds: int) -> None:
        """The first epoch of a new loader in a new process, after its data was evicted from the page cache.

        A contender that fails here keeps its warm figures and has no cold ones.
        """
        failed = set()
        for number, name in _turns(rounds, self.results):
            if name is None or name in failed:
                continue
            show(f"cold round {number + 1} of {rounds}: {name}")
            files = page_cache.data_files(CONTENDERS[name].folder(self._work))
            try:
                with self._start(name) as process:
                    page_cache.evict(files)
                    share = page_cache.cached_share(files)
                    self.results[name].cached_share = max(
                        self.results[name].cached_share, share
                    )
                    self.results[name].cold.append(process.cold())
            except ContenderError as error:
                show("")
                print(f"no cold figure: {error}", file=sys.stderr)
                self.results[name].cold.clear()
                failed.add(name)
        show("")
        kept = [
            name
            for name, result in self.results.items()
            if result.cached_share > STILL_CACHED
        ]
        if kept:
            print(
                f"the page cache kept up to {max(self.results[name].cached_share for name in kept):.0%} of the data "
                f"of {', '.join(kept)}: their cold figures are not those of the disk. On a file system in memory, "
                "or where another process has the files mapped, pages cannot be evicted",
                file=sys.stderr,
            )

    def _start(self, name: str) -> ContenderProcess:
        return ContenderProcess(
            name,
            self._work,
            self._pythons.get(name.removesuffix("-gpu"), sys.executable),
        )


def _turns(rounds: int, names: Any) -> Iterator[tuple[int, str | None]]:
    """(round, name): each round starts with a different contender. A name of None comes first, for the ceiling."""
    order = list(names)
    for number in range(rounds if order else 0):
        yield number, None
        for place in range(len(order)):
            yield number, order[(number + place) % len(order)]


def show(progress: str) -> None:
    """Shows a line that the next call overwrites, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r{progress:<50}\r", end="", file=sys.stderr, flush=True)


def default_cache(folder: Path) -> Path:
    """Beside the set. It takes the size of the set for each peer."""
    return folder.with_name(folder.name + ".peers")
