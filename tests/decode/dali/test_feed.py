"""What DALI is fed is made in another thread, in order, and ends with its batches."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaders import drain, load
from made_batches import make_batch

import gpuload
from gpuload.augment import Augment
from gpuload.decode.dali.decoder import DaliDecoder
from gpuload.decode.dali.feed import Feed
from gpuload.read.batch import Batch


def made(count: int) -> Batch:
    return make_batch(Augment(2), [np.zeros(1, np.uint8)] * count, [(1, 1)] * count)


def sizes(feed: Feed) -> Iterator[int]:
    try:
        while True:
            yield feed.take().inputs[0]
    except StopIteration:
        return


def test_inputs_come_in_order_from_another_thread() -> None:
    threads = set()

    def make(batch: Batch) -> tuple[Any, ...]:
        threads.add(threading.current_thread().name)
        return (len(batch),)

    feed = Feed(make)
    assert list(sizes(feed)) == []
    for count in (0, 1, 5):
        feed.restart(iter([made(number) for number in range(count)]))
        assert list(sizes(feed)) == list(range(count))
    assert threads == {"gpuload-feed_0"}
    feed.close()


def test_a_restart_leaves_the_rest() -> None:
    feed = Feed(lambda batch: (len(batch),))
    for _ in range(20):
        feed.restart(iter([made(number) for number in range(9)]))
        assert [feed.take().inputs[0] for _ in range(3)] == [0, 1, 2]
    feed.restart(iter([made(7)]))
    assert list(sizes(feed)) == [7]
    feed.close()


def test_errors_come_in_their_place() -> None:
    def source() -> Iterator[Batch]:
        yield made(1)
        raise gpuload.ShardError("gone")

    feed = Feed(lambda batch: (len(batch),))
    feed.restart(source())
    assert feed.take().inputs == (1,)
    with pytest.raises(gpuload.ShardError, match="gone"):
        feed.take()
    assert list(sizes(feed)) == []
    feed.close()


def test_the_thread_that_trains_makes_no_inputs(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()
    inputs = DaliDecoder._inputs

    def make(self: DaliDecoder, batch: Batch) -> tuple[Any, ...]:
        threads.add(threading.current_thread())
        return inputs(self, batch)

    monkeypatch.setattr(DaliDecoder, "_inputs", make)
    with load(packed, 8, decoder="dali") as loader:
        assert len(drain([loader])) == 96
    assert len(threads) == 1 and threading.current_thread() not in threads
    assert not any(thread.is_alive() for thread in threads)
