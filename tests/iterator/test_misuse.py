"""What people try who know torch's DataLoader or DALI's iterators: an error that says what to write instead."""

import copy
import inspect
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loaders import load
from torch.utils.data import DataLoader

import gpuload
from gpuload.batchwise import FieldBatch
from gpuload.machine.installed import cuda_extra, install_command

BFLOAT16 = gpuload.Augment(8, dtype="bfloat16")


@pytest.mark.parametrize("name", sorted(set(inspect.signature(DataLoader).parameters) - {"self", "dataset"}))
def test_every_argument_of_a_dataloader_is_known_or_explained(packed: Path, name: str) -> None:
    with pytest.raises(gpuload.ArgumentError) as caught:
        load(packed, **{name: object()})
    assert not re.search("Its arguments are|Did you mean", str(caught.value))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda packed: load(packed, num_workers=8), "DaliIterator: has no argument 'num_workers'. Use num_threads"),
        (lambda packed: load(packed, batchsize=2), "has no argument 'batchsize'. Did you mean batch_size?"),
        (lambda packed: load(packed, fields={"corrupt": "image"}, on_corrupt="mark"), "two have the same name"),
        (lambda packed: load(packed, colour=2), "has no argument 'colour'. Its arguments are data, batch_size, augment"),
        (lambda packed: gpuload.DaliIterator(packed, 8), "missing a required argument: 'augment'. Its arguments are data,"),  # type: ignore[call-arg]
        (lambda packed: gpuload.DaliIterator(packed, 8, gpuload.Augment(8)), "DaliIterator: too many positional arguments"),  # type: ignore[misc]
        # Arguments that contradict each other
        (lambda packed: load(packed, rank=1), "rank=1, world_size=None: give both, or neither"),
        (lambda packed: load(packed, rank=2, world_size=2), "rank=2, world_size=2: expected 0 <= rank < world_size"),
        (lambda packed: load(packed, output="numpy", augment=BFLOAT16), "output='numpy': has no bfloat16; use float16 or"),
        (lambda packed: load(packed, output="cupy"), "CuPy arrays are on a GPU, and the device is the CPU. Use output='numpy'"),
    ],
)  # fmt: skip
def test_calls_that_cannot_be(packed: Path, call: Callable[[Path], object], message: str) -> None:
    with pytest.raises(gpuload.GpuloadError, match=message) as refused:
        call(packed)
    assert isinstance(refused.value, TypeError) == bool(re.search("argument", message))  # which Python would raise, too


@pytest.mark.parametrize(
    ("do", "message"),
    [
        (lambda loader: 3 in loader, "not a container"),
        (pickle.dumps, "cannot be pickled or copied.*Construct one in each process"),
        (copy.copy, "cannot be pickled or copied"),
        (copy.deepcopy, "cannot be pickled or copied"),
        (lambda loader: setattr(loader, "batch_size", 2), "batch_size cannot be changed after construction"),
    ],
)
def test_what_a_loader_does_not_do(packed: Path, do: Callable[[Any], object], message: str) -> None:
    with load(packed) as loader:
        with pytest.raises(TypeError, match=message) as raised:
            do(loader)
        assert isinstance(raised.value, gpuload.GpuloadError) or message.startswith("not ")  # else Python's own
        assert len(list(loader)) == len(loader)
        assert not any(hasattr(loader, name) for name in ("num_workers", "pin_memory", "reset"))


@pytest.mark.parametrize(
    "returned",
    [
        lambda batch: {**batch.fields, "image": batch.fields["image"] * 2},
        lambda batch: batch.fields["image"] * 2,
        lambda batch: FieldBatch({}, None, batch.draws),
    ],
)
def test_what_a_batch_transform_returns_is_not_ignored(packed: Path, returned: Callable[[Any], object]) -> None:
    loader = load(packed, batch_transforms=[returned])
    with pytest.raises(gpuload.ArgumentError, match="returned .*return values are ignored. Change the arrays"):
        next(iter(loader))
    in_place: list[Any] = [lambda b: b, lambda b: b.fields, lambda b: np.negative(b.fields["label"], b.fields["label"])]
    with load(packed, batch_transforms=in_place) as loader:
        _, _, labels = next(iter(loader))
        assert int(labels.min()) < 0


DELETED = """
import builtins, sys, gpuload
from loaders import load

class Ends(gpuload.DaliIterator):
    def __del__(self):
        self.close()

class Holds:
    def __init__(self):
        self.loader = load(sys.argv[1])
        self.batches = iter(self.loader)
        next(self.batches)

    def __del__(self):
        self.loader.close()

gpuload.DaliIterator = Ends
for folder in (sys.argv[1] + "/none", sys.argv[1]):
    try:
        ends = load(folder)
    except gpuload.FormatError:
        print("no such folder")
builtins.kept = Holds()  # goes when modules have gone
kept = Holds()
kept.itself = kept
"""


def test_a_loader_is_closed_by_a_del(packed: Path) -> None:
    """Whether it was constructed or not, and at the end of the interpreter: without a traceback."""
    with load(packed, 8) as loader:
        next(iter(loader))  # compiles, which the other process would tell of
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-W", "ignore", "-c", DELETED, str(packed)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "no such folder\n", "")


def test_numpy_output_without_torch(packed: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import gpuload, numpy as np\n"
        "augment = gpuload.Augment(12)\n"
        f"loader = gpuload.DaliIterator({str(packed)!r}, 8, augment=augment, device='cpu', output='numpy')\n"
        "images, labels = next(iter(loader))\n"
        "print(type(images) is np.ndarray, images.shape, images.dtype, labels.dtype)\n"
        f"try: gpuload.DaliIterator({str(packed)!r}, 8, augment=augment, device='cpu')\n"
        "except gpuload.MissingPackageError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[0] == "True (8, 3, 12, 12) float32 int64"
    extra = cuda_extra() or "cpu"
    assert f"output='torch': torch is not installed. `{install_command(extra)}` brings it. Or use output=" in said


def test_what_ranks_must_have_in_common(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Any] = []
    monkeypatch.setattr("gpuload.loader.iterator.compare_ranks", lambda *given: compared.append(given))
    loader = load(packed, 4, rank=1, world_size=3, drop_last=False)
    loader.check_ranks(7)
    settings = {"batch_size": 4, "drop_last": False, "batches": 9, "lanes": 1, "resized": [""]}
    assert compared == [(loader.ranks, {**loader.state_dict(), **settings}, 7)]


@pytest.mark.parametrize("drop_last", [True, False, "even", "exact"])
def test_ranks_are_told_apart_by_what_becomes_of_the_last_batch(
    packed: Path, drop_last: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[Any] = []
    monkeypatch.setattr("gpuload.loader.iterator.compare_ranks", lambda *given: compared.append(given[1]))
    load(packed, 4, rank=1, world_size=3, drop_last=drop_last).check_ranks()
    assert compared[0]["drop_last"] is drop_last


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_a_gpu_that_is_not_there(packed: Path) -> None:
    with pytest.raises(gpuload.DeviceError, match=r"device='cuda': needs GPU 0, and none can be used here .*'auto'"):
        load(packed, device="cuda", decoder="auto")
    assert load(packed, device="auto").device == "cpu"
