"""A loader that a forked child inherits: its threads are the parent's, so that it must not wait for them."""

import subprocess
from pathlib import Path

import prepared
import pytest

FORKS = 12  # what the parent's threads do at the moment of a fork differs from one to the next

SCRIPT = """
import gc, os, signal, sys, traceback
import gpuload

packed, decoder, forks = sys.argv[1], sys.argv[2], int(sys.argv[3])

def make():
    return gpuload.DaliIterator(packed, 8, augment=gpuload.Augment(12), device="cpu", decoder=decoder, prefetch=4)

def refused(take):
    try:
        take()
    except gpuload.GpuloadError as error:
        return "inherited over fork" in str(error) and "Construct it in the child" in str(error)
    return False

def child(loader, batches):
    assert len(loader) == 12 and loader.state_dict()["samples"] > 0
    assert refused(lambda: list(loader)) and refused(lambda: iter(loader)) and refused(lambda: next(batches))
    loader.set_epoch(3)
    loader.close()
    loader.close()
    assert refused(lambda: list(loader))

def drop():
    loader = make()
    next(iter(loader))
    list(loader)

ended = []
gc.disable()  # so that what is dropped is still there at the fork, and goes in the child
drop()
if (process := os.fork()) == 0:
    signal.alarm(800)
    gc.collect()
    os._exit(0)
ended.append(os.waitpid(process, 0)[1])
gc.enable()
loader = make()
batches = iter(loader)
for number in range(forks):
    next(batches, None) or next(batches := iter(loader))
    if (process := os.fork()) == 0:
        signal.alarm(800)  # ends a child that hangs
        try:
            child(loader, batches)
            if number == 0:  # one that is constructed here works
                with make() as own:
                    assert len(list(own)) == 12
            if number % 2:
                os._exit(0)
            sys.exit(0)  # the end of the interpreter waits for no thread, either
        except Exception:
            traceback.print_exc()
            os._exit(1)
    ended.append(os.waitpid(process, 0)[1])
assert len(list(loader)) == 12  # the parent's is as it was
print(ended)
"""


def test_a_child_is_told_that_it_has_no_threads(packed: Path, decoder: str) -> None:
    command = [*prepared.python(), "-W", "ignore", "-c", SCRIPT, str(packed), decoder, str(FORKS)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{[0] * (FORKS + 1)}\n", done.stderr


LOCKED = """
import os, signal, sys, threading
import gpuload, numba
from llvmlite.binding import ffi
from numba.core.compiler_lock import global_compiler_lock

lock = {"numba": global_compiler_lock, "llvmlite": ffi.lib._lock}[sys.argv[2]]
loader = gpuload.DaliIterator(sys.argv[1], 8, augment=gpuload.Augment(12), device="cpu", decoder="native")
held, ended = threading.Event(), threading.Event()

def hold():
    with lock:
        held.set()
        ended.wait(0.2)

threading.Thread(target=hold).start()
held.wait()
if (process := os.fork()) == 0:
    signal.alarm(800)  # ends a child that hangs
    assert numba.njit(lambda number: number + 1)(1) == 2
    os._exit(0)
print(os.waitpid(process, 0)[1])
assert numba.njit(lambda number: number + 2)(1) == 3
"""


@pytest.mark.parametrize("library", ["numba", "llvmlite"])
def test_a_child_inherits_no_lock_of_a_compiler(packed: Path, library: str) -> None:
    """A thread that decodes may load a compiled function at the moment of a fork."""
    command = [*prepared.python(), "-W", "ignore", "-c", LOCKED, str(packed), library]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
