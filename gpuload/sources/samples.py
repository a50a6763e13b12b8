"""Samples that come one after the other, as dicts: any Python iterable, and files that are best read from end to end.

They go once through a spool, a file of their images in the packer's scratch folder, from which workers take them in any
order. So a generator is asked once, a compressed chunk unpacked once, and a resumed run asks for nothing again.
"""

import io
import json
import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from gpuload.errors import SourceError
from gpuload.fields.field import Field
from gpuload.sources import values
from gpuload.sources.listing import BYTES, NAME, WHERE, Listing, Source, listing_schema
from gpuload.types import Array

Sample = Mapping[str, Any]

_BLOBS, _ROWS, _ABOUT = "samples.blobs", "samples.rows", "samples.json"
_NPY = b"\x93NUMPY"
_BATCH_ROWS = 4096
_RESERVED = (NAME, BYTES, WHERE, "boxes_class")


class SampleSource(Source):
    """A source that gives its samples one after the other, all with the same keys.

    "image": encoded bytes, the path of a file, a PIL image, or an array, uint8 or float in 0..1, (H, W), (H, W, C) or
        (C, H, W) with 1 or 3 channels.
    "label": a class, as number or name. "labels": a list of them. "boxes": (M, 4) x0 y0 x1 y1 in pixels, with
        "boxes_class". "mask": as an image, one number a pixel. "name": what the sample is called, else its number.
    Any other key by the type of its value: a float or a list of floats is a target, a str a caption, an array stays
        one, an int a target too, and a dict or another list JSON.
    """

    _folder = Path()

    @abstractmethod
    def samples(self) -> Iterator[Sample]:
        """Each sample, once."""

    @property
    def title(self) -> str:
        """What messages call the source."""
        return type(self).__name__

    def class_names(self, column: str) -> tuple[str, ...] | None:
        """Names of the class numbers in a column, where the source knows them."""
        return None

    def prepare(self, scratch: Path) -> None:
        """Fills the spool, unless an earlier run has filled it.

        Raises:
            SourceError: there is no sample, or one has other keys than the first.
        """
        self._folder = scratch
        if (scratch / _ABOUT).exists():
            return
        with (scratch / _BLOBS).open("wb") as blobs, pa.OSFile(str(scratch / _ROWS), "wb") as rows:
            kinds = _Spool(self.title, blobs, rows).fill(self.samples())
        (scratch / _ABOUT).write_text(json.dumps(kinds))

    def list_samples(self) -> Listing:
        kinds: dict[str, str] = json.loads((self._folder / _ABOUT).read_text())
        with pa.memory_map(str(self._folder / _ROWS), "r") as file:
            rows = pa.ipc.open_file(file).read_all()
        fields: list[Field] = []
        columns = [rows.column(NAME), rows.column(BYTES), rows.column(WHERE)]
        classes = None
        for name, kind in kinds.items():
            column = rows.column(name) if name in rows.column_names else None
            if kind == "class":
                found, classes = values.class_column(self.title, column, self.class_names(name))
                field, found = values.label_field(found)
            elif kind == "caption":
                assert column is not None
                field, found = values.caption_column(self.title, name, column.to_pylist())
            elif kind in ("mask", "array"):
                place = kind.split()[0]
                member = "mask.png" if name == "mask" else f"{name}.npy"
                field, found = Field(name, "mask" if place == "mask" else "array", member), [column]
            elif kind.startswith("array "):
                field, found = Field(name, "array", f"{name}.npy", dtype=kind.split()[1]), [column]
            else:
                assert column is not None
                field, found = self._parsed(name, kind, [json.loads(text) for text in column.to_pylist()])
            fields.append(field)
            columns += found
        schema = listing_schema(tuple(fields), where=True)
        columns = [pa.chunked_array([c]) if isinstance(c, pa.Array) else c for c in columns]
        return Listing(pa.table([c.cast(t) for c, t in zip(columns, schema.types, strict=True)], schema=schema),
                       tuple(fields), classes)  # fmt: skip

    def _parsed(self, name: str, kind: str, cells: list[Any]) -> tuple[Field, values.Columns]:
        if kind == "target":
            return values.target_column(self.title, name, cells)
        if kind == "labels":
            return values.labels_column(self.title, name, cells, self.class_names(name))
        if kind == "boxes":
            boxes, numbers = [cell[0] for cell in cells], [cell[1] for cell in cells]
            return values.boxes_column(self.title, name, boxes, numbers, self.class_names(name))
        return values.json_column(name, [json.dumps(cell, ensure_ascii=False) for cell in cells])

    def read(self, row: int, name: str, where: str = "") -> bytes | Array:
        offset, size = map(int, where.split(":"))
        descriptor = os.open(self._folder / _BLOBS, os.O_RDONLY | os.O_CLOEXEC)
        try:
            blob = os.pread(descriptor, size, offset)
        finally:
            os.close(descriptor)
        if not blob.startswith(_NPY):
            return blob
        array: Array = np.load(io.BytesIO(blob), allow_pickle=False)
        return array

    def read_field(self, field: Field, row: int, where: str) -> bytes | Array:
        return self.read(row, field.name, where)


class FileSource(SampleSource):
    """Samples that lie in one file or folder.

    columns: names in it by what they hold, such as {"image": ("photo",)}, where they are not the usual ones.
    """

    def __init__(self, path: str | Path, columns: Mapping[str, tuple[str, ...]] | None = None) -> None:
        self.path = Path(path)
        self.columns = dict(columns or {})

    @property
    def title(self) -> str:
        return str(self.path)


class IterableSource(SampleSource):
    """Any Python iterable of dicts; workers get its spool, never the iterable itself."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples: Iterable[Sample] | None = samples

    def samples(self) -> Iterator[Sample]:
        assert self._samples is not None
        return iter(self._samples)

    @property
    def title(self) -> str:
        return "samples"

    @property
    def identity(self) -> str:
        return "samples of a Python program"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_samples": None}


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


def image_array(array: Array, peak: float = 1.0) -> Array:
    """uint8 (H, W, C) out of uint8 or float in 0..peak, with the channels first or last.

    What cannot be an image is given back as it is: the packer then rejects it with its type and shape.
    """
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
        array = array.transpose(1, 2, 0)
    if array.dtype.kind == "f" and array.size and float(array.min()) >= 0 and float(array.max()) <= peak:
        array = np.round(array.astype(np.float64) * (255 / peak)).astype(np.uint8)
    return array


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
