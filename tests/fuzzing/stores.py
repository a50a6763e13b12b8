"""Files that hold whole samples: LMDB, HDF5, Parquet."""

import json
import pickle
import struct
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import lmdb
import msgpack
import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import parquet

from fuzzing.mutate import mutate_bytes
from fuzzing.pictures import encoded, small_jpegs
from fuzzing.sources import NESTED, SourceTarget
from gpuload.sources import Source, open_source


def _map(number: int) -> dict[str, Any]:
    jpg = encoded(Image.new("RGB", (9, 8)), "JPEG")
    array = {"type": 2, "dtype": "uint8", "shape": [4, 3, 3], "data": bytes(36)}
    return {
        "image": msgpack.packb(array) if number else jpg,
        "label": number,
        "name": {"type": 1, "data": b"x"},
    }


class LmdbValueTarget(SourceTarget):
    """Values in an LMDB: MessagePack maps, arrays in them, encoded images, pickles."""

    name = "lmdb-values"
    file = "value"
    tokens = (
        *map(
            msgpack.packb,
            (
                None,
                True,
                "",
                [],
                {},
                [[]],
                -0.0,
                float("nan"),
                2**64 - 1,
                -(2**63),
                "../x",
                b"x",
            ),
        ),
        b"O",
        b"|O8",
        b"M8[D]",
        b"uint8",
        b"\xdf\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 600,
        b"\x80\x04\x95",
        b"\xd6\xff\0\0\0\0",
    )

    def __init__(self) -> None:
        super().__init__()
        self._store = self.folder / "store.lmdb"

    def open(self, path: Path) -> Source:
        with (
            lmdb.open(str(self._store), map_size=1 << 24) as store,
            store.begin(write=True) as transaction,
        ):
            transaction.put(b"0", path.read_bytes() or b"x")
        return open_source(self._store)

    def seeds(self) -> list[bytes]:
        maps: list[dict[str, Any]] = [_map(0), _map(1), {"x": _map(1)["image"], "y": 3}]
        return [
            *(msgpack.packb(entries) for entries in maps),
            small_jpegs()[0],
            b"\x80\x04K\x01.",
        ]


class PickledValueTarget(LmdbValueTarget):
    """Pickled values in an LMDB, which are read without running them."""

    name = "lmdb-pickles"
    tokens = (
        *(pickle.dumps(value) for value in (None, [], {}, (), b"x", "../x", 2**70, -0.0)),
        b"cos\nsystem\n",
        b"\x8c\x08builtins\x8c\x04eval\x93",
        b"(lp0\n",
        b"h\x00",
        b"\x94",
        b"\x80\x05\x95\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"R.",
    )

    def seeds(self) -> list[bytes]:
        jpg = encoded(Image.new("RGB", (9, 8)), "JPEG")
        array = np.zeros((4, 3, 3), np.uint8)
        rows = [
            {"image": jpg, "label": 1},
            (jpg, 2),
            [array, np.int64(3)],
            {"image": array, "caption": "x", "box": (1, 2.5)},
        ]
        return [pickle.dumps(row, protocol) for row in rows for protocol in (2, 4, 5)]


class LmdbTarget(SourceTarget):
    """`data.mdb`, the file that LMDB maps into memory and trusts."""

    name = "lmdb"
    file = "store.lmdb/data.mdb"
    processes = True

    def seeds(self) -> list[bytes]:
        folder = self.folder / "seed.lmdb"
        with (
            lmdb.open(str(folder), map_size=1 << 20) as store,
            store.begin(write=True) as transaction,
        ):
            for number in range(30):
                transaction.put(str(number).encode(), msgpack.packb(_map(number % 2)))
        data = (folder / "data.mdb").read_bytes()
        return [data.rstrip(b"\0") + bytes(-len(data.rstrip(b"\0")) % 4096)]


class Hdf5Target(SourceTarget):
    """HDF5 files: the library's own structures, and what their arrays are said to hold."""

    name = "hdf5"
    file = "images.h5"
    processes = True
    tokens = (
        b"OHDR",
        b"TREE",
        b"SNOD",
        b"HEAP",
        b"GCOL",
        b"FRHP",
        bytes(8),
        b"\xff" * 8,
    )

    def seeds(self) -> list[bytes]:
        import h5py

        inputs = []
        for number, version in enumerate(("earliest", "latest")):
            path = self.folder / f"seed-{version}.h5"
            with h5py.File(path, "w", libver=version) as file:
                file.create_dataset(
                    "images",
                    data=np.zeros((3, 4, 5, 3), np.uint8),
                    chunks=(1, 4, 5, 3),
                    compression=9,
                )
                file["labels"] = np.arange(3)
                file["names"] = np.array([b"a", b"b", b"c"])
                if number:
                    file["table"] = np.zeros(3, [("x", "<f4"), ("z", "<f4")])
            inputs.append(path.read_bytes())
        return inputs


class ArrowTarget(SourceTarget):
    """Files of Arrow's formats for files and streams."""

    name = "arrow"
    file = "data.arrow"
    processes = True
    tokens = (b"ARROW1\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", bytes(8), *NESTED)

    def seeds(self) -> list[bytes]:
        jpg = encoded(Image.new("RGB", (9, 8)), "JPEG")
        values = {
            "image": [jpg] * 3,
            "label": [0, 1, 0],
            "caption": ["a", "b", "c"],
            "boxes": [[[1.0, 2.0, 3.0, 4.0]], [], []],
        }
        table = pa.table(values)
        inputs = []
        for new in (pa.ipc.new_file, pa.ipc.new_stream):
            sink = pa.BufferOutputStream()
            with new(sink, table.schema) as writer:
                writer.write_table(table, 2)
            inputs.append(bytes(sink.getvalue()))
        return inputs


class DuckDbTarget(SourceTarget):
    """Files of DuckDB: blocks, checked by its own sums, and what its catalogue says."""

    name = "duckdb"
    file = "data.duckdb"
    processes = True
    tokens = (b"DUCK", bytes(8), b"\xff" * 8)

    def seeds(self) -> list[bytes]:
        import duckdb

        path = self.folder / "seed.duckdb"
        jpg = encoded(Image.new("RGB", (9, 8)), "JPEG")
        with duckdb.connect(str(path)) as connection:
            connection.execute("CREATE TABLE samples (image BLOB, label INTEGER, caption VARCHAR)")
            connection.executemany("INSERT INTO samples VALUES (?, ?, ?)", [(jpg, number, "x") for number in range(3)])
        return [path.read_bytes()]


class ParquetTarget(SourceTarget):
    """Parquet files of images, as Hugging Face writes them, with its metadata."""

    name = "parquet"
    file = "data.parquet"
    processes = True
    tokens = (b"PAR1", *NESTED, b"\x15\xfe\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x0f")

    def seeds(self) -> list[bytes]:
        jpg = encoded(Image.new("RGB", (9, 8)), "JPEG")
        table = pa.table(
            {
                "image": [{"bytes": jpg, "path": f"{n}.jpg"} for n in range(3)],
                "label": [0, 1, 0],
                "caption": ["a", "b", "c"],
            }
        )
        about = {"info": {"features": {"label": {"names": ["ant", "bee"]}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(about)})
        inputs = []
        for options in (
            {"compression": "snappy"},
            {"compression": "none", "use_dictionary": False},
        ):
            sink = pa.BufferOutputStream()
            parquet.write_table(table, sink, **options)
            inputs.append(bytes(sink.getvalue()))
        return inputs

    def mutate(self, rng: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
        if rng.random() < 0.5:
            return mutate_bytes(rng, data, seeds, self.tokens)
        # Of the footer, where the structure is.
        size = struct.unpack("<I", data[-8:-4])[0]
        changed = mutate_bytes(rng, data[-8 - size : -8], seeds, self.tokens)
        return data[: -8 - size] + changed + struct.pack("<I", len(changed)) + b"PAR1"
