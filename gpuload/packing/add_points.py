"""Adds seek points to the index of a packed set, or of shards that others packed."""

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa

from gpuload.disk import Manifest
from gpuload.disk.commit import settle
from gpuload.disk.dataset import Dataset
from gpuload.disk.index import POINTS_COLUMN
from gpuload.disk.places import packed_folder
from gpuload.errors import ArgumentError, ShardError
from gpuload.fields.arrow_arrays import array_of
from gpuload.fields.field import Field
from gpuload.fields.images import POINTS, is_raw, picture_columns
from gpuload.fields.picture_lists import PicturesKind, list_columns
from gpuload.fields.pictures import PictureKind
from gpuload.fields.rows import flat, lengths_of
from gpuload.machine.limits import count_cores
from gpuload.machine.untrusted import open_regular
from gpuload.packing.output import cannot_write, describe
from gpuload.packing.points import find_points
from gpuload.store.url import URL


def add_points(
    folder: str | Path, watch: Callable[[int, int], None] = lambda done, total: None
) -> tuple[Manifest, int]:
    """Rewrites the index and the manifest of a folder with the seek points of its images; shards are not changed.

    A run that is interrupted leaves a set that can be opened, with the old index or the new one; running it again
    completes it. Returns the manifest and the number of images that have points.

    Args:
        folder: Of the packed set.
        watch: Called with the number of shards done and of all.

    Raises:
        ArgumentError: its shards lie at URLs. FormatError, ShardError: as `Dataset`. OutputError: the index cannot be
            written.
    """
    folder = packed_folder(Path(folder))
    dataset = Dataset(folder)
    shards = len(dataset.shard_paths)
    images_with_points = 0

    def all_rows(pool: Executor) -> Iterator[pa.RecordBatch]:
        nonlocal images_with_points
        for number, shard in enumerate(dataset.shard_paths):
            rows = dataset.index.shard(number)
            points = _points_by_column(dataset, shard, rows, pool)
            images_with_points += sum(map(bool, points[POINTS].to_pylist()))
            watch(number + 1, shards)
            yield _with_points(rows, points)

    with (
        cannot_write("Free some space", folder),
        ThreadPoolExecutor(count_cores()) as pool,
    ):
        settle(folder)
        rows = all_rows(pool)
        manifest = describe(folder, dataset.manifest, rows, points=True)
    return manifest, images_with_points


def _points_by_column(
    dataset: Dataset, shard: Path | URL, rows: pa.RecordBatch, pool: Executor
) -> dict[str, pa.Array]:
    """The seek points of all pictures of a shard, by the columns of the index that hold them.

    Raises:
        ArgumentError: it lies at a URL. ShardError: it cannot be read.
    """
    if not isinstance(shard, Path):
        raise ArgumentError(
            f"{shard}: lies at a URL. Copy the set with `python -m gpuload fetch`"
        )
    with (
        _opened(shard) as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        search = _Search(rows, content, pool)
        points = {POINTS: search.of_pictures(dataset.manifest.image, "width", "height")}
        for field in dataset.fields.values():
            if is_raw(field):
                continue
            if field.kind == PictureKind.name:
                width, height, column = picture_columns(field.name)
                points[column] = search.of_pictures(field, width, height)
            elif field.kind == PicturesKind.name:
                points[list_columns(field.name).points] = search.of_lists(field)
    return points


class _Search(NamedTuple):
    """Looks for seek points in a shard.

    Attributes:
        rows: Of the index.
        content: Of the shard.
        pool: Looks into several pictures at a time.
    """

    rows: pa.RecordBatch
    content: mmap.mmap
    pool: Executor

    def of_pictures(self, field: Field, width: str, height: str) -> pa.Array:
        """large_binary (N,): the points of a picture of each sample.

        Args:
            field: Of the picture.
            width: The column of its width in pixels.
            height: That of its height.
        """
        names = (field.offset_column, field.bytes_column, width, height)
        return self._found([self.rows.column(name).to_pylist() for name in names])

    def of_lists(self, field: Field) -> pa.Array:
        """list<large_binary> (N,): those of all pictures in the list of each sample."""
        lists = [self.rows.column(name) for name in list_columns(field.name)[:4]]
        ends = np.cumsum([0, *lengths_of(lists[0])])
        points = self._found([flat(column).tolist() for column in lists])
        return pa.ListArray.from_arrays(array_of(ends, pa.int32()), points)

    def _found(self, places: Sequence[Sequence[int]]) -> pa.Array:
        """The points of some pictures, given by their offsets, sizes in bytes, widths and heights."""
        return array_of(list(self.pool.map(self._find, *places)), POINTS_COLUMN.type)

    def _find(self, offset: int, size: int, width: int, height: int) -> bytes:
        return find_points(self.content[offset : offset + size], width, height) or b""


def _with_points(
    rows: pa.RecordBatch, points: Mapping[str, pa.Array]
) -> pa.RecordBatch:
    """Rows of the index with these columns; that of the image, which an index may lack, is the last one."""
    for column, values in points.items():
        if column != POINTS:
            place = rows.schema.get_field_index(column)
            rows = rows.set_column(place, rows.schema.field(place), values)
    if POINTS in rows.schema.names:
        rows = rows.drop_columns([POINTS])
    return rows.append_column(POINTS_COLUMN, points[POINTS])


def _opened(shard: Path) -> BinaryIO:
    """A shard, opened for reading.

    Raises:
        ShardError: it cannot be.
    """
    try:
        return open_regular(shard)
    except OSError as error:
        raise ShardError(
            f"{shard}: cannot be read ({error.strerror}). Copy the folder again"
        ) from None
