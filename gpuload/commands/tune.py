"""`python -m gpuload tune DIR`: which settings load fastest here, measured on the user's own shards.

The fastest settings of loaders alone are searched for first (`settings.py`). Then the best of each decoder, and both
decoders at once with shares that would take them equally long, are measured beside a training step, since
the fastest loader may be the one that leaves least to the training.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpuload.augment import Augment
from gpuload.checks import COUNT, POSITIVE, SIDE, number
from gpuload.commands import DONE
from gpuload.commands.options import given, place
from gpuload.commands.settings import (
    FINALISTS,
    Beside,
    Measured,
    TrainingStep,
    TunedLoader,
    best_of,
    both_of,
    candidates,
    measure_beside,
    plan,
    sweep,
)
from gpuload.commands.terminal import Output, say, say_table, status
from gpuload.counted import counted
from gpuload.decode.dali.memory import DALIS_LOAD
from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError, GpuloadError
from gpuload.loader.iterator import DaliIterator
from gpuload.loader.tuning import Tuning, describe_device, save_tuning
from gpuload.machine.ranks import count_threads, find_ranks
from gpuload.monitor.measure import forever, pace

_ALONE = 0.7  # of the time, for loaders alone; the rest is for those beside a training step
_ROUNDS = 2  # beside a training step
_SHOWN = 8  # settings in the table
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def measure_setting(tuned: TunedLoader, setting: Tuning, turn_s: float) -> float:
    """images/s of one turn. Batches decoded ahead do not count."""
    with tuned.open(setting) as loader:
        return pace(forever(loader), turn_s, setting.prefetch + 1).images_per_s


def measure_beside_training(
    tuned: TunedLoader, settings: Sequence[Tuning], seconds: float
) -> tuple[Beside, dict[Tuning, Beside]]:
    """Measures a training step with a resident batch and with each loader in turn; loaders that fail are dropped."""
    step, resident, found = TrainingStep(tuned.device), Beside(), {setting: Beside() for setting in settings}
    turn_s = seconds / (_ROUNDS * (1 + len(settings)))
    kept: Any = None
    for _ in range(_ROUNDS):
        for setting in list(found):
            try:
                with tuned.open(setting) as loader:
                    batches = forever(loader)
                    kept = next(batches)
                    measure_beside(found[setting], batches, step, turn_s, setting.prefetch + 1)
            except (GpuloadError, RuntimeError):
                del found[setting]
        measure_beside(resident, repeat(kept), step, turn_s, 1)
    return resident, found


def choose(tuned: TunedLoader, batch_size: int | None) -> tuple[TunedLoader, Tuning, dict[str, Sequence[Any]]]:
    """The loader on its device, the defaults there, and the values that each setting may have, the default's among
    them."""

    dataset = Dataset(tuned.folder)
    samples = len(dataset)
    if not dataset.manifest.pixels.is_rgb:
        raise ArgumentError(
            f"{tuned.folder}: tune measures sets of RGB images, and these are of mode {dataset.manifest.pixels.mode}. "
            "Tune a set of RGB images of the same size"
        )
    with DaliIterator(tuned.folder, 1, augment=Augment(8), device=tuned.device, fields=("image",)) as loader:
        device, decoder = loader.device, loader.decoder
    tuned, threads = replace(tuned, device=device), count_threads(find_ranks(None, None))
    choices: dict[str, Sequence[Any]]
    if device == "cpu":
        usual = Tuning(decoder, threads, 2, None, batch_size or min(64, samples))
        choices = {
            "decoder": ("native", "dali"),
            "num_threads": (threads, max(1, threads // 2), 2 * threads),
            "prefetch": (2, 1, 4),
            "batch_size": (usual.batch_size,),
        }
        return tuned, usual, choices
    usual = Tuning(decoder, threads, 2, DALIS_LOAD, batch_size or min(256, samples))
    sizes = () if batch_size else (64, 128, 256, 408)
    choices = {
        "decoder": (decoder, "native"),
        "num_threads": (threads, max(1, threads // 2)),
        "prefetch": (2, 3),
        "batch_size": [usual.batch_size, *(size for size in sizes if size <= samples and size != usual.batch_size)],
        # The best depends on the number of engines, cores and bytes an image.
        "hw_decoder_load": (DALIS_LOAD, 0.0, 0.12, 0.3, 0.45, 0.8, 1.0),
    }
    return tuned, usual, choices


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
    batch_size: int | None = given(None, "measure only this batch size (default: several)", "N", rule=COUNT, kind=int)
    json: Path | None = given(None, "write all figures to FILE after each turn", "FILE", kind=Path)

    def run(self) -> int:
        figures = None if self.json is None else Output(self.json, "--json", _MARK)
        tuned, usual, choices = choose(TunedLoader(self.folder, self.device, self.size), self.batch_size)
        name = describe_device(
            None if tuned.device == "cpu" else int(tuned.device.partition(":")[2]), find_ranks(None, None)
        )
        write = partial(_write, figures, name)
        with status(f"measuring for {self.seconds:g} s"):
            found, resident, beside = _measure_all(tuned, self.seconds, usual, choices, write)
        _show_settings(found, f"{counted(len(found), 'setting')} on {name}")
        gain = found[0].rate / next(one.rate for one in found if one.setting == usual)
        tunings = [replace(one.setting, images_per_s=round(one.rate, 1)) for one in best_of(found).values()]
        saved = str(save_tuning(self.folder, name, tunings))
        say(f"fastest: {gain:.2f} times the images/s of the defaults. Saved in {saved}")
        _show_beside(resident, beside)
        best = max(beside, key=lambda setting: beside[setting].rate)
        say(f"best beside a training step: {advice(best, usual)}")
        write(found, saved, _beside_figures(resident, beside))
        return DONE


_MARK = b'{\n "made_by": "gpuload tune"'


def _write(
    output: Output | None,
    device: str,
    found: Sequence[Measured],
    saved: str | None = None,
    beside: Mapping[str, Any] = _NOTHING,
) -> None:
    """Writes the measurements so far; `saved` is null until the best settings are saved."""

    if output is None:
        return
    rows = [
        {**asdict(one.setting), "images_per_s": one.rate, "turns": one.rates, "failed": one.failed} for one in found
    ]
    figures = {"made_by": "gpuload tune", "device": device, "saved": saved, "settings": rows}
    output.write((json.dumps({**figures, **beside}, indent=1) + "\n").encode())


def _measure_all(
    tuned: TunedLoader,
    seconds: float,
    usual: Tuning,
    choices: dict[str, Sequence[Any]],
    measured: Callable[[Sequence[Measured]], None],
) -> tuple[list[Measured], Beside, dict[Tuning, Beside]]:
    """Loaders alone, the best first; then a resident batch and the best of each decoder beside a training step.

    measured: called with all candidates after each turn of loaders alone.
    """

    def measure(setting: Tuning) -> float:
        return measure_setting(tuned, setting, turn_s)

    turn_s = 0.0
    measure(usual)  # warms the page cache, and the libraries
    started = time.monotonic()
    measure(usual)
    alone_s = _ALONE * seconds
    settings, turn_s = plan(candidates(usual, choices), alone_s, time.monotonic() - started)
    deadline = time.monotonic() + alone_s
    found = sweep(settings, measure, lambda: time.monotonic() > deadline, measured)
    if (both := both_of(found)) is not None:
        one = Measured(both)
        try:
            one.rates += [measure(both) for _ in range(_ROUNDS)]
        except (GpuloadError, RuntimeError) as error:
            one.failed = str(error).splitlines()[0]
        finalists = FINALISTS + 1
        found = [*sorted([one, *found[:finalists]], key=lambda one: one.rate, reverse=True), *found[finalists:]]
        measured(found)
    contenders = [one.setting for one in best_of(found).values()]
    return found, *measure_beside_training(tuned, contenders, seconds - alone_s)


def _beside_figures(resident: Beside, beside: Mapping[Tuning, Beside]) -> dict[str, Any]:
    trained = [
        {
            **asdict(setting),
            "images_per_s": one.rate,
            "device_left": one.device_left(resident),
            "cores_left": one.cores_left,
            "turns": one.rates,
        }
        for setting, one in beside.items()
    ]
    return {"resident_images_per_s": resident.rate, "beside_training": trained}


def _show_settings(found: Sequence[Measured], title: str) -> None:
    """Prints the fastest."""
    rows = []
    for one in found[:_SHOWN]:
        setting = one.setting
        load = "" if setting.hw_decoder_load is None else f"{setting.hw_decoder_load:g}"
        figures = (f"{one.rate:,.0f}", f"{min(one.rates):,.0f}–{max(one.rates):,.0f}") if one.rates else ("failed", "")
        numbers = (setting.num_threads, setting.prefetch, setting.batch_size)
        rows.append((setting.decoder, *map(str, numbers), load, *figures, str(len(one.rates))))
    say_table(rows, ("decoder", "threads", "prefetch", "batch", "engines' load", "images/s", "min–max", "turns"), title)


def _show_beside(resident: Beside, found: Mapping[Tuning, Beside]) -> None:
    """Prints what remains for a training step."""
    heads = ["decoder", "for the CPU", "images/s", "of resident", "device left", "cores left"]
    rows = []
    for setting, one in sorted(found.items(), key=lambda pair: pair[1].rate, reverse=True):
        share = "" if setting.cpu_share is None else f"{setting.cpu_share:.0%}"
        left = (f"{one.rate / resident.rate:.0%}", f"{one.device_left(resident):.0%}", f"{one.cores_left:.1f}")
        rows.append((setting.decoder, share, f"{one.rate:,.0f}", *left))
    say_table(rows, heads, f"beside a training step ({resident.rate:,.0f} images/s with one resident batch)")


def advice(best: Tuning, usual: Tuning) -> str:
    """The decoder to pass to DaliIterator, which otherwise uses the default."""
    if best.decoder == usual.decoder:
        return f"decoder={best.decoder!r}, which is the default here"
    decoder = repr(best.decoder) if best.cpu_share is None else f"gpuload.Both(cpu={best.cpu_share:g})"
    return f"pass decoder={decoder}; pixels differ by rounding from those of {usual.decoder!r}"
