"""Single samples of a data set by number, key and source: `dataset[17]`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import encode, photo
from packed_fields import sample

import gpuload
from gpuload import DecodeError, ShardError


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
