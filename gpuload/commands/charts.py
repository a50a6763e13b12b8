"""What `gpuload tune` says of what it measured: tables, charts, and what to pass to `DaliIterator`."""

import importlib.util
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from gpuload.commands.outputs import Output
from gpuload.commands.settings import Measured, Setting
from gpuload.commands.terminal import say_table
from gpuload.counted import counted

if TYPE_CHECKING:
    from gpuload.commands.beside import Beside

_FIRST, _OTHER, _INK = "#12a594", "#9aa0a6", "#24292f"
_SHOWN = 8  # settings in the table


def bars(
    rows: Sequence[tuple[str, Sequence[float]]], title: str, unit: str, path: Path | Output, *, highlight: str = ""
) -> bool:
    """Writes a PNG: a bar for each row, of the median of its values, with a line from the lowest to the highest.

    rows: label and values, from top to bottom. highlight: the label that stands out. Returns False, and writes nothing,
    without matplotlib or without rows.
    """
    if importlib.util.find_spec("matplotlib") is None or not rows:
        return False
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 1.3 + 0.42 * len(rows)), layout="constrained")
    places = list(range(len(rows)))[::-1]
    ends = [(min(values), median(values), max(values)) for _, values in rows]
    middles = [middle for _, middle, _ in ends]
    axes.barh(places, middles, 0.66, color=[_FIRST if label == highlight else _OTHER for label, _ in rows])
    errors = [[middle - low for low, middle, _ in ends], [high - middle for _, middle, high in ends]]
    axes.errorbar(middles, places, xerr=errors, fmt="none", ecolor=_INK, elinewidth=1, capsize=2.5)
    for place, (_, middle, high) in zip(places, ends, strict=True):
        axes.annotate(f"{middle:,.0f}", (high, place), (7, 0), textcoords="offset points", va="center", size=10)
    axes.set_yticks(places, [label for label, _ in rows], size=10)
    axes.set_xlabel(unit, size=10)
    axes.set_xlim(0, max(high for _, _, high in ends) * 1.16)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.suptitle(title, size=11)
    data = io.BytesIO()
    figure.savefig(data, dpi=130, metadata={"Software": "gpuload tune"})
    pyplot.close(figure)
    path.write(data.getvalue()) if isinstance(path, Output) else path.write_bytes(data.getvalue())
    return True


def show_settings(found: Sequence[Measured], title: str) -> None:
    """Prints the fastest."""
    with_function = _has_function(one.setting for one in found)
    special = "function in" if with_function else "engines' load"
    rows = []
    for one in found[:_SHOWN]:
        setting = one.setting
        load = "" if setting.hw_decoder_load is None else f"{setting.hw_decoder_load:g}"
        load = _in_words(setting.processes) if with_function else load
        figures = (f"{one.rate:,.0f}", f"{min(one.rates):,.0f}–{max(one.rates):,.0f}") if one.rates else ("failed", "")
        numbers = (setting.num_threads, setting.prefetch, setting.batch_size)
        rows.append((setting.decoder, *map(str, numbers), load, *figures, str(len(one.rates))))
    say_table(rows, ("decoder", "threads", "prefetch", "batch", special, "images/s", "min–max", "turns"), title)


def show_beside(resident: "Beside", found: Mapping[Setting, "Beside"]) -> None:
    """Prints what is left to a training step."""
    heads = ["decoder", "for the CPU", "function in", "images/s", "of resident", "device left", "cores left"]
    with_function = _has_function(found)
    rows = []
    for setting, one in sorted(found.items(), key=lambda pair: pair[1].rate, reverse=True):
        share = "" if setting.cpu_share is None else f"{setting.cpu_share:.0%}"
        left = (f"{one.rate / resident.rate:.0%}", f"{one.device_left(resident):.0%}", f"{one.cores_left:.1f}")
        where = (_in_words(setting.processes),) if with_function else ()
        rows.append((setting.decoder, share, *where, f"{one.rate:,.0f}", *left))
    if not with_function:
        heads.remove("function in")
    say_table(rows, heads, f"beside a training step ({resident.rate:,.0f} images/s with one resident batch)")


def compare_threads(found: Sequence[Measured]) -> str:
    """Whether a function is faster in threads or in processes, of candidates of which the best are first."""
    threads = next((one for one in found if one.rates and not one.setting.processes), None)
    processes = next((one for one in found if one.rates and one.setting.processes), None)
    if threads is None or processes is None:
        failed = next((one for one in found if one.failed and one.setting.processes), None)
        return (
            f"function in threads; in processes it was not measured: {failed.failed if failed else 'too little time'}"
        )
    count = processes.setting.processes
    times = processes.rate / threads.rate
    return (
        f"function in {_in_words(count)}: {times:.2f} times the images/s of threads; "
        f"{f'pass Function(f, processes={count})' if times > 1 else 'leave processes out'}"
    )


def advice(best: Setting, usual: Setting) -> str:
    """What to pass to DaliIterator, which takes no other decoder than the default without being asked, nor calls a
    function in processes."""
    if usual.processes is not None:
        changed = [] if _decoder(best) == _decoder(usual) else [f"decoder={_decoder(best)}"]
        if best.processes != usual.processes:
            changed.append(f"Function(f, processes={best.processes})")
        names = ("num_threads", "prefetch", "batch_size")
        changed += [f"{name}={getattr(best, name)!r}" for name in names if getattr(best, name) != getattr(usual, name)]
        return f"pass {', '.join(changed)}" if changed else "the defaults"
    if best.decoder == usual.decoder:
        return f"decoder={best.decoder!r}, which is the default here"
    return f"pass decoder={_decoder(best)}; pixels differ by rounding from those of {usual.decoder!r}"


def _decoder(setting: Setting) -> str:
    return repr(setting.decoder) if setting.cpu_share is None else f"gpuload.Both(cpu={setting.cpu_share:g})"


def plot_settings(found: Sequence[Measured], path: Output, device: str) -> None:
    """The settings that were measured, the fastest first, as a chart beside the figures; the chosen one stands out."""
    shown = [one for one in found[:_SHOWN] if one.rates]
    rows = [(_label(one.setting), one.rates) for one in sorted(shown, key=lambda one: one.rate, reverse=True)]
    chosen = _label(shown[0].setting)
    bars(rows, f"settings on {device}", "images/s; lines: lowest and highest turn", path, highlight=chosen)


def _label(setting: Setting) -> str:
    threads = counted(setting.num_threads, "thread")
    load = "" if setting.hw_decoder_load is None else f", engines {setting.hw_decoder_load:g}"
    where = f", function in {processes}" if (processes := _in_words(setting.processes)) else ""
    return f"{setting.decoder}, {threads}, prefetch {setting.prefetch}, batches of {setting.batch_size}{load}{where}"


def _in_words(processes: int | None) -> str:
    if processes is None:
        return ""
    return f"{processes} process{'es' if processes > 1 else ''}" if processes else "threads"


def _has_function(settings: Iterable[Setting]) -> bool:
    return any(setting.processes is not None for setting in settings)
