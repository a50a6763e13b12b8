"""A split and all that was found in it: what the tables of a report are made of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gpuload.loader.corrupt import CorruptSample
from gpuload.report.classes import Columns, read_columns
from gpuload.report.files import FileFacts, read_files
from gpuload.report.pixels import Looks, choose, look_at, shares, side_for
from gpuload.report.samples import Split


@dataclass(frozen=True)
class Part:
    """columns: of the index. looks, files: of the images that were looked at. corrupt: the first 1,000 of those that do
    not decode, and corrupt_images, how many there are."""

    split: Split
    columns: Columns
    looks: Looks
    files: FileFacts
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
        files = read_files(split.dataset, split.dataset.stored_samples(numbers))
        parts.append(Part(split, found, looks, files, corrupt, images))
    return parts
