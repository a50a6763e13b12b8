"""Budgets of tokens: how many patches images have, and which batches follow from their numbers."""

from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from streams import stream_of

from gpuload import ArgumentError
from gpuload.order.buckets import BucketPlan, TokenEpochs
from gpuload.order.budget import PatchGrid, find_batch_sizes
from gpuload.order.stream import Epochs, Part, Position

sides = st.integers(1, 65_535)


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [
        (384, 512, (24, 32)),
        (375, 500, (23, 31)),  # 23.4 and 31.25
        (376, 504, (24, 32)),  # 23.5 and 31.5, to the even ones
        (1024, 1024, (32, 32)),  # made smaller
        (2000, 1000, (45, 22)),  # 45.3 and 22.6, of which 23 would be too many
        (5, 3, (1, 1)),
        (8, 65_535, (1, 1024)),  # one row, and no more patches than there may be
    ],
)
def test_images_have_the_nearest_number_of_patches(height: int, width: int, expected: tuple[int, int]) -> None:
    shapes = PatchGrid(16, 1024).shapes(np.array([height]), np.array([width]))
    assert shapes.tolist() == [list(expected)]


@given(st.lists(st.tuples(sides, sides), min_size=1, max_size=20), st.integers(1, 64), st.integers(1, 65_535))
def test_no_image_has_more_patches_than_allowed(images: Any, patch: int, most: int) -> None:
    heights, widths = np.array(images).T
    shapes = PatchGrid(patch, most).shapes(heights, widths)
    assert shapes.min() >= 1 and shapes.prod(axis=1).max() <= most and (shapes * patch).max() <= 65_535
    unscaled = heights * widths <= most * patch**2
    distance = np.abs(shapes - np.stack([heights, widths], axis=1) / patch)
    fits = np.maximum(1, np.rint(np.stack([heights, widths], axis=1) / patch)).prod(axis=1) <= most
    assert (distance[unscaled & fits] <= 1).all()


@given(st.integers(1, 65_535))
def test_a_bucket_pads_at_most_a_twentieth(most: int) -> None:
    lengths = PatchGrid(16, most).lengths
    assert lengths[0] == 1 and lengths[-1] == most and len(lengths) <= 256
    shortest = np.concatenate([[1], lengths[:-1] + 1])
    assert (shortest >= 0.95 * lengths).all()


totals = st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any)


@given(totals, st.integers(1, 4), st.integers(0, 200), st.booleans())
def test_what_is_left_comes_in_whole_batches(counts: list[int], multiple: int, more: int, drops: bool) -> None:
    lengths = 10 * np.arange(1, len(counts) + 1)
    tokens = multiple * int(lengths[-1]) + more
    sizes = find_batch_sizes(lengths, np.array(counts), tokens, multiple, drops_rest=drops)
    assert (sizes.of_buckets % multiple == 0).all() and (sizes.of_buckets * lengths <= tokens)[
        np.array(counts) > 0
    ].all()
    samples = [0] * len(counts)
    for batch in sizes.left:
        size = 0
        for bucket, first, stop in batch:
            assert first == samples[bucket] < stop  # each once, none left out between them
            samples[bucket] = stop
            size += stop - first
        assert size * max(lengths[bucket] for bucket, _, _ in batch) <= tokens
        assert size % multiple == 0 or (not drops and batch is sizes.left[-1])
    missing = int((np.array(counts) % sizes.of_buckets).sum()) - sum(samples)
    assert missing < multiple if drops else missing == 0


def test_too_few_tokens_for_the_longest_images() -> None:
    with pytest.raises(
        ArgumentError, match="99 tokens over all ranks, and 10 images of 10 tokens, the longest, have more"
    ):
        find_batch_sizes(np.array([5, 10, 20]), np.array([3, 1, 0]), 99, 10, drops_rest=True)


def epochs_of(counts: Any, tokens: int, rank: int, ranks: int, multiple: int, drops: bool, seed: int) -> TokenEpochs:
    numbers = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts)).astype(np.uint8)
    lengths = 10 * np.arange(1, len(counts) + 1)
    sizes = find_batch_sizes(lengths, np.array(counts), tokens, multiple, drops_rest=drops)
    plan = BucketPlan((), (numbers,), np.array(counts), True, sizes)
    shards = [5] * (len(numbers) // 5) + [len(numbers) % 5 or 5] * (len(numbers) % 5 > 0)

    def make_stream() -> Any:
        return stream_of(shards, seed=seed)

    return TokenEpochs(len(numbers), 1, drops, rank, ranks, plan=plan, make_stream=make_stream)


@given(totals, st.sampled_from([1, 2, 4]), st.integers(0, 100), st.booleans(), st.integers(0, 99), st.data())
def test_ranks_take_the_same_steps(counts: Any, ranks: int, more: int, drops: bool, seed: int, data: Any) -> None:
    """As many in each epoch, and from any batch on. Whole batches of ranks are equally large."""
    tokens = 4 * 10 * len(counts) + more
    of_ranks = [epochs_of(counts, tokens, rank, ranks, 4, drops, seed) for rank in range(ranks)]
    first = of_ranks[0]
    for epoch in (0, 3):
        start = first.start(epoch)
        parts = [list(epochs.parts(start)) for epochs in of_ranks]
        assert {len(part) for part in parts} == {len(first) if isinstance(first, list) else first.batches}
        stops = [part.stop - start.begin for part in parts[0]]
        assert all([part.stop - start.begin for part in rank] == stops for rank in parts)
        assert (stops[-1] if stops else 0) == first.handed_out
        for step in zip(*parts, strict=True):
            size = step[0].stop - min(part.first for part in step)
            if size % ranks == 0:
                assert {part.samples for part in step} == {size // ranks}
        if stops:
            number = data.draw(st.integers(0, len(stops) - 1))
            rest = Position(epoch, start.begin, stops[number])
            assert list(first.parts(rest)) == parts[0][number + 1 :]
            assert first.is_last(rest) == (number == len(stops) - 1)


def test_a_set_of_fewer_samples_than_a_batch_has_one_batch() -> None:
    epochs = epochs_of((3, 0, 2), 1000, 0, 2, 2, False, 0)
    assert list(epochs.parts(epochs.start(0))) == [Part(0, 2, 4), Part(4, 5, 5)]
    dropped = epochs_of((3, 0, 2), 1000, 1, 2, 2, True, 0)
    assert list(dropped.parts(dropped.start(1))) == [Part(7, 9, 9)] and dropped.handed_out == 4
    usual = Epochs(5, 4, False, 0, 2)
    assert list(accumulate(part.samples for part in usual.parts(usual.start(0)))) == [2, 3]
