"""LMDB: one sample a key, as MessagePack or as ml-pyxis writes arrays; never a pickle (extra `sources`)."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpuload.errors import SourceError
from gpuload.sources.columns import Table
from gpuload.sources.files import Files, Folder, Told
from gpuload.sources.named_arrays import plain
from gpuload.sources.rows import LocalSource, Row

_PICKLE = b"\x80"  # and a protocol number: the first byte of every binary pickle
_NDARRAY, _STR = 2, 1  # ml-pyxis's types
_IMAGES = (b"\xff", b"\x89", b"R", b"G", b"B", b"I")  # JPEG, PNG, WebP, GIF, BMP, TIFF; no map begins so


class LmdbSource(LocalSource):
    """A folder with `data.mdb`, in the order of its keys.

    A value is a MessagePack map of what belongs to the sample, such as {"image": bytes, "label": 3}; a value of the map
    may itself be packed, and arrays may be maps of dtype, shape and data, as ml-pyxis has both. Or a value is an
    encoded image alone, and the key its name. columns: the names in the map by what they hold, where they are not the
    usual.
    """

    needs = ("lmdb", "msgpack")
    spools = True
    takes_columns = True
    needs_process = True

    @classmethod
    def fits(cls, files: Files) -> bool:
        return isinstance(files, Folder) and (files.path / "data.mdb").exists()

    def rows(self, told: Told) -> Iterator[Row]:
        import lmdb
        import msgpack

        try:
            store = lmdb.open(str(self._local), readonly=True, lock=False, max_dbs=2, subdir=self._local.is_dir())
        except lmdb.Error as error:
            raise SourceError(
                f"{self._local}: cannot be opened as LMDB ({error}). Give the folder with data.mdb, or that file"
            ) from None
        try:
            with store:
                try:
                    table = store.open_db(b"data_db", create=False)  # ml-pyxis's name
                except lmdb.Error:
                    table = None
                with store.begin(db=table) as transaction:
                    for key, value in transaction.cursor():
                        yield self._sample(msgpack, bytes(key), bytes(value), told)
        except lmdb.Error as error:
            raise SourceError(f"{self._local}: is damaged ({error}). Copy it again, or write it again") from None

    def _sample(self, msgpack: Any, key: bytes, value: bytes, told: Told) -> Row:
        name = key.decode("utf-8", "replace")
        title = f"{self._local}: key {name!r}"
        if value[:1] == _PICKLE and len(value) > 1 and value[1] in range(2, 6):
            raise SourceError(
                f"{title} holds a pickle, which could run anything and is never opened. Write the samples as "
                "MessagePack, or hand them to gpuload.pack() from the program that trusts them"
            )
        if value[:1] in _IMAGES:
            return {"image": value, "name": f"{name}."}
        try:
            entries = msgpack.unpackb(value, raw=False)
            if not isinstance(entries, dict):
                raise ValueError("no map")
            row = {str(column): _value(msgpack, entry) for column, entry in entries.items()}
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, msgpack.UnpackException) as error:
            raise SourceError(
                f"{title} holds neither an image nor a MessagePack map ({error}). Hand such samples to gpuload.pack() "
                "as dicts"
            ) from None
        usual = {**self.columns, **_usual(row)} if "label" not in self.columns else self.columns
        (sample,) = Table(list(row), [row]).samples(title, usual, told)
        return {**sample, "name": f"{name}."}


def _usual(row: Row) -> dict[str, tuple[str]]:
    """The label of a sample: "target" is none, as ml-pyxis calls numbers so."""
    names = [name for name in row if name.lower() in ("class", "y")]
    return {"label": (names[0],)} if names and "label" not in row else {}


def _value(msgpack: Any, value: Any) -> Any:
    if isinstance(value, bytes) and value[:1] and value[0] in range(0x80, 0x90):  # a packed map, as ml-pyxis has it
        value = msgpack.unpackb(value, raw=False, strict_map_key=False)
    if isinstance(value, dict) and {"type", "data"} <= {_text(key) for key in value}:
        parts = {_text(key): part for key, part in value.items()}
        if parts["type"] == _NDARRAY:
            dtype = np.dtype(_text(parts["dtype"]))
            if dtype.hasobject:
                raise ValueError("an array of Python objects")
            return plain(np.frombuffer(parts["data"], dtype).reshape(parts["shape"])[()])
        if parts["type"] == _STR:
            return _text(parts["data"])
    return value


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
