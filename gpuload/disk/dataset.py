"""A packed folder, opened: what it holds and where its samples lie."""

import copy
import hashlib
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpuload.disk import Index, Manifest
from gpuload.disk import index as index_file
from gpuload.errors import ArgumentError, FormatError, ShardError
from gpuload.fields.field import Field
from gpuload.types import I64

if TYPE_CHECKING:
    import pyarrow.compute as pc  # takes 0.15 s of the first batch


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
        self._selected: I64 | None = None
        self._check_shards()
        self._index = Index(self.folder / index_file.FILE_NAME, self.manifest.fields)
        if len(self._index) != len(self.shard_paths):
            raise FormatError(
                f"{self._index.path}: indexes {len(self._index)} shards, manifest.json lists {len(self.shard_paths)}. "
                "They are not of one run: copy the folder again"
            )

    def __len__(self) -> int:
        """Number of samples; those selected, in a subset."""
        return int(self.first_samples[-1]) if self._selected is None else len(self._selected)

    def __repr__(self) -> str:
        part = "" if self._selected is None else f" of {self.first_samples[-1]:,}"
        return f"Dataset({str(self.folder)!r}: {len(self):,}{part} samples in {len(self.shard_paths):,} shards)"

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Name of each class by its number; None where the packer was not told."""
        return self.manifest.classes

    @cached_property
    def fingerprint(self) -> str:
        """Changes when any stored sample, the order in which they are stored, or the selection does."""
        if self._selected is None:
            return self.manifest.fingerprint
        return hashlib.sha256(self.manifest.fingerprint.encode() + self._selected.tobytes()).hexdigest()[:16]

    def subset(self, samples: npt.ArrayLike) -> "Dataset":
        """These samples alone, in stored order: their numbers in this data set, or a mask (len,) of bool.

        Shards, index and keys stay those of the whole set; so do the numbers in the field "index", and the crops of a
        sample for a seed and epoch.

        Raises:
            ArgumentError: a number out of range or twice, no samples at all, or a mask of another length.
        """
        chosen = np.asarray(samples)
        if chosen.dtype == bool:
            if chosen.shape != (len(self),):
                raise ArgumentError(f"subset: the mask is of shape {chosen.shape}, expected ({len(self)},)")
            chosen = np.flatnonzero(chosen)
        chosen = np.sort(chosen.astype(np.int64))
        if not len(chosen):
            raise ArgumentError(f"subset: selects no sample of {self.folder}. Loosen the filter")
        if chosen[0] < 0 or chosen[-1] >= len(self) or (np.diff(chosen) == 0).any():
            raise ArgumentError(
                f"subset: sample numbers {chosen[0]}..{chosen[-1]}, expected each at most once, in 0..{len(self) - 1}"
            )
        part = copy.copy(self)
        for computed in ("labels", "fingerprint"):
            part.__dict__.pop(computed, None)
        part._selected = self.stored_samples(chosen)
        part.shard_sizes = np.diff(np.searchsorted(part._selected, self.first_samples))
        return part

    def filter(self, expression: "pc.Expression") -> "Dataset":
        """The samples for which an Arrow expression over the index columns holds.

        `dataset.filter(pc.field("label") < 10)`, `dataset.filter(pc.field("width") >= 224)`, with pyarrow.compute as
        pc. Costs O(samples), a shard at a time.

        Raises:
            ArgumentError: the expression cannot be computed from the columns, or no sample is left.
        """
        numbers = []
        for shard, first in enumerate(self.first_samples[:-1].tolist()):
            rows = pa.Table.from_batches([self.rows(shard)])
            rows = rows.append_column("sample number", pa.array(np.arange(first, first + rows.num_rows)))
            try:
                numbers.append(rows.filter(expression).column("sample number").to_numpy())
            except (pa.ArrowException, TypeError) as error:
                reason = str(error).splitlines()[0]
                raise ArgumentError(f"filter: {reason}. The columns are {', '.join(self.schema.names)}") from None
        kept = np.concatenate(numbers)
        if self._selected is not None:
            return self.subset(np.isin(self._selected, kept))
        return self.subset(kept)

    def stored_samples(self, numbers: I64) -> I64:
        """Numbers in stored order of the whole set, of samples of this one, which may be a subset."""
        return numbers if self._selected is None else self._selected[numbers]

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
        expected = self.manifest.shards[shard].samples
        if rows.num_rows != expected:
            raise FormatError(
                f"{self._index.path}: has {rows.num_rows} rows for {self.shard_paths[shard].name}, manifest.json says "
                f"{expected}. They are not of one run: copy the folder again"
            )
        return rows

    def first_row(self) -> pa.RecordBatch:
        """The first sample's row of the index, as a batch of one; costs O(1)."""
        first = int(self.stored_samples(np.zeros(1, np.int64))[0])
        shard = int(np.searchsorted(self.first_samples, first, side="right")) - 1
        return self.rows(shard).slice(first - int(self.first_samples[shard]), 1)

    def keys(self, samples: npt.ArrayLike) -> list[str]:
        """The keys of samples, by their numbers in stored order (the field "index")."""
        numbers = np.asarray(samples, np.int64)
        shards = np.searchsorted(self.first_samples, numbers, side="right") - 1
        rows = numbers - self.first_samples[shards]
        return [
            self._index.shard(shard).column("key")[row].as_py()
            for shard, row in zip(shards.tolist(), rows.tolist(), strict=True)
        ]

    @cached_property
    def labels(self) -> I64:
        """int64 (len,): the class number of every sample, in stored order. Costs O(stored samples) at first use."""
        self.require_field("label")
        labels: I64 = self._index.table().column("label").to_numpy()
        return labels if self._selected is None else labels[self._selected]

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
