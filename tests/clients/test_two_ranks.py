"""The clients of `two_ranks.py`: each sample once, the same steps, and resuming."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import prepared
import pytest
from images import encode, photo
from small import load

import gpuload

CAPTIONS = 27
IMPORTED = ("torchvision_anywhere", "accelerate", "transformers", "timm", "open_clip_train.train")
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def ranks(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each of two ranks found."""
    notes = tmp_path_factory.mktemp("notes")
    image = encode(photo(0, 16, 16))
    captions = ({"image": image, "caption": f"photo {number}"} for number in range(CAPTIONS))
    gpuload.pack(captions, notes / "captions", workers=1, shuffle=False)
    paths = os.pathsep.join([str(HERE), str(HERE.parent), str(HERE.parents[1])])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    program = [str(HERE / "two_ranks.py"), str(packed), str(notes)]
    done = subprocess.run([*prepared.torchrun(2, *IMPORTED), *program], capture_output=True, text=True, env=environment)
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


def test_timm_trains_resumes_and_validates(packed: Path, ranks: list[Any]) -> None:
    labels = [label.item() for _, label in load(packed, 1, shuffle=False)]
    epoch = len(parts(packed)[0]) // 2
    for rank, expected in zip(ranks, parts(packed), strict=True):
        assert rank["timm"]["seen"] == [expected, expected[epoch:]]
        assert rank["timm"]["accuracy"] == pytest.approx(rank["timm"]["right"] / 97)
        assert rank["timm"]["counts"] == [labels.count(number) for number in range(3)]
    assert ranks[0]["timm"]["loss"] == ranks[1]["timm"]["loss"]
    assert ranks[0]["timm"]["right"] == ranks[1]["timm"]["right"]


def test_open_clip_trains_on_each_caption_once(ranks: list[Any]) -> None:
    seen = [rank["open_clip"]["seen"] for rank in ranks]
    assert [len(one) for one in seen] == [6, 6]  # two epochs of 3 global batches of 8
    assert all(len(numbers) == 4 for one in seen for numbers in one)
    epochs = [[number for one in seen for batch in one[at : at + 3] for number in batch] for at in (0, 3)]
    assert all(len(set(epoch)) == len(epoch) == 24 for epoch in epochs) and epochs[0] != epochs[1]
    assert ranks[0]["open_clip"]["weights"] == ranks[1]["open_clip"]["weights"]
