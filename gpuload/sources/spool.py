"""Samples on their way into a listing: images in one file, everything else as Arrow rows in another.

Samples that can only be had one after the other go through it once, in the packer's scratch folder; workers then take
images from it in any order. So a generator is asked once, a compressed chunk is unpacked once, and a resumed run asks
for nothing again.
"""

import io
import json
import os
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from gpuload.errors import SourceError
from gpuload.fields.registry import KINDS
from gpuload.sources.listing import BYTES, NAME, WHERE
from gpuload.sources.named_arrays import image_array
from gpuload.sources.sample_checks import SampleChecks
from gpuload.types import Array

Sample = Mapping[str, Any]

_BLOBS, _ROWS, _ABOUT = "samples.blobs", "samples.rows", "samples.json"
_NPY = b"\x93NUMPY"
_BATCH_ROWS = 4096
_RESERVED = (NAME, BYTES, WHERE, "image")

# Name and detail (see `Kind.detail`) of the kind of each field.
FieldKinds = dict[str, tuple[str, str]]


def fill_spool(
    folder: Path, title: str, samples: Callable[[], Iterable[Sample]], takes_paths: bool, as_stored: bool = False
) -> None:
    """Puts samples into the spool of a folder, unless an earlier run has done so.

    takes_paths: whether an image or a mask may be the path of a file, as a program may give it; a file of somebody else
        could name any.
    as_stored: see `Source`.

    Raises:
        SourceError: there is no sample, or one has other keys than the first.
    """
    if (folder / _ABOUT).exists():
        return
    with (folder / _BLOBS).open("wb") as blobs, pa.OSFile(str(folder / _ROWS), "wb") as rows:
        found = samples()
        try:
            kinds = _Spool(title, blobs, rows, takes_paths, as_stored).fill(found)
        finally:
            if isinstance(found, Generator):  # closes its file now, and not when the error is forgotten
                found.close()
    (folder / _ABOUT).write_text(json.dumps(kinds))


def read_rows(folder: Path) -> tuple[pa.Table, FieldKinds]:
    """A row for each sample in the spool of a folder, and the kind of each field."""
    kinds = {name: (kind, detail) for name, (kind, detail) in json.loads((folder / _ABOUT).read_text()).items()}
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

    def __init__(self, title: str, blobs: BinaryIO, rows: pa.NativeFile, takes_paths: bool, as_stored: bool) -> None:
        self.title = title
        self.takes_paths, self.as_stored = takes_paths, as_stored
        self.blobs = blobs
        self.rows = rows
        self.offset = 0

    def fill(self, samples: Iterable[Sample]) -> FieldKinds:
        """The kind of each field except the image."""
        kinds: FieldKinds = {}
        batch: list[dict[str, Any]] = []
        schema = writer = None
        checks = SampleChecks(self.title)
        for number, sample in enumerate(samples):
            checks.check(number, sample)
            found = _kinds(sample)
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
            if found != kinds:
                differing = sorted({*found.items()} ^ {*kinds.items()})
                raise SourceError(
                    f"{self.title}: sample {number} has {_described(found)}, those before have {_described(kinds)} "
                    f"(see {differing[0][0]!r}). Give every sample the same fields"
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

    def _row(self, number: int, sample: Sample, kinds: FieldKinds) -> dict[str, Any]:
        where, size = self._put(sample["image"], number, "image")
        name = sample.get(NAME)
        row: dict[str, Any] = {NAME: f"{number:08d}." if name is None else str(name), BYTES: size, WHERE: where}
        for name, (kind, _) in kinds.items():
            if KINDS[kind].stays_in_shard:
                row[name], _ = self._put(sample[name], number, kind)
            else:
                try:
                    row[name] = json.dumps(KINDS[kind].pick(name, sample), ensure_ascii=False, default=_plain)
                except (TypeError, ValueError) as error:
                    raise SourceError(
                        f"{self.title}: sample {number}: {name!r} cannot be stored ({error}). Give numbers, texts, "
                        "arrays, or lists and dicts of these"
                    ) from None
        return row

    def _put(self, value: Any, number: int, kind: str) -> tuple[str, int]:
        """Where a value lies in the spool, and the size of the image as it is packed."""
        if isinstance(value, (str, os.PathLike)):
            if not self.takes_paths:
                raise SourceError(
                    f"{self.title}: sample {number} has a text for its {kind}, expected bytes or an array. Paths are "
                    "taken from programs and tables (--labels) alone"
                )
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
                kept = ("RGB", "L", "RGBA", "I;16", "F") if self.as_stored else ("RGB", "L")
                value = np.asarray(value if kind != "image" or value.mode in kept else value.convert("RGB"))
            try:
                array = np.asarray(value)
            except (ValueError, TypeError, OverflowError) as error:  # such as lists within lists, 65 deep
                raise SourceError(
                    f"{self.title}: sample {number}: its {kind} is no array ({error}). Give numbers"
                ) from None
            if kind == "image":
                array = image_array(array, None if self.as_stored else 1.0)
            if array.dtype.hasobject:
                raise SourceError(f"{self.title}: sample {number} has a {kind} of Python objects. Give numbers")
            file = io.BytesIO()
            np.save(file, np.ascontiguousarray(array), allow_pickle=False)
            blob = file.getvalue()
        where = f"{self.offset}:{len(blob)}"
        self.blobs.write(blob)
        self.offset += len(blob)
        return where, len(blob)


def _kinds(sample: Sample) -> FieldKinds:
    """The kind of each field of a sample: by its key, else the first kind that claims its value."""
    found: FieldKinds = {}
    companions: set[str] = set()
    for name, value in sample.items():
        if name not in _RESERVED:
            by_key = [kind for kind in KINDS.values() if name in kind.keys]
            kind = (by_key or [kind for kind in KINDS.values() if kind.claims(value)])[0]
            found[name] = kind.name, kind.detail(value)
            companions.update(kind.companions(name))
    return {name: kind for name, kind in found.items() if name not in companions}


def _described(kinds: FieldKinds) -> dict[str, str]:
    return {name: f"{kind} {detail}".strip() for name, (kind, detail) in sorted(kinds.items())}


def _plain(value: Any) -> Any:
    """What JSON can hold, out of NumPy's arrays and numbers."""
    if not hasattr(value, "tolist"):
        raise TypeError(f"it holds a {type(value).__name__}")
    return value.tolist()
