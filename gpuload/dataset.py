"""A packed folder, opened: what it holds and where its samples lie."""

import os
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpuload.disk import Field, Index, Manifest
from gpuload.disk import index as index_file
from gpuload.errors import ArgumentError, FormatError, ShardError

I64 = npt.NDArray[np.int64]


class Dataset:
    """A packed folder such as `shards/train`, opened for reading.

    Samples are numbered 0..len-1 in stored order: shard after shard, row after row. Opening costs one `stat` a shard
    and nothing a sample; the index is memory-mapped.

    Raises:
        FormatError: no manifest, or one that is damaged or of another version; an index that does not fit it.
        ShardError: a shard is missing or is not of the size that the manifest says.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise FormatError(f"{folder}: no such folder. Pack images into one with `python -m gpuload pack`")
        if not (self.folder / "manifest.json").exists() and (self.folder / "train" / "manifest.json").exists():
            raise FormatError(f"{folder}: holds packed splits; open one of them, for instance {self.folder / 'train'}")
        self.manifest = Manifest.read(self.folder)
        self.fields: dict[str, Field] = {field.name: field for field in self.manifest.fields}
        self.shard_paths: tuple[Path, ...] = tuple(self.folder / shard.name for shard in self.manifest.shards)
        self.shard_sizes: I64 = np.array([shard.samples for shard in self.manifest.shards], np.int64)
        self.first_samples: I64 = np.concatenate([[0], np.cumsum(self.shard_sizes)])
        self._check_shards()
        self._index = Index(self.folder / index_file.FILE_NAME, self.manifest.fields)
        if len(self._index) != len(self.shard_paths):
            raise FormatError(
                f"{self._index.path}: indexes {len(self._index)} shards, manifest.json lists {len(self.shard_paths)}. "
                "They are not of one run: copy the folder again"
            )

    def __len__(self) -> int:
        """Number of samples."""
        return int(self.first_samples[-1])

    def __repr__(self) -> str:
        return f"Dataset({str(self.folder)!r}: {len(self):,} samples in {len(self.shard_paths):,} shards)"

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Name of each class by its number; None where the packer was not told."""
        return self.manifest.classes

    @property
    def fingerprint(self) -> str:
        """Changes when any stored sample, or the order in which they are stored, does."""
        return self.manifest.fingerprint

    @property
    def schema(self) -> pa.Schema:
        """Names and Arrow types of the index columns."""
        return self._index.schema

    def rows(self, shard: int) -> pa.RecordBatch:
        """The index of one shard, a row a sample in stored order; the columns are views of the mapped file.

        Columns: key, source, width, height (as decoded), and for each field its offset and bytes within the shard and,
        for a class or text, its value.

        Raises:
            FormatError: the index holds another number of samples than the manifest says.
        """
        rows = self._index.shard(shard)
        if rows.num_rows != self.shard_sizes[shard]:
            raise FormatError(
                f"{self._index.path}: has {rows.num_rows} rows for {self.shard_paths[shard].name}, manifest.json says "
                f"{self.shard_sizes[shard]}. They are not of one run: copy the folder again"
            )
        return rows

    def keys(self, samples: npt.ArrayLike) -> list[str]:
        """The keys of these samples, for messages and logs."""
        numbers = np.asarray(samples, np.int64)
        shards = np.searchsorted(self.first_samples, numbers, side="right") - 1
        rows = numbers - self.first_samples[shards]
        return [
            self._index.shard(shard).column("key")[row].as_py()
            for shard, row in zip(shards.tolist(), rows.tolist(), strict=True)
        ]

    @cached_property
    def labels(self) -> I64:
        """int64 (len,): the class number of every sample, in stored order. Costs O(samples) at first use."""
        self.require_field("label")
        labels: I64 = self._index.table().column("label").to_numpy()
        return labels

    def require_field(self, name: str) -> Field:
        """The field of this name.

        Raises:
            ArgumentError: it was not packed; names those that were.
        """
        if name not in self.fields:
            raise ArgumentError(
                f"{self.folder}: has no field {name!r}; packed were {', '.join(map(repr, self.fields))}"
            )
        return self.fields[name]

    def _check_shards(self) -> None:
        for path, info in zip(self.shard_paths, self.manifest.shards, strict=True):
            try:
                found = os.stat(path).st_size
            except OSError:
                raise ShardError(
                    f"{path}: missing; manifest.json lists {len(self.manifest.shards)} shards. Copy the folder again"
                ) from None
            if found != info.bytes:
                raise ShardError(
                    f"{path}: is {found:,} bytes, manifest.json says {info.bytes:,}. "
                    "It was cut short or replaced: copy it again, or index the folder anew"
                )
