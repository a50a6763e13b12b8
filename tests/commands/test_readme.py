"""Every command and every program of README, as it is written there, run in an empty folder beside the repository's."""

import argparse
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from readme_data import make_shards, make_sources

from gpuload import cli
from gpuload.packing.verify import verify

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BEFORE, _, AFTER = README.partition("\n## Packing\n")
PACKING = AFTER.partition("\n## ")[0]
OTHERS = BEFORE + AFTER.removeprefix(PACKING)

# What is done with each command outside of the section on packing, of which all are run. A new one needs a row here.
#   run      it is run
#   parse    its arguments are parsed, and nothing is done, for the reason given
#   shell    bash parses it, or the script that it names
#   install  what it installs exists
#   name     it is no whole command, but names one that exists
RULES = {
    "bash tools/demo.sh": ("shell", "installs packages and takes a minute"),
    "bash tools/demo.sh path/to/photos": ("shell", "installs packages and takes minutes"),
    "bash tools/test.sh": ("shell", "installs packages and runs all tests"),
    "source .venv/bin/activate": ("shell", "needs the environment that is installed"),
    "pip install -e '.[cpu]'": ("install", "downloads 0.4 GB or more"),
    "pip install -e '.[cpu,examples,sources]'": ("install", "downloads 0.4 GB or more"),
    "pip install -e '.[cpu,remote]'": ("install", "downloads 0.4 GB or more"),
    "python -m gpuload info s3://bucket/set/train": ("parse", "needs a bucket; see tests/store"),
    "python -m gpuload fetch s3://bucket/set/train /nvme/set": ("parse", "needs a bucket; see tests/store"),
    "python tools/digits.py photos": ("run", ""),
    "python -m gpuload pack photos shards --val 0.1": ("run", ""),
    "python examples/train.py shards --epochs 5": ("parse", "trains for a minute; see tests/examples/test_train.py"),
    "python -m gpuload info shards/train": ("run", ""),
    "python -m gpuload doctor shards/train": ("parse", "takes 10 s; see tests/commands/test_doctor.py"),
    "python -m gpuload verify shards --decoder dali --quarantine bad.jsonl": ("run", ""),
    "python tools/fuzz.py --count 1000": ("parse", "takes minutes; see tests/test_fuzz.py"),
    "bash tools/mutate.sh": ("shell", "takes hours; its record is in tools/results"),
    "python tools/soak.py --hours 1": ("parse", "takes an hour; see tests/examples/test_soak.py"),
    "python -m gpuload tune shards/train --device cuda": ("parse", "needs a GPU; see tests/commands/test_tune.py"),
    "python -m gpuload warm-up": ("parse", "compiles; see tests/decode/native"),
    "torchrun --standalone --nproc-per-node 8 examples/train.py shards": (
        "parse",
        "trains in 8 processes; see tests/iterator/test_torchrun.py",
    ),
    "python examples/inpainting.py coco64": ("parse", "takes half a minute; see tests/examples"),
    "python examples/single_images.py pictures.lmdb --encode raw --size 128 --memory 2GB": (
        "parse",
        "takes a minute; see tests/examples",
    ),
    "python examples/detection_as_classification.py ILSVRC": ("parse", "takes minutes; see tests/examples"),
    "OMP_NUM_THREADS=1 python examples/regression.py road.h5 --threads 1": (
        "parse",
        "takes minutes; see tests/examples",
    ),
    "python tools/bench_pack.py photos": ("parse", "measures for minutes"),
    "python tools/bench.py shards/train": ("parse", "measures for minutes; see tests/examples/test_bench.py"),
    "python tools/bench.py shards/train --read-only": ("parse", "measures; see tests/examples/test_bench.py"),
    "python tools/scale.py /var/tmp/scale": ("parse", "writes 7.4 GB; see tests/examples/test_scale.py"),
    "python tools/first_batch.py shards/train": ("parse", "starts 7 processes; see tests/examples/test_first_batch.py"),
    "python tools/first_batch.py shards/train --cold": ("parse", "compiles 7 times; see tests/examples"),
    "python tools/gpu_check.py photos": ("parse", "needs a GPU and 18 minutes; see tests/examples/test_gpu_check.py"),
}
_COMMAND = r"(?:\w+=\S+ )*(?:python|python3|bash|sh|torchrun|pip|source|git) "


class ParsedError(Exception):
    """The arguments of a command were accepted."""


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def lines(text: str) -> list[str]:
    """The commands in the bash blocks of a text, without their comments."""
    return [
        re.sub(r"\s+#.*", "", line).strip() for block in blocks(text, "bash") for line in block.splitlines() if line
    ]


def inline(text: str) -> list[str]:
    """The commands within the sentences and tables of a text; one that is wrapped at a line's end is on one line."""
    commands = re.findall(rf"`({_COMMAND}[^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [re.sub(r"\s+", " ", command) for command in commands]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that has of the repository only what commands name."""
    for name in ("tools", "examples", "gpuload", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # which scripts change
    return tmp_path


def run_python(words: list[str]) -> int:
    """Runs what follows `python` on a command line, in this process; returns its exit code."""
    if words[:2] == ["-m", "gpuload"]:
        return cli.main(words[2:])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as exit:
            runpy.run_path(words[0], run_name="__main__")
    return int(exit.value.code or 0) if not isinstance(exit.value.code, str) else 1


def parse_python(words: list[str]) -> None:
    """Has the arguments of what follows `python` parsed, and nothing else done."""
    parse_args = argparse.ArgumentParser.parse_args

    def parse_only(self: Any, *arguments: Any) -> None:
        parse_args(self, *arguments)
        raise ParsedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
        patch.setattr(sys, "argv", words)
        with pytest.raises(ParsedError):
            cli.main(words[2:]) if words[0] == "-m" else runpy.run_path(words[0], run_name="__main__")


def parse(command: str) -> None:
    words = [word for word in shlex.split(command) if not re.match(r"[A-Z_]+=", word)]
    if words[0] == "torchrun":
        from torch.distributed.run import get_args_parser

        known, _ = get_args_parser().parse_known_args(words[1:])
        words = ["python", known.training_script, *known.training_script_args]
    assert words[0] == "python"
    parse_python(words[1:])


def check_shell(command: str) -> None:
    words = shlex.split(command)
    script = ["-n", words[1]] if words[0] == "bash" else ["-n", "-c", command]
    assert subprocess.run(["bash", *script], capture_output=True, text=True).stderr == ""


def check_install(command: str) -> None:
    """That the current folder is a project, which has the extras."""
    found = re.fullmatch(r"pip install -e '\.\[([\w,]+)\]'", command)
    assert found
    project = Path("pyproject.toml").read_text()
    assert 'name = "gpuload"' in project
    assert all(f"\n{extra} = [" in project for extra in found[1].split(","))


def test_every_command_but_those_that_pack(here: Path) -> None:
    commands = [*lines(OTHERS), *inline(OTHERS)]
    assert sorted(set(commands)) == sorted(RULES), "a command without a rule, or a rule without a command"
    for command in commands:
        how, _ = RULES[command]
        if how == "run":
            assert run_python(shlex.split(command)[1:]) == 0, command
        else:
            {"parse": parse, "shell": check_shell, "install": check_install}[how](command)
    assert verify("shards", 1) == []


def test_every_command_that_packs(here: Path) -> None:
    assert inline(PACKING) == ["python tools/pack.py", "python -m gpuload pack"]
    assert (here / "tools" / "pack.py").exists()
    make_sources(here)
    found = lines(PACKING)
    assert len(found) == 24
    for line in found:
        words = shlex.split(line)
        assert words[:3] == ["python", "-m", "gpuload"], line
        command = words[3:]
        if command[0] == "pack" and command[2] == "shards":
            shutil.rmtree("shards", ignore_errors=True)
        workers = [] if command[0] == "index" else ["--workers", "1"]
        assert cli.main([*command, *workers]) == cli.DONE, command
        if command[0] == "pack":
            assert verify(command[2], 1) == [], command
    assert sorted(os.listdir("split")) == ["test", "train", "val"]


# The first batch of the loader that each program of README makes, in their order: its name, and the batch's fields.
PROGRAMS = (
    ("loader", ["images", "labels"]),
    ("val", ["images", "labels"]),
    ("mixed", ["images", "labels"]),
    ("loader", ["images", "labels"]),
    ("loader", ["image", "mask", "boxes", "caption", "key"]),
    ("loader", ["images", "labels"]),
)


WATCHES = re.compile(r"\.(metrics|prometheus)\(")  # those are run by tests/monitor/test_readme_snippets.py


def test_every_program(here: Path) -> None:
    """They are run one after the other, in one Python; the lines that a diff takes away are those of other loaders."""
    make_shards(here)
    (diff,) = blocks(README, "diff")
    programs = ["\n".join(line[2:] for line in diff.splitlines() if line[0] != "-"), *blocks(README, "python")]
    programs = [program for program in programs if not WATCHES.search(program)]
    assert len(programs) == len(PROGRAMS)
    names: dict[str, Any] = {}
    for program, (loader, fields) in zip(programs, PROGRAMS, strict=True):
        exec(compile(program, "README.md", "exec"), names)
        with names[loader]:
            (batch,) = islice(names[loader], 1)
        assert len(batch) == len(fields)
        assert not isinstance(batch, dict) or list(batch) == fields
        assert len(batch["image"] if isinstance(batch, dict) else batch[0]) > 0
    assert (len(names["large"]), len(names["few"])) == (30, 30)


def heads() -> list[str]:
    """The commands in the docstrings of tools and examples."""
    found = []
    for script in sorted([*(ROOT / "tools").glob("*.py"), *(ROOT / "examples").glob("*.py")]):
        text = script.read_text()
        if "ArgumentParser" in text and "pytorch_lightning" not in text:  # whose import takes seconds
            named = rf"^ {{0,4}}((?:torchrun .*|python )(?:tools|examples)/{script.name}.*)$"
            found += [re.sub(r"\s+# .*", "", line) for line in re.findall(named, text.partition('\n"""\n')[0], re.M)]
    return found


def test_the_commands_in_the_heads_of_tools_and_examples(here: Path) -> None:
    commands = heads()
    assert len(commands) > 40
    for command in commands:
        parse(command)
