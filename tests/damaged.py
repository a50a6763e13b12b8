"""Damage to images in packed sets, where the packer would refuse it."""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import gpuload


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
