"""Sources whose samples come one after the other, as dicts: any Python iterable, and files read from end to end."""

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from gpuload.errors import SourceError
from gpuload.fields.captions import CaptionKind
from gpuload.fields.field import Field
from gpuload.fields.registry import KINDS
from gpuload.installed import require
from gpuload.sources.copies import Copies
from gpuload.sources.field_columns import FieldColumns
from gpuload.sources.listing import BYTES, NAME, WHERE, Listing, Source, listing_schema
from gpuload.sources.splits import COLUMNS, SPLIT, splits_of_column
from gpuload.sources.spool import Sample, fill_spool, read_blob, read_rows
from gpuload.store.url import URL, as_location
from gpuload.types import Array


class SampleSource(Source):
    """A source that gives its samples one after the other, all with the same keys.

    "image": encoded bytes, the path of a file, a PIL image, or an array, uint8 or float in 0..1, (H, W), (H, W, C) or
        (C, H, W) with 1 or 3 channels.
    "label": a class, as number or name. "labels": a list of them. "boxes": (M, 4) x0 y0 x1 y1 in pixels, with
        "boxes_class". "keypoints": a list of instances, each of points x, y, visibility. "mask": as an image, a class
        number for each pixel. "name": what the sample is called, by default its number.
    "split": "train", "val" or "test", or another name of these (see `splits`); then the packer draws no splits.
    Any other key by the type of its value: a float or a list of floats is a target, a str a caption, an array stays
        one, an int a target too, and a dict or another list JSON.
    """

    columns: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    takes_paths = True  # for images and masks
    _folder = Path()
    _notes: Sequence[str] = ()

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

    def origin_of_splits(self) -> str:
        """What tells its splits apart where that is not a column, see `SourceSplits`."""
        return ""

    def prepare(self, scratch: Path) -> None:
        """Fills the spool, unless an earlier run has filled it.

        Raises:
            SourceError: there is no sample, or one has other keys than the first.
        """
        self._folder = scratch
        samples = self._images if self.images_alone else self.samples
        fill_spool(scratch, self.title, samples, self.takes_paths, self.as_stored)

    def _images(self) -> Iterator[Sample]:
        """The samples without fields, but with what may tell their splits."""
        kept = ("image", NAME, *COLUMNS)
        for sample in self.samples():
            yield {key: sample[key] for key in kept if key in sample and (key not in COLUMNS or self.own_splits)}

    def list_samples(self) -> Listing:
        rows, kinds = read_rows(self._folder)
        found = FieldColumns(self.title)
        own = None
        for name, (kind, detail) in kinds.items():
            cells = rows.column(name).to_pylist()
            values = cells if KINDS[kind].stays_in_shard else [json.loads(cell) for cell in cells]
            asked = name == SPLIT and SPLIT in self.columns
            if self.own_splits and own is None and (asked or (name in COLUMNS and kind == CaptionKind.name)):
                own = splits_of_column(self.title, name, values, asked, self.origin_of_splits())
                if own is not None:
                    continue
            if self.images_alone:
                continue
            found.add(kind, name, values, self.class_names(name), detail)
        schema = listing_schema(tuple(found.fields), where=True)
        columns = [rows.column(NAME), rows.column(BYTES), rows.column(WHERE), *found.columns]
        table = pa.table(columns, schema=schema)
        return Listing(table, tuple(found.fields), found.classes, (), tuple(self._notes), own)

    def read(self, row: int, name: str, where: str = "") -> bytes | Array:
        return read_blob(self._folder, where)

    def read_field(self, field: Field, row: int, where: str) -> bytes | Array:
        return self.read(row, field.name, where)


class FileSource(SampleSource):
    """Samples that lie in one file or folder.

    columns: names in it by what they hold, such as {"image": ("photo",)}, where they are not the usual ones.

    Raises:
        MissingPackageError: one of the packages that it needs cannot be used.
    """

    needs: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()  # of files that are read from a URL, too
    takes_paths = False
    needs_process = True

    def __init__(self, path: str | Path | URL, columns: Mapping[str, tuple[str, ...]] | None = None) -> None:
        require(str(path), *self.needs)
        where = as_location(path) if self.suffixes else path
        self.copies = Copies(where, self.suffixes) if isinstance(where, URL) else None
        self.path = Path(str(where))
        self.columns = dict(columns or {})

    @property
    def identity(self) -> str:
        given = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        copies = given.pop("copies")
        return self.describe(given if copies is None else {**given, "path": copies})

    def prepare(self, scratch: Path) -> None:
        if self.copies is None:
            return super().prepare(scratch)
        self.path = self.copies.fetch(scratch)
        try:
            super().prepare(scratch)
        except SourceError as error:
            raise SourceError(str(error).replace(str(scratch / "copies"), str(self.copies.root))) from None

    @property
    def title(self) -> str:
        return str(self.path if self.copies is None else self.copies.given)


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
