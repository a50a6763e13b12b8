"""A packed folder, or a set at a URL, opened for reading: its fields, its shards, the rows of its index, its samples,
and selections of them."""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpuload.checks import (
    COUNT,
    PATH,
    SIDES,
    Rule,
    as_items,
    as_numbers,
    as_text,
    checked,
    choice,
    either,
    nearest,
    optional,
    whole,
)
from gpuload.counted import counted
from gpuload.disk import Index, Manifest
from gpuload.disk import index as index_file
from gpuload.disk.copied import CopiedFrom, copied_from, read_selection
from gpuload.disk.finding import find_excluded, find_sample
from gpuload.disk.joined import merged_rows, merged_schema
from gpuload.disk.opening import open_set
from gpuload.disk.sample import StoredSample
from gpuload.disk.tiles import Grid, Tiles
from gpuload.errors import ArgumentError, FormatError, ShardError, StateError
from gpuload.fields.arrow_arrays import array_of
from gpuload.fields.field import Field
from gpuload.fields.images import may_be_missing
from gpuload.fields.registry import kind_of
from gpuload.fields.rows import numbers_of
from gpuload.lists import bounds_of, owners_of, places_of
from gpuload.pictures import MAX_PIXELS
from gpuload.store import FolderStore, Store
from gpuload.store.cache import CACHE_SIZE, Cache, WantedShard
from gpuload.store.url import LOCATION, URL, joined
from gpuload.types import I64

if TYPE_CHECKING:
    import pyarrow.compute as pc  # takes 0.15 s of the first batch

_LOG = logging.getLogger(__name__)


def _as_expression(value: Any) -> Any:
    import pyarrow.compute as pc

    if not isinstance(value, pc.Expression):
        raise TypeError
    return value


_SAMPLES = Rule(
    "sample numbers, whole numbers (n,), or a mask, bool (len,)", as_numbers
)
_NUMBERS = Rule("sample numbers, whole numbers (n,)", as_numbers)
_SHARDS = Rule("shard numbers, whole numbers (n,)", as_numbers)
_EXCLUDE = either(
    "a file that verify --quarantine wrote, or a list of keys",
    PATH,
    Rule("", lambda value: tuple(map(as_text, as_items(value)))),
)
_EXPRESSION = Rule(
    "an Arrow expression, such as pyarrow.compute.field('label') < 10", _as_expression
)


def _refuse_outside(what: str, numbers: npt.NDArray[Any], count: int) -> None:
    """Raises ArgumentError where a number is not in 0..count-1, and for a mask."""
    outside = (
        numbers
        if numbers.dtype == bool
        else numbers[(numbers < 0) | (numbers >= count)]
    )
    if len(outside):
        raise ArgumentError(
            f"Dataset.{what}: expected numbers in 0..{count - 1}, found {outside[0]}"
        )


class Dataset:
    """A packed folder such as `shards/train`, or one at a URL such as `s3://bucket/set/train`, opened for reading.

    A folder may also be the index of shards that lie at URLs, see `python -m gpuload index`.

    Samples are numbered 0..len-1 in stored order: shard by shard, row by row. Opening costs one `stat` per shard and
    nothing per sample; the index is memory-mapped, and of a large set at a URL fetched as it is needed. Pickling keeps
    the folder's path and the selection: the folder is opened again where the pickle is loaded.

    Args:
        folder: The packed folder, or its URL; also a folder that holds one packed folder alone.
        cache: For shards at URLs, the folder into which they are downloaded as they are needed, shared by all processes
            on this machine. By default $GPULOAD_CACHE, else gpuload in the user's cache folder.
        cache_size: How large that folder may become: bytes, or such as "200GB". By default nine tenths of what is free
            on its disk.
        verify: "sha256": loaders compare the checksum of each shard with the manifest's, once, before they hand out a
            sample of it. That is done while reading ahead; the first batch waits for a window of shards. Decoded copies
            are compared unless this is "downloads".
        max_pixels: Largest picture by the index, in pixels; loaders and `tiles` refuse a larger one before there is
            memory for it. The packer's option `--max-pixels` has the same default, Pillow's.
        exclude: Samples to leave out, as `subset` would: the file that `python -m gpuload verify --quarantine FILE`
            wrote, or a list of keys, each of which means all samples that have it. All ranks must leave out the same.

    Raises:
        ArgumentError: a value that is not as described; there is no such key, or nothing is left.
        FormatError: the manifest is missing, damaged or has an unsupported version, or the index does not match it.
        ShardError: a shard is missing or has a different size from the one in the manifest.
        RemoteError: the URL cannot be read. MissingPackageError: the packages of the extra "remote" are not installed.
    """

    @checked(
        "Dataset",
        folder=LOCATION,
        cache=optional(PATH),
        cache_size=optional(CACHE_SIZE),
        verify=optional(choice("sha256", "downloads")),
        max_pixels=COUNT,
        exclude=optional(_EXCLUDE),
    )
    def __init__(
        self,
        folder: str | Path | URL,
        cache: str | Path | None = None,
        cache_size: int | str | None = None,
        verify: Literal["sha256", "downloads"] | None = None,
        max_pixels: int = MAX_PIXELS,
        exclude: str | Path | Sequence[str] | None = None,
    ) -> None:
        assert not isinstance(cache_size, str)  # the rule gives a number
        self.verify = verify
        self.max_pixels = max_pixels
        self._selected: I64 | None = None
        # Which parts of their images the samples are; None: they are whole images.
        self.tiling: Tiles | None = None
        place = folder if isinstance(folder, URL) else Path(folder)
        opened = open_set(place, cache, cache_size)
        self.folder: Path | URL = opened.folder
        self.manifest: Manifest = opened.manifest
        self.index: Index = opened.index
        self.cache: Cache | None = opened.cache
        self._root: URL | None = opened.root
        self._joined: list[Index] = opened.joined
        shards = self.manifest.shards
        self.fields: dict[str, Field] = {
            field.name: field for field in self.manifest.all_fields
        }
        # Where it is, whatever the current folder becomes.
        self._place: Path | URL = self.folder
        if isinstance(self.folder, Path):
            self._place = self.folder.absolute()
        self.shard_paths: tuple[Path | URL, ...] = tuple(
            joined(self._place, shard.name) for shard in shards
        )
        # Of modification, in ns; 0: unknown.
        self.shard_times: I64 = np.array(opened.times, np.int64)
        self.shard_sizes: I64 = np.array([shard.samples for shard in shards], np.int64)
        self.first_samples = bounds_of(self.shard_sizes)
        self.copied = copied_from(self.manifest)  # None: this is no decoded copy
        if self.copied is not None:
            self._open_copy(self.copied)
        if exclude is not None:
            self._leave_out(find_excluded(self, exclude))

    def _leave_out(self, excluded: I64) -> None:
        """Removes samples from the selection.

        Args:
            excluded: int64 (n,), their numbers in the stored order of the whole set.

        Raises:
            ArgumentError: none is left.
        """
        if not len(excluded):
            return
        stored = self.stored_samples(np.arange(len(self)))
        self._select(np.setdiff1d(stored, excluded))
        if not len(self):
            raise ArgumentError(
                f"Dataset(exclude): leaves out all samples of {self.folder}. Is it the right list?"
            )

    def _open_copy(self, copied: CopiedFrom) -> None:
        """What is special about a decoded copy."""
        # Any bytes are pixels: of a damaged copy nothing fails to decode.
        self.verify = self.verify or "sha256"
        held = read_selection(self.folder, copied, self.manifest.samples)
        if held is not None:
            self._select(held)

    def __len__(self) -> int:
        """Number of samples; of a subset, the number of selected ones."""
        return (
            int(self.first_samples[-1])
            if self._selected is None
            else len(self._selected)
        )

    def __repr__(self) -> str:
        total = counted(int(self.first_samples[-1]), "sample")
        samples = (
            total
            if self._selected is None
            else f"{len(self):,}{' tiles' * (self.tiling is not None)} of {total}"
        )
        return f"Dataset({str(self.folder)!r}: {samples} in {counted(len(self.shard_paths), 'shard')})"

    def __getitem__(self, index: int | str) -> dict[str, Any]:
        """One sample, to look at: by its number in this data set (-1 is the last), its key, or its source.

        Returns "key", "index" (its number in the stored order of the whole set), "source" (the name of the file that
        was packed), and the packed fields by name:

        - "image" and further pictures with the values that are stored, upright: a Pillow image where the mode of the
          set is L, RGB or RGBA; else an array (height, width, channels) of its uint8, uint16 or float32.
        - A mask as a Pillow image of class numbers.
        - Numbers, text, or NumPy arrays in pixels of the stored image: boxes float32 (M, 4) as x0, y0, x1, y1 beside
          `<name>_class` int64 (M,), keypoints float32 (M, K, 3).

        Of a tile these are those of its whole image, and "tile" says where in it the tile lies: (x0, y0, x1, y1) in
        pixels, as Pillow's `crop` takes it.

        Reads one image from its shard, some milliseconds; of a set at a URL the whole shard is downloaded. A key is
        looked for in O(samples).

        Raises:
            ArgumentError: there is no such key or number, or several samples have this key or source.
            DecodeError: the image or a mask does not decode. ShardError, RemoteError: the shard cannot be read.
        """
        number = find_sample(self, index)
        stored_number = int(self.stored_samples(np.array([number]))[0])
        stored = stored_sample(self, stored_number)
        sample: dict[str, Any] = {
            "key": stored.row["key"],
            "index": stored_number,
            "source": stored.row["source"],
        }
        if self.tiling is not None:
            image_size = np.array([[stored.row["height"], stored.row["width"]]])
            windows = self.tiling.windows(np.array([number]), image_size)
            top, left = windows.corners[0].tolist()
            height, width = windows.sizes[0].tolist()
            sample["tile"] = (left, top, left + width, top + height)
        for field in self.fields.values():
            sample |= stored.look(field)
        return sample

    __iter__ = None  # else Python would loop by `__getitem__`, also for `in`, and decode one image after another

    def __reduce__(self) -> tuple[Any, ...]:
        cache = (
            (None, None)
            if self.cache is None
            else (self.cache.folder, self.cache.given)
        )
        options = (*cache, self.verify, self.max_pixels)
        return _reopen, (
            str(self._place),
            self.manifest.fingerprint,
            self._selected,
            self.tiling,
            options,
        )

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
        numbers = index_file.class_numbers(
            [self._class_field], (rows for _, rows in self.all_rows())
        )
        for note in index_file.notes_on_numbers(
            numbers, self.manifest.all_fields, self.manifest.classes
        ):
            _LOG.warning(
                "%s: %s. Number the classes from 0 without gaps, or give their names",
                self.folder,
                note,
            )
        return max(numbers[self._class_field.name] | {-1}) + 1

    @property
    def _class_field(self) -> Field | None:
        """The field whose classes are those of the set."""
        with_classes = (
            field
            for field in self.fields.values()
            if kind_of(field).class_column(field)
        )
        return min(with_classes, key=lambda field: field.kind != "class", default=None)

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change when any stored sample, the stored order or the selection changes.

        A decoded copy has that of the set, or the selection, that it was made of.
        """
        of_set = self.manifest.fingerprint
        if self.copied is not None:
            of_set = self.copied.fingerprint
        if self._selected is None:
            return of_set
        content = of_set.encode() + self._selected.tobytes()
        if self.tiling is not None:
            content += repr(self.tiling.grid).encode() + self.tiling.numbers.tobytes()
        return hashlib.sha256(content).hexdigest()[:16]

    def _select(self, stored: I64, tiles: Tiles | None = None) -> None:
        """Makes some of the stored samples those of this data set.

        Args:
            stored: int64 (len,), ascending; with tiles, a number may be repeated.
        """
        self._selected = stored
        self.tiling = tiles
        self.shard_sizes = np.diff(np.searchsorted(stored, self.first_samples))

    def stored_samples(self, numbers: I64) -> I64:
        """int64: converts sample numbers of this data set, which may be a subset, to numbers in the whole set."""
        return numbers if self._selected is None else self._selected[numbers]

    def image_sizes(self, samples: I64, needed_by: str) -> I64:
        """Heights and widths of images by the index, int64 (N, 2). Costs O(stored samples).

        Args:
            samples: int64 (N,), their numbers in the stored order of the whole set.
            needed_by: Who asks, for the message.

        Raises:
            ShardError: the index holds a width or height below 1, or more than `max_pixels` pixels.
        """
        sizes = np.stack(
            [numbers_of(self.column(side))[samples] for side in ("height", "width")],
            axis=1,
        )
        if len(wrong := np.flatnonzero((sizes < 1).any(axis=1))):
            raise ShardError(
                f"{self.folder}: sample {self.keys([samples[wrong[0]]])[0]!r} has no size in the index, which "
                f"{needed_by} need. Index the folder again"
            )
        sizes = sizes.astype(np.int64)
        refuse_large(self, samples, sizes)
        return sizes

    def samples_without_image(self) -> I64:
        """int64: the numbers, in the stored order of the whole set, of the samples that have no image.

        Costs O(stored samples) where some of the whole set have none.
        """
        image = self.manifest.image
        if not may_be_missing(image):
            return np.zeros(0, np.int64)
        sizes = numbers_of(self.column(image.bytes_column))
        without = np.flatnonzero(sizes == 0)
        if self._selected is not None:
            without = np.intersect1d(without, self._selected)
        return without

    @checked("Dataset.fetch_rows", shards=optional(_SHARDS))
    def fetch_rows(self, shards: npt.ArrayLike | None = None) -> None:
        """Fetches the index of these shards together, of a large set at a URL, before `rows` is asked for each of them.

        Args:
            shards: Their numbers; None: all. What is here already is not fetched again.

        Raises:
            ArgumentError: there is no such shard. RemoteError: they cannot be read. FormatError: they are not those of
                the manifest.
        """
        if shards is not None:
            _refuse_outside(
                "fetch_rows(shards)", np.asarray(shards), len(self.shard_paths)
            )
        numbers = None if shards is None else np.asarray(shards).tolist()
        for index in (self.index, *self._joined):
            index.fetch(numbers)

    @property
    def schema(self) -> pa.Schema:
        """Names and Arrow types of the index columns, with those that were joined to them."""
        return merged_schema(self.index, self._joined)

    @checked("Dataset.rows", shard=whole(0))
    def rows(self, shard: int) -> pa.RecordBatch:
        """The index of one shard, one row per sample in stored order; the columns are views of the mapped file.

        Columns: key, source, width and height (as decoded), and for each field the offset and size of its data in the
        shard, in bytes, and the columns of its kind, such as a class number or the text of a caption.

        Args:
            shard: Its number.

        Raises:
            ArgumentError: there is no such shard.
            FormatError: the index and the manifest disagree on the number of samples in the shard.
            RemoteError: they lie at a URL, and cannot be read.
        """
        _refuse_outside("rows(shard)", np.array([shard]), len(self.shard_paths))
        rows = self.index.shard(shard)
        expected = self.manifest.shards[shard].samples
        if rows.num_rows != expected:
            raise FormatError(
                f"{self.index.path}: has {rows.num_rows} rows for {self.shard_paths[shard].name}, manifest.json says "
                f"{expected}. They come from different runs: copy the folder again"
            )
        return merged_rows(rows, self._joined, shard) if self._joined else rows

    def check_index(self) -> None:
        """Compares what was read of the index so far once more, where its files were changed since they were opened.

        Raises:
            FormatError: one is another now.
        """
        for index in (self.index, *self._joined):
            index.check_unchanged()

    def all_rows(
        self, shards: Sequence[int] | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The number of the first sample, and the rows, of each of these shards. They are fetched together.

        Args:
            shards: Their numbers; None: all.

        Raises:
            ArgumentError, FormatError, RemoteError: as `fetch_rows` and `rows`.
        """
        self.fetch_rows(shards)
        numbers = range(len(self.shard_paths)) if shards is None else shards
        return ((int(self.first_samples[shard]), self.rows(shard)) for shard in numbers)

    def column(self, name: str) -> pa.ChunkedArray:
        """A column of the index, of all stored samples, with one chunk for each shard.

        Args:
            name: One of the names in `schema`.

        Raises:
            FormatError, RemoteError: as `rows`.
        """
        chunks = (rows.column(name) for _, rows in self.all_rows())
        if (
            self.index.parts is not None
        ):  # a view would keep all rows of its shard in memory
            chunks = (chunk.take(array_of(np.arange(len(chunk)))) for chunk in chunks)
        return pa.chunked_array(list(chunks), self.schema.field(name).type)

    def shards_of(self, samples: I64 | int) -> I64:
        """The number of the shard of each sample.

        Args:
            samples: int64 (N,), or one number, in the stored order of the whole set.
        """
        shards: I64 = np.searchsorted(self.first_samples, samples, side="right") - 1
        return shards

    def _locate(self, samples: I64) -> tuple[I64, I64]:
        """The shard of each sample, and its row there.

        Args:
            samples: As for `shards_of`.
        """
        shards = self.shards_of(samples)
        rows: I64 = samples - self.first_samples[shards]
        return shards, rows

    def row(self, sample: int) -> pa.RecordBatch:
        """One sample's row of the index, as a batch of one row; costs O(1).

        Args:
            sample: Its number in the stored order of the whole set.
        """
        (shard,), (row,) = self._locate(np.array([sample]))
        return self.rows(int(shard)).slice(int(row), 1)

    def first_row(self) -> pa.RecordBatch:
        """The first sample's row of the index."""
        return self.row(int(self.stored_samples(np.zeros(1, np.int64))[0]))

    @checked("Dataset.keys", samples=_NUMBERS)
    def keys(self, samples: npt.ArrayLike) -> list[str]:
        """The keys of samples.

        Args:
            samples: Their numbers in the stored order of the whole set (the field "index").

        Raises:
            ArgumentError: a number is out of range.
        """
        numbers = np.asarray(samples)
        _refuse_outside("keys(samples)", numbers, int(self.first_samples[-1]))
        shards, rows = self._locate(numbers)
        self.fetch_rows(needed := np.unique(shards))
        keys = {shard: self.rows(shard).column("key") for shard in needed.tolist()}
        return [
            keys[shard][row].as_py()
            for shard, row in zip(shards.tolist(), rows.tolist(), strict=True)
        ]

    @cached_property
    def labels(self) -> I64:
        """int64 (len,): the class number of every sample, in stored order. Costs O(stored samples) on first use."""
        self.require_field("label")
        labels: I64 = np.array(numbers_of(self.column("label")))
        return labels if self._selected is None else labels[self._selected]

    @checked("Dataset.require_field", name=Rule("the name of a field", as_text))
    def require_field(self, name: str) -> Field:
        """The packed field of this name.

        Raises:
            ArgumentError: there is none; the message lists the packed fields.
        """
        if name not in self.fields:
            similar = nearest(name, self.fields)
            advice = "" if similar is None else f". Did you mean {similar!r}?"
            names = ", ".join(map(repr, self.fields))
            raise ArgumentError(
                f"{self.folder}: has no field {name!r}; its fields are {names}{advice}"
            )
        return self.fields[name]

    def open_store(self, trusts: bool = False) -> Store:
        """Opens what gives a reader the shards.

        Args:
            trusts: Whether shards in the cache are used without hashing them before their first use.
        """
        infos = self.manifest.shards
        if self._root is None:
            assert isinstance(self._place, Path)
            return FolderStore([self._place / info.name for info in infos])
        from gpuload.store.stores import CachedStore  # asyncio and obstore

        assert self.cache is not None
        wanted = [
            WantedShard(
                info.sha256, info.bytes, info.name.removeprefix(f"{self._root}/")
            )
            for info in infos
        ]
        return CachedStore(self._root, self.cache, wanted, trusts)

    @checked("Dataset.subset", samples=_SAMPLES)
    def subset(self, samples: npt.ArrayLike) -> "Dataset":
        """A data set of only these samples, in stored order.

        Shards, index and keys are those of the whole set; so are the numbers in the field "index", and a sample's crop
        for a given seed and epoch.

        Args:
            samples: Their numbers in this data set, or a mask, bool (len,).

        Raises:
            ArgumentError: a number is out of range or repeated, no sample is selected, or the mask has another length.
        """
        chosen = np.asarray(samples)
        if chosen.dtype == bool:
            if chosen.shape != (len(self),):
                raise ArgumentError(
                    f"Dataset.subset(samples): the mask has shape {chosen.shape}, expected ({len(self)},)"
                )
            chosen = np.flatnonzero(chosen)
        _refuse_outside("subset(samples)", chosen, len(self))
        chosen, counts = np.unique(chosen, return_counts=True)
        if not len(chosen):
            raise ArgumentError(
                f"Dataset.subset(samples): no sample of {self.folder} is selected. Loosen the filter"
            )
        if counts.max() > 1:
            raise ArgumentError(
                f"Dataset.subset(samples): {chosen[counts.argmax()]} is repeated. Give each number once"
            )
        tiles = (
            None
            if self.tiling is None
            else self.tiling._replace(numbers=self.tiling.numbers[chosen])
        )
        return self._part(self.stored_samples(chosen), tiles)

    def _part(self, stored: I64, tiles: Tiles | None) -> "Dataset":
        part = object.__new__(type(self))
        part.__dict__.update(self.__dict__)
        for computed in ("labels", "fingerprint"):
            part.__dict__.pop(computed, None)
        part._select(stored, tiles)
        return part

    @checked("Dataset.filter", expression=_EXPRESSION)
    def filter(self, expression: "pc.Expression") -> "Dataset":
        """The samples for which an Arrow expression over the index columns is true.

        For example `dataset.filter(pc.field("label") < 10)` or `dataset.filter(pc.field("width") >= 224)`, with `import
        pyarrow.compute as pc`. Costs O(samples), one shard at a time.

        Args:
            expression: Of `pyarrow.compute`, true or false for each row.

        Raises:
            ArgumentError: the expression cannot be evaluated on the columns, or no sample is left.
        """
        numbers = []
        for first, batch in self.all_rows():
            rows = pa.Table.from_batches([batch])
            rows = rows.append_column(
                "sample number", array_of(np.arange(first, first + rows.num_rows))
            )
            try:
                numbers.append(
                    numbers_of(rows.filter(expression).column("sample number"))
                )
            except (pa.ArrowException, TypeError) as error:
                reason = str(error).splitlines()[0]
                raise ArgumentError(
                    f"Dataset.filter(expression): {reason}. The columns are {', '.join(self.schema.names)}"
                ) from None
        kept = np.concatenate(numbers)
        if self._selected is not None:
            return self.subset(np.isin(self._selected, kept))
        return self.subset(kept)

    @checked("Dataset.tiles", size=SIDES, overlap=whole(0))
    def tiles(self, size: int | tuple[int, int], overlap: int = 0) -> "Dataset":
        """A data set whose samples are tiles of the images, such as 100 of each: for images that are too large for a
        model.

        The order, ranks, sampling and states are those of a data set of that many samples, so that each tile comes once
        in a pass. An `Augment` sees a tile as it would see an image; `crop="none"` shows all of it, "pad_or_crop" adds
        what smaller ones lack. Boxes, keypoints and masks move with it. Other fields are those of the image. "index" is
        its number, and "crop_top_left" the place of the tile, of which `gpuload.batchwise.join_tiles` makes the image
        again. Not for `Buckets`, or functions called before the crop. Costs O(samples), and 12 bytes for each tile.

        Args:
            size: Side of a tile in pixels of the stored image, or (height, width).
            overlap: Pixels that neighbouring tiles share. Tiles lie within their image: the last of a row or column
                moves back to the edge, and where the image is smaller than a tile, the tile is as large as the image.

        Raises:
            ArgumentError: the overlap is not smaller than a side, or these are tiles already. ShardError: the index
                holds a width or height below 1, or more pixels than `max_pixels`.
        """
        sides = (size, size) if isinstance(size, int) else size
        if overlap >= min(sides):
            raise ArgumentError(
                f"Dataset.tiles(overlap={overlap}): must be smaller than size={size!r}"
            )
        if self.tiling is not None:
            raise ArgumentError(
                "Dataset.tiles: the samples are tiles already. Use the data set that these are of"
            )
        stored = self.stored_samples(np.arange(len(self)))
        grid = Grid(sides, overlap)
        images = self.image_sizes(stored, "tiles")
        counts = grid.counts(images).prod(axis=1)
        numbers = places_of(counts).astype(np.int32)
        return self._part(stored[owners_of(counts)], Tiles(grid, numbers))


def selected_as(dataset: Dataset, other: Dataset) -> Dataset:
    """The samples of a data set, or their tiles, that another one has selected, whose stored samples have the same
    numbers."""
    if other._selected is None:
        return dataset
    return dataset._part(other._selected, other.tiling)


def having_images(dataset: Dataset) -> Dataset:
    """The data set without the samples that have no image.

    Raises:
        ArgumentError: none has one.
    """
    without = dataset.samples_without_image()
    if not len(without):
        return dataset
    stored = dataset.stored_samples(np.arange(len(dataset)))
    has_image = ~np.isin(stored, without)
    if not has_image.any():
        raise ArgumentError(
            f"{dataset.folder}: no sample has a picture. Give a set or a split in which some have"
        )
    return dataset.subset(has_image)


def stored_sample(dataset: Dataset, number: int) -> StoredSample:
    """One sample, by its number in the whole set, to look at."""
    shard = int(dataset.shards_of(np.array([number]))[0])
    row = dataset.row(number).to_pylist()[0]
    store = dataset.open_store()
    return StoredSample(
        f"{dataset.shard_paths[shard]}: sample {row['key']!r}",
        row,
        lambda: store.open(shard),
    )


def _reopen(
    folder: str,
    fingerprint: str,
    selected: I64 | None,
    tiles: Tiles | None,
    options: tuple[Any, ...],
) -> Dataset:
    """A pickled data set, opened again.

    Raises:
        StateError: the folder now holds another set than the one that was pickled.
        FormatError, ShardError: as `Dataset`.
    """
    dataset = Dataset(folder, *options)
    if dataset.manifest.fingerprint != fingerprint:
        raise StateError(
            f"{folder}: holds another data set (fingerprint {dataset.manifest.fingerprint}) than the pickled one had "
            f"({fingerprint}). Open it with gpuload.Dataset and make the selection again"
        )
    return dataset if selected is None else dataset._part(selected, tiles)


def refuse_large(dataset: Dataset, samples: I64, sizes: I64, further: str = "") -> None:
    """Raises ShardError for the first picture with more than `max_pixels` pixels.

    Args:
        dataset: Of the samples.
        samples: int64 (N,), for each picture the number of its sample in the stored order of the whole set.
        sizes: int64 (N, 2), their heights and widths.
        further: The name of the further pictures or lists; "" for images.
    """
    large = np.flatnonzero(sizes.prod(axis=1) > dataset.max_pixels)
    if not len(large):
        return
    sample = int(samples[large[0]])
    height, width = sizes[large[0]].tolist()
    where = f" in its {further!r}" if further else ""
    raise ShardError(
        f"{dataset.shard_paths[int(dataset.shards_of(sample))]}: sample {dataset.keys([sample])[0]!r} has {width:,} × "
        f"{height:,} pixels{where}, more than max_pixels={dataset.max_pixels:,}. Give gpuload.Dataset a larger "
        "max_pixels if you trust the set, or pack it again with a smaller --max-pixels"
    )
