"""Samples that come several times in a row: divided as RASampler does, each equally often over epochs, other crops."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from loaders import load

import gpuload
from gpuload import ArgumentError, Repeated


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_ranks_take_turns_as_with_rasampler(packed: Path, world: int) -> None:
    """RASampler's parts of `order`, each element three times: every world-th element."""
    options = {"sampling": Repeated(3), "fields": ("index",), "shuffle": gpuload.Shuffle(window=2)}
    ranks = [load(packed, 12 // world, rank=rank, world_size=world, **options) for rank in range(world)]
    assert {len(loader) for loader in ranks} == {97 // 12}
    (alone,) = [load(packed, 12, **options)]
    stream = [number for _ in range(4) for (index,) in alone for number in index.tolist()]
    for rank, loader in enumerate(ranks):
        own = [number for _ in range(4) for (index,) in loader for number in index.tolist()]
        # An epoch is 97 samples of the stream, of which 8 batches of 12 are handed out.
        places = [97 * epoch + place for epoch in range(4) for place in range(96)]
        assert own == [stream[96 * (at // 97) + at % 97] for at in places if at % world == rank]


def test_a_resumed_run_has_the_rest_of_the_repetitions(packed: Path) -> None:
    """On other ranks, in the middle of a sample's three."""
    options = {"sampling": Repeated(3), "fields": ("index", "image")}

    def pairs(batch: Any) -> list[tuple[int, bytes]]:
        return [(int(number), image.numpy().tobytes()) for number, image in zip(*batch, strict=True)]

    alone, resumed = (
        load(packed, 8, **options),
        [load(packed, 4, rank=rank, world_size=2, **options) for rank in (0, 1)],
    )
    batches = iter(alone)
    pairs(next(batches))
    state = alone.state_dict()
    rest = [pair for batch in batches for pair in pairs(batch)]
    found = []
    for loader in resumed:
        loader.load_state_dict(state)
        found.append([pair for batch in loader for pair in pairs(batch)])
    assert sorted(found[0] + found[1]) == sorted(rest) and len(rest) == 88
    assert found[0] == [pair for at, pair in enumerate(rest) if at % 2 == 0]  # an even number came before


def test_each_sample_comes_equally_often(packed: Path) -> None:
    loader = load(packed, 97, sampling=Repeated(3), fields=("index", "image"))
    epochs = [
        [(int(i), image.numpy().tobytes()) for i, image in zip(*next(iter(loader)), strict=True)] for _ in range(3)
    ]
    for epoch in epochs:
        assert len({index for index, _ in epoch}) in (33, 34)
        assert epoch[1][0] == epoch[2][0] if epoch is epochs[0] else True
    assert set(Counter(index for epoch in epochs for index, _ in epoch).values()) == {3}
    assert len({pixels for epoch in epochs for _, pixels in epoch}) > 280  # 291 crops, some of which are alike


def test_what_it_does_not_go_with(packed: Path) -> None:
    for options, message in [
        ({"sampling": Repeated(3), "shuffle": False}, "samples are drawn at random"),
        ({"sampling": Repeated(3), "drop_last": "even"}, "Use one of them"),
        ({"sampling": Repeated(3), "shuffle": gpuload.Shuffle(lanes=2)}, "without sampling="),
    ]:
        with pytest.raises(ArgumentError, match=message):
            load(packed, **options)
    with pytest.raises(ArgumentError, match="is for a single data set, found a mixture of 2"):
        load(gpuload.mix([(str(packed), 1), (str(packed), 1)]), sampling=Repeated(3))  # type: ignore[arg-type]
    state = load(packed, sampling=Repeated(3)).state_dict()
    with pytest.raises(gpuload.StateError, match="was made with sampling="):
        load(packed, sampling=Repeated(2)).load_state_dict(state)
    with pytest.raises(ArgumentError, match=r"Repeated\(times=1\)"):
        Repeated(1)
