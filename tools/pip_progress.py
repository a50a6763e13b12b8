"""Shortens pip's output: a line for each large file and, on a terminal, what pip is doing and for how long.

    python -m pip install … | python tools/pip_progress.py

pip's errors and warnings go to standard error, directly. Needs only the standard library.
"""

import re
import sys
import threading
import time
import urllib.parse
from pathlib import Path

LARGE_BYTES = 10_000_000
_UNITS = {"B": 1, "bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
_FETCHED = re.compile(r"\s*(?:Downloading|Using cached) (\S+?-\S+?)-\S*\.whl \(([\d.]+) (\w+)\)")
_LOCAL = re.compile(r"Processing (\S*/([^/\s]+?-[^/\s]+?)-[^/\s]*\.whl)")
_INSTALLING = re.compile(r"Installing collected packages: (.*)")


def shorten(line: str) -> tuple[str | None, bool]:
    """(text to show for a line of pip's output, whether it stays on screen); None if the line is of no interest."""
    if found := _FETCHED.match(line):
        return _file(found[1], float(found[2]) * _UNITS.get(found[3], 1))
    if found := _LOCAL.match(line):
        path = Path(found[1])
        return _file(found[2], path.stat().st_size if path.exists() else 0)
    if found := _INSTALLING.match(line):
        return f"unpacking {found[1].count(',') + 1} packages", True
    if line.startswith("Collecting "):
        return f"looking for {line.split()[1]}", False
    return None, False


def _file(name: str, size: float) -> tuple[str, bool]:
    package, _, version = urllib.parse.unquote(name.rpartition("/")[2]).partition("-")
    return f"{package} {version}, {size / 1e6:,.0f} MB", size >= LARGE_BYTES


class _Terminal:
    """The status line, with the seconds since the start; redrawn every second."""

    def __init__(self) -> None:
        self._started, self._doing, self._end = time.monotonic(), "starting", threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._tick, daemon=True).start()

    def show(self, text: str, stays: bool) -> None:
        with self._lock:
            if stays:
                print(f"\r\033[K  {text}")
            self._doing = text
            self._draw()

    def close(self) -> None:
        self._end.set()
        with self._lock:
            print("\r\033[K", end="", flush=True)

    def _tick(self) -> None:
        while not self._end.wait(1):
            with self._lock:
                self._draw()

    def _draw(self) -> None:
        print(f"\r\033[K  {self._doing} … {time.monotonic() - self._started:.0f} s", end="", flush=True)


def main() -> int:
    terminal = _Terminal() if sys.stdout.isatty() else None
    try:
        for line in sys.stdin:
            text, stays = shorten(line)
            if text and terminal:
                terminal.show(text, stays)
            elif text and stays:
                print(f"  {text}", flush=True)
    except KeyboardInterrupt:  # pip got it, too, and reports it
        return 130
    finally:
        if terminal:
            terminal.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
