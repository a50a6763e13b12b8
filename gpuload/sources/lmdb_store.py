"""LMDB: one sample a key, as MessagePack; never a pickle (extra `sources`)."""

from collections.abc import Iterator
from typing import Any

from gpuload.errors import SourceError
from gpuload.sources.at_path import LocalSource
from gpuload.sources.columns import Table
from gpuload.sources.files import Files, Findings
from gpuload.sources.local_folder import Folder
from gpuload.sources.rows import Row

_PICKLE = b"\x80"  # and a protocol number: the first byte of every binary pickle
_IMAGES = (b"\xff", b"\x89", b"R", b"G", b"B", b"I")  # JPEG, PNG, WebP, GIF, BMP, TIFF; no map begins so


class LmdbSource(LocalSource):
    """A folder with `data.mdb`, in the order of its keys.

    A value is a MessagePack map of what belongs to the sample, such as {"image": bytes, "label": 3}, or an encoded
    image alone, and the key its name. columns: the names in the map by what they hold, where they are not the usual.
    """

    needs = ("lmdb", "msgpack")
    spools = True
    takes_columns = True
    needs_process = True

    @classmethod
    def fits(cls, files: Files) -> bool:
        return isinstance(files, Folder) and (files.path / "data.mdb").exists()

    def rows(self, findings: Findings) -> Iterator[Row]:
        import lmdb
        import msgpack

        try:
            store = lmdb.open(str(self._local), readonly=True, lock=False, subdir=self._local.is_dir())
        except lmdb.Error as error:
            raise SourceError(
                f"{self._local}: cannot be opened as LMDB ({error}). Give the folder with data.mdb, or that file"
            ) from None
        try:
            with store, store.begin() as transaction:
                for key, value in transaction.cursor():
                    yield self._sample(msgpack, bytes(key), bytes(value), findings)
        except lmdb.Error as error:
            raise SourceError(f"{self._local}: is damaged ({error}). Copy it again, or write it again") from None

    def _sample(self, msgpack: Any, key: bytes, value: bytes, findings: Findings) -> Row:
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
            row = {str(column): entry for column, entry in entries.items()}
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, msgpack.UnpackException) as error:
            raise SourceError(
                f"{title} holds neither an image nor a MessagePack map ({error}). Hand such samples to gpuload.pack() "
                "as dicts"
            ) from None
        (sample,) = Table(list(row), [row]).samples(title, self.columns, findings)
        return {**sample, "name": f"{name}."}
