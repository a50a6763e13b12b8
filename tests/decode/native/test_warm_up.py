"""After `gpuload warm-up`, no loader compiles anything."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpuload import cli
from gpuload.decode.native import warm_up

_LOADERS = """
import sys
from itertools import product
from typing import get_args

import gpuload
from gpuload.augment.geometries import CROPS
from gpuload.augment.views import DType, Layout
from gpuload.decode.native.compiled import count_compiled

for dtype, layout, crop in product(get_args(DType), get_args(Layout), CROPS):
    for transforms in ((), (gpuload.transforms.ColorJitter(0.1),)):
        size = None if crop == "keep" else 8
        augment = gpuload.Augment(size, crop=crop, dtype=dtype, layout=layout, transforms=transforms)
        with gpuload.DaliIterator(sys.argv[1], 5, augment=augment, device="cpu", decoder="native") as loader:
            next(iter(loader))
print(count_compiled())
"""


def test_it_compiles_all_that_loaders_call(packed: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def run(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout

    assert f"it is kept in {tmp_path}" in run("-m", "gpuload", "warm-up")
    assert run("-c", _LOADERS, str(packed)) == "0\n"
    assert "is compiled already, in " in run("-m", "gpuload", "warm-up")


def test_where_it_cannot_be_kept_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = warm_up.warm_up()
    monkeypatch.setattr(warm_up, "warm_up", lambda: replace(done, folders=()))
    assert cli.main(["warm-up"]) == cli.WRONG
    assert "no folder can be written to keep it. Set NUMBA_CACHE_DIR to one that can" in capsys.readouterr().err
