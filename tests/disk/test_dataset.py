"""Opening a packed folder, and the messages when it is damaged."""

import copy as copy_module
import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from fuzzing.folders import tell_index

import gpuload
from gpuload.disk import Manifest
from gpuload.order.epoch import EpochOrder
from gpuload.read.reader import Reader


@pytest.fixture
def copy(packed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed, tmp_path / "train"))


def edit_manifest(folder: Path, change: Callable[[dict], object]) -> None:
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def read_all(folder: Path) -> None:
    dataset = gpuload.Dataset(folder)
    order = EpochOrder(dataset.shard_sizes, seed=0, epoch=0, window=8, shuffle=False)
    Reader(dataset).read(order, 0, len(order))


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


@pytest.mark.parametrize("index", [slice(0, 3), 1.0, True])
def test_what_is_neither_key_nor_number(packed: Path, index: Any) -> None:
    for kind in (gpuload.ArgumentError, TypeError):
        with pytest.raises(kind, match=r"dataset\[.*\]: expected a key or a whole number. dataset.subset\(\[...\]\)"):
            gpuload.Dataset(packed)[index]


def test_a_dataset_is_not_a_list_of_images(packed: Path) -> None:
    dataset: Any = gpuload.Dataset(packed)
    with pytest.raises(
        gpuload.ArgumentError, match=r"a loop over a dataset does not exist.* or dataset\[17\] for one; data"
    ):
        list(dataset)
    for do in (lambda: 3 in dataset, lambda: dataset + dataset, lambda: np.asarray(dataset)):
        with pytest.raises(TypeError):
            do()


def test_a_file_is_not_a_packed_folder(packed: Path) -> None:
    with pytest.raises(gpuload.FormatError, match="manifest.json: is a file. Give the packed folder"):
        gpuload.Dataset(packed / "manifest.json")


def missing_shard(folder: Path) -> None:
    (folder / "shard-000003.tar").unlink()


def short_shard(folder: Path) -> None:
    path = folder / "shard-000003.tar"
    path.write_bytes(path.read_bytes()[:-5000])


def swapped_shards(folder: Path) -> None:
    """Exchanges two shards, and their sizes in the manifest, as if a set had been repaired by hand."""
    first, second = folder / "shard-000001.tar", folder / "shard-000002.tar"
    data = first.read_bytes(), second.read_bytes()
    size = max(map(len, data))
    first.write_bytes(data[1].ljust(size, b"\0"))
    second.write_bytes(data[0].ljust(size, b"\0"))
    manifest = gpuload.Dataset(folder.parent / "whole").manifest
    shards = [type(s)(s.name, s.samples, (folder / s.name).stat().st_size, s.sha256) for s in manifest.shards]
    type(manifest)(**{**vars(manifest), "shards": tuple(shards)}).write(folder)


def rewrite_index(folder: Path, change: Callable[[list[pa.RecordBatch]], list[pa.RecordBatch]]) -> None:
    reader = pa.ipc.open_file(folder / "index.arrow")
    batches = [reader.get_batch(n) for n in range(reader.num_record_batches)]
    with pa.ipc.new_file(folder / "other.arrow", reader.schema) as writer:
        for batch in change(batches):
            writer.write_batch(batch)
    (folder / "other.arrow").replace(folder / "index.arrow")


def index_of_fewer_shards(folder: Path) -> None:
    rewrite_index(folder, lambda batches: batches[:-1])
    edit_manifest(folder, lambda m: [m.pop(name) for name in ("index_sha256", "index_parts", "index_offsets")])


def index_of_fewer_rows(folder: Path) -> None:
    rewrite_index(folder, lambda batches: [batches[0].slice(1), *batches[1:]])
    tell_index(folder)


def short_index(folder: Path) -> None:
    path = folder / "index.arrow"
    path.write_bytes(path.read_bytes()[:1000])


def manifest_with(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    return lambda folder: edit_manifest(folder, change)


DAMAGES: list[tuple[Callable[[Path], object], type[Exception], str]] = [
    (missing_shard, gpuload.ShardError, r"shard-000003.tar: cannot be read \(No such file .*Copy the folder"),
    (short_shard, gpuload.ShardError, r"shard-000003.tar: is [\d,]+ bytes, manifest.json says [\d,]+. .*copy it again"),
    (swapped_shards, gpuload.ShardError, r"shard-00000[12].tar: its index does not match it \(sample '\d+-\d+' is"),
    (index_of_fewer_shards, gpuload.FormatError, r"index.arrow: indexes 9 shards, manifest.json lists 10"),
    (index_of_fewer_rows, gpuload.FormatError, r"index.arrow: has 9 rows for shard-000000.tar, manifest.json says 10"),
    (short_index, gpuload.FormatError, r"index.arrow: is 1,000 bytes, manifest.json says [\d,]+. Copy the folder"),
    (lambda f: (f / "index.arrow").unlink(), gpuload.FormatError, r"index.arrow: .*No such file.*or index its shards"),
    (lambda f: (f / "manifest.json").unlink(), gpuload.FormatError, r"no manifest.json, so this is not a packed"),
    (lambda f: (f / "manifest.json").write_text("{"), gpuload.FormatError, r"manifest.json: is damaged: Expecting"),
    (lambda f: (f / "manifest.json").write_text("[]"), gpuload.FormatError, r"is not a gpuload manifest"),
    (
        manifest_with(lambda m: m.update(version=7)),
        gpuload.FormatError,
        r"has version 7, .* versions 1 to 2. Upgrade wi",
    ),
    (manifest_with(lambda m: m.pop("shards")), gpuload.FormatError, r"is damaged: shards is missing"),
    (manifest_with(lambda m: m["shards"].reverse()), gpuload.FormatError, r"its shards do not match its fingerprint"),
    (
        manifest_with(lambda m: m["fields"][0].update(kind="video")),
        gpuload.FormatError,
        r"field 'image' has kind 'video'",
    ),
]


@pytest.mark.parametrize(("damage", "error", "message"), DAMAGES)
def test_messages_name_the_damage(
    packed: Path, copy: Path, damage: Callable[[Path], object], error: type[Exception], message: str
) -> None:
    (copy.parent / "whole").symlink_to(packed)
    read_all(copy)
    damage(copy)
    with pytest.raises(error, match=message):
        read_all(copy)


def test_folder_is_missing_or_holds_splits(packed: Path, tmp_path: Path) -> None:
    with pytest.raises(gpuload.FormatError, match=r"nowhere: no such folder. Pack images into one with"):
        gpuload.Dataset(tmp_path / "nowhere")
    with pytest.raises(gpuload.FormatError, match=r"holds packed splits; open one of them, for instance .*train"):
        gpuload.Dataset(packed.parent)


def test_fingerprint_distinguishes_sets(packed: Path, copy: Path) -> None:
    assert gpuload.Dataset(copy).fingerprint == gpuload.Dataset(packed).fingerprint
    manifest = gpuload.Dataset(packed).manifest
    other = type(manifest)(**{**vars(manifest), "shards": manifest.shards[::-1]})
    assert other.fingerprint != manifest.fingerprint


def in_another_process(pickled: bytes, folder: Path) -> str:
    """What a new process with another current folder reads from a pickled data set."""
    code = (
        "import pickle, sys; dataset = pickle.loads(sys.stdin.buffer.read())\n"
        "print(len(dataset), dataset.fingerprint, dataset.labels.sum(), dataset.shard_sizes.tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], input=pickled, capture_output=True, cwd=folder, check=True)
    return done.stdout.decode().strip()


def seen(dataset: gpuload.Dataset) -> str:
    return f"{len(dataset)} {dataset.fingerprint} {dataset.labels.sum()} {dataset.shard_sizes.tolist()}"


def test_a_pickled_data_set_is_opened_again(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(packed.parent)
    whole = gpuload.Dataset("train")
    part = whole.subset(range(3, 90, 4)).filter(pc.field("label") > 0)
    for dataset in (whole, part):
        _ = dataset.labels  # what was computed is not part of the pickle
        pickled = pickle.dumps(dataset)
        assert len(pickled) < 1000 + 8 * len(dataset)
        assert in_another_process(pickled, tmp_path) == seen(dataset)
        for again in (pickle.loads(pickled), copy_module.deepcopy(dataset), copy_module.copy(dataset)):
            assert seen(again) == seen(dataset) and again.keys([5]) == dataset.keys([5])
    mixed = pickle.loads(pickle.dumps(gpuload.mix([(whole, 1), (part, 3)])))
    assert mixed.fingerprint == gpuload.mix([(whole, 1), (part, 3)]).fingerprint


def test_a_pickled_data_set_refuses_another_in_its_folder(copy: Path) -> None:
    pickled = pickle.dumps(gpuload.Dataset(copy).subset([1, 2]))
    edited = Manifest(Manifest.read(copy).shards[::-1], ())
    edit_manifest(copy, lambda m: m["shards"].reverse() or m.update(fingerprint=edited.fingerprint))
    with pytest.raises(
        gpuload.StateError, match=r"train: holds another data set \(fingerprint .* than the pickled one"
    ):
        pickle.loads(pickled)
    shutil.rmtree(copy)
    with pytest.raises(gpuload.FormatError, match="no such folder"):
        pickle.loads(pickled)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda d: gpuload.Dataset(None), r"Dataset\(folder=None\): expected a path"),
        (lambda d: gpuload.Dataset(d), r"Dataset\(folder=Dataset\(.*: expected a path"),
        (lambda d: d.subset([0.5]), r"Dataset.subset\(samples=\[0.5\]\): expected sample numbers"),
        (lambda d: d.filter("label < 10"), r"Dataset.filter\(expression='label < 10'\): expected an Arrow expression"),
        (lambda d: d.filter(d.labels < 10), r"Dataset.filter\(expression=array\(.*\): expected an Arrow expression"),
        (lambda d: d.keys(5), r"Dataset.keys\(samples=5\): expected sample numbers, whole numbers \(n,\)"),
        (lambda d: d.keys([97]), r"Dataset.keys\(samples\): expected numbers in 0..96, found 97"),
        (lambda d: d.keys([-1]), r"Dataset.keys\(samples\): expected numbers in 0..96, found -1"),
        (lambda d: d.rows(10), r"Dataset.rows\(shard=10\): .*train has 10 shards"),
    ],
)
def test_what_cannot_be_asked_of_a_data_set(packed: Path, ask: Callable[[Any], object], message: str) -> None:
    with pytest.raises(gpuload.ArgumentError, match=message):
        ask(gpuload.Dataset(packed))
    assert gpuload.Dataset(packed).keys([]) == []
