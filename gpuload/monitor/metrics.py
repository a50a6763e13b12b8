"""Numbers about a run: what each stage took, since the start and over the last batches."""

import math
import warnings
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

from gpuload.checks import check, whole
from gpuload.monitor.binding import Setup, Stage, advice, binding_stage
from gpuload.monitor.waiting import SlowRun

MOST_STEPS = 1000  # that a window may have
# Records are replaced while another thread reads them, so that more are kept than a window needs.
_KEPT = 1024
_WINDOW = whole(1, MOST_STEPS)


class Metrics(NamedTuple):
    """Plain numbers about the batches of a window, or all since the loader was constructed.

    Time counts while a loop over the loader runs: not between epochs, and not after a loop was left.

    steps: batches handed out. images: samples in them. bytes: of their images as they are stored.
    seconds: of the loop, waiting and training together. images_per_s, bytes_per_s: by these seconds.
    wait_s: how long training waited for batches, the sum of the next three. wait_share: its share of `seconds`.
    wait_read_s: of that, until a batch had been read, so that decoding could start. wait_decode_s: until its pixels
        were ready. hand_over_s: to make its fields, batch transforms and arrays, in the training loop's thread.
    read_s: work to find samples and draw their augmentation, in one thread. decode_s: work of the decoding threads, all
        together; NaN with DALI, alone or beside the CPU decoder, since it does not tell. disk_s: of the thread that
        reads shards into memory.
    queue_depth: mean number of batches that were ready when training asked for the next: near `prefetch` training
        limits, near 0 the loader. NaN with DALI.
    binds: the stage that limits: "training", "download", "disk", "read", "decode", "function" or "hand_over" (see
        `gpuload.monitor.binding`); "none" before the second batch.
    download_s: of read_s, how long reading waited for shards of a set at a URL that were still downloaded.
    bad_samples: that did not decode and were replaced. epoch, position: the epoch, and how many of its samples all
        ranks together have been handed. function_s: work of functions of `Augment(function=…)`, in all threads or
        processes together; decode_s is without it, wait_decode_s with it.
    """

    steps: int
    images: int
    bytes: int
    seconds: float
    images_per_s: float
    bytes_per_s: float
    wait_s: float
    wait_share: float
    wait_read_s: float
    wait_decode_s: float
    hand_over_s: float
    read_s: float
    decode_s: float
    disk_s: float
    queue_depth: float
    binds: Stage
    bad_samples: int
    epoch: int
    position: int
    function_s: float
    download_s: float = 0.0


class Totals(NamedTuple):
    """Sums since the start, after a batch. training_s: between batches, in the loop's body."""

    steps: int = 0
    images: int = 0
    bytes: int = 0
    training_s: float = 0.0
    wait_read_s: float = 0.0
    wait_decode_s: float = 0.0
    hand_over_s: float = 0.0
    read_s: float = 0.0
    decode_s: float = 0.0
    disk_s: float = 0.0
    ready: float = 0.0
    bad_samples: int = 0
    function_s: float = 0.0
    download_s: float = 0.0


_NOTHING = Totals()


class Meter:
    """Counts what each batch took. The training loop's thread calls it; `metrics` may be called from any thread.

    disk_s: how long the threads that read ahead have been busy so far. setup: what advice depends on.
    bad_samples: the number so far, which whoever replaces samples sets.
    """

    def __init__(self, disk_s: Callable[[], float], setup: Setup) -> None:
        self.bad_samples = 0
        self._disk_s, self._setup = disk_s, setup
        self._totals, self._kept = _NOTHING, [_NOTHING] * _KEPT
        self._place = (0, 0)
        self._training_s = self._handed = 0.0
        self._slow: SlowRun | None = SlowRun()

    def start(self) -> None:
        """A loop starts; what was before it is no training."""
        self._handed = perf_counter()

    def ask(self) -> float:
        """The training loop asks for its next batch, and has worked on the last one until now. Returns this moment."""
        now = perf_counter()
        self._training_s += now - self._handed
        return now

    def hand_over(self, batch: Any, decoded: Any, asked: float, ready: float, place: tuple[int, int]) -> float:
        """A batch is handed to the training loop. Returns the seconds since `asked`.

        batch, decoded: a `gpuload.read.batch.Batch` and its `gpuload.decode.interface.Decoded`. ready: when it was
            decoded. place: epoch, and samples of it handed out.
        """
        now = self._handed = perf_counter()
        before, waited = self._totals, ready - asked
        for_read = min(decoded.read_wait_s, waited)
        self._place = place
        numbers = (
            before[0] + 1,
            before[1] + len(batch.sources),
            before[2] + batch.image_bytes,
            self._training_s,
            before[4] + for_read,
            before[5] + waited - for_read,
            before[6] + now - ready,
            before[7] + batch.read_s,
            before[8] + decoded.work_s,
            self._disk_s(),
            before[10] + decoded.queue_depth,
            self.bad_samples,
            before[12] + decoded.function_s,
            before[13] + batch.download_s,
        )
        self._totals = totals = tuple.__new__(Totals, numbers)  # half of what calling it takes
        self._kept[totals[0] % _KEPT] = totals
        if self._slow is not None and totals[0] >= self._slow.next_look:
            self._look()
        return now - asked

    def metrics(self, window: int | None = None) -> Metrics:
        """As `DaliIterator.metrics`."""
        now = self._totals
        if window is None:
            then = _NOTHING
        else:
            if type(window) is not int or not 0 < window <= MOST_STEPS:
                window = check("DaliIterator.metrics", "window", window, _WINDOW)
            then = self._kept[(now[0] - window) % _KEPT] if window < now[0] else _NOTHING
        epoch, position = self._place
        return _difference(then, now, epoch, position)

    def _look(self) -> None:
        """Warns once, the first time that training waits for too much of its time."""
        assert self._slow is not None
        if (then := self._slow.look(self._totals)) is not None:
            found = _difference(then, self._totals, 0, 0)
            self._slow = None
            # Named is the user's loop: this is called by `hand_over`, that by two generators of the loader, and those
            # by the loop.
            warnings.warn(
                f"DaliIterator({str(self._setup.folder)!r}): training waited for {found.wait_share:.0%} of its time in "
                f"the last {found.steps:,} steps, and what limits is {found.binds.replace('_', '-')}. "
                f"{advice(found.binds, self._setup)}. loader.metrics() tells more",
                stacklevel=5,
            )


def _difference(then: Totals, now: Totals, epoch: int, position: int) -> Metrics:
    steps, images, stored = now[0] - then[0], now[1] - then[1], now[2] - then[2]
    for_read, for_decode, hand_over = now[4] - then[4], now[5] - then[5], now[6] - then[6]
    disk_s, work_s, function_s, download_s = now[9] - then[9], now[8] - then[8], now[12] - then[12], now[13] - then[13]
    waited = for_read + for_decode + hand_over
    seconds = now[3] - then[3] + waited
    is_empty = seconds <= 0
    return Metrics(
        steps,
        images,
        stored,
        seconds,
        0.0 if is_empty else images / seconds,
        0.0 if is_empty else stored / seconds,
        waited,
        0.0 if is_empty else waited / seconds,
        for_read,
        for_decode,
        hand_over,
        now[7] - then[7],
        work_s,
        disk_s,
        (now[10] - then[10]) / steps if steps else math.nan,
        binding_stage(seconds, for_read, for_decode, hand_over, disk_s, work_s, function_s, download_s),
        now[11] - then[11],
        epoch,
        position,
        function_s,
        download_s,
    )
