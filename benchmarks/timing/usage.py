"""Processor time and memory of a process and all its descendants, from /proc."""

import contextlib
import os
import threading
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def process_tree(root: int) -> list[int]:
    """`root` and its descendants."""
    processes = [root]
    for pid in processes:
        try:
            threads = list(Path(f"/proc/{pid}/task").iterdir())
        except OSError:  # a process that has just ended
            continue
        for thread in threads:
            with contextlib.suppress(OSError):  # a thread that has just ended
                processes.extend(
                    int(child) for child in (thread / "children").read_text().split()
                )
    return processes


def cpu_seconds(root: int) -> float:
    """User and system time of the tree, including processes of it that have ended."""
    ticks = 0
    for pid in process_tree(root):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        # utime, stime, and those of children waited for: fields 14 to 17 of proc(5).
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / _TICKS


def memory_bytes(root: int) -> int:
    """Anonymous and shared memory of the tree; shared pages are divided among the processes that share them.

    Without mapped files, whose pages the kernel can reclaim at any time. `ru_maxrss` is of no use: a new process starts
    with its parent's.
    """
    kilobytes = 0
    for pid in process_tree(root):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        kilobytes += sum(
            int(line.split()[1])
            for line in lines
            if line.startswith(("Pss_Anon:", "Pss_Shmem:"))
        )
    return kilobytes * 1024


class PeakMemory:
    """The maximum of `memory_bytes` while this context is open.

    Samples every 0.1 s, which costs processor time: do not use it while something is timed.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.bytes = 0

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.bytes = max(self.bytes, memory_bytes(self._root))
            if self._stop.wait(0.1):
                return
