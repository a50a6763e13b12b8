"""Zip archives, sound and otherwise, for the tests."""

import io
import struct
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

_CENTRAL, _LOCAL = b"PK\1\2", b"PK\3\4"
# Offsets of fields: in the directory, and in the header before the data (APPNOTE.TXT 4.3.7, 4.3.12).
FLAGS, METHOD, CRC, PACKED, SIZE = (8, 6, "<H"), (10, 8, "<H"), (16, 14, "<L"), (20, 18, "<L"), (24, 22, "<L")


def zip_bytes(
    members: Mapping[str, bytes] | Iterable[tuple[str | zipfile.ZipInfo, bytes]], method: int = zipfile.ZIP_STORED
) -> bytes:
    """An archive of these members; a name that ends in a slash is a folder's."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items() if isinstance(members, Mapping) else members:
            archive.writestr(name, data, None if isinstance(name, zipfile.ZipInfo) else method)
    return file.getvalue()


def write_zip(path: Path, members: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    path.write_bytes(zip_bytes(members, method))
    return path


def patched(archive: bytes, name: str, field: tuple[int, int, str], value: int) -> bytes:
    """An archive with another value in a field of a member, in the directory and in the header before its data."""
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        info = opened.getinfo(name)
    data = bytearray(archive)
    directory = archive.index(_CENTRAL)
    while data[directory + 46 :][: len(name)] != name.encode():
        directory = archive.index(_CENTRAL, directory + 4)
    in_directory, in_header, kind = field
    assert data[info.header_offset :][:4] == _LOCAL
    struct.pack_into(kind, data, directory + in_directory, value)
    struct.pack_into(kind, data, info.header_offset + in_header, value)
    return bytes(data)
