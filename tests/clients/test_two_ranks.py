"""The clients of `two_ranks.py`: each sample once, the same steps, and resuming."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import prepared
import pytest
from small import load

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def ranks(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each of two ranks found."""
    notes = tmp_path_factory.mktemp("notes")
    paths = os.pathsep.join([str(HERE), str(HERE.parent), str(HERE.parents[1])])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    program = [str(HERE / "two_ranks.py"), str(packed), str(notes)]
    done = subprocess.run(
        [*prepared.torchrun(2, "torchvision_anywhere", "accelerate", "transformers"), *program],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((notes / f"rank{rank}.json").read_text()) for rank in range(2)]


def parts(packed: Path) -> list[list[list[str]]]:
    """The keys of each batch that two ranks train with in two epochs."""
    loaders = [load(packed, fields=("key",), rank=rank, world_size=2) for rank in range(2)]
    return [[keys for _ in range(2) for (keys,) in loader] for loader in loaders]


def test_accelerate_gathers_each_sample_once_and_updates_at_the_end(ranks: list[Any]) -> None:
    for rank in ranks:
        assert rank["accelerate"] == {"tensors": list(range(97)), "objects": list(range(97)), "updates": 2}


def test_trainer_resumes_and_evaluates_each_sample_once(packed: Path, ranks: list[Any]) -> None:
    labels = [label.item() for _, label in load(packed, 1, shuffle=False)]
    for rank, expected in zip(ranks, parts(packed), strict=True):
        assert rank["transformers"]["seen"] == [expected, expected[7:]]
        assert rank["transformers"]["labels"] == labels


def test_torchmetrics_adds_up(packed: Path, ranks: list[Any]) -> None:
    share = sum(label.item() == 0 for _, label in load(packed, 1, shuffle=False)) / 97
    for rank in ranks:
        assert rank["torchmetrics"] == {"zeros": pytest.approx(share), "count": 97}
