"""Samples on their way into a listing: images in one file, everything else as Arrow rows in another.

Samples that can only be had one after the other go through it once, in the packer's scratch folder; workers then take
images from it in any order. So a generator is asked once, a compressed chunk is unpacked once, and a resumed run asks
for nothing again.
"""

import io
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from gpuload.errors import SourceError
from gpuload.sources.listing import BYTES, NAME, WHERE
from gpuload.sources.named_arrays import image_array
from gpuload.types import Array

Sample = Mapping[str, Any]

_BLOBS, _ROWS, _ABOUT = "samples.blobs", "samples.rows", "samples.json"
_NPY = b"\x93NUMPY"
_BATCH_ROWS = 4096
_RESERVED = (NAME, BYTES, WHERE, "boxes_class")


def fill_spool(folder: Path, title: str, samples: Callable[[], Iterable[Sample]]) -> None:
    """Puts samples into the spool of a folder, unless an earlier run has done so.

    Raises:
        SourceError: there is no sample, or one has other keys than the first.
    """
    if (folder / _ABOUT).exists():
        return
    with (folder / _BLOBS).open("wb") as blobs, pa.OSFile(str(folder / _ROWS), "wb") as rows:
        kinds = _Spool(title, blobs, rows).fill(samples())
    (folder / _ABOUT).write_text(json.dumps(kinds))


def read_rows(folder: Path) -> tuple[pa.Table, dict[str, str]]:
    """A row for each sample in the spool of a folder, and the kind of each field."""
    kinds: dict[str, str] = json.loads((folder / _ABOUT).read_text())
    with pa.memory_map(str(folder / _ROWS), "r") as file:
        return pa.ipc.open_file(file).read_all(), kinds


def read_blob(folder: Path, where: str) -> bytes | Array:
    """An image, mask or array; `where` is what its row says."""
    offset, size = map(int, where.split(":"))
    descriptor = os.open(folder / _BLOBS, os.O_RDONLY | os.O_CLOEXEC)
    try:
        blob = os.pread(descriptor, size, offset)
    finally:
        os.close(descriptor)
    if not blob.startswith(_NPY):
        return blob
    array: Array = np.load(io.BytesIO(blob), allow_pickle=False)
    return array


class _Spool:
    """Writes samples: images, masks and arrays to one file, everything else as Arrow rows."""

    def __init__(self, title: str, blobs: BinaryIO, rows: pa.NativeFile) -> None:
        self.title = title
        self.blobs = blobs
        self.rows = rows
        self.offset = 0

    def fill(self, samples: Iterable[Sample]) -> dict[str, str]:
        """The kind of each field but the image."""
        kinds: dict[str, str] = {}
        batch: list[dict[str, Any]] = []
        schema = writer = None
        for number, sample in enumerate(samples):
            if "image" not in sample:
                raise SourceError(f"{self.title}: sample {number} has no 'image', only {sorted(sample)}. Give it one")
            found = {name: _kind(name, value) for name, value in sample.items() if name not in (*_RESERVED, "image")}
            if schema is None:
                kinds = found
                texts = [pa.field(name, pa.large_string()) for name in kinds]
                head = [
                    pa.field(NAME, pa.large_string()),
                    pa.field(BYTES, pa.int64()),
                    pa.field(WHERE, pa.large_string()),
                ]
                schema = pa.schema(head + texts)
                writer = pa.ipc.new_file(self.rows, schema)
            if {**found} != kinds:
                differing = sorted({*found.items()} ^ {*kinds.items()})
                raise SourceError(
                    f"{self.title}: sample {number} has {dict(sorted(found.items()))}, those before have "
                    f"{dict(sorted(kinds.items()))} (see {differing[0][0]!r}). Give every sample the same fields"
                )
            batch.append(self._row(number, sample, kinds))
            if len(batch) == _BATCH_ROWS and writer is not None:
                writer.write_batch(pa.RecordBatch.from_pylist(batch, schema))
                batch = []
        if writer is None or schema is None:
            raise SourceError(f"{self.title}: holds no sample. Give at least one")
        writer.write_batch(pa.RecordBatch.from_pylist(batch, schema))
        writer.close()
        self.blobs.flush()
        return kinds

    def _row(self, number: int, sample: Sample, kinds: Mapping[str, str]) -> dict[str, Any]:
        where, size = self._put(sample["image"], number, "image")
        row: dict[str, Any] = {NAME: str(sample.get(NAME, f"{number:08d}.")), BYTES: size, WHERE: where}
        for name, kind in kinds.items():
            value = sample[name]
            if kind in ("class", "caption"):
                row[name] = str(value)
            elif kind == "mask" or kind.startswith("array"):
                row[name], _ = self._put(value, number, kind)
            elif kind == "boxes":
                boxes = np.asarray(value, np.float64).reshape(-1, 4).tolist()
                row[name] = _json([boxes, list(sample.get("boxes_class", [0] * len(boxes)))])
            else:
                row[name] = _json(value)
        return row

    def _put(self, value: Any, number: int, kind: str) -> tuple[str, int]:
        """Where a value lies in the spool, and the size of the image as it is packed."""
        if isinstance(value, (str, os.PathLike)):
            try:
                blob = Path(value).read_bytes()
            except OSError as error:
                raise SourceError(
                    f"{self.title}: sample {number}: {value}: cannot be read ({error.strerror}). Correct its path"
                ) from None
        elif isinstance(value, (bytes, bytearray, memoryview)):
            blob = bytes(value)
        else:
            if hasattr(value, "getexif"):  # a PIL image
                value = np.asarray(value if kind == "mask" or value.mode in ("RGB", "L") else value.convert("RGB"))
            array = np.asarray(value)
            if kind == "image":
                array = image_array(array)
            if array.dtype.hasobject:
                raise SourceError(f"{self.title}: sample {number} has a {kind} of Python objects. Give numbers")
            file = io.BytesIO()
            np.save(file, np.ascontiguousarray(array), allow_pickle=False)
            blob = file.getvalue()
        where = f"{self.offset}:{len(blob)}"
        self.blobs.write(blob)
        self.offset += len(blob)
        return where, len(blob)


def _kind(name: str, value: Any) -> str:
    if name == "label":
        return "class"
    if name in ("labels", "boxes", "mask"):
        return name
    if isinstance(value, str):
        return "caption"
    if isinstance(value, np.ndarray) and value.ndim:
        return f"array {value.dtype.str}"
    if isinstance(value, (float, int, np.number)) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return "target"
    if isinstance(value, (list, tuple)) and value and all(isinstance(entry, (float, np.floating)) for entry in value):
        return "target"
    return "json"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=lambda entry: entry.tolist())
