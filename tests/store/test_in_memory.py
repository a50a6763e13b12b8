"""Sets at URLs without a cache on disk: the same epochs, within two windows of memory, and nothing is left. What also holds
with a cache is in test_remote.py."""

import contextvars
import itertools
import resource
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from loaders import drain, load
from store.servers import becomes, memory_files, no_shards_in_memory, shards_asked

import gpuload
from gpuload import ArgumentError, RemoteError
from gpuload.order.epoch import EpochOrder
from gpuload.read.reader import Reader
from gpuload.store import stores

Rows = list[tuple[int, bytes]]


def in_ram(proxy: Any, cache: Path, **options: Any) -> gpuload.DaliIterator:
    url: Any = f"{proxy.url}/train"
    return load(gpuload.Dataset(url, cache, 0), **{"shuffle": gpuload.Shuffle(window=2), "drop_last": False, **options})  # type: ignore[arg-type]


def test_a_download_that_ends_as_its_loader_closes_leaves_nothing(
    proxy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, numbers = stores.MemoryFile.finish, itertools.count()
    held, closed, ended = threading.Event(), threading.Event(), threading.Event()

    def finish_late(file: stores.MemoryFile) -> None:
        is_late = next(numbers) == 2
        if is_late:
            held.set()
            closed.wait()
        finish(file)
        if is_late:
            ended.set()

    monkeypatch.setattr(stores.MemoryFile, "finish", finish_late)
    no_shards_in_memory()
    loader = in_ram(proxy, tmp_path)
    next(iter(loader))
    held.wait()
    loader.close()
    closed.set()
    ended.wait()
    no_shards_in_memory()  # although the loader is still referenced
    del loader


class Watched:
    """What all stores of a loader take, after each step of any of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = 0
        count = stores.MemoryStore._count

        def counted(store: Any, file: Any) -> None:
            count(store, file)
            self.most = max(self.most, store.taken())

        monkeypatch.setattr(stores.MemoryStore, "_count", counted)


@pytest.mark.parametrize("window", [1, 2])
def test_memory_holds_two_windows(
    proxy: Any, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """And, for each reader, what one read of consecutive batches spans, here one shard."""
    monkeypatch.setattr("gpuload.read.batches._READ_AT_ONCE", 1)
    sizes = sorted((path.stat().st_size for path in packed.glob("*.tar")), reverse=True)
    watched = Watched(monkeypatch)
    no_shards_in_memory()  # of earlier tests, which would not be downloaded
    with load(packed, 2, shuffle=gpuload.Shuffle(window=window)) as local:
        expected = [drain([local]) for _ in range(3)]
    options: dict[str, Any] = {"batch_size": 2, "drop_last": True, "prefetch": 1}
    with in_ram(proxy, tmp_path, **options, shuffle=gpuload.Shuffle(window=window)) as loader:
        assert [drain([loader]) for _ in range(3)] == expected
    assert sum(sizes[-window - 1 :]) <= watched.most <= sum(sizes[: 2 * window + 1])
    watched.most, asked = 0, sum(shards_asked(proxy).values())
    with in_ram(proxy, tmp_path, **options, shuffle=gpuload.Shuffle(window=window)) as loader:
        for _ in range(8):
            assert sum(1 for _ in islice(loader, 4)) == 4
    assert watched.most <= sum(sizes[: 2 * window + 1])
    # Once in each epoch, and those with which the next one would begin.
    assert 30 - 2 * window <= asked <= 30 + 2 * window + 1


def test_shards_that_all_fit_are_downloaded_once(proxy: Any, tmp_path: Path, epochs: list[Rows]) -> None:
    no_shards_in_memory()  # of earlier tests, which would not be downloaded
    with in_ram(proxy, tmp_path, shuffle=gpuload.Shuffle(window=10)) as loader:
        for _ in range(3):
            assert len(drain([loader])) == 97
        assert set(shards_asked(proxy).values()) == {1}
        loader.preview(4)  # by a loader beside this one
        assert shards_asked(proxy) == {f"/train/shard-{n:06d}.tar": 1 for n in range(10)}
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} <= {
        "lock", "manifest.json", "index.arrow",
    }  # fmt: skip
    assert becomes(0, lambda: len(stores._files))


@pytest.mark.parametrize("size", [None, 0], ids=["cached", "in memory"])
def test_single_samples(size: int | None, proxy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shard of the last one is kept; the context of a request, which obstore keeps, holds none."""
    contexts, finish = [], stores.MemoryFile.finish

    def keeps_context(file: stores.MemoryFile) -> None:
        contexts.append(contextvars.copy_context())
        finish(file)

    monkeypatch.setattr(stores.MemoryFile, "finish", keeps_context)
    no_shards_in_memory()  # of earlier tests, which would not be downloaded
    dataset = gpuload.Dataset(f"{proxy.url}/train", tmp_path, size)
    assert [dataset[number]["index"] for number in (3, 4, 5, 96)] == [3, 4, 5, 96]
    assert shards_asked(proxy) == {"/train/shard-000000.tar": 1, "/train/shard-000009.tar": 1}
    assert len(stores._files) == (size == 0) and len(contexts) == 2 * (size == 0)
    del dataset
    assert becomes(0, lambda: len(stores._files))


def test_memory_that_does_not_suffice(proxy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuload.store.cache.available_memory", lambda: 1000)
    with pytest.raises(
        ArgumentError,
        match=r"^cache_size=0: two windows of 2 shards take [\d,]+ bytes, and it has room for 1,000. Give a cache",
    ):
        in_ram(proxy, tmp_path)
    monkeypatch.undo()
    with in_ram(proxy, tmp_path) as loader:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # as where memory is full
        try:
            with pytest.raises(
                RemoteError, match=r"^cache_size=0: a shard cannot be kept in memory \(File too large\)"
            ):
                drain([loader])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_loader_that_is_closed_or_dropped_holds_no_shard(proxy: Any, tmp_path: Path) -> None:
    for closes in (True, False):
        loader = in_ram(proxy, tmp_path, batch_size=2, shuffle=gpuload.Shuffle(window=1))
        next(iter(loader))
        assert memory_files()
        if closes:
            loader.close()
        del loader
        assert becomes(0, memory_files)


def test_what_is_still_viewed_counts(proxy: Any, tmp_path: Path) -> None:
    """A batch that waits to be decoded holds its shards, which are memory that is taken."""
    dataset = gpuload.Dataset(f"{proxy.url}/train", tmp_path, 0)
    order = EpochOrder(dataset.shard_sizes, seed=0, epoch=0, window=1)
    reader = Reader(dataset)
    held, sha256 = reader.read(order, 0, 1), dataset.manifest.shards[int(order.window_shards(0)[0])].sha256
    for start in (20, 40):
        reader.read(order, start, start + 1)
    assert sha256 in stores._files and held.images[0].any()
    del held
    assert becomes(0, lambda: sha256 in stores._files)
    reader.close()
    assert becomes(0, memory_files)


def test_a_shard_that_another_store_had_too_is_downloaded_once(proxy: Any, tmp_path: Path) -> None:
    dataset = gpuload.Dataset(f"{proxy.url}/train", tmp_path, 0)
    store: Any = dataset.open_store()
    store.plan([0], soon=1)
    assert becomes(True, lambda: store.ready(0))
    stores._files.pop(dataset.manifest.shards[0].sha256)  # as when the other store, which got it later, drops it
    assert list(store._missing()) == [] and store.open(0).memory is not None
    store.close()


def test_memory_that_is_free_in_a_moment_is_waited_for(
    proxy: Any, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop ends early, and while its last batch is decoded still, the next one begins with other shards."""
    watched = Watched(monkeypatch)
    dataset = gpuload.Dataset(f"{proxy.url}/train", tmp_path, 0)
    orders = [EpochOrder(dataset.shard_sizes, seed=0, epoch=epoch, window=2) for epoch in (0, 1)]
    most = sum(sorted(shard.bytes for shard in dataset.manifest.shards)[-4:])
    reader = Reader(dataset)
    held = [reader.read(orders[0], 0, 1)]
    assert becomes(4, lambda: len(stores._files))
    second = next(at for at in range(97) if orders[0].window_at(at) == 1)
    held.append(reader.read(orders[0], second, second + 1))  # so that both windows are held
    monkeypatch.setattr(stores, "_RELEASE_S", 60.0)
    release = threading.Timer(0.3, held.clear)
    release.start()
    assert len(reader.read(orders[1], 0, 1).images) == 1
    assert watched.most <= most
    release.join()
    reader.close()


def test_what_another_loader_holds_is_no_reason_to_wait(
    proxy: Any, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two loaders of one set share what both need, and each has memory for itself."""
    watched = Watched(monkeypatch)
    monkeypatch.setattr(stores, "_RELEASE_S", 600.0)
    sizes = sorted((path.stat().st_size for path in packed.glob("*.tar")), reverse=True)
    with in_ram(proxy, tmp_path, shuffle=gpuload.Shuffle(window=10)) as holds_all:
        drain([holds_all])
        with in_ram(proxy, tmp_path, prefetch=1, batch_size=2, shuffle=gpuload.Shuffle(window=1)) as other:
            assert len(drain([other])) == 97
    assert watched.most <= sum(sizes)
