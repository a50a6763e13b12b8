"""A disk that answers EIO, which a memory map turns into SIGBUS: an ext2 file system in a file that loses its end. And
what cannot be mapped."""

import ctypes
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from loaders import drain, load

import gpuload
from gpuload.read import mapped_file
from gpuload.store import Lease


@pytest.fixture
def disk(packed: Path, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """The file of a file system that holds a packed set, and where it is mounted."""
    image, folder = tmp_path / "disk.img", tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mke2fs", "-q", "-t", "ext2", "-d", packed, image, "4M"], capture_output=True, text=True, check=False
    )
    mounted = (
        made.returncode or subprocess.run(["mount", "-o", "loop,ro", image, folder], capture_output=True).returncode
    )
    if mounted:
        pytest.skip("needs mke2fs and the right to mount a file system (root, or in a container --privileged)")
    try:
        yield image, folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.parametrize("verify", [None, "sha256"])
def test_a_disk_that_fails_is_named_and_a_repaired_one_is_read_on(
    packed: Path, disk: tuple[Path, Path], decoder: str, verify: str | None
) -> None:
    image, folder = disk
    content = image.read_bytes()
    with (
        load(gpuload.Dataset(folder, verify=verify), decoder=decoder) as loader,
        load(packed, decoder=decoder) as undisturbed,
    ):
        for name in ("index.arrow", "manifest.json"):
            (folder / name).read_bytes()  # stays in memory
        os.truncate(image, len(content) // 8)
        for _ in range(2):
            with pytest.raises(
                gpuload.ShardError,
                match=r"shard-\d+.tar: cannot be read at byte [\d,]+ \(Input/output error\). Check the disk, or copy it",
            ):
                list(loader)
        assert loader.state_dict()["samples"] == 0
        image.write_bytes(content)
        loader.set_epoch(0)
        assert drain([loader]) == drain([undisturbed])


def test_a_file_that_cannot_be_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mmap(*_: object) -> int:
        ctypes.set_errno(errno.ENOMEM)
        return 2**64 - 1  # MAP_FAILED, -1

    (tmp_path / "file").write_bytes(b"abc")
    monkeypatch.setattr(mapped_file, "_libc", SimpleNamespace(mmap=mmap))
    with pytest.raises(OSError, match="Cannot allocate memory") as raised:
        mapped_file.MappedFile(Lease(tmp_path / "file"), None)
    opened = (os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
    assert raised.value.errno == errno.ENOMEM and str(tmp_path / "file") not in opened
