"""`gpuload info`: options that it refuses. What it says: tests/order/test_mixedness.py."""

from pathlib import Path
from typing import Any

import numpy as np

import gpuload
from gpuload import cli
from gpuload.decode.dali.memory import needed


def test_larger_than_the_set(packed: Path, command: Any) -> None:
    found = command("info", packed, "--window", "10000", "--batch-size", "10000")
    assert found.code == cli.DONE and "10 of 10 shards mixed at a time" in found.out


def test_the_memory_that_a_loader_takes_on_a_gpu(tmp_path: Path, command: Any) -> None:
    """By hand: 4 images of 1000×500, all in each batch of 4; crops of 224 in float16, of which three batches are there."""
    gpuload.pack([{"image": np.zeros((500, 1000, 3), np.uint8)}] * 4, tmp_path, workers=1)
    crops, whole = 4 * 3 * 224 * 224, 4 * 3 * 500_000
    dataset = gpuload.Dataset(tmp_path / "train")
    assert needed([dataset], 4)[:2] == (2 * whole + 2 * 3 * 2 * crops, 2 * crops + 3 * 2 * crops)
    said = command("info", "train", "--batch-size", "400").words
    assert "GPU memory about 1.9 GB with decoder='dali', 0.5 GB with 'native', for batches of 400 crops of 224" in said


def test_samples_that_shuffled_epochs_leave_out(packed: Path, command: Any) -> None:
    for batch_size, said in (
        (8, "shuffled: 12 batches of 8 on one rank, 1 sample left out"),
        (97, ""),
        (96, "1 batch"),
    ):
        out = command("info", packed, "--batch-size", batch_size).words
        assert ("left out" in out) == bool(said) and said in out
    assert "drop_last=False keeps them" in out
