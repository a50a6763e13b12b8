"""LitData's chunks: a folder with `index.json` and files of samples, each a row of leaves of a tree."""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from gpuload.machine.untrusted import parse_json
from gpuload.sources.columns import Table, open_batches
from gpuload.sources.files import Files, Findings
from gpuload.sources.source import ColumnOptions
from gpuload.sources.stores.pickles import PickleOptions
from gpuload.sources.stores.pieces import (
    MOST_BYTES,
    Pieces,
    StoreFile,
    inflate_file,
    inflated,
    opened,
    plain_name,
    sized_image,
    sized_list,
)
from gpuload.sources.stores.store import INDEX, StoreSource, index_of

_FRAMED = b"LDFZ01\0\0"
_FRAME = struct.Struct("<IIQII")
_IN_ARROW = b"LDARW01\0"  # ends chunks of litdata 0.2.76 with plain values alone
_ZSTD = b"\x28\xb5\x2f\xfd"
_MOST_LEAVES = 1_000

# fmt: off
# By the numbers in chunks; those without a name hold no plain numbers.
_OF_TORCH = {
    0: "f4", 1: "f4", 2: "f8", 3: "f8", 8: "f2", 9: "f2", 11: "u1", 12: "i1", 13: "i2", 14: "i2", 15: "i4", 16: "i4",
    17: "i8", 18: "i8", 19: "?", 20: "u2",
}
_OF_NUMPY = {
    0: "i1", 1: "i2", 2: "i4", 3: "i8", 4: "u1", 5: "u2", 6: "u4", 7: "u8", 8: "f2", 9: "f4", 10: "f8", 13: "?",
}
# fmt: on

Decode = Callable[[Pieces], Any]


class LitDataSource(StoreSource):
    """A folder that `litdata.optimize` wrote. Encoded images stay as they are stored."""

    form = "a store of LitData, a folder with index.json and its chunks"
    Options: ClassVar[type[ColumnOptions]] = PickleOptions
    options: PickleOptions

    @classmethod
    def is_folder(cls, files: Files, name: str) -> bool:
        index = index_of(files, name)
        config = index.get("config")
        return (
            "chunks" in index
            and isinstance(config, Mapping)
            and "data_format" in config
        )

    def table(self, path: Path, findings: Findings) -> Table:
        index = parse_json((path / INDEX).read_bytes())
        config = index["config"]
        if config.get("encryption"):
            raise ValueError("it is encrypted; decrypt it by litdata")
        loader = config.get("item_loader") or "PyTreeLoader"
        if loader != "PyTreeLoader":
            raise ValueError(f"its chunks are those of {str(loader)[:40]}")
        formats = [str(form) for form in config["data_format"]]
        names = leaf_names(config.get("data_spec"), len(formats))
        decoders = [self._decoder(form) for form in formats]
        return Table(names, self._rows(path, index["chunks"], names, decoders))

    def _rows(
        self,
        folder: Path,
        chunks: Sequence[Mapping[str, Any]],
        names: Sequence[str],
        decoders: Sequence[Decode],
    ) -> Iterator[dict[str, Any]]:
        unpacked = self._scratch / "chunk"
        unpacked.mkdir(exist_ok=True)
        for chunk in chunks:
            path = folder / plain_name(chunk["filename"])
            scratch = unpacked / path.name  # messages name it
            with opened(path) as file:
                is_packed = file.at(0, min(4, file.size)) == _ZSTD
            if is_packed:
                inflate_file(path, "zstd", None, scratch)
                path = scratch
            with opened(path) as file:
                if file.at(max(0, file.size - 8), min(8, file.size)) == _IN_ARROW:
                    yield from _arrow_rows(file, names)
                else:
                    for record in _records_of(file, int(chunk["chunk_size"])):
                        yield dict(zip(names, _values(record, decoders), strict=True))
            scratch.unlink(missing_ok=True)

    def _decoder(self, form: str) -> Decode:
        return self.options.decode if form == "pickle" else decoder(form)


def _arrow_rows(file: StoreFile, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The samples of a chunk that ends in a file of Arrow, which holds the values of plain types."""
    size = Pieces(file.at(file.size - 12, 4)).number("<I")
    content = file.at(file.size - 12 - size, size, f"{file.path.name}: its rows")
    _, batches = open_batches(pa.py_buffer(content))
    for batch in batches:
        batch.validate(full=True)
        for row in batch.to_pylist():
            yield {name: _leaf(row, name) for name in names}


def _leaf(row: Any, name: str) -> Any:
    """A value in a tree of dicts and lists, by its name with dots."""
    if isinstance(row, Mapping) and name in row:
        return row[name]
    key, _, rest = name.partition(".")
    inner = row[key] if isinstance(row, Mapping) else row[int(key)]
    return _leaf(inner, rest) if rest else inner


def _records_of(file: StoreFile, expected: int) -> Iterator[bytes]:
    """The bytes of each sample in a chunk."""
    if file.at(0, min(8, file.size)) == _FRAMED:
        yield from _framed_records(file)
        return
    for record in file.records(expected, file.path.name):
        yield inflated(record, "zstd", None) if record[:4] == _ZSTD else record


def _framed_records(file: StoreFile) -> Iterator[bytes]:
    """Those of a chunk whose samples are compressed some at a time."""
    name = file.path.name
    version, _, count, _, frames = struct.unpack("<HHIII", file.at(8, 16, name))
    if version != 1:
        raise ValueError(f"{name} has frames of version {version}")
    tables_bytes = (count + 1) * 4 + frames * _FRAME.size
    pieces = Pieces(file.at(24, tables_bytes, f"{name}: its tables"), name=name)
    offsets = pieces.numbers(count + 1, "<u4")
    for _ in range(frames):
        frame = _Frame(*_FRAME.unpack(pieces.take(_FRAME.size)))
        if frame.first + frame.samples > count or frame.size > MOST_BYTES:
            raise ValueError(f"{name} has a frame of samples that it does not hold")
        compressed = file.at(frame.start, frame.compressed, f"{name}: a frame")
        content = inflated(compressed, "zstd", frame.size)
        samples = Pieces(content, name=f"{name}: a frame")
        for number in range(frame.first, frame.first + frame.samples):
            yield samples.take(offsets[number + 1] - offsets[number])


class _Frame(NamedTuple):
    """Some samples that are compressed together.

    Attributes:
        first: The number of the first.
        samples: How many there are.
        start: The byte of the chunk where they begin.
        compressed: Bytes there.
        size: Bytes when they are decompressed.
    """

    first: int
    samples: int
    start: int
    compressed: int
    size: int


def _values(record: bytes, decoders: Sequence[Decode]) -> list[Any]:
    pieces = Pieces(record, name="a sample")
    sizes = pieces.numbers(len(decoders), "<u4")
    return [
        decode(Pieces(pieces.take(size)))
        for size, decode in zip(sizes, decoders, strict=True)
    ]


def leaf_names(spec: Any, count: int) -> list[str]:
    """The names of a sample's leaves: keys of dicts and numbers in lists, with dots between levels.

    Args:
        spec: The tree, as torch writes it, or None.
        count: The number of leaves.

    Raises:
        ValueError: the tree has another number of leaves.
    """
    if not spec:
        names = [str(number) for number in range(count)]
    else:
        _, tree = parse_json(spec)
        names = [".".join(path) or "0" for path in _paths(tree, (), 0)]
    if len(names) != count or len(set(names)) != count:
        raise ValueError(
            f"its samples have {count} values, and the tree of these has {len(names)}"
        )
    return names


def _paths(
    tree: Mapping[str, Any], path: tuple[str, ...], depth: int
) -> Iterator[tuple[str, ...]]:
    if depth > 16:
        raise ValueError("its samples are nested too deeply")
    if tree["type"] is None:
        yield path
        return
    context = parse_json(tree["context"] or "null")
    children = tree["children_spec"]
    keys = context if isinstance(context, list) else range(len(children))
    for key, child in zip(keys, children, strict=True):
        yield from _paths(child, (*path, str(key)), depth + 1)


def decoder(form: str) -> Decode:
    """What reads the values of a leaf.

    Args:
        form: Its name in the index, such as "jpeg" or "no_header_numpy:4".

    Raises:
        ValueError: it is unknown.
    """
    kind, _, detail = form.partition(":")
    if kind in ("no_header_tensor", "no_header_numpy"):
        dtypes = _OF_TORCH if kind == "no_header_tensor" else _OF_NUMPY
        dtype = _dtype(dtypes, int(detail))
        return lambda pieces: pieces.array(dtype)
    if kind in _DECODERS:
        return _DECODERS[kind]
    raise ValueError(f"it has values of the unknown form {form[:40]!r}")


def _dtype(dtypes: Mapping[int, str], code: int) -> str:
    if code not in dtypes:
        raise ValueError(f"an array has the unknown dtype {code}")
    return dtypes[code]


def _array(pieces: Pieces, dtypes: Mapping[int, str], order: str) -> Any:
    dtype = _dtype(dtypes, pieces.number(f"{order}I"))
    dimensions = pieces.number(f"{order}I")
    return pieces.array(dtype, tuple(pieces.numbers(dimensions, f"{order}u4")))


def _document(pieces: Pieces) -> Any:
    """A value of lists and dicts: JSON as text, or in the form that LitData gives most of them."""
    data = pieces.rest()
    if data[:1] > b"\x20":
        return parse_json(data)
    return _nested(Pieces(data, name="a document"), 0)


def _short(pieces: Pieces) -> str:
    return pieces.take(pieces.number("<I")).decode("utf-8")


def _nested(pieces: Pieces, depth: int) -> Any:
    if depth > 16:
        raise ValueError("a document is nested too deeply")
    tag = pieces.number("<B")
    if tag in _SCALARS:
        return _SCALARS[tag](pieces)
    count = pieces.number("<I")
    if tag == 0:
        return parse_json(pieces.take(count))
    if tag in _LISTS:
        return pieces.numbers(count, _LISTS[tag])
    if count > pieces.remaining:
        raise ValueError(f"a document should hold {count:,} entries and ends early")
    if tag == 1:
        return [_short(pieces) for _ in range(count)]
    if tag == 5:
        return {_short(pieces): _nested(pieces, depth + 1) for _ in range(count)}
    if tag == 6:
        keys = [_short(pieces) for _ in range(min(pieces.number("<I"), _MOST_LEAVES))]
        return [{key: _cell(pieces) for key in keys} for _ in range(count)]
    raise ValueError(f"a document has the unknown mark {tag}")


def _cell(pieces: Pieces) -> Any:
    return _CELLS[pieces.number("<B")](pieces)


_LISTS = {2: "<i8", 3: "<f8", 4: "?"}
_SCALARS: dict[int, Decode] = {
    7: _short,
    8: lambda pieces: pieces.number("<q"),
    9: lambda pieces: pieces.number("<d"),
    10: lambda pieces: pieces.number("<?"),
    11: lambda pieces: None,
}
_CELLS = {
    16: _SCALARS[11],
    17: _short,
    18: _SCALARS[8],
    19: _SCALARS[9],
    20: _SCALARS[10],
}
_DECODERS: dict[str, Decode] = {
    **dict.fromkeys(("bytes", "jpeg", "image", "file", "tifffile"), Pieces.rest),
    **dict.fromkeys(("str", "text"), lambda pieces: pieces.rest().decode("utf-8")),
    "jpeg_array": sized_list,
    "pil": sized_image,
    "int": lambda pieces: pieces.number("<q"),
    "float": lambda pieces: pieces.number("<d"),
    "bool": lambda pieces: pieces.number("<?"),
    "numpy": lambda pieces: _array(pieces, _OF_NUMPY, "<"),
    "tensor": lambda pieces: _array(pieces, _OF_TORCH, ">"),
    "json": _document,
}
