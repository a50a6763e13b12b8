"""Interrupts loaders at random moments, as Ctrl-C does, and looks for what is left: locks, threads, lost samples.

    python benchmarks/signals.py                                                 # 500 signals, about a minute
    python benchmarks/signals.py --signals 10000 --processes 2 --json benchmarks/results/signals.json

A small set is packed into a temporary folder. Each process opens, loops over, shows and closes loaders of it, and a
timer of the system interrupts it at a random moment of each of these. What is asked:

- nothing waits for ever: a process that has not reported for a minute is ended, and where it stood is printed;
- a run that goes on from its state after each interrupt sees each sample in the order of an undisturbed run, once;
- after `close`, called again where it was interrupted, no thread of the loader is left; nor is one of a loader whose
  construction was interrupted.

Exit codes: 0 all is well; 1 something is not; 2 wrong arguments.
"""

import argparse
import faulthandler
import gc
import json
import os
import platform
import random
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import gpuload
from gpuload.packing.packer import pack

_SILENT_S = 60.0  # without a report, a process waits for ever
_IMPORTS_S = (
    600.0  # until the first one, on a busy machine: torch and DALI are imported
)
_ENDING_S = 10.0  # that threads may take to end
_IMAGES = 60
_BATCH = 7
# Threads of the process, not of a loader.
_STAYING = (
    "gpuload-compile",
    "gpuload-download",
)


def samples() -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    for number in range(_IMAGES):
        coarse = rng.integers(0, 256, (4, 5, 3), np.uint8)
        yield {
            "image": np.asarray(Image.fromarray(coarse).resize((64, 48))),
            "label": number % 3,
        }


class Interrupts:
    """Signals at random moments of some work. came: how many, by the name of the work."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._seconds: dict[str, float] = {}  # that the work takes, a moving average
        self.came: Counter[str] = Counter()

    def during(self, name: str, work: Callable[[], object]) -> None:
        """Interrupts some work at a random moment, unless it ends before."""
        usual_s = self._seconds.setdefault(name, 0.005)
        begun = time.perf_counter()
        try:
            signal.setitimer(signal.ITIMER_REAL, self._rng.uniform(1e-6, 1.3 * usual_s))
            work()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            self.came[name] += 1
        else:
            self._seconds[name] = 0.9 * usual_s + 0.1 * (time.perf_counter() - begun)


class Rounds:
    """The rounds of a process. faults: what was found, one line each."""

    def __init__(self, folder: Path, decoder: str, seed: int) -> None:
        self._folder = folder
        self._decoder = decoder
        self._rng = random.Random(seed)
        self.interrupts = Interrupts(self._rng)
        self.faults: list[str] = []
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        with self._open() as loader:
            self._expected = [batch[0].tolist() for _ in range(3) for batch in loader]
        gc.collect()
        gc.freeze()  # libraries, which take half a second to look through

    def run(self) -> None:
        """A round of each kind."""
        for kind in (self._loop, self._construct, self._close, self._preview):
            kind()

    def _open(self) -> gpuload.DaliIterator:
        return gpuload.DaliIterator(
            gpuload.Dataset(self._folder),
            _BATCH,
            augment=gpuload.Augment(16, dtype="uint8"),
            decoder=self._decoder,
            device="cpu",
            num_threads=2,
            fields=("index", "image"),
            drop_last=False,
        )

    def _loop(self) -> None:
        """Goes on from its state after each interrupt, as a program that is started again."""
        loader = self._open()
        seen: list[Any] = []
        count = len(self._expected)

        def rest_of_epoch() -> None:
            for batch in loader:
                seen.append(batch[0])  # noqa: PERF401 - in one step: a signal comes before or after it

        while len(seen) < count:
            self.interrupts.during("loop", rest_of_epoch)
            loader.load_state_dict(loader.state_dict())
        batches = [batch.tolist() for batch in seen]
        if batches != self._expected:
            self.faults.append(f"loop: {_difference(batches, self._expected)}")
        loader.close()
        self._look_for_threads("loop")

    def _construct(self) -> None:
        for _ in range(5):
            self.interrupts.during("construct", self._open_and_close)
        self._look_for_threads("construct")

    def _open_and_close(self) -> None:
        loader = self._open()
        next(iter(loader))
        loader.close()

    def _close(self) -> None:
        for _ in range(5):
            loader = self._open()
            batches = iter(loader)
            next(batches)
            self.interrupts.during("close", loader.close)
            loader.close()
            self._look_for_threads("close")

    def _preview(self) -> None:
        loader = self._open()
        for _ in range(5):
            self.interrupts.during("preview", partial(loader.preview, 8))
        if [batch[0].tolist() for batch in loader] != self._expected[
            : len(self._expected) // 3
        ]:
            self.faults.append("preview: the loop after it has other samples")
        loader.close()
        self._look_for_threads("preview")

    def _look_for_threads(self, name: str) -> None:
        deadline = time.monotonic() + _ENDING_S
        gc.collect()
        while (alive := _threads()) and time.monotonic() < deadline:
            time.sleep(0.01)
            gc.collect()
        if alive:
            self.faults.append(
                f"{name}: {len(alive)} threads are left, such as {alive[0]}"
            )
            raise SystemExit(1)  # what is left would be found in each later round, too


def _difference(found: list[list[int]], expected: list[list[int]]) -> str:
    number = next(
        (
            n
            for n, pair in enumerate(zip(found, expected, strict=False))
            if pair[0] != pair[1]
        ),
        len(expected),
    )
    kind = (
        "lost"
        if expected[number + 1 :] == found[number : len(expected) - 1]
        else "not that of the undisturbed run"
    )
    return f"batch {number} is {kind}"


def _threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [
        name for name in names if name.startswith("gpuload-") and name not in _STAYING
    ]


def be_interrupted(folder: Path, decoder: str, seed: int) -> None:
    """A process: reports its signals and faults after each round, as a line of JSON."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    rounds = Rounds(folder, decoder, seed)
    _report(rounds)
    try:
        while True:
            rounds.run()
            _report(rounds)
    finally:
        _report(rounds)


def _report(rounds: Rounds) -> None:
    print(
        json.dumps({"signals": rounds.interrupts.came, "faults": rounds.faults}),
        flush=True,
    )


class Child:
    """A process that is interrupted, and what it has reported."""

    def __init__(self, folder: Path, decoder: str, seed: int) -> None:
        command = [sys.executable, __file__, "--child", str(folder), decoder, str(seed)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.heard = time.monotonic()
        self.patience = _IMPORTS_S
        self.signals: Counter[str] = Counter()
        self.faults: list[str] = []

    def read(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line:
            report = json.loads(line)
            self.signals = Counter(report["signals"])
            self.faults = report["faults"]
            self.heard = time.monotonic()
            self.patience = _SILENT_S

    def has_ended(self) -> bool:
        """Whether it ended by itself, or was ended because it waits for ever."""
        if self.process.poll() is not None:
            if not self.faults:
                self.faults.append(f"the process ended with {self.process.returncode}")
            self.process.communicate()
            return True
        if time.monotonic() - self.heard < self.patience:
            return False
        self.faults.append("it waits for ever: where, is printed above")
        self.process.send_signal(signal.SIGUSR1)
        time.sleep(1)
        self.end()
        return True

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def interrupt(
    folder: Path, decoders: list[str], count: int, processes: int, seed: int
) -> dict[str, Any]:
    """Runs processes until so many signals have come."""
    children: list[Child] = []
    ended: list[Child] = []
    begun = time.monotonic()

    def start() -> None:
        number = len(children) + len(ended)
        children.append(Child(folder, decoders[number % len(decoders)], seed + number))

    def total() -> Counter[str]:
        return sum((child.signals for child in (*children, *ended)), Counter())

    for _ in range(processes):
        start()
    while total().total() < count and len(ended) < 20:
        with selectors.DefaultSelector() as selector:
            for child in children:
                assert child.process.stdout is not None
                selector.register(child.process.stdout, selectors.EVENT_READ, child)
            for key, _ in selector.select(timeout=1):
                key.data.read()
        for child in [child for child in children if child.has_ended()]:
            children.remove(child)
            ended.append(child)
            start()
        print(
            f"\r{total().total():,} signals, {time.monotonic() - begun:,.0f} s",
            end="",
            file=sys.stderr,
            flush=True,
        )
    print(file=sys.stderr)
    for child in children:
        child.end()
    return {
        "signals": total().total(),
        "during": dict(total()),
        "seconds": round(time.monotonic() - begun, 1),
        "decoders": decoders,
        "processes": processes,
        "seed": seed,
        "faults": [fault for child in (*children, *ended) for fault in child.faults],
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--signals", type=int, default=500, help="at least so many (default 500)"
    )
    parser.add_argument(
        "--processes", type=int, default=1, help="at a time (default 1)"
    )
    parser.add_argument(
        "--decoder",
        choices=("native", "dali", "all"),
        default="all",
        help="(%(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the moments (default 0)"
    )
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child is not None:
        folder, decoder, seed = args.child
        be_interrupted(Path(folder), decoder, int(seed))
    if args.signals < 1 or args.processes < 1:
        parser.error("expected --signals and --processes of at least 1")
    decoders = ["native", "dali"] if args.decoder == "all" else [args.decoder]
    with tempfile.TemporaryDirectory() as folder:
        pack(
            samples(),
            Path(folder),
            workers=1,
            maxcount=20,
            encode="jpeg",
            shuffle=False,
        )
        result = interrupt(
            Path(folder, "train"), decoders, args.signals, args.processes, args.seed
        )
    for fault in result["faults"]:
        print(fault)
    print(
        f"{result['signals']:,} signals in {result['seconds']:,.0f} s, {len(result['faults'])} faults"
    )
    if args.json:
        args.json.write_text(json.dumps(result) + "\n")
    return 1 if result["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
