"""Files in a zip archive, read without unpacking it to the disk."""

import os
import struct
import zipfile
import zlib
from functools import cached_property
from pathlib import Path
from typing import Any

from gpuload.errors import DecodeError
from gpuload.machine.untrusted import open_regular
from gpuload.sources.files import IMAGE_EXTENSIONS, Files, Names, Ref, Scan, extension_of, is_hidden, readable

MAX_MEMBER_BYTES = 1 << 30  # Pillow's largest image has 0.5 GB of pixels
_MOST_CHARACTERS = 4096  # of a name, as of a path of Linux: folders take memory by the square of it
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_LOCAL_HEADER = struct.Struct("<26xHH")  # the lengths of the name and of what else is before the data (4.3.7)


class ZipArchive(Files):
    """A zip archive (APPNOTE.TXT 6.3).

    Addresses say where a member lies and how it is packed, so that workers need not parse the directory. The folders
    that hold everything are left out of the names, and a table may name files with or without them.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __str__(self) -> str:
        return str(self.path)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def fault(self) -> str:
        return "" if self.path.exists() else "no such file"

    @cached_property
    def _members(self) -> dict[str, zipfile.ZipInfo]:
        """What is not hidden, by its name, which ends in a slash for a folder. Of members of one name, the last."""
        found = {}
        errors = (EOFError, ValueError, NotImplementedError, zipfile.BadZipFile, struct.error)
        with readable(self.path, "a zip archive", *errors), zipfile.ZipFile(self.path) as archive:
            for info in archive.infolist():
                if len(info.filename) > _MOST_CHARACTERS:
                    raise ValueError(f"a name of {len(info.filename):,} characters")
                if name := _plain(info.filename):
                    found[f"{name}/" if info.is_dir() else name] = info
        return {name: info for name, info in found.items() if not any(map(is_hidden, name.split("/")))}

    @cached_property
    def _names(self) -> Names:
        return Names(self._members)

    @cached_property
    def around(self) -> str:  # type: ignore[override]
        top = ""
        while True:
            folders, files = self._names.scan(top.rstrip("/"))
            if len(folders) != 1 or any(extension_of(name) in IMAGE_EXTENSIONS for name in files):
                return top
            top += f"{next(iter(folders))}/"

    def scan(self, folder: str) -> Scan:
        return self._names.scan(f"{self.around}{folder}".rstrip("/"))

    def find(self, name: str) -> Ref:
        plain = _plain(name)
        info = self._members.get(self.around + plain) or self._members.get(plain)
        if info is None or not plain or name.startswith("/"):
            raise FileNotFoundError(f"{name}: not in {self}")
        packed = info.header_offset, info.compress_size, info.file_size, info.compress_type, info.CRC
        return Ref(name, min(info.file_size, MAX_MEMBER_BYTES), ":".join(map(str, packed)))  # it may claim any size

    def read(self, address: str) -> bytes:
        offset, packed, size, method, *_, crc = map(int, address.split(":"))  # flags in between, in older runs
        if method not in _METHODS:
            raise DecodeError(f"is compressed by method {method}; only stored and deflated members are read")
        if max(packed, size) > MAX_MEMBER_BYTES:
            raise DecodeError(f"is larger than {MAX_MEMBER_BYTES >> 20:,} MiB, the most for a member of an archive")
        try:
            with open_regular(self.path, buffering=0) as file:
                header = os.pread(file.fileno(), _LOCAL_HEADER.size, offset)
                data = os.pread(file.fileno(), packed, offset + len(header) + sum(_LOCAL_HEADER.unpack(header)))
            if method == zipfile.ZIP_DEFLATED:
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)  # no more than it claims
        except (struct.error, OverflowError, zlib.error) as error:  # it ends before, or no file could be so long
            raise DecodeError(f"is damaged in the archive: {error}") from None
        if len(data) != size or zlib.crc32(data) != crc:
            raise DecodeError("is damaged in the archive, or encrypted: its size or checksum is not that it claims")
        return data


def _plain(name: str) -> str:
    return "/".join(part for part in name.split("/") if part not in ("", "."))
