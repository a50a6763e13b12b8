"""How fast batches come: one loop for everything that measures a loader.

tools/benchmark has a loop of its own, since peers are measured in environments without gpuload.
"""

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from gpuload.machine.limits import count_cores
from gpuload.monitor.binding import Setup, advice
from gpuload.monitor.metrics import MOST_STEPS, Metrics


class Pace(NamedTuple):
    """What a measurement took, in seconds of the clock, and of this process's processors (cpu_s).

    first_s: until the first batch had come. steps, images: batches that were measured, and samples in them.
    """

    first_s: float
    seconds: float
    cpu_s: float
    steps: int
    images: int

    @property
    def images_per_s(self) -> float:
        return self.images / self.seconds


def pace(
    batches: Iterator[Any],
    seconds: float,
    ahead: int = 0,
    use: Callable[[Any], None] = lambda images: None,
    settled: Callable[[], None] = lambda: None,
) -> Pace:
    """Takes batches for so many seconds, and at least one.

    batches: arrays whose first dimension is that of the samples; they must not end. ahead: batches that come before,
    which do not count: the loader may have decoded them already. use: what is done with each. settled: called once
    these have come, before the clock starts; it may wait for the device.
    """
    begun, first_s = time.perf_counter(), 0.0
    images: Any = ()
    for images in islice(batches, ahead):
        first_s = first_s or time.perf_counter() - begun
        use(images)
    _wait_for(images)
    settled()
    started, cpu, steps, count = time.perf_counter(), time.process_time(), 0, 0
    while not steps or time.perf_counter() - started < seconds:
        images = next(batches)
        steps, count = steps + 1, count + len(images)
        use(images)
    _wait_for(images)
    return Pace(first_s, time.perf_counter() - started, time.process_time() - cpu, steps, count)


class Speed(NamedTuple):
    """How fast a loader is. metrics: of the last of the batches that were measured, 1,000 at most. advice: what to
    change."""

    pace: Pace
    metrics: Metrics
    advice: str


def measure_loader(loader: Any, seconds: float, ahead: int, settled: Callable[[], None] = lambda: None) -> Speed:
    """As a training loop that takes no time itself; arguments as for `pace`."""
    found = pace(forever(loader), seconds, ahead, settled=settled)
    metrics: Metrics = loader.metrics(min(MOST_STEPS, found.steps))
    folder, cores = loader.dataset.folder, count_cores()
    setup = Setup(folder, loader.decoder, loader.device, loader.num_threads, cores, loader.batch_size)
    return Speed(found, metrics, advice(metrics.binds, setup))


def forever(loader: Any) -> Iterator[Any]:
    """The first field of its batches, epoch after epoch."""
    while True:
        for batch in loader:
            yield batch[0]


def _wait_for(images: Any) -> None:
    """Until a GPU has made them."""
    if hasattr(images, "cpu"):
        images[:1].cpu()
