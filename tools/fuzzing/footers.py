"""What the index of a set at a URL is fetched by: its footer, and the file in the cache that holds its parts."""

import json
import os
import struct
from collections.abc import Sequence
from random import Random

import numpy as np
import pyarrow as pa

from fuzzing.mutate import VALUES, mutate_bytes
from fuzzing.target import Target, scratch_folder
from gpuload.disk.arrow_footer import batch_bounds, footer_bytes
from gpuload.store.partial_file import PartialFile


class FooterTarget(Target):
    """The end of an Arrow file of any size."""

    name = "index-footer"
    refusals = (LookupError,)
    tokens = (b"ARROW1", b"\x04\0", b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\xff" * 8, struct.pack("<q", 1 << 62))

    def seeds(self) -> list[bytes]:
        found = []
        for fields, batches in ((1, 1), (3, 4), (9, 40)):
            schema = pa.schema([(f"column {number}", pa.int64()) for number in range(fields)])
            sink = pa.BufferOutputStream()
            with pa.ipc.new_file(sink, schema) as writer:
                for rows in range(batches):
                    writer.write_batch(pa.record_batch([np.arange(rows)] * fields, schema=schema))
            found.append(bytes(sink.getvalue()))
        return found

    def mutate(self, rng: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
        length = footer_bytes(data)
        if length is None or length > len(data) or rng.random() < 0.1:
            return mutate_bytes(rng, data, seeds, self.tokens)
        footer = mutate_bytes(rng, data[-length:-10], seeds, self.tokens)
        return data[:-length] + footer + struct.pack("<i", len(footer)) + b"ARROW1"

    def run(self, data: bytes) -> None:
        length = footer_bytes(data) or 0
        for size in (len(data), len(data) - 8, len(data) + 8, 1 << 40):
            bounds = batch_bounds(data, size)
            if bounds is None:
                continue
            assert bounds.dtype == np.int64 and len(bounds) <= length // 24 + 1
            assert bounds[0] >= 0 and bounds[-1] <= size - length and (np.diff(bounds) > 0).all()
        if batch_bounds(data, len(data)) is None:
            raise LookupError


class PartialFileTarget(Target):
    """The file of the cache that holds parts of an object."""

    name = "index-parts"
    refusals = (ValueError,)

    def __init__(self) -> None:
        self._path = scratch_folder() / "index.partial"

    def seeds(self) -> list[bytes]:
        found = []
        for size, parts, tag in ((100, 3, '"tag"'), (0, 1, None)):
            assert PartialFile.create(self._path, size, parts, tag, [])
            found.append(self._path.read_bytes())
        return found

    def mutate(self, rng: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
        if rng.random() < 0.3:
            return mutate_bytes(rng, data, seeds)
        about = json.loads(data[-4096:])
        about[rng.choice(list(about))] = rng.choice((*VALUES, len(data), -1, 1 << 62, 0, 2))
        if rng.random() < 0.2:
            del about[rng.choice(list(about))]
        return data[:-4096] + json.dumps(about).encode()[:4096].ljust(4096)

    def run(self, data: bytes) -> None:
        self._path.unlink(missing_ok=True)
        self._path.write_bytes(data)
        file = PartialFile(self._path)
        numbers = np.arange(file.parts)
        assert file.count() + len(file.missing(numbers)) == file.parts
        assert file.size + file.parts < len(data) == os.fstat(file.handle).st_size
        file.has(file.parts - 1), file.is_checked
