"""Tar archives as WebDataset uses them: a sample's members are adjacent and distinguished by their extensions."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from gpuload.errors import ShardError
from gpuload.machine.untrusted import open_regular

BLOCK_BYTES = 512
RECORD_BYTES = 10240  # default record size, to a multiple of which GNU tar and Python's tarfile pad an archive


class Member(NamedTuple):
    """One file in a tar: its name, and the offset and size of its data in bytes."""

    name: str
    offset: int
    size: int


def split_name(name: str) -> tuple[str, str]:
    """WebDataset's key and extension: the base name is split at its first dot.

    >>> split_name("a.b/cat.seg.png")
    ('a.b/cat', 'seg.png')
    """
    folder, slash, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    return folder + slash + stem, extension


def member_span(size: int) -> int:
    """Bytes that a member occupies in the archive: its header and its padded data.

    Args:
        size: Of its data, in bytes.
    """
    return BLOCK_BYTES + -(-size // BLOCK_BYTES) * BLOCK_BYTES


_MODE_AND_OWNER = b"0000644\0" + b"0000000\0" * 2
_TIME = b"00000000000\0"
_TAIL = (b"0" + bytes(100) + b"ustar\x0000").ljust(BLOCK_BYTES - 156, b"\0")
# The checksum is computed with eight spaces in its place (POSIX ustar); this part excludes the name and the size.
_FIXED_SUM = sum(_MODE_AND_OWNER) + sum(_TIME) + 8 * ord(" ") + sum(_TAIL)


def ustar_header(name: str, size: int) -> bytes:
    """The header block of a regular file: mode 644, and nothing that depends on when or by whom it is written.

    Raises:
        ValueError: the name is longer than 100 bytes or not ASCII, or the size is 8 GiB or more.
    """
    # Takes 0.7 µs; tarfile takes 17 µs, and its device fields differ between versions of Python.
    encoded = name.encode("ascii")
    if len(encoded) > 100 or size >= 8**11:
        raise ValueError(
            f"{name!r} of {size} bytes does not fit a USTAR header: 100 bytes of name, 8 GiB of data"
        )
    digits = b"%011o\0" % size
    checksum = b"%06o\0 " % (_FIXED_SUM + sum(encoded) + sum(digits))
    return b"%b%b%b%b%b%b" % (
        encoded.ljust(100, b"\0"),
        _MODE_AND_OWNER,
        digits,
        _TIME,
        checksum,
        _TAIL,
    )


class TarWriter:
    """Writes members to an open file as USTAR, without times or owners: the same input gives the same bytes.

    Args:
        file: Anything with a method `write`.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self.size = 0

    def append(self, name: str, data: bytes) -> Member:
        """Writes one member and returns where its data is."""
        padding = -len(data) % BLOCK_BYTES
        self._file.write(ustar_header(name, len(data)))
        self._file.write(data)
        self._file.write(bytes(padding))
        member = Member(name, self.size + BLOCK_BYTES, len(data))
        self.size += BLOCK_BYTES + len(data) + padding
        return member

    def finish(self) -> None:
        """Writes the end of the archive: two zero blocks, then zeros up to a multiple of the record size."""
        end = bytes(2 * BLOCK_BYTES + -(self.size + 2 * BLOCK_BYTES) % RECORD_BYTES)
        self._file.write(end)
        self.size += len(end)


class Damage(NamedTuple):
    """An unreadable part of a tar.

    Attributes:
        start: Its first byte.
        end: Where the next sound header begins, or the file ends.
        fault: What is wrong, for messages.
    """

    start: int
    end: int
    fault: str


def read_members(
    path: Path,
    others: list[tuple[str, str]] | None = None,
    damage: list[Damage] | None = None,
) -> Iterator[Member]:
    """The regular files in a tar of any format, in stored order, without reading their data.

    A tar ends with zeros only. Where anything follows them, such as another tar, that is damage, too: a member of which
    the header was lost looks the same.

    Args:
        path: Of the tar.
        others: Gets name and kind of each member that is neither a regular file nor a folder, such as "link".
        damage: Gets each damaged part, and reading continues at the next sound header; None: damage is an error.

    Raises:
        ShardError: it is not a tar, is compressed, damaged or truncated, or cannot be read.
    """
    try:
        with open_regular(path, 0) as file:
            yield from _Archive(file.fileno()).members(others, damage)
    except _DamagedError as error:
        raise ShardError(
            f"{path}: not a complete, uncompressed tar archive ({error}). Copy it again, or unpack what can be read "
            "of it (`tar -xk --ignore-zeros`), make a tar of that (`tar -c --sort=name`), and use this one"
        ) from None
    except OSError as error:
        raise ShardError(f"{path}: cannot be read ({error.strerror})") from None


class _DamagedError(Exception):
    """What is wrong, and at which byte.

    Args:
        extended: Whether it is in an extended header, which describes the member after it.
    """

    def __init__(self, fault: str, at: int, extended: bool = False) -> None:
        super().__init__(f"{fault} at byte {at:,}")
        self.extended = extended


class _Header(NamedTuple):
    """A header block.

    Attributes:
        name: Also of an extended header.
        size: Of the data behind it, in bytes.
        kind: Its type flag.
    """

    name: bytes
    size: int
    kind: bytes

    @classmethod
    def parse(cls, block: bytes) -> "_Header":
        """Raises ValueError where the checksum or the size is wrong; the message is the fault alone."""
        if len(block) < BLOCK_BYTES:
            raise ValueError("a header that is cut short")
        digits = _DIGITS.fullmatch(block[148:156])
        counted = block[:148] + b" " * 8 + block[156:]
        # Old tars add bytes up as signed ones.
        sums = sum(counted), sum(counted) - 256 * sum(byte > 127 for byte in counted)
        if digits is None or int(digits[1], 8) not in sums:
            raise ValueError("a damaged header")
        name = block[:100].partition(b"\0")[0]
        prefix = block[345:500].partition(b"\0")[0]
        if prefix and block[257:263] == b"ustar\0":  # GNU's own format has times there
            name = prefix + b"/" + name
        return cls(name, _size(block[124:136]), block[156:157])


_DIGITS = re.compile(rb" *([0-7]+)[ \0]*")
_RECORD = re.compile(rb"([0-9]{1,9}) ([^=\n]+)=")
# What is not a file and has no data. V, the label of a volume, counts as a folder.
_KINDS = {b"12": "link", b"34": "device", b"5V": "folder", b"6": "pipe"}
_WITHOUT_DATA = {
    bytes([flag]): kind for flags, kind in _KINDS.items() for flag in flags
}
_MOST_EXTENDED = (
    1 << 20
)  # bytes of an extended header; names and times take a few hundred
_SCANNED = (
    1 << 20
)  # bytes that are searched at once for a header, a multiple of BLOCK_BYTES


def _size(field: bytes) -> int:
    """A size in octal digits, or in base 256 where the highest bit is set (GNU tar)."""
    if field[0] & 0x80:
        value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        if value >> 94:  # the sign of 95 bits
            raise ValueError("a negative size")
        return value
    digits = field.partition(b"\0")[0].strip(b" ")
    if digits and not digits.isdigit():
        raise ValueError("a size that is no number")
    return int(digits or b"0", 8)


def _records(payload: bytes) -> dict[bytes, bytes]:
    """The records of a PAX header, each "LENGTH KEY=VALUE\n". Raises ValueError where one is wrong."""
    records = {}
    payload = payload.rstrip(b"\0")
    while payload:
        match = _RECORD.match(payload)
        length = int(match[1]) if match else 0
        if (
            match is None
            or not match.end() < length <= len(payload)
            or payload[length - 1 : length] != b"\n"
        ):
            raise ValueError("a damaged extended header")
        records[match[2]] = payload[match.end() : length - 1]
        payload = payload[length:]
    return records


class _Archive:
    """An open tar."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._bytes = os.fstat(descriptor).st_size

    def members(
        self, others: list[tuple[str, str]] | None, damage: list[Damage] | None
    ) -> Iterator[Member]:
        offset = 0
        while True:
            try:
                entry = self._entry(offset)
            except _DamagedError as error:
                end = self._resume(offset, error.extended)
                if damage is None or end - offset == self._bytes:
                    raise
                damage.append(Damage(offset, end, str(error)))
                if end == self._bytes:
                    return
                offset = end
                continue
            if entry is None:
                return
            member, kind, offset = entry
            if kind == "file":
                yield member
            elif others is not None and kind != "folder":
                others.append((member.name, kind))

    def _entry(self, offset: int) -> tuple[Member, str, int] | None:
        """The member whose headers begin at byte `at`, what it is, and where the next one begins; None at the end.

        Raises:
            _DamagedError: it has no sound header, or its data are not all there.
        """
        records: dict[bytes, bytes] = {}
        while True:
            extended = bool(records)
            block = self._read(offset, BLOCK_BYTES)
            if not block.strip(b"\0"):
                if not extended and self._ends(offset):
                    return None
                raise _DamagedError(
                    "an extended header without its member", offset, extended
                )
            try:
                header = _Header.parse(block)
                if header.kind not in b"xXgLK":
                    return self._member(offset, header, records)
                records |= self._extended(offset, header)
            except ValueError as error:
                raise _DamagedError(
                    str(error), offset, extended or block[156:157] in b"xXgLK"
                ) from None
            offset += member_span(header.size)

    def _ends(self, at: int) -> bool:
        """Whether the archive ends with the zeros at byte `at`.

        Raises:
            _DamagedError: there are too few, or something follows them.
        """
        if self._bytes - at < BLOCK_BYTES:
            raise _DamagedError(
                "no zero blocks, with which a tar ends, so that it was cut short", at
            )
        behind = self._find(at, lambda block: bool(block.strip(b"\0")))
        if behind == self._bytes:
            return True
        raise _DamagedError(
            f"zeros in place of a header, with data from byte {behind:,} on, as where tars are joined by cat,",
            at,
        )

    def _extended(self, offset: int, header: _Header) -> dict[bytes, bytes]:
        """The records of an extended header. A long name of GNU tar is the record "path".

        Raises:
            ValueError: it is damaged.
        """
        if header.size > min(_MOST_EXTENDED, self._bytes - offset - BLOCK_BYTES):
            raise ValueError(f"an extended header of {header.size:,} bytes")
        payload = self._read(offset + BLOCK_BYTES, header.size)
        if header.kind in b"LK":
            return {
                b"path" if header.kind == b"L" else b"linkpath": payload.partition(
                    b"\0"
                )[0]
            }
        records = _records(payload)
        if header.kind == b"g":
            if {b"path", b"size"} & set(records):
                raise ValueError(
                    "a header for all members that sets their name or size"
                )
            return {}
        return records

    def _member(
        self, offset: int, header: _Header, records: Mapping[bytes, bytes]
    ) -> tuple[Member, str, int]:
        usual_name = records.get(b"path", header.name)
        stored_name = records.get(b"GNU.sparse.name", usual_name)
        name = stored_name.decode("utf-8", "surrogateescape")
        kind = _WITHOUT_DATA.get(header.kind)
        if kind is not None:
            end = offset + BLOCK_BYTES
            return Member(name, end, 0), kind, end
        size = _content_size(header, records)
        content = self._content_offset(offset, header)
        if content + size > self._bytes:
            raise ValueError(
                f"{name!r} of {size:,} bytes, which are more than the file has,"
            )
        end = content + member_span(size) - BLOCK_BYTES
        return Member(name, content, size), _kind_of(name, header, records), end

    def _content_offset(self, offset: int, header: _Header) -> int:
        """Where the content of a member begins, whose header is at byte `offset`: behind the map of a sparse file."""
        content = offset + BLOCK_BYTES
        if header.kind == b"S":
            more = self._read(offset + 482, 1)
            # Each block of the map says whether there is another.
            while more.strip(b"\0"):
                more = self._read(content + 504, 1)
                content += BLOCK_BYTES
        return content

    def _resume(self, start: int, extended: bool) -> int:
        """Where the next sound header behind the damage at byte `start` is, or the end of the file.

        A member whose extended header may be lost is passed over, since its own header may have but a part of its name.
        """
        end = self._find(start + BLOCK_BYTES, _is_header)
        header = self._read(end, BLOCK_BYTES)
        if header[156:157] in b"xXgLK":  # so that the member behind it is whole
            return end
        before = range(
            max(start + BLOCK_BYTES, end - 8 * BLOCK_BYTES), end, BLOCK_BYTES
        )
        blocks = (self._read(offset, BLOCK_BYTES) for offset in before)
        if extended or any(
            _RECORD.match(block) or block.startswith(header[:100]) for block in blocks
        ):
            return self._resume(end, False)
        return end

    def _find(self, start: int, wanted: Callable[[bytes], bool]) -> int:
        """The first block from byte `start` on that is wanted, or the end of the file."""
        for first in range(start, self._bytes, _SCANNED):
            chunk = self._read(first, _SCANNED)
            for offset in range(0, len(chunk), BLOCK_BYTES):
                if wanted(chunk[offset : offset + BLOCK_BYTES]):
                    return first + offset
        return self._bytes

    def _read(self, offset: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, offset)


def _content_size(header: _Header, records: Mapping[bytes, bytes]) -> int:
    """Bytes of a member's content. Raises ValueError where its two headers disagree, or one is damaged."""
    recorded = records.get(b"size")
    if recorded is None:
        return header.size
    if not recorded.isdigit() or len(recorded) > 18:
        raise ValueError("a damaged extended header")
    size = int(recorded)
    if size < 8**11 and size != header.size:
        raise ValueError(f"headers with two sizes, {size:,} and {header.size:,} bytes,")
    return size


def _kind_of(name: str, header: _Header, records: Mapping[bytes, bytes]) -> str:
    """What a member with content is, for messages."""
    if header.kind == b"S" or any(key.startswith(b"GNU.sparse.") for key in records):
        return "sparse file"
    # Incremental archives have a list of what is in a folder; the first tars had no type for one.
    if header.kind == b"D" or (header.kind == b"\0" and name.endswith("/")):
        return "folder"
    return "file" if header.kind in b"0\x007" else "member of an unusual type"


def _is_header(block: bytes) -> bool:
    try:
        _Header.parse(block)
    except ValueError:
        return False
    return True


def group_members(
    members: Iterable[Member],
    split: Callable[[str], tuple[str, str]] = split_name,
) -> Iterator[tuple[str, list[Member]]]:
    """Key and members of each sample: neighbours with one key, by WebDataset's rule or another.

    Hidden files, and those without an extension, belong to no sample, as in WebDataset.

    Args:
        members: Of a tar, in stored order.
        split: Divides a name into key and extension.
    """

    def key_of(member: Member) -> str:
        key, extension = split(member.name)
        return key if extension and not key.endswith("/") else ""

    for key, sample in groupby(filter(key_of, members), key_of):
        yield key, list(sample)
