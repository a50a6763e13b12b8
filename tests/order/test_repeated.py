"""Samples that come several times in a row: divided as RASampler does, each equally often over epochs, other crops."""

from collections import Counter
from pathlib import Path

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


def test_each_sample_comes_equally_often(packed: Path) -> None:
    """In three epochs thrice, with other crops: 291, some of which are alike."""
    loader = load(packed, 97, sampling=Repeated(3), fields=("index", "image"))
    epochs = [
        [(int(i), image.numpy().tobytes()) for i, image in zip(*batch, strict=True)]
        for _ in range(3)
        for batch in loader
    ]
    assert all(len({index for index, _ in epoch}) in (33, 34) for epoch in epochs)
    assert set(Counter(index for epoch in epochs for index, _ in epoch).values()) == {3}
    assert len({pixels for epoch in epochs for _, pixels in epoch}) > 280


def test_what_it_does_not_go_with(packed: Path) -> None:
    for options, message in [
        ({"sampling": Repeated(3), "shuffle": False}, "samples are drawn at random"),
        ({"sampling": Repeated(3), "drop_last": "even"}, "Use one of them"),
        ({"sampling": Repeated(3), "shuffle": gpuload.Shuffle(lanes=2)}, "Use one of them"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            load(packed, **options)
    with pytest.raises(ArgumentError, match="is for a single data set, found a mixture of 2"):
        load(gpuload.mix([(str(packed), 1), (str(packed), 1)]), sampling=Repeated(3))  # type: ignore[arg-type]
    state = load(packed, sampling=Repeated(3)).state_dict()
    with pytest.raises(gpuload.StateError, match="was made with sampling="):
        load(packed, sampling=Repeated(2)).load_state_dict(state)
