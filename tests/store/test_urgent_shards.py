"""What is needed first is downloaded first, and training does not wait for what it needs later."""

import asyncio
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from loaders import remote
from store.servers import shards_asked

import gpuload
from gpuload import GpuloadError
from gpuload.order.epoch import EpochOrder
from gpuload.read.batches import BatchReader
from gpuload.store.cache import Cache
from gpuload.store.network import NEEDED, Connections


async def take(connections: Connections, needed: dict[int, float], number: int, order: list[int]) -> None:
    NEEDED.set(lambda: needed[number])
    async with connections:
        order.append(number)
        await asyncio.sleep(0)


def test_the_most_urgent_request_comes_next() -> None:
    async def run() -> list[int]:
        connections, needed, order = Connections(1), {number: float(number % 5) for number in range(10)}, list[int]()
        async with connections:
            tasks = [asyncio.create_task(take(connections, needed, number, order)) for number in range(10)]
            await asyncio.sleep(0)
            needed[9] = -1  # another plan was made
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(run()) == [9, 0, 5, 1, 6, 2, 7, 3, 8, 4]


def test_no_connection_is_lost_by_cancelling() -> None:
    async def run(seed: int) -> None:
        rng, connections = random.Random(seed), Connections(3)
        needed, order = dict.fromkeys(range(30), 0.0), list[int]()
        tasks = [asyncio.create_task(take(connections, needed, number, order)) for number in range(30)]
        for _ in range(40):
            rng.choice(tasks).cancel()
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(one) for one in found} <= {type(None), asyncio.CancelledError}
        assert connections._free == 3 and not connections._waiting

    for seed in range(50):
        asyncio.run(run(seed))


@pytest.mark.parametrize("in_turn", [24, 2])
def test_the_first_windows_have_the_network_one_after_the_other(
    proxy: Any, tmp_path: Path, in_turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a slow disk makes room for a shard while the next one is looked at."""
    monkeypatch.setattr("gpuload.store.stores._IN_TURN", in_turn)
    monkeypatch.setattr("gpuload.store.stores._ROOM_S", 0.001)
    make_room = Cache.make_room
    monkeypatch.setattr(Cache, "make_room", lambda *args: (time.sleep(0.1), make_room(*args))[1])
    beside: dict[str, set[str]] = {}  # what was asked for until a shard was sent
    give_up = time.monotonic() + 250

    def fault(path: str, number: int) -> None:
        if not path.endswith(".tar") or number > 1:  # for the next epoch
            return
        if in_turn == 24:
            time.sleep(0.3)
        while path in windows[1] and in_turn == 2 and not asked() - windows[0] - windows[1]:
            assert time.monotonic() < give_up
            time.sleep(0.01)
        beside[path] = asked()

    def asked() -> set[str]:
        return set(shards_asked(proxy))

    proxy.fault = fault
    with remote(f"{proxy.url}/train", tmp_path, batch_size=2) as loader:
        order = EpochOrder(loader.dataset.shard_sizes, seed=0, epoch=0, window=2)
        windows = [{f"/train/shard-{number:06d}.tar" for number in order.window_shards(at)} for at in range(5)]
        for _ in loader:
            pass
    known, early = set[str](), []
    for window in windows:
        known |= window
        early.append(set().union(*(beside[path] for path in window)) - known)
    assert not early[0]
    assert any(early) == (in_turn == 2), early


def test_batches_that_are_here_are_handed_out(proxy: Any, tmp_path: Path) -> None:
    """Several are read at a time, but none waits for the shards of later ones."""
    goes_on, late = threading.Event(), list[str]()
    with remote(f"{proxy.url}/train", tmp_path, batch_size=2, prefetch=1, shuffle=gpuload.Shuffle(window=1)) as loader:
        shards = EpochOrder(loader.dataset.shard_sizes, seed=0, epoch=0, window=1).upcoming(0)[:4].tolist()

        def fault(path: str, number: int) -> None:
            if path.endswith(".tar") and int(path[-10:-4]) not in shards and not goes_on.wait(250):
                late.append(path)
                goes_on.set()

        proxy.fault = fault
        batches = 0
        for _ in loader:
            batches += 1
            if batches == 16:  # of 20 that are here, some of which are decoded ahead
                goes_on.set()
        assert batches == 49 and not late


def test_a_loop_that_is_closed_as_it_begins_downloads_nothing(
    proxy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or `close` would wait for that."""
    beginning, interrupted = threading.Event(), threading.Event()
    begin, interrupt = BatchReader.begin, BatchReader.interrupt

    def begin_late(reader: BatchReader) -> None:
        beginning.set()
        assert interrupted.wait(250)
        begin(reader)

    def interrupt_before(reader: BatchReader) -> None:
        interrupt(reader)
        if beginning.is_set():
            interrupted.set()

    monkeypatch.setattr(BatchReader, "begin", begin_late)
    monkeypatch.setattr(BatchReader, "interrupt", interrupt_before)
    with remote(f"{proxy.url}/train", tmp_path) as loader, ThreadPoolExecutor(1) as other:
        training = other.submit(lambda: next(iter(loader)))
        assert beginning.wait(250)
        loader.close()
        with pytest.raises(GpuloadError, match=r"by close\(\)"):
            training.result()
    assert shards_asked(proxy) == {}
