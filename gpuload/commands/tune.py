"""`python -m gpuload tune DIR`: which settings load fastest here, measured on the user's own shards.

The fastest settings of loaders alone are searched for first (`candidates.py`). Then the best of each decoder, and both
decoders at once with shares that would take them equally long, are measured beside a training step (`beside.py`), since
the fastest loader may be the one that leaves least to the training.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpuload.commands.candidates import FINALISTS, Measured, Setting, best_of, both_of, candidates, plan, sweep
from gpuload.commands.console import open_console
from gpuload.commands.tune_tables import advice, compare_threads, make_beside_table, make_table, plot_settings
from gpuload.commands.tuned_loader import TunedLoader, import_function
from gpuload.counted import counted
from gpuload.decode.dali.memory import DALIS_LOAD
from gpuload.errors import ArgumentError, GpuloadError, OutputError

# The command line loads this file for every command; what it needs to work is loaded when it does.
if TYPE_CHECKING:
    from gpuload.commands.beside import Beside
    from gpuload.iterator import DaliIterator
    from gpuload.tuning import Tuning

_ALONE = 0.7  # of the time, for loaders alone; the rest is for those beside a training step
_ROUNDS = 2  # beside a training step
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def measure_setting(tuned: TunedLoader, setting: Setting, turn_s: float) -> float:
    """images/s of one turn."""
    with tuned.open(setting) as loader:
        batches = chain.from_iterable(repeat(loader))
        for images, *_ in islice(batches, setting.prefetch + 1):  # what was decoded ahead does not count
            images[:1].cpu()
        started, seen = time.perf_counter(), 0
        while seen == 0 or time.perf_counter() - started < turn_s:
            images, *_ = next(batches)
            seen += len(images)
        images[:1].cpu()  # waits for a GPU
        return seen / (time.perf_counter() - started)


def measure_beside_training(
    tuned: TunedLoader, settings: Sequence[Setting], seconds: float
) -> tuple["Beside", dict[Setting, "Beside"]]:
    """A training step with a resident batch, and with each loader, in turn; those that fail are left out."""
    from gpuload.commands.beside import Beside, TrainingStep, measure_beside

    step, resident, found = TrainingStep(tuned.device), Beside(), {setting: Beside() for setting in settings}
    turn_s = seconds / (_ROUNDS * (1 + len(settings)))
    kept: Any = None
    for _ in range(_ROUNDS):
        for setting in list(found):
            try:
                with tuned.open(setting) as loader:
                    batches = (images for _ in repeat(None) for images, *_ in loader)
                    kept = next(batches)
                    elsewhere = partial(_function_s, loader) if setting.function_processes else _nowhere
                    measure_beside(found[setting], batches, step, turn_s, setting.prefetch + 1, elsewhere)
            except (GpuloadError, RuntimeError):
                del found[setting]
        measure_beside(resident, repeat(kept), step, turn_s, 1)
    return resident, found


def _function_s(loader: "DaliIterator") -> float:
    return loader.metrics().function_s


def _nowhere() -> float:
    return 0.0


def choose(tuned: TunedLoader, batch_size: int | None) -> tuple[TunedLoader, Setting, dict[str, Sequence[Any]]]:
    """The loader on its device, the defaults there, and the values that each setting may have, the default's among
    them."""
    from gpuload.augment import Augment
    from gpuload.disk.dataset import Dataset
    from gpuload.iterator import DaliIterator
    from gpuload.ranks import count_threads, find_ranks

    dataset = Dataset(tuned.folder)
    samples = len(dataset)
    if not dataset.manifest.pixels.is_rgb:
        raise ArgumentError(
            f"{tuned.folder}: tune measures sets of RGB images, and these are of mode {dataset.manifest.pixels.mode}. "
            "Tune a set of RGB images of the same size"
        )
    at: Any = tuned.function_at
    augment = Augment(8, function=tuned.function, function_at=at)
    with DaliIterator(tuned.folder, 1, augment=augment, device=tuned.device, fields=("image", *tuned.fields)) as loader:
        device, decoder = loader.device, loader.decoder
    tuned, threads = replace(tuned, device=device), count_threads(find_ranks(None, None))
    choices: dict[str, Sequence[Any]]
    if device == "cpu" or tuned.function is not None:  # functions are called on the CPU, where the images are decoded
        usual = Setting(decoder, threads, 2, batch_size or min(64 if device == "cpu" else 256, samples))
        choices = {
            "decoder": ("native", "dali"),
            "num_threads": (threads, max(1, threads // 2), 2 * threads),
            "prefetch": (2, 1, 4),
            "batch_size": (usual.batch_size,),
        }
        if tuned.function is not None:
            usual = replace(usual, function_processes=0)
            choices["function_processes"] = (0, threads)
        return tuned, usual, choices
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
    return tuned, usual, choices


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command to the command line."""
    tune = commands.add_parser(
        "tune",
        help="find the fastest settings for a packed folder on this machine",
        description="Measures settings of DaliIterator on a packed folder and saves the best, where it finds them. "
        "Then measures the best of each decoder beside a training step, and says which one to pass. With --function it "
        "measures your loader's function in threads and in processes, and says what to pass, since that is for this "
        "function alone; nothing is saved.",
        epilog="Exit codes: 0 measured; 2 nothing measured, the reason is on stderr; 130 stopped by Ctrl-C.",
    )
    tune.set_defaults(run=_tune)
    tune.add_argument("folder", metavar="DIR", help="a packed folder, such as shards/train, or its URL")
    tune.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1 (%(default)s)")
    tune.add_argument("--seconds", type=float, default=60, metavar="S", help="about how long to measure (%(default)s)")
    tune.add_argument("--size", type=int, default=224, metavar="PIXELS", help="side of the crops (%(default)s)")
    tune.add_argument("--batch-size", type=int, metavar="N", help="of this one alone (default: several)")
    tune.add_argument(
        "--function",
        metavar="MODULE:NAME",
        help="the loader's Augment(function=...), imported from a module, such as my_functions:darken",
    )
    tune.add_argument(
        "--function-at",
        choices=("after_crop", "before_crop"),
        default="after_crop",
        help="where it is called (%(default)s)",
    )
    tune.add_argument("--fields", default="", metavar="NAMES", help="fields that it gets, such as boxes,mask")
    tune.add_argument("--json", type=Path, metavar="FILE", help="write all figures to it, after each turn; last a .png")


def _tune(args: argparse.Namespace) -> int:
    import sys
    from contextlib import nullcontext

    from rich.console import Console

    from gpuload.ranks import find_ranks
    from gpuload.tuning import describe_device, save_tuning

    _check(args)
    function = None if args.function is None else import_function(args.function)
    fields = tuple(filter(None, args.fields.split(",")))
    wanted = TunedLoader(args.folder, args.device, args.size, function, args.function_at, fields)
    tuned, usual, choices = choose(wanted, args.batch_size)
    name = describe_device(
        None if tuned.device == "cpu" else int(tuned.device.partition(":")[2]), find_ranks(None, None)
    )
    write = partial(_write, args.json, name, args.function)
    console, errors = open_console(), Console(stderr=True)
    with errors.status(f"measuring for {args.seconds:g} s") if sys.stderr.isatty() else nullcontext():
        found, resident, beside = _measure_all(tuned, args.seconds, usual, choices, write)
    console.print(make_table(found, f"{counted(len(found), 'setting')} on {name}"))
    gain = found[0].rate / next(one.rate for one in found if one.setting == usual)
    saved = None
    if function is None:
        saved = str(save_tuning(args.folder, name, best_of_each(found)))
        end = f"Saved in {saved}"
    else:
        end = f"Nothing is saved, as this is for {args.function} alone"
    console.print(f"fastest: {gain:.2f} times the images/s of the defaults. {end}", soft_wrap=True)
    if function is not None:
        console.print(compare_threads(found), soft_wrap=True)
    console.print(make_beside_table(resident, beside))
    best = max(beside, key=lambda setting: beside[setting].rate)
    console.print(f"best beside a training step: {advice(best, usual)}", soft_wrap=True)
    write(found, saved, _beside_figures(resident, beside))
    if args.json:
        plot_settings(found, args.json.with_suffix(".png"), name)
    return 0


def _check(args: argparse.Namespace) -> None:
    from gpuload.checks import COUNT, POSITIVE, SIDE, check_option, number, optional

    check_option("--seconds", args.seconds, number(POSITIVE, 1e6, "seconds, above 0 and up to 1e6"))
    check_option("--size", args.size, SIDE)
    check_option("--batch-size", args.batch_size, optional(COUNT))
    if args.json is not None and (args.json.is_dir() or not args.json.parent.is_dir()):
        raise ArgumentError(f"--json {args.json}: expected a file in a folder that exists")
    for option, value, usual in (("--function-at", args.function_at, "after_crop"), ("--fields", args.fields, "")):
        if args.function is None and value != usual:
            raise ArgumentError(f"{option} {value}: is for a function. Give --function MODULE:NAME, or leave it out")


def _write(
    path: Path | None,
    device: str,
    function: str | None,
    found: Sequence[Measured],
    saved: str | None = None,
    beside: Mapping[str, Any] = _NOTHING,
) -> None:
    """What was measured so far; `saved` is null until the best settings are."""
    import json

    if path is None:
        return
    rows = [
        {**asdict(one.setting), "images_per_s": one.rate, "turns": one.rates, "failed": one.failed} for one in found
    ]
    figures = {"device": device, "function": function, "saved": saved, "settings": rows, **beside}
    temporary = path.with_name(f".{path.name}.tmp")  # never half a file, whenever it is stopped
    try:
        temporary.write_text(json.dumps(figures, indent=1) + "\n")
        temporary.replace(path)
    except OSError as error:
        raise OutputError(f"--json {path}: cannot be written ({error.strerror})") from None


def _measure_all(
    tuned: TunedLoader,
    seconds: float,
    usual: Setting,
    choices: dict[str, Sequence[Any]],
    measured: Callable[[Sequence[Measured]], None],
) -> tuple[list[Measured], "Beside", dict[Setting, "Beside"]]:
    """Loaders alone, the best first; then a resident batch and the best of each decoder beside a training step.

    measured: called with all candidates after each turn of loaders alone.
    """

    def measure(setting: Setting) -> float:
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

    kept = {field.name for field in fields(Tuning)}
    return [
        Tuning(
            **{name: value for name, value in asdict(one.setting).items() if name in kept},
            images_per_s=round(one.rate, 1),
        )
        for one in best_of(found).values()
    ]
