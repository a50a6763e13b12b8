"""A split and the facts gathered from it, from which the tables of a report are made."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gpuload.disk.dataset import Dataset
from gpuload.headers import jpeg, png
from gpuload.loader.corrupt import CorruptSample
from gpuload.report.classes import Columns, read_columns
from gpuload.report.pixels import Looks, choose, look_at, shares, side_for
from gpuload.report.samples import Split
from gpuload.types import I64

_FIRST_BYTES = 1 << 14  # enough for most headers
_STARTS: dict[str, bytes | tuple[bytes, ...]] = {"PNG": png.START, "TIFF": (b"II*\0", b"MM\0*")}


@dataclass(frozen=True)
class Part:
    """columns: of the index. looks: of the images that were looked at, formats: how many of them are of which. corrupt:
    the first 1,000 of those that do not decode, and corrupt_images, how many there are."""

    split: Split
    columns: Columns
    looks: Looks
    formats: Counter[str]
    corrupt: tuple[CorruptSample, ...]
    corrupt_images: int


def look_at_all(splits: Sequence[Split], most_images: int, progress: Callable[[int, int, int], None]) -> list[Part]:
    """Reads the index of each split, and the pixels and headers of at most so many images of all together.

    progress: as of `build`.
    """
    columns = [read_columns(split.dataset) for split in splits]
    counts = list(shares([len(split.dataset) for split in splits], most_images))
    side = side_for(np.concatenate([np.minimum(found.widths, found.heights) for found in columns]))
    parts, done = [], 0

    def more(images: int) -> None:
        nonlocal done
        done += images
        progress(done, sum(counts), 0)

    for split, found, count in zip(splits, columns, counts, strict=True):
        numbers = choose(split.dataset, count)
        looks, corrupt, images = look_at(split.dataset, numbers, side, more)
        formats = count_formats(split.dataset, split.dataset.stored_samples(numbers))
        parts.append(Part(split, found, looks, formats, corrupt, images))
    return parts


def count_formats(dataset: Dataset, numbers: I64) -> Counter[str]:
    """How many of these images, given by their numbers in the whole set, ascending, are of which format."""
    if dataset.fields["image"].kind == "raw":
        return Counter({"raw pixels": len(numbers)})
    found = Counter[str]()
    store = dataset.open_store()
    try:
        shards = dataset.shards_of(numbers)
        for shard in np.unique(shards).tolist():
            rows = numbers[shards == shard] - int(dataset.first_samples[shard])
            table = dataset.rows(shard)
            offsets, sizes = (table.column(f"image_{what}").to_numpy()[rows].tolist() for what in ("offset", "bytes"))
            lease = store.open(shard)
            with lease.open(buffering=0) as file:
                for offset, size in zip(offsets, sizes, strict=True):
                    found[_format(_read_head(file.fileno(), offset, size))] += 1
    finally:
        store.close()
    return found


def _read_head(descriptor: int, offset: int, size: int) -> bytes:
    """The first bytes of an image; empty where they cannot be read."""
    if offset < 0 or size <= 0:
        return b""
    try:
        return os.pread(descriptor, min(size, _FIRST_BYTES), offset)
    except OSError:
        return b""


def _format(head: bytes) -> str:
    if head.startswith(jpeg.START):
        return "JPEG, progressive" if jpeg.read_header(head).progressive else "JPEG"
    for name, starts in _STARTS.items():
        if head.startswith(starts):
            return name
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "WebP"
    return "AVIF" if head[4:12] in (b"ftypavif", b"ftypavis") else "other"
