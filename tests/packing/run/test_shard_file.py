"""The file of a shard, complete however little the kernel accepts per call, and the position of its worker."""

import hashlib
import os
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuload.packing.run.shard import ShardFile
from gpuload.packing.run.workers import noted_position, read_position
from gpuload.sources import open_source


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    samples=st.lists(st.lists(st.binary(max_size=40), max_size=5), max_size=8),
    taken=st.integers(1, 50),
    most_parts=st.integers(1, 4),
    write_back_bytes=st.integers(1, 100),
)
def test_file_is_complete_and_hashed(
    tmp_path: Path, samples: list[list[bytes]], taken: int, most_parts: int, write_back_bytes: int
) -> None:
    """Even if each system call accepts only a few bytes, as on an almost full disk or after a signal."""
    path, real = tmp_path / "file", os.writev

    def writev(descriptor: int, parts: list[bytes]) -> int:
        assert len(parts) <= most_parts
        return real(descriptor, [b"".join(parts)[:taken]])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "writev", writev)
        patch.setattr("gpuload.packing.run.shard._MOST_PARTS", most_parts)
        patch.setattr("gpuload.packing.run.shard._WRITE_BACK_BYTES", write_back_bytes)
        with closing(ShardFile(path)) as file:
            for parts in samples:
                for part in parts:
                    file.write(part)
                file.flush()
            file.write(b"end")
            file.finish()
    wanted = b"".join(b"".join(parts) for parts in samples) + b"end"
    assert path.read_bytes() == wanted
    assert file.sha256 == hashlib.sha256(wanted).hexdigest()


def test_a_full_disk_raises_an_error() -> None:
    with pytest.raises(OSError, match="No space left"), closing(ShardFile(Path("/dev/full"))) as file:
        file.write(b"x")
        file.flush()


def test_worker_position(tmp_path: Path) -> None:
    path = tmp_path / "position"
    nowhere = read_position(path)
    assert nowhere[0] < 0 == nowhere[1]
    with noted_position(path) as note:
        assert read_position(path) == nowhere
        note(3, 1 << 40)
        assert read_position(path) == (3, 1 << 40)
    with noted_position(path):  # of the worker that replaces it
        assert read_position(path) == nowhere


@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_a_file_is_read_whole(tmp_path: Path, size: int) -> None:
    (tmp_path / "1.jpg").write_bytes(os.urandom(size))
    assert open_source(tmp_path).read("1.jpg") == (tmp_path / "1.jpg").read_bytes()


def test_a_file_that_reports_no_size(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").symlink_to("/proc/version")
    assert open_source(tmp_path).read("1.jpg") == Path("/proc/version").read_bytes() != b""
    (tmp_path / "2.jpg").mkdir()
    with pytest.raises(OSError, match="not a regular file"):
        open_source(tmp_path).read("2.jpg")
