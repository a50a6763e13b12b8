"""Files in a SquashFS image of version 4, read without mounting it: compressed by gzip, xz or zstd, or not.

An image is a superblock, blocks of data, and tables in metadata blocks: of inodes, directories and fragments. A
metadata block is two bytes of length and at most 8 KiB, compressed unless bit 15 of the length is set. A file is a
list of blocks of data; its end may be a piece of a fragment, which files share. Numbers are little-endian.
"""

import lzma
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from gpuload.errors import DecodeError
from gpuload.sources.archive import Archive
from gpuload.sources.files import Ref, is_hidden, read_at, readable
from gpuload.sources.stores.pieces import Pieces, inflated

MAGIC = b"hsqs"
_METADATA_BYTES = 8_192
_PLAIN_METADATA = 1 << 15
_PLAIN_BLOCK = 1 << 24
_NO_FRAGMENT = 0xFFFFFFFF
_FRAGMENT_BYTES = 16
_FOLDERS = (1, 8)
_FILES = (2, 9)
_MOST_BLOCK = 1 << 20
_MOST_NAMES = 100_000_000
_MOST_DEPTH = 64
_FORM = "SquashFS of version 4"
_FAULTS = (ValueError, struct.error, zlib.error, lzma.LZMAError, pa.ArrowException)

Inflate = Callable[[bytes, int], bytes]


class _Superblock(NamedTuple):
    """The first 96 bytes."""

    magic: bytes
    inodes: int
    modified: int
    block_bytes: int
    fragments: int
    compressor: int
    block_log: int
    flags: int
    ids: int
    major: int
    minor: int
    root: int
    used_bytes: int
    id_table: int
    attribute_table: int
    inode_table: int
    folder_table: int
    fragment_table: int
    export_table: int


_SUPERBLOCK = struct.Struct("<4s4I6H8Q")


@dataclass(frozen=True)
class _File:
    """Where the data of a file lie.

    Attributes:
        fragment: The block that its end lies in, with those of other files.
        offset: Where its end begins there, in bytes.
        sizes: Of its blocks, as stored.
    """

    start: int
    size: int
    fragment: int
    offset: int
    sizes: list[int]


class SquashFs(Archive):
    """The files of an image. Addresses are the places of inodes, so that workers need not list it."""

    @cached_property
    def _image(self) -> "_Image":
        with readable(str(self), _FORM, *_FAULTS):
            return _Image(self.path)

    @cached_property
    def _members(self) -> Mapping[str, Any]:
        with readable(str(self), _FORM, *_FAULTS):
            return dict(self._image.names())

    def find(self, name: str) -> Ref:
        place: int = self.member(name)
        with readable(str(self), _FORM, *_FAULTS):
            size = self._image.file(place).size
        return Ref(name, size, str(place))

    def read(self, address: str) -> bytes:
        try:
            return self._image.read(self._image.file(int(address)))
        except _FAULTS as error:
            raise DecodeError(f"cannot be read from {self}: {error}") from None


class _Image:
    """An image on a disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bytes = path.stat().st_size
        head = _Superblock(*_SUPERBLOCK.unpack(self._at(0, _SUPERBLOCK.size)))
        if head.magic != MAGIC or head.major != 4:
            raise ValueError(f"its version is {head.major}.{head.minor}")
        if head.used_bytes > self._bytes:
            raise ValueError(f"it should have {head.used_bytes:,} bytes")
        if not 4_096 <= head.block_bytes <= _MOST_BLOCK:
            raise ValueError(f"its blocks have {head.block_bytes:,} bytes")
        if head.compressor not in _INFLATERS:
            name = _NAMES.get(head.compressor, str(head.compressor))
            raise ValueError(
                f"it is compressed by {name}; make it with gzip, xz or zstd"
            )
        self._head = head
        self._inflate = _INFLATERS[head.compressor]
        self._metadata = lru_cache(64)(self._metadata_at)
        self._fragment = lru_cache(8)(self._fragment_at)

    def _at(self, offset: int, size: int) -> bytes:
        if offset + size > self._bytes:
            raise ValueError(f"it ends before byte {offset + size:,}")
        data = read_at(self._path, offset, size)
        if len(data) != size:
            raise ValueError(f"it ends before byte {offset + size:,}")
        return data

    def _metadata_at(self, place: int) -> tuple[bytes, int]:
        """A metadata block, and where the next one lies."""
        (word,) = struct.unpack("<H", self._at(place, 2))
        size = word & _PLAIN_METADATA - 1
        if size > _METADATA_BYTES:
            raise ValueError(f"the metadata at byte {place:,} take {size:,} bytes")
        data = self._at(place + 2, size)
        if not word & _PLAIN_METADATA:
            data = self._inflate(data, _METADATA_BYTES)
        return data, place + 2 + size

    def _from(self, place: int, offset: int, size: int) -> Pieces:
        """Bytes of metadata, from an offset in the block at a place on."""
        data, place = self._metadata(place)
        data = data[offset:]
        while len(data) < size:
            more, place = self._metadata(place)
            if not more:
                raise ValueError("its metadata end early")
            data += more
        return Pieces(data[:size], name="metadata")

    def _inode(self, reference: int) -> Callable[[int], Pieces]:
        """What reads a number of bytes of an inode from its begin."""
        place = self._head.inode_table + (reference >> 16)
        return lambda size: self._from(place, reference & 0xFFFF, size)

    def names(self) -> Iterator[tuple[str, int]]:
        """Name and reference of each file that is not hidden; folders end in a slash."""
        waiting = [("", self._head.root)]
        count = 0
        while waiting:
            folder, reference = waiting.pop()
            if folder.count("/") > _MOST_DEPTH:
                raise ValueError("its folders are nested too deeply")
            for name, inner, kind in self._entries(reference):
                count += 1
                if count > min(self._head.inodes * 16 + 16, _MOST_NAMES):
                    raise ValueError("its folders hold one another")
                if is_hidden(name):
                    continue
                if kind == _FOLDERS[0]:
                    waiting.append((f"{folder}{name}/", inner))
                    yield f"{folder}{name}/", inner
                elif kind == _FILES[0]:
                    yield f"{folder}{name}", inner

    def _listing_of(self, reference: int) -> tuple[int, int, int]:
        """Block, offset in it, and size of the entries of a folder."""
        read = self._inode(reference)
        kind = read(2).number("<H")
        if kind == 1:
            block, _, size, offset = struct.unpack("<IIHH", read(28).take(28)[16:])
        elif kind == 8:
            head = struct.unpack("<IIIIHH", read(36).take(36)[16:])
            size = head[1]
            block = head[2]
            offset = head[5]
        else:
            raise ValueError(f"a folder is an inode of kind {kind}")
        return block, offset, size

    def _entries(self, reference: int) -> Iterator[tuple[str, int, int]]:
        """Name, reference and kind of each entry of a folder."""
        block, offset, size = self._listing_of(reference)
        if size <= 3:
            return
        pieces = self._from(self._head.folder_table + block, offset, size - 3)
        while pieces.remaining:
            count, start, _ = struct.unpack("<III", pieces.take(12))
            for _ in range(count + 1):
                place, _, entry_kind, length = struct.unpack("<HhHH", pieces.take(8))
                name = pieces.take(length + 1).decode("utf-8", "surrogateescape")
                if "/" in name or name in ("", ".", ".."):
                    raise ValueError(f"an entry has the name {name!r}")
                yield name, start << 16 | place, entry_kind

    def file(self, reference: int) -> _File:
        """Raises ValueError if this is no file."""
        read = self._inode(reference)
        kind = read(2).number("<H")
        if kind == 2:
            start, fragment, offset, size = struct.unpack(
                "<IIII", read(32).take(32)[16:]
            )
            end = 32
        elif kind == 9:
            head = struct.unpack("<QQQIIII", read(56).take(56)[16:])
            start = head[0]
            size = head[1]
            fragment = head[4]
            offset = head[5]
            end = 56
        else:
            raise ValueError(f"a file is an inode of kind {kind}")
        count = size // self._head.block_bytes
        if fragment == _NO_FRAGMENT:
            count = -(-size // self._head.block_bytes)
        if count * 4 > self._head.used_bytes:
            raise ValueError(f"a file claims {size:,} bytes")
        pieces = read(end + count * 4)
        pieces.take(end)
        return _File(start, size, fragment, offset, pieces.numbers(count, "<u4"))

    def read(self, file: _File) -> bytes:
        """The data of a file.

        Raises:
            ValueError: they are damaged.
        """
        place = file.start
        parts = []
        remaining = file.size
        for word in file.sizes:
            expected = min(self._head.block_bytes, remaining)
            parts.append(self._block(place, word, expected))
            place += word & _PLAIN_BLOCK - 1
            remaining -= expected
        if remaining:
            data = self._fragment(file.fragment)[file.offset :][:remaining]
            parts.append(data)
            remaining -= len(data)
        if remaining:
            raise ValueError("its end is not in its fragment")
        return b"".join(parts)

    def _block(self, place: int, word: int, expected: int) -> bytes:
        size = word & _PLAIN_BLOCK - 1
        if not size:
            return bytes(expected)  # a hole
        if size > self._head.block_bytes:
            raise ValueError(f"the block at byte {place:,} is too large")
        data = self._at(place, size)
        if not word & _PLAIN_BLOCK:
            data = self._inflate(data, self._head.block_bytes)
        if len(data) < expected:
            raise ValueError(f"the block at byte {place:,} ends early")
        return data[:expected]

    def _fragment_at(self, number: int) -> bytes:
        if number >= self._head.fragments:
            raise ValueError(f"it has no fragment {number:,}")
        per_block = _METADATA_BYTES // _FRAGMENT_BYTES
        table = self._head.fragment_table + number // per_block * 8
        (place,) = struct.unpack("<Q", self._at(table, 8))
        offset = number % per_block * _FRAGMENT_BYTES
        start, word, _ = struct.unpack("<QII", self._from(place, offset, 16).take(16))
        size = word & _PLAIN_BLOCK - 1
        if size > self._head.block_bytes:
            raise ValueError(f"the fragment {number:,} is too large")
        data = self._at(start, size)
        return (
            data if word & _PLAIN_BLOCK else self._inflate(data, self._head.block_bytes)
        )


def _of_gzip(data: bytes, most: int) -> bytes:
    return zlib.decompressobj().decompress(data, most)


def _of_xz(data: bytes, most: int) -> bytes:
    return lzma.LZMADecompressor().decompress(data, most)


def _of_zstd(data: bytes, most: int) -> bytes:
    return inflated(data, "zstd", None, most)


_INFLATERS: dict[int, Inflate] = {1: _of_gzip, 4: _of_xz, 6: _of_zstd}
_NAMES = {2: "lzma", 3: "lzo", 5: "lz4"}
