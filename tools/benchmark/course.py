"""The course of a benchmark: every contender examined once, then warm rounds in turn, then cold ones."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmark import page_cache
from benchmark.ceiling import Ceiling
from benchmark.contenders import CONTENDERS
from benchmark.examine import Examined, faults
from benchmark.process import ContenderError, ContenderProcess, First, Round
from benchmark.usage import PeakMemory
from benchmark.work import Work

# A page that some process has mapped, or that is still to be written, stays; more than this was not emptied.
STILL_CACHED = 0.05


@dataclass
class Result:
    """All that was measured of one contender. memory_bytes: the most during an epoch, or at the end of a round."""

    versions: dict[str, str]
    examined: Examined | None = None
    first: First | None = None
    memory_bytes: int = 0
    warm: list[Round] = field(default_factory=list)
    cold: list[Round] = field(default_factory=list)
    cached_share: float = 0.0


class Course:
    """Runs contenders against each other on one work.

    pythons: the interpreter of those that have their own. labels: how often each is in the set. after_round: called
        whenever every contender has had as many rounds as the others.
    """

    def __init__(
        self,
        work: Work,
        pythons: dict[str, str],
        labels: dict[str, int],
        after_round: Callable[[], None] = lambda: None,
    ) -> None:
        self._work, self._pythons, self._labels, self._after_round = work, pythons, labels, after_round
        self.results: dict[str, Result] = {}
        self.left_out: dict[str, str] = {}

    def leave_out(self, name: str, reason: str) -> None:
        """Says at once that a contender does not take part, and why."""
        show("")
        self.left_out[name] = reason
        self.results.pop(name, None)
        print(f"left out: {name}: {reason}", file=sys.stderr)

    def examine(self, names: list[str]) -> None:
        """Makes each one's data, and looks whether it delivers what the first one does."""
        for name in names:
            show(f"looking at what {name} delivers")
            try:
                with self._start(name) as process:
                    process.prepare()
                    with PeakMemory(process.pid) as peak:
                        found = Examined(**process.examine())
                    result = Result(process.versions, found, memory_bytes=peak.bytes)
            except ContenderError as error:
                self.leave_out(name, str(error).removeprefix(f"{name}: "))
                continue
            first = next((other.examined for other in self.results.values()), None)
            if fault := faults(found, self._labels, first, self._work):
                self.leave_out(name, fault)
            else:
                self.results[name] = result

    def take(self, names: list[str]) -> None:
        """Takes contenders without a look at what they deliver, which is no images."""
        for name in names:
            self.results[name] = Result({})

    def run_warm(self, rounds: int, ceiling: Ceiling | None) -> None:
        """Rounds in turn, each contender with one loader that stays open; with everything in the page cache."""
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
                if name not in self.results:  # it failed in a round before
                    continue
                show(f"round {number + 1} of {rounds}: {name}")
                try:
                    turn = open_ones[name].round()
                except ContenderError as error:
                    self.leave_out(name, str(error).removeprefix(f"{name}: "))
                    continue
                self.results[name].warm.append(turn)
                self.results[name].memory_bytes = max(self.results[name].memory_bytes, turn.memory_bytes)
            self._after_round()
        finally:
            show("")
            for process in open_ones.values():
                process.close()

    def run_cold(self, rounds: int) -> None:
        """The first epoch of a new loader in a new process, after its data were put out of the page cache.

        Who fails here keeps the warm figures, and has no cold ones.
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
                    self.results[name].cached_share = max(self.results[name].cached_share, share)
                    self.results[name].cold.append(process.cold())
            except ContenderError as error:
                show("")
                print(f"no cold figure: {error}", file=sys.stderr)
                self.results[name].cold.clear()
                failed.add(name)
        show("")
        kept = [name for name, result in self.results.items() if result.cached_share > STILL_CACHED]
        if kept:
            print(
                f"the page cache kept up to {max(self.results[name].cached_share for name in kept):.0%} of the data "
                f"of {', '.join(kept)}: their cold figures are not of the disk. On a file system that lives in memory, "
                "or where another process has the files mapped, they cannot be put out",
                file=sys.stderr,
            )

    def _start(self, name: str) -> ContenderProcess:
        return ContenderProcess(name, self._work, self._pythons.get(name.removesuffix("-gpu"), sys.executable))


def _turns(rounds: int, names: Any) -> Iterator[tuple[int, str | None]]:
    """(round, name): each round begins with another contender, after None for what is no contender."""
    order = list(names)
    for number in range(rounds if order else 0):
        yield number, None
        for place in range(len(order)):
            yield number, order[(number + place) % len(order)]


def show(progress: str) -> None:
    """One line that the next call overwrites; nothing where nobody watches."""
    if sys.stderr.isatty():
        print(f"\r{progress:<50}\r", end="", file=sys.stderr, flush=True)


def default_cache(folder: Path) -> Path:
    """Beside the set: it is as large again for each peer."""
    return folder.with_name(folder.name + ".peers")
