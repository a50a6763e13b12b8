"""Runs tests in forks of a process that has imported everything but gpuload and the tests.

Importing NumPy, Arrow, torch and pytest takes seconds, a fork milliseconds. gpuload itself is imported in each
fork, with one module changed.
"""

import contextlib
import gc
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mutation.plugin import TOO_SLOW, Quick
from mutation.stages import ROOT

SITE = Path(__file__).parent / "site"
MOST_BYTES = 8 << 30  # that a change may make a process ask for
OUTSIDE = (
    "numpy pyarrow pyarrow.compute pyarrow.dataset pyarrow.ipc torch torchvision_anywhere hypothesis "
    "hypothesis.strategies hypothesis.extra.numpy PIL.Image PIL.ImageDraw webdataset numba simplejpeg braceexpand rich "
    "rich.progress nvidia.dali nvidia.dali.fn nvidia.dali.pipeline h5py lmdb cupy"
)


def import_outside() -> None:
    """Imports what gpuload and its tests import from elsewhere; what is not installed is left out."""
    for name in OUTSIDE.split():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with contextlib.suppress(ImportError, AttributeError):  # Hypothesis looks at each module once, for constants
        importlib.import_module("hypothesis.internal.conjecture.providers")._get_local_constants()
    gc.freeze()


def in_fork(job: Callable[[], Any], cpu_s: float, wall_s: float, log: str = os.devnull) -> tuple[str, Any]:
    """("done", what the job returns), ("timeout", None) or ("died", None). The job's output goes to `log`."""
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        answer = Path(folder) / "answer.json"
        child = os.fork()
        if not child:
            try:
                _calm(folder, log, cpu_s)
                text = json.dumps(job())
                answer.write_text(text)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        end, status = time.monotonic() + wall_s, None
        while status is None and time.monotonic() < end:
            ended, found = os.waitpid(child, os.WNOHANG)
            status = os.waitstatus_to_exitcode(found) if ended else time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):  # the child's group: it, and what it has started
            os.killpg(child, signal.SIGKILL)
        if status is None:
            os.waitpid(child, 0)
        if status in (None, TOO_SLOW, -signal.SIGXCPU):
            return "timeout", None
        return ("done", json.loads(answer.read_text())) if answer.exists() else ("died", None)


def _calm(folder: str, log: str, cpu_s: float) -> None:
    os.setpgid(0, 0)
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s) + 1, int(cpu_s) + 2))
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for handle, name in enumerate((os.devnull, log, log)):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), handle)


def change_module(module: str, source: str) -> None:
    """From now on this process and its children import `source` instead of a module, given by its path."""
    path = Path(tempfile.gettempdir()) / "changed.py"
    path.write_text(source)
    name = module.removesuffix(".py").replace("/", ".")
    os.environ["GPULOAD_MUTANT"] = os.pathsep.join((name, str(ROOT / module), str(path)))
    os.environ["PYTHONPATH"] = os.pathsep.join((str(SITE), os.environ["PYTHONPATH"]))
    sys.path.insert(0, str(SITE))
    sys.modules.pop("sitecustomize", None)
    importlib.import_module("sitecustomize")


def run_tests(files: Sequence[str], limits: dict[str, float], made: Path) -> str | None:
    """The first test that fails; None if none does. limits: the tests, and their processor seconds. To be called in a
    fork."""
    quick = Quick(list(limits), made, limits)
    _pytest(files, quick, "-x")
    return quick.failed[0] if quick.failed else None


def survey(files: Sequence[str], modules: Sequence[str], made: Path) -> dict[str, Any]:
    """One run of all tests as they are: processor time of each, what fails, and which run which line of `modules`."""
    from coverage import Coverage

    coverage = Coverage(data_file=None, include=[str(ROOT / module) for module in modules], config_file=False)
    coverage.start()
    made.unlink(missing_ok=True)
    quick = Quick(None, made, coverage=coverage)
    base = made.with_suffix(".sets")
    shutil.rmtree(base, ignore_errors=True)
    _pytest(files, quick, f"--basetemp={base}")
    coverage.stop()
    made.write_text(json.dumps(quick.paths))
    data = coverage.get_data()
    lines = {}
    for module in modules:
        found = data.contexts_by_lineno(str(ROOT / module))
        lines[module] = {number: quick.tests_of(contexts) for number, contexts in found.items()}
    return {"seconds": quick.seconds, "elapsed": quick.elapsed, "failed": quick.failed, "lines": lines}


def _pytest(files: Sequence[str], quick: Quick, *options: str) -> None:
    if "--basetemp" not in "".join(options):
        options = (*options, f"--basetemp={tempfile.gettempdir()}/pytest")
    paths = [str(ROOT / "tests" / name) for name in files]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    without = [f"no:{name}" for name in ("cacheprovider", "unraisableexception", "threadexception")]
    plugins = [word for name in without for word in ("-p", name)]
    pytest.main(["-q", *plugins, "--no-header", "--tb=line", "--assert=plain", *options, *paths], plugins=[quick])
