"""Programs in forks of a process that has imported what they import: that takes most of a short program's time.

`prepared.python()` stands for [sys.executable] in the command of a subprocess. As with that, what follows are options of
warnings, and a file, `-c` and code, or `-m` and a module. The fork has the files, environment and folder of the command,
which ends as the fork does. Tests of what importing does need a Python of their own.
"""

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import types
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

IMPORTS = ("torch", "gpuload.loader.iterator", "gpuload.decode.native.decoder", "gpuload.packing.packer")


@functools.cache
def python(*more: str) -> list[str]:
    """more: modules to import beside `IMPORTS`."""
    place = f"{tempfile.mkdtemp()}/socket"
    command = [sys.executable, "-W", "ignore", __file__, "--serve", place, *more]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert server.stdout is not None
    atexit.register(server.communicate)  # at the end of its input it ends
    assert server.stdout.readline() == b"ready\n"
    return [sys.executable, "-I", "-S", __file__, place]


def executable(folder: Path) -> str:
    """A program in a folder that stands for `sys.executable` itself."""
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(python())} "$@"\n')
    program.chmod(0o700)
    return str(program)


def torchrun(ranks: int, *more: str) -> list[str]:
    """The command of the real torchrun, before a script and its arguments: it, too, and its ranks are forks."""
    options = ["--standalone", "--nproc-per-node", str(ranks), "--no-python"]
    return [*python(), "-m", "torch.distributed.run", *options, *python(*more)]


def ask(place: str, arguments: list[str]) -> None:
    """In the process that was started: has the server fork, passes signals on, and ends as the fork ends."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(place)
    request = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
    socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
    process = int(server.recv(100))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(process, number))
    for stream in (0, 1, 2):  # the fork's alone now
        os.close(stream)
    code = int(server.recv(100))
    if code < 0:
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def serve(place: str, *more: str) -> dict[str, Any]:
    """Forks for each command. It returns in the forks, with what each is to run."""
    for name in (*IMPORTS, *more):
        importlib.import_module(name)
    gc.freeze()  # the collector, which looks at all objects at the end, does not copy their pages
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(place)
    listener.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the guards
    print("ready", flush=True)
    while 0 not in select.select([0, listener], [], [])[0]:
        command, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return guard(command)
        command.close()
    shutil.rmtree(Path(place).parent)
    os._exit(0)


def guard(command: socket.socket) -> dict[str, Any]:
    """Forks, and ends as the fork does, which it kills where the command is killed. It returns in the fork, with what
    that is to run."""
    request, streams, _, _ = socket.recv_fds(command, 1 << 20, 3)
    if (process := os.fork()) == 0:
        command.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        return dict(json.loads(request))
    for stream in (*streams, 1):  # 1: the server's, whose end is waited for
        os.close(stream)
    command.send(str(process).encode())
    if command in select.select([os.pidfd_open(process), command], [], [])[0]:
        os.kill(process, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    with suppress(OSError):
        command.send(str(code).encode())
    os._exit(0)


def become(arguments: list[str], environment: dict[str, str], folder: str) -> Callable[[], object]:
    """Makes this process what Python is when it begins the program, which is returned."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        errors = "backslashreplace" if number == 2 else None
        stream = open(number, "w" if number else "r", closefd=False, errors=errors)  # noqa: SIM115 - to the end
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    if "OMP_NUM_THREADS" in environment:
        importlib.import_module("torch").set_num_threads(int(environment["OMP_NUM_THREADS"]))
    warnings.resetwarnings()
    while arguments[0] == "-W":
        warnings.simplefilter(arguments[1])
        arguments = arguments[2:]
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:1] = paths
    if any((Path(path) / "sitecustomize.py").exists() for path in paths):
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")
    first = arguments[0]
    if first == "-m":
        sys.argv, sys.path[:0] = arguments[1:], [""]
        return lambda: runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    text, sys.argv = (arguments[1], ["-c", *arguments[2:]]) if first == "-c" else (Path(first).read_text(), arguments)
    sys.path[:0] = ["" if first == "-c" else str(Path(first).resolve().parent)]
    program = sys.modules["__main__"] = types.ModuleType("__main__")
    if first != "-c":
        program.__file__ = first
    code = compile(text, "<string>" if first == "-c" else first, "exec")
    return lambda: exec(code, vars(program))


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        become(**serve(*sys.argv[2:]))()
    else:
        ask(sys.argv[1], sys.argv[2:])
