"""`exclude`: which samples it leaves out, and that a loader with it is one over a subset."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaders import load, same
from reading import rows_of

import gpuload
from gpuload import ArgumentError, StateError

OUT = (3, 17, 50, 96)


def entries(folder: Path, samples: tuple[int, ...]) -> list[dict[str, Any]]:
    """What `verify --quarantine` writes of samples."""
    rows = [rows_of(folder)[sample] for sample in samples]
    names = {"key": "key", "shard": "shard", "offset": "image_offset", "bytes": "image_bytes"}
    return [{**{name: row[column] for name, column in names.items()}, "reason": "ü"} for row in rows]


def write(path: Path, samples: list[dict[str, Any]], more: str = "") -> Path:
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples) + more)
    return path


def assert_same(first: Any, second: Any) -> None:
    with load(first) as found, load(second) as expected:
        assert len(found) == len(expected) and found.state_dict() == expected.state_dict()
        assert same(found, expected)


@pytest.mark.parametrize("form", ["file", "keys"])
def test_it_is_the_same_as_a_subset(packed: Path, tmp_path: Path, form: str) -> None:
    dataset = gpuload.Dataset(packed)
    exclude: Any = write(tmp_path / "list", entries(packed, OUT)) if form == "file" else np.array(dataset.keys(OUT))
    rest = dataset.subset([n for n in range(97) if n not in OUT])
    part = gpuload.Dataset(packed, exclude=exclude)
    assert_same(part, rest)
    assert pickle.loads(pickle.dumps(part)).fingerprint == part.fingerprint == rest.fingerprint
    few, fewer = part.subset(range(40)), rest.subset(range(40))
    assert_same(few, fewer)
    assert_same(gpuload.mix([(part, 0.6), (few, 0.4)]), gpuload.mix([(rest, 0.6), (fewer, 0.4)]))
    with load(packed) as whole, load(part) as loader, pytest.raises(StateError, match="made with fingerprint="):
        loader.load_state_dict(whole.state_dict())


def test_a_list_of_another_set_leaves_out_nothing(packed: Path, tmp_path: Path) -> None:
    """Of the other split, say: keys may be the same, places and sizes are not."""
    (sample,) = entries(packed, (3,))
    changes: list[dict[str, Any]] = [{"bytes": sample["bytes"] + 1}, {"shard": "shard-000099.tar"}, {"key": "x"}]
    others = write(tmp_path / "list", [{**sample, **change} for change in changes])
    assert gpuload.Dataset(packed, exclude=others).fingerprint == gpuload.Dataset(packed).fingerprint


LINES = [
    "{", "[1]", "{}", '"text"', "[" * 100_000, '{"key": 1, "shard": "s", "offset": 1, "bytes": 1}',
    '{"key": "k", "shard": "s", "offset": 1.5, "bytes": 1}', '{"key": "k", "shard": "s", "offset": true, "bytes": 1}',
]  # fmt: skip


def test_what_cannot_be_left_out_is_named(packed: Path, tmp_path: Path) -> None:
    keys = gpuload.Dataset(packed).keys(range(97))
    lists = [write(tmp_path / f"{n}", entries(packed, (1,)), f"{line}\n") for n, line in enumerate(LINES)]
    for exclude, message in [
        *((path, "line 2 is no sample of a quarantine list") for path in lists),
        ([keys[0], "no", "none"], r"Dataset\(exclude\): .*train has no sample with the key 'no', 'none'. K"),
        (keys, r"Dataset\(exclude\): leaves out all samples of .*train\. Is it"),
        (tmp_path / "nowhere", r"nowhere: cannot be read as a quarantine list \(.*No such file"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            gpuload.Dataset(packed, exclude=exclude)  # type: ignore[arg-type]
