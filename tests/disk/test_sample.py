"""Single samples of a data set by number, key and source: `dataset[17]`."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import encode, photo
from packed_fields import sample
from PIL import Image
from tars import write_tar

import gpuload
from gpuload import DecodeError, ShardError
from gpuload.cli import main


def test_dataset_of_field(dataset: gpuload.Dataset) -> None:
    for number in range(7):
        given, found = sample(number), dataset[number]
        assert found["index"] == number and found["source"] == given["name"]
        assert found["image"].mode == "RGB" and found["image"].size == (24 + number, 20 + number % 3)
        assert np.abs(np.asarray(found["image"], int) - np.asarray(photo(number, *found["image"].size), int)).mean() < 8
        assert (dataset.classes or ())[found["label"]] == given["label"]
        assert found["caption"] == given["caption"] and found["about"] == given["about"]
        assert found["angle"] == given["angle"] and found["drive"].tolist() == given["drive"]
        for name in ("tokens", "text", "features", "flag", "wave", "letters"):
            np.testing.assert_array_equal(found[name], given[name])
            assert found[name].dtype == given[name].dtype
        names = dataset.fields["boxes"].classes or ()
        assert found["boxes"].shape == (len(given["boxes"]), 4) and found["boxes"].tolist() == given["boxes"]
        assert [names[n] for n in found["boxes_class"]] == given["boxes_class"]
        assert (np.asarray(found["mask"]) == number).all() and found["mask"].size == found["image"].size
        assert found["keypoints"].tolist() == [[[1, 1, 2], [3, 3, 2]]]
        labels = dataset.fields["labels"].classes or ()
        assert [labels[n] for n in found["labels"]] == given["labels"]


def test_numbers_keys_and_sources_are_the_same_samples(packed: Path) -> None:
    dataset = gpuload.Dataset(packed)
    rows = [row for shard in range(10) for row in dataset.rows(shard).to_pylist()]
    for number in (0, 9, 10, 96):
        wanted = (rows[number]["key"], rows[number]["source"], number)
        for index in (number, number - 97, np.int32(number), *wanted[:2]):
            found = dataset[index]  # type: ignore[index]
            assert (found["key"], found["source"], found["index"]) == wanted
    part = dataset.subset([3, 50, 96])
    assert [part[n]["index"] for n in (0, 1, 2, -3, -2, -1, rows[50]["key"])] == [3, 50, 96, 3, 50, 96, 50]


def test_raw_images(tmp_path: Path) -> None:
    images = [photo(number, 30 + number, 20) for number in range(3)]
    gpuload.pack(
        [{"image": encode(image, "PNG")} for image in images], tmp_path / "raw", encode="raw", workers=1, shuffle=False
    )
    raw = gpuload.Dataset(tmp_path / "raw" / "train")
    for number, image in enumerate(images):
        assert raw[number]["image"].tobytes() == image.tobytes()


def test_damaged_samples_are_named(tmp_path: Path) -> None:
    gpuload.pack([{"image": encode(photo(n))} for n in range(3)], tmp_path / "set", workers=1, shuffle=False)
    dataset = gpuload.Dataset(tmp_path / "set" / "train")
    row: Any = dataset.rows(0).to_pylist()[1]
    path = tmp_path / "set" / "train" / "shard-000000.tar"
    with path.open("r+b") as file:
        file.seek(row["image_offset"])
        file.write(b"\0" * row["image_bytes"])
    with pytest.raises(
        DecodeError,
        match=rf"shard-000000.tar: sample {row['key']!r}: does not decode: cannot identify .*file. .*verify",
    ):
        dataset[1]
    assert dataset[0]["image"].size == dataset[2]["image"].size == (48, 32)
    with path.open("r+b") as file:
        file.truncate(row["image_offset"] + 5)
    with pytest.raises(ShardError, match="its 'image' does not lie within the shard, which was truncated"):
        dataset[1]
    path.unlink()
    with pytest.raises(ShardError, match="cannot be read"):
        dataset[0]


def several(folder: Path) -> gpuload.Dataset:
    """Four samples, of which the first three have one source, and two splits of which each has it."""
    names = ("a/1.png", "a/1.png", "a/1.png", "a/2.png")
    for split in ("train", "val"):
        samples = [{"image": encode(photo(number)), "name": name, "split": split} for number, name in enumerate(names)]
        gpuload.pack(samples, folder, workers=1, shuffle=False, append=split == "val", progress=False)
    return gpuload.Dataset(folder / "train")


def test_a_source_of_several_samples_is_none_of_them(tmp_path: Path) -> None:
    dataset = several(tmp_path)
    keys = dataset.keys(range(4))
    assert len(set(keys)) == 4
    numbers = re.escape(f"numbers 0 (key {keys[0]!r}), 1 (key {keys[1]!r}), 2 (key {keys[2]!r}). Give the number")
    with pytest.raises(
        gpuload.ArgumentError, match=rf"dataset\['a/1.png'\]: 3 samples of .* have this source: {numbers}"
    ):
        dataset["a/1.png"]
    assert [dataset[name]["index"] for name in ("a/2.png", *keys)] == [3, 0, 1, 2, 3]
    part = dataset.subset([1, 3])  # numbers are those of the selection
    assert (part["a/1.png"]["index"], part["a/2.png"]["index"]) == (1, 3)
    with pytest.raises(
        gpuload.ArgumentError, match=re.escape(f"2 samples of {dataset.folder} have this source: numbers 0 (")
    ):
        dataset.subset([1, 2])["a/1.png"]


def test_a_key_of_several_tiles_is_none_of_them(tmp_path: Path) -> None:
    gpuload.pack([{"image": encode(photo(3, 70, 40)), "name": "x"}], tmp_path, workers=1, progress=False)
    dataset = gpuload.Dataset(tmp_path / "train")
    tiles = dataset.tiles(32)
    with pytest.raises(gpuload.ArgumentError, match=r"6 samples of .* have this source: numbers 0 .*, 2 .* and 3 more"):
        tiles["x"]
    places = [tiles[number]["tile"] for number in range(len(tiles))]
    assert places == [(x, y, x + 32, y + 32) for y in (0, 8) for x in (0, 32, 38)]
    assert tiles.subset([4])["x"]["tile"] == places[4]
    assert tiles[4]["image"].crop(places[4]).size == (32, 32) and "tile" not in dataset[0]


def test_show_finds_one_sample_of_all_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = several(tmp_path)
    shown = tmp_path / "shown"
    shown.mkdir()
    for command, message in (
        (["show", str(tmp_path), "a/2.png"], "a/2.png: samples of several sets have this source: "),
        (["show", str(tmp_path / "train"), "a/1.png"], "dataset['a/1.png']: 3 samples of "),
    ):
        assert main([*command, "-o", str(shown)]) == 2
        assert message in capsys.readouterr().err
    assert main(["show", str(tmp_path), train.keys([3])[0], "-o", str(shown)]) == 0
    assert len(list(shown.iterdir())) == 1


def test_samples_of_one_key_are_shown_by_number(tmp_path: Path) -> None:
    """In shards of others, a key may come in each; neither is shown in place of the other."""
    for number in range(2):
        write_tar(tmp_path / f"{number}.tar", {"x.png": encode(photo(number), "PNG")})
    assert main(["index", str(tmp_path / "0.tar"), str(tmp_path / "1.tar")]) == 0
    dataset = gpuload.Dataset(tmp_path)
    with pytest.raises(gpuload.ArgumentError, match=r"2 samples of .* have this key: numbers 0 \(key 'x'\), 1 \(key"):
        dataset["x"]
    (tmp_path / "shown").mkdir()
    assert main(["show", str(tmp_path), "0", "1", "-o", str(tmp_path / "shown")]) == 0
    found = [
        np.asarray(Image.open(path)) for path in sorted((tmp_path / "shown").iterdir(), key=lambda path: len(path.name))
    ]
    assert [np.array_equal(image, np.asarray(photo(number))) for number, image in enumerate(found)] == [True, True]
