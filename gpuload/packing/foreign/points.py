"""Writes seek points into the index of a set that is packed already, or whose shards were packed by others."""

import mmap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from gpuload.disk import Manifest, write_index
from gpuload.disk import index as index_file
from gpuload.disk.dataset import Dataset
from gpuload.disk.index import POINTS_COLUMN
from gpuload.errors import ArgumentError
from gpuload.fields.images import POINTS
from gpuload.machine.limits import count_cores
from gpuload.machine.untrusted import open_regular
from gpuload.packing.image.jpegs import find_points
from gpuload.store.files import replaced


def add_points(
    folder: str | Path, watch: Callable[[int, int], None] = lambda done, total: None
) -> tuple[Manifest, int]:
    """Rewrites the index and the manifest of a folder with the seek points of its JPEGs; shards are not changed.

    watch: called with shards done and shards in all. Returns the manifest and the number of images that have points.

    Raises:
        ArgumentError: its shards lie at URLs. FormatError, ShardError: as `Dataset`.
    """
    dataset, found = Dataset(folder), 0
    image, path = dataset.fields["image"], Path(folder) / index_file.FILE_NAME
    with (
        ThreadPoolExecutor(count_cores()) as pool,
        replaced(path) as temporary,
        write_index(temporary, dataset.manifest.fields, points=True) as write,
    ):
        for number, shard in enumerate(dataset.shard_paths):
            if not isinstance(shard, Path):
                raise ArgumentError(f"{shard}: lies at a URL. Copy the set with `python -m gpuload fetch`")
            rows = dataset.rows(number)
            names = image.offset_column, image.bytes_column, "width", "height"
            with open_regular(shard) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:

                def find(offset: int, size: int, width: int, height: int, data: mmap.mmap = data) -> bytes:
                    return find_points(data[offset : offset + size], width, height) or b""

                points = list(pool.map(find, *(rows.column(name).to_pylist() for name in names)))
            if POINTS in rows.schema.names:
                rows = rows.drop_columns([POINTS])
            write(rows.append_column(POINTS_COLUMN, pa.array(points, POINTS_COLUMN.type)))
            found += sum(map(bool, points))
            watch(number + 1, len(dataset.shard_paths))
    manifest = replace(dataset.manifest, **index_file.index_digests(path)._asdict())
    manifest.write(Path(folder))
    return manifest, found
