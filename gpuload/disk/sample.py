"""Single samples, found by key or number and decoded by Pillow; and lists of samples that a loader leaves out."""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from PIL import Image

from gpuload.checks import as_text, as_whole, shown
from gpuload.errors import ArgumentError, CallError, DecodeError, ShardError, some_of
from gpuload.fields.field import Field
from gpuload.fields.registry import kind_of
from gpuload.pictures import decode_image
from gpuload.types import I64

if TYPE_CHECKING:
    from gpuload.disk.dataset import Dataset


def read_sample(dataset: "Dataset", index: Any) -> dict[str, Any]:
    """As `Dataset.__getitem__`."""
    number = _find(dataset, index)
    members = _Members(dataset, number)
    sample: dict[str, Any] = {"key": members.row["key"], "index": number, "source": members.row["source"]}
    for field in dataset.fields.values():
        sample |= members.look(field)
    return sample


def stored_picture(dataset: "Dataset", number: int, most_px: int | None = None) -> Image.Image:
    """One image, by its number in the whole set, as a person looks at it: RGB, upright. most_px: as `decode_image`.

    Raises:
        ShardError: it cannot be read. Exception: of many kinds, by Pillow, where it does not decode.
    """
    image, members = dataset.fields["image"], _Members(dataset, number)
    if dataset.manifest.is_raw:
        picture: Image.Image = members.look(image)["image"]
        return picture
    return decode_image(members.read(image), most_px)


def stored_image(dataset: "Dataset", number: int) -> bytes:
    """The bytes of one image, by its number in the whole set, as they are stored: a file, or the pixels of a raw one.

    Raises:
        ShardError: they cannot be read.
    """
    return _Members(dataset, number).read(dataset.fields["image"])


def _find(dataset: "Dataset", index: Any) -> int:
    """The number of a sample in the whole set.

    Raises:
        ArgumentError: there is no such key, or number. CallError: it is neither.
    """
    if isinstance(index, str):
        for column in ("key", "source"):
            found = find_keys(dataset, [index], column).get(index, [])
            if len(selected := np.intersect1d(found, dataset.stored_samples(np.arange(len(dataset))))):
                return int(selected[0])
        raise ArgumentError(
            f"Dataset: dataset[{shown(index)}]: {dataset.folder} has no sample of this key or source. "
            "dataset.keys([...]) tells keys by number"
        )
    if not isinstance(index, int | np.integer) or isinstance(index, bool):
        advice = "dataset.subset([...]) chooses several; for batches use gpuload.DaliIterator(dataset, ...)"
        raise CallError(f"Dataset: dataset[{shown(index)}]: expected a key or a whole number. {advice}")
    if not -len(dataset) <= index < len(dataset):
        raise ArgumentError(
            f"Dataset: dataset[{int(index)}]: {dataset.folder} has samples 0 to {len(dataset) - 1}. Use one of these"
        )
    return int(dataset.stored_samples(np.array([index % len(dataset)]))[0])


def find_keys(dataset: "Dataset", keys: Sequence[str], column: str = "key") -> dict[str, list[int]]:
    """The numbers, in the stored order of the whole set, of the samples with these keys, or these values of another
    column.

    Raises:
        ArgumentError: a key is not text, but holds lone surrogates.
    """
    import pyarrow.compute as pc  # 0.02 s of the first batch

    try:
        wanted = pa.array(keys, pa.large_string())
    except (pa.ArrowException, ValueError):
        raise ArgumentError(f"Dataset: {shown(list(keys))} is not text. Use keys of the set") from None
    found: dict[str, list[int]] = {}
    for first, rows in dataset.all_rows():
        values = rows.column(column)
        for at in np.flatnonzero(pc.is_in(values, value_set=wanted).to_numpy(zero_copy_only=False)).tolist():
            found.setdefault(values[at].as_py(), []).append(first + at)
    return found


class _Members:
    """The members of one sample, by its number in the whole set. row: of the index."""

    def __init__(self, dataset: "Dataset", number: int) -> None:
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
        content, store = b"", self._dataset.open_store()
        try:
            lease = store.open(self._shard)  # of a set at a URL, in the cache or kept for the next field
            with lease.open() as file:
                if offset >= 0 and 0 <= size <= self._dataset.manifest.shards[self._shard].bytes:
                    content = os.pread(file.fileno(), size, offset)
        except OSError as error:
            raise ShardError(f"{self.where}: cannot be read ({error.strerror}). Check the disk, or copy it") from None
        finally:
            store.close()
        if len(content) != size:
            raise ShardError(
                f"{self.where}: its {field.name!r} does not lie within the shard, which was truncated, or is not that "
                "of the index. Copy the folder again"
            )
        return content


class Quarantined(NamedTuple):
    """A sample, identified by its key and by where its image lies in its shard: a list may span several splits, and
    does not match a set that was packed again.

    shard: name of the file. offset, bytes: of the image. reason: why it is left out.
    """

    key: str
    shard: str
    offset: int
    bytes: int
    reason: str


def write_quarantine(path: str | Path, samples: Iterable[Quarantined]) -> None:
    """Writes a list, which may be empty: a line of JSON for each sample."""
    lines = [json.dumps(sample._asdict(), ensure_ascii=False) + "\n" for sample in samples]
    Path(path).write_text("".join(lines), encoding="utf-8")


def read_quarantine(path: str | Path) -> list[Quarantined]:
    """Reads a list.

    Raises:
        ArgumentError: it cannot be read, or a line of it is no such sample.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path}: cannot be read as a quarantine list ({error}). Is it the right file?") from None
    samples = []
    for number, line in enumerate(lines, start=1):
        try:
            found = json.loads(line)
            texts = [as_text(found[name]) for name in ("key", "shard")]
            places = [as_whole(found[name]) for name in ("offset", "bytes")]
            samples.append(Quarantined(*texts, *places, str(found.get("reason", ""))))  # type: ignore[call-arg, arg-type]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ArgumentError(
                f"{path}: line {number} is no sample of a quarantine list. Write it with `python -m gpuload verify "
                "--quarantine`, or give exclude a list of keys"
            ) from None
    return samples


def find_excluded(dataset: "Dataset", exclude: str | Path | Sequence[str]) -> I64:
    """int64 (n,): the numbers of these samples in the stored order of the whole set.

    exclude: path of a quarantine list, whose samples need not be in this set; or keys, each of which must be. With
    keys, the keys of all shards are read.

    Raises:
        ArgumentError: there is no such key, or the list cannot be read.
    """
    if isinstance(exclude, str | Path):
        return _find_listed(dataset, read_quarantine(exclude))
    found = find_keys(dataset, exclude)
    if missing := [key for key in exclude if key not in found]:
        raise ArgumentError(
            f"Dataset(exclude): {dataset.folder} has no sample with the key {some_of(missing)}. Keys are those of the "
            'field "key"'
        )
    return np.array([number for numbers in found.values() for number in numbers], np.int64)


def _find_listed(dataset: "Dataset", listed: Sequence[Quarantined]) -> I64:
    shards = {path.name: number for number, path in enumerate(dataset.shard_paths)}
    wanted = {(shards[one.shard], one.key, one.offset, one.bytes) for one in listed if one.shard in shards}
    dataset.fetch_rows(needed := sorted({shard for shard, *_ in wanted}))
    image, found = dataset.require_field("image"), []
    for shard in needed:
        rows, first = dataset.rows(shard), int(dataset.first_samples[shard])
        columns = (rows.column(name).to_pylist() for name in ("key", image.offset_column, image.bytes_column))
        found += [first + row for row, place in enumerate(zip(*columns, strict=True)) if (shard, *place) in wanted]
    return np.array(found, np.int64)
