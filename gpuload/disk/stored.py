"""A packed folder as it is stored: its fields, its shards, and the rows of its index."""

import hashlib
import logging
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpuload.checks import (
    PATH,
    Rule,
    as_items,
    as_numbers,
    as_text,
    checked,
    either,
    optional,
    unknown_attribute,
    whole,
)
from gpuload.counted import counted
from gpuload.disk.class_numbers import class_numbers
from gpuload.disk.index import Index
from gpuload.disk.opening import open_folder, open_url
from gpuload.disk.tiles import Tiles
from gpuload.errors import ArgumentError, CallError, FormatError, ShardError
from gpuload.fields.field import Field
from gpuload.fields.registry import kind_of
from gpuload.store import FolderStore, Store
from gpuload.store.cache import Cache, Wanted
from gpuload.store.url import URL, joined
from gpuload.types import I64


def _as_expression(value: Any) -> Any:
    import pyarrow.compute as pc

    if not isinstance(value, pc.Expression):
        raise TypeError
    return value


SAMPLES = Rule("sample numbers, whole numbers (n,), or a mask, bool (len,)", as_numbers)
NUMBERS = Rule("sample numbers, whole numbers (n,)", as_numbers)
SHARDS = Rule("shard numbers, whole numbers (n,)", as_numbers)
EXCLUDE = either(
    "a file that verify --quarantine wrote, or a list of keys",
    PATH,
    Rule("", lambda value: tuple(map(as_text, as_items(value)))),
)
EXPRESSION = Rule("an Arrow expression, such as pyarrow.compute.field('label') < 10", _as_expression)

_NO_IMAGES = (
    "does not exist, since it would decode one image after another. Use gpuload.DaliIterator(dataset, ...) for images, "
    "or dataset[17] for one; dataset.subset([...]) chooses samples, dataset.rows(shard) is their index"
)
# Attributes of torchvision's ImageFolder and of Hugging Face's data sets.
_ATTRIBUTES = {
    "class_to_idx": "Use {name: number for number, name in enumerate(dataset.classes)}",
    "targets": "Use dataset.labels, the class number of every sample",
    "samples": "Use dataset.rows(shard), whose column source holds the names of the files",
    "imgs": "Use dataset.rows(shard), whose column source holds the names of the files",
    "transform": "Use DaliIterator(augment=gpuload.Augment(...))",
    "select": "Use dataset.subset([...])",
    "shuffle": "Use DaliIterator(shuffle=True), which shuffles anew in each epoch",
    "map": "Use DaliIterator(batch_transforms=[...])",
    "features": "Use dataset.fields",
    "column_names": "Use dataset.schema.names",
}


class NotSupported:
    """Operations that data sets of other libraries have: each raises an error that says what to write instead."""

    def __iter__(self) -> NoReturn:  # else Python would loop by Dataset.__getitem__
        raise CallError(f"Dataset: a loop over a dataset {_NO_IMAGES}")

    def __contains__(self, sample: object) -> NoReturn:
        raise CallError(f"Dataset: `in` {_NO_IMAGES}")

    def __add__(self, other: object) -> NoReturn:
        raise CallError(
            "Dataset: data sets are not added. Use gpuload.mix([(one, 0.5), (other, 0.5)]), or pack both into one set"
        )

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __getattr__(self, name):  # called for what is not there
            raise AttributeError(unknown_attribute("Dataset", name, _ATTRIBUTES), name=name, obj=self)


def _refuse_outside(what: str, numbers: npt.NDArray[Any], count: int) -> None:
    """Raises ArgumentError where a number is not in 0..count-1, and for a mask."""
    outside = numbers if numbers.dtype == bool else numbers[(numbers < 0) | (numbers >= count)]
    if len(outside):
        raise ArgumentError(f"Dataset.{what}: expected numbers in 0..{count - 1}, found {outside[0]}")


_LOG = logging.getLogger(__name__)


class StoredSet(NotSupported):
    """The stored samples, and which of them are selected. Arguments as for `gpuload.Dataset`."""

    def __init__(self, folder: str | Path | URL, cache: str | Path | None, cache_size: int | None) -> None:
        self._selected: I64 | None = None
        self._tiles: Tiles | None = None
        self.folder: Path | URL = folder if isinstance(folder, URL) else Path(folder)
        if isinstance(self.folder, URL):
            opened = open_url(self.folder, Cache(cache, cache_size))
        else:
            opened = open_folder(self.folder, cache, cache_size)
        self.folder, self._root, self.cache = opened.folder, opened.root, opened.cache
        self.manifest, self._index, self.shard_times = opened.manifest, opened.index, opened.shard_times
        self.fields: dict[str, Field] = {field.name: field for field in self.manifest.fields}
        self.shard_paths: tuple[Path | URL, ...] = tuple(
            joined(self.folder, shard.name) for shard in self.manifest.shards
        )
        self.shard_sizes: I64 = np.array([shard.samples for shard in self.manifest.shards], np.int64)
        self.first_samples: I64 = np.concatenate([[0], np.cumsum(self.shard_sizes)])

    def __len__(self) -> int:
        """Number of samples; of a subset, the number of selected ones."""
        return int(self.first_samples[-1]) if self._selected is None else len(self._selected)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Name of each class by its number; None if the packer was not given names.

        The classes of the field "label"; in a set without it, those of the first field of labels or boxes.
        """
        if self._class_field is None or self._class_field.kind == "class":
            return self.manifest.classes
        return self._class_field.classes

    @cached_property
    def num_classes(self) -> int | None:
        """How many classes there are: as many as names, else one more than the largest class number of the whole set.

        None if no field holds classes. Without names, it costs O(samples) on first use, and the log says where class
        numbers have no sample: a model gets an output for each of them.
        """
        if self._class_field is None:
            return None
        if self.classes is not None:
            return len(self.classes)
        rows = (rows for _, rows in self.all_rows())
        numbers = {number for number in class_numbers([self._class_field], rows).popitem()[1] if number >= 0}
        count = max(numbers, default=-1) + 1
        if count > len(numbers):
            first = next(number for number in range(count) if number not in numbers)
            _LOG.warning(
                f"{self.folder}: its {self._class_field.name!r} has class numbers up to {count - 1:,}, of which "
                f"{count - len(numbers):,} have no sample, the first of them {first}. Number the classes from 0 "
                "without gaps, or give their names, and pack again"
            )
        return count

    @property
    def _class_field(self) -> Field | None:
        """The field whose classes are those of the set."""
        with_classes = (field for field in self.fields.values() if kind_of(field).class_column(field))
        return min(with_classes, key=lambda field: field.kind != "class", default=None)

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change when any stored sample, the stored order or the selection changes."""
        if self._selected is None:
            return self.manifest.fingerprint
        content = self.manifest.fingerprint.encode() + self._selected.tobytes()
        if self._tiles is not None:
            content += repr(self._tiles.grid).encode() + self._tiles.numbers.tobytes()
        return hashlib.sha256(content).hexdigest()[:16]

    def _select(self, stored: I64, tiles: Tiles | None = None) -> None:
        """stored: int64 (len,), ascending; with tiles, a number may be repeated."""
        self._selected, self._tiles = stored, tiles
        self.shard_sizes = np.diff(np.searchsorted(stored, self.first_samples))

    def stored_samples(self, numbers: I64) -> I64:
        """int64: converts sample numbers of this data set, which may be a subset, to numbers in the whole set."""
        return numbers if self._selected is None else self._selected[numbers]

    @property
    def tiling(self) -> Tiles | None:
        """Which parts of their images the samples are; None: they are whole images."""
        return self._tiles

    def image_sizes(self, samples: I64, needed_by: str) -> I64:
        """int64 (N, 2): heights and widths of images, by the index. Costs O(stored samples).

        samples: int64 (N,), their numbers in the stored order of the whole set. needed_by: who asks, for the message.

        Raises:
            ShardError: the index holds a width or height below 1.
        """
        sizes = np.stack([self.column(side).to_numpy()[samples] for side in ("height", "width")], axis=1)
        if len(wrong := np.flatnonzero((sizes < 1).any(axis=1))):
            raise ShardError(
                f"{self.folder}: sample {self.keys([samples[wrong[0]]])[0]!r} has no size in the index, which "
                f"{needed_by} need. Index the folder again"
            )
        return sizes.astype(np.int64)

    @property
    def index(self) -> Index:
        """The index, memory-mapped; of a large set at a URL, what fetches its parts."""
        return self._index

    @checked("Dataset.fetch_rows", shards=optional(SHARDS))
    def fetch_rows(self, shards: npt.ArrayLike | None = None) -> None:
        """Fetches the index of these shards together, of a large set at a URL, before `rows` is asked for each of them.

        shards: their numbers; None: of all. What is here already is not fetched again.

        Raises:
            ArgumentError: there is no such shard. RemoteError: they cannot be read. FormatError: they are not those of
                the manifest.
        """
        if shards is not None:
            _refuse_outside("fetch_rows(shards)", np.asarray(shards), len(self.shard_paths))
        self._index.fetch(None if shards is None else np.asarray(shards).tolist())

    @property
    def schema(self) -> pa.Schema:
        """Names and Arrow types of the index columns."""
        return self._index.schema

    @checked("Dataset.rows", shard=whole(0))
    def rows(self, shard: int) -> pa.RecordBatch:
        """The index of one shard, one row per sample in stored order; the columns are views of the mapped file.

        shard: its number.

        Columns: key, source, width and height (as decoded), and for each field the offset and size of its data in the
        shard, in bytes, and the columns of its kind, such as a class number or the text of a caption.

        Raises:
            ArgumentError: there is no such shard.
            FormatError: the index and the manifest disagree on the number of samples in the shard.
            RemoteError: they lie at a URL, and cannot be read.
        """
        if shard >= len(self.shard_paths):
            raise ArgumentError(
                f"Dataset.rows(shard={shard}): {self.folder} has {counted(len(self.shard_paths), 'shard')}"
            )
        rows = self._index.shard(shard)
        expected = self.manifest.shards[shard].samples
        if rows.num_rows != expected:
            raise FormatError(
                f"{self._index.path}: has {rows.num_rows} rows for {self.shard_paths[shard].name}, manifest.json says "
                f"{expected}. They come from different runs: copy the folder again"
            )
        return rows

    def all_rows(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The number of the first sample, and the rows, of each shard; they are fetched together.

        Raises:
            FormatError, RemoteError: as `rows`.
        """
        self.fetch_rows()
        for shard, first in enumerate(self.first_samples[:-1].tolist()):
            yield first, self.rows(shard)

    def column(self, name: str) -> pa.ChunkedArray:
        """A column of the index, of all stored samples, with one chunk for each shard.

        Raises:
            FormatError, RemoteError: as `rows`.
        """
        chunks = (rows.column(name) for _, rows in self.all_rows())
        if self._index.parts is not None:  # a view would keep all rows of its shard in memory
            chunks = (chunk.take(pa.array(np.arange(len(chunk)))) for chunk in chunks)
        return pa.chunked_array(list(chunks), self.schema.field(name).type)

    def shards_of(self, samples: I64 | int) -> I64:
        """The number of the shard of each sample.

        samples: int64 (N,), or one: numbers in the stored order of the whole set.
        """
        shards: I64 = np.searchsorted(self.first_samples, samples, side="right") - 1
        return shards

    def row(self, sample: int) -> pa.RecordBatch:
        """One sample's row of the index, as a batch of one row; costs O(1).

        sample: its number in the stored order of the whole set.
        """
        shard = int(self.shards_of(sample))
        return self.rows(shard).slice(sample - int(self.first_samples[shard]), 1)

    def first_row(self) -> pa.RecordBatch:
        """The first sample's row of the index."""
        return self.row(int(self.stored_samples(np.zeros(1, np.int64))[0]))

    @checked("Dataset.keys", samples=NUMBERS)
    def keys(self, samples: npt.ArrayLike) -> list[str]:
        """The keys of samples.

        samples: their numbers in the stored order of the whole set (the field "index").

        Raises:
            ArgumentError: a number is out of range.
        """
        numbers = np.asarray(samples)
        _refuse_outside("keys(samples)", numbers, int(self.first_samples[-1]))
        shards = self.shards_of(numbers)
        rows = numbers - self.first_samples[shards]
        self.fetch_rows(needed := np.unique(shards))
        keys = {shard: self.rows(shard).column("key") for shard in needed.tolist()}
        return [keys[shard][row].as_py() for shard, row in zip(shards.tolist(), rows.tolist(), strict=True)]

    @cached_property
    def labels(self) -> I64:
        """int64 (len,): the class number of every sample, in stored order. Costs O(stored samples) on first use."""
        self.require_field("label")
        labels: I64 = self.column("label").to_numpy()
        return labels if self._selected is None else labels[self._selected]

    @checked("Dataset.require_field", name=Rule("the name of a field", as_text))
    def require_field(self, name: str) -> Field:
        """The packed field of this name.

        Raises:
            ArgumentError: there is none; the message lists the packed fields.
        """
        if name not in self.fields:
            raise ArgumentError(
                f"{self.folder}: has no field {name!r}; its fields are {', '.join(map(repr, self.fields))}"
            )
        return self.fields[name]

    def open_store(self, trusts: bool = False) -> Store:
        """What gives a reader the shards. trusts: whether those in the cache are not hashed before their first use."""
        infos = self.manifest.shards
        if self._root is None:
            assert isinstance(self.folder, Path)
            return FolderStore([self.folder / info.name for info in infos])
        from gpuload.store.stores import CachedStore, MemoryStore  # asyncio and obstore

        assert self.cache is not None
        names = [info.name.removeprefix(f"{self._root}/") for info in infos]
        wanted = [Wanted(info.sha256, info.bytes) for info in infos]
        if self.cache.in_memory:
            return MemoryStore(self._root, names, wanted, self.cache.kept)
        return CachedStore(self._root, self.cache, names, wanted, trusts)
