"""Opening a packed folder, and the messages when it is damaged."""

import copy as copy_module
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from damaged import change_manifest, read_stored
from loaders import drain, load

import gpuload
from gpuload import ArgumentError, FormatError, ShardError, StateError


def test_properties_of_a_dataset(packed: Path, photos: Path) -> None:
    dataset = gpuload.Dataset(str(packed))
    assert len(dataset) == 97
    assert dataset.classes == ("ant", "bee", "cat")
    assert dataset.shard_sizes.tolist() == [10] * 9 + [7]
    assert repr(dataset) == f"Dataset('{packed}': 97 samples in 10 shards)"
    rows = [dataset.rows(shard) for shard in range(10)]
    sources = [name for batch in rows for name in batch.column("source").to_pylist()]
    assert sorted(sources) == sorted(str(p.relative_to(photos)) for p in photos.rglob("*.jpg"))
    assert [dataset.classes[n] for n in dataset.labels] == [name.split("/")[0] for name in sources]
    keys = [key for batch in rows for key in batch.column("key").to_pylist()]
    assert dataset.keys([96, 0, 10]) == [keys[96], keys[0], keys[10]]
    with pytest.raises(TypeError, match="not iterable"):  # else each image would be decoded, one by one
        iter(dataset)  # type: ignore[call-overload]


def cut(name: str, size: int) -> Callable[[Path], object]:
    return lambda folder: os.truncate(folder / name, size)


def manifest_with(change: Callable[[dict[str, Any]], object], fingerprint: bool = False) -> Callable[[Path], object]:
    return lambda folder: change_manifest(folder, change, fingerprint)


def add_a_shard(found: dict[str, Any]) -> None:
    found["shards"].append({**found["shards"][0], "name": "shard-000000.tar"})
    for name in ("index_sha256", "index_parts", "index_offsets"):
        del found[name]


def lengthen_an_image(folder: Path) -> None:
    """By 8 GB, in the first digit of its size in the tar header."""
    offset = gpuload.Dataset(folder).rows(1).column("image_offset")[0].as_py()
    with (folder / "shard-000001.tar").open("r+b") as file:
        file.seek(offset - 512 + 124)
        file.write(b"1")


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda f: (f / "shard-000003.tar").unlink(), r"shard-000003.tar: cannot be read \(No such file .*Copy the folder"),
    (cut("shard-000003.tar", 5000), r"shard-000003.tar: is 5,000 bytes, manifest.json says [\d,]+. .*copy it again"),
    (
        manifest_with(lambda m: m["shards"].insert(1, m["shards"].pop(2)), True),
        r"shard-00000[12].tar: its index does not match it \(sample '\d+-\d+' is",
    ),
    (lengthen_an_image, r"shard-000001.tar: its index does not match it \(sample '\d+-\d+' is"),
    (manifest_with(add_a_shard, True), r"index.arrow: indexes 10 shards, manifest.json lists 11"),
    (
        manifest_with(lambda m: m["shards"][0].update(samples=9), True),
        r"index.arrow: has 10 rows for shard-000000.tar, manifest.json says 9",
    ),
    (cut("index.arrow", 1000), r"index.arrow: is 1,000 bytes, manifest.json says [\d,]+. Copy the folder"),
    (lambda f: (f / "index.arrow").unlink(), r"index.arrow: .*No such file.*or index its shards"),
    (lambda f: (f / "manifest.json").unlink(), r"no manifest.json, so this is not a packed"),
    (cut("manifest.json", 0), r"manifest.json: cannot be read"),
    (lambda f: (f / "manifest.json").write_text("{"), r"manifest.json: is damaged: Expecting"),
    (lambda f: (f / "manifest.json").write_text("[]"), r"is not a gpuload manifest"),
    (manifest_with(lambda m: m.update(format="other")), r"is not a gpuload manifest, with 'format' 'gpuload'"),
    (manifest_with(lambda m: m.update(version=0)), r"has version 0, .* versions 1 to 4. Upgrade"),
    (manifest_with(lambda m: m.update(version=True)), r"has version True, .* versions 1 to 4. Upgrade"),
    (manifest_with(lambda m: m.pop("version")), r"has version None, .* versions 1 to 4. Upgrade"),
    (manifest_with(lambda m: m.update(version=7)), r"has version 7, .* versions 1 to 4. Upgrade"),
    (manifest_with(lambda m: m.pop("shards")), r"is damaged: shards is missing"),
    (manifest_with(lambda m: m["shards"].reverse()), r"its shards do not match its fingerprint"),
    (manifest_with(lambda m: m["fields"][0].update(kind="video")), r"field 'image' has kind 'video'"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_messages_name_the_damage(copy: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(copy)
    error = ShardError if message.startswith("shard") else FormatError
    with pytest.raises(error, match=message):
        read_stored(copy)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nowhere", "nowhere: no such folder. Pack images"),
        ("trian", r"trian: no such folder. Did you mean .*/train\?"),
        ("train/manifest.json", "train/manifest.json: is not a packed folder, but .*/train is. Open that"),
        ("train/shard-{000000..000003}.tar", "is not a packed folder, but .*/train is. Open that"),
    ],
)
def test_what_is_no_packed_folder(packed: Path, place: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        gpuload.Dataset(packed.parent / place)


def test_files_are_no_packed_folder(tmp_path: Path) -> None:
    for name, advice in (("photos.tar", r"Index it with `.* index \S*photos.tar`"), ("photos.zip", "Pack images")):
        (tmp_path / name).touch()
        with pytest.raises(FormatError, match=rf"{name}: is a file, expected a packed folder. {advice}"):
            gpuload.Dataset(tmp_path / name)


def test_a_folder_of_packed_folders_is_its_only_one(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "val").symlink_to(packed)
    assert gpuload.Dataset(tmp_path).folder == tmp_path / "val"
    (tmp_path / "train").symlink_to(packed)
    message = rf"{tmp_path}: holds packed splits; open one of them, for instance {tmp_path}/train$"
    with pytest.raises(FormatError, match=message):
        gpuload.Dataset(tmp_path)


def seen(dataset: gpuload.Dataset) -> tuple[Any, ...]:
    return len(dataset), dataset.fingerprint, int(dataset.labels.sum()), dataset.shard_sizes.tolist()


def test_a_pickled_data_set_is_opened_again(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a process with another current folder."""
    monkeypatch.chdir(packed.parent)
    whole = gpuload.Dataset("train")
    part = whole.subset(range(3, 90, 4)).filter(pc.field("label") > 0)
    code = (
        "import pickle, sys; sets = pickle.load(sys.stdin.buffer)\n"
        "print([(len(d), d.fingerprint, int(d.labels.sum()), d.shard_sizes.tolist()) for d in sets])"
    )
    command, pickled = [sys.executable, "-c", code], pickle.dumps([whole, part])
    done = subprocess.run(command, input=pickled, capture_output=True, cwd=tmp_path, check=True)
    assert done.stdout.decode().strip() == repr([seen(whole), seen(part)])
    for dataset in (whole, part):
        pickled = pickle.dumps(dataset)  # without the labels, which were computed
        assert len(pickled) < 1000 + 8 * len(dataset)
        for again in (pickle.loads(pickled), copy_module.deepcopy(dataset), copy_module.copy(dataset)):
            assert seen(again) == seen(dataset) and again.keys([5]) == dataset.keys([5])
    mixed = gpuload.mix([(whole, 1), (part, 3)])
    assert pickle.loads(pickle.dumps(mixed)).fingerprint == mixed.fingerprint


def test_a_relative_path_is_that_of_the_folder_in_which_it_was_given(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the new folder has a set of this name, such as that of another fold, whose shards are as large."""
    other = tmp_path / "other"
    shutil.copytree(copy, other / copy.name)
    for shard in (other / copy.name).glob("*.tar"):
        shard.write_bytes(bytes(shard.stat().st_size))
        os.utime(shard, ns=(0, (copy / shard.name).stat().st_mtime_ns))
    monkeypatch.chdir(copy.parent)
    dataset = gpuload.Dataset(copy.name)
    expected = drain([load(copy)])
    loader = load(dataset)
    monkeypatch.chdir(other)
    assert drain([loader]) == drain([load(dataset)]) == expected
    assert np.array_equal(dataset[7]["image"], gpuload.Dataset(copy)[7]["image"])
    assert pickle.loads(pickle.dumps(dataset)).shard_paths == gpuload.Dataset(copy).shard_paths


def test_a_pickled_data_set_refuses_another_in_its_folder(copy: Path) -> None:
    pickled = pickle.dumps(gpuload.Dataset(copy).subset([1, 2]))
    change_manifest(copy, lambda m: m["shards"].reverse())
    with pytest.raises(StateError, match=r"train: holds another data set \(fingerprint .* than the pickled one"):
        pickle.loads(pickled)
    shutil.rmtree(copy)
    with pytest.raises(FormatError, match="no such folder"):
        pickle.loads(pickled)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda d: d.filter(d.labels < 10), r"Dataset.filter\(expression=array\(.*\): expected an Arrow expression"),
        (lambda d: d.keys([97]), r"Dataset.keys\(samples\): expected numbers in 0..96, found 97"),
        (lambda d: d.keys([-1]), r"Dataset.keys\(samples\): expected numbers in 0..96, found -1"),
        (lambda d: d[0:3], r"dataset\[slice.*\]: expected a key or a whole number. dataset.subset\(\[...\]\)"),
        (lambda d: d[1.0], r"dataset\[1.0\]: expected a key or a whole number"),
        (lambda d: d[True], r"dataset\[True\]: expected a key or a whole number"),
        (lambda d: d[97], r"dataset\[97\]: .* has samples 0 to 96"),
        (lambda d: d.subset([3, 50])[2], r"has samples 0 to 1. Use one of these"),
        (lambda d: d["none"], r"dataset\['none'\]: .*no sample of this key or source. dataset.keys\(\[...\]\) tells"),
        (lambda d: d.subset([3])[d.keys([4])[0]], "has no sample of this key"),
        (lambda d: d["\udcff"], "is not text"),
        (lambda d: d.rows(10), r"Dataset.rows\(shard\): expected numbers in 0..9, found 10"),
    ],
)
def test_what_cannot_be_asked_of_a_data_set(packed: Path, ask: Callable[[Any], object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ask(gpuload.Dataset(packed))
    assert gpuload.Dataset(packed).keys([]) == []
