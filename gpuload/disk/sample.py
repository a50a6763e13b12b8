"""Single samples by key or number: found in the index, read from their shard, decoded by Pillow."""

import io
import os
from bisect import bisect_left
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from PIL import Image, ImageOps

from gpuload.checks import shown
from gpuload.errors import ArgumentError, CallError, DecodeError, ShardError
from gpuload.fields.arrays import shape_column
from gpuload.fields.field import Field
from gpuload.headers.limits import MAX_PIXELS
from gpuload.pictures.as_rgb import as_rgb

if TYPE_CHECKING:
    from gpuload.disk.dataset import Dataset

_MOST_COMPARED = 10_000  # keys, and sources, that are compared with one that is not there: some tenths of a second
_MOST_SHOWN, _MOST_CONTAINING = 3, 60


def read_sample(dataset: "Dataset", index: Any) -> dict[str, Any]:
    """As `Dataset.__getitem__`."""
    number = _find(dataset, index)
    shard = int(np.searchsorted(dataset.first_samples, number, side="right")) - 1
    rows = dataset.rows(shard)
    row = rows.slice(number - int(dataset.first_samples[shard]), 1).to_pylist()[0]
    sample: dict[str, Any] = {"key": row["key"], "index": number, "source": row["source"], "image": None}
    members = _Members(dataset, shard, row)
    for name, field in dataset.fields.items():
        if field.kind in ("image", "raw"):
            sample[name] = _image(dataset, members, field, row)
        else:
            sample |= _values(members, field, row)
    return sample


def stored_picture(dataset: "Dataset", number: int, most_px: int | None = None) -> Image.Image:
    """One image, by its number in the whole set, as a person looks at it: RGB, upright. most_px: as `decode_image`.

    Raises:
        ShardError: it cannot be read. Exception: of many kinds, by Pillow, where it does not decode.
    """
    if dataset.manifest.is_raw:
        shard = int(np.searchsorted(dataset.first_samples, number, side="right")) - 1
        row = dataset.rows(shard).slice(number - int(dataset.first_samples[shard]), 1).to_pylist()[0]
        return _image(dataset, _Members(dataset, shard, row), dataset.fields["image"], row)
    return decode_image(stored_image(dataset, number), most_px)


def stored_image(dataset: "Dataset", number: int) -> bytes:
    """The bytes of one image, by its number in the whole set, as they are stored: a file, or the pixels of a raw one.

    Raises:
        ShardError: they cannot be read.
    """
    shard = int(np.searchsorted(dataset.first_samples, number, side="right")) - 1
    row = dataset.rows(shard).slice(number - int(dataset.first_samples[shard]), 1).to_pylist()[0]
    return _Members(dataset, shard, row).read(dataset.fields["image"])


def _find(dataset: "Dataset", index: Any) -> int:
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


def _number_of_key(dataset: "Dataset", key: str) -> int:
    import pyarrow.compute as pc  # 0.15 s

    try:
        wanted = pa.scalar(key, pa.large_string())
    except (pa.ArrowException, ValueError):  # lone surrogates
        raise ArgumentError(f"Dataset: dataset[{shown(key)}]: is not text. Use a key of the set") from None
    dataset.fetch_rows()
    for column in ("key", "source"):
        for shard, first in enumerate(dataset.first_samples[:-1].tolist()):
            found = pc.index(dataset.rows(shard).column(column), wanted).as_py()
            if found >= 0 and _has(dataset, first + found):
                return int(first + found)
    close = _close_names(dataset, key)
    advice = f"Did you mean {' or '.join(map(shown, close))}?" if close else "dataset.keys([...]) tells keys by number"
    raise ArgumentError(
        f"Dataset: dataset[{shown(key)}]: {dataset.folder} has no sample of this key or source. {advice}"
    )


def _has(dataset: "Dataset", number: int) -> bool:
    """Whether a data set, which may be a subset, has the sample of this number in the whole set."""

    def stored(place: int) -> int:
        return int(dataset.stored_samples(np.array([place]))[0])

    place = bisect_left(range(len(dataset)), number, key=stored)
    return place < len(dataset) and stored(place) == number


def _close_names(dataset: "Dataset", name: str) -> Sequence[str]:
    """Keys and sources that are like one that is not there: those that differ by little, else those that contain it."""
    import pyarrow.compute as pc

    stem = _stem(name)
    compared: list[str] = []
    containing: list[str] = []
    step = max(1, int(dataset.first_samples[-1]) // _MOST_COMPARED)
    for column in ("key", "source"):
        for shard, first in enumerate(dataset.first_samples[:-1].tolist()):
            names = dataset.rows(shard).column(column)
            if stem and len(containing) < _MOST_CONTAINING * (1 + (column == "source")):
                hits = names.filter(pc.match_substring(names, stem, ignore_case=True))
                containing += hits.slice(0, _MOST_SHOWN).to_pylist()
            compared += names.take(pa.array(np.arange(-first % step, len(names), step))).to_pylist()
    if close := get_close_matches(name, compared, _MOST_SHOWN, 0.7):
        return close
    return sorted(containing, key=lambda found: (_stem(found) != stem, len(found)))[:_MOST_SHOWN]


def _stem(name: str) -> str:
    return name.rpartition("/")[2].partition(".")[0]


class _Members:
    """The members of one sample, by the offsets of its row of the index."""

    def __init__(self, dataset: "Dataset", shard: int, row: dict[str, Any]) -> None:
        self._dataset, self._shard, self._row = dataset, shard, row
        self.where = f"{dataset.shard_paths[shard]}: sample {row['key']!r}"

    def read(self, field: Field) -> bytes:
        """The bytes that its columns span.

        Raises:
            ShardError: the shard cannot be read, or ends before.
        """
        offset, size = int(self._row[field.offset_column]), int(self._row[field.bytes_column])
        if offset < 0 or not 0 <= size <= self._dataset.manifest.shards[self._shard].bytes:
            raise ShardError(
                f"{self.where}: the index places its {field.name!r} outside of the shard. Copy the folder again"
            )
        store = self._dataset.open_store()
        try:
            lease = store.open(self._shard)  # of a set at a URL, in the cache or kept for the next field
            with open(lease.path, "rb", buffering=0) as file:
                content = os.pread(file.fileno(), size, offset)
        except OSError as error:
            raise ShardError(f"{self.where}: cannot be read ({error.strerror}). Check the disk, or copy it") from None
        finally:
            store.close()
        if len(content) != size:
            raise ShardError(f"{self.where}: the shard ends within its {field.name!r}. It was truncated: copy it again")
        return content


def _image(dataset: "Dataset", members: _Members, field: Field, row: dict[str, Any]) -> Image.Image:
    """RGB, upright, as the loader decodes it; pixels that are not 8-bit RGB as `as_rgb` shows them."""
    width, height = int(row["width"]), int(row["height"])
    content = members.read(field)
    if field.kind == "raw":
        pixels = dataset.manifest.pixels
        if len(content) != width * height * pixels.bytes:
            raise ShardError(
                f"{members.where}: has {len(content)} bytes, {width} × {height} pixels need another number"
            )
        return Image.fromarray(as_rgb(np.frombuffer(content, pixels.stored).reshape(height, width, pixels.channels)))
    try:
        return decode_image(content)
    except Exception as error:  # Pillow's decoders raise many kinds
        reason = str(error).split(" <")[0] or type(error).__name__
        raise DecodeError(f"{members.where}: does not decode: {reason}. `python -m gpuload verify` lists all") from None


def decode_image(content: bytes, most_px: int | None = None) -> Image.Image:
    """An encoded image, RGB, upright. most_px: a JPEG may be decoded smaller, but its sides not below this.

    Raises:
        Exception: of many kinds, by Pillow.
    """
    with Image.open(io.BytesIO(content)) as image:
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"{image.width} × {image.height} pixels")
        if most_px is not None:
            image.draft("RGB", (most_px, most_px))
        upright = ImageOps.exif_transpose(image)
        if upright.mode.startswith("I"):  # 16 bits, which Pillow would cut off at 255
            return Image.fromarray(as_rgb(np.asarray(upright).astype(np.uint16)[..., None]))
        return upright.convert("RGB")


def _values(members: _Members, field: Field, row: dict[str, Any]) -> dict[str, Any]:
    """What a field is to a person: numbers, text, arrays, for a mask a picture of class numbers."""
    name = field.name
    if field.kind == "mask":
        try:
            with Image.open(io.BytesIO(members.read(field))) as mask:
                return {name: mask.convert("L") if mask.mode not in ("L", "P") else mask.copy()}
        except (OSError, ValueError, SyntaxError) as error:
            raise DecodeError(f"{members.where}: its mask does not decode: {error}. Pack it again") from None
    if field.kind == "array":
        shape, content = row[shape_column(field)], members.read(field)
        try:
            return {name: np.frombuffer(content, np.dtype(field.dtype)).reshape(shape).copy()}
        except ValueError:
            raise ShardError(f"{members.where}: its {name!r} is not of shape {shape}. Copy the folder again") from None
    if field.kind == "boxes":
        return {
            name: np.array(row[name], np.float32).reshape(-1, 4),
            f"{name}_class": np.array(row[f"{name}_class"], np.int64),
        }
    if field.kind == "keypoints":
        return {name: np.array(row[name], np.float32).reshape(-1, field.size, 3)}
    if field.kind == "target" and field.size:
        return {name: np.array(row[name], np.float32)}
    if field.kind == "json":
        from gpuload.headers.json_text import parse_json

        return {name: parse_json(row[name])}
    return {name: row[name]}
