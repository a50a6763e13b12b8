"""examples/inpainting.py: both ways give the same batches, and each is timed."""

import json
from pathlib import Path

import inpainting
import made_up
import numpy as np
import pytest
import torch
from PIL import Image

SAMPLES, GRAY = 60, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = made_up.make("captions", tmp_path_factory.mktemp("captions") / "set", SAMPLES)
    with Image.open(found / "000001.jpg") as image:  # gray, though it has three channels; three have one
        gray = image.convert("L").convert("RGB")
    gray.save(found / "000001.jpg")
    return found


@pytest.fixture(scope="module")
def shards(folder: Path) -> Path:
    out = folder.with_name("packed")
    inpainting.pack(folder, out)
    return out


def contents(images: torch.Tensor, middles: torch.Tensor, captions: list[str]) -> set[tuple[bytes, bytes, str]]:
    """Of each sample, in levels of 255."""
    levels = [np.rint((np.asarray(part) + 1) * 127.5).astype(np.uint8) for part in (images, middles)]
    return {(image.tobytes(), middle.tobytes(), text) for image, middle, text in zip(*levels, captions, strict=True)}


def test_batches_are_what_the_files_hold(folder: Path, shards: Path, decoder: str) -> None:
    files = inpainting.load_files(folder, SAMPLES - GRAY, seed=0)
    with inpainting.open_loader(shards, SAMPLES - GRAY, 1, decoder) as loader:
        packed = next(iter(loader))
    assert packed[0].shape == (SAMPLES - GRAY, 3, 64, 64)
    assert packed[1].shape == (SAMPLES - GRAY, 3, 32, 32)
    assert (packed[0][..., 16:48, 16:48] == 0).all()
    assert len(contents(*packed)) == SAMPLES - GRAY
    assert contents(*packed) == contents(*files)


def test_times_every_size_that_the_set_has(
    folder: Path, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(inpainting, "ROUNDS", {1: (2, 1, 5, 2), 16: (1, 2, 3, 1), 57: (1, 1, 1, 1)})
    record = tmp_path / "figures.json"
    assert inpainting.main([str(folder), "--shards", str(shards), "--json", str(record)]) == 0
    said = capsys.readouterr().out
    assert f"Reusing {shards}" in said
    assert "A batch of 57 was not timed: the set has 56 colour images" in said
    found = json.loads(record.read_text())
    assert found["samples"] == SAMPLES - GRAY
    assert [row["batch_size"] for row in found["batches"]] == [1, 16]
    for row in found["batches"]:
        for way in ("files_s", "cold_s", "warm_s"):
            assert 0 < row[way]["min"] <= row[way]["median"] <= row[way]["max"], way
    assert found["machine"]["cores"] >= 1
