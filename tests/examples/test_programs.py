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
from reading import files_of

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
    first, second = (found[name]["runs"][0]["losses"][0] for name in recipe.LOADERS)
    assert abs(first - second) < 0.2  # the same initial weights, other samples
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_three_ways(transforms: ModuleType, run: Run, tmp_path: Path) -> None:
    switch, picture = importlib.import_module("switch"), tmp_path / "figures.png"  # which imports torchvision
    options = ["--images", 128, "--batch-size", 8, "--epochs", 2, "--seeds", 1, "--folder", tmp_path, "--plot", picture]
    found, said = run(switch, *options)
    assert list(found["runs"]) == ["dataloader", "gpuload", "function"]
    for (one,) in found["runs"].values():
        assert 0.1 < one["accuracy"] <= 1 and one["images_per_s"] > 0
    assert said.count("accuracy") == 3 and picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("program", "options", "message"),
    [
        ("recipe", "--images 50", "--images 50: expected at least 100"),
        ("switch", "--images 100", "at least 16 batches of 50"),
        ("switch", "--epochs 1", "expected at least 2 epochs"),
        ("made_up", "lmdb .", "exists already; choose another name"),
        ("train", ". --resume", "--resume: needs --checkpoint FILE, which a run has written; got None"),
        (
            "train",
            ". --resume --checkpoint none",
            "--resume: needs --checkpoint FILE, which a run has written; got none",
        ),
        ("train", "nowhere", "nowhere/train: no such folder"),
        ("raw_kernel", "none", "no such folder"),
        ("cpu_vs_gpu", "none", "no such folder"),
    ],
)
@pytest.mark.usefixtures("transforms")  # switch imports torchvision
def test_what_cannot_be_is_named(
    program: str, options: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")  # as of one of several processes
    try:
        code = importlib.import_module(program).main(options.split())
    except SystemExit as exit:
        code = exit.code
    assert code == 2 and message in capsys.readouterr().err


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
    loaders = ["synthetic", "gpuload", "dali", "torch"]
    order: list[str] = []
    open_loader = train_resnet50.open_loader
    monkeypatch.setattr(
        train_resnet50, "open_loader", lambda name, *rest: order.append(name) or open_loader(name, *rest)
    )
    found, said = run(train_resnet50, packed / "train", *options.split(), "--loaders", *loaders)
    assert order == ["synthetic", *loaders, *reversed(loaders)]  # the first is not counted
    named = [line.split("  ")[0] for line in said.splitlines()]
    assert named == ["one resident batch", "gpuload", "DALI by hand", "DataLoader + Pillow"]
    assert found["data"]["classes"] == 10 and found["precision"] == "float32"
    assert [row["name"] for row in found["loaders"]] == loaders and found["left_out"] == {}
    for row in found["loaders"]:
        rates = [turn["images_per_s"] for turn in row["turns"]]
        assert len(rates) == 2 and row["images_per_s"] == pytest.approx(median(rates))
        assert row["share_of_resident"] == row["images_per_s"] / found["loaders"][0]["images_per_s"]
        assert all(0 < turn["last_loss"] < 10 for turn in row["turns"])


def test_a_loader_that_fails_is_left_out(packed: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_resnet50, "DEPTHS", (1, 1, 1, 1))
    monkeypatch.setattr(train_resnet50, "WIDTHS", (8, 16, 32, 64))

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no engines\nat all")

    monkeypatch.setattr(train_resnet50.dali_loader, "train_loader", fail)
    options = "--device cpu --size 32 --batch-size 16 --steps 1 --warm-up 0 --rounds 2 --loaders dali gpuload-native"
    found, _ = run(train_resnet50, packed / "train", *options.split())
    assert found["left_out"] == {"dali": "no engines"}
    assert [(row["name"], len(row["turns"])) for row in found["loaders"]] == [("gpuload-native", 2)]


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_up.make("hdf5", tmp_path_factory.mktemp("regression") / "road.h5", 400, 32)


@pytest.mark.parametrize(("encode", "dtype"), [("jpeg", "float32"), ("raw", "uint8")])
def test_regression(road: Path, run: Run, encode: str, dtype: str, tmp_path: Path, capsys: Any) -> None:
    options = ["--size", 32, "--batch-size", 16, "--encode", encode, "--dtype", dtype, "--epochs", 4]
    found, said = run(regression, road, *options, "--shards", tmp_path / "packed")
    explained = [epoch["explained"] for epoch in found["both"]]
    assert len(explained) == 4 and explained[-1] > max(0.5, explained[0])
    # Of a process that other tests have used, which may need no more memory for this.
    assert found["samples"] == 400 and found["own_bytes"] >= 0
    assert len(found["loader_alone"]) == len(found["net_alone"]) == 4
    for what, times in (("loader alone", found["loader_alone"]), ("both", found["both"])):
        assert f"{what:13} {median(one['seconds'] for one in times):7.2f} s per epoch" in said
    rows = zip(*(found[name] for name in ("both", "loader_alone", "net_alone")), strict=True)
    ratios = [both["seconds"] / max(alone["seconds"], net["seconds"]) for both, alone, net in rows]  # of one epoch each
    assert f"both takes {median(ratios):.2f} times the slower of the two alone" in said
    assert regression.main([str(road), "--size", "32", "--shards", str(tmp_path / "packed"), "--target", "angle"]) == 2
    [error] = capsys.readouterr().err.splitlines()
    assert "'angle'" in error and "'target'" in error


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
        assert epoch["images"] == 80 and epoch["peak_own_bytes"] > 50 << 20  # torch is there
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
    found = json.loads(record.read_text())["validations"]
    assert [(entry["epoch"], entry["batch"]) for entry in found] == [(n, batch) for n in (1, 2, 3) for batch in (9, 18)]
    assert found[-1]["accuracy"] > 0.5
    assert "of 6 classes with background" in shown.out  # four colours, and one that is never the largest
    assert len(re.findall(r"after batch \d+: validation loss [\d.]+, accuracy [\d.]+%", shown.out)) == 6
    assert re.search(r"epoch 3/3: 100%.*loss [\d.]+, accuracy [\d.]+%", shown.err)


@pytest.mark.parametrize("stop", [4, 18, 23])  # in mid-epoch, at its end, in the one after
def test_resumed_equals_undisturbed(
    objects: Path, tmp_path: Path, stop: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, *more in (("whole",), ("parts", "--stop-after", str(stop)), ("parts", "--resume")):
        assert classify(objects, "--epochs", "2", "--checkpoint", str(tmp_path / name), *more) == 0
    assert f"in epoch {1 + stop // 19}, after {(stop - 1) % 18 + 1} of its 18 batches" in capsys.readouterr().out
    whole, parts = (torch.load(tmp_path / name, weights_only=True) for name in ("whole", "parts"))
    assert whole["loader"] == parts["loader"]
    torch.testing.assert_close(whole["net"], parts["net"], rtol=0, atol=0)


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
    assert packed[0].shape == (SAMPLES, 3, 64, 64) and packed[1].shape == (SAMPLES, 3, 32, 32)
    assert (packed[0][..., 16:48, 16:48] == 0).all()
    assert contents(*packed) == contents(*files) and len(contents(*files)) == SAMPLES


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
    assert (found["samples"], [row["batch_size"] for row in found["batches"]]) == (SAMPLES, [1, 16])
    for times in (row[way] for row in found["batches"] for way in ("files_s", "cold_s", "warm_s")):
        assert 0 < times["min"] <= times["median"] <= times["max"]


def test_detection_of_photos_keeps_their_bytes(tmp_path: Path, make_folder: Folder) -> None:
    photos = {f"{'abc'[n % 3]}/{n}.jpg": encode(photo(n, 60, 40)) for n in range(15)}
    out = made_up.make("detection", tmp_path / "set", 30, photos=make_folder(photos))
    assert sorted(path.read_bytes() for path in out.rglob("*.JPEG")) == sorted([*photos.values()] * 2)
    assert sum("<object>" not in path.read_text() for path in out.rglob("*.xml")) == 2 * 5  # class c


def test_the_same_arguments_give_the_same_files(tmp_path: Path) -> None:
    first, second = (files_of(made_up.make("captions", tmp_path / name, 25)) for name in ("first", "second"))
    assert len(first) == 50 and first == second
