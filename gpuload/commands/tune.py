"""`python -m gpuload tune DIR`: which settings load fastest here, measured on the user's own shards.

First come loaders alone. Candidates take turns, a few tenths of a second each, in rounds that are equally long; after
each the slower half drops out (successive halving: Jamieson and Talwalkar, AISTATS 2016), so that most of the time goes
to those that matter. Turns are interleaved and medians compared, so that other load on the machine affects all of them
alike. The defaults stay to the end, as the baseline for the best; in the last round both decoders at once join, with
shares that take them equally long.

Then the best of each decoder, and both at once, are measured beside a training step, since the fastest loader may be
the one that leaves least to the training.
"""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count, product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from gpuload.augment import Augment
from gpuload.checks import COUNT, POSITIVE, SIDE, number
from gpuload.commands import DONE
from gpuload.commands.options import given, place
from gpuload.commands.terminal import Output, say, say_table
from gpuload.counted import counted, progress_bar
from gpuload.decode.arguments import Both, Dali
from gpuload.decode.dali.memory import DALIS_LOAD
from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError, GpuloadError
from gpuload.loader.iterator import DaliIterator
from gpuload.loader.tuning import Tuning, describe_device, save_tuning
from gpuload.machine.ranks import count_threads, find_ranks
from gpuload.monitor import forever, pace

_CANDIDATES = 16
_LEFT, _FINALISTS = (9, 5), 3  # settings after each round, the defaults among them
_ALONE = 0.7  # of the time, for loaders alone; the rest is for those beside a training step
_SHOWN = 8  # settings in the table
_MARK = b'{\n "made_by": "gpuload tune"'

# Channels of the net: on a GPU about half of a ResNet-50's arithmetic for each image, on a CPU about a hundredth of it.
_WIDTHS = {"cuda": 256, "cpu": 32}


@dataclass
class Measured:
    """A setting and the images/s of each of its turns. failed: why it has no more turns."""

    setting: Tuning
    rates: list[float] = field(default_factory=list)
    failed: str | None = None

    @property
    def rate(self) -> float:
        return median(self.rates) if self.rates else 0.0

    def figures(self) -> dict[str, Any]:
        return {**asdict(self.setting), "images_per_s": self.rate, "turns": self.rates, "failed": self.failed}


def candidates(choices: dict[str, Sequence[Any]]) -> list[Tuning]:
    """The defaults first, then what differs from them in one setting, then combinations."""
    usual = [values[0] for values in choices.values()]

    def changes(values: Sequence[Any]) -> int:
        return sum(one != other for one, other in zip(values, usual, strict=True))

    def setting(values: Sequence[Any]) -> Tuning:
        made = Tuning(**dict(zip(choices, values, strict=True)))
        return replace(made, hw_decoder_load=None) if made.decoder == "native" else made  # which means nothing to it

    # Those of the other decoder come first: they are tried however little time there is.
    ordered = sorted(product(*choices.values()), key=lambda values: (changes(values), values[0] == usual[0]))
    return list(dict.fromkeys(map(setting, ordered)))[:_CANDIDATES]


def take_turns(found: Sequence[Measured], measure: Callable[[Tuning], float], until: float) -> None:
    """Measures each in turn, until a time of the clock, but each at least once altogether. A setting that raises
    GpuloadError or RuntimeError, such as for lack of memory, has failed."""

    def is_due(one: Measured) -> bool:
        return not one.failed and (not one.rates or time.monotonic() < until)

    for turn in count():
        if not any(map(is_due, found)):
            return
        first = turn % len(found)  # whoever follows the pause between two turns: not always the same
        for one in filter(is_due, (*found[first:], *found[:first])):
            try:
                one.rates.append(measure(one.setting))
            except (GpuloadError, RuntimeError) as error:
                one.failed = str(error).splitlines()[0]


def search(settings: Sequence[Tuning], measure: Callable[[Tuning, float], float], seconds: float) -> list[Measured]:
    """All settings for which there is time, and both decoders at once, the best first. The first of `settings` are the
    defaults. measure: a turn of so many seconds."""
    measure(settings[0], 0)  # warms the page cache, and the libraries
    started = time.monotonic()
    measure(settings[0], 0)
    fitting, begun = len(settings), time.monotonic()
    opening_s = begun - started  # what comes before measuring, which is to take no more than half of each turn
    while fitting > 2 and seconds < 2 * opening_s * fitting * len(_rounds_of(fitting)):
        fitting -= 1
    rounds = _rounds_of(fitting)
    round_s = seconds / len(rounds)
    turn_s = max(round_s / fitting - opening_s, min(opening_s, seconds))
    defaults, *others = map(Measured, settings[:fitting])
    rivals = others
    for round_, most in enumerate(rounds, start=1):
        rivals = _best_first(rivals)[: most - 1]
        if round_ == len(rounds):
            best = best_of([*_best_first([defaults, *rivals]), *_best_first(others)])
            if {"dali", "native"} <= set(best):
                rivals.append(Measured(_both(best["dali"], best["native"])))
        take_turns([defaults, *rivals], lambda setting: measure(setting, turn_s), begun + round_ * round_s)
    finalists = _best_first([defaults, *rivals])
    return finalists + _best_first(one for one in others if one not in finalists)


def _rounds_of(count: int) -> list[int]:
    """How many settings of so many are in each round."""
    return [count, *(left for left in _LEFT if left < count), min(count, _FINALISTS)]


def _both(dali: Measured, native: Measured) -> Tuning:
    """Both decoders at once, as each is set, with shares that take them equally long."""
    share = min(max(round(native.rate / (native.rate + dali.rate), 2), 0.01), 0.99)  # each decodes some
    return replace(dali.setting, decoder="both", num_threads=native.setting.num_threads, cpu_share=share)


def _best_first(found: Iterable[Measured]) -> list[Measured]:
    """Those that failed come last, however fast they were before."""
    return sorted(found, key=lambda one: (not one.failed, one.rate), reverse=True)


def best_of(found: Sequence[Measured]) -> dict[str, Measured]:
    """The best of each decoder, of settings of which the best are first."""
    best: dict[str, Measured] = {}
    for one in found:
        if one.rates and not one.failed:
            best.setdefault(one.setting.decoder, one)
    return best


def training_step(device: str) -> Callable[[torch.Tensor], None]:
    """Forward, backward and update of a small net; mixed precision on a GPU. Does not wait for the GPU."""
    kind, width = torch.device(device).type, _WIDTHS[torch.device(device).type]
    layers = nn.Conv2d(3, width, 7, 4, 3), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU()
    net = nn.Sequential(*layers).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(images: torch.Tensor) -> None:
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            loss = net(images.to(device, torch.float32, memory_format=torch.channels_last)).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


@dataclass(frozen=True)
class Tune:
    """Measures settings of DaliIterator on a packed folder and saves the best for later loaders. Then measures the best
    of each decoder during a training step, and recommends one."""

    epilog = "Exit codes: 0 measured; 2 nothing measured (reason on stderr); 130 stopped by Ctrl-C."

    folder: str = place("a packed folder, such as shards/train, or its URL", "DIR")
    device: str = given("auto", "auto, cpu, cuda or cuda:1 (%(default)s)")
    seconds: float = given(
        60.0, "approximate measuring time (%(default)g)", "S",
        rule=number(POSITIVE, 1e6, "seconds, above 0 and up to 1e6"),
    )  # fmt: skip
    size: int = given(224, "side of the crops (%(default)s)", "PIXELS", rule=SIDE)
    batch_size: int | None = given(None, "measure only this batch size (default: several)", "N", rule=COUNT, type=int)
    json: Path | None = given(None, "write all figures to FILE", "FILE", type=Path)

    def run(self) -> int:
        output = None if self.json is None else Output(self.json, "--json", _MARK)
        tuned, choices = self._open()
        gpu = None if tuned.device == "cpu" else int(tuned.device.partition(":")[2])
        name = describe_device(gpu, find_ranks(None, None))
        with progress_bar(f"measuring for {self.seconds:g} s", "turns"):
            settings = candidates(choices)
            found = search(settings, tuned.measure, _ALONE * self.seconds)
            defaults = next(one for one in found if one.setting == settings[0])
            if defaults.failed:
                raise GpuloadError(f"tune: the defaults fail: {defaults.failed}")
            tunings = [replace(one.setting, images_per_s=round(one.rate, 1)) for one in best_of(found).values()]
            saved = save_tuning(self.folder, name, tunings)
            beside = tuned._measure_beside_training(tunings, (1 - _ALONE) * self.seconds)
        _show(found[:_SHOWN], f"{counted(len(found), 'setting')} on {name}")
        say(f"fastest: {found[0].rate / defaults.rate:.2f} times the images/s of the defaults. Saved in {saved}")
        _show(beside, "beside a training step")
        if beside:
            say(f"best beside a training step: {advice(beside[0].setting, settings[0])}")
        if output is not None:
            figures: dict[str, Any] = {"made_by": "gpuload tune", "device": name, "saved": str(saved)}
            figures["settings"] = [one.figures() for one in found]
            figures["beside_training"] = [one.figures() for one in beside]
            output.write((json.dumps(figures, indent=1) + "\n").encode())
        return DONE

    def _open(self) -> tuple["Tune", dict[str, Sequence[Any]]]:
        """With the device that "auto" is; and the values that each setting may have there, the default first."""
        dataset = Dataset(self.folder)
        if not dataset.manifest.pixels.is_rgb:
            raise ArgumentError(
                f"{self.folder}: tune measures sets of RGB images, and these are of mode "
                f"{dataset.manifest.pixels.mode}. Tune a set of RGB images of the same size"
            )
        with DaliIterator(self.folder, 1, augment=Augment(8), device=self.device, fields=("image",)) as loader:
            device, decoder = loader.device, loader.decoder
        samples, threads, is_cpu = len(dataset), count_threads(find_ranks(None, None)), device == "cpu"
        usual = min(64 if is_cpu else 256, samples)
        sizes = (self.batch_size,) if self.batch_size else (usual,) if is_cpu else (usual, 64, 128, 256, 408)
        return replace(self, device=device), {
            "decoder": list(dict.fromkeys((decoder, "native", "dali"))),
            "num_threads": (threads, max(1, threads // 2), *([2 * threads] if is_cpu else [])),
            "prefetch": (2, 1, 4) if is_cpu else (2, 3),
            "batch_size": [size for size in dict.fromkeys(sizes) if size <= samples or size == self.batch_size],
            # The best depends on the number of engines, cores and bytes an image.
            "hw_decoder_load": (None,) if is_cpu else (DALIS_LOAD, 0.0, 0.12, 0.3, 0.45, 0.8, 1.0),
        }

    def _measure_beside_training(self, settings: Sequence[Tuning], seconds: float) -> list[Measured]:
        """Each loader beside a training step, in turn, the best first; loaders that fail are dropped."""
        step, found = training_step(self.device), list(map(Measured, settings))
        turn_s = seconds / (2 * len(settings))
        take_turns(found, lambda setting: self.measure(setting, turn_s, step), time.monotonic() + seconds)
        return _best_first(one for one in found if not one.failed)

    def measure(self, setting: Tuning, turn_s: float, use: Callable[[Any], None] = lambda images: None) -> float:
        """The images/s of one turn: random crops, normalised. Batches decoded ahead do not count. use: called with each
        batch."""
        decoder: Any = setting.decoder
        if setting.cpu_share is not None:
            decoder = Both(setting.cpu_share, setting.hw_decoder_load)
        elif setting.hw_decoder_load is not None:
            decoder = Dali(setting.hw_decoder_load)
        with DaliIterator(
            self.folder,
            setting.batch_size,
            augment=Augment(self.size, dtype="float32" if self.device == "cpu" else "float16"),
            device=self.device,
            decoder=decoder,
            fields=("image",),
            num_threads=setting.num_threads,
            prefetch=setting.prefetch,
        ) as loader:
            return pace(forever(loader), turn_s, setting.prefetch + 1, use).images_per_s


def _show(found: Sequence[Measured], title: str) -> None:
    """Prints these settings."""
    heads = ["decoder", "for the CPU", "engines' load", "threads", "prefetch", "batch", "images/s", "min–max", "turns"]
    rows = []
    for one in found:
        setting = one.setting
        shares = ("" if share is None else f"{share:g}" for share in (setting.cpu_share, setting.hw_decoder_load))
        figures = (f"{one.rate:,.0f}", f"{min(one.rates):,.0f}–{max(one.rates):,.0f}") if one.rates else ("failed", "")
        numbers = map(str, (setting.num_threads, setting.prefetch, setting.batch_size))
        rows.append([setting.decoder, *shares, *numbers, *figures, str(len(one.rates))])
    say_table(rows, heads, title)


def advice(best: Tuning, usual: Tuning) -> str:
    """The decoder to pass to DaliIterator, which otherwise uses the default."""
    if best.decoder == usual.decoder:
        return f"decoder={best.decoder!r}, which is the default here"
    decoder = repr(best.decoder) if best.cpu_share is None else f"gpuload.Both(cpu={best.cpu_share:g})"
    return f"pass decoder={decoder}; pixels differ by rounding from those of {usual.decoder!r}"
