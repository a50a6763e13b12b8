"""Every command and every program of README, as it is written there, run in an empty folder beside the repository's."""

import importlib
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from readme_data import make_shards
from snippets import ROOT, blocks, parse_command, run_python
from snippets import commands as commands_of

from gpuload.packing.verify import verify

README = (ROOT / "README.md").read_text()

# Why a command is only parsed, and not run; None where it is run. A new one needs a row here.
RULES: dict[str, str | None] = {
    "bash tools/demo.sh": "installs packages and takes a minute",
    "bash tools/test.sh": "installs packages and runs all tests",
    "bash tools/demo.sh path/to/photos": "installs packages and takes minutes",
    "source .venv/bin/activate": "needs the environment that is installed",
    "pip install -e '.[cpu]'": "downloads 0.4 GB or more",
    "pip install -e '.[docs]'": "downloads packages",
    "python tools/digits.py digits": None,
    "python -m gpuload pack digits shards --val 0.1": None,
    "python examples/train.py shards --epochs 5": "trains for a minute; see tests/examples/test_train.py",
    "python tools/bench.py shards/train": "measures for minutes; see tests/examples/test_bench.py",
}
_COMMAND = r"(?:\w+=\S+ )*(?:python|python3|bash|sh|torchrun|pip|source|git) "


def lines() -> list[str]:
    """The commands in README's bash blocks."""
    return [command for block in blocks(README) if block.language == "bash" for command in commands_of(block.text)]


def inline() -> list[str]:
    """The commands within sentences and tables; one that is wrapped at a line's end is on one line."""
    found = re.findall(rf"`({_COMMAND}[^`]+)`", re.sub(r"```.*?```", "", README, flags=re.DOTALL))
    return [re.sub(r"\s+", " ", command) for command in found]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that has of the repository only what commands name."""
    for name in ("tools", "examples", "gpuload", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # which scripts change
    return tmp_path


def test_every_command(here: Path) -> None:
    commands = [*lines(), *inline()]
    assert commands[:2] == ["bash tools/demo.sh", "bash tools/test.sh"]  # which CI and newcomers run
    assert sorted(set(commands)) == sorted(RULES), "a command without a rule, or a rule without a command"
    for command in commands:
        if RULES[command] is None:
            assert run_python(shlex.split(command)[1:]) == 0, command
        else:
            parse_command(command)
    assert verify("shards", 1) == []


def test_every_program(here: Path) -> None:
    make_shards(here)
    (program,) = (block.text for block in blocks(README) if block.language == "python")
    names: dict[str, Any] = {}
    exec(compile(program, "README.md", "exec"), names)
    with names["loader"] as loader, names["val"] as val:
        assert [tuple(images.shape) for images, _ in loader] == [(256, 3, 224, 224)]
        assert [len(labels) for _, labels in val] == [33]
        assert names["state"]["epoch"] == 1 or names["state"]["samples"] == 256, names["state"]


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
    pytest.importorskip("torch")
    importlib.import_module("torchvision_anywhere")  # which some examples import
    commands = heads()
    assert len(commands) > 40
    for command in commands:
        parse_command(command)
