"""benchmarks/decoded_copies.py, and benchmarks/partial_reads.py: short runs, and that what they count is what is read."""

import json
import shutil
from pathlib import Path

import numpy as np
import prepared
import pytest
from images import encode, smooth_image

import gpuload
from benchmarks import decoded_copies, partial_reads


def test_all_ways_are_measured(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = tmp_path / "figures.json"
    arguments = [str(packed / "val"), "--folder", str(tmp_path / "copies"), "--json", str(figures), "--size", "40"]
    more = ["--runs", "1", "--counts", "1", "--seconds", "0.1"]
    monkeypatch.setattr(decoded_copies.sys, "argv", ["decoded_copies", *arguments, *more])
    monkeypatch.setattr(decoded_copies.sys, "executable", prepared.executable(tmp_path))
    assert decoded_copies.main() == 0
    loading = json.loads(figures.read_text())["loading"]
    assert [row["way"] for row in loading] == list(decoded_copies.WAYS)
    assert all(row["images_per_s"] > 0 for row in loading)


@pytest.fixture(scope="module")
def photo_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A JPEG with seek points."""
    folder = tmp_path_factory.mktemp("photo")
    image = encode(smooth_image(np.random.default_rng(0), 640, 480), quality=90)
    gpuload.pack([{"image": image, "label": 0}], folder, workers=1, progress=False)
    return folder / "train"


def tile_of(folder: Path, number: int) -> tuple[np.ndarray, list[int]]:
    """The pixels of a tile, and its upper left corner."""
    tile = gpuload.Dataset(folder).tiles(64, overlap=10).subset([number])
    augment = gpuload.Augment(64, crop="none", flip=0, dtype="uint8")
    options = {"augment": augment, "fields": ("image", "crop_top_left"), "device": "cpu", "output": "numpy"}
    with gpuload.DaliIterator(tile, 1, shuffle=False, **options) as loader:
        ((image, corner),) = loader
    return image[0], corner[0].tolist()


@pytest.mark.parametrize("number", [0, 17, 50, 107])
def test_a_crop_needs_no_other_bytes(photo_set: Path, tmp_path: Path, number: int) -> None:
    """It is the same where all bytes outside of its spans are zeros."""
    pixels, (top, left) = tile_of(photo_set, number)
    row = gpuload.Dataset(photo_set).row(0).to_pylist()[0]
    folder = Path(shutil.copytree(photo_set, tmp_path / "set"))
    shard = folder / "shard-000000.tar"
    content = shard.read_bytes()
    offset = row["image_offset"]
    data = content[offset : offset + row["image_bytes"]]
    spans = partial_reads.JpegMap(data, row["image_points"], 640, 480).spans(top, left, 64, 64)
    part = bytearray(len(data))
    for begin, end in spans:
        part[begin:end] = data[begin:end]
    assert sum(byte != 0 for byte in part) < 0.4 * len(data)
    shard.write_bytes(content[:offset] + part + content[offset + len(data) :])
    np.testing.assert_array_equal(tile_of(folder, number)[0], pixels)


def test_pieces() -> None:
    assert partial_reads.pieces_of([(0, 1), (15, 17), (40, 48)], 8) == {0, 1, 2, 5}
    assert partial_reads.runs_of({0, 1, 2, 5}, 8, 44) == [(0, 24), (40, 44)]
