"""The state of a run: what it holds and what it is refused for; and how many batches an epoch has."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loaders import load

import gpuload
from gpuload import ArgumentError, Balance, Dataset, StateError

POSITION = {"epoch": 2, "begin": 2468, "samples": 40}


@pytest.fixture(scope="module")
def loader(packed: Path) -> Iterator[gpuload.DaliIterator]:
    with load(packed, seed=3) as loader:
        yield loader


@pytest.fixture
def state(loader: gpuload.DaliIterator) -> dict[str, Any]:
    """Of another run, so that a refused state can be seen to change nothing."""
    loader.load_state_dict({**loader.state_dict(), "epoch": 1, "begin": 1234, "samples": 8})
    return {**loader.state_dict(), **POSITION}


def refuse(loader: gpuload.DaliIterator, state: Any, message: str) -> None:
    before = loader.state_dict()
    with pytest.raises(StateError, match=message):
        loader.load_state_dict(state)
    assert loader.state_dict() == before


def test_a_state_is_plain_numbers(packed: Path, loader: gpuload.DaliIterator, state: dict[str, Any]) -> None:
    settings = {"seed": 3, "shuffle": True, "window": 8}
    data = {"fingerprint": Dataset(packed).fingerprint, "dataset_samples": 97}
    assert {"version": 1, **POSITION, **settings, **data} == state
    loader.load_state_dict(json.loads(json.dumps(state)))
    assert loader.state_dict() == state


@pytest.mark.parametrize("made", [int, float, np.int64, np.array, torch.tensor])
def test_numbers_of_a_state_may_have_become_arrays(
    loader: gpuload.DaliIterator, state: dict[str, Any], made: Any
) -> None:
    loader.load_state_dict({**state, **{name: made(value) for name, value in POSITION.items()}})
    assert loader.state_dict() == state
    assert all(type(loader.state_dict()[name]) is int for name in POSITION)


@pytest.mark.parametrize(("name", "most"), [("epoch", 2**62 - 1), ("begin", 2**62 - 1), ("samples", 97)])
def test_positions_are_whole_numbers_from_0(
    loader: gpuload.DaliIterator, state: dict[str, Any], name: str, most: int
) -> None:
    for value in (0, most):
        loader.load_state_dict({**state, name: value})
        assert loader.state_dict()[name] == value
    for value in (-1, 2**62, 10**30, 0.5, "7", "x", None, float("nan"), float("inf"), [1, 2]):
        message = f"^state_dict: has {name}=.*, expected a whole number from 0. Was it edi"
        refuse(loader, {**state, name: value}, message)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"seed": 4}, "made with seed=4, this loader has seed=3. The order would differ: construct it with the same data"),
    ({"seed": "3"}, "was made with seed='3', this loader has seed=3"),
    ({"shuffle": False}, "was made with shuffle=False, this loader has shuffle=True"),
    ({"window": 9}, "was made with window=9, this loader has window=8"),
    ({"lanes": 4}, "was made with lanes=4, this loader has lanes=1"),
    ({"samples": 98}, "is 98 samples into its epoch, which has 97 here.*made with steps_per_epoch"),
    ({"version": 2}, "has version=2 .* expected version 1. Give what"),
    ({"fingerprint": "f" * 16}, r"was made with fingerprint='f{16}', this loader has fingerprint='\w{16}'. The order"),
    ({"sampling": "f0"}, "was made with sampling='f0', this loader has sampling=None"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_a_state_of_another_run_is_refused(
    loader: gpuload.DaliIterator, state: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    refuse(loader, {**state, **change}, message)


def test_what_is_no_whole_state_is_told(loader: gpuload.DaliIterator, state: dict[str, Any]) -> None:
    for name in set(state) - {"version"}:
        message = f"^state_dict: has .*, expected version 1 with {name}. Give what state_dict"
        refuse(loader, {key: value for key, value in state.items() if key != name}, message)
    refuse(loader, {}, r"the entries \[\], expected version 1 with .*begin")
    refuse(loader, {"loader": state}, r"the entries \['loader'\].* that holds it, that entry")


@pytest.mark.parametrize(
    ("batch_size", "options", "message"),
    [
        (98, {}, r"^batch_size=98, .* is larger than .*train \(97 samples\), so an epoch has no .*, or drop_last=F"),
        (49, {"rank": 1, "world_size": 2}, r"^batch_size=49, world_size=2: .* is larger than .*train \(97 samples\)"),
        (8, {"sampling": Balance("label", num_samples=7)}, r"^batch_size=8, .* is larger than .*train \(7 samples\)"),
    ],
)
def test_an_epoch_without_a_batch_is_refused(
    packed: Path, batch_size: int, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        load(packed, batch_size, **options)
    for more in ({"drop_last": False}, {"steps_per_epoch": 1}):
        with load(packed, batch_size, **options, **more) as loader:
            assert len(loader) == 1
