"""Stops a command at each step that changes a disk, and looks at what is left: python stopping.py COMMAND FOLDER.

COMMAND is a key of COMMANDS. FOLDER holds `set`, a packed set, and `images`: a folder of images, for "index" a text of
classes, and for "fetch" the set that is copied, at the URL in the environment's SERVER; all else there is made here. At each step a copy of the set is used up by a forked child, which ends or gets an error just before the step: a
name that a file gets or loses, a file that is opened for writing, a sync. Then every split must open and be the old one
or the new one as a whole, and the same command must complete what was begun.

Prints JSON: of each way to stop, the number of steps.
"""

import errno
import json
import os
import re
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # also when run as a script, without an installation

from reading import files_of

import gpuload
from gpuload import cli
from gpuload.packing import packer
from gpuload.sources import FolderSource

NAMES = {"os.rename": 1, "os.remove": 0, "os.rmdir": 0, "os.mkdir": 0, "os.link": 1}  # and which argument is the path
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
STOPPED = 77


class Steps:
    """Counts the steps in a folder, and calls `stop` before those from `first` on.

    log: of each step its kind and the name of its file.
    """

    def __init__(self, folder: Path, first: int | None, stop: Callable[[str], None]) -> None:
        self.folder, self.first, self.stop = str(folder.resolve()), first, stop
        self.log: list[tuple[str, str]] = []
        os.fsync = self._fsync  # type: ignore[assignment]
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in NAMES:
            self._step(event.partition(".")[2], arguments[NAMES[event]])
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES:
            self._step("open", arguments[0])
        elif event == "ctypes.dlsym" and arguments[1] == "renameat2":
            self._step("swap", self.folder)

    def _fsync(self, descriptor: int) -> None:
        self._step("sync", os.readlink(f"/proc/self/fd/{descriptor}"))  # the machine goes on, so nothing needs it

    def _step(self, kind: str, path: Any) -> None:
        if not isinstance(path, str | os.PathLike) or not os.path.abspath(path).startswith(self.folder):
            return
        self.log.append((kind, os.path.relpath(path, self.folder)))
        if self.first is not None and len(self.log) > self.first:
            self.stop(kind)


def kill(_: str) -> None:
    os._exit(STOPPED)


class Interrupt:
    """Ctrl-C, once."""

    def __init__(self) -> None:
        self.is_over = False

    def __call__(self, _: str) -> None:
        if self.is_over:
            return
        self.is_over = True
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        os.kill(os.getpid(), signal.SIGINT)  # which Python hands to the main thread


def fill(kind: str) -> None:
    """A full disk: nothing new can be written any more, but names can be changed."""
    if kind in ("open", "sync", "mkdir"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


WAYS: dict[str, Callable[[], Callable[[str], None]]] = {
    "kill": lambda: kill,
    "interrupt": Interrupt,
    "full": lambda: fill,
}


def forked(work: Callable[[], object]) -> int:
    """The exit code of a child that does this work, whatever it prints."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except (KeyboardInterrupt, gpuload.OutputError):  # that the run was stopped by
            pass
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def add_points(out: Path, images: Path, resume: bool) -> None:
    for split in ("train", "val"):
        if cli.main(["index", "--points", str(out / split)]):
            raise KeyboardInterrupt


def index(out: Path, images: Path, resume: bool) -> None:
    for split in ("train", "val"):
        options = ["--overwrite", "--classes", str(images)]
        if cli.main(["index", str(out / split / "*.tar"), *options]):
            raise KeyboardInterrupt


def join(out: Path, images: Path, resume: bool) -> None:
    for split in ("train", "val"):
        if cli.main(["index", "--join", str(images / "table.csv"), "--replace", str(out / split)]):
            raise KeyboardInterrupt


def fetch(out: Path, images: Path, resume: bool) -> None:
    if cli.main(["fetch", f"{os.environ['SERVER']}/train", str(out / "train")]):
        raise KeyboardInterrupt


def pack(out: Path, images: Path, resume: bool, **options: Any) -> None:
    gpuload.pack(FolderSource(images), out, workers=1, val=0.3, maxcount=4, progress=False, resume=resume, **options)


Command = Callable[[Path, Path, bool], None]
COMMANDS: dict[str, Command] = {
    "points": add_points,
    "index": index,
    "join": join,
    "fetch": fetch,
    "append": partial(pack, append=True),
    "overwrite": partial(pack, overwrite=True),
}


def begin(command: Command, out: Path, images: Path) -> None:
    """Ends a run of the packer when its shards are packed and nothing is described yet."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    packer.PackingRun.finish = stop  # type: ignore[method-assign, assignment]
    with suppress(KeyboardInterrupt):
        command(out, images, False)


def keys_of(out: Path) -> dict[str, list[str]]:
    """The keys of each split, which must open and have whole rows."""
    keys = {}
    for split in ("train", "val"):
        dataset = gpuload.Dataset(out / split)
        assert len(dataset.labels) == len(dataset)
        keys[split] = dataset.keys(range(len(dataset)))
    return keys


def left_in(work: Path) -> dict[str, bytes]:
    """All files and folders, with names that are the same in each process: without the process's number."""
    found = {path: b"" if path.is_dir() else path.read_bytes() for path in work.rglob("*")}
    number = re.compile(r"\.[0-9]+\.tmp$")
    return {number.sub(".tmp", str(path.relative_to(work))): content for path, content in found.items()}


def main(name: str, folder: str) -> None:
    command = COMMANDS[name]
    place, images = Path(folder), Path(folder, "images")
    pristine, begun, expected = place / "set", place / "begun", place / "expected"
    for copy in (begun, expected):
        shutil.copytree(pristine, copy / "out")
    is_packer = name in ("append", "overwrite")
    if is_packer or name == "fetch":  # which start processes or connections, and cannot be forked then
        assert forked(lambda: command(expected / "out", images, False)) == 0
        shutil.copytree(pristine, place / "warm")
        add_points(place / "warm", images, False)
    else:  # so that children find all imported and cached
        command(expected / "out", images, False)
    if is_packer:
        assert forked(lambda: begin(command, begun / "out", images)) == 0
    packer.start_server = lambda: None  # whose processes pack shards, all of which are packed
    os.fsync = lambda _: None  # type: ignore[assignment]
    wanted, states = files_of(expected), [keys_of(pristine), keys_of(expected / "out")]
    completed: list[dict[str, bytes]] = []
    counts: dict[str, int] = {}
    for way, make_stop in WAYS.items():
        stride = 1 if way == "kill" or name in ("points", "join") else 3
        step = counts[way] = 0
        while True:
            work = place / "work"
            shutil.copytree(begun, work)

            def stopped(step: int = step, work: Path = work, stop: Any = make_stop) -> None:
                Steps(work, step, stop())
                command(work / "out", images, is_packer)

            code = forked(stopped)
            left = left_in(work)
            if left not in completed:  # a sync, for one, changes no file
                found = keys_of(work / "out")
                assert all(found[split] in (state[split] for state in states) for split in found), (way, step)
                is_begun = list(work.rglob(".packing*/state.json")) or list(work.rglob(".packing-old"))
                if not is_packer or is_begun or files_of(work) != wanted:
                    assert forked(lambda work=work: command(work / "out", images, is_packer)) == 0, (way, step)
                assert files_of(work) == wanted, (way, step, set(files_of(work)) ^ set(wanted))
                completed.append(left)
            shutil.rmtree(work)
            if code == 0:
                break
            step += stride
            counts[way] += 1
    shutil.copytree(begun, place / "work")

    def log() -> None:
        steps = Steps(place / "work", None, kill)
        command(place / "work" / "out", images, is_packer)
        (place / "log.json").write_text(json.dumps(steps.log))

    assert forked(log) == 0
    print(json.dumps({"steps": counts, "log": json.loads((place / "log.json").read_text())}))


if __name__ == "__main__":
    main(*sys.argv[1:])
