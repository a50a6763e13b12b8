"""An index that says what cannot be, and where a shard ends: refused with the sample's name, and never a crash."""

import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import packed_fields
import pyarrow as pa
import pytest
from damaged import read_stored
from fuzzing.folders import tell_index
from fuzzing.loader import write_value
from fuzzing.run import fuzz
from loaders import load

import gpuload


@pytest.fixture(scope="module")
def sets(dataset: gpuload.Dataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every kind of field in three shards, with encoded images and with raw ones."""
    folder = tmp_path_factory.mktemp("raw")
    samples = map(packed_fields.sample, range(packed_fields.COUNT))
    gpuload.pack(samples, folder, workers=1, maxcount=4, shuffle=False, encode="raw")
    return {"jpeg": Path(dataset.folder), "raw": folder / "train"}


@pytest.fixture
def damage(sets: dict[str, Path], tmp_path: Path) -> Callable[..., Path]:
    """A copy of a set whose index says something else of one sample."""

    def damage(name: str, row: int, value: Any, encode: str = "jpeg") -> Path:
        folder = Path(shutil.copytree(sets[encode], tmp_path / f"{encode}{name}{value}"[:50]))
        write_value(folder, (folder / "index.arrow").read_bytes(), name, row, value)
        return folder

    return damage


def test_any_value_in_any_column_is_refused_or_harms_that_sample_alone(tmp_path: Path) -> None:
    """By either decoder, and of raw images."""
    dali = [] if find_spec("nvidia") is None or find_spec("nvidia.dali") is None else ["loader-dali"]
    targets = ["loader", "loader-raw", "instances", *dali]  # in one process, which imports all once
    result = fuzz(",".join(targets), 0, 40 * len(targets), 400, tmp_path)
    assert result["findings"] == []
    assert result["inputs"] == 40 * len(targets) and min(result["accepted"], result["refused"]) > 3 * len(targets)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("image_offset", -1, r"its 'image' as [\d,]+ bytes at byte -1, and the shard has [\d,]+"),
        ("image_offset", 2**63 - 1, r"its 'image' as [\d,]+ bytes at byte 9,223,372,036,854,775,807, and the shard"),
        ("image_bytes", -1, r"its 'image' as -1 bytes at byte"),
        ("image_bytes", -7, r"its 'image' as -7 bytes at byte"),
        ("image_bytes", 2**62, r"its 'image' as 4,611,686,018,427,387,904 bytes at byte"),
        ("mask_offset", -(2**63), r"its 'mask' as [\d,]+ bytes at byte -9,223,372,036,854,775,808"),
        ("mask_bytes", 10**9, r"its 'mask' as 1,000,000,000 bytes at byte"),
        ("features_offset", 10**9, r"its 'features' as 24 bytes at byte 1,000,000,000"),
        ("features_bytes", 20, r"its 'features' as 20 bytes for an array of shape \(2, 3\)"),
        ("features_shape", [2, -3], r"its 'features' as 24 bytes for an array of shape \(2, -3\)"),
        ("features_shape", [2**31 - 1] * 4, r"its 'features' as 24 bytes for an array of shape \(2147483647, 2147.*\)"),
        ("features_shape", [], r"its 'features' as 24 bytes for an array of shape \(\)"),
        ("width", 0, r"an image of 0 × 22 pixels, expected 1 × 1 to 34 × 22"),
        ("width", -(2**31), r"an image of -2147483648 × 22 pixels, expected"),
        ("height", 0, r"an image of 29 × 0 pixels, expected 1 × 1 to 34 × 22"),
        ("height", 2**31 - 1, r"an image of 29 × 2147483647 pixels, expected 1 × 1 to 34 × 22"),
        ("labels", [1, -1], r"its 'labels' as \[1, -1\], expected numbers from 0"),
        ("label", -1, "its 'label' as -1, expected classes from 0 to 3"),
        ("label", 4, "its 'label' as 4, expected classes from 0 to 3"),
        ("labels", [0, 99], r"its 'labels' as \[0, 99\], expected classes from 0 to \d+"),
        ("boxes_class", [0, 99], r"its 'boxes_class' as \[0, 99\], expected classes from 0 to \d+"),
        ("boxes", [[0, 0, float("nan"), 9]] * 2, r"its 'boxes' as \[\[0.0, 0.0, nan, 9.0\], .*, expected numbers up"),
        ("boxes_class", [0], r"2 entries in 'boxes' and 1 in 'boxes_class'"),
    ],
)
def test_what_cannot_be_is_refused_with_the_samples_name(
    damage: Callable[..., Path], name: str, value: Any, message: str
) -> None:
    match = rf"shard-000001.tar: its index gives sample '\d+5' {message}.*Copy the"
    with pytest.raises(gpuload.ShardError, match=match):
        read_stored(damage(name, 5, value), "mask")


@pytest.mark.parametrize(
    "name", ["key", "width", "image_offset", "label", "labels", "boxes", "drive", "features_shape"]
)
def test_a_value_that_is_missing_is_refused(damage: Callable[..., Path], name: str) -> None:
    inside = {"labels": [[1, None]], "boxes": [[None], [[0, 0, None, 9]]], "drive": [[1.0, None, 2.0]]}
    message = rf"index.arrow: lacks values in column '{name}' of shard 1. Copy"
    for value in (None, *inside.get(name, [])):
        with pytest.raises(gpuload.FormatError, match=message):
            read_stored(damage(name, 5, value), "mask")


def test_raw_images_are_as_large_as_their_pixels(damage: Callable[..., Path]) -> None:
    message = r"its pixels as 1,914 bytes at .* x 3, 1,848, at a multiple of 1. Copy"
    with pytest.raises(gpuload.ShardError, match=message):
        read_stored(damage("width", 5, 28, encode="raw"), "mask")


def test_fields_that_look_at_the_first_sample_are_refused_at_construction(damage: Callable[..., Path]) -> None:
    with pytest.raises(gpuload.FormatError, match="lacks values in column 'tokens_shape'"):
        load(damage("tokens_shape", 0, None), fields=(gpuload.Tokens("tokens"),))


def test_buckets_need_sizes(damage: Callable[..., Path]) -> None:
    augment = gpuload.Augment(gpuload.Buckets([(8, 8), (8, 16)]), crop="cover")
    for name in ("width", "height"):
        with pytest.raises(gpuload.ShardError, match=r"sample '\d+5' has no size in the index, which buckets need"):
            load(damage(name, 5, 0), augment=augment)


def test_an_index_with_broken_lists_or_texts_is_refused(sets: dict[str, Path], tmp_path: Path) -> None:
    """Offsets of lists and texts that lead out of their buffers: Arrow would read there."""
    folder = Path(shutil.copytree(sets["jpeg"], tmp_path / "copy"))
    key = np.arange(5, dtype=np.int64) * 8  # the offsets of four keys of eight digits
    index = (folder / "index.arrow").read_bytes()
    assert index.count(key.tobytes()) >= 1
    (folder / "index.arrow").write_bytes(index.replace(key.tobytes(), (key * 2**40).tobytes()))
    tell_index(folder)
    with pytest.raises(gpuload.FormatError, match=r"index.arrow: is damaged \(.*\). Copy the folder again"):
        read_stored(folder, "mask")


def test_dali_refuses_an_image_that_is_smaller_than_the_index_says(damage: Callable[..., Path]) -> None:
    message = r"sample '\d+5' does not decode .*: it is not of the size that the index says"
    with (
        load(
            damage("width", 5, 34), 4, augment=gpuload.Augment(8, crop="none"), decoder="dali", shuffle=False
        ) as loader,
        pytest.raises(gpuload.DecodeError, match=message),
    ):
        list(loader)


@pytest.mark.parametrize("missing", [1, 512, 4095, 4096])
def test_a_shard_that_was_truncated_since_it_was_opened_is_refused(copy: Path, missing: int) -> None:
    shard, dataset = copy / "shard-000001.tar", gpuload.Dataset(copy)
    size = shard.stat().st_size
    os.truncate(shard, size - missing)
    message = rf"{shard.name}: is {size - missing:,} bytes, manifest.json says {size:,}. It was truncated"
    with pytest.raises(gpuload.ShardError, match=message):
        read_stored(dataset)


@pytest.mark.parametrize(("name", "row", "encode"), [("mask", 5, "jpeg"), ("image", 10, "jpeg"), ("image", 10, "raw")])
def test_members_may_reach_the_end_of_their_shard_and_no_further(
    sets: dict[str, Path], tmp_path: Path, name: str, row: int, encode: str
) -> None:
    folder = Path(shutil.copytree(sets[encode], tmp_path / "copy"))
    pristine, end = (folder / "index.arrow").read_bytes(), (folder / f"shard-{row // 4:06d}.tar").stat().st_size
    size = pa.ipc.open_file(pristine).get_batch(row // 4).column(f"{name}_bytes")[row % 4].as_py()
    for offset, length in ((end - size + 1, size), (end - size + 4096, size), (0, end + 1)):
        write_value(folder, pristine, f"{name}_offset", row, offset)
        write_value(folder, (folder / "index.arrow").read_bytes(), f"{name}_bytes", row, length)
        message = rf"its '{name}' as {length:,} bytes at byte {offset:,}, and the shard has {end:,}. Copy"
        with pytest.raises(gpuload.ShardError, match=message):
            read_stored(folder, "mask")
    write_value(folder, pristine, f"{name}_offset", row, end - size)
    if name == "image":  # is in the shard, but there is no header before it
        with pytest.raises(gpuload.ShardError, match="its index does not match it"):
            read_stored(folder, "mask")
    else:
        read_stored(folder, "mask")
