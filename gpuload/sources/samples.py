"""Sources whose samples come one after the other, as dicts: any Python iterable, and files read from end to end."""

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpuload.fields.field import Field
from gpuload.sources import values
from gpuload.sources.listing import BYTES, NAME, WHERE, Listing, Source, listing_schema
from gpuload.sources.spool import Sample, fill_spool, read_blob, read_rows
from gpuload.types import Array


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
        fill_spool(scratch, self.title, self.samples)

    def list_samples(self) -> Listing:
        rows, kinds = read_rows(self._folder)
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
        return read_blob(self._folder, where)

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
