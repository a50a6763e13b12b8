"""Damage to packed sets, where the packer would refuse it; and a reading of all samples, which notices it."""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fuzzing.folders import with_fingerprint

import gpuload
from gpuload.order.epoch import EpochOrder
from gpuload.read.reader import Reader


def zero(data: bytes) -> bytes:
    return bytes(len(data))


def damage(
    packed: Path, copy: Path, samples: Iterable[int], change: Callable[[bytes], bytes] = zero, field: str = "image"
) -> Path:
    """A copy of a set in which a field of these samples is changed, to bytes of at most the same length."""
    shutil.copytree(packed, copy)
    dataset = gpuload.Dataset(copy)
    for sample in samples:
        shard = int(dataset.shards_of(sample))
        row = dataset.rows(shard).slice(sample - int(dataset.first_samples[shard]), 1).to_pylist()[0]
        with dataset.shard_paths[shard].open("r+b") as file:
            file.seek(row[f"{field}_offset"])
            data = file.read(row[f"{field}_bytes"])
            file.seek(row[f"{field}_offset"])
            file.write(change(data).ljust(len(data), b"\0"))
    return copy


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], object], fingerprint: bool = True) -> None:
    """fingerprint: whether it is changed, too, as by somebody who means it."""
    path = folder / "manifest.json"
    found = json.loads(path.read_text())
    change(found)
    text = json.dumps(found).encode()
    path.write_bytes(with_fingerprint(text) if fingerprint else text)


def read_stored(data: Path | gpuload.Dataset, *pictures: str) -> None:
    """Reads all samples as a loader does, without decoding them. pictures: those besides the image."""
    dataset = data if isinstance(data, gpuload.Dataset) else gpuload.Dataset(data)
    order = EpochOrder(dataset.shard_sizes, seed=0, epoch=0, window=8, shuffle=False)
    Reader(dataset, pictures=pictures).read(order, 0, len(order))
