"""Epochs in lanes, by the loader: the same batches for every number of ranks, also after a run is resumed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaders import drain, load, world

import gpuload
from gpuload.cli import main

Rows = list[tuple[int, bytes]]


def batches(loaders: list[gpuload.DaliIterator], steps: int | None = None) -> list[Rows]:
    """The samples of each global batch, sorted: ranks divide it in other ways."""
    found = []
    for number, parts in enumerate(zip(*loaders, strict=True), start=1):
        rows = [
            (int(i), image.numpy().tobytes())
            for index, images, _ in parts
            for i, image in zip(index, images, strict=True)
        ]
        found.append(sorted(rows))
        if number == steps:
            break
    return found


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("steps_per_epoch", [None, 5])
def test_batches_do_not_depend_on_ranks(packed: Path, drop_last: bool, steps_per_epoch: int | None) -> None:
    """97 samples in batches of 16: epochs of 5 steps go over the ends of passes."""
    options: dict[str, Any] = {
        "lanes": 4, "window": 1, "drop_last": drop_last, "steps_per_epoch": steps_per_epoch
    }  # fmt: skip
    alone = load(packed, 16, **options)
    expected = [batches([alone]) for _ in range(3)]
    assert len({row for batch in expected[0] for row in batch}) == sum(map(len, expected[0]))
    for size in (2, 4):
        loaders = world(packed, size, 16 // size, **options)
        assert [batches(loaders) for _ in range(3)] == expected
    for ranks in (1, 4):  # resumed in the middle of the second epoch
        first = world(packed, 2, 8, **options)
        batches(first)
        begun = batches(first, 2)
        rest = world(packed, ranks, 16 // ranks, **options)
        for loader in rest:
            loader.load_state_dict(first[0].state_dict())
        assert begun + batches(rest) == expected[1]
        assert batches(rest) == expected[2]


def test_subsets_have_lanes(packed: Path) -> None:
    part = gpuload.Dataset(packed).subset(range(3, 90, 2))
    loaders = world(part, 2, 4, lanes=2, window=2, drop_last=False)
    assert sorted(sample for sample, _ in drain(loaders)) == list(range(3, 90, 2))


def test_a_rank_reads_the_shards_of_its_lanes_alone(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[set[int]] = []
    mapped = gpuload.read.shards.MappedShard.__init__

    def watched(shard: Any, dataset: Any, number: int, *rest: Any) -> None:
        opened[-1].add(number)
        mapped(shard, dataset, number, *rest)

    monkeypatch.setattr(gpuload.read.shards.MappedShard, "__init__", watched)
    for rank in range(4):
        opened.append(set())
        loader = load(packed, 8, rank=rank, world_size=4, lanes=4, window=1, drop_last=False)
        read = {int(sample) // 10 for _ in range(3) for index, *_ in loader for sample in index}
        loader.close()
        assert read <= opened[-1]
    assert all(len(shards) <= 4 for shards in opened)  # 2.5, and parts of two
    assert set.union(*opened) == set(range(10))


def test_lanes_are_part_of_a_loader(packed: Path) -> None:
    loader = load(packed, 8, lanes=4)
    assert loader.lanes == 4 and loader.state_dict()["lanes"] == 4 and "lanes" not in load(packed).state_dict()
    with pytest.raises(gpuload.StateError, match="was made with lanes=4, this loader has lanes=1"):
        load(packed).load_state_dict(loader.state_dict())
    with pytest.raises(gpuload.ArgumentError, match=r"lanes=11\): expected at most as many lanes as shards"):
        load(packed, lanes=11)
    with pytest.raises(gpuload.ArgumentError, match=r"lanes=2\): expected neither balance= nor weights="):
        load(packed, lanes=2, balance="label")
    with pytest.warns(UserWarning, match="3 ranks with batch_size=8 cannot have lanes of their own") as warned:
        load(packed, lanes=4, rank=0, world_size=3)
    assert warned[0].filename.endswith("loaders.py")


def test_info_tells_how_lanes_mix(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    distances = []
    for lanes in ([], ["--lanes", "4"]):
        assert main(["info", str(packed), "--window", "1", "--batch-size", "8", *lanes]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert ("lanes 4, each with such a window of its own" in said) == bool(lanes)
        distances.append(float(said.partition("distance ")[2].split()[0]))
    assert distances[1] < 0.7 * distances[0]
    assert main(["info", str(packed), "--lanes", "11"]) == 2
    assert "--lanes 11: expected a whole number in 1..10" in capsys.readouterr().err.replace("\n", " ")
    assert np.isfinite(distances).all()


def test_a_lone_data_set_is_number_0(packed: Path) -> None:
    for loader in world(packed, 2, 8, lanes=4, window=1, fields=("dataset",)):
        assert all(not numbers.any() for (numbers,) in loader)
