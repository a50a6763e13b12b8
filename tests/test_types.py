"""The types of the public functions, as type checkers see them, and the settings that `gpuload.pack` takes by name."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from gpuload.packing.options import PackOptions
from gpuload.packing.settings import PackSettings

ROOT = Path(__file__).parents[1]


def test_public_functions_are_typed() -> None:
    arguments = ["--config-file", str(ROOT / "pyproject.toml"), "tests/typed_calls.py"]
    run = subprocess.run([sys.executable, "-m", "mypy", *arguments], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


def test_each_setting_has_a_type() -> None:
    assert [*PackSettings.__annotations__] == [field.name for field in fields(PackOptions)]
