"""`python -m gpuload tune DIR`: which settings load fastest here, measured on the user's own shards.

Candidates take turns, a few tenths of a second each; after each round the slower half drops out and the rest get twice
as many turns (successive halving: Jamieson and Talwalkar, AISTATS 2016), so that most of the time goes to those that
matter. Turns are interleaved and medians compared, so that whatever else the machine does falls on all of them. The
defaults stay to the end: what is said of the best is said against them.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, islice, product, repeat
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from gpuload.commands.console import open_console
from gpuload.errors import ArgumentError, GpuloadError, OutputError

# The command line loads this file for every command; what it needs to work is loaded when it does.
if TYPE_CHECKING:
    from rich.table import Table

    from gpuload.tuning import Tuning

# Of DALI 2.2 and later, where nothing is said. Said here, or an earlier tuning would pass for the default.
DALIS_LOAD = 0.65

_CANDIDATES, _FINALISTS, _SHOWN = 16, 2, 8


@dataclass(frozen=True)
class Setting:
    """Arguments of `DaliIterator`. hw_decoder_load: None on a CPU, where it means nothing."""

    decoder: str
    num_threads: int
    prefetch: int
    batch_size: int
    hw_decoder_load: float | None = None


@dataclass
class Measured:
    """A candidate and the images/s of each of its turns. failed: why it has no more turns."""

    setting: Setting
    rates: list[float] = field(default_factory=list)
    failed: str | None = None

    @property
    def rate(self) -> float:
        return median(self.rates) if self.rates else 0.0


def candidates(defaults: Setting, choices: dict[str, Sequence[Any]], most: int = _CANDIDATES) -> list[Setting]:
    """The defaults first, then what differs from them in one setting, then combinations, spread over all there are."""
    names = list(choices)
    whole = [Setting(**dict(zip(names, values, strict=True))) for values in product(*choices.values())]

    def changes(setting: Setting) -> int:
        return sum(getattr(setting, name) != getattr(defaults, name) for name in names)

    single = [setting for setting in whole if changes(setting) == 1]
    others = [setting for setting in whole if changes(setting) > 1]
    free = max(0, most - 1 - len(single))
    step = max(1, len(others) / free) if free else 1.0
    spread = [others[int(number * step)] for number in range(min(free, len(others)))]
    return [defaults, *single, *spread][:most]


def sweep(
    settings: Sequence[Setting],
    measure: Callable[[Setting], float],
    is_over: Callable[[], bool],
    measured: Callable[[list[Measured]], None] = lambda everyone: None,
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
        if len(contenders) <= _FINALISTS or is_over():
            break
        contenders, turns = contenders[: (len(contenders) + 1) // 2], 2 * turns
    finalists = sorted([defaults, *contenders], key=lambda one: one.rate, reverse=True)
    dropped = [one for one in everyone if one not in finalists]
    return finalists + sorted(dropped, key=lambda one: (len(one.rates), one.rate), reverse=True)


def count_turns(settings: int) -> int:
    """Turns of a whole sweep of so many."""
    contenders, each = settings - 1, 1
    turns = settings
    while contenders > _FINALISTS:
        contenders, each = (contenders + 1) // 2, 2 * each
        turns += (contenders + 1) * each
    return turns


def plan(settings: Sequence[Setting], seconds: float, opening_s: float) -> tuple[list[Setting], float]:
    """As many of the candidates as there is time for, and the seconds to measure in each turn.

    opening_s: of each turn, what goes before measuring, which is to take no more than half of it.
    """
    count = len(settings)
    while count > 2 and seconds / count_turns(count) < 2 * opening_s:
        count -= 1
    return list(settings[:count]), max(seconds / count_turns(count) - opening_s, opening_s)


def measure_setting(folder: str | Path, setting: Setting, device: str, size: int, turn_s: float) -> float:
    """images/s of one turn: random crops, normalised, as float16 on a GPU and float32 on a CPU."""
    from gpuload.augment import Augment
    from gpuload.iterator import DaliIterator

    options: dict[str, Any] = {} if setting.hw_decoder_load is None else {"hw_decoder_load": setting.hw_decoder_load}
    with DaliIterator(
        folder,
        setting.batch_size,
        augment=Augment(size, dtype="float32" if device == "cpu" else "float16"),
        device=device,
        decoder=setting.decoder,  # type: ignore[arg-type]
        fields=("image",),
        num_threads=setting.num_threads,
        prefetch=setting.prefetch,
        **options,
    ) as loader:
        batches = chain.from_iterable(repeat(loader))
        for (images,) in islice(batches, setting.prefetch + 1):  # what was decoded ahead does not count
            images[:1].cpu()
        started, seen = time.perf_counter(), 0
        while seen == 0 or time.perf_counter() - started < turn_s:
            (images,) = next(batches)
            seen += len(images)
        images[:1].cpu()  # waits for a GPU
        return seen / (time.perf_counter() - started)


def choose(folder: str | Path, device: str, batch_size: int | None) -> tuple[str, Setting, dict[str, Sequence[Any]]]:
    """The device, the defaults on it, and the values that each setting may have, the default's among them."""
    from gpuload.augment import Augment
    from gpuload.disk.dataset import Dataset
    from gpuload.iterator import DaliIterator
    from gpuload.ranks import count_threads, find_ranks

    samples = len(Dataset(folder))
    with DaliIterator(folder, 1, augment=Augment(8), device=device, fields=("image",)) as loader:
        device, decoder = loader.device, loader.decoder
    threads = count_threads(find_ranks(None, None))
    choices: dict[str, Sequence[Any]]
    if device == "cpu":
        usual = Setting(decoder, threads, 2, batch_size or min(64, samples))
        choices = {
            "decoder": ("native", "dali"),
            "num_threads": (threads, max(1, threads // 2), 2 * threads),
            "prefetch": (2, 1, 4),
            "batch_size": (usual.batch_size,),
        }
        return device, usual, choices
    usual = Setting(decoder, threads, 2, batch_size or min(256, samples), DALIS_LOAD)
    sizes = () if batch_size else (64, 128, 256, 408)
    choices = {
        "decoder": (decoder,),
        "num_threads": (threads, max(1, threads // 2)),
        "prefetch": (2, 3),
        "batch_size": [usual.batch_size, *(size for size in sizes if size <= samples and size != usual.batch_size)],
        # The best depends on the number of engines, cores and bytes an image.
        "hw_decoder_load": (DALIS_LOAD, 0.0, 0.12, 0.3, 0.45, 0.8, 1.0),
    }
    return device, usual, choices


def _rotated(candidates: list[Measured], turn: int) -> list[Measured]:
    """Whoever is first follows the pause between two rounds: not always the same."""
    first = turn % len(candidates)
    return candidates[first:] + candidates[:first]


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command to the command line."""
    tune = commands.add_parser(
        "tune",
        help="find the fastest settings for a packed folder on this machine",
        description="Measures settings of DaliIterator on a packed folder and saves the best, where it finds them.",
        epilog="Exit codes: 0 saved; 2 nothing measured, the reason is on stderr; 130 stopped by Ctrl-C.",
    )
    tune.set_defaults(run=_tune)
    tune.add_argument("folder", metavar="DIR", help="a packed folder, such as shards/train, or its URL")
    tune.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1 (%(default)s)")
    tune.add_argument("--seconds", type=float, default=60, metavar="S", help="about how long to measure (%(default)s)")
    tune.add_argument("--size", type=int, default=224, metavar="PIXELS", help="side of the crops (%(default)s)")
    tune.add_argument("--batch-size", type=int, metavar="N", help="of this one alone (default: several)")
    tune.add_argument("--json", type=Path, metavar="FILE", help="write all figures to it, after each turn")


def _tune(args: argparse.Namespace) -> int:
    import json
    import sys
    from contextlib import nullcontext

    from rich.console import Console

    from gpuload.checks import COUNT, POSITIVE, SIDE, check_option, number, optional
    from gpuload.ranks import find_ranks
    from gpuload.tuning import describe_device, save_tuning

    check_option("--seconds", args.seconds, number(POSITIVE, 1e6, "seconds, above 0 and up to 1e6"))
    check_option("--size", args.size, SIDE)
    check_option("--batch-size", args.batch_size, optional(COUNT))
    if args.json is not None and (args.json.is_dir() or not args.json.parent.is_dir()):
        raise ArgumentError(f"--json {args.json}: expected a file in a folder that exists")
    device, usual, choices = choose(args.folder, args.device, args.batch_size)
    name = describe_device(None if device == "cpu" else int(device.partition(":")[2]), find_ranks(None, None))

    def write(found: Sequence[Measured], saved: str | None = None) -> None:
        """What was measured so far; `saved` is null until the best settings are."""
        if args.json:
            rows = [
                {**asdict(one.setting), "images_per_s": one.rate, "turns": one.rates, "failed": one.failed}
                for one in found
            ]
            temporary = args.json.with_name(f".{args.json.name}.tmp")  # never half a file, whenever it is stopped
            try:
                temporary.write_text(json.dumps({"device": name, "saved": saved, "settings": rows}, indent=1) + "\n")
                temporary.replace(args.json)
            except OSError as error:
                raise OutputError(f"--json {args.json}: cannot be written ({error.strerror})") from None

    console, errors = open_console(), Console(stderr=True)
    with errors.status(f"measuring for {args.seconds:g} s") if sys.stderr.isatty() else nullcontext():
        measure_setting(args.folder, usual, device, args.size, 0)  # warms the page cache, and the libraries
        started = time.monotonic()
        measure_setting(args.folder, usual, device, args.size, 0)
        settings, turn_s = plan(candidates(usual, choices), args.seconds, time.monotonic() - started)
        deadline = time.monotonic() + args.seconds
        found = sweep(
            settings,
            lambda setting: measure_setting(args.folder, setting, device, args.size, turn_s),
            lambda: time.monotonic() > deadline,
            write,
        )
    saved = save_tuning(args.folder, name, best_of_each(found))
    console.print(make_table(found, f"{len(found)} settings on {name}"))
    gain = found[0].rate / next(one.rate for one in found if one.setting == usual)
    console.print(f"best: {gain:.2f} times the images/s of the defaults. Saved in {saved}", soft_wrap=True)
    write(found, str(saved))
    return 0


def best_of_each(found: Sequence[Measured]) -> list["Tuning"]:
    """The best setting of each decoder, of candidates of which the best are first."""
    from gpuload.tuning import Tuning

    best: dict[str, Measured] = {}
    for one in found:
        if one.rates:
            best.setdefault(one.setting.decoder, one)
    return [Tuning(**asdict(one.setting), images_per_s=round(one.rate, 1)) for one in best.values()]


def make_table(found: Sequence[Measured], title: str) -> "Table":
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None)
    for head in ("decoder", "threads", "prefetch", "batch", "engines' load", "images/s", "min–max", "turns"):
        table.add_column(head, justify="left" if head == "decoder" else "right")
    for one in found[:_SHOWN]:
        setting = one.setting
        load = "" if setting.hw_decoder_load is None else f"{setting.hw_decoder_load:g}"
        figures = (f"{one.rate:,.0f}", f"{min(one.rates):,.0f}–{max(one.rates):,.0f}") if one.rates else ("failed", "")
        numbers = (setting.num_threads, setting.prefetch, setting.batch_size)
        table.add_row(setting.decoder, *map(str, numbers), load, *figures, str(len(one.rates)))
    return table
