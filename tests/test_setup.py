"""The two set-up commands of the README, as far as they can be tested without installing anything."""

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import check_torchvision
import pytest
import pythons

ROOT = Path(__file__).parents[1]
SCRIPTS = [*sorted((ROOT / "tools").glob("*.sh")), *sorted((ROOT / "benchmarks").glob("*.sh"))]
BASH = shutil.which("bash") or "bash"
PROGRAMS = "bash dirname cat sha256sum sed du cut rm mkdir touch chmod tr sort cp"
TEST_EXTRAS = "sources,codecs,dicom,exr,fits,ray,monitor,remote,report,docs,examples,frameworks,bench,dev"


def bash(script: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, cwd="/")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy of the files that set-up reads, without .venv."""
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def fake_program(folder: Path, name: str, body: str) -> None:
    """A stand-in on the PATH, beside the few programs that the set-up needs."""
    folder.mkdir(exist_ok=True)
    for program in PROGRAMS.split():
        if not (folder / program).exists():
            (folder / program).symlink_to(shutil.which(program) or program)
    (folder / name).write_text(f"#!{BASH}\n{body}\n")
    (folder / name).chmod(0o755)


class Machine:
    """Runs set_up in a copy of the repository, where Python makes "environments" whose Python notes its arguments.

    own, pytorch: torch's versions on pip's own indexes, and on PyTorch's (None: cannot be reached). Further lines of
    `body` are run by the environment's Python for each call.
    """

    def __init__(self, repository: Path, own: str = "2.13.0+cpu", pytorch: str | None = None, body: str = "") -> None:
        self.repository, self.venv, self.programs = repository, repository / ".venv", repository / "bin"
        self.programs.mkdir()
        (self.programs / "environment-python").write_text(
            f"""#!{BASH}
case "$*" in -c*) exit 0;; esac  # a working Python
printf '%s\\n' "$*" >>"$(dirname "$0")/../calls"
case "$*" in
  *"pip index"*--index-url*) {f"echo '{pytorch}'" if pytorch else "exit 1"};;
  *"pip index"*) echo 'torch (2.15.0), Available versions: 2.15.0, {own}';;
esac
{body}
"""
        )
        making = (
            f'[ "$1 $2" = "-m venv" ] || exec {sys.executable} "$@"\nmkdir -p "$3/bin"\n'
            f'cat {self.programs}/environment-python >"$3/bin/python"; chmod +x "$3/bin/python"'
        )
        fake_program(self.programs, "python3", making)

    def set_up(self, level: str) -> subprocess.CompletedProcess[str]:
        command = f"set -euo pipefail; source '{self.repository}/tools/setup.sh'; set_up {level}; echo ready"
        environment = {"PATH": str(self.programs), "HOME": os.environ.get("HOME", "/")}
        return subprocess.run([BASH, "-c", command], capture_output=True, text=True, env=environment, cwd="/")

    def installs(self) -> list[str]:
        """The arguments of each `pip install` so far: those that differ from case to case."""
        calls = (self.venv / "calls").read_text().splitlines() if (self.venv / "calls").exists() else []
        common = "-m pip install --disable-pip-version-check --no-input "
        return [call.removeprefix(common) for call in calls if call.startswith(common)]

    def has_driver(self, cuda: str | None, cards: str = "9.0") -> None:
        """nvidia-smi answers as the driver of this CUDA version does; None: as one that cannot be asked. cards: their
        capabilities, "" for a driver that does not know the question."""
        told = "; ".join(f"echo {card}" for card in cards.split())
        query = told or "echo 'Field \"compute_cap\" is not a valid field'; exit 2"
        head = HEADER if float(cuda or 0) < 13.1 else NEWER_HEADER
        body = f"case \"$*\" in *compute_cap*) {query};; *) echo '{head.format(cuda=cuda)}';; esac"
        unanswered = "echo 'CUDA Version: 13.0 could not be asked for'; exit 9"
        fake_program(self.programs, "nvidia-smi", unanswered if cuda is None else body)


def test_all_scripts_parse() -> None:
    ci = ROOT / ".ci" / "run"
    assert [script.name for script in SCRIPTS] == ["demo.sh", "mutate.sh", "setup.sh", "test.sh", "environments.sh"]
    for script in [*SCRIPTS, ci]:
        assert subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True).stderr == ""
    assert "tools/test.sh" in ci.read_text() and os.access(ci, os.X_OK)  # the command of the README


def test_demo_of_an_invalid_folder(tmp_path: Path) -> None:
    (tmp_path / "loose.jpg").write_bytes(b"")
    for name, message in (("none", "no such folder"), (".", "holds no class folders with images in them")):
        done = bash(ROOT / "tools" / "demo.sh", tmp_path / name)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1) and message in done.stderr


OWN = f"python3.{sys.version_info[1]}"
WITHOUT_VENV = f'case "$2" in *ensurepip*) exit 1;; esac; exec {sys.executable} "$@"'
MADE = r"^Making \.venv with"
NONE_FOUND = r"^gpuload needs Python 3.10, .* found none as python3 .*: sudo apt install python3.13 python3.13-venv\n$"


def of_version(minor: int) -> str:
    """A Python that says it is of this version, which the check of the script runs."""
    return f"""[ "$1 $2" = "-m venv" ] && {{ mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; exit; }}
case "$2" in *version_info*) exec {sys.executable} -c "import sys; sys.version_info = (3, {minor}); $2" ;; esac
exit 0"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("exit 1", NONE_FOUND),  # as a version manager's stand-in with nothing behind it
        (WITHOUT_VENV, rf"^{OWN} cannot make a virtual environment(.|\n)*sudo apt install {OWN}-venv"),
        (of_version(9), NONE_FOUND),
        (of_version(10), MADE),
        (of_version(13), MADE),
        (of_version(14), NONE_FOUND),
    ],
)
def test_which_pythons_make_the_environment(repository: Path, body: str, said: str) -> None:
    fake_program(repository / "bin", "python3", body)
    done = bash(repository / "tools" / "setup.sh", "demo", PATH=str(repository / "bin"))
    assert re.search(said, done.stdout + done.stderr), done.stderr
    assert (done.returncode == 0) == (repository / ".venv").exists() == (said == MADE)


# Where .venv is new, where the one before was interrupted, and where its Python is gone.
@pytest.mark.parametrize("level", ["demo", "test"])
@pytest.mark.parametrize("left", [None, "unfinished", "broken"])
def test_makes_and_mends_the_environment(repository: Path, left: str | None, level: str) -> None:
    machine = Machine(repository)
    venv = machine.venv
    if left:
        (venv / "bin").mkdir(parents=True)
        (venv / "bin" / "python").symlink_to(sys.executable if left == "unfinished" else repository / "gone")
        (venv / "rest").touch()
        (venv / left).touch()
    done = machine.set_up(level)
    assert (done.returncode, done.stderr) == (0, "") and "Making .venv" in done.stdout
    assert not (venv / "rest").exists() and not (venv / "unfinished").exists()
    extras = "cpu,demo" if level == "demo" else f"cpu,dali,{TEST_EXTRAS}"
    assert machine.installs() == [f"--editable .[{extras}]"]
    assert machine.set_up(level).stdout == "ready\n" and len(machine.installs()) == 1
    with (repository / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    assert "Installing" in machine.set_up(level).stdout and len(machine.installs()) == 2


# The line of nvidia-smi that tells the version, up to driver 580, and of a newer one.
HEADER = "| NVIDIA-SMI 550.163.01             Driver Version: 550.163.01     CUDA Version: {cuda}     |"
NEWER_HEADER = "| NVIDIA-SMI 595.45.04              KMD Version: 595.45.04     CUDA UMD Version: {cuda}     |"

INDEX = "https://download.pytorch.org/whl/"
CPU, CPU_NEWER = (f"torch (2.14.1), Available versions: {found}" for found in ("2.14.1+cpu, 2.13.0+cpu", "2.14.1+cpu"))
FOR_12, NEWER_12 = (f"torch (2.14.1), Available versions: 2.14.1+cu126, {found}" for found in ("2.13.0+cu126", "2.15"))


# Driver's CUDA and cards, as in the table of docs/quickstart.md; torch on pip's and PyTorch's indexes; PyTorch's index
# and the extra that are installed; what is said.
@pytest.mark.parametrize(
    ("cuda", "cards", "own", "pytorch", "index", "extra", "said"),
    [
        ("13.0", "9.0", "2.13.0", FOR_12, "", "cuda13", "3.3 GB to download"),  # H100, driver 580
        ("13.2", "9.0", "2.13.0", FOR_12, "", "cuda13", "3.3 GB to download"),  # with driver 595
        ("13.0", "7.5 8.9", "2.13.0", FOR_12, "", "cuda13", ""),  # T4 and L4
        ("13.0", "", "2.13.0", FOR_12, "", "cuda13", ""),
        ("13.0", "7.0", "2.13.0", FOR_12, "cu126", "cuda12", ""),  # V100: no build for CUDA 13
        ("13.0", "6.0 8.0", "2.13.0", FOR_12, "cu126", "cuda12", ""),  # P100 beside A100
        ("12.2", "9.0 9.0", "2.13.0", FOR_12, "cu126", "cuda12", ""),  # H100, driver 535
        ("11.4", "7.0", "2.13.0", FOR_12, "", "", "for CUDA 11.4, and gpuload needs 12 or newer. Upgrade the driver"),
        ("12.8", "10.0", "2.13.0", FOR_12, "", "", "10.0 needs torch for CUDA 13, .*580 or newer; .* for CUDA 12.8"),
        ("13.0", "6.1 12.0", "2.13.0", FOR_12, "", "", "12.0 needs torch for CUDA 13, .*no GPU older than Turing"),
        ("12.4", "9.0", "2.13.0", None, "", "", f"{INDEX}cu126 cannot be reached .*Upgrade the driver to 580"),
        ("12.4", "9.0", "2.13.0", NEWER_12, "", "", "torch 2.13.0 for CUDA 12, .*reached or does not have it"),
        (None, "", "2.13.0+cpu", None, "", "cpu", "0.4 GB to download"),
        (None, "", "2.13.0", CPU, "cpu", "cpu", "0.4 GB to download"),
        (None, "", "2.13.0", CPU_NEWER, "", "cpu", "torch comes as its CUDA build"),
        (None, "", "2.13.0", None, "", "cpu", "2.9 GB to download, 5.6 GB on disk"),
    ],
)
def test_what_is_installed_fits_driver_and_card(
    repository: Path, cuda: str, cards: str, own: str, pytorch: str | None, index: str, extra: str, said: str
) -> None:
    machine = Machine(repository, own, pytorch)
    machine.has_driver(cuda, cards)
    done = machine.set_up("demo")
    if not extra:  # said in a line before anything is downloaded
        [line] = done.stderr.splitlines()
        assert done.returncode == 2 and machine.installs() == [] and re.search(said, line), line
        return
    assert (done.returncode, done.stderr) == (0, "") and re.search(said, done.stdout), done.stdout
    assert ("no NVIDIA driver" in done.stdout) == (cuda is None)
    assert (f"torch comes from {INDEX}{index}, as its build for {index}." in done.stdout) == bool(index)
    (machine.venv / "rest").touch()
    machine.set_up("test")
    assert (machine.venv / "rest").exists()  # it adds to what the demo uses
    options, dali = f"--extra-index-url {INDEX}{index} " * bool(index), ",dali" * (cuda is None)
    wanted = [f"{options}--editable .[{extra},demo]", f"{options}--editable .[{extra}{dali},{TEST_EXTRAS}]"]
    assert machine.installs() == wanted
    # CUDA 13's libraries are pinned where torch needs them, and nowhere else.
    assert (machine.venv / "constraints.txt").exists() == (extra == "cuda12")
    if extra == "cuda12":
        left = (machine.venv / "constraints.txt").read_text()
        assert "torch==" in left and "nvidia-dali-cuda120==" in left and "nvidia-nvjpeg-cu12==" in left
        assert not [line for line in left.splitlines() if line.startswith("cuda-") or "-cu13" in line]


FAILS = 'case "$*" in *"{command}"*) echo "no space left" >&2; exit 1;; esac'


@pytest.mark.parametrize(
    ("command", "levels", "codes", "said"),
    [
        ("pip install", ["demo"], [2], "no space left\nInstalling failed; pip says why above."),
        ("frameworks", ["demo", "test"], [0, 2], "no space left\nInstalling failed"),  # of what is there already
        # What does not fit ends the tests alone; torch may be another one since.
        ("check_torchvision", ["demo", "test", "test"], [0, 2, 2], "no space left\n"),
    ],
)
def test_a_failure_is_said(repository: Path, command: str, levels: list[str], codes: list[int], said: str) -> None:
    machine = Machine(repository, body=FAILS.format(command=command))
    done = [machine.set_up(level) for level in levels]
    assert [one.returncode for one in done] == codes and done[-1].stderr.startswith(said)
    is_whole = command == "check_torchvision"
    assert ("Making .venv" in machine.set_up("demo").stdout) != is_whole  # a part of it is no environment


def test_torch_and_torchvision_that_do_not_fit(monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> None:
    assert check_torchvision.problem() is None
    monkeypatch.setattr(metadata, "requires", {"torchvision": ["numpy>=99", "torch==2.13.0"]}.get)
    monkeypatch.setattr(metadata, "version", {"torch": "2.13.0+cpu"}.get)
    assert check_torchvision.problem() is None
    monkeypatch.setattr(metadata, "version", {"torch": "2.12.0+cu130"}.get)
    conftest: Any = pytestconfig.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    wrong = "torch 2.12.0+cu130, expected ==2.13.0 by torchvision"
    assert conftest.pytest_report_header().startswith(f"{wrong}. Delete .venv")


def test_alone_it_says_what_there_is_and_installs_a_level(repository: Path) -> None:
    machine = Machine(repository)

    def run(*arguments: str) -> tuple[int, str, str]:
        done = bash(repository / "tools" / "setup.sh", *arguments, PATH=str(machine.programs))
        return done.returncode, done.stdout, done.stderr

    code, said, wrong = run()
    assert (code, wrong) == (0, "") and not machine.venv.exists() and str(machine.venv) in said
    for size in ("train.py: 0.4 GB to download, 1.4 GB on disk\n", "tools: 0.9 GB to download, 4.7 GB on disk\n"):
        assert size in said and "There is no NVIDIA driver" in said
    for arguments in (["both"], ["demo", "test"]):
        assert run(*arguments) == (2, "", said)
    assert "Installing what the demo uses" in run("demo")[1] and machine.installs() == ["--editable .[cpu,demo]"]
    machine.has_driver("13.0")
    assert "0.4 GB" not in run()[1] and "3.3 GB to download, 6.5 GB on disk" in run()[1]


@pytest.mark.parametrize(
    ("folders", "arguments"),
    [
        (["a", "b"], "{folder} {shards} --val 0.1"),
        (["train", "val"], "{folder} {shards}"),
        (["train", "test", "dev"], "{folder} {shards}"),
        (["train", "test"], "{folder}/train {shards} --val 0.1"),  # --val is refused where a source has splits
        (["training", "testing"], "{folder}/training {shards} --val 0.1"),
    ],
)
def test_demo_packs_a_set_with_validation(tmp_path: Path, folders: list[str], arguments: str) -> None:
    for name in folders:
        (tmp_path / "photos" / name / "x").mkdir(parents=True)
        (tmp_path / "photos" / name / "x.jpg").write_bytes(b"")
    tools, programs = tmp_path / "tools", tmp_path / ".venv" / "bin"
    tools.mkdir()
    programs.parent.mkdir()
    shutil.copy(ROOT / "tools" / "demo.sh", tools)
    (tools / "setup.sh").write_text(f"root={tmp_path}\nset_up() {{ :; }}\n")
    # Notes what it is called with, and stops the demo after packing.
    fake_program(programs, "python", f'echo "$*" >"{tmp_path}/called"; exit 9')
    assert bash(tools / "demo.sh", tmp_path / "photos").returncode == 1
    called = re.sub(r"demo/photos-\w+/", "demo/", (tmp_path / "called").read_text())
    assert called == f"tools/pack.py {arguments.format(folder=tmp_path / 'photos', shards='demo/shards')}\n"


_MAKES = 'case $2 in venv) mkdir -p "$4/bin"; cat "$0" >"$4/bin/python"; chmod +x "$4/bin/python";; '


@pytest.mark.parametrize(
    ("body", "works", "said"),
    [
        ("exit 127", True, "skipped: this machine does not have it"),
        ("case $2 in venv) echo no space left; exit 1; esac", True, "skipped: cannot be set up here. no space left"),
        (_MAKES + "*) echo 5 passed; esac", True, "packed, verified, an epoch for NumPy"),
        (_MAKES + 'import*) ;; *) case "$*" in *check_wheel*) echo no x; exit 1; esac; esac', False, "no x"),
        (_MAKES + "pytest) echo 1 failed; exit 1; esac", False, "1 failed"),
    ],
)
def test_other_pythons_are_tried_or_skipped_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, body: str, works: bool, said: str
) -> None:
    for name in ("3.10", "3.11", "3.12", "3.13", "3.14"):
        fake_program(tmp_path / "programs", f"python{name}", body)
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setattr(pythons, "install", lambda python: False)
    assert pythons.main([]) == (not works)
    told = capsys.readouterr().out
    assert told.count(said) == 4 and told.count("FAILED") == (0 if works else 4), told


_ACTIVATED = """case $2 in venv)
  mkdir -p env/bin
  cat "$0" >env/bin/python
  printf '#!/bin/sh\\n' >env/bin/pip
  chmod +x env/bin/*
  echo "PATH=$PWD/env/bin:$PATH" >env/bin/activate;;
esac
"""


@pytest.mark.parametrize(
    ("body", "works", "said"),
    [
        ("exit 127", True, "skipped: this machine does not have it"),
        ("case $2 in venv) exit 1; esac", False, "+ python3 -m venv env"),
        (_ACTIVATED, True, "README's blocks ran, without what needs torch (no CPU build of it is at hand)"),
        (_ACTIVATED + 'case "$*" in *index*) echo 2.13.0+cpu; esac', True, "README's blocks ran; "),
        (_ACTIVATED + 'case "$*" in *doctor*) exit 1; esac', True, "README's blocks ran"),
        (_ACTIVATED + 'case "$*" in *digits.py*) echo no sklearn; exit 1; esac', False, "no sklearn"),
        (_ACTIVATED + 'case "$*" in *doctor*) echo broken; exit 2; esac', False, "broken"),
    ],
)
def test_the_blocks_of_readme_are_run_by_each_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, body: str, works: bool, said: str
) -> None:
    for name in ("3.10", "3.11", "3.12", "3.13", "3.14"):
        fake_program(tmp_path / "programs", f"python{name}", body)
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setattr(pythons, "copy_repository", lambda folder: folder.mkdir(parents=True))
    assert pythons.main(["--readme"]) == (not works)
    told = capsys.readouterr().out
    assert told.count(said) == 5 and told.count("FAILED") == (0 if works else 5), told


def test_what_of_readme_is_run() -> None:
    """All that its blocks say, in their order, but for the scripts that make environments of their own."""
    text = (ROOT / "README.md").read_text()
    install, use = pythons.readme_scripts("pip install torch==2.13.0+cpu")
    lines = [line for block in re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S) for line in block.splitlines()]
    commands = [re.sub(r" +#.*", "", line) for line in lines]
    ran = [re.sub(r" +(#|\|\|).*", "", line) for line in (*install.splitlines()[1:], *use.splitlines()[2:])]
    in_bash = [line for line in ran if line in commands]
    own = [line for line in commands if not line.startswith(("bash tools/", "pip install torch"))]
    assert in_bash == own and {"info", "show", "report", "verify", "doctor", "tune"} <= {
        line.split()[3] for line in own if "-m gpuload" in line
    }
    assert "pip install torch==2.13.0+cpu" in install and "T.RandomErasing" in use
    assert pythons.README == ROOT / "README.md" and " torch " not in "".join(pythons.readme_scripts(""))


def test_the_copy_of_the_repository_is_what_git_has(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("needs a git clone")
    pythons.copy_repository(tmp_path / "clone")
    assert (tmp_path / "clone" / "tools" / "pythons.py").read_bytes() == Path(pythons.__file__).read_bytes()
    assert not (tmp_path / "clone" / ".git").exists() and not (tmp_path / "clone" / ".venv").exists()
