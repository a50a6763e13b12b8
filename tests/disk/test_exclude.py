"""`exclude`: which samples it leaves out, and that a loader with it is one over a subset."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loaders import load

import gpuload

OUT = (3, 17, 50, 96)


def entries(folder: Path, samples: tuple[int, ...]) -> list[dict[str, Any]]:
    """What `verify --quarantine` writes of samples."""
    rows = [
        (row, path.name)
        for number, path in enumerate(gpuload.Dataset(folder).shard_paths)
        for row in gpuload.Dataset(folder).rows(number).to_pylist()
    ]
    chosen = [rows[sample] for sample in samples]
    return [
        {"key": row["key"], "shard": name, "offset": row["image_offset"], "bytes": row["image_bytes"], "reason": "ü"}
        for row, name in chosen
    ]


def write(path: Path, samples: list[dict[str, Any]], more: str = "") -> Path:
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples) + more)
    return path


def same(first: gpuload.DaliIterator, second: gpuload.DaliIterator) -> None:
    assert len(first) == len(second) and first.state_dict() == second.state_dict()
    for one, other in zip(first, second, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("form", ["file", "keys"])
def test_it_is_the_same_as_a_subset(packed: Path, tmp_path: Path, form: str) -> None:
    dataset = gpuload.Dataset(packed)
    exclude: Any = write(tmp_path / "list", entries(packed, OUT)) if form == "file" else np.array(dataset.keys(OUT))
    rest = dataset.subset([n for n in range(97) if n not in OUT])
    with load(gpuload.Dataset(packed, exclude=exclude)) as found, load(rest) as expected:
        same(found, expected)
    part = gpuload.Dataset(packed, exclude=exclude)
    assert pickle.loads(pickle.dumps(part)).fingerprint == part.fingerprint == rest.fingerprint
    few, fewer = part.subset(range(40)), rest.subset(range(40))
    with load(few) as found, load(fewer) as expected:
        same(found, expected)
    with (
        load(gpuload.mix([(part, 0.6), (few, 0.4)])) as found,
        load(gpuload.mix([(rest, 0.6), (fewer, 0.4)])) as expected,
    ):
        same(found, expected)
    with load(packed) as whole, load(gpuload.Dataset(packed, exclude=exclude)) as part:
        state = whole.state_dict()
        with pytest.raises(gpuload.StateError, match="is of another data set"):
            part.load_state_dict(state)


def test_a_list_of_another_set_leaves_out_nothing(packed: Path, tmp_path: Path) -> None:
    """Of the other split, say: keys may be the same, places and sizes are not."""
    (sample,) = entries(packed, (3,))
    changes: list[dict[str, Any]] = [{"bytes": sample["bytes"] + 1}, {"shard": "shard-000099.tar"}, {"key": "x"}]
    others = write(tmp_path / "list", [{**sample, **change} for change in changes])
    with load(gpuload.Dataset(packed, exclude=others)) as loader:
        assert len(loader.dataset) == 97 and loader.dataset.fingerprint == gpuload.Dataset(packed).fingerprint


def test_what_cannot_be_left_out_is_named(packed: Path, tmp_path: Path) -> None:
    keys = gpuload.Dataset(packed).keys(range(97))
    with pytest.raises(
        gpuload.ArgumentError, match=r"Dataset\(exclude\): .*train has no sample with the key 'no', 'none'. K"
    ):
        load(gpuload.Dataset(packed, exclude=[keys[0], "no", "none"]))
    with pytest.raises(gpuload.ArgumentError, match=r"Dataset\(exclude\): leaves out all samples of .*train\. Is it"):
        load(gpuload.Dataset(packed, exclude=keys))
    with pytest.raises(gpuload.ArgumentError, match=r"nowhere: cannot be read as a quarantine list \(.*No such file"):
        load(gpuload.Dataset(packed, exclude=tmp_path / "nowhere"))


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[1]",
        "{}",
        '"text"',
        "[" * 100_000,
        '{"key": 1, "shard": "s", "offset": 1, "bytes": 1}',
        '{"key": "k", "shard": "s", "offset": 1.5, "bytes": 1}',
        '{"key": "k", "shard": "s", "offset": true, "bytes": 1}',
    ],
)
def test_a_line_that_is_no_sample_is_named(packed: Path, tmp_path: Path, line: str) -> None:
    path = write(tmp_path / "list", entries(packed, (1,)), f"{line}\n")
    with pytest.raises(gpuload.ArgumentError, match="line 2 is no sample of a quarantine list"):
        gpuload.Dataset(packed, exclude=path)
