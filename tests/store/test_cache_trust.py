"""What lies in the cache is used only where it is a file of one's own with the bytes of the manifest."""

import asyncio
import logging
import os
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from loaders import drain, remote
from store.servers import shards_asked

import gpuload
from gpuload import ArgumentError, FormatError, GpuloadError
from gpuload.store import stores
from gpuload.store.cache import Cache, WantedShard
from gpuload.store.url import URL

Rows = list[tuple[int, bytes]]

NAMES = [
    "/etc/passwd", "../../x", "", ".", "..", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "a" * 64 + "\n", "a" * 64 + "/..",
    "s3://bucket/x", "\0" * 64, "a" * 63 + "\0", "%2e" * 21 + "a", "a" * 64 + ".part",
]  # fmt: skip


def test_no_other_name_becomes_a_path(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", 10_000)
    for name in NAMES:
        for use in (cache.lease, cache.begin):
            with pytest.raises(
                FormatError, match=r"^a shard's SHA-256 is .*, expected 64 lower-case hexadecimal digits"
            ):
                use(WantedShard(name, 1000))
    assert {path.name for path in tmp_path.rglob("*")} == {"cache", "gpuload-1", "lock", "shards", "sets"}


def run(proxy: Any, cache: Path, verify: Any = None, epochs: int = 1) -> Rows:
    with remote(gpuload.Dataset(f"{proxy.url}/train", cache, verify=verify)) as loader:
        return [drain([loader]) for _ in range(epochs)][-1]


@pytest.mark.parametrize(("by", "verify"), [("this process", None), ("another process", "sha256")])
def test_damaged_shards_are_downloaded_again(
    by: str, verify: str | None, proxy: Any, tmp_path: Path, epochs: list[Rows], caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert run(proxy, tmp_path, verify=verify) == epochs[0]
    first, *_, last = sorted((tmp_path / "gpuload-1" / "shards").iterdir())
    for path in (first, last):
        changed_ns = path.stat().st_mtime_ns
        path.write_bytes(path.read_bytes().swapcase())
        if by == "another process":
            os.utime(path, ns=(changed_ns, changed_ns))
    if by == "another process":
        monkeypatch.setattr(stores, "_compared", {})
    proxy.reset()
    with caplog.at_level(logging.WARNING):
        assert run(proxy, tmp_path, verify=verify) == epochs[0]
    assert sum(shards_asked(proxy).values()) == 2
    told = [line.partition(": is damaged: its SHA-256 is ")[0] for line in caplog.messages if "damaged" in line]
    assert sorted(told) == [str(first), str(last)]


def test_each_shard_is_hashed_once_by_a_process(
    proxy: Any, tmp_path: Path, epochs: list[Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = list[int]()

    async def sha256_of(handle: int, size: int) -> str:
        hashed.append(size)
        return await whole(handle, size)

    whole = stores.sha256_of
    monkeypatch.setattr(stores, "sha256_of", sha256_of)
    run(proxy, tmp_path, epochs=2)
    assert not hashed  # all were hashed as they arrived
    monkeypatch.setattr(stores, "_compared", {})
    assert run(proxy, tmp_path, epochs=2) == epochs[1]
    assert sorted(hashed) == sorted(path.stat().st_size for path in tmp_path.rglob("shards/*"))
    monkeypatch.setattr(stores, "_compared", {})
    hashed.clear()
    assert run(proxy, tmp_path, verify="downloads") == epochs[0] and not hashed


PLANTED: dict[str, Callable[[Path, Path], object]] = {
    "a link": lambda path, target: path.symlink_to(target),
    "a pipe": lambda path, target: os.mkfifo(path),
    "a folder": lambda path, target: path.mkdir(),
    "another user's file": lambda path, target: (path.write_bytes(target.read_bytes()), os.chown(path, 12345, -1)),
    "a second name": lambda path, target: path.hardlink_to(target),
}


@pytest.mark.parametrize("plant", PLANTED)
def test_what_is_no_file_of_ones_own_is_refused(plant: str, proxy: Any, packed: Path, tmp_path: Path) -> None:
    """At once, and what a link leads to stays as it is."""
    if plant == "another user's file" and os.geteuid():
        pytest.skip("only root can give a file to another user")
    target, cache = tmp_path / "thesis", Cache(tmp_path / "cache")
    target.write_bytes((packed / "shard-000003.tar").read_bytes())
    info = gpuload.Dataset(packed).manifest.shards[3]
    for suffix in ("", ".part")[plant == "a second name" :]:  # a whole shard is read alone
        path = cache.shards / f"{info.sha256}{suffix}"
        PLANTED[plant](path, target)
        with pytest.raises(
            FormatError, match=f"^{path}: is not a regular file of this user but .*Delete it, or give an"
        ):
            run(proxy, cache.folder)
        assert target.read_bytes() == (packed / "shard-000003.tar").read_bytes() and os.path.lexists(path)
        path.rename(tmp_path / f"removed{suffix}")


def test_folders_that_others_can_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = tmp_path / "cache"
    outer.mkdir()
    outer.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        cache, _ = Cache(outer), Cache(outer)
    (told,) = caplog.messages
    assert told.startswith(f"cache {outer}: can be written by other users (mode 777), so others could")
    for folder in (outer / "gpuload-1", cache.shards, cache.sets):
        assert folder.stat().st_mode & 0o777 == 0o700
        folder.chmod(0o702)
        with pytest.raises(ArgumentError, match=rf"^cache {folder}: can be written by other users \(mode 702\), so"):
            Cache(outer)
        folder.chmod(0o1702)  # each user replaces their own files alone
        Cache(outer)
        folder.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(cache.sets, 12345, -1)
        with pytest.raises(ArgumentError, match=rf"^cache {cache.sets}: belongs to another user \(number 12345\), so"):
            Cache(outer)


@pytest.mark.parametrize("after", [0, 2])
def test_a_cache_that_is_deleted_is_made_again(after: int, proxy: Any, tmp_path: Path, epochs: list[Rows]) -> None:
    """Before the loop, or in an epoch."""
    with remote(gpuload.Dataset(f"{proxy.url}/train", tmp_path / "cache")) as loader:
        begun = drain([loader], steps=after) if after else []
        (tmp_path / "cache" / "gpuload-1").rename(tmp_path / "deleted")
        loader.load_state_dict(loader.state_dict())
        assert begun + drain([loader]) == epochs[0] and drain([loader]) == epochs[1]


def test_a_shard_that_is_deleted_as_it_is_opened_is_the_one_that_was_checked(
    proxy: Any, tmp_path: Path, epochs: list[Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whoever deletes the cache: neither a shard that is gone, nor one that was put in its place."""
    lease = Cache.lease

    def deleted(cache: Cache, shard: WantedShard) -> Any:
        if (found := lease(cache, shard)) is not None:
            found.path.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Cache, "lease", deleted)
    assert run(proxy, tmp_path) == epochs[0]


def test_a_cache_that_is_deleted_at_any_moment_of_a_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, shard, make, names = Cache(tmp_path), WantedShard("0" * 64, 1000), Cache._make_folders, iter("abcdefg")

    def delete() -> None:
        (tmp_path / "gpuload-1").rename(tmp_path / next(names))

    def make_and_delete(cache: Cache) -> None:
        make(cache)
        if tries.pop():
            delete()

    monkeypatch.setattr(Cache, "_make_folders", make_and_delete)
    for moment in ("begun", "has room", "made again"):
        tries = [False, *[True] * 3 * (moment == "made again")]  # the last download has left no cache
        part = cache.begin(shard)
        assert part is not None
        if moment == "begun":
            delete()
        assert cache.make_room(part, shard.bytes, lambda _: 1.0)
        if moment == "has room":
            delete()
        part.finish()
        assert (cache.lease(shard) is not None) == (moment == "made again")  # else it is downloaded again


def test_a_cache_that_cannot_be_written(proxy: Any, tmp_path: Path) -> None:
    with remote(f"{proxy.url}/train", tmp_path) as loader:
        shutil.rmtree(tmp_path / "gpuload-1")
        (tmp_path / "gpuload-1").touch()
        message = rf"^cache {tmp_path}: cannot be written \(File exists\). Check the folder and its disk"
        with pytest.raises(GpuloadError, match=message):
            drain([loader])


def test_room_is_made_while_another_thread_opens_stores(tmp_path: Path) -> None:
    """As for a loader of validation that is constructed while the one of training downloads."""
    cache, shard, before = Cache(tmp_path), WantedShard("0" * 64, 1000), sys.getswitchinterval()

    def opened(_: object = None) -> Any:
        return stores.CachedStore(URL("https://example.invalid/set"), cache, [shard])

    opened_before, part = list(map(opened, range(3000))), cache.begin(shard)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(1) as other:
            opening = other.submit(lambda: list(map(opened, range(3000))))
            while not opening.done():
                assert asyncio.run(opened_before[0]._make_room(0, part, False))
    finally:
        sys.setswitchinterval(before)
