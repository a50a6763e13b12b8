"""Buckets: which size each image gets, and the global batches that follow, compared with a plain loop."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import stream_of

from gpuload import ArgumentError, Buckets
from gpuload.order.buckets import BucketedStream, BucketPlan
from gpuload.order.stream import Epochs, Part, Stream


@pytest.mark.parametrize(
    ("sizes", "images", "expected"),
    [
        ([(9, 9), (9, 18), (9, 36)], [(w, 100) for w in (50, 141, 142, 282, 283, 900)], [0, 0, 1, 1, 2, 2]),
        ([(512, 512), (128, 128), (128, 256)], [(side, side) for side in (10, 256, 257, 2000)], [1, 1, 0, 0]),
    ],
)
def test_the_nearest_bucket(sizes: Any, images: list[tuple[int, int]], expected: list[int]) -> None:
    """By the ratio; of buckets of one shape by the area."""
    assert Buckets(sizes).numbers(*zip(*images, strict=True)).tolist() == expected


def test_sizes_of_an_area() -> None:
    """Those that SDXL was trained with, as far as they are of this aspect and below this area."""
    found = Buckets(area=1024 * 1024).all_sizes
    assert found[0] == (1344, 768) and found[-1] == (768, 1344) and (832, 1216) in found and (1024, 1024) in found
    assert all(h % 64 == w % 64 == 0 and h * w <= 1 << 20 and max(h, w) <= 2 * min(h, w) for h, w in found)
    assert [w / h for h, w in found] == sorted(w / h for h, w in found)
    assert len(found) == 9
    assert Buckets(area=100, step=10, max_aspect=1).all_sizes == ((10, 10),)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({}, "expected sizes alone, or area"),
        ({"sizes": [(8, 8)], "area": 64}, "expected sizes alone, or area"),
        ({"sizes": [(8, 8)], "step": 8}, "expected sizes alone, or area"),
        ({"sizes": [(8, 8), (16, 8), (8, 8)]}, "1 to 256 sizes, each once"),
        ({"area": 63}, "1 to 256 sizes"),
        ({"area": 1 << 20, "max_aspect": 0.5}, "max_aspect=0.5.*a number from 1"),
        ({"area": 1 << 20, "step": 1}, "1 to 256 sizes.*another step"),
        ({"sizes": [(8, width) for width in range(1, 258)]}, r"^.{,85}: expected 1 to 256 sizes"),
        ({"sizes": [(8, 8)] * 300, "area": 64}, r"^.{,85}: expected sizes alone"),
    ],
)
def test_what_buckets_cannot_be(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        Buckets(**arguments)


# The order


@pytest.fixture(autouse=True, scope="module")
def _small_portions() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpuload.order.buckets._LEAST_PLANNED", 50)
        patch.setattr("gpuload.order.buckets._MOST_PLANNED", 64)
        yield


def numbers_of(shards: list[list[int]], buckets: int, seed: int = 0) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    share = 0.5 ** np.arange(buckets)
    return tuple(rng.choice(buckets, sum(sizes), p=share / share.sum()).astype(np.uint8) for sizes in shards)


def by_buckets(
    shards: list[list[int]],
    numbers: tuple[Any, ...],
    buckets: int,
    size: int,
    totals: Any = None,
    whole: bool = False,
    epochs: Epochs | None = None,
) -> BucketedStream:
    """Global batches of `size` samples, for a single rank unless epochs are given."""
    plan = BucketPlan(((1, 1),) * buckets, numbers, totals, whole)
    return BucketedStream(stream_of(*shards), plan, epochs or Epochs(1, size, False, 0, 1))


def batch_list(stream: BucketedStream, position: int, stop: int) -> list[Any]:
    found = []
    while position < stop:
        found.append(stream.batch_at(position))
        position = found[-1].stop
    return found


def plain(batches: list[Any]) -> list[Any]:
    return [(batch.start, batch.stop, batch.bucket, batch.members.tolist()) for batch in batches]


def by_a_loop(stream: Stream, numbers: tuple[Any, ...], size: int, samples: int, epoch: int | None) -> list[Any]:
    """(bucket, stream positions) of each global batch, by the rule itself."""
    queues: dict[int, list[int]] = {}
    batches = []
    for position in range(samples):
        (part,) = (part for part in stream.slices(position, position + 1) if len(part.rows))
        bucket = int(numbers[part.source][part.order[part.start : part.stop]][0])
        queue = queues.setdefault(bucket, [])
        queue.append(position)
        if len(queue) == size:
            batches.append((bucket, queues.pop(bucket)))
        if epoch is not None and (position + 1) % epoch == 0:
            batches += sorted(queues.items(), key=lambda entry: (-len(entry[1]), entry[0]))
            queues = {}
    return batches


SHARDS = st.lists(st.integers(0, 40), min_size=1, max_size=5).filter(any)


@settings(max_examples=40)
@given(st.lists(SHARDS, min_size=1, max_size=2), st.integers(1, 5), st.integers(1, 20), st.booleans())
def test_batches_are_those_of_the_rule(shards: list[list[int]], buckets: int, size: int, whole: bool) -> None:
    """Of a data set, and of a mixture, whose epochs are never whole."""
    numbers, whole = numbers_of(shards, buckets), whole and len(shards) == 1
    totals = np.bincount(numbers[0], minlength=buckets) if whole else None
    found = by_buckets(shards, numbers, buckets, size, totals, whole)
    total = sum(map(sum, shards))
    expected = by_a_loop(stream_of(*shards), numbers, size, min(3 * total, 300), total if whole else None)
    batches = batch_list(found, 0, sum(len(positions) for _, positions in expected))
    assert [(batch.bucket, batch.members["position"].tolist()) for batch in batches] == expected


@settings(max_examples=30)
@given(SHARDS, st.integers(1, 4), st.integers(1, 20), st.integers(0, 400), st.booleans())
def test_going_to_a_position_is_the_same_as_coming_there(
    shards: list[int], buckets: int, size: int, position: int, knows_passes: bool
) -> None:
    numbers = numbers_of([shards], buckets)
    totals = np.bincount(numbers[0], minlength=buckets)
    at_once = by_buckets([shards], numbers, buckets, size, totals if knows_passes else None)
    stepwise = by_buckets([shards], numbers, buckets, size)
    expected = plain(batch_list(stepwise, 0, position + 3 * size))
    after = position // size
    assert plain(batch_list(at_once, position, position + 3 * size)) == expected[after : after + len(expected)]
    waiting = stepwise.waiting()["position"], at_once.waiting()["position"]
    at_once_known = set(waiting[1].tolist())
    assert {p for p in waiting[0].tolist() if p < at_once._next} == {p for p in at_once_known if p < stepwise._next}


def test_a_rare_bucket_is_known_again_far_into_a_run() -> None:
    """Its batches hold samples of many passes: 3 of 300 samples, in batches of 32, wait for eleven."""
    numbers = np.zeros(300, np.uint8)
    numbers[:3], numbers[3:40] = 1, 2
    totals, shards = np.bincount(numbers), [[50] * 6]
    stepwise = by_buckets(shards, (numbers,), 3, 32, totals)
    for position in range(0, 32 * 400, 32):
        batch = stepwise.batch_at(position)
        if batch.bucket == 1:
            assert plain([by_buckets(shards, (numbers,), 3, 32, totals).batch_at(position)]) == plain([batch])


def test_going_far_looks_at_the_last_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at all passes before it: what is in the queues came in the last one."""
    shards = [50] * 40
    numbers = numbers_of([shards], 3)
    stream = by_buckets([shards], numbers, 3, 32, np.bincount(numbers[0], minlength=3))
    read: list[tuple[int, int]] = []
    real = stream._read
    monkeypatch.setattr(stream, "_read", lambda begin, end: read.append((begin, end)) or real(begin, end))  # type: ignore[func-returns-value]
    position = 1000 * 2000 // 32 * 32
    assert stream.batch_at(position).start == position
    assert min(begin for begin, _ in read) >= position // 2000 * 2000 - 2000


@pytest.mark.parametrize("whole", [False, True])
def test_ranks_wait_for_their_own_rows_alone(whole: bool) -> None:
    shards = [[100, 80, 90]]
    numbers = numbers_of(shards, 3)
    totals = np.bincount(numbers[0], minlength=3) if whole else None
    epochs = [Epochs(270, 24, False, rank, 3) for rank in range(3)]
    streams = [by_buckets(shards, numbers, 3, 24, totals, whole, of_rank) for of_rank in epochs]
    for position in (0, 48, 240):
        batches = [stream.batch_at(position) for stream in streams]
        assert len({batch.start for batch in batches}) == 1
        own = [stream.waiting()["position"].tolist() for stream in streams]
        together = {position for of_rank in own for position in of_rank}
        assert len(together) == sum(map(len, own)) and set(batches[0].members["position"].tolist()) <= together


def test_what_is_left_comes_from_the_largest_to_the_smallest() -> None:
    plan = BucketPlan((), (), np.array((26, 7, 3)), is_whole=True)  # batches of 12: two whole ones, then 7, 3 and 2
    epochs = [plan.epochs(Epochs(36, 12, "exact", rank, 4)) for rank in range(4)]
    assert [e.batches for e in epochs] == [5] * 4
    start = epochs[0].start(2)
    parts = [[*e.parts(start), *e.empty_parts(start)] for e in epochs]
    sizes = np.array([[part.samples for part in of_rank] for of_rank in parts])
    assert sizes.T.tolist() == [[3, 3, 3, 3], [3, 3, 3, 3], [2, 2, 2, 1], [1, 1, 1, 0], [1, 1, 0, 0]]
    assert [part.stop for part in parts[3]] == [84, 96, 103, 106, 108]
    assert epochs[3].empty_parts(start) == [Part(106, 106, 106), Part(108, 108, 108)]
    assert list(epochs[0].parts(start._replace(samples=31))) == [Part(103, 104, 106), Part(106, 107, 108)]
    covered = Counter(p for of_rank in parts for part in of_rank for p in range(part.first, part.last))
    assert covered == Counter(range(72, 108))
    padded = [plan.epochs(Epochs(36, 12, False, rank, 4)) for rank in range(4)]
    assert all(list(one.parts(start))[-2:] == [Part(105, 106, 106), Part(107, 108, 108)] for one in padded[2:])
    found = [[one.padding(*ends) for ends in ((96, 103), (103, 106), (106, 108))] for one in padded]
    assert found == [[0, 0, 0], [0, 0, 0], [0, 0, 1], [0, 1, 1]]
    assert not any(one.padding(106, 108) for one in epochs)
