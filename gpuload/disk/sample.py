"""Single samples, found by key or number and decoded by Pillow; and the HTML that a notebook shows of a set."""

import os
from bisect import bisect_left
from collections.abc import Sequence
from difflib import get_close_matches
from html import escape
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from gpuload.checks import shown
from gpuload.counted import counted
from gpuload.disk.stored import StoredSet
from gpuload.errors import ArgumentError, CallError, DecodeError, ShardError
from gpuload.fields.field import Field
from gpuload.fields.registry import kind_of
from gpuload.machine.untrusted import open_regular
from gpuload.pictures.marks import name_of
from gpuload.pictures.shown import decode_image, jpeg_uri, thumbnail
from gpuload.store.url import URL

_MOST_COMPARED = 10_000  # keys, and sources, that are compared with one that is not there: some tenths of a second
_MOST_SHOWN, _MOST_CONTAINING = 3, 60


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
    close = _close_names(dataset, key)
    advice = f"Did you mean {' or '.join(map(shown, close))}?" if close else "dataset.keys([...]) tells keys by number"
    raise ArgumentError(
        f"Dataset: dataset[{shown(key)}]: {dataset.folder} has no sample of this key or source. {advice}"
    )


def _has(dataset: StoredSet, number: int) -> bool:
    """Whether a data set, which may be a subset, has the sample of this number in the whole set."""

    def stored(place: int) -> int:
        return int(dataset.stored_samples(np.array([place]))[0])

    place = bisect_left(range(len(dataset)), number, key=stored)
    return place < len(dataset) and stored(place) == number


def _close_names(dataset: StoredSet, name: str) -> Sequence[str]:
    """Keys and sources similar to a missing one: close matches, else names that contain it."""
    import pyarrow.compute as pc

    stem = _stem(name)
    compared: list[str] = []
    containing: list[str] = []
    step = max(1, int(dataset.first_samples[-1]) // _MOST_COMPARED)
    for column in ("key", "source"):
        for first, rows in dataset.all_rows():
            names = rows.column(column)
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
            with open_regular(lease.path) as file:
                content = os.pread(file.fileno(), size, offset)
        except OSError as error:
            raise ShardError(f"{self.where}: cannot be read ({error.strerror}). Check the disk, or copy it") from None
        finally:
            store.close()
        if len(content) != size:
            raise ShardError(f"{self.where}: the shard ends within its {field.name!r}. It was truncated: copy it again")
        return content


_IMAGES, _SIDE_PX, _MOST_BYTES = 8, 96, 4_000_000
_MOST_NAMES = 12


def html_of(dataset: StoredSet) -> str:
    """HTML whose texts are escaped, whatever the set holds; images that do not decode are left out."""
    manifest = dataset.manifest
    whole = int(dataset.first_samples[-1])
    samples = f"{len(dataset):,}" + (f" of {whole:,}" if len(dataset) != whole else "")
    rows = [
        ("samples", f"{samples} in {counted(len(dataset.shard_paths), 'shard')}, {manifest.bytes / 1e6:,.1f} MB"),
        ("fields", ", ".join(f"{field.name} ({field.kind})" for field in manifest.fields)),
        ("largest", f"{manifest.width} × {manifest.height} pixels"),
        ("fingerprint", dataset.fingerprint),
    ]
    if dataset.classes is not None:
        names = ", ".join(dataset.classes[:_MOST_NAMES]) + (", …" if len(dataset.classes) > _MOST_NAMES else "")
        rows.insert(1, ("classes", f"{len(dataset.classes):,}: {names}"))
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(text)}</td></tr>'
        for name, text in rows
    )
    pictures = "" if isinstance(dataset.folder, URL) else _pictures(dataset)
    return f"<div><strong>Dataset</strong> {escape(str(dataset.folder))}<table>{cells}</table>{pictures}</div>"


def _pictures(dataset: StoredSet) -> str:
    """A row of images, evenly spaced over the set."""
    numbers = np.unique(np.linspace(0, len(dataset) - 1, min(_IMAGES, len(dataset))).astype(np.int64))
    figures = []
    for number in dataset.stored_samples(numbers).tolist():
        try:
            uri, text = _picture(dataset, number)
        except Exception:  # a notebook shows what there is; errors are told where samples are asked for
            continue
        figures.append(
            f'<figure style="display:inline-block;margin:4px;max-width:{_SIDE_PX}px"><img src="{uri}" alt="">'
            f'<figcaption style="font-size:11px;overflow-wrap:anywhere">{escape(text)}</figcaption></figure>'
        )
    return f"<div>{''.join(figures)}</div>"


def _picture(dataset: StoredSet, number: int) -> tuple[str, str]:
    row = dataset.row(number).to_pylist()[0]
    image = stored_picture(dataset, number, None if row["image_bytes"] > _MOST_BYTES else 2 * _SIDE_PX)
    named = "label" in dataset.fields and row["label"] is not None
    text = name_of(int(row["label"]), dataset.classes) if named else row["key"]
    return jpeg_uri(thumbnail(image, _SIDE_PX, _SIDE_PX)), text
