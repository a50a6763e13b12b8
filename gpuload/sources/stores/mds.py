"""MDS, the store of MosaicML Streaming: a folder with `index.json` and shards, compressed or not."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gpuload.machine.untrusted import parse_json
from gpuload.sources.columns import Table
from gpuload.sources.files import Files, Findings
from gpuload.sources.source import ColumnOptions, Row
from gpuload.sources.stores.pickles import PickleOptions
from gpuload.sources.stores.pieces import (
    Codec,
    Pieces,
    inflate_file,
    opened,
    plain_name,
    sized_image,
    sized_list,
)
from gpuload.sources.stores.store import INDEX, StoreSource, index_of

_CODECS: dict[str, Codec] = {
    "br": "brotli",
    "bz2": "bz2",
    "gz": "gzip",
    "snappy": "snappy",
    "zstd": "zstd",
}
_SHAPE_DTYPES = ("<u1", "<u2", "<u4", "<u8")
# By the number in an array's first byte, where the index does not say the dtype.
_ARRAY_DTYPES = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}
_NUMBERS = ("int", "uint", "float")

Decode = Callable[[Pieces], Any]


class MdsSource(StoreSource):
    """A folder that `streaming.MDSWriter` wrote. Encoded images stay as they are stored; pickles are read where they
    hold plain values, see `pickles`."""

    form = "an MDS store of MosaicML Streaming, a folder with index.json and its shards"
    Options: ClassVar[type[ColumnOptions]] = PickleOptions
    options: PickleOptions

    @classmethod
    def is_folder(cls, files: Files, name: str) -> bool:
        shards = index_of(files, name).get("shards")
        if not isinstance(shards, list) or not shards:
            return False
        return isinstance(shards[0], Mapping) and shards[0].get("format") == "mds"

    def table(self, path: Path, findings: Findings) -> Table:
        index = parse_json((path / INDEX).read_bytes())
        shards = [_Shard.of(entry) for entry in index["shards"]]
        names = shards[0].names
        if any(shard.names != names for shard in shards):
            raise ValueError("its shards differ in their columns")
        return Table(names, self._records(path, shards))

    def _records(self, folder: Path, shards: Sequence["_Shard"]) -> Iterator[Row]:
        scratch = self._scratch / "shard.mds"
        for shard in shards:
            decoders = [self._decoder(encoding) for encoding in shard.encodings]
            path = shard.stored(folder, scratch)
            with opened(path) as file:
                for record in file.records(shard.samples, shard.raw_name):
                    yield _row(record, shard, decoders)
            scratch.unlink(missing_ok=True)

    def _decoder(self, encoding: str) -> Decode:
        return self.options.decode if encoding == "pkl" else decoder(encoding)


@dataclass(frozen=True)
class _Shard:
    """What the index says of a shard.

    Attributes:
        sizes: Of columns that take the same number of bytes in each record, else None.
        codec: That compresses the shard; None where it is not compressed.
    """

    names: list[str]
    encodings: list[str]
    sizes: list[int | None]
    samples: int
    raw_name: str
    raw_bytes: int
    zip_name: str
    codec: Codec | None

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> "_Shard":
        """Raises ValueError, TypeError or KeyError if it is not as Streaming writes it."""
        names = [str(name) for name in entry["column_names"]]
        encodings = [str(encoding) for encoding in entry["column_encodings"]]
        sizes = list(entry["column_sizes"])
        if not len(names) == len(encodings) == len(sizes):
            raise ValueError("its columns differ in number from their encodings")
        if not all(size is None or isinstance(size, int) for size in sizes):
            raise ValueError(f"the sizes of its columns are {json.dumps(sizes)[:60]}")
        compression = str(entry.get("compression") or "").partition(":")[0]
        if compression and compression not in _CODECS:
            raise ValueError(f"it is compressed by {compression[:20]!r}")
        packed = entry.get("zip_data") or {"basename": ""}
        return cls(
            names,
            encodings,
            sizes,
            int(entry["samples"]),
            plain_name(entry["raw_data"]["basename"]),
            int(entry["raw_data"]["bytes"]),
            plain_name(packed["basename"]),
            _CODECS.get(compression),
        )

    def stored(self, folder: Path, scratch: Path) -> Path:
        """The shard as it was before it was compressed: its file, or one that is made.

        Args:
            folder: Of the store.
            scratch: The file that is made.

        Raises:
            OSError, ValueError: see `inflate_file`.
        """
        path = folder / self.raw_name
        if self.codec is None or path.exists():
            return path
        if self.raw_bytes >= 2**32:
            raise ValueError(f"a shard has at most 4 GB, not {self.raw_bytes:,} bytes")
        inflate_file(folder / self.zip_name, self.codec, self.raw_bytes, scratch)
        return scratch


def _row(record: bytes, shard: _Shard, decoders: Sequence[Decode]) -> Row:
    pieces = Pieces(record, name=f"a sample of {shard.raw_name}")
    sizes = [size or pieces.number("<I") for size in shard.sizes]
    row = {}
    for name, size, decode in zip(shard.names, sizes, decoders, strict=True):
        value = Pieces(pieces.take(size), name=f"column {name!r}")
        row[name] = decode(value)
    return row


def decoder(encoding: str) -> Decode:
    """What reads the values of a column.

    Args:
        encoding: Its name in the index, such as "jpeg" or "ndarray:float32:2,3".

    Raises:
        ValueError: it is unknown.
    """
    kind, *details = encoding.split(":")
    if kind == "ndarray":
        return lambda pieces: _array(pieces, details)
    if kind in _DECODERS:
        return _DECODERS[kind]
    if kind.rstrip("0123456789") in _NUMBERS and kind in _ARRAY_DTYPES.values():
        return lambda pieces: pieces.array(f"{kind}", (1,))[0].item()
    raise ValueError(f"it has a column of the unknown encoding {encoding[:40]!r}")


def _array(pieces: Pieces, details: Sequence[str]) -> Any:
    """An array: its dtype and shape, where the index does not say them, and its values."""
    dtype = details[0] if details else _ARRAY_DTYPES.get(pieces.number("<B"), "")
    if dtype not in _ARRAY_DTYPES.values():
        raise ValueError(f"an array has the unknown dtype {dtype[:20]!r}")
    if len(details) > 1:
        shape = tuple(int(side) for side in details[1].split(","))
    else:
        code = pieces.number("<B")
        shape = tuple(pieces.numbers(code >> 2, _SHAPE_DTYPES[code & 3]))
    return pieces.array(np.dtype(dtype), shape)


def _text(pieces: Pieces) -> str:
    return pieces.rest().decode("utf-8")


_DECODERS: dict[str, Decode] = {
    **dict.fromkeys(("bytes", "jpeg", "png"), Pieces.rest),
    **dict.fromkeys(("jpegarray", "jpeg_array"), sized_list),
    **dict.fromkeys(("list[jpeg]", "list[png]"), lambda pieces: _list(pieces)),
    "int": lambda pieces: pieces.number("<q"),
    "str": _text,
    "str_int": lambda pieces: int(_text(pieces)),
    "str_float": lambda pieces: float(_text(pieces)),
    "str_decimal": lambda pieces: float(_text(pieces)),
    "pil": sized_image,
    "list[pil]": lambda pieces: [sized_image(Pieces(image)) for image in _list(pieces)],
    "json": lambda pieces: parse_json(pieces.rest()),
}


def _list(pieces: Pieces) -> list[bytes]:
    """A list of encoded values: a word that is kept for later use, then as `sized_list`."""
    pieces.take(4)
    return sized_list(pieces)
