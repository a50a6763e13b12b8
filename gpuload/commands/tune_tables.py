"""What `gpuload tune` says of what it measured: tables, a chart, and what to pass to `DaliIterator`."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuload.commands.candidates import Measured, Setting
from gpuload.counted import counted

if TYPE_CHECKING:
    from rich.table import Table

    from gpuload.commands.beside import Beside

_SHOWN = 8  # settings in the table


def make_table(found: Sequence[Measured], title: str) -> "Table":
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None)
    with_function = _has_function(one.setting for one in found)
    special = "function in" if with_function else "engines' load"
    for head in ("decoder", "threads", "prefetch", "batch", special, "images/s", "min–max", "turns"):
        table.add_column(head, justify="left" if head == "decoder" else "right")
    for one in found[:_SHOWN]:
        setting = one.setting
        load = "" if setting.hw_decoder_load is None else f"{setting.hw_decoder_load:g}"
        load = _in_words(setting.function_processes) if with_function else load
        figures = (f"{one.rate:,.0f}", f"{min(one.rates):,.0f}–{max(one.rates):,.0f}") if one.rates else ("failed", "")
        numbers = (setting.num_threads, setting.prefetch, setting.batch_size)
        table.add_row(setting.decoder, *map(str, numbers), load, *figures, str(len(one.rates)))
    return table


def make_beside_table(resident: "Beside", found: Mapping[Setting, "Beside"]) -> "Table":
    from rich.table import Table

    title = f"beside a training step ({resident.rate:,.0f} images/s with one resident batch)"
    table = Table(title=title, title_justify="left", box=None)
    for head in ("decoder", "for the CPU", "function in", "images/s", "of resident", "device left", "cores left"):
        if head != "function in" or _has_function(found):
            table.add_column(head, justify="left" if head == "decoder" else "right")
    for setting, one in sorted(found.items(), key=lambda pair: pair[1].rate, reverse=True):
        share = "" if setting.cpu_share is None else f"{setting.cpu_share:.0%}"
        left = (f"{one.rate / resident.rate:.0%}", f"{one.device_left(resident):.0%}", f"{one.cores_left:.1f}")
        where = (_in_words(setting.function_processes),) if _has_function(found) else ()
        table.add_row(setting.decoder, share, *where, f"{one.rate:,.0f}", *left)
    return table


def compare_threads(found: Sequence[Measured]) -> str:
    """Whether a function is faster in threads or in processes, of candidates of which the best are first."""
    threads = next((one for one in found if one.rates and not one.setting.function_processes), None)
    processes = next((one for one in found if one.rates and one.setting.function_processes), None)
    if threads is None or processes is None:
        failed = next((one for one in found if one.failed and one.setting.function_processes), None)
        return (
            f"function in threads; in processes it was not measured: {failed.failed if failed else 'too little time'}"
        )
    count = processes.setting.function_processes
    times = processes.rate / threads.rate
    return (
        f"function in {_in_words(count)}: {times:.2f} times the images/s of threads; "
        f"{f'pass function_processes={count}' if times > 1 else 'leave function_processes out'}"
    )


def advice(best: Setting, usual: Setting) -> str:
    """What to pass to DaliIterator, which takes no other decoder than the default without being asked, nor calls a
    function in processes."""
    if usual.function_processes is not None:
        names = ("decoder", "function_processes", "num_threads", "prefetch", "batch_size", "cpu_share")
        changed = [name for name in names if getattr(best, name) != getattr(usual, name)]
        return f"pass {', '.join(f'{name}={getattr(best, name)!r}' for name in changed)}" if changed else "the defaults"
    if best.decoder == usual.decoder:
        return f"decoder={best.decoder!r}, which is the default here"
    share = "" if best.cpu_share is None else f", cpu_share={best.cpu_share:g}"
    return f"pass decoder={best.decoder!r}{share}; pixels differ by rounding from those of {usual.decoder!r}"


def plot_settings(found: Sequence[Measured], path: Path, device: str) -> None:
    """The settings that were measured, the fastest first, as a chart beside the figures; the chosen one stands out."""
    from gpuload.commands.charts import bars

    shown = [one for one in found[:_SHOWN] if one.rates]
    rows = [(_label(one.setting), one.rates) for one in sorted(shown, key=lambda one: one.rate, reverse=True)]
    chosen = _label(shown[0].setting)
    bars(rows, f"settings on {device}", "images/s; lines: lowest and highest turn", path, highlight=chosen)


def _label(setting: Setting) -> str:
    threads = counted(setting.num_threads, "thread")
    load = "" if setting.hw_decoder_load is None else f", engines {setting.hw_decoder_load:g}"
    where = f", function in {processes}" if (processes := _in_words(setting.function_processes)) else ""
    return f"{setting.decoder}, {threads}, prefetch {setting.prefetch}, batches of {setting.batch_size}{load}{where}"


def _in_words(function_processes: int | None) -> str:
    if function_processes is None:
        return ""
    return f"{function_processes} process{'es' if function_processes > 1 else ''}" if function_processes else "threads"


def _has_function(settings: Iterable[Setting]) -> bool:
    return any(setting.function_processes is not None for setting in settings)
