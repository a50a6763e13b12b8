"""recipe.py, switch.py, train_resnet50.py, regression.py and single_images.py: they learn, and time what they say."""

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import made_up
import numpy as np
import pytest
import recipe
import regression
import single_images
import torch
import train_resnet50

pytestmark = pytest.mark.usefixtures("one_thread")

# The record of a run with these options, and what it says.
Run = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(program: ModuleType, *options: object) -> tuple[dict[str, Any], str]:
        record = tmp_path / "figures.json"
        assert program.main([*map(str, options), "--json", str(record)]) == 0
        return json.loads(record.read_text()), capsys.readouterr().out

    return run


def test_both_loaders_train_to_about_the_same(run: Run, tmp_path: Path) -> None:
    picture = tmp_path / "recipe.png"
    found, said = run(recipe, "--images", 300, "--epochs", 2, "--size", 16, "--plot", picture)
    assert "300 drawn shapes, 2 epochs: " in said and "times as fast with gpuload" in said
    for name in recipe.LOADERS:
        (one,) = found[name]["runs"]
        assert len(one["losses"]) == len(one["seconds"]) == 2 * (240 // 64)
        assert one["seconds"] == sorted(one["seconds"]) and 0 <= found[name]["accuracies"][0] <= 1
    first = [found[name]["runs"][0]["losses"][0] for name in recipe.LOADERS]
    assert abs(first[0] - first[1]) < 0.2  # the same initial weights, other samples
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_shapes_are_made_by_number() -> None:
    one, again, other = (np.asarray(recipe.draw_shape(number)["image"]) for number in (3, 3, 13))
    assert (one == again).all() and (one != other).any()
    assert [recipe.draw_shape(number)["label"] for number in range(10)] == list(recipe.SHAPES)
    assert recipe.smooth([2.0, 4.0, 6.0], 2).tolist() == [2, 3, 5]
    with pytest.raises(SystemExit):
        recipe.main(["--images", "50"])


def test_three_ways(transforms: ModuleType, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    switch, picture = importlib.import_module("switch"), tmp_path / "figures.png"  # which imports torchvision
    options = ["--images", 128, "--batch-size", 8, "--epochs", 2, "--seeds", 1, "--folder", tmp_path, "--plot", picture]
    found, said = run(switch, *options)
    assert list(found["runs"]) == ["dataloader", "gpuload", "function"]
    for (one,) in found["runs"].values():
        assert 0.1 < one["accuracy"] <= 1 and one["images_per_s"] > 0
    assert said.count("accuracy") == 3 and picture.read_bytes().startswith(b"\x89PNG")
    for wrong, message in (("--images 100", "at least 16 batches of 50"), ("--epochs 1", "expected at least 2 epochs")):
        with pytest.raises(SystemExit):
            switch.main(wrong.split())
        assert message in capsys.readouterr().err


def test_the_net_is_torchvisions() -> None:
    torch.manual_seed(0)
    importlib.import_module("torchvision_anywhere")
    theirs = importlib.import_module("torchvision.models").resnet50(weights=None).eval()
    ours = train_resnet50.resnet50(1000).eval()
    ours.load_state_dict(dict(zip(ours.state_dict(), theirs.state_dict().values(), strict=True)))
    images = torch.randn(1, 3, 64, 96)
    with torch.inference_mode():
        torch.testing.assert_close(ours(images), theirs(images), rtol=1e-4, atol=1e-5)
    assert sum(weights.numel() for weights in ours.parameters()) == 25_557_032


def test_the_speed_of_training(packed: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_resnet50, "DEPTHS", (1, 1, 1, 1))  # the whole net takes seconds a step on a busy CPU
    monkeypatch.setattr(train_resnet50, "WIDTHS", (8, 16, 32, 64))
    options = "--device cpu --size 32 --batch-size 16 --steps 5 --warm-up 2 --rounds 2 --workers 1"
    found, said = run(train_resnet50, packed / "train", *options.split())
    named = [line.split("  ")[0] for line in said.splitlines()]
    assert named == ["one resident batch", "gpuload", "DataLoader + Pillow"]
    assert found["data"]["classes"] == 10 and found["precision"] == "float32"
    rows = {row["name"]: row for row in found["loaders"]}
    assert list(rows) == ["synthetic", "gpuload", "torch"]
    for row in rows.values():
        rates = [turn["images_per_s"] for turn in row["turns"]]
        assert len(rates) == 2 and row["images_per_s"] == pytest.approx(median(rates))
        assert row["share_of_resident"] == row["images_per_s"] / rows["synthetic"]["images_per_s"]
        assert all(0 < turn["last_loss"] < 10 for turn in row["turns"])
    trainer = train_resnet50.Trainer(10, "cpu")
    images, labels = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))
    losses = [trainer.step(images, labels).item() for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]  # a resident batch is learnt by heart


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_up.make("hdf5", tmp_path_factory.mktemp("regression") / "road.h5", 400, 32)


@pytest.mark.parametrize(("encode", "dtype"), [("jpeg", "float32"), ("raw", "uint8")])
def test_regression(road: Path, run: Run, encode: str, dtype: str, tmp_path: Path) -> None:
    options = ["--size", 32, "--batch-size", 16, "--encode", encode, "--dtype", dtype, "--epochs", 4]
    found, said = run(regression, road, *options, "--shards", tmp_path / "packed")
    explained = [epoch["explained"] for epoch in found["both"]]
    assert len(explained) == 4 and explained[-1] > max(0.5, explained[0])
    assert found["samples"] == 400 and found["own_bytes"] > 0
    assert len(found["loader_alone"]) == len(found["net_alone"]) == 4
    for what, times in (("loader alone", found["loader_alone"]), ("both", found["both"])):
        assert f"{what:13} {median(one['seconds'] for one in times):7.2f} s per epoch" in said


def test_its_ratio_is_that_of_the_same_epoch() -> None:
    both, alone, net = ([{"seconds": value} for value in values] for values in ((8, 9, 50), (1, 2, 5), (4, 9, 10)))
    assert regression.ratio(both, alone, net, max) == 2  # of 2, 1 and 5
    assert regression.ratio(both, alone, net, lambda a, n: a + n) == 8 / 5


def test_a_target_that_is_not_there(road: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--size", "32", "--shards", str(tmp_path / "packed"), "--target", "angle"]
    assert regression.main([str(road), *options]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and "'angle'" in error and "'target'" in error


LINE = re.compile(r"^ +(\d+) +([\d.]+) ms +([\d.]+) ms +([\d.]+) ms +[\d.]+ [MG]B +[\d.]+$", re.MULTILINE)


@pytest.mark.parametrize("form", ["lmdb", "hdf5"])
def test_each_batch_tells_its_times(form: str, run: Run, tmp_path: Path) -> None:
    store = made_up.make(form, tmp_path / f"pictures.{form}", 100, 32)
    options = ["--encode", "raw", "--size", 32, "--crop", 24, "--batch-size", 16, "--epochs", 2]
    found, said = run(single_images, store, *options)
    lines = LINE.findall(said)
    assert [int(line[0]) for line in lines] == [1, 2, 3, 4, 5] * 2  # of 90 for training
    assert found["samples"] == 90 and "2 of 2" in said
    for number, epoch in enumerate(found["epochs"]):
        assert epoch["images"] == 80
        assert epoch["peak_own_bytes"] > 50 << 20  # torch is there
        assert 0 < epoch["peak_shard_bytes"] <= found["shard_bytes"]
        waited = [float(line[3]) for line in lines[5 * number : 5 * number + 5]]
        assert sum(waited) == pytest.approx(1000 * epoch["waited_s"], abs=0.5)
