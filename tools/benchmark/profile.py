"""A sampling profiler of the loader's threads: where gpuload spends its time, sampled some hundred times a second.

Each sample notes the line of Python that each thread executes; the functions called in that line tell the kind of work.
The loader needs no instrumentation, but only Python's threads are seen, and none of DALI's.
"""

import linecache
import re
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from types import FrameType

from benchmark.work import Work

_INTERVAL_S = 0.002
# Kind of work by the text of a line, or the name of its function; the first match counts.
_KINDS = {
    "decode": r"decode_jpeg|decoder\.decode|get_sub_code_stream|Image\.open|\.convert\(|decompress",
    "resize": r"interpolate|resize\(",
    "normalise": r"normali[sz]e|\.sub_\(|\.mul_\(|copy_\(|\.flip\(|multiply\(|subtract\(",
    "read": r"\bp?read(_|\b)|\bmmap\b|madvise|\.take\(|\.rows\(",
}
_WAITING = ("threading.py", "queue.py", "selectors.py", "concurrent/futures/thread.py", "concurrent/futures/_base.py")


@dataclass(frozen=True)
class Profile:
    """Milliseconds of all threads per image, by kind of work and by line ("file:line function").

    batch_s: mean time from one batch to the next. waited_s: the part of it that the training loop waited.
    """

    images: int
    batch_s: float
    waited_s: float
    kinds_ms: dict[str, float]
    lines_ms: dict[str, float]


def profile(work: Work, device: str = "cpu") -> Profile:
    """Profiles a loader over about `work.images` images, after a warm-up."""
    from benchmark.peers import own

    with own.open_loader(work, device=device) as loader:
        batches = _endless(loader)
        for _ in range(8):
            next(batches)
        with _Samples() as samples:
            started, waited, images, count = time.perf_counter(), 0.0, 0, 0
            while images < work.images:
                asked = time.perf_counter()
                pixels, _ = next(batches)
                waited += time.perf_counter() - asked
                images += len(pixels)
                count += 1
            elapsed = time.perf_counter() - started
        batches.close()
    # A sample that came late stands for all the time since the one before.
    milliseconds = 1000 * elapsed / max(1, samples.number) / images
    return Profile(
        images=images,
        batch_s=elapsed / count,
        waited_s=waited / count,
        kinds_ms={kind: found * milliseconds for kind, found in samples.kinds.most_common()},
        lines_ms={line: found * milliseconds for line, found in samples.lines.most_common(12)},
    )


def kind_of(file: str, function: str, code: str) -> str:
    """The kind of work of a line: "decode", "resize", "normalise", "read", "wait" or "other Python"."""
    if file.endswith(_WAITING) or ".wait(" in code or ".acquire(" in code:
        return "wait"
    for kind, pattern in _KINDS.items():
        if re.search(pattern, code) or re.search(pattern, function):
            return kind
    return "other Python"


class _Samples:
    """Counts the lines that all threads but the caller's and the sampler's execute."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.lines: Counter[str] = Counter()
        self.number = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> "_Samples":
        self._main = threading.get_ident()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        own = threading.get_ident()
        while not self._stop.wait(_INTERVAL_S):
            self.number += 1
            for thread, frame in sys._current_frames().items():
                if thread not in (own, self._main):
                    self._note(frame)

    def _note(self, frame: FrameType) -> None:
        code = frame.f_code
        line = linecache.getline(code.co_filename, frame.f_lineno).strip()
        kind = kind_of(code.co_filename, code.co_name, line)
        self.kinds[kind] += 1
        if kind != "wait":
            name = "/".join(code.co_filename.split("/")[-2:])
            self.lines[f"{name}:{frame.f_lineno} {code.co_name}: {line[:60]}"] += 1


def _endless(loader):
    while True:
        yield from loader
