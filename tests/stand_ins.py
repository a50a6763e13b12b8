"""Sources that fail as a decoder with a bug would; the name of an image says how."""

import ctypes
import errno
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # also when run as a script, without an installation

from gpuload.packing import shard, verify
from gpuload.sources import FolderSource


def is_packing() -> bool:
    """Whether an image is read to be packed, in limited time, and not only to be hashed."""
    return signal.getitimer(signal.ITIMER_REAL)[0] > 0


_ENDS = {"segv": signal.SIGSEGV, "abort": signal.SIGABRT, "killed-always": signal.SIGKILL}


class FaultySource(FolderSource):
    """Reading an image crashes, hangs or runs out of memory if its name says so."""

    def __init__(self, root: Path, notes: Path) -> None:
        super().__init__(root)
        self.notes = notes

    def read(self, address: str) -> Any:
        for name, number in _ENDS.items():
            if name in address:
                os.kill(os.getpid(), number)
        if "exit" in address:
            os._exit(7)
        if "hang" in address:
            ctypes.PyDLL(None).pause()  # C code that holds Python's lock and never returns
        if "memory" in address:
            raise MemoryError
        note = self.notes / address.replace("/", "-")
        if "server-killed" in address and not note.exists():
            note.touch()
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)  # the kernel ends this process with its server
        return super().read(address)


class TimedSource(FolderSource):
    """Ends the worker if it is waited for in limited time, or read in unlimited time."""

    def wait(self, address: str) -> None:
        if is_packing():
            os._exit(7)

    def read(self, address: str) -> Any:
        if not is_packing():
            os._exit(7)
        return super().read(address)


class SlowlySentSource(FolderSource):
    """Takes half a second to arrive in a worker, as one does that imports torch first."""

    def __setstate__(self, state: dict[str, object]) -> None:
        time.sleep(0.5)
        vars(self).update(state)


def die(job: object) -> None:
    """Replaces `pack_shard`: the worker exits at once, and no image is to blame."""
    os._exit(1)


PACK_SHARD = shard.pack_shard


def pack_watched(job: Any) -> Any:
    """Replaces `pack_shard`: the worker exits where a tar without samples gets the name of a shard."""
    rename = Path.replace

    def replaced(path: Path, target: Path) -> Path:
        if target == job.path and not path.read_bytes().strip(b"\0"):
            os._exit(1)
        return rename(path, target)

    Path.replace = replaced  # type: ignore[method-assign]
    try:
        return PACK_SHARD(job)
    finally:
        Path.replace = rename  # type: ignore[method-assign]


def mute(pipe: Any) -> Callable[[object], object]:
    """Prepares a worker that cannot send its answers."""

    def send(reply: object) -> None:
        raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))

    pipe.send = send
    return lambda task: task


VERIFY_SHARD = verify.verify_shard


def verify_by_width(job: Any) -> Any:
    """Replaces `verify_shard`: images of some widths end the process, and one has a fault."""
    prepare = verify.prepare_image

    def prepared(*args: Any, **options: Any) -> Any:
        stored = prepare(*args, **options)
        ends = {61: signal.SIGSEGV, 62: signal.SIGABRT, 63: signal.SIGKILL, 64: signal.SIGALRM}  # the last: of time
        if stored.width in ends:
            signal.raise_signal(ends[stored.width])
        return replace(stored, width=1) if stored.width == 65 else stored

    verify.prepare_image = prepared
    try:
        return VERIFY_SHARD(job)
    finally:
        verify.prepare_image = prepare


def verify_all_but_one(job: Any) -> Any:
    """Replaces `verify_shard`: shard 3 ends each process, and no sample is to blame."""
    if job.number == 3 and not job.known_bad:
        os.kill(os.getpid(), signal.SIGSEGV)
    return VERIFY_SHARD(job)


class SlowSource(FolderSource):
    """Reads slowly, so that a test can interrupt it. Images whose names begin with HOLD are hashed, but never packed."""

    def read(self, address: str) -> Any:
        time.sleep(3600 if is_packing() and address.startswith(os.environ.get("HOLD", "/")) else 0.05)
        return super().read(address)


class HeldSource(FaultySource):
    """Packs nothing before there is a file "go" in `notes`."""

    def read(self, address: str) -> Any:
        while is_packing() and not (self.notes / "go").exists():
            time.sleep(0.02)
        return super().read(address)


if __name__ == "__main__":
    # Packs argv[1] into argv[2] slowly, in a separate process that a test can kill or interrupt.
    from gpuload import cli
    from gpuload.commands import pack

    pack.open_source = lambda root, *_: SlowSource(root)
    sys.exit(cli.main(["pack", *sys.argv[1:]]))
