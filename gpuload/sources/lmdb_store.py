"""LMDB: one sample a key, as MessagePack or as ml-pyxis writes arrays; never a pickle (extra `sources`)."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpuload.errors import SourceError
from gpuload.sources.columns import USUAL, find_column
from gpuload.sources.named_arrays import image_array, plain
from gpuload.sources.samples import FileSource
from gpuload.sources.spool import Sample

_PICKLE = b"\x80"  # and a protocol number: the first byte of every binary pickle
_NDARRAY, _STR = 2, 1  # ml-pyxis's types


class LmdbSource(FileSource):
    """A folder with `data.mdb`, in the order of its keys.

    A value is a MessagePack map of what belongs to the sample, such as {"image": bytes, "label": 3}; a value of the map
    may itself be packed, and arrays may be maps of dtype, shape and data, as ml-pyxis has both. Or a value is an
    encoded image alone, and the key its name. columns: the names in the map by what they hold, where they are not the
    usual.
    """

    needs = ("lmdb", "msgpack")

    def samples(self) -> Iterator[Sample]:
        import lmdb
        import msgpack

        try:
            store = lmdb.open(str(self.path), readonly=True, lock=False, max_dbs=2, subdir=self.path.is_dir())
        except lmdb.Error as error:
            raise SourceError(
                f"{self.path}: cannot be opened as LMDB ({error}). Give the folder with data.mdb, or that file"
            ) from None
        try:
            with store:
                try:
                    table = store.open_db(b"data_db", create=False)  # ml-pyxis's name
                except lmdb.Error:
                    table = None
                with store.begin(db=table) as transaction:
                    for key, value in transaction.cursor():
                        yield self._sample(msgpack, bytes(key), bytes(value))
        except lmdb.Error as error:
            raise SourceError(f"{self.path}: is damaged ({error}). Copy it again, or write it again") from None

    def _sample(self, msgpack: Any, key: bytes, value: bytes) -> Sample:
        name = key.decode("utf-8", "replace")
        if value[:1] == _PICKLE and len(value) > 1 and value[1] in range(2, 6):
            raise SourceError(
                f"{self.path}: key {name!r} holds a pickle, which could run anything and is never opened. Write the "
                "samples as MessagePack, or hand them to gpuload.pack() from the program that trusts them"
            )
        if value[:1] in (b"\xff", b"\x89", b"R", b"G", b"B", b"I"):  # JPEG, PNG, WebP, GIF, BMP, TIFF; no map
            return {"image": value, "name": f"{name}."}
        try:
            found = msgpack.unpackb(value, raw=False)
            if not isinstance(found, dict):
                raise ValueError("no map")
            found = {str(k): self._value(msgpack, v) for k, v in found.items()}
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, msgpack.UnpackException) as error:
            raise SourceError(
                f"{self.path}: key {name!r} holds neither an image nor a MessagePack map ({error}). "
                "Hand such samples to gpuload.pack() as dicts"
            ) from None
        return self._named(name, found)

    def _named(self, key: str, found: dict[str, Any]) -> Sample:
        sample: dict[str, Any] = {"name": f"{key}."}
        for role in self.columns:
            find_column(f"{self.path}: key {key!r}", list(found), role, self.columns)
        roles = {column: role for role, names in self.columns.items() for column in names}
        for role, usual in (("image", USUAL["image"]), ("label", ("class", "y"))):
            if role not in self.columns and role not in found:
                roles.update({name: role for name in found if name.lower() in usual})
        for column, value in found.items():
            role = roles.get(column, column)
            if isinstance(value, np.ndarray):
                value = image_array(value, None if self.as_stored else 1.0) if role == "image" else plain(value[()])
            sample[role] = value
        if len(self.columns.get("target", ())) > 1:
            sample["target"] = [float(plain(found[column])) for column in self.columns["target"]]
        if "image" not in sample:
            raise SourceError(
                f"{self.path}: key {key!r} has {sorted(found)}; which is the image? Give --column image=NAME"
            )
        return sample

    def _value(self, msgpack: Any, value: Any) -> Any:
        if isinstance(value, bytes) and value[:1] and value[0] in range(0x80, 0x90):  # a packed map, as ml-pyxis has it
            value = msgpack.unpackb(value, raw=False, strict_map_key=False)
        if isinstance(value, dict) and {"type", "data"} <= {_text(k) for k in value}:
            parts = {_text(k): v for k, v in value.items()}
            if parts["type"] == _NDARRAY:
                dtype = np.dtype(_text(parts["dtype"]))
                if dtype.hasobject:
                    raise ValueError("an array of Python objects")
                return np.frombuffer(parts["data"], dtype).reshape(parts["shape"])
            if parts["type"] == _STR:
                return _text(parts["data"])
        return value


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
