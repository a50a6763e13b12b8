"""Measures a loader beside a training step, and how much of the device and the cores it leaves to it.

A loader competes with training: a GPU computes more slowly while it decodes. So `gpuload tune` finally measures a
loader and a step together: a small convolutional net trained on each batch.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gpuload.machine.limits import affinity
from gpuload.monitor.measure import pace

# Channels of the net: on a GPU about half of a ResNet-50's arithmetic for each image, on a CPU about a hundredth of it.
_WIDTHS = {"cuda": 256, "cpu": 32}
_CLASSES = 10


@dataclass
class Beside:
    """What was measured beside a training step.

    rates: images/s of each turn. step_s: seconds of a step, of each turn. cores: that the whole process kept busy.
    """

    rates: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    cores: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return median(self.rates)

    def device_left(self, resident: "Beside") -> float:
        """Share of the device that is left to the step: its time with a resident batch over its time now."""
        return min(1.0, median(resident.step_s) / median(self.step_s))

    @property
    def cores_left(self) -> float:
        return max(0.0, affinity() - median(self.cores))


class TrainingStep:
    """Forward, backward and update of a small net; mixed precision on a GPU. Loses no time by waiting for the GPU."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        width = _WIDTHS[self.device.type]
        self._net = nn.Sequential(
            nn.Conv2d(3, width, 7, 4, 3),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, 2, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
        ).to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._last = nn.Linear(2 * width, _CLASSES).to(self.device)
        self._optimizer = torch.optim.SGD([*self._net.parameters(), *self._last.parameters()], lr=1e-4)

    def __call__(self, images: torch.Tensor) -> None:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            values = self._net(images.to(self.device, torch.float32, memory_format=torch.channels_last))
            labels = torch.zeros(len(images), dtype=torch.int64, device=self.device)
            loss = F.cross_entropy(self._last(values.flatten(1)), labels)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class _Clock:
    """Seconds on the device between two points; where it is the CPU, of the clock."""

    def __init__(self, device: torch.device) -> None:
        self._is_gpu, self._pairs = device.type == "cuda", list[tuple[Any, Any]]()

    def time(self, work: Callable[[], None]) -> None:
        begin = self._now()
        work()
        self._pairs.append((begin, self._now()))

    def forget(self) -> None:
        self._pairs.clear()

    def median_s(self) -> float:
        """After everything has been waited for."""
        if self._is_gpu:
            return float(median(begin.elapsed_time(end) / 1000 for begin, end in self._pairs))
        return float(median(end - begin for begin, end in self._pairs))

    def _now(self) -> Any:
        if not self._is_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def measure_beside(
    found: Beside,
    batches: Iterator[torch.Tensor],
    step: TrainingStep,
    turn_s: float,
    ahead: int,
) -> None:
    """One turn: trains on batches for so long, and adds what it took to `found`.

    ahead: batches that the loader may have decoded before, which do not count.
    """
    clock = _Clock(step.device)

    def settle() -> None:
        step.wait()
        clock.forget()

    took = pace(batches, turn_s, ahead, lambda images: clock.time(lambda: step(images)), settle)
    step.wait()
    found.rates.append(took.images_per_s)
    found.step_s.append(clock.median_s())
    found.cores.append(took.cpu_s / took.seconds)
