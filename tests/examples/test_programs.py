"""The programs in examples/ that have no file of tests here: they learn, and time what they say; a restart goes on as if
nothing had been; and the made-up data that they take."""

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import detection_as_classification
import h5py
import inpainting
import made_up
import numpy as np
import pytest
import recipe
import regression
import single_images
import torch
import train_resnet50
from images import Folder, encode, photo

import gpuload
from gpuload.cli import main as gpuload_command

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


SMALL = ["--size", "48x40", "--batch-size", "16"]


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """288 for training and 32 for validation."""
    folder = made_up.make("detection", tmp_path_factory.mktemp("detection") / "set", 320, 48)
    detection_as_classification.pack(folder, folder.with_name("packed"))
    return folder.with_name("packed")


def classify(objects: Path, *options: str) -> int:
    return detection_as_classification.main([str(objects), "--shards", str(objects), *SMALL, *options])


def test_learns_with_two_loaders_in_turn(objects: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "figures.json"
    assert classify(objects, "--epochs", "3", "--lr", "0.01", "--json", str(record)) == 0
    shown = capsys.readouterr()
    found = json.loads(record.read_text())
    assert [(entry["epoch"], entry["batch"]) for entry in found["validations"]] == [
        (epoch, batch) for epoch in (1, 2, 3) for batch in (9, 18)
    ]
    assert found["validations"][-1]["accuracy"] > 0.5  # four colours, background, and one that is never the largest
    assert len(re.findall(r"after batch \d+: validation loss [\d.]+, accuracy [\d.]+%", shown.out)) == 6
    assert re.search(r"epoch 3/3: 100%.*loss [\d.]+, accuracy [\d.]+%", shown.err)


def test_batches(objects: Path) -> None:
    args = detection_as_classification.parse(["--size", "60x40", "--batch-size", "16"])
    with detection_as_classification.open_loader(objects / "val", args, train=False) as loader:
        images, labels = next(iter(loader))
        assert loader.classes is not None
        assert loader.classes[0] == "background"
        numbers = gpuload.Dataset(objects / "val").labels[:16]
    assert (images.shape, images.dtype) == ((16, 3, 40, 60), torch.float16)
    assert labels.shape == (16, len(loader.classes))
    assert labels.argmax(1).tolist() == numbers.tolist()
    assert labels.sum(1).tolist() == [1.0] * 16  # the background has a column of its own
    values = images.float().flatten(1)
    assert values.mean(1).abs().max() < 2e-3
    assert (values.std(1) - 1).abs().max() < 2e-3


@pytest.mark.parametrize("stop", [4, 18, 23])  # in mid-epoch, at its end, in the one after
def test_resumed_equals_undisturbed(
    objects: Path, tmp_path: Path, stop: int, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, parts = tmp_path / "whole.pt", tmp_path / "parts.pt"
    assert classify(objects, "--epochs", "2", "--checkpoint", str(whole)) == 0
    assert classify(objects, "--epochs", "2", "--checkpoint", str(parts), "--stop-after", str(stop)) == 0
    assert classify(objects, "--epochs", "2", "--checkpoint", str(parts), "--resume") == 0
    assert f"in epoch {1 + stop // 19}, after {(stop - 1) % 18 + 1} of its 18 batches" in capsys.readouterr().out
    left, right = (torch.load(path, weights_only=True) for path in (whole, parts))
    assert left["loader"] == right["loader"]
    assert {name: value.tolist() for name, value in left["net"].items()} == {
        name: value.tolist() for name, value in right["net"].items()
    }


SAMPLES = 60


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_up.make("captions", tmp_path_factory.mktemp("captions") / "set", SAMPLES)


@pytest.fixture(scope="module")
def drawn_shards(drawn: Path) -> Path:
    out = drawn.with_name("packed")
    inpainting.pack(drawn, out)
    return out


def contents(images: torch.Tensor, middles: torch.Tensor, captions: list[str]) -> set[tuple[bytes, bytes, str]]:
    """Of each sample, in levels of 255."""
    levels = [np.rint((np.asarray(part) + 1) * 127.5).astype(np.uint8) for part in (images, middles)]
    return {(image.tobytes(), middle.tobytes(), text) for image, middle, text in zip(*levels, captions, strict=True)}


def test_batches_are_what_the_files_hold(drawn: Path, drawn_shards: Path, decoder: str) -> None:
    files = inpainting.load_files(drawn, SAMPLES, seed=0)
    with inpainting.open_loader(drawn_shards, SAMPLES, 1, decoder) as loader:
        packed = next(iter(loader))
    assert packed[0].shape == (SAMPLES, 3, 64, 64)
    assert packed[1].shape == (SAMPLES, 3, 32, 32)
    assert (packed[0][..., 16:48, 16:48] == 0).all()
    assert len(contents(*packed)) == SAMPLES
    assert contents(*packed) == contents(*files)


def test_times_every_size_that_the_set_has(
    drawn: Path, drawn_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(inpainting, "ROUNDS", {1: (2, 1, 5, 2), 16: (1, 2, 3, 1), 61: (1, 1, 1, 1)})
    record = tmp_path / "figures.json"
    assert inpainting.main([str(drawn), "--shards", str(drawn_shards), "--json", str(record)]) == 0
    said = capsys.readouterr().out
    assert f"Reusing {drawn_shards}" in said
    assert "A batch of 61 was not timed: the set has 60 images" in said
    found = json.loads(record.read_text())
    assert found["samples"] == SAMPLES
    assert [row["batch_size"] for row in found["batches"]] == [1, 16]
    for row in found["batches"]:
        for way in ("files_s", "cold_s", "warm_s"):
            assert 0 < row[way]["min"] <= row[way]["median"] <= row[way]["max"], way
    assert found["machine"]["cores"] >= 1


def test_hdf5_of_photos_gone_through_twice(tmp_path: Path, make_folder: Folder) -> None:
    photos = make_folder({f"{'abc'[n % 3]}/{n}.jpg": encode(photo(n, 60, 40)) for n in range(15)})
    path = made_up.make("hdf5", tmp_path / "set.h5", 30, 24, photos)
    with h5py.File(path) as file:
        images, targets, labels = (file[name][:] for name in ("images", "target", "label"))
    assert images.shape == (30, 24, 24, 3)
    assert (images[:15] == images[15:]).all()
    assert sorted(np.bincount(labels).tolist()) == [10, 10, 10]
    flipped = [made_up.balance(image[:, ::-1]) for image in images]
    assert targets == pytest.approx([-value for value in flipped], abs=1e-6)
    assert np.ptp(targets) > 0.02  # there is something to be predicted


def test_detection(tmp_path: Path) -> None:
    path, out = made_up.make("detection", tmp_path / "set", 40, 64), tmp_path / "packed"
    assert gpuload_command(["pack", str(path), str(out), "--workers", "1", "--no-shuffle"]) == 0
    dataset = gpuload.Dataset(out / "train")
    found = list(made_up.pictures(None, 40, 64, some_empty=True))
    names = [(dataset.classes or ())[int(label)] for label in dataset.labels]
    assert names == [picture.name if picture.box else "background" for picture in found]
    assert names.count("background") == 4
    boxes = dataset.rows(0).column("boxes").to_pylist()
    assert [len(row) for row in boxes] == [
        0 if picture.box is None else 2 if number % 3 == 0 else 1 for number, picture in enumerate(found, 1)
    ]


def test_detection_of_photos_keeps_their_bytes(tmp_path: Path, make_folder: Folder) -> None:
    photos = {f"{'abc'[n % 3]}/{n}.jpg": encode(photo(n, 60, 40)) for n in range(15)}
    out = made_up.make("detection", tmp_path / "set", 15, photos=make_folder(photos))
    assert {path.read_bytes() for path in out.rglob("*.JPEG")} == {*photos.values()}
    assert sum("<object>" not in path.read_text() for path in out.rglob("*.xml")) == 5  # class c


def test_the_same_arguments_give_the_same_files_and_what_is_there_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (made_up.make("captions", tmp_path / name, 25) for name in ("first", "second"))
    contents = [{path.name: path.read_bytes() for path in out.iterdir()} for out in (first, second)]
    assert len(contents[0]) == 50 and contents[0] == contents[1]
    with pytest.raises(SystemExit):
        made_up.main(["lmdb", str(first)])
    assert "exists already; choose another name" in capsys.readouterr().err
    assert len(list(first.iterdir())) == 50
