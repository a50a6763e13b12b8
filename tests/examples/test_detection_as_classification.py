"""examples/detection_as_classification.py: it learns, and a restart goes on as if nothing had been."""

import json
import re
from pathlib import Path

import detection_as_classification as example
import made_up
import pytest
import torch

import gpuload

# Sums in torch depend on the number of threads, and beside decoding threads its own get in each other's way.
pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ["--size", "48x40", "--batch-size", "16"]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """288 for training and 32 for validation."""
    folder = made_up.make("detection", tmp_path_factory.mktemp("detection") / "set", 320, 48)
    example.pack(folder, folder.with_name("packed"))
    return folder.with_name("packed")


def run(shards: Path, *options: str) -> int:
    return example.main([str(shards), "--shards", str(shards), *SMALL, *options])


def test_learns_with_two_loaders_in_turn(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "figures.json"
    assert run(shards, "--epochs", "3", "--lr", "0.01", "--json", str(record)) == 0
    shown = capsys.readouterr()
    found = json.loads(record.read_text())
    assert [(entry["epoch"], entry["batch"]) for entry in found["validations"]] == [
        (epoch, batch) for epoch in (1, 2, 3) for batch in (9, 18)
    ]
    assert found["validations"][-1]["accuracy"] > 0.5  # four colours, background, and one that is never the largest
    assert len(re.findall(r"after batch \d+: validation loss [\d.]+, accuracy [\d.]+%", shown.out)) == 6
    assert re.search(r"epoch 3/3: 100%.*loss [\d.]+, accuracy [\d.]+%", shown.err)


def test_batches(shards: Path) -> None:
    args = example.parse(["--size", "60x40", "--batch-size", "16"])
    with example.open_loader(shards / "val", args, train=False) as loader:
        images, labels = next(iter(loader))
        assert loader.classes is not None
        assert loader.classes[0] == "background"
        numbers = gpuload.Dataset(shards / "val").labels[:16]
    assert (images.shape, images.dtype) == ((16, 3, 40, 60), torch.float16)
    assert labels.shape == (16, len(loader.classes))
    assert labels.argmax(1).tolist() == numbers.tolist()
    assert labels.sum(1).tolist() == [1.0] * 16  # the background has a column of its own
    values = images.float().flatten(1)
    assert values.mean(1).abs().max() < 2e-3
    assert (values.std(1) - 1).abs().max() < 2e-3


@pytest.mark.parametrize("stop", [4, 18, 23])  # in mid-epoch, at its end, in the one after
def test_resumed_equals_undisturbed(
    shards: Path, tmp_path: Path, stop: int, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, parts = tmp_path / "whole.pt", tmp_path / "parts.pt"
    assert run(shards, "--epochs", "2", "--checkpoint", str(whole)) == 0
    assert run(shards, "--epochs", "2", "--checkpoint", str(parts), "--stop-after", str(stop)) == 0
    assert run(shards, "--epochs", "2", "--checkpoint", str(parts), "--resume") == 0
    assert f"in epoch {1 + stop // 19}, after {(stop - 1) % 18 + 1} of its 18 batches" in capsys.readouterr().out
    left, right = (torch.load(path, weights_only=True) for path in (whole, parts))
    assert left["loader"] == right["loader"]
    assert {name: value.tolist() for name, value in left["net"].items()} == {
        name: value.tolist() for name, value in right["net"].items()
    }
