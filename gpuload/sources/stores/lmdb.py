"""LMDB of every usual shape: images, MessagePack, Caffe's Datum, pickles of plain values, and keys of pairs."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gpuload.errors import SourceError
from gpuload.sources.columns import Table
from gpuload.sources.files import Files, Findings
from gpuload.sources.source import ColumnOptions, Row
from gpuload.sources.stores.pickles import PickleOptions, is_pickle, read_pickle
from gpuload.sources.stores.pieces import Pieces
from gpuload.sources.stores.protobuf import fields_of, signed
from gpuload.sources.stores.store import StoreSource, is_picture

_DATA = "data.mdb"
_SPECIAL = (b"__len__", b"__keys__", b"num-samples", b"num_samples", b"length")
_IMAGE_KEY = b"image-"
_LABEL_KEY = b"label-"
# Numbers of the fields of Caffe's Datum.
_CHANNELS, _HEIGHT, _WIDTH, _CONTENT, _LABEL, _FLOATS, _ENCODED = range(1, 8)
_BGR = 3


@dataclass(frozen=True)
class LmdbOptions(PickleOptions):
    """The options of LMDB.

    Args:
        channels: The order of the three channels of pixels in Caffe's Datum: "bgr", as Caffe's convert_imageset writes
            them, or "rgb".
    """

    channels: str = "bgr"


class LmdbSource(StoreSource):
    """A folder with `data.mdb`, or such a file, in the order of its keys.

    A value is an encoded image, a MessagePack map, a Datum of Caffe, or a pickle of a tuple or dict of plain values; or
    keys image-000000001 have images, and label-000000001 their texts. Keys are the names. columns: the names in the map
    by what they hold, where they are not the usual.
    """

    form = "LMDB of images, a folder with data.mdb or that file"
    suffixes = (".mdb", ".lmdb")
    Options: ClassVar[type[ColumnOptions]] = LmdbOptions
    options: LmdbOptions
    needs = ("lmdb", "msgpack")

    @classmethod
    def is_folder(cls, files: Files, name: str) -> bool:
        return _DATA in files.names(name)

    def table(self, path: Path, findings: Findings) -> Table:
        if self.options.channels not in ("bgr", "rgb"):
            raise SourceError(
                f"--option channels={self.options.channels}: expected bgr or rgb"
            )
        return Table((), self._rows(path, findings))

    def _rows(self, path: Path, findings: Findings) -> Iterator[Row]:
        import lmdb

        try:
            store = lmdb.open(
                str(path), readonly=True, lock=False, subdir=path.is_dir(), max_dbs=0
            )
            with store, store.begin() as transaction:
                yield from self._entries(transaction, findings)
        except lmdb.Error as error:  # any page may be damaged
            raise ValueError(str(error)) from None

    def _entries(self, transaction: Any, findings: Findings) -> Iterator[Row]:
        for key, value in transaction.cursor():
            if key in _SPECIAL or key.startswith(_LABEL_KEY):
                continue
            row = self._row(bytes(key), bytes(value), findings)
            if key.startswith(_IMAGE_KEY):
                label = transaction.get(_LABEL_KEY + key[len(_IMAGE_KEY) :])
                if label is not None:
                    row["caption"] = bytes(label).decode("utf-8")
            yield row

    def _row(self, key: bytes, value: bytes, findings: Findings) -> dict[str, Any]:
        name = key.decode("utf-8", "replace")
        try:
            row = _named(self._value(value, findings))
        except ValueError as error:
            raise ValueError(f"key {name!r} holds {error}") from None
        return {**row, "name": f"{name}."}

    def _value(self, value: bytes, findings: Findings) -> Any:
        if is_picture(value):
            return {"image": value}
        if is_pickle(value):
            return read_pickle(value, self.options.trust_pickles)
        if (datum := datum_of(value)) is not None:
            return self._of_datum(datum, findings)
        return _unpacked(value)

    def _of_datum(self, datum: dict[int, Any], findings: Findings) -> dict[str, Any]:
        row = dict[str, Any]()
        if _LABEL in datum:
            row["label"] = signed(datum[_LABEL])
        content = datum.get(_CONTENT, b"")
        if is_picture(content):
            return {"image": content, **row}
        shape = tuple(datum.get(side, 0) for side in (_CHANNELS, _HEIGHT, _WIDTH))
        pixels = Pieces(content, name="a Datum").array(np.uint8, shape)
        if shape[0] == _BGR and self.options.channels == "bgr":
            findings.note(
                "channels of its Datum are taken as blue, green, red, as Caffe writes them; --option channels=rgb"
            )
            pixels = pixels[::-1]
        return {"image": np.moveaxis(pixels, 0, -1), **row}


def datum_of(value: bytes) -> dict[int, Any] | None:
    """The fields of a Datum by their numbers; None if it is none."""
    try:
        fields = dict(fields_of(value))
    except ValueError:
        return None
    if not fields or not set(fields) <= set(range(_CHANNELS, _ENCODED + 1)):
        return None
    is_typed = isinstance(fields.get(_CONTENT), bytes) and all(
        isinstance(fields.get(number, 0), int)
        for number in (_CHANNELS, _HEIGHT, _WIDTH, _LABEL, _ENCODED)
    )
    return fields if is_typed else None


def _unpacked(value: bytes) -> Any:
    """A MessagePack value."""
    import msgpack

    errors = (
        ValueError,
        TypeError,
        OverflowError,
        RecursionError,
        msgpack.UnpackException,
    )
    try:
        return msgpack.unpackb(value, raw=False)
    except errors as error:
        fault = "no image, MessagePack map, Datum or pickle; gpuload.pack() takes such samples as dicts"
        raise ValueError(f"{fault} ({error})") from None


def _named(value: Any) -> dict[str, Any]:
    """The columns of a value: its keys, or the places in a list."""
    if isinstance(value, bytes | np.ndarray):
        return {"image": value}
    if isinstance(value, dict):
        return {str(name): entry for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return {str(place): entry for place, entry in enumerate(value)}
    if hasattr(value, "__dict__"):  # of a pickle that is trusted
        return dict(vars(value))
    raise ValueError(f"a {type(value).__name__}, and no image with what belongs to it")
