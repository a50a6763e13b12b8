"""Measures how fast batches come: one loop for all measurements of a loader.

tools/benchmark has its own loop, since it measures peers in environments without gpuload.
"""

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from gpuload.machine.limits import count_cores
from gpuload.monitor.metrics import MOST_STEPS, Metrics, Setup, advice


class Pace(NamedTuple):
    """A measurement, in seconds of wall time and of processor time (cpu_s).

    first_s: until the first batch. steps, images: the batches measured, and their samples.
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
    """Takes batches for this many seconds, at least one.

    batches: an endless iterator of arrays whose first dimension is that of the samples. ahead: number of first batches
    that do not count, since the loader may already have decoded them. use: called with each batch. settled: called
    after the batches ahead, before the clock starts; it may wait for the device.
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
    """The speed of a loader. metrics: of the last measured batches, 1,000 at most. advice: on the limiting stage."""

    pace: Pace
    metrics: Metrics
    advice: str


def measure_loader(loader: Any, seconds: float, ahead: int, settled: Callable[[], None] = lambda: None) -> Speed:
    """Measures a loader in a training loop that takes no time itself; arguments as for `pace`."""
    measured = pace(forever(loader), seconds, ahead, settled=settled)
    metrics: Metrics = loader.metrics(min(MOST_STEPS, measured.steps))
    folder, cores = loader.dataset.folder, count_cores()
    setup = Setup(folder, loader.decoder, loader.device, loader.num_threads, cores, loader.batch_size)
    return Speed(measured, metrics, advice(metrics.binds, setup))


def forever(loader: Any) -> Iterator[Any]:
    """The first field of each batch, epoch after epoch."""
    while True:
        for batch in loader:
            yield batch[0]


def _wait_for(images: Any) -> None:
    """Waits until a GPU has computed them."""
    if hasattr(images, "cpu"):
        images[:1].cpu()
