"""Tries gpuload with the other versions of Python that it runs with, as far as this machine has them.

    python tools/pythons.py
    python tools/pythons.py --readme

Each Python gets a bare environment with what gpuload[cpu,dali] lists. There tools/check_wheel.py packs, verifies and
loads a few images; tests of the compiled JPEG decoder and of the batches' memory follow. Where pip finds no CPU build
of torch, torch is left out, and batches are NumPy's. A Python that is missing, or cannot be set up, is skipped and
named. Exits with 1 where gpuload does not work.

With --readme, README's blocks are run instead, one after the other, by each Python, this one included, in a copy of the
repository without anything else. torch's CPU build is taken from pip's own indexes or from PyTorch's; where neither has
it, what needs torch is left out. What `bash tools/…` does is tested elsewhere (tests/test_setup.py, tests/examples).
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
README = ROOT / "README.md"
# Torch brings what report needs.
NEEDS_TORCH = re.compile(r"examples/train.py| report | tune ")
TESTS = ("tests/decode/native/test_jpeg.py", "tests/decode/test_buffers.py")
# Several times what each takes alone. What is not installed in time is skipped; what hangs is a fault.
INSTALL_S = 300
TRY_S = 600


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--readme", action="store_true", help="run the blocks of README"
    )
    options = parser.parse_args(arguments)
    versions = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    if not options.readme:
        versions.remove("{}.{}".format(*sys.version_info))
    try_version = attempt_readme if options.readme else attempt
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        answers = list(
            pool.map(
                lambda version: try_version(version, Path(folder) / version), versions
            )
        )
    for version, (works, text) in zip(versions, answers, strict=True):
        print(
            f"Python {version}: {text}"
            if works
            else f"Python {version} FAILED:\n{text}",
            flush=True,
        )
    return 0 if all(works for works, _ in answers) else 1


def attempt(version: str, folder: Path) -> tuple[bool, str]:
    """Whether nothing is wrong with gpuload on this version of Python, and what was done, or why not."""
    if (interpreter := find(version)) is None:
        return True, "skipped: this machine does not have it"
    python = folder / "bin" / "python"
    started = time.monotonic()
    try:
        run([interpreter, "-m", "venv", "--without-pip", folder], INSTALL_S)
        torch = install(python)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return True, f"skipped: cannot be set up here. {last_line(error)}"
    try:
        run([python, ROOT / "tools" / "check_wheel.py"], TRY_S, folder)
        tests = [
            "-m",
            "pytest",
            "-q",
            "-c",
            os.devnull,
            "--rootdir",
            ROOT,
            "--noconftest",
            "-p",
            "no:cacheprovider",
        ]
        ran = run(
            [python, *tests, "-k", "not overwritten", *(ROOT / test for test in TESTS)],
            TRY_S,
            folder,
        )
    except subprocess.CalledProcessError as error:
        return False, str(error.stdout)
    except subprocess.TimeoutExpired as error:
        return False, str(error)
    loaded = (
        "an epoch for torch"
        if torch
        else "an epoch for NumPy (no CPU build of torch is at hand)"
    )
    return (
        True,
        f"packed, verified, {loaded}; tests: {ran.splitlines()[-1]}; {time.monotonic() - started:.0f} s",
    )


def attempt_readme(version: str, folder: Path) -> tuple[bool, str]:
    """Whether README's blocks run one after the other with this version of Python, and what ran, or why not."""
    python = find(version)
    if python is None:
        return True, "skipped: this machine does not have it"
    started = time.monotonic()
    copy_repository(folder / "clone")
    programs = folder / "programs"
    programs.mkdir()
    (programs / "python3").symlink_to(python)
    places = {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": ""}
    try:
        line = torch_line(python)
        install, use = readme_scripts(line)
        run(["bash", "-c", install], INSTALL_S + TRY_S, folder / "clone", **places)
        run(["bash", "-c", use], TRY_S, folder / "clone", **places)
    except subprocess.CalledProcessError as error:
        return False, str(error.stdout)
    except subprocess.TimeoutExpired as error:
        return True, f"skipped: {last_line(error)}"
    left_out = (
        "" if line else ", without what needs torch (no CPU build of it is at hand)"
    )
    return True, f"README's blocks ran{left_out}; {time.monotonic() - started:.0f} s"


def copy_repository(to: Path) -> None:
    """The files that a clone of what is here would have."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().rstrip("\0").split("\0"):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to / name)


def torch_line(python: str) -> str:
    """The command that installs the pinned torch's CPU build: from pip's own indexes, or README's; "": none has it."""
    pinned = re.search(
        r"^torch==(.*)$", (ROOT / "tools" / "constraints.txt").read_text(), re.M
    )
    assert pinned is not None
    build = f"{pinned[1]}+cpu"
    pytorch = re.search(r"--index-url \S+", README.read_text())
    assert pytorch is not None
    for index in ("", pytorch[0]):
        command = [
            python,
            "-m",
            "pip",
            "index",
            "versions",
            "torch",
            "--retries",
            "0",
            *index.split(),
        ]
        if build in run(command, INSTALL_S, check=False):
            return f"pip install torch=={build} {index}"
    return ""


def readme_scripts(torch: str) -> tuple[str, str]:
    """README's blocks as two scripts: those that install, and those after them.

    torch: the command that installs it; "": without torch, and without what needs it.
    """
    parts = [["set -euxo pipefail"], ["set -euxo pipefail", "source env/bin/activate"]]
    install, use = parts
    for language, block in re.findall(
        r"^```(bash|python)\n(.*?)^```", README.read_text(), re.M | re.S
    ):
        if language == "python":
            use += [f"python - <<'BLOCK'\n{block}BLOCK"] if torch else []
            continue
        for line in block.splitlines():
            if line.startswith("pip install torch"):
                install.append(torch)
            elif line.startswith(("python3 -m venv", "source", "pip")):
                install.append(line if torch else line.replace("[cpu,", "["))
            elif line.startswith("python") and (torch or not NEEDS_TORCH.search(line)):
                # doctor ends with 1 where something needs attention.
                use.append(
                    f"{line.partition('#')[0]} || [ $? = 1 ]"
                    if " doctor " in line
                    else line
                )
    return "\n".join(install), "\n".join(use)


def find(version: str) -> str | None:
    """Each candidate is run: a version manager's stand-in may be on the PATH without a Python behind it."""
    managed = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    names = [
        shutil.which(f"python{version}"),
        *sorted(managed.glob(f"{version}.*/bin/python{version}"), reverse=True),
    ]
    for name in filter(None, names):
        if (
            subprocess.run(
                [name, "-c", "import venv, sqlite3, lzma"], capture_output=True
            ).returncode
            == 0
        ):
            return str(name)
    return None


def install(python: Path) -> bool:
    """Returns whether torch is among it."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "--disable-pip-version-check",
        "--no-input",
    ]
    constraints = (ROOT / "tools" / "constraints.txt").read_text()
    pinned = re.search(r"^torch==(.*)$", constraints, re.M)
    assert pinned is not None
    torch = f"{pinned[1]}+cpu" in run(
        [*pip, "index", "versions", "torch"], INSTALL_S, check=False
    )
    lists = dict(
        re.findall(r"^(\w+) = \[(.*)\]", (ROOT / "pyproject.toml").read_text(), re.M)
    )
    wanted = [
        package
        for name in ("cpu", "dali")
        for package in re.findall(r'"(.*?)"', lists[name])
    ]
    wanted = [package for package in wanted if torch or not package.startswith("torch")]
    run(
        [*pip, "install", "--quiet", "--no-compile", ROOT, "pytest", *wanted], INSTALL_S
    )
    # What the decoder is compared with; the newest Pythons wait for its wheels.
    run(
        [
            *pip,
            "install",
            "--quiet",
            "--no-compile",
            "--only-binary",
            ":all:",
            "simplejpeg",
        ],
        INSTALL_S,
        check=False,
    )
    return torch


def run(
    command: list[str | Path],
    most_s: float,
    folder: Path = ROOT,
    check: bool = True,
    **places: str,
) -> str:
    """What the command says. It ends with all that it started."""
    constraints = str(ROOT / "tools" / "constraints.txt")
    environment = {
        **os.environ,
        "PIP_CONSTRAINT": constraints,
        "PYTHONPATH": str(ROOT / "tests"),
        **places,
    }
    words = [str(word) for word in command]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(
        words, cwd=folder, env=environment, text=True, start_new_session=True, **both
    ) as process:
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
    return next(
        (line.strip() for line in reversed(said.splitlines()) if line.strip()),
        str(error),
    )


if __name__ == "__main__":
    sys.exit(main())
