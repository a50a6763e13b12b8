"""FFCV's `.beton`: a header, descriptors of the fields, a row of places for each sample, pages of data, and a table of
what lies where.

The header of 24 bytes has the version (2), the number of fields, the size of a page, the number of samples, and where
the table lies. A descriptor takes 1,041 bytes: type, name in 16 bytes, arguments in 1,024. The row of a sample is that
of C's structs of its fields, aligned to 8 bytes where an aligned field is. The table tells how long a JPEG is.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpuload.machine.untrusted import parse_json
from gpuload.sources.columns import Table
from gpuload.sources.files import Findings
from gpuload.sources.source import Row
from gpuload.sources.stores.pieces import Pieces, StoreFile, opened
from gpuload.sources.stores.store import StoreSource

_VERSION = 2
_HEADER = np.dtype(
    [
        ("version", "<u2"),
        ("fields", "<u2"),
        ("page_bytes", "<u4"),
        ("samples", "<u8"),
        ("table", "<u8"),
    ]
)
_FIELD = np.dtype([("type", "u1"), ("name", "S16"), ("arguments", "V1024")])
_TABLE = np.dtype([("sample", "<u8"), ("place", "<u8"), ("bytes", "<u8")])
_MOST_FIELDS = 256
_MOST_DIMENSIONS = 32
_JPEG = 0
_ROWS_AT_ONCE = 4_096

_IMAGE_ROW = np.dtype(
    [("mode", "u1"), ("width", "<u2"), ("height", "<u2"), ("place", "<u8")]
)
_BYTES_ROW = np.dtype([("place", "<u8"), ("bytes", "<u8")])
# What a row holds of a field, by its type: float, int, image, bytes, array, JSON, tensor.
_ROWS = {
    0: np.dtype("<f8"),
    1: np.dtype("<i8"),
    2: _IMAGE_ROW,
    3: _BYTES_ROW,
    4: np.dtype("<u8"),
    5: _BYTES_ROW,
    6: np.dtype("<u8"),
}

Read = Callable[[Any], Any]


class BetonSource(StoreSource):
    """A file that `ffcv.writer.DatasetWriter` wrote. JPEGs stay as they are stored."""

    form = "FFCV's .beton of version 2"
    suffixes = (".beton",)

    def table(self, path: Path, findings: Findings) -> Table:
        with opened(path) as file:
            beton = _Beton(file)
        return Table(beton.names, _rows(path))


def _rows(path: Path) -> Iterator[Row]:
    with opened(path) as file:
        beton = _Beton(file)
        yield from beton.rows()


class _Beton:
    """An opened file, whose header and descriptors have been read."""

    def __init__(self, file: StoreFile) -> None:
        self._file = file
        header = self._read(_HEADER, 0, 1, "its header")[0]
        if header["version"] != _VERSION:
            raise ValueError(f"its version is {header['version']}")
        count = int(header["fields"])
        if not 1 <= count <= _MOST_FIELDS:
            raise ValueError(f"it has {count:,} fields")
        start = _HEADER.itemsize
        fields = self._read(_FIELD, start, count, "its fields")
        self.names = [
            bytes(name).split(b"\0")[0].decode("ascii") for name in fields["name"]
        ]
        self._samples = int(header["samples"])
        self._start = start + count * _FIELD.itemsize
        kinds = fields["type"].tolist()
        self._row = _row_type(kinds)
        if self._start + self._samples * self._row.itemsize > file.size:
            raise ValueError(f"it is too short for {self._samples:,} samples")
        table_start = int(header["table"])
        rows = (file.size - table_start) // _TABLE.itemsize
        table = self._read(_TABLE, table_start, rows, "its table")
        order = np.argsort(table["place"])
        self._places = table["place"][order]
        self._bytes = table["bytes"][order]
        self._readers = [
            self._reader(kind, bytes(arguments))
            for kind, arguments in zip(kinds, fields["arguments"], strict=True)
        ]

    def _read(self, dtype: Any, start: int, count: int, name: str) -> Any:
        return np.frombuffer(self._file.at(start, count * dtype.itemsize, name), dtype)

    def rows(self) -> Iterator[Row]:
        for first in range(0, self._samples, _ROWS_AT_ONCE):
            count = min(_ROWS_AT_ONCE, self._samples - first)
            start = self._start + first * self._row.itemsize
            for row in self._read(self._row, start, count, "the rows of its samples"):
                values = (
                    read(value) for read, value in zip(self._readers, row, strict=True)
                )
                yield dict(zip(self.names, values, strict=True))

    def _reader(self, kind: int, arguments: bytes) -> Read:
        if kind in (0, 1):
            return lambda value: value.item()
        if kind == 2:
            return self._image
        if kind == 3:
            return self._content
        if kind == 5:
            return lambda value: parse_json(self._content(value).split(b"\0")[0])
        dtype, shape = _array_type(Pieces(arguments, name="the type of an array"))
        size = dtype.itemsize * int(np.prod(shape, dtype=object))
        return lambda value: Pieces(self._file.at(int(value), size, "an array")).array(
            dtype, shape
        )

    def _content(self, value: Any) -> bytes:
        return self._file.at(int(value["place"]), int(value["bytes"]), "a value")

    def _image(self, value: Any) -> Any:
        place = int(value["place"])
        if value["mode"] == _JPEG:
            return self._file.at(place, self._size_at(place), "a JPEG")
        height = int(value["height"])
        width = int(value["width"])
        pixels = Pieces(self._file.at(place, height * width * 3, "an image"))
        return pixels.array(np.uint8, (height, width, 3))

    def _size_at(self, place: int) -> int:
        number = int(np.searchsorted(self._places, place))
        if number == len(self._places) or self._places[number] != place:
            raise ValueError(f"its table does not have the image at byte {place:,}")
        return int(self._bytes[number])


def _row_type(kinds: Sequence[int]) -> np.dtype[Any]:
    """The dtype of a sample's row, whose fields are called by their numbers.

    Raises:
        ValueError: a field is of an unknown type.
    """
    for kind in kinds:
        if kind not in _ROWS:
            raise ValueError(f"it has a field of the unknown type {kind}")
    row = [(str(place), _ROWS[kind]) for place, kind in enumerate(kinds)]
    return np.dtype(row, align=True)


def _array_type(pieces: Pieces) -> tuple[Any, tuple[int, ...]]:
    """The dtype and shape of an array field: 32 lengths of sides up to a zero, and NumPy's description as JSON."""
    sides = pieces.numbers(_MOST_DIMENSIONS, "<u8")
    text = pieces.take(pieces.number("<Q")).decode("ascii")
    ((_, code),) = parse_json(text)
    dtype = np.dtype(str(code))
    if dtype.kind not in "biuf":
        raise ValueError(f"it has arrays of the dtype {code}")
    while sides and not sides[-1]:
        sides.pop()
    return dtype, tuple(sides)
