"""A packed folder opened for reading: what it holds and where its samples are."""

import hashlib
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpuload.checks import PATH, Rule, as_text, checked, optional, whole
from gpuload.counted import counted
from gpuload.disk.dataset_checks import EXPRESSION, NUMBERS, SAMPLES, SHARDS, NotSupported
from gpuload.disk.opening import open_folder, open_url
from gpuload.errors import ArgumentError, FormatError, StateError
from gpuload.fields.field import Field
from gpuload.store.cache import CACHE_SIZE, Wanted
from gpuload.store.interface import FolderStore, Store
from gpuload.store.open import open_cache, open_store
from gpuload.store.url import LOCATION, URL, joined
from gpuload.types import I64

if TYPE_CHECKING:
    import pyarrow.compute as pc  # takes 0.15 s of the first batch

    from gpuload.store.parts import Parts  # asyncio


class Dataset(NotSupported):
    """A packed folder such as `shards/train`, or one at a URL such as `s3://bucket/set/train`, opened for reading.

    A folder may also be the index of shards that lie at URLs, see `python -m gpuload index`.

    Samples are numbered 0..len-1 in stored order: shard by shard, row by row. Opening costs one `stat` per shard and
    nothing per sample; the index is memory-mapped, and of a large set at a URL fetched as it is needed. Pickling keeps
    the folder's path and the selection: the folder is opened again where the pickle is loaded.

    folder: the packed folder, or its URL.
    cache, cache_size: for shards at URLs, the folder into which they are downloaded as they are needed, shared by all
        processes on this machine, and how large it may become: bytes, or such as "200GB". By default $GPULOAD_CACHE,
        else gpuload in the user's cache folder; and nine tenths of what is free on its disk. cache_size=0: shards are
        downloaded into memory, by each process those that it needs soon.

    Raises:
        ArgumentError: `folder` is not a path.
        FormatError: the manifest is missing, damaged or has an unsupported version, or the index does not match it.
        ShardError: a shard is missing or has a different size from the one in the manifest.
        RemoteError: the URL cannot be read. MissingPackageError: the packages of the extra "remote" are not installed.
    """

    @checked("Dataset", folder=LOCATION, cache=optional(PATH), cache_size=optional(CACHE_SIZE))
    def __init__(
        self, folder: str | Path | URL, cache: str | Path | None = None, cache_size: int | str | None = None
    ) -> None:
        self._selected: I64 | None = None
        self.folder: Path | URL = folder if isinstance(folder, URL) else Path(folder)
        assert not isinstance(cache_size, str)  # the rule gives a number
        if isinstance(self.folder, URL):
            opened = open_url(self.folder, open_cache(cache, cache_size))
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

    def __repr__(self) -> str:
        total = counted(int(self.first_samples[-1]), "sample")
        samples = total if self._selected is None else f"{len(self):,} of {total}"
        return f"Dataset({str(self.folder)!r}: {samples} in {counted(len(self.shard_paths), 'shard')})"

    def _repr_html_(self) -> str:
        """For notebooks: what the set holds, and some of its images where they are on a local disk."""
        from gpuload.disk.html import html_of

        return html_of(self)

    def __getitem__(self, index: int | str) -> dict[str, Any]:
        """One sample, to look at: by its number in this data set (-1 is the last), its key, or its source.

        Returns "key", "index" (its number in the stored order of the whole set), "source" (the name of the file that
        was packed), "image", a Pillow image, RGB and upright, and the packed fields by name, as numbers, text, or NumPy
        arrays in pixels of the stored image: boxes float32 (M, 4) as x0, y0, x1, y1 beside `<name>_class` int64 (M,),
        keypoints float32 (M, K, 3), a mask as a Pillow image of class numbers. Reads one image from its shard, some
        milliseconds; of a set at a URL the whole shard is downloaded. A key is looked for in O(samples).

        Raises:
            ArgumentError: there is no such key (the message names close ones) or number.
            DecodeError: the image or a mask does not decode. ShardError: the shard cannot be read.
        """
        from gpuload.disk.sample import read_sample

        return read_sample(self, index)

    def __reduce__(self) -> tuple[Any, ...]:
        folder = str(self.folder if isinstance(self.folder, URL) else self.folder.absolute())
        cache = () if self.cache is None else (self.cache.asked, self.cache.given)
        return _reopen, (folder, self.manifest.fingerprint, self._selected, *cache)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Name of each class by its number; None if the packer was not given names."""
        return self.manifest.classes

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change when any stored sample, the stored order or the selection changes."""
        if self._selected is None:
            return self.manifest.fingerprint
        return hashlib.sha256(self.manifest.fingerprint.encode() + self._selected.tobytes()).hexdigest()[:16]

    @checked("Dataset.subset", samples=SAMPLES)
    def subset(self, samples: npt.ArrayLike) -> "Dataset":
        """A data set of only these samples, in stored order.

        samples: their numbers in this data set, or a mask, bool (len,).

        Shards, index and keys are those of the whole set; so are the numbers in the field "index", and a sample's crop
        for a given seed and epoch.

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
        chosen = np.sort(chosen)
        if not len(chosen):
            raise ArgumentError(f"Dataset.subset(samples): no sample of {self.folder} is selected. Loosen the filter")
        repeated = (np.diff(chosen) == 0).any()
        if chosen[0] < 0 or chosen[-1] >= len(self) or repeated:
            raise ArgumentError(
                f"Dataset.subset(samples): sample numbers must be in 0..{len(self) - 1}, each at most once; found "
                f"{chosen[0]}..{chosen[-1]}{', some of them repeated' if repeated else ''}"
            )
        part = object.__new__(type(self))
        part.__dict__.update(self.__dict__)
        for computed in ("labels", "fingerprint"):
            part.__dict__.pop(computed, None)
        part._selected = self.stored_samples(chosen)
        part.shard_sizes = np.diff(np.searchsorted(part._selected, self.first_samples))
        return part

    @checked("Dataset.filter", expression=EXPRESSION)
    def filter(self, expression: "pc.Expression") -> "Dataset":
        """The samples for which an Arrow expression over the index columns is true.

        expression: such as `pc.field("width") >= 224`.

        For example `dataset.filter(pc.field("label") < 10)` or `dataset.filter(pc.field("width") >= 224)`, with `import
        pyarrow.compute as pc`. Costs O(samples), one shard at a time.

        Raises:
            ArgumentError: the expression cannot be evaluated on the columns, or no sample is left.
        """
        self.fetch_rows()
        numbers = []
        for shard, first in enumerate(self.first_samples[:-1].tolist()):
            rows = pa.Table.from_batches([self.rows(shard)])
            rows = rows.append_column("sample number", pa.array(np.arange(first, first + rows.num_rows)))
            try:
                numbers.append(rows.filter(expression).column("sample number").to_numpy())
            except (pa.ArrowException, TypeError) as error:
                reason = str(error).splitlines()[0]
                raise ArgumentError(
                    f"Dataset.filter(expression): {reason}. The columns are {', '.join(self.schema.names)}"
                ) from None
        kept = np.concatenate(numbers)
        if self._selected is not None:
            return self.subset(np.isin(self._selected, kept))
        return self.subset(kept)

    def stored_samples(self, numbers: I64) -> I64:
        """int64: converts sample numbers of this data set, which may be a subset, to numbers in the whole set."""
        return numbers if self._selected is None else self._selected[numbers]

    @property
    def index_path(self) -> Path:
        return self._index.path

    @property
    def index_bytes(self) -> pa.Buffer:
        """The index file, memory-mapped; of a large set at a URL, zeros where it was not fetched yet."""
        return self._index.bytes

    @property
    def index_parts(self) -> "Parts | None":
        """What fetches the rows of shards; None where all rows are here."""
        return self._index.parts

    @checked("Dataset.fetch_rows", shards=optional(SHARDS))
    def fetch_rows(self, shards: npt.ArrayLike | None = None) -> None:
        """Fetches the index of these shards together, of a large set at a URL, before `rows` is asked for each of them.

        shards: their numbers; None: of all. What is here already is not fetched again.

        Raises:
            ArgumentError: there is no such shard. RemoteError: they cannot be read. FormatError: they are not those of
                the manifest.
        """
        numbers, count = np.asarray(() if shards is None else shards), len(self.shard_paths)
        outside = numbers if numbers.dtype == bool else numbers[(numbers < 0) | (numbers >= count)]
        if len(outside):
            raise ArgumentError(f"Dataset.fetch_rows(shards): expected numbers in 0..{count - 1}, found {outside[0]}")
        self._index.fetch(None if shards is None else numbers.tolist())

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

    def first_row(self) -> pa.RecordBatch:
        """The first sample's row of the index, as a batch of one row; costs O(1)."""
        first = int(self.stored_samples(np.zeros(1, np.int64))[0])
        shard = int(np.searchsorted(self.first_samples, first, side="right")) - 1
        return self.rows(shard).slice(first - int(self.first_samples[shard]), 1)

    @checked("Dataset.keys", samples=NUMBERS)
    def keys(self, samples: npt.ArrayLike) -> list[str]:
        """The keys of samples.

        samples: their numbers in the stored order of the whole set (the field "index").

        Raises:
            ArgumentError: a number is out of range.
        """
        numbers = np.asarray(samples)
        total = int(self.first_samples[-1])
        outside = numbers[(numbers < 0) | (numbers >= total)] if numbers.dtype != bool else numbers
        if len(outside):
            raise ArgumentError(f"Dataset.keys(samples): expected numbers in 0..{total - 1}, found {outside[0]}")
        shards = np.searchsorted(self.first_samples, numbers, side="right") - 1
        rows = numbers - self.first_samples[shards]
        self.fetch_rows(np.unique(shards))
        return [
            self._index.shard(shard).column("key")[row].as_py()
            for shard, row in zip(shards.tolist(), rows.tolist(), strict=True)
        ]

    @cached_property
    def labels(self) -> I64:
        """int64 (len,): the class number of every sample, in stored order. Costs O(stored samples) on first use."""
        self.require_field("label")
        labels: I64 = self._index.table().column("label").to_numpy()
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

    def open_store(self) -> Store:
        """What gives a reader the shards."""
        infos = self.manifest.shards
        if self._root is None:
            assert isinstance(self.folder, Path)
            return FolderStore([self.folder / info.name for info in infos])
        assert self.cache is not None
        names = [info.name.removeprefix(f"{self._root}/") for info in infos]
        return open_store(self._root, self.cache, names, [Wanted(info.sha256, info.bytes) for info in infos])


def _reopen(
    folder: str, fingerprint: str, selected: I64 | None, cache: Path | None = None, cache_size: int | None = None
) -> Dataset:
    """A pickled data set, opened again.

    Raises:
        StateError: the folder now holds another set than the one that was pickled.
        FormatError, ShardError: as `Dataset`.
    """
    dataset = Dataset(folder, cache, cache_size)
    if dataset.manifest.fingerprint != fingerprint:
        raise StateError(
            f"{folder}: holds another data set (fingerprint {dataset.manifest.fingerprint}) than the pickled one had "
            f"({fingerprint}). Open it with gpuload.Dataset and make the selection again"
        )
    return dataset if selected is None else dataset.subset(selected)
