"""Tries gpuload with the other versions of Python that it runs with, as far as this machine has them.

    python tools/pythons.py

Each Python gets a bare environment with what gpuload[cpu,dali] lists. There tools/check_wheel.py packs, verifies and
loads a few images; tests of the compiled JPEG decoder and of the batches' memory follow. Where pip finds no CPU build
of torch, torch is left out, and batches are NumPy's. A Python that is missing, or cannot be set up, is skipped and
named. Exits with 1 where gpuload does not work.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ("tests/decode/native/test_jpeg.py", "tests/decode/test_buffers.py")
# Several times what each takes alone. What is not installed in time is skipped; what hangs is a fault.
INSTALL_S, TRY_S = 300, 600


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args(arguments)
    versions = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    others = [version for version in versions if version != "{}.{}".format(*sys.version_info)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda version: attempt(version, Path(folder) / version), others))
    for version, (works, text) in zip(others, answers, strict=True):
        print(f"Python {version}: {text}" if works else f"Python {version} FAILED:\n{text}", flush=True)
    return 0 if all(works for works, _ in answers) else 1


def attempt(version: str, folder: Path) -> tuple[bool, str]:
    """Whether nothing is wrong with gpuload on this version of Python, and what was done, or why not."""
    if (found := find(version)) is None:
        return True, "skipped: this machine does not have it"
    python, started = folder / "bin" / "python", time.monotonic()
    try:
        run([found, "-m", "venv", "--without-pip", folder], INSTALL_S)
        torch = install(python)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return True, f"skipped: cannot be set up here. {last_line(error)}"
    try:
        run([python, ROOT / "tools" / "check_wheel.py"], TRY_S, folder)
        tests = ["-m", "pytest", "-q", "-c", os.devnull, "--rootdir", ROOT, "--noconftest", "-p", "no:cacheprovider"]
        ran = run([python, *tests, "-k", "not overwritten", *(ROOT / test for test in TESTS)], TRY_S, folder)
    except subprocess.CalledProcessError as error:
        return False, str(error.stdout)
    except subprocess.TimeoutExpired as error:
        return False, str(error)
    loaded = "an epoch for torch" if torch else "an epoch for NumPy (no CPU build of torch is at hand)"
    return True, f"packed, verified, {loaded}; tests: {ran.splitlines()[-1]}; {time.monotonic() - started:.0f} s"


def find(version: str) -> str | None:
    """Each candidate is run: a version manager's stand-in may be on the PATH without a Python behind it."""
    managed = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    names = [shutil.which(f"python{version}"), *sorted(managed.glob(f"{version}.*/bin/python{version}"), reverse=True)]
    for name in filter(None, names):
        if subprocess.run([name, "-c", "import venv, sqlite3, lzma"], capture_output=True).returncode == 0:
            return str(name)
    return None


def install(python: Path) -> bool:
    """Returns whether torch is among it."""
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "--no-input"]
    constraints = (ROOT / "tools" / "constraints.txt").read_text()
    pinned = re.search(r"^torch==(.*)$", constraints, re.M)
    assert pinned is not None
    torch = f"{pinned[1]}+cpu" in run([*pip, "index", "versions", "torch"], INSTALL_S, check=False)
    lists = dict(re.findall(r"^(\w+) = \[(.*)\]", (ROOT / "pyproject.toml").read_text(), re.M))
    wanted = [one for name in ("cpu", "dali") for one in re.findall(r'"(.*?)"', lists[name])]
    wanted = [one for one in wanted if torch or not one.startswith("torch")]
    run([*pip, "install", "--quiet", "--no-compile", ROOT, "pytest", *wanted], INSTALL_S)
    return torch


def run(command: list[str | Path], most_s: float, folder: Path = ROOT, check: bool = True) -> str:
    """What the command says. It ends with all that it started."""
    constraints = str(ROOT / "tools" / "constraints.txt")
    environment = {**os.environ, "PIP_CONSTRAINT": constraints, "PYTHONPATH": str(ROOT / "tests")}
    words = [str(word) for word in command]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(words, cwd=folder, env=environment, text=True, start_new_session=True, **both) as process:
        try:
            said, _ = process.communicate(timeout=most_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if check and process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words, said)
    return str(said)


def last_line(error: subprocess.CalledProcessError | subprocess.TimeoutExpired) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"It took longer than {error.timeout:.0f} s, as with a slow network or a busy machine"
    said = str(error.stdout)
    return next((line.strip() for line in reversed(said.splitlines()) if line.strip()), str(error))


if __name__ == "__main__":
    sys.exit(main())
