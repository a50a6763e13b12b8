"""Files in a zip archive, read without unpacking it to the disk.

The directory of the archive is parsed once, in the packer's process: 8 µs and 0.8 kB a member (one core of an AMD EPYC,
2026-11), so 8 s and 0.8 GB for a million. Workers get the place of each member with the plan, as its address, and never
parse the directory: reading a member of 113 kB takes 40 µs stored and 50 µs deflated, where a file takes 20 µs, and
`zipfile` 47 µs after it has parsed the directory in each process.
"""

import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from gpuload.errors import DecodeError
from gpuload.machine.untrusted import open_regular
from gpuload.sources.files import (
    HEAD_BYTES,
    IMAGE_EXTENSIONS,
    Files,
    Findings,
    Names,
    Ref,
    Scan,
    extension_of,
    is_hidden,
    readable,
)

_MOST_CHARACTERS = 4096  # of a name, as of a path of Linux
MAX_MEMBER_BYTES = 1 << 30  # packed or unpacked; Pillow's largest image has 0.5 GB of pixels

_ENCRYPTED, _UTF8 = 0x1, 0x800  # flags of a member (APPNOTE.TXT 4.4.4)
_FAT = 0  # the host system of a member (4.4.2.2)
# What precedes the data of a member (4.3.7): a signature, and the lengths of a name and of an extra field that follow.
_LOCAL_HEADER, _SIGNATURE = struct.Struct("<4s22xHH"), b"PK\3\4"
_BEGIN_BYTES = 512  # packed, of which the first bytes are unpacked


class _Place(NamedTuple):
    """Where a member's header begins in the archive, its bytes packed and unpacked, and how it is packed."""

    offset: int
    packed: int
    size: int
    method: int
    flags: int
    crc: int

    @classmethod
    def at(cls, address: str) -> "_Place":
        return cls(*map(int, address.split(":")))

    def refusal(self) -> str:
        """Why this member is not read; "" if it is."""
        if self.flags & _ENCRYPTED:
            return "is encrypted"
        if self.method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            return f"is compressed by method {self.method}; only stored and deflated members are read"
        if max(self.packed, self.size) > MAX_MEMBER_BYTES:
            return f"is larger than {MAX_MEMBER_BYTES >> 20:,} MiB, the most for a member of an archive"
        return ""

    def unpack(self, data: bytes, most: int) -> bytes:
        """The first bytes of the content, `most` of them, from the first packed ones."""
        if self.method == zipfile.ZIP_STORED:
            return data[:most]
        try:
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, most)
        except zlib.error as error:
            raise DecodeError(f"is damaged in the archive: {error}") from None


class ZipArchive(Files):
    """A zip archive.

    Most archives wrap everything in one folder. So a folder that is alone at the top, with no image beside it, is not
    part of the names, nor is one that is alone in it; other files beside such a folder are skipped. `find` takes names
    with and without these folders. Folders of operating systems, such as `__MACOSX`, are skipped like hidden files.

    Of several members with one name the last counts, as if they were unpacked one after the other; the others are
    rejected. So are names that lead out of the archive, links, and members that are encrypted, neither stored nor
    deflated, damaged, or larger than `MAX_MEMBER_BYTES`. Archives inside the archive are files like any other. A name
    that is not marked as UTF-8 is read as UTF-8 all the same, and rejected where it is not.
    """

    kind = "archive"

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __str__(self) -> str:
        return str(self.path)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def fault(self) -> str:
        return "" if self.path.exists() else "no such file"

    @property
    def around(self) -> str:  # type: ignore[override]
        return self._directory.top

    def scan(self, folder: str) -> Scan:
        """Of a folder by its name with or without the folders around everything."""
        plain, names = _plain(folder), self._directory.names
        whole = f"{self.around}{plain}".rstrip("/")
        return names.scan(whole if whole in names.folders else plain or "/")

    def walk(self, extensions: Collection[str], findings: Findings) -> Iterator[Ref]:
        for name, reason in self._directory.refused:
            if extension_of(name) in extensions:
                findings.reject(name.removeprefix(self.around), reason)
        for name in self._directory.members:
            if not name.startswith(self.around):
                findings.wants(name, (), self.head)
        yield from super().walk(extensions, findings)

    def find(self, name: str) -> Ref:
        plain, members = _plain(name), self._directory.members
        info = members.get(self.around + plain) or members.get(plain)
        if info is None or name.startswith("/"):
            raise FileNotFoundError(f"{name}: not in {self}")
        packed = info.header_offset, info.compress_size, info.file_size, info.compress_type, info.flag_bits, info.CRC
        return Ref(name, min(info.file_size, MAX_MEMBER_BYTES), ":".join(map(str, packed)))  # it may claim any size

    def read(self, address: str) -> bytes:
        place = _Place.at(address)
        data = place.unpack(self._stored(place, place.packed), place.size + 1)  # no more than the directory says
        if len(data) != place.size or zlib.crc32(data) != place.crc:
            raise DecodeError("is damaged in the archive: its size or checksum is not that in the directory")
        return data

    def head(self, name: str) -> bytes:
        place = _Place.at(self.find(name).address)
        try:
            return place.unpack(self._stored(place, _BEGIN_BYTES), HEAD_BYTES)
        except (DecodeError, OSError):
            return b""

    def _stored(self, place: _Place, count: int) -> bytes:
        """The first packed bytes of a member."""
        if reason := place.refusal():
            raise DecodeError(reason)
        with open_regular(self.path, buffering=0) as file:
            try:
                header = os.pread(file.fileno(), _LOCAL_HEADER.size, place.offset)
                signature, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
                if signature != _SIGNATURE:
                    raise OverflowError
                return os.pread(file.fileno(), count, place.offset + len(header) + name_bytes + extra_bytes)
            except (struct.error, OverflowError):  # the archive ends before, or no file could be so long
                raise DecodeError("is damaged in the archive: nothing begins where the directory says") from None

    @cached_property
    def _directory(self) -> "_Directory":
        errors = (EOFError, ValueError, NotImplementedError, zipfile.BadZipFile, struct.error)
        with readable(self.path, "a zip archive", *errors), zipfile.ZipFile(self.path) as archive:
            return _Directory(archive.infolist())


class _Directory:
    """The directory of an archive.

    members: by name, without hidden ones. refused: names that do not count as members, and why. names: of all members
    and folders. top: the folders that wrap everything, each with a slash after it.
    """

    def __init__(self, infos: Iterable[zipfile.ZipInfo]) -> None:
        self.members: dict[str, zipfile.ZipInfo] = {}
        self.refused: list[tuple[str, str]] = []
        folders = set[str]()
        for info in infos:
            self._add(info, folders)
        self._refuse_overlaps()
        self.names = Names((*self.members, *folders))
        self.top = self._find_top()

    def _add(self, info: zipfile.ZipInfo, folders: set[str]) -> None:
        given = _decoded(info)
        parts = [part for part in given.split("/") if part not in ("", ".")]
        name = "/".join(parts)
        if given.startswith("/") or given[1:3] in (":/", ":\\") or ".." in parts:
            self.refused.append((given, "its name leads out of the archive"))
        elif len(given) > _MOST_CHARACTERS or "\0" in given:
            self.refused.append((given[:100].replace("\0", "\ufffd"), "its name is none that a file could have"))
        elif not parts or any(map(is_hidden, parts)):
            pass
        elif given.endswith("/"):
            folders.add(f"{name}/")
        elif stat.S_ISLNK(info.external_attr >> 16):
            self.refused.append((name, "is a link, which is not followed in an archive"))
        else:
            if name in self.members:
                self.refused.append((name, "its name comes again in the archive, where the last one counts"))
            self.members[name] = info

    def _refuse_overlaps(self) -> None:
        """Refuses members that begin within the data of another: a small archive of such could unpack to any size."""
        end, owner = 0, ""
        for name, info in sorted(self.members.items(), key=lambda item: item[1].header_offset):
            if 0 <= info.header_offset < end:
                self.refused.append((name, f"begins within {owner!r}, as archives do that unpack to any size"))
                del self.members[name]
            else:
                end, owner = info.header_offset + _LOCAL_HEADER.size + info.compress_size, name

    def _find_top(self) -> str:
        top = ""
        while True:
            folders, files = self.names.scan(top.rstrip("/"))
            if len(folders) != 1 or any(extension_of(name) in IMAGE_EXTENSIONS for name in files):
                return top
            top += f"{next(iter(folders))}/"


def _plain(name: str) -> str:
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def _decoded(info: zipfile.ZipInfo) -> str:
    """A member's name as unpacking would put it on a disk here; bytes that are not UTF-8 as `os.fsdecode` has them."""
    name = info.orig_filename
    if not name.isascii() and not info.flag_bits & _UTF8:
        name = os.fsdecode(name.encode("cp437"))  # zipfile's guess; what is not marked is UTF-8 where unpacking works
    if info.create_system == _FAT and "/" not in name:
        name = name.replace("\\", "/")  # as unzip does; .NET wrote such names up to 4.6
    return name
