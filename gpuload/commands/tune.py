"""`python -m gpuload tune DIR`: which settings load fastest here, measured on the user's own shards.

The fastest settings of loaders alone are searched for first (`candidates.py`). Then the best of each decoder, and both
decoders at once with shares that would take them equally long, are measured beside a training step (`beside.py`), since
the fastest loader may be the one that leaves least to the training.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, islice, repeat
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpuload.commands.candidates import FINALISTS, Measured, Setting, best_of, both_of, candidates, plan, sweep
from gpuload.commands.console import open_console
from gpuload.counted import counted
from gpuload.decode.dali.memory import DALIS_LOAD
from gpuload.errors import ArgumentError, GpuloadError, OutputError

# The command line loads this file for every command; what it needs to work is loaded when it does.
if TYPE_CHECKING:
    from rich.table import Table

    from gpuload.commands.beside import Beside
    from gpuload.iterator import DaliIterator
    from gpuload.tuning import Tuning

_SHOWN = 8  # settings in the table
_ALONE = 0.7  # of the time, for loaders alone; the rest is for those beside a training step
_ROUNDS = 2  # beside a training step
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def measure_setting(folder: str | Path, setting: Setting, device: str, size: int, turn_s: float) -> float:
    """images/s of one turn: random crops, normalised, as float16 on a GPU and float32 on a CPU."""
    with _open(folder, setting, device, size) as loader:
        batches = chain.from_iterable(repeat(loader))
        for (images,) in islice(batches, setting.prefetch + 1):  # what was decoded ahead does not count
            images[:1].cpu()
        started, seen = time.perf_counter(), 0
        while seen == 0 or time.perf_counter() - started < turn_s:
            (images,) = next(batches)
            seen += len(images)
        images[:1].cpu()  # waits for a GPU
        return seen / (time.perf_counter() - started)


def measure_beside_training(
    folder: str | Path, settings: Sequence[Setting], device: str, size: int, seconds: float
) -> tuple["Beside", dict[Setting, "Beside"]]:
    """A training step with a resident batch, and with each loader, in turn; those that fail are left out."""
    from gpuload.commands.beside import Beside, TrainingStep, measure_beside

    step, resident, found = TrainingStep(device), Beside(), {setting: Beside() for setting in settings}
    turn_s = seconds / (_ROUNDS * (1 + len(settings)))
    kept: Any = None
    for _ in range(_ROUNDS):
        for setting in list(found):
            try:
                with _open(folder, setting, device, size) as loader:
                    batches = (images for _ in repeat(None) for (images,) in loader)
                    kept = next(batches)
                    measure_beside(found[setting], batches, step, turn_s, setting.prefetch + 1)
            except (GpuloadError, RuntimeError):
                del found[setting]
        measure_beside(resident, repeat(kept), step, turn_s, 1)
    return resident, found


def _open(folder: str | Path, setting: Setting, device: str, size: int) -> "DaliIterator":
    from gpuload.augment import Augment
    from gpuload.iterator import DaliIterator

    shares: dict[str, Any] = {"hw_decoder_load": setting.hw_decoder_load, "cpu_share": setting.cpu_share}
    return DaliIterator(
        folder,
        setting.batch_size,
        augment=Augment(size, dtype="float32" if device == "cpu" else "float16"),
        device=device,
        decoder=setting.decoder,  # type: ignore[arg-type]
        fields=("image",),
        num_threads=setting.num_threads,
        prefetch=setting.prefetch,
        **{name: share for name, share in shares.items() if share is not None},
    )


def choose(folder: str | Path, device: str, batch_size: int | None) -> tuple[str, Setting, dict[str, Sequence[Any]]]:
    """The device, the defaults on it, and the values that each setting may have, the default's among them."""
    from gpuload.augment import Augment
    from gpuload.disk.dataset import Dataset
    from gpuload.iterator import DaliIterator
    from gpuload.ranks import count_threads, find_ranks

    dataset = Dataset(folder)
    samples = len(dataset)
    if not dataset.manifest.pixels.is_rgb:
        raise ArgumentError(
            f"{folder}: tune measures sets of RGB images, and these are of mode {dataset.manifest.pixels.mode}. Tune a "
            "set of RGB images of the same size"
        )
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
        "decoder": (decoder, "native"),
        "num_threads": (threads, max(1, threads // 2)),
        "prefetch": (2, 3),
        "batch_size": [usual.batch_size, *(size for size in sizes if size <= samples and size != usual.batch_size)],
        # The best depends on the number of engines, cores and bytes an image.
        "hw_decoder_load": (DALIS_LOAD, 0.0, 0.12, 0.3, 0.45, 0.8, 1.0),
    }
    return device, usual, choices


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command to the command line."""
    tune = commands.add_parser(
        "tune",
        help="find the fastest settings for a packed folder on this machine",
        description="Measures settings of DaliIterator on a packed folder and saves the best, where it finds them. "
        "Then measures the best of each decoder beside a training step, and says which one to pass.",
        epilog="Exit codes: 0 saved; 2 nothing measured, the reason is on stderr; 130 stopped by Ctrl-C.",
    )
    tune.set_defaults(run=_tune)
    tune.add_argument("folder", metavar="DIR", help="a packed folder, such as shards/train, or its URL")
    tune.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1 (%(default)s)")
    tune.add_argument("--seconds", type=float, default=60, metavar="S", help="about how long to measure (%(default)s)")
    tune.add_argument("--size", type=int, default=224, metavar="PIXELS", help="side of the crops (%(default)s)")
    tune.add_argument("--batch-size", type=int, metavar="N", help="of this one alone (default: several)")
    tune.add_argument("--json", type=Path, metavar="FILE", help="write all figures to it, after each turn; last a .png")


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

    def write(found: Sequence[Measured], saved: str | None = None, beside: Mapping[str, Any] = _NOTHING) -> None:
        """What was measured so far; `saved` is null until the best settings are."""
        if args.json:
            rows = [
                {**asdict(one.setting), "images_per_s": one.rate, "turns": one.rates, "failed": one.failed}
                for one in found
            ]
            figures = {"device": name, "saved": saved, "settings": rows, **beside}
            temporary = args.json.with_name(f".{args.json.name}.tmp")  # never half a file, whenever it is stopped
            try:
                temporary.write_text(json.dumps(figures, indent=1) + "\n")
                temporary.replace(args.json)
            except OSError as error:
                raise OutputError(f"--json {args.json}: cannot be written ({error.strerror})") from None

    console, errors = open_console(), Console(stderr=True)
    with errors.status(f"measuring for {args.seconds:g} s") if sys.stderr.isatty() else nullcontext():
        found, resident, beside = _measure_all(args, device, usual, choices, write)
    saved = save_tuning(args.folder, name, best_of_each(found))
    console.print(make_table(found, f"{counted(len(found), 'setting')} on {name}"))
    gain = found[0].rate / next(one.rate for one in found if one.setting == usual)
    console.print(f"fastest: {gain:.2f} times the images/s of the defaults. Saved in {saved}", soft_wrap=True)
    console.print(make_beside_table(resident, beside))
    best = max(beside, key=lambda setting: beside[setting].rate)
    console.print(f"best beside a training step: {advice(best, usual)}", soft_wrap=True)
    write(found, str(saved), _beside_figures(resident, beside))
    if args.json:
        _plot(found, args.json.with_suffix(".png"), name)
    return 0


def _plot(found: Sequence[Measured], path: Path, device: str) -> None:
    """The settings that were measured, the fastest first, as a chart beside the figures; the chosen one stands out."""
    from gpuload.commands.charts import bars

    shown = [one for one in found[:_SHOWN] if one.rates]
    rows = [(_label(one.setting), one.rates) for one in sorted(shown, key=lambda one: one.rate, reverse=True)]
    chosen = _label(shown[0].setting)
    bars(rows, f"settings on {device}", "images/s; lines: lowest and highest turn", path, highlight=chosen)


def _label(setting: Setting) -> str:
    threads = counted(setting.num_threads, "thread")
    load = "" if setting.hw_decoder_load is None else f", engines {setting.hw_decoder_load:g}"
    return f"{setting.decoder}, {threads}, prefetch {setting.prefetch}, batches of {setting.batch_size}{load}"


def _measure_all(
    args: argparse.Namespace,
    device: str,
    usual: Setting,
    choices: dict[str, Sequence[Any]],
    measured: Callable[[Sequence[Measured]], None],
) -> tuple[list[Measured], "Beside", dict[Setting, "Beside"]]:
    """Loaders alone, the best first; then a resident batch and the best of each decoder beside a training step.

    measured: called with all candidates after each turn of loaders alone.
    """

    def measure(setting: Setting) -> float:
        return measure_setting(args.folder, setting, device, args.size, turn_s)

    turn_s = 0.0
    measure(usual)  # warms the page cache, and the libraries
    started = time.monotonic()
    measure(usual)
    alone_s = _ALONE * args.seconds
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
    return found, *measure_beside_training(args.folder, contenders, device, args.size, args.seconds - alone_s)


def _beside_figures(resident: "Beside", beside: Mapping[Setting, "Beside"]) -> dict[str, Any]:
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


def best_of_each(found: Sequence[Measured]) -> list["Tuning"]:
    """The best setting of each decoder, of candidates of which the best are first."""
    from gpuload.tuning import Tuning

    return [Tuning(**asdict(one.setting), images_per_s=round(one.rate, 1)) for one in best_of(found).values()]


def advice(best: Setting, usual: Setting) -> str:
    """What to pass to DaliIterator, which takes no other decoder than the default without being asked."""
    if best.decoder == usual.decoder:
        return f"decoder={best.decoder!r}, which is the default here"
    share = "" if best.cpu_share is None else f", cpu_share={best.cpu_share:g}"
    return f"pass decoder={best.decoder!r}{share}; pixels differ by rounding from those of {usual.decoder!r}"


def make_beside_table(resident: "Beside", found: Mapping[Setting, "Beside"]) -> "Table":
    from rich.table import Table

    title = f"beside a training step ({resident.rate:,.0f} images/s with one resident batch)"
    table = Table(title=title, title_justify="left", box=None)
    for head in ("decoder", "for the CPU", "images/s", "of resident", "device left", "cores left"):
        table.add_column(head, justify="left" if head == "decoder" else "right")
    for setting, one in sorted(found.items(), key=lambda pair: pair[1].rate, reverse=True):
        share = "" if setting.cpu_share is None else f"{setting.cpu_share:.0%}"
        left = (f"{one.rate / resident.rate:.0%}", f"{one.device_left(resident):.0%}", f"{one.cores_left:.1f}")
        table.add_row(setting.decoder, share, f"{one.rate:,.0f}", *left)
    return table


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
