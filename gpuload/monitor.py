"""Metrics of a run: the time of each stage, the stage that limits it, and its ranges in the timelines of profilers."""

import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, NamedTuple

from gpuload.store.url import URL

__all__ = ["Metrics"]

# training: the training loop itself, which is the goal. download: downloading shards from a URL. disk: reading shards
# into memory. read: locating samples in them, drawing their augmentation and computing their fields. decode: pixels.
# function: a function of `transforms.Function`. hand_over: batch transforms, arrays of the user's library. none: no
# batches yet.
Stage = Literal[
    "none", "training", "download", "disk", "read", "decode", "function", "hand_over"
]

# Below this share of waiting, training is not limited: an epoch's first batches alone cost that much.
WAIT_SHARE = 0.1
# The read-ahead thread is busy for a few thousandths of the time if the shards are in memory (10 ms a GiB), and all the
# time if the disk is the bottleneck.
DISK_SHARE = 0.8
# The share of training's wait for reading that reading itself waited for downloads. Reading is some batches ahead of
# training, so the two do not cover the same batches.
DOWNLOAD_SHARE = 0.5

MOST_STEPS = 1000  # in a window
# Records are replaced while another thread reads them, so more are kept than a window needs.
_KEPT = 1024
# Steps and seconds between two checks of a run. The first check never warns: code is still compiling, the page cache is
# cold, and torch is choosing kernels. So there is no warning in the first 200 steps, nor in the first minute.
_STEPS = 100
_SECONDS = 30.0
# A loop whose body takes less than this does not train; it counts, or measures the loader.
_TRAINING_S = 50e-6


_SMALLER = "pack smaller images (`python -m gpuload pack --encode jpeg --size 256`)"
_ADVICE: dict[Stage, str] = {
    "download": "Shards do not come from the URL any faster. On several nodes use Shuffle(lanes=...), so that each "
    "downloads its share; otherwise use a nearby server, a cache that holds the set, or `python -m gpuload fetch`",
    "disk": "The shards do not come from the disk any faster. Put them on a faster one, such as a local NVMe drive, or "
    + _SMALLER,
    "read": "One thread finds the samples, draws their augmentation and computes their fields. Raise batch_size, ask "
    "for fewer fields, or use fewer views and transforms",
    "hand_over": "batch_transforms are computed in the training loop's own thread. Leave out those that are not used, "
    "or do their work on the device",
    "function": "The function of an Augment takes most of the time. Raise num_threads; where it holds Python's "
    "lock, use Function(f, processes=...); or use one of gpuload.transforms in its place",
    "decode": "`python -m gpuload tune FOLDER` finds the best num_threads, prefetch and decoder. Or "
    + _SMALLER,
}


def advice(stage: Stage) -> str:
    """Advice for a limiting stage: one or two sentences.

    Args:
        stage: The stage whose time limits the loader.
    """
    return _ADVICE.get(stage, "Nothing needs to be changed in the loader")


class Metrics(NamedTuple):
    """Plain numbers about the batches of a window, or of all batches since construction.

    Time counts only during a loop over the loader, not between epochs or after leaving a loop.

    Attributes:
        steps: Batches returned.
        images: Samples in them.
        bytes: Of their stored pictures.
        seconds: Of the loop, waiting and training together.
        images_per_s: Samples per second of the loop.
        bytes_per_s: Stored bytes per second of the loop.
        wait_s: Training's wait for batches, the sum of the next three.
        wait_share: Its share of `seconds`.
        wait_read_s: The part until a batch had been read and decoding could start.
        wait_decode_s: Until its pixels were ready.
        hand_over_s: For its batch transforms and arrays, in the training loop's thread.
        read_s: Work of one thread to locate samples, draw their augmentation and compute their fields.
        decode_s: Total work of the decoding threads; NaN with DALI, alone or beside the CPU decoder, since DALI does
            not report it.
        disk_s: Work of the thread that reads shards into memory.
        queue_depth: Mean number of batches ready when training requested the next: near `prefetch` if training is the
            bottleneck, near 0 if the loader is. NaN with DALI.
        binds: The limiting stage: "training", "download", "disk", "read", "decode", "function" or "hand_over" (see
            `gpuload.monitor`); "none" before the second batch.
        bad_samples: Undecodable samples that were replaced.
        epoch: Number of the epoch.
        position: Number of its samples returned on all ranks.
        function_s: Total work of `transforms.Function` in all threads or processes; decode_s excludes it, wait_decode_s
            includes it.
        download_s: The part of read_s spent waiting for downloads of a set at a URL.
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


class Sums(dict[str, Any]):
    """Over batches, 0 at first: fields of `Metrics`; training_s, the time in the loop's body; ready, of the queue."""

    def __missing__(self, name: str) -> int:
        return 0


def metrics_of(sums: Sums, epoch: int = 0, position: int = 0) -> Metrics:
    """The sums, with what follows from them."""
    wait_s: float = sums["wait_read_s"] + sums["wait_decode_s"] + sums["hand_over_s"]
    seconds: float = sums["training_s"] + wait_s
    # Before the second batch rates are 0.
    divisor = seconds if seconds > 0 else math.inf
    followed: dict[str, Any] = {
        "seconds": seconds,
        "images_per_s": sums["images"] / divisor,
        "bytes_per_s": sums["bytes"] / divisor,
        "wait_s": wait_s,
        "wait_share": wait_s / divisor,
        "queue_depth": sums["ready"] / sums["steps"] if sums["steps"] else math.nan,
        "binds": _limiting_stage(sums, seconds, wait_s),
        "epoch": epoch,
        "position": position,
    }
    return Metrics(
        **followed,
        **{name: sums[name] for name in Metrics._fields if name not in followed},
    )


def _limiting_stage(sums: Sums, seconds: float, wait_s: float) -> Stage:
    """Training, unless it waited for at least 10 % of the time.

    Otherwise it is downloading, if training mostly waited for reading and reading for downloads; the disk, if the
    read-ahead thread was busy for 80 % of the time and training did not mostly wait for its own hand-over; or else the
    stage that training waited for longest. A function counts as part of decoding: it is the limiting stage if its work
    took longer than decoding, or, if that is unknown, than half of the time.
    """
    read_s = sums["wait_read_s"]
    decode_s = sums["wait_decode_s"]
    if seconds <= 0:
        return "none"
    if wait_s < WAIT_SHARE * seconds:
        return "training"
    if sums["hand_over_s"] > max(read_s, decode_s):
        return "hand_over"
    if read_s > decode_s and sums["download_s"] > DOWNLOAD_SHARE * read_s:
        return "download"
    if sums["disk_s"] >= DISK_SHARE * seconds:
        return "disk"
    if read_s > decode_s:
        return "read"
    worked_s = 0.5 * seconds if math.isnan(sums["decode_s"]) else sums["decode_s"]
    return "function" if sums["function_s"] > worked_s else "decode"


class Meter:
    """Adds up the times of batches. The training loop's thread calls it; `metrics` may be called from any thread.

    Args:
        disk_s: The busy time of the read-ahead threads so far.
        folder: Of the data, for the warning.

    Attributes:
        bad_samples: The number so far, set by the code that replaces samples.
    """

    def __init__(self, disk_s: Callable[[], float], folder: Path | URL | str) -> None:
        self.bad_samples = 0
        self._disk_s = disk_s
        self._folder = folder
        self._sums = Sums()
        self._kept = [Sums()] * _KEPT
        self._place = (0, 0)
        self._training_s = self._handed = 0.0
        self._next_look: float = _STEPS
        self._looked: Sums | None = None

    def ask(self) -> float:
        """Records that the training loop is done with its last batch and requests the next. Returns the current
        time."""
        now = perf_counter()
        self._training_s += now - self._handed
        return now

    def hand_over(
        self,
        decoded: Any,
        asked: float,
        ready: float,
        place: tuple[int, int],
    ) -> None:
        """Records that a batch is returned to the training loop.

        Args:
            decoded: A `gpuload.decode.interface.Decoded`.
            asked: When the training loop asked for it, by `time.perf_counter`.
            ready: When it was decoded, by the same clock.
            place: The epoch, and the number of its samples returned.
        """
        batch = decoded.batch
        now = self._handed = perf_counter()
        waited = ready - asked
        for_read = min(decoded.read_wait_s, waited)
        more = {
            "steps": 1,
            "images": len(batch.sources),
            "bytes": batch.bytes,
            "wait_read_s": for_read,
            "wait_decode_s": waited - for_read,
            "hand_over_s": now - ready,
            "read_s": batch.read_s,
            "decode_s": decoded.work_s,
            "ready": decoded.queue_depth,
            "function_s": decoded.function_s,
            "download_s": batch.download_s,
        }
        sums = Sums({name: self._sums[name] + value for name, value in more.items()})
        sums.update(
            training_s=self._training_s,
            disk_s=self._disk_s(),
            bad_samples=self.bad_samples,
        )
        self._place = place
        self._sums = sums
        self._kept[sums["steps"] % _KEPT] = sums
        if sums["steps"] >= self._next_look:
            self._look(sums)

    def metrics(self, window: int | None = None) -> Metrics:
        """As `DaliIterator.metrics`."""
        now = self._sums
        if window is not None and window < now["steps"]:
            now = _since(now, self._kept[(now["steps"] - window) % _KEPT])
        return metrics_of(now, *self._place)

    def _look(self, now: Sums) -> None:
        """Warns the first time that training waits for too much of its time, but never in a short run."""
        self._next_look = now["steps"] + _STEPS
        measured = metrics_of(
            now if self._looked is None else _since(now, self._looked)
        )
        if measured.seconds < _SECONDS:
            return
        is_first = self._looked is None
        self._looked = now
        trains = measured.seconds - measured.wait_s >= _TRAINING_S * measured.steps
        if is_first or not trains or measured.wait_share < WAIT_SHARE:
            return
        self._next_look = math.inf
        # The warning points to the user's loop: it calls `Loop`, that two generators of the loader, those `Pipeline`,
        # that `hand_over`, and that this method.
        warnings.warn(
            f"DaliIterator({str(self._folder)!r}): training waited for {measured.wait_share:.0%} of its time in "
            f"the last {measured.steps:,} steps; the bottleneck is {measured.binds.replace('_', '-')}. "
            f"{advice(measured.binds)}. See loader.metrics()",
            stacklevel=7,
        )


def _since(now: Sums, then: Sums) -> Sums:
    return Sums({name: value - then[name] for name, value in now.items()})


_NO_RANGE: AbstractContextManager[Any] = nullcontext()


def annotate(name: str) -> AbstractContextManager[Any]:
    """A range in this thread, for the time within the context.

    It is an NVTX range in the domain "gpuload" if a tool such as `nsys profile` listens and the package nvtx is
    installed, and a record function if torch's profiler is active. torch's profiler sees only the thread that started
    it.
    """
    if (nvtx := _nvtx()) is not None:
        return nvtx.annotate(name, domain="gpuload")
    profiler = sys.modules.get("torch.autograd.profiler")
    if profiler is not None and getattr(profiler, "_is_profiler_enabled", False):
        return profiler.record_function(f"gpuload: {name}")
    return _NO_RANGE


@cache
def _nvtx() -> Any:
    """The package, whose import takes 0.1 s cold, if a tool listens to it; the tool sets an environment variable before
    the process starts."""
    if not os.environ.get("NVTX_INJECTION64_PATH"):
        return None
    try:
        import nvtx
    except ImportError:
        return None
    return nvtx


class Pace(NamedTuple):
    """A measurement.

    Attributes:
        first_s: Until the first batch.
        seconds: Of the batches measured.
        steps: Batches measured.
        images: Samples in them.
    """

    first_s: float
    seconds: float
    steps: int
    images: int

    @property
    def images_per_s(self) -> float:
        return self.images / self.seconds


def pace(batches: Iterator[Any], seconds: float, ahead: int = 0) -> Pace:
    """Takes batches for some time, at least one batch.

    Args:
        batches: An endless iterator of arrays whose first dimension is that of the samples.
        seconds: How long.
        ahead: Number of first batches that do not count, since the loader may already have decoded them.
    """
    begun = time.perf_counter()
    first_s = 0.0
    images: Any = ()
    for _ in range(ahead):
        images = next(batches)
        first_s = first_s or time.perf_counter() - begun
    _wait_for(images)
    started = time.perf_counter()
    steps = 0
    count = 0
    while not steps or time.perf_counter() - started < seconds:
        images = next(batches)
        steps += 1
        count += len(images)
    _wait_for(images)
    return Pace(first_s, time.perf_counter() - started, steps, count)


def forever(loader: Any) -> Iterator[Any]:
    """The first field of each batch, epoch after epoch."""
    while True:
        for batch in loader:
            yield batch[0]


def _wait_for(images: Any) -> None:
    """Waits until a GPU has computed them."""
    if hasattr(images, "cpu"):
        images[:1].cpu()
