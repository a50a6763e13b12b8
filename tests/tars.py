"""Tar archives by Python's own module, for the tests."""

import io
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from images import run_dali

Members = Mapping[str, bytes] | Iterable[tuple[str, bytes]]


def tar_bytes(members: Members, format: int = tarfile.PAX_FORMAT) -> bytes:
    """An archive of these members, in this order."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as archive:
        for name, data in members.items() if isinstance(members, Mapping) else members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def write_tar(path: Path, members: Members, format: int = tarfile.PAX_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_bytes(members, format))
    return path


def members(folder: Path) -> dict[str, bytes]:
    """Of all shards of a set, by name."""
    found = {}
    for shard in sorted(folder.glob("*.tar")):
        with tarfile.open(shard) as archive:
            found |= {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    return found


def sealed(data: bytes, at: int, changes: Mapping[int, bytes]) -> bytes:
    """With fields of the header at this byte changed, and its checksum made right."""
    block = bytearray(data[at : at + 512])
    for offset, value in changes.items():
        block[offset : offset + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return data[:at] + bytes(block) + data[at + 512 :]


def same_as_wds2idx(shard: Path, index: Path, other: Path) -> bool:
    """Whether DALI's own tool writes the same index, to `other`."""
    if not (program := Path(sys.executable).with_name("wds2idx")).exists():
        pytest.skip("needs wds2idx, which comes with DALI: pip install -e '.[dali]'")
    subprocess.run([sys.executable, program, shard, other], check=True, stdout=subprocess.DEVNULL)
    return index.read_text() == other.read_text() != ""


def read_by_dali(
    shards: Sequence[Path], indexes: Sequence[Path], samples: int, *ends: str, **options: Any
) -> list[list[bytes]]:
    """The members with these extensions, as DALI's own reader of such shards finds them, with options of its own."""
    files = {"paths": list(map(str, shards)), "index_paths": list(map(str, indexes))}

    def read(fn: Any) -> Any:
        found = fn.readers.webdataset(**files, **options, ext=ends)
        return found if len(ends) == 1 else tuple(found)

    return [[one.tobytes() for one in found] for found in run_dali(read, samples)]
