"""The loading half without the calls that only Linux, or only POSIX, has: the same batches."""

import ctypes
import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import elsewhere
import numpy as np
import pytest

from gpuload.read import mapped_file
from gpuload.store import files

SCRIPT = Path(__file__).with_name("elsewhere.py")


def load(folder: Path, system: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, str(SCRIPT), str(folder), system], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def here(packed: Path) -> dict[str, Any]:
    return elsewhere.load_epochs(str(packed))


@pytest.mark.parametrize(("system", "platform"), [("macos", "darwin"), ("windows", "win32")])
def test_an_epoch_is_the_same(packed: Path, here: dict[str, Any], system: str, platform: str) -> None:
    found = load(packed, system)
    assert found["platform"] == platform and len(set(found["keys"])) == 97
    assert found == {"platform": platform, **here}


def test_a_file_is_mapped_without_the_c_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(200)))
    (tmp_path / "empty").touch()
    monkeypatch.setattr(mapped_file, "_libc", None)
    found = mapped_file.MappedFile(path, None)
    path.unlink()
    assert found.data.tolist() == list(range(200)) and found.stamp.st_size == 200
    assert not found.data.flags.writeable and found.data.dtype == np.uint8
    assert len(mapped_file.MappedFile(tmp_path / "empty", None).data) == 0


def test_the_handler_is_only_installed_where_its_layouts_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mapped_file.install()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not mapped_file.install()


def test_locks_that_a_system_does_not_have() -> None:
    missing = files._NoLocks()
    for lock in (missing.flock, missing.lockf):
        with pytest.raises(OSError, match="this system has no locks on files"):
            lock(0, missing.LOCK_EX | missing.LOCK_NB)
    assert files.fcntl.LOCK_EX  # here it is the real one
    assert not isinstance(files.fcntl, files._NoLocks)


def test_a_file_that_cannot_be_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mmap(*_: object) -> int:
        ctypes.set_errno(errno.ENOMEM)
        return 2**64 - 1  # MAP_FAILED, -1

    (tmp_path / "file").write_bytes(b"abc")
    monkeypatch.setattr(mapped_file, "_libc", SimpleNamespace(mmap=mmap))
    with pytest.raises(OSError, match="Cannot allocate memory") as raised:
        mapped_file.MappedFile(tmp_path / "file", None)
    opened = (os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
    assert raised.value.errno == errno.ENOMEM and str(tmp_path / "file") not in opened
