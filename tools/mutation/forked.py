"""Runs tests in forks of a process that has imported everything but gpuload and the tests.

Importing NumPy, Arrow, torch and pytest takes seconds, a fork milliseconds. gpuload itself is imported in each
fork.
"""

import contextlib
import gc
import importlib
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

MOST_BYTES = 8 << 30  # that a change may make a process ask for
OUTSIDE = (
    "numpy pyarrow pyarrow.compute pyarrow.dataset pyarrow.ipc torch torchvision_anywhere hypothesis "
    "hypothesis.strategies hypothesis.extra.numpy PIL.Image PIL.ImageDraw webdataset simplejpeg braceexpand rich "
    "rich.progress nvidia.dali nvidia.dali.fn nvidia.dali.pipeline h5py lmdb cupy"
)


def import_outside(tree: Path) -> None:
    """Imports what gpuload and its tests import from elsewhere; what is not installed is left out.

    tree: the repository of which they are.
    """
    sys.path[:0] = [
        str(tree),
        *(
            str(tree / folder)
            for folder in ("benchmarks", "examples", "tools", "tests")
        ),
    ]
    os.environ |= {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    for name in OUTSIDE.split():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()


def in_fork(job: Callable[[], int], most_s: float) -> str:
    """How a run of tests ended: "survived", "killed" or "timeout". job: returns pytest's exit code."""
    begun = time.monotonic()
    status = None
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        child = os.fork()
        if not child:
            code = 1
            try:
                _calm(folder)
                code = int(job())
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        while status is None and time.monotonic() < begun + most_s:
            ended, exit_status = os.waitpid(child, os.WNOHANG)
            status = (
                os.waitstatus_to_exitcode(exit_status) if ended else time.sleep(0.02)
            )
        # The child's group: it, and what it has started.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if status is None:
            os.waitpid(child, 0)
    return "timeout" if status is None else "killed" if status else "survived"


def _calm(folder: str) -> None:
    os.setpgid(0, 0)
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for handle in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), handle)


def run_tests(tests: Sequence[str], also: Callable[[str], bool], note: Path) -> int:
    """pytest's exit code after these tests, in this order, until one fails. To be called in a fork.

    also: which other tests of the same files run first. note: the file that gets the name of the test that failed.
    """
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    files = sorted({test.partition("::")[0] for test in tests})
    options = ["-xq", "--tb=line", "--assert=plain", "-pno:cacheprovider"]
    code = pytest.main([*options, *files], plugins=[_Only(tests, also, note)])
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else int(code)


class _Only:
    """A plugin of pytest that runs some tests alone, and notes the one that fails."""

    def __init__(
        self, tests: Sequence[str], also: Callable[[str], bool], note: Path
    ) -> None:
        self._positions = {test: number for number, test in enumerate(tests)}
        self._also = also
        self._note = note

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [
            item
            for item in items
            if item.nodeid in self._positions or self._also(item.nodeid)
        ]
        items[:] = sorted(chosen, key=lambda item: self._positions.get(item.nodeid, -1))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._note.write_text(report.nodeid)
