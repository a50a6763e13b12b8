"""Epochs in lanes, by the loader: the same batches for every number of ranks, also after a run is resumed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaders import load

import gpuload
from gpuload.cli import main


def test_a_rank_reads_the_shards_of_its_lanes_alone(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[set[int]] = []
    mapped = gpuload.read.shards.MappedShard.__init__

    def watched(shard: Any, dataset: Any, number: int, *rest: Any) -> None:
        opened[-1].add(number)
        mapped(shard, dataset, number, *rest)

    monkeypatch.setattr(gpuload.read.shards.MappedShard, "__init__", watched)
    for rank in range(4):
        opened.append(set())
        loader = load(packed, 8, rank=rank, world_size=4, drop_last=False, shuffle=gpuload.Shuffle(window=1, lanes=4))
        read = {int(sample) // 10 for _ in range(3) for index, *_ in loader for sample in index}
        loader.close()
        assert read <= opened[-1]
    assert all(len(shards) <= 4 for shards in opened)  # 2.5, and parts of two
    assert set.union(*opened) == set(range(10))


def test_lanes_are_part_of_a_loader(packed: Path) -> None:
    with pytest.raises(gpuload.ArgumentError, match=r"lanes=2\): .*without sampling="):
        load(packed, shuffle=gpuload.Shuffle(lanes=2), sampling=gpuload.Balance("label"))
    with pytest.warns(UserWarning, match="3 ranks with batch_size=8 cannot have lanes of their own") as warned:
        assert load(packed, rank=0, world_size=3, shuffle=gpuload.Shuffle(lanes=4)).state_dict()["lanes"] == 4
    assert warned[0].filename.endswith("loaders.py")


def test_info_tells_how_lanes_mix(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    distances = []
    for lanes in ([], ["--lanes", "4"]):
        assert main(["info", str(packed), "--window", "1", "--batch-size", "8", *lanes]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert ("mixed at a time, in each of 4 lanes" in said) == bool(lanes)
        distances.append(float(said.partition("distance ")[2].split()[0]))
    assert distances[1] < 0.7 * distances[0]
    assert main(["info", str(packed), "--lanes", "11"]) == 2
    assert "--lanes 11: expected a whole number in 1..10" in capsys.readouterr().err.replace("\n", " ")
    assert np.isfinite(distances).all()
