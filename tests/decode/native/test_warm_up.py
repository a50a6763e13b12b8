"""After `gpuload warm-up`, no loader compiles anything."""

import subprocess
from dataclasses import replace
from pathlib import Path

import prepared
import pytest

from gpuload import cli
from gpuload.decode.native import decoder

# What loaders call was called by the warm-up. It need not be compiled for that: any cache will do.
_LOADERS = """
import sys
from itertools import product
from typing import get_args

import gpuload
from gpuload import cli
from gpuload.augment.crops import CROPS
from gpuload.augment.views import DType, Layout
from gpuload.decode.native.compiled import _cached

def called():
    return {(function.py_func.__qualname__, types) for function in _cached for types in function.overloads}

assert not called() and cli.main(["warm-up"]) == 0
warm = called()
for dtype, layout, crop in product(get_args(DType), get_args(Layout), CROPS):
    for transforms in ((), (gpuload.transforms.ColorJitter(0.1),)):
        size = None if crop == "keep" else 8
        augment = gpuload.Augment(size, crop=crop, dtype=dtype, layout=layout, transforms=transforms)
        with gpuload.DaliIterator(sys.argv[1], 5, augment=augment, device="cpu", decoder="native") as loader:
            next(iter(loader))
print(len(warm) > 9, called() - warm)
"""


def test_it_compiles_all_that_loaders_call(packed: Path) -> None:
    command = [*prepared.python(), "-c", _LOADERS, str(packed)]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert said.splitlines()[-1] == "True set()"


@pytest.mark.parametrize(
    ("done", "code", "said"),
    [
        ({"compiled": 7, "seconds": 3.21}, 0, "the CPU decoder is compiled in 3.2 s, and kept in /one and /two\n"),
        ({"compiled": 0}, 0, "the CPU decoder is compiled already, in /one and /two\n"),
        ({"folders": ()}, cli.WRONG, "no folder can be written to keep it. Set NUMBA_CACHE_DIR to one that can\n"),
    ],
)
def test_it_says_where_the_code_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], done: dict[str, object], code: int, said: str
) -> None:
    usual = decoder.WarmUp((Path("/one"), Path("/two")), 0.5, 0)
    monkeypatch.setattr(decoder, "warm_up", lambda: replace(usual, **done))
    assert cli.main(["warm-up"]) == code
    out, error = capsys.readouterr()
    assert (error if code else out).endswith(said)
