"""Settings that a loader may have, and the search for the fastest of them.

Candidates take turns, a few tenths of a second each; after each round the slower half drops out and the rest get twice
as many turns (successive halving: Jamieson and Talwalkar, AISTATS 2016), so that most of the time goes to those that
matter. Turns are interleaved and medians compared, so that other load on the machine affects all of them alike. The
defaults stay to the end, as the baseline for the best.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gpuload.augment import Augment
from gpuload.decode.arguments import Both, Dali
from gpuload.errors import GpuloadError
from gpuload.loader.iterator import DaliIterator
from gpuload.loader.tuning import Tuning
from gpuload.machine.limits import affinity
from gpuload.monitor.measure import pace

_CANDIDATES = 16
FINALISTS = 2  # beside the defaults

# Channels of the net: on a GPU about half of a ResNet-50's arithmetic for each image, on a CPU about a hundredth of it.
_WIDTHS = {"cuda": 256, "cpu": 32}
_CLASSES = 10


@dataclass
class Measured:
    """A candidate and the images/s of each of its turns. failed: why it has no more turns."""

    setting: Tuning
    rates: list[float] = field(default_factory=list)
    failed: str | None = None

    @property
    def rate(self) -> float:
        return median(self.rates) if self.rates else 0.0


def candidates(defaults: Tuning, choices: dict[str, Sequence[Any]], most: int = _CANDIDATES) -> list[Tuning]:
    """The defaults first, then what differs from them in one setting, then combinations, spread over all there are."""
    names = list(choices)
    whole = [replace(defaults, **dict(zip(names, values, strict=True))) for values in product(*choices.values())]

    def changes(setting: Tuning) -> int:
        return sum(getattr(setting, name) != getattr(defaults, name) for name in names)

    single = _distinct(setting for setting in whole if changes(setting) == 1)
    # Those of the other decoder come first: they are tried however little time there is.
    single.sort(key=lambda one: one.decoder == defaults.decoder)
    others = [one for one in _distinct(setting for setting in whole if changes(setting) > 1) if one not in single]
    free = max(0, most - 1 - len(single))
    step = max(1, len(others) / free) if free else 1.0
    spread = [others[int(number * step)] for number in range(min(free, len(others)))]
    return [defaults, *single, *spread][:most]


def _distinct(settings: Iterable[Tuning]) -> list[Tuning]:
    """Without what means nothing to the decoder, and each once."""
    return list(
        dict.fromkeys(replace(one, hw_decoder_load=None) if one.decoder == "native" else one for one in settings)
    )


def both_of(found: Sequence[Measured]) -> Tuning | None:
    """Both decoders at once, as the best of each was set, with shares that take them equally long."""
    best = best_of(found)
    if not {"dali", "native"} <= set(best):
        return None
    dali, native = best["dali"], best["native"]
    share = min(max(round(native.rate / (native.rate + dali.rate), 2), 0.01), 0.99)  # each decodes some
    return replace(dali.setting, decoder="both", num_threads=native.setting.num_threads, cpu_share=share)


def best_of(found: Sequence[Measured]) -> dict[str, Measured]:
    """The best of each decoder, of candidates of which the best are first."""
    best: dict[str, Measured] = {}
    for one in found:
        if one.rates:
            best.setdefault(one.setting.decoder, one)
    return best


def sweep(
    settings: Sequence[Tuning],
    measure: Callable[[Tuning], float],
    is_over: Callable[[], bool],
    measured: Callable[[Sequence[Measured]], None] = lambda everyone: None,
) -> list[Measured]:
    """All candidates, the best first; the first of `settings`, the defaults, never drops out.

    measure: images/s of a setting in one turn. A setting that raises GpuloadError or RuntimeError (out of memory, for
    instance) drops out; the defaults must work. is_over: no more turns, once each has had one. measured: called with
    all candidates after each turn.
    """
    everyone = [Measured(setting) for setting in settings]
    defaults, contenders, turns = everyone[0], everyone[1:], 1
    while True:
        for turn in range(turns):
            for one in _rotated([defaults, *contenders], turn):
                if one.failed or (one.rates and is_over()):
                    continue
                try:
                    one.rates.append(measure(one.setting))
                except (GpuloadError, RuntimeError) as error:
                    if one is defaults:
                        raise
                    one.failed = str(error).splitlines()[0]
                measured(everyone)
        contenders = sorted((one for one in contenders if not one.failed), key=lambda one: one.rate, reverse=True)
        if len(contenders) <= FINALISTS or is_over():
            break
        contenders, turns = contenders[: (len(contenders) + 1) // 2], 2 * turns
    finalists = sorted([defaults, *contenders], key=lambda one: one.rate, reverse=True)
    dropped = [one for one in everyone if one not in finalists]
    return finalists + sorted(dropped, key=lambda one: (len(one.rates), one.rate), reverse=True)


def count_turns(settings: int) -> int:
    """Turns of a whole sweep of so many."""
    contenders, each = settings - 1, 1
    turns = settings
    while contenders > FINALISTS:
        contenders, each = (contenders + 1) // 2, 2 * each
        turns += (contenders + 1) * each
    return turns


def plan(settings: Sequence[Tuning], seconds: float, opening_s: float) -> tuple[list[Tuning], float]:
    """As many of the candidates as there is time for, and the seconds to measure in each turn.

    opening_s: of each turn, what goes before measuring, which is to take no more than half of it.
    """
    count = len(settings)
    while count > 2 and seconds / count_turns(count) < 2 * opening_s:
        count -= 1
    return list(settings[:count]), max(seconds / count_turns(count) - opening_s, opening_s)


def _rotated(candidates: list[Measured], turn: int) -> list[Measured]:
    """Whoever is first follows the pause between two rounds: not always the same."""
    first = turn % len(candidates)
    return candidates[first:] + candidates[:first]


@dataclass(frozen=True)
class TunedLoader:
    """A loader but for the settings that are tried: random crops, normalised, float16 on a GPU and float32 on a CPU.

    device: as `DaliIterator` takes it. size: side of the crops in pixels.
    """

    folder: str | Path
    device: str
    size: int

    def open(self, setting: Tuning) -> DaliIterator:
        """The loader with these settings; the first field of its batches is the image."""
        decoder: Any = setting.decoder
        if setting.cpu_share is not None:
            decoder = Both(setting.cpu_share, setting.hw_decoder_load)
        elif setting.hw_decoder_load is not None:
            decoder = Dali(setting.hw_decoder_load)
        return DaliIterator(
            self.folder,
            setting.batch_size,
            augment=Augment(self.size, dtype="float32" if self.device == "cpu" else "float16"),
            device=self.device,
            decoder=decoder,
            fields=("image",),
            num_threads=setting.num_threads,
            prefetch=setting.prefetch,
        )


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
