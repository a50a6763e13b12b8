"""The base of all stores: finds them in a place, and makes samples of the rows of their columns."""

import io
import json
import posixpath
import struct
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from PIL import Image

from gpuload.errors import DecodeError, SourceError, some_of
from gpuload.fields.cells import is_integer
from gpuload.fields.registry import all_kinds
from gpuload.machine.untrusted import parse_json
from gpuload.sources import listing
from gpuload.sources.columns import USUAL, Features, Table
from gpuload.sources.files import (
    Files,
    Findings,
    Folder,
    OneFile,
    extension_of,
    is_image,
    readable,
)
from gpuload.sources.listing import SPLIT, split_called
from gpuload.sources.source import (
    CERTAIN,
    LAYOUT,
    ColumnOptions,
    Names,
    Row,
    Sight,
    Source,
    SourceOptions,
)

# JPEG, PNG, WebP, GIF, BMP, TIFF, JPEG 2000, AVIF and HEIC.
_PICTURES = (
    b"\xff\xd8\xff",
    b"\x89PNG\r\n",
    b"RIFF",
    b"GIF8",
    b"BM",
    b"II*\0",
    b"MM\0*",
    b"\0\0\0\x0cjP",
    b"\xff\x4f\xff\x51",
)
_BOXED = b"ftyp"  # from byte 4
_MOST_ENTRIES = 1_000  # of a folder that are looked at
_CLASS_NAMES = ("cls", "category", "class_id", "label_id")
INDEX = "index.json"  # of the stores of MosaicML and Lightning
_JSON = "json"  # the kind that takes any value


class StoreSource(Source):
    """Samples in the records of stores: of one, or of all in a folder, or in its folders that are named after splits.

    Names of stores, or of the folders around them, give the splits (see `splits`). The column of images is the one with
    a usual name, or the only one that holds pictures; so is that of labels. Without one, the first picture of a column
    of lists of pictures is the image.

    form: what a store is, for messages. faults: what its reader raises besides of what all raise.
    """

    Options: ClassVar[type[SourceOptions]] = ColumnOptions
    options: ColumnOptions
    needs_process = True
    copies_folders = True
    form: ClassVar[str] = ""
    faults: ClassVar[tuple[type[Exception], ...]] = ()

    @classmethod
    def is_file(cls, files: Files, name: str) -> bool:
        """Whether a file in a container is a store of this kind: by default by its suffix."""
        return f".{extension_of(name)}" in cls.suffixes

    @classmethod
    def is_folder(cls, files: Files, name: str) -> bool:
        """Whether a folder in a container is a store of this kind; "" is the container itself."""
        return False

    @abstractmethod
    def table(self, path: Path, findings: Findings) -> Table:
        """The rows of a store, with their columns.

        Raises:
            Exception: it is damaged: OSError, ValueError, DecodeError, or one of `faults`.
        """

    @classmethod
    def recognise(cls, files: Files) -> Sight | None:
        names = cls.stores_in(files)
        if not names and files.suffix in cls.suffixes:
            return Sight(CERTAIN, f"its name ends in {files.suffix}")
        if not names:
            return None
        is_one = names == [""] or cls.is_folder(files, names[0])
        return Sight(CERTAIN if is_one else LAYOUT, f"{names[0] or 'it'} is {cls.form}")

    @classmethod
    def stores_in(cls, files: Files) -> list[str]:
        """The stores in a container: itself, or those at its first level, or in its folders that are named after
        splits, or the same in its folder `data`."""
        if isinstance(files, OneFile):
            return [""] if cls.is_file(files, files.path.name) else []
        if cls.is_folder(files, ""):
            return [""]
        for place in ("", "data"):
            stores = cls._stores_at(files, [place])
            if stores:
                return stores
            splits = [
                posixpath.join(place, name)
                for name in files.folders(place)
                if split_called(name)
            ]
            stores = cls._stores_at(files, splits)
            if stores:
                return stores
        return []

    @classmethod
    def _stores_at(cls, files: Files, places: Iterable[str]) -> list[str]:
        stores = []
        for place in places:
            folders, names = files.scan(place)
            if any(map(is_image, names[:8])):
                continue
            inner = sorted(folders)[:_MOST_ENTRIES]
            paths = [posixpath.join(place, name) for name in inner]
            stores += [path for path in paths if cls.is_folder(files, path)]
            paths = [posixpath.join(place, name) for name in sorted(names)]
            stores += [path for path in paths if cls.is_file(files, path)]
        return stores

    def rows(self, findings: Findings) -> Iterator[Row]:
        names = self._names()
        splits = self.splits_of(names, findings)
        for number, name in enumerate(names):
            path = self._local / name if name else self._local
            faults = (
                ValueError,
                TypeError,
                LookupError,
                struct.error,
                pa.ArrowException,
            )
            with readable(path, self.form, *faults, *self.faults):
                for sample in self._samples(path, findings):
                    yield {**sample, SPLIT: splits[number]} if splits else sample

    def _names(self) -> list[str]:
        """The stores here, relative to the path."""
        if self._local.is_file():
            return [""]
        if not self._local.exists():
            paths = self.matching()
            if not paths:
                raise SourceError(
                    f"{self._local}: no such file or folder. Give {self.form}"
                )
            self._local = paths[0].parent
            return [path.relative_to(self._local).as_posix() for path in paths]
        names = self.stores_in(Folder(self._local))
        if not names:
            fault = f"is not {self.form}, and holds none"
            if self.suffixes:
                fault = f"holds no {self.suffixes[0]}"
            raise SourceError(
                f"{self._local}: {fault}. Give a file, or the folder that holds some"
            )
        return names

    def _samples(self, path: Path, findings: Findings) -> Iterator[Row]:
        table = self.table(path, findings)
        rows = iter(table.rows)
        first = next(rows, None)
        if first is None:
            return
        if self.options.images_alone:
            findings.images_alone = True
        columns = {**meant(first, table.features), **self.options.columns}
        used = {name for names in columns.values() for name in names}
        dropped = [
            name for name in first if not (name in used or _is_packed(first[name]))
        ]
        if dropped:
            findings.note(
                f"columns that are not packed, since no field holds such values: {some_of(dropped)}"
            )
        plain = (
            {name: value for name, value in row.items() if name not in dropped}
            for row in chain([first], rows)
        )
        names = [name for name in first if name not in dropped]
        yield from table._replace(names=names, rows=plain).samples(
            str(path), columns, findings
        )


def meant(row: Row, features: Features) -> dict[str, Names]:
    """The columns of the image and the label by their values, where usual names do not tell.

    Args:
        row: The first of a store.
        features: What is known of its columns.
    """
    columns = dict[str, Names]()
    image = _image_column(row)
    if image is not None:
        columns["image"] = (image,)
    is_told = any(name.strip().lower() in USUAL["label"] for name in row)
    label = None if is_told or features.single else _label_column(row)
    if label is not None:
        columns["label"] = (label,)
    return columns


def _image_column(row: Row) -> str | None:
    """The only column with a picture, or the one of several with the most usual name."""
    pictures = [
        name for name, value in row.items() if is_picture(value) or _are_pixels(value)
    ]
    if len(pictures) == 1:
        return pictures[0]
    usual = {name.strip().lower(): name for name in reversed(pictures)}
    return next((usual[name] for name in USUAL["image"] if name in usual), None)


def _label_column(row: Row) -> str | None:
    """The only column of whole numbers that is called as a class, or the one beside the image."""
    numbers = [name for name, value in row.items() if is_integer(value)]
    named = [name for name in numbers if name.lower() in _CLASS_NAMES]
    if len(row.keys() - {listing.NAME}) == 2:
        named = named or numbers  # an image and its class
    return named[0] if len(named) == 1 else None


def _are_pictures(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and all(map(is_picture, values))


def is_picture(value: Any) -> bool:
    """Whether a value is an image: encoded, of Pillow, or of Hugging Face."""
    if isinstance(value, Mapping):
        return set(value) == {"bytes", "path"}
    if isinstance(value, bytes):
        return value.startswith(_PICTURES) or value[4:8] == _BOXED
    return isinstance(value, Image.Image)


def _are_pixels(value: Any) -> bool:
    """Whether an array is one of gray values or colours."""
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8:
        return False
    return value.ndim == 3 and value.shape[2] in (1, 3, 4)


def size_of(image: bytes) -> tuple[int, int]:
    """Width and height of an encoded image, by its header, as it is stored.

    Raises:
        DecodeError: it has none that can be read.
    """
    try:
        with Image.open(io.BytesIO(image)) as opened:
            return opened.size
    except Exception as error:  # Pillow's parsers may raise anything
        raise DecodeError(f"its image has no size ({error})") from None


def _is_packed(value: Any) -> bool:
    """Whether a value can be stored; bytes and pictures can where a kind of fields takes them."""
    if is_picture(value) or _are_pictures(value):
        return True
    if next(kind for kind in all_kinds().values() if kind.claims(value)).name != _JSON:
        return True
    try:
        json.dumps(value, default=lambda array: array.tolist())
    except (TypeError, ValueError, AttributeError):
        return False
    return True


def index_of(files: Files, name: str) -> Mapping[str, Any]:
    """The JSON in the index of a folder of a container; {} where there is none."""
    try:
        index = parse_json(files.content(posixpath.join(name, INDEX)))
    except (OSError, ValueError, DecodeError):
        return {}
    return index if isinstance(index, Mapping) else {}
