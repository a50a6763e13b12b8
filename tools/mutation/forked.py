"""Runs tests in forks of a process that has imported everything but gpuload and the tests.

Importing NumPy, Arrow, torch and pytest takes seconds, a fork milliseconds. gpuload itself is imported in each
fork, with one module changed. Processes that tests start see the module on disk.
"""

import contextlib
import gc
import importlib
import importlib.abc
import importlib.util
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mutation.stages import ROOT

MOST_BYTES = 8 << 30  # that a change may make a process ask for
OUTSIDE = (
    "numpy pyarrow pyarrow.compute pyarrow.dataset pyarrow.ipc torch torchvision_anywhere hypothesis "
    "hypothesis.strategies hypothesis.extra.numpy PIL.Image PIL.ImageDraw webdataset numba simplejpeg braceexpand rich "
    "rich.progress nvidia.dali nvidia.dali.fn nvidia.dali.pipeline h5py lmdb cupy"
)
_OUTCOMES = {0: "survived", 1: "killed"}


def import_outside() -> None:
    """Imports what gpuload and its tests import from elsewhere; what is not installed is left out."""
    sys.path[:0] = [str(ROOT), *(str(ROOT / folder) for folder in ("examples", "tools", "tests"))]
    os.environ |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    for name in OUTSIDE.split():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()


def in_fork(job: Callable[[], int], most_s: float, log: str | Path = os.devnull) -> tuple[str, float]:
    """How a run of tests ended, "survived", "killed" or "timeout", and the seconds that it took.

    job: returns pytest's exit code. log: where its output goes.
    """
    begun, status = time.monotonic(), None
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        child = os.fork()
        if not child:
            code = 1
            try:
                _calm(folder, log)
                code = int(job())
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        while status is None and time.monotonic() < begun + most_s:
            ended, found = os.waitpid(child, os.WNOHANG)
            status = os.waitstatus_to_exitcode(found) if ended else time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):  # the child's group: it, and what it has started
            os.killpg(child, signal.SIGKILL)
        if status is None:
            os.waitpid(child, 0)
    return "timeout" if status is None else _OUTCOMES.get(status, "killed"), time.monotonic() - begun


def _calm(folder: str, log: str | Path) -> None:
    os.setpgid(0, 0)
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for handle, name in enumerate((os.devnull, log, log)):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), handle)


def run_tests(tests: Sequence[str], module: str = "", source: str = "") -> int:
    """pytest's exit code, with `source` in place of a module, given by its path. To be called in a fork."""
    if module:
        sys.meta_path.insert(0, _Changed(module.removesuffix(".py").replace("/", "."), str(ROOT / module), source))
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    without = [f"-pno:{name}" for name in ("cacheprovider", "unraisableexception", "threadexception")]
    return int(pytest.main(["-xq", "--tb=line", "--assert=plain", *without, *(f"tests/{one}" for one in tests)]))


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Finds one module, and compiles it from another text than its own. No bytecode is written."""

    def __init__(self, name: str, path: str, source: str) -> None:
        self._name, self._path, self._source = name, path, source

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        found = name == self._name
        return importlib.util.spec_from_file_location(name, self._path, loader=self) if found else None

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_data(self, path: str) -> bytes:
        return self._source.encode()
