"""Files in a zip archive, read without unpacking it to the disk."""

import os
import struct
import zipfile
import zlib
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from gpuload.errors import DecodeError, SourceError, some_of
from gpuload.machine.untrusted import open_regular
from gpuload.sources.archive import Archive, plain_name
from gpuload.sources.files import Ref, lies_hidden, readable

MAX_MEMBER_BYTES = 1 << 30  # Pillow's largest image has 0.5 GB of pixels
_MOST_CHARACTERS = (
    4096  # of a name, as of a path of Linux: folders take memory by the square of it
)
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_IS_UTF8 = 1 << 11  # of the flags of a member
_CODE_PAGE = "cp437"  # of names without this flag, by the specification, which few programs follow
_TWO_BYTES = "\u07ff"  # the last character that UTF-8 writes in two bytes
_EXTRA_HEADER = struct.Struct("<HH")
_UNICODE_PATH = 0x7075
_UNICODE_HEADER = struct.Struct("<BI")  # version, and the checksum of the other name
_LOCAL_HEADER = struct.Struct(
    "<26xHH"
)  # the lengths of the name and of what else is before the data (4.3.7)


class ZipArchive(Archive):
    """A zip archive (APPNOTE.TXT 6.3).

    Addresses say where a member lies and how it is packed, so that workers need not parse the directory.

    Names are UTF-8 where the archive says so (by a flag, or in Info-ZIP's Unicode field), or where they can be nothing
    else.

    Args:
        path: Of the archive.
        encoding: Of names that are not known to be UTF-8, such as "gbk"; None: they are an error, as any code page
            might be meant.
    """

    def __init__(self, path: str | Path, encoding: str | None = None) -> None:
        super().__init__(path)
        self.encoding = encoding

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "encoding": self.encoding}

    @cached_property
    def _members(self) -> dict[str, zipfile.ZipInfo]:
        by_name = {}
        errors = (
            EOFError,
            ValueError,
            NotImplementedError,
            zipfile.BadZipFile,
            struct.error,
        )
        with (
            readable(str(self), "a zip archive", *errors),
            zipfile.ZipFile(self.path) as archive,
        ):
            infos = archive.infolist()
            longest = max((len(info.filename) for info in infos), default=0)
            if longest > _MOST_CHARACTERS:
                raise ValueError(f"a name of {longest:,} characters")
            for info, decoded in zip(infos, self._decoded(infos), strict=True):
                if name := plain_name(decoded):
                    by_name[f"{name}/" if info.is_dir() else name] = info
        return {name: info for name, info in by_name.items() if not lies_hidden(name)}

    def _decoded(self, infos: Sequence[zipfile.ZipInfo]) -> list[str]:
        """The name of each member.

        Raises:
            SourceError: names are in an unknown code page. ValueError: names are not in the given one.
        """
        names = list[str]()
        unknown = dict[int, bytes]()
        for number, info in enumerate(infos):
            names.append(info.filename)
            if info.filename.isascii() or info.flag_bits & _IS_UTF8:
                continue
            data = info.orig_filename.partition("\0")[0].encode(_CODE_PAGE)
            unicode_name = _unicode_name(info.extra, data)
            if unicode_name is None:
                unknown[number] = data
            else:
                names[number] = unicode_name
        encoding = self.encoding
        if encoding is None and _are_utf8(
            unknown.values(),
            any(infos[number].create_system == 0 for number in unknown),
        ):
            encoding = "utf-8"
        if unknown and encoding is None:
            assumed_names = some_of([infos[number].filename for number in unknown])
            fault = f"has names in an unknown code page; in {_CODE_PAGE} they would be {assumed_names}"
            advice = "Name it with --zip-encoding, such as gbk, shift_jis or cp437"
            raise SourceError(f"{self}: {fault}. {advice}")
        for number, data in unknown.items():
            names[number] = data.decode(encoding or "utf-8")
        return names

    def find(self, name: str) -> Ref:
        info: zipfile.ZipInfo = self.member(name)
        packed = (
            info.header_offset,
            info.compress_size,
            info.file_size,
            info.compress_type,
            info.CRC,
        )
        return Ref(
            name, min(info.file_size, MAX_MEMBER_BYTES), ":".join(map(str, packed))
        )  # it may claim any size

    def read(self, address: str) -> bytes:
        offset, packed, size, method, *_, crc = map(
            int, address.split(":")
        )  # flags in between, in older runs
        if method not in _METHODS:
            raise DecodeError(
                f"is compressed by method {method}; only stored and deflated members are read"
            )
        if max(packed, size) > MAX_MEMBER_BYTES:
            raise DecodeError(
                f"is larger than {MAX_MEMBER_BYTES >> 20:,} MiB, the most for a member of an archive"
            )
        try:
            with open_regular(self.path, buffering=0) as file:
                header = os.pread(file.fileno(), _LOCAL_HEADER.size, offset)
                data = os.pread(
                    file.fileno(),
                    packed,
                    offset + len(header) + sum(_LOCAL_HEADER.unpack(header)),
                )
            if method == zipfile.ZIP_DEFLATED:
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(
                    data, size + 1
                )  # no more than it claims
        except (
            struct.error,
            OverflowError,
            zlib.error,
        ) as error:  # it ends before, or no file could be so long
            raise DecodeError(f"is damaged in the archive: {error}") from None
        if len(data) != size or zlib.crc32(data) != crc:
            raise DecodeError(
                "is damaged in the archive, or encrypted: its size or checksum is not that it claims"
            )
        return data


def _are_utf8(names: Collection[bytes], is_of_windows: bool) -> bool:
    """Whether names are UTF-8 for certain. Two bytes may be a letter in UTF-8 and another in a code page, so it takes a
    character of three bytes for Windows, which uses code pages."""
    try:
        texts = [name.decode("utf-8") for name in names]
    except UnicodeDecodeError:
        return False
    return not is_of_windows or any(max(text) > _TWO_BYTES for text in texts)


def _unicode_name(extra: bytes, name: bytes) -> str | None:
    """The name in the extra field of Info-ZIP (4.6.9), if it is there and belongs to this name."""
    place = 0
    while place + _EXTRA_HEADER.size <= len(extra):
        kind, size = _EXTRA_HEADER.unpack_from(extra, place)
        place += _EXTRA_HEADER.size
        field = extra[place : place + size]
        place += size
        if kind == _UNICODE_PATH and len(field) > _UNICODE_HEADER.size:
            version, crc = _UNICODE_HEADER.unpack_from(field)
            if version == 1 and crc == zlib.crc32(name):
                return field[_UNICODE_HEADER.size :].decode("utf-8")
    return None
