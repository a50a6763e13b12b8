"""Opening a packed folder, and the messages when it is damaged."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import gpuload
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


def test_reading_gives_the_files_bytes(packed: Path, photos: Path) -> None:
    dataset = gpuload.Dataset(packed)
    reader = Reader(dataset, ["source", "label"])
    order = EpochOrder(dataset.shard_sizes, seed=0, epoch=0, window=2)
    seen = []
    for start in range(0, 97, 13):
        batch = reader.read(order, start, min(start + 13, 97))
        for image, source in zip(batch.images, batch.columns["source"].to_pylist(), strict=True):
            assert image.tobytes() == (photos / source).read_bytes()
        np.testing.assert_array_equal(batch.columns["label"], dataset.labels[batch.samples])
        seen += batch.samples.tolist()
    assert seen == order[:].tolist()
    views = batch.images
    reader.close()
    assert views[0].tobytes()[:2] == b"\xff\xd8"  # views outlive the reader


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


def index_of_fewer_shards(folder: Path) -> None:
    reader = pa.ipc.open_file(folder / "index.arrow")
    batches = [reader.get_batch(n) for n in range(reader.num_record_batches)]
    with pa.ipc.new_file(folder / "other.arrow", reader.schema) as writer:
        for batch in batches[:-1]:
            writer.write_batch(batch)
    (folder / "other.arrow").replace(folder / "index.arrow")


def index_of_fewer_rows(folder: Path) -> None:
    reader = pa.ipc.open_file(folder / "index.arrow")
    batches = [reader.get_batch(n) for n in range(reader.num_record_batches)]
    with pa.ipc.new_file(folder / "other.arrow", reader.schema) as writer:
        for batch in [batches[0].slice(1), *batches[1:]]:
            writer.write_batch(batch)
    (folder / "other.arrow").replace(folder / "index.arrow")


def short_index(folder: Path) -> None:
    path = folder / "index.arrow"
    path.write_bytes(path.read_bytes()[:1000])


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (
            missing_shard,
            gpuload.ShardError,
            r"shard-000003.tar: missing; manifest.json lists 10 shards. Copy the folder",
        ),
        (
            short_shard,
            gpuload.ShardError,
            r"shard-000003.tar: is [\d,]+ bytes, manifest.json says [\d,]+. .*copy it again",
        ),
        (swapped_shards, gpuload.ShardError, r"shard-00000[12].tar: its index does not match it \(sample '\d+-\d+' is"),
        (index_of_fewer_shards, gpuload.FormatError, r"index.arrow: indexes 9 shards, manifest.json lists 10"),
        (
            index_of_fewer_rows,
            gpuload.FormatError,
            r"index.arrow: has 9 rows for shard-000000.tar, manifest.json says 10",
        ),
        (short_index, gpuload.FormatError, r"index.arrow: not an Arrow file, or truncated"),
        (lambda f: (f / "index.arrow").unlink(), gpuload.FormatError, r"index.arrow: missing. Copy the folder again"),
        (lambda f: (f / "manifest.json").unlink(), gpuload.FormatError, r"no manifest.json, so this is not a packed"),
        (lambda f: (f / "manifest.json").write_text("{"), gpuload.FormatError, r"manifest.json: cannot be read"),
        (lambda f: (f / "manifest.json").write_text("[]"), gpuload.FormatError, r"is not a gpuload manifest"),
        (
            lambda f: edit_manifest(f, lambda m: m.update(version=7)),
            gpuload.FormatError,
            r"manifest.json: has version 7, this gpuload reads version 1. Upgrade with `pip install -U gpuload`",
        ),
        (
            lambda f: edit_manifest(f, lambda m: m.pop("shards")),
            gpuload.FormatError,
            r"is damaged \(missing or unexpected: 'shards'\)",
        ),
        (
            lambda f: edit_manifest(f, lambda m: m["shards"].pop()),
            gpuload.FormatError,
            r"its shards do not match its fingerprint",
        ),
        (
            lambda f: edit_manifest(f, lambda m: m["fields"][0].update(kind="video")),
            gpuload.FormatError,
            r"field 'image' has kind 'video'; this gpuload knows image, ",
        ),
    ],
)
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
