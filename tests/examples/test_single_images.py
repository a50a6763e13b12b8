"""examples/single_images.py: a line a batch, and memory that is counted."""

import json
import re
from pathlib import Path

import made_up
import measure
import numpy as np
import pytest
import single_images

import gpuload

pytestmark = pytest.mark.usefixtures("one_thread")

LINE = re.compile(r"^ +(\d+) +([\d.]+) ms +([\d.]+) ms +([\d.]+) ms +[\d.]+ [MG]B +[\d.]+$", re.MULTILINE)


@pytest.mark.parametrize("form", ["lmdb", "hdf5"])
def test_each_batch_tells_its_times(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = made_up.make(form, tmp_path / f"pictures.{form}", 100, 32)
    record = tmp_path / "figures.json"
    options = ["--encode", "raw", "--size", "32", "--crop", "24", "--batch-size", "16", "--epochs", "2"]
    assert single_images.main([str(store), *options, "--json", str(record)]) == 0
    said = capsys.readouterr().out
    lines = LINE.findall(said)
    assert [int(line[0]) for line in lines] == [1, 2, 3, 4, 5] * 2  # of 90 for training
    found = json.loads(record.read_text())
    assert found["samples"] == 90
    for number, epoch in enumerate(found["epochs"]):
        assert epoch["images"] == 80
        assert epoch["peak_own_bytes"] > 50 << 20  # torch is there
        assert 0 < epoch["peak_shard_bytes"] <= found["shard_bytes"]
        waited = [float(line[3]) for line in lines[5 * number : 5 * number + 5]]
        assert sum(waited) == pytest.approx(1000 * epoch["waited_s"], abs=0.5)
    assert "2 of 2" in said


def test_stored_shuffled(tmp_path: Path) -> None:
    """The LMDB is sorted by class; the shards are not."""
    store, shards = made_up.make("lmdb", tmp_path / "pictures.lmdb", 200, 16), tmp_path / "packed"
    single_images.pack(store, shards, "keep", None)
    labels = gpuload.Dataset(shards / "train").labels
    assert len(set(labels.tolist())) == len(made_up.COLOURS)
    assert (np.diff(labels) != 0).mean() > 0.5


def test_mapped_bytes_are_those_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for place in ("in", "."):
        np.save(tmp_path / place / "array.npy", np.zeros(1 << 20, np.uint8))
    inside, beside = (np.load(tmp_path / place / "array.npy", mmap_mode="r") for place in ("in", "."))
    assert int(beside.sum()) == 0
    assert measure.mapped_bytes(tmp_path / "in") == 0
    assert int(inside.sum()) == 0
    assert measure.mapped_bytes(tmp_path / "in") == pytest.approx(1 << 20, abs=8192)
