"""A packed folder opened for reading: the door to its samples, and selections of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpuload.checks import COUNT, PATH, SIDES, checked, choice, optional, text, whole
from gpuload.counted import counted
from gpuload.disk.quarantine import find_excluded
from gpuload.disk.sample import read_sample
from gpuload.disk.stored import EXCLUDE, EXPRESSION, SAMPLES, StoredSet
from gpuload.disk.tiles import Grid, Tiles
from gpuload.errors import ArgumentError, StateError
from gpuload.fields.rows import flat, lengths_of, rows_of
from gpuload.headers.encodings import MAX_PIXELS
from gpuload.store.cache import CACHE_SIZE
from gpuload.store.url import LOCATION, URL
from gpuload.types import I64

if TYPE_CHECKING:
    import pyarrow.compute as pc  # takes 0.15 s of the first batch


class Dataset(StoredSet):
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
    verify: "sha256": loaders compare the checksum of each shard with the manifest's, once, before they hand out a
        sample of it. That is done while reading ahead; the first batch waits for a window of shards.
    max_pixels: of an image, by the index; loaders refuse a larger one before there is memory for it. The packer's
        option `--max-pixels` has the same default, Pillow's.
    exclude: samples to leave out, as `subset` would: the file that `python -m gpuload verify --quarantine FILE` wrote,
        or a list of keys. All ranks must leave out the same.

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
        exclude=optional(EXCLUDE),
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
        super().__init__(folder, cache, cache_size)
        self.verify, self.max_pixels = verify, max_pixels
        if exclude is not None and len(excluded := find_excluded(self, exclude)):
            self._select(np.setdiff1d(np.arange(len(self)), excluded))
            if not len(self):
                raise ArgumentError(f"Dataset(exclude): leaves out all samples of {self.folder}. Is it the right list?")

    def __repr__(self) -> str:
        total = counted(int(self.first_samples[-1]), "sample")
        samples = total if self._selected is None else f"{len(self):,}{' tiles' * (self._tiles is not None)} of {total}"
        return f"Dataset({str(self.folder)!r}: {samples} in {counted(len(self.shard_paths), 'shard')})"

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
        return read_sample(self, index)

    def __reduce__(self) -> tuple[Any, ...]:
        folder = str(self.folder if isinstance(self.folder, URL) else self.folder.absolute())
        cache = (None, None) if self.cache is None else (self.cache.asked, self.cache.given)
        options = (*cache, self.verify, self.max_pixels)
        return _reopen, (folder, self.manifest.fingerprint, self._selected, self._tiles, options)

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
        tiles = None if self._tiles is None else self._tiles._replace(numbers=self._tiles.numbers[chosen])
        return self._part(self.stored_samples(chosen), tiles)

    def _part(self, stored: I64, tiles: Tiles | None) -> "Dataset":
        part = object.__new__(type(self))
        part.__dict__.update(self.__dict__)
        for computed in ("labels", "fingerprint"):
            part.__dict__.pop(computed, None)
        part._select(stored, tiles)
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
        numbers = []
        for first, batch in self.all_rows():
            rows = pa.Table.from_batches([batch])
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

    @checked("Dataset.tiles", size=SIDES, overlap=whole(0), holding=optional(text("the name of a field of boxes")))
    def tiles(self, size: int | tuple[int, int], overlap: int = 0, holding: str | None = None) -> "Dataset":
        """A data set whose samples are tiles of the images, such as 100 of each: for images that are too large for a
        model.

        size: side of a tile in pixels of the stored image, or (height, width).
        overlap: pixels that neighbouring tiles share. Tiles lie within their image: the last of a row or column moves
            back to the edge, and where the image is smaller than a tile, the tile is as large as the image.
        holding: the name of a field of boxes: of the tiles those alone in which the centre of a box lies.

        The order, ranks, sampling and states are those of a data set of that many samples, so that each tile comes once
        in a pass. An `Augment` sees a tile as it would see an image; `crop="none"` shows all of it, "pad_or_crop" adds
        what smaller ones lack. Boxes, keypoints and masks move with it. Other fields are those of the image. "index" is
        its number, and "crop_top_left" the place of the tile, of which `gpuload.batchwise.join_tiles` makes the image
        again. Not for `Buckets`, or functions called before the crop. Costs O(samples), and 12 bytes for each tile.

        Raises:
            ArgumentError: the overlap is not smaller than a side, the field is none of boxes, no tile is left, or these
                are tiles already. ShardError: the index holds a width or height below 1.
        """
        sides = (size, size) if isinstance(size, int) else size
        if overlap >= min(sides):
            raise ArgumentError(f"Dataset.tiles(overlap={overlap}): must be smaller than size={size!r}")
        if self._tiles is not None:
            raise ArgumentError("Dataset.tiles: the samples are tiles already. Use the data set that these are of")
        stored, grid = self.stored_samples(np.arange(len(self))), Grid(sides, overlap)
        images = self.image_sizes(stored, "tiles")
        if holding is None:
            counts = grid.counts(images).prod(axis=1)
            rows, numbers = rows_of(counts), np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        else:
            if (kind := self.require_field(holding).kind) not in ("boxes", "instances"):
                raise ArgumentError(
                    f"Dataset.tiles(holding={holding!r}): expected a field of boxes, it is of kind {kind!r}"
                )
            boxes = self.column(holding).take(pa.array(stored)).combine_chunks()
            image = rows_of(lengths_of(boxes))
            centers = flat(boxes).reshape(-1, 2, 2).mean(axis=1, dtype=np.float64)[:, ::-1]
            box, number = grid.holding(centers, images[image])
            rows, numbers = np.unique(np.stack([image[box], number]), axis=1)
            if not len(rows):
                raise ArgumentError(f"Dataset.tiles(holding={holding!r}): no sample of {self.folder} has a box")
        return self._part(stored[rows], Tiles(grid, numbers.astype(np.int32)))


def _reopen(
    folder: str, fingerprint: str, selected: I64 | None, tiles: Tiles | None, options: tuple[Any, ...]
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
