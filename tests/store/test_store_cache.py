"""The cache of a node: who may delete what, and what a killed process leaves."""

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from gpuload import ArgumentError
from gpuload.store.cache import Cache, WantedShard


def shard(number: int, size: int = 1000) -> tuple[WantedShard, bytes]:
    data = bytes([number]) * size
    return WantedShard(hashlib.sha256(data).hexdigest(), size), data


def put(cache: Cache, number: int, size: int = 1000, order: dict[str, float] | None = None) -> WantedShard | None:
    """Downloads a shard, as it were; None where there is no room. order: when others are needed."""
    wanted, data = shard(number, size)
    part = cache.begin(wanted)
    assert part is not None
    if not cache.make_room(part, size, lambda name: (order or {}).get(name, float("inf"))):
        part.drop()
        return None
    os.pwrite(part.number, data, 0)
    part.finish()
    return wanted


def filled(folder: Path, limit: int, count: int) -> tuple[Any, ...]:
    """A cache, and the shards in it."""
    cache = Cache(folder, limit)
    return cache, *(put(cache, number) for number in range(1, count + 1))


def here(cache: Cache) -> set[str]:
    return set(os.listdir(cache.shards))


def test_a_shard_is_there_once_it_is_whole(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 10_000)
    wanted, data = shard(1)
    assert cache.lease(wanted) is None
    part = cache.begin(wanted)
    assert part is not None and cache.lease(wanted) is None
    assert Cache(tmp_path).begin(wanted) is None  # as another process has it
    assert cache.make_room(part, 1000, lambda name: 0) and cache.used() == 1000
    os.pwrite(part.number, data, 0)
    inherited = os.dup(part.number)  # as a process has it that is forked meanwhile
    part.finish()
    lease = cache.lease(wanted)
    os.close(inherited)
    assert lease is not None and lease.path.read_bytes() == data
    assert cache.begin(wanted) is None and here(cache) == {wanted.sha256}


def test_what_root_has_downloaded_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid():
        pytest.skip("only root can write files of root")
    _, wanted = filled(tmp_path, 10_000, 1)
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    assert Cache(tmp_path).lease(wanted) is not None


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL])
def test_room_where_a_file_system_allocates_nothing_ahead(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def allocate(*_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.posix_fallocate", allocate)
    cache, _ = filled(tmp_path, 10_000, 1)
    part = cache.begin(shard(2)[0])
    assert part is not None and cache.make_room(part, 1000, lambda name: 0)
    assert cache.used() == 2000 and os.fstat(part.number).st_size == 1000


NEVER = float("inf")


@pytest.mark.parametrize(
    ("order", "goes"),
    [((5, 7, 6), 1), ((0, -1, 0.5), 2), ((0, -1, 0), None), ((NEVER, NEVER, 7), 1), ((NEVER, 7, NEVER), 2)],
)
def test_what_is_needed_last_makes_room(order: tuple[float, ...], goes: int | None, tmp_path: Path) -> None:
    """And nothing that is needed earlier. What no plan knows goes first, by its last use: of the last shard."""
    cache, *shards = filled(tmp_path, 3_500, 3)
    for age, one in zip((1, 2, 0), shards, strict=True):
        os.utime(cache.shards / one.sha256, ns=(age, age))
    assert cache.lease(shards[0]) is not None  # and given back at once; it was used last now
    made = put(cache, 4, order={one.sha256: needed for one, needed in zip(shards, order, strict=True)})
    kept = [one for number, one in enumerate(shards) if number != goes]
    assert (made is None) == (goes is None) and here(cache) == {one.sha256 for one in (*kept, made) if one}


def test_what_is_in_use_is_not_deleted(tmp_path: Path) -> None:
    cache, first, second = filled(tmp_path, 2_500, 2)
    leases = [cache.lease(first), Cache(tmp_path).lease(first), cache.lease(second)]
    assert put(cache, 3) is None
    del leases[0]
    assert put(cache, 3) is None  # another reader has it still
    leases.clear()
    assert put(cache, 3) is not None


def test_what_was_not_downloaded_is_not_deleted(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 2_500)
    (cache.shards / "notes").write_bytes(bytes(2_000))
    (tmp_path / "shard-000000.tar").write_bytes(bytes(2_000))
    assert put(cache, 1, 1_000) is None
    assert put(cache, 1, 400) is not None
    assert (cache.shards / "notes").exists() and (tmp_path / "shard-000000.tar").exists()


def test_leftovers(tmp_path: Path) -> None:
    """Of a part, only that which nobody downloads is deleted; one of the wrong size is no shard."""
    cache = Cache(tmp_path, 10_000)
    (cache.shards / f"{shard(1)[0].sha256}.part").write_bytes(bytes(600))
    busy = cache.begin(shard(2)[0])
    cache.clear_leftovers()
    assert busy is not None and here(cache) == {busy.path.name}
    wanted, data = shard(3)
    (cache.shards / wanted.sha256).write_bytes(data[:-1])
    assert cache.lease(wanted) is None and wanted.sha256 not in here(cache)
    (cache.shards / f"{wanted.sha256}.part").write_bytes(bytes(600))
    assert put(cache, 3) == wanted


def test_the_default_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    assert Cache().folder == tmp_path / "user" / "gpuload"
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "own"))
    cache = Cache()
    assert cache.folder == tmp_path / "own" and 0 < cache.limit <= cache.free()


def test_what_is_needed_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, _ = filled(tmp_path, 3_500, 1)
    (cache.sets / "set").mkdir()
    (cache.sets / "set" / "index.arrow").write_bytes(bytes(500))
    cache.require(3_000, "a window", True)
    message = "^cache .*: a window take {} bytes, and it has room for {}, or"
    with pytest.raises(ArgumentError, match=message.format("4,000", "3,000. Raise cache_size")):
        cache.require(4_000, "a window", True)
    monkeypatch.setattr(Cache, "free", lambda cache: 1_999)
    with pytest.raises(ArgumentError, match=message.format("3,000", "2,999. Free some of its disk")):
        cache.require(3_000, "a window", True)
    with pytest.raises(ArgumentError, match="Free some of its disk, or give a set that was packed into smaller sh"):
        cache.require(3_000, "a window", False)
