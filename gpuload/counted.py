"""Numbers in messages, and the bar that shows the progress of a command."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def counted(number: int, noun: str, plural: str = "") -> str:
    """The number with its noun, in the singular for 1.

    >>> counted(1, "shard"), counted(1200, "image"), counted(1, "row has", "rows have")
    ('1 shard', '1,200 images', '1 row has')

    Args:
        number: Written with commas between thousands.
        noun: In the singular.
        plural: The plural, if it is not the noun with an s, or if a verb follows.
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


@contextmanager
def progress_bar(
    what: str, unit: str, wanted: bool = True
) -> Iterator[Callable[..., None]]:
    """Shows a bar if stderr is a terminal. Call the value with the number done, the total, and bytes, if they count.

    Work done before the first call, by an interrupted run, does not count in the rate.
    """
    if not wanted or not sys.stderr.isatty():
        yield lambda done, total, read=0: None
        return
    from rich.console import Console  # 60 ms
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    starts: list[
        tuple[float, int, int]
    ] = []  # the first call: what was before it is set-up

    def speed(done: int, read: int) -> str:
        now = time.monotonic()
        if not starts:
            starts.append((now, done, read))
        started, done_before, read_before = starts[0]
        elapsed_s = max(now - started, 1e-9)
        done = max(0, done - done_before)
        read = max(0, read - read_before)
        return f"{done / elapsed_s:,.0f} {unit}/s" + (
            f"  {read / 1e6 / elapsed_s:,.0f} MB/s" if read else ""
        )

    texts = TextColumn("{task.description}"), TextColumn("{task.fields[speed]}")
    columns = (
        texts[0],
        BarColumn(),
        TaskProgressColumn(),
        texts[1],
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None, speed="")
        yield lambda done, total, read=0: progress.update(
            task, completed=done, total=total, speed=speed(done, read)
        )
