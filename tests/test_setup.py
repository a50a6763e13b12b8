"""The two set-up commands of the README, as far as they can be tested without installing anything."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "tools").glob("*.sh"))


def bash(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", script, *arguments], capture_output=True, text=True, env={**os.environ, **environment}, timeout=60
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy of the files that set-up reads, without .venv."""
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def fake_python(folder: Path, name: str, body: str) -> None:
    """Puts a fake Python on the PATH, together with the few programs that set-up needs."""
    folder.mkdir(exist_ok=True)
    for program in ("bash", "dirname", "cat", "sha256sum", "sed", "head", "rm", "mkdir", "touch"):
        if not (folder / program).exists():
            (folder / program).symlink_to(shutil.which(program) or program)
    (folder / name).write_text(f"#!{shutil.which('bash')}\n{body}\n")
    (folder / name).chmod(0o755)


def test_all_scripts_parse() -> None:
    assert [script.name for script in SCRIPTS] == ["demo.sh", "gpu_check.sh", "setup.sh", "test.sh"]
    for script in [*SCRIPTS, ROOT / ".ci" / "run"]:
        assert subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True).stderr == ""


def test_ci_runs_the_command_of_the_readme() -> None:
    assert "tools/test.sh" in (ROOT / ".ci" / "run").read_text()
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "none", "no such folder"),
        (lambda folder: folder, "holds no class folders with images in them"),
    ],
)
def test_demo_of_an_invalid_folder(tmp_path: Path, make, message: str) -> None:
    (tmp_path / "loose.jpg").write_bytes(b"")
    done = bash(str(ROOT / "tools" / "demo.sh"), str(make(tmp_path)))
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr


def test_no_python(repository: Path) -> None:
    programs = repository / "bin"
    fake_python(programs, "python3", "exit 1")  # too old, or a version manager's stub of a version not installed
    done = bash(str(repository / "tools" / "test.sh"), PATH=str(programs))
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "gpuload needs Python 3.10 or newer and found none as python3 or python3.10 … 3.13. "
        "On Debian or Ubuntu: sudo apt install python3 python3-venv"
    ]
    assert not (repository / ".venv").exists()


def test_python_without_ensurepip(repository: Path) -> None:
    programs = repository / "bin"
    body = f'case "$2" in *ensurepip*) exit 1;; esac; exec {sys.executable} "$@"'
    fake_python(programs, "python3", body)
    done = bash(str(repository / "tools" / "test.sh"), PATH=str(programs))
    assert done.returncode == 2
    version = f"python3.{sys.version_info[1]}"
    assert f"{version} cannot make a virtual environment" in done.stderr
    assert f"sudo apt install {version}-venv" in done.stderr


# Without .venv, with one whose installation was interrupted, and with one whose Python no longer exists.
@pytest.mark.parametrize("left", [None, "unfinished", "broken"])
def test_creates_and_repairs_the_environment(repository: Path, left: str | None) -> None:
    venv = repository / ".venv"
    if left:
        (venv / "bin").mkdir(parents=True)
        (venv / "bin" / "python").symlink_to(sys.executable if left == "unfinished" else repository / "gone")
        (venv / "rest").touch()
        if left == "unfinished":
            (venv / "unfinished").touch()
    programs = repository / "bin"
    # Creates an "environment" whose Python only records how it is called.
    record_call = 'printf "%s\\n" "$*" >>"$(dirname "$0")/../calls"'
    make_venv = f'[ "$1 $2" = "-m venv" ] || exec {sys.executable} "$@"; mkdir -p "$3/bin"; ' + (
        f"printf '#!/bin/bash\\n%s\\n' '{record_call}' >\"$3/bin/python\"; chmod +x \"$3/bin/python\""
    )
    fake_python(programs, "python3", make_venv)
    (programs / "chmod").symlink_to(shutil.which("chmod") or "chmod")
    command = f"set -euo pipefail; source '{repository}/tools/setup.sh'; echo ready"
    environment = {**os.environ, "PATH": str(programs)}

    def source() -> subprocess.CompletedProcess[str]:
        bash_path = shutil.which("bash") or "bash"
        return subprocess.run([bash_path, "-c", command], capture_output=True, text=True, env=environment, cwd="/")

    done = source()
    assert done.returncode == 0, done.stderr
    assert "Making .venv" in done.stdout
    assert not (venv / "rest").exists()
    assert not (venv / "unfinished").exists()
    calls = (venv / "calls").read_text()
    assert "pip install --quiet" in calls
    assert ".[cuda13,sources,ray,examples,frameworks,bench,dev]" in calls

    again = source()
    assert again.stdout.splitlines() == ["ready"]
    assert (venv / "calls").read_text() == calls

    with (repository / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    assert "Installing" in source().stdout


def test_constraints_pin_the_dependencies() -> None:
    lines = (ROOT / "tools" / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert "torch==2.13.0" in pins
    assert all("==" in line for line in pins)
    for name in ("numpy", "pyarrow", "nvidia-dali-cuda130", "nvidia-dali-cuda120", "pytest", "hatchling"):
        assert any(line.startswith(f"{name}==") for line in pins), name
