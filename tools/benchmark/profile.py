"""Where the time of gpuload's batches goes: the loader's threads, looked at some hundred times a second.

Each look notes the line of Python that each thread is at; what the line calls tells the kind of work. So it needs
nothing of the loader, but sees only threads that Python knows: of DALI's own it sees none.
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
# What a line of code, or the function it stands in, says it does; the first that fits.
_KINDS = {
    "decode": r"decode_jpeg|decoder\.decode|get_sub_code_stream|Image\.open|\.convert\(|decompress",
    "resize": r"interpolate|resize\(",
    "normalise": r"normali[sz]e|\.sub_\(|\.mul_\(|copy_\(|\.flip\(|multiply\(|subtract\(",
    "read": r"\bp?read(_|\b)|\bmmap\b|madvise|\.take\(|\.rows\(",
}
_WAITING = ("threading.py", "queue.py", "selectors.py", "concurrent/futures/thread.py", "concurrent/futures/_base.py")


@dataclass(frozen=True)
class Profile:
    """Milliseconds of all threads for each image, by kind of work and by line ("file:line function").

    batch_s: from one batch to the next, on average; waited_s: of that, what the training loop waited.
    """

    images: int
    batch_s: float
    waited_s: float
    kinds_ms: dict[str, float]
    lines_ms: dict[str, float]


def profile(work: Work, device: str = "cpu") -> Profile:
    """Looks at a loader for about `work.images` images, after a warm-up."""
    from benchmark.peers import own

    with own.open_loader(work, device=device) as loader:
        batches = _endless(loader)
        for _ in range(8):
            next(batches)
        with _Looks() as looks:
            started, waited, images, count = time.perf_counter(), 0.0, 0, 0
            while images < work.images:
                asked = time.perf_counter()
                pixels, _ = next(batches)
                waited += time.perf_counter() - asked
                images += len(pixels)
                count += 1
            elapsed = time.perf_counter() - started
        batches.close()
    # A look that came late stands for all the time since the last one.
    milliseconds = 1000 * elapsed / max(1, looks.number) / images
    return Profile(
        images=images,
        batch_s=elapsed / count,
        waited_s=waited / count,
        kinds_ms={kind: found * milliseconds for kind, found in looks.kinds.most_common()},
        lines_ms={line: found * milliseconds for line, found in looks.lines.most_common(12)},
    )


def kind_of(file: str, function: str, code: str) -> str:
    """What a line of code is for: "decode", "resize", "normalise", "read", "wait" or "other Python"."""
    if file.endswith(_WAITING) or ".wait(" in code or ".acquire(" in code:
        return "wait"
    for kind, pattern in _KINDS.items():
        if re.search(pattern, code) or re.search(pattern, function):
            return kind
    return "other Python"


class _Looks:
    """Counts, for every other thread, where it is."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.lines: Counter[str] = Counter()
        self.number = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "_Looks":
        self._main = threading.get_ident()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
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
