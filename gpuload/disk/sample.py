"""Single samples, found by key or number and decoded by Pillow."""

import os
from bisect import bisect_left
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from gpuload.checks import shown
from gpuload.disk.stored import StoredSet
from gpuload.errors import ArgumentError, CallError, DecodeError, ShardError
from gpuload.fields.field import Field
from gpuload.fields.registry import kind_of
from gpuload.pictures import decode_image


def read_sample(dataset: StoredSet, index: Any) -> dict[str, Any]:
    """As `Dataset.__getitem__`."""
    number = _find(dataset, index)
    members = _Members(dataset, number)
    sample: dict[str, Any] = {"key": members.row["key"], "index": number, "source": members.row["source"]}
    for field in dataset.fields.values():
        sample |= members.look(field)
    return sample


def stored_picture(dataset: StoredSet, number: int, most_px: int | None = None) -> Image.Image:
    """One image, by its number in the whole set, as a person looks at it: RGB, upright. most_px: as `decode_image`.

    Raises:
        ShardError: it cannot be read. Exception: of many kinds, by Pillow, where it does not decode.
    """
    image, members = dataset.fields["image"], _Members(dataset, number)
    if dataset.manifest.is_raw:
        picture: Image.Image = members.look(image)["image"]
        return picture
    return decode_image(members.read(image), most_px)


def stored_image(dataset: StoredSet, number: int) -> bytes:
    """The bytes of one image, by its number in the whole set, as they are stored: a file, or the pixels of a raw one.

    Raises:
        ShardError: they cannot be read.
    """
    return _Members(dataset, number).read(dataset.fields["image"])


def _find(dataset: StoredSet, index: Any) -> int:
    """The number of a sample in the whole set.

    Raises:
        ArgumentError: there is no such key, or number. CallError: it is neither.
    """
    if isinstance(index, str):
        return _number_of_key(dataset, index)
    if not isinstance(index, int | np.integer) or isinstance(index, bool):
        advice = "dataset.subset([...]) chooses several; for batches use gpuload.DaliIterator(dataset, ...)"
        raise CallError(f"Dataset: dataset[{shown(index)}]: expected a key or a whole number. {advice}")
    if not -len(dataset) <= index < len(dataset):
        raise ArgumentError(
            f"Dataset: dataset[{int(index)}]: {dataset.folder} has samples 0 to {len(dataset) - 1}. Use one of these"
        )
    return int(dataset.stored_samples(np.array([index % len(dataset)]))[0])


def _number_of_key(dataset: StoredSet, key: str) -> int:
    import pyarrow.compute as pc  # 0.15 s

    try:
        wanted = pa.scalar(key, pa.large_string())
    except (pa.ArrowException, ValueError):  # lone surrogates
        raise ArgumentError(f"Dataset: dataset[{shown(key)}]: is not text. Use a key of the set") from None
    for column in ("key", "source"):
        for first, rows in dataset.all_rows():
            found = pc.index(rows.column(column), wanted).as_py()
            if found >= 0 and _has(dataset, first + found):
                return int(first + found)
    raise ArgumentError(
        f"Dataset: dataset[{shown(key)}]: {dataset.folder} has no sample of this key or source. dataset.keys([...]) "
        "tells keys by number"
    )


def _has(dataset: StoredSet, number: int) -> bool:
    """Whether a data set, which may be a subset, has the sample of this number in the whole set."""

    def stored(place: int) -> int:
        return int(dataset.stored_samples(np.array([place]))[0])

    place = bisect_left(range(len(dataset)), number, key=stored)
    return place < len(dataset) and stored(place) == number


class _Members:
    """The members of one sample, by its number in the whole set. row: of the index."""

    def __init__(self, dataset: StoredSet, number: int) -> None:
        self._dataset, self.row = dataset, dataset.row(number).to_pylist()[0]
        self._shard = int(dataset.shards_of(number))
        self.where = f"{dataset.shard_paths[self._shard]}: sample {self.row['key']!r}"

    def look(self, field: Field) -> dict[str, Any]:
        """As `Kind.look`.

        Raises:
            ShardError: as `read`. DecodeError: its value is damaged.
        """
        try:
            return kind_of(field).look(field, self.row, lambda: self.read(field))
        except ShardError:
            raise
        except Exception as error:  # Pillow's decoders raise many kinds
            reason = str(error).split(" <")[0] or type(error).__name__
            what = "" if field.name == "image" else f"its {field.name!r} "
            raise DecodeError(
                f"{self.where}: {what}does not decode: {reason}. `python -m gpuload verify` lists all"
            ) from None

    def read(self, field: Field) -> bytes:
        """The bytes that its columns span.

        Raises:
            ShardError: the shard cannot be read, or ends before.
        """
        offset, size = int(self.row[field.offset_column]), int(self.row[field.bytes_column])
        if offset < 0 or not 0 <= size <= self._dataset.manifest.shards[self._shard].bytes:
            raise ShardError(
                f"{self.where}: the index places its {field.name!r} outside of the shard. Copy the folder again"
            )
        store = self._dataset.open_store()
        try:
            lease = store.open(self._shard)  # of a set at a URL, in the cache or kept for the next field
            with lease.open() as file:
                content = os.pread(file.fileno(), size, offset)
        except OSError as error:
            raise ShardError(f"{self.where}: cannot be read ({error.strerror}). Check the disk, or copy it") from None
        finally:
            store.close()
        if len(content) != size:
            raise ShardError(f"{self.where}: the shard ends within its {field.name!r}. It was truncated: copy it again")
        return content
