"""The state of a run: what it holds, what it is refused for, and where epochs of a loader begin and end."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gpuload import ArgumentError, Balance, StateError
from gpuload.machine.ranks import Ranks
from gpuload.order.plan import OrderOptions, find_epochs
from gpuload.order.position import Position, RunIdentity


class Data:
    """All that a state asks of a data set."""

    folder, fingerprint = "shards/train", "0123456789abcdef"

    def __init__(self, samples: int = 1234) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples


def identity(**changes: Any) -> RunIdentity:
    data: Any = Data()
    return replace(RunIdentity(data, seed=3, shuffle=True, window=8), **changes)


STATE = identity().state_dict(Position(2, 2468, 40))


def test_a_state_is_plain_numbers() -> None:
    plain = {"epoch": 2, "begin": 2468, "samples": 40, "seed": 3, "shuffle": True, "window": 8}
    data = {"fingerprint": "0123456789abcdef", "dataset_samples": 1234}
    assert {"version": 1, **plain, **data} == STATE
    assert identity(sampling="f0").state_dict(Position(0, 0, 0))["sampling"] == "f0"
    assert identity().load(STATE) == Position(2, 2468, 40)


@pytest.mark.parametrize("made", [int, float, np.int64, np.array, torch.tensor])
def test_numbers_of_a_state_may_have_become_arrays(made: Any) -> None:
    found = identity().load({**STATE, **{name: made(STATE[name]) for name in Position._fields}})
    assert found == Position(2, 2468, 40) and all(type(number) is int for number in found)


@pytest.mark.parametrize("name", Position._fields)
def test_positions_are_whole_numbers_from_0(name: str) -> None:
    for value in (0, 2**62 - 1):
        assert getattr(identity().load({**STATE, name: value}), name) == value
    for value in (-1, 2**62, 0.5, "7", "x", None, float("nan"), float("inf"), [1, 2]):
        with pytest.raises(StateError, match=f"^state_dict: has {name}=.*, expected a whole number from 0. Was it edi"):
            identity().load({**STATE, name: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 4}, "was made with seed=4, this loader has seed=3. The order would .*: construct it with seed=4$"),
        ({"shuffle": False}, "was made with shuffle=False, this loader has shuffle=True"),
        ({"window": 9}, "was made with window=9, this loader has window=8"),
        ({"version": 2}, "is of version 2, this gpuload reads 1. Was it made by another loader"),
        ({"version": 0}, "is of version 0, this gpuload reads 1"),
        (
            {"fingerprint": "f" * 16, "dataset_samples": 5000},
            r"is of another data set \(5,000 samples, fingerprint f{16}\); shards/train has 1,234, fingerprint 01",
        ),
        ({"fingerprint": "f" * 16, "dataset_samples": -5}, "has dataset_samples=-5, expected a whole number"),
        ({"sampling": "f0"}, "was made with sampling=, this loader is without it"),
    ],
)
def test_a_state_of_another_run_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(StateError, match=message):
        identity().load({**STATE, **change})


def test_a_state_belongs_to_its_sampling() -> None:
    with pytest.raises(StateError, match="was made without sampling=, this loader is with it"):
        identity(sampling="f0").load(STATE)
    with pytest.raises(StateError, match="was made with sampling=, this loader is with it, or they differ"):
        identity(sampling="f0").load({**STATE, "sampling": "f1"})
    assert identity(sampling="f0").load({**STATE, "sampling": "f0"}) == Position(2, 2468, 40)


@pytest.mark.parametrize("name", sorted(set(STATE) - {"version"}))
def test_an_entry_that_is_missing_is_named(name: str) -> None:
    with pytest.raises(StateError, match=f"^state_dict: has no entry '{name}'. Was it made by another loader, or edit"):
        identity().load({key: value for key, value in STATE.items() if key != name})
    with pytest.raises(StateError, match="has no entry 'begin'"):  # the first of several
        identity().load({"version": 1, "window": 8})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, r"\(it is empty\). Was it made by a model"),
        ({"weight": 1, "bias": 2}, r"\(its entries are \['weight', 'bias'\]\)"),
        ({"model": {"version": 1}, "loader": STATE}, "is a checkpoint that holds one.* Give its entry 'loader'"),
        ({"loader": dict.fromkeys(["version", *Position._fields], 1)}, "is a checkpoint that holds one"),
        ({"model": {"version": 1, "epoch": 3}}, "is not what state_dict"),
    ],
)
def test_what_is_no_state_is_told(wrong: Any, message: str) -> None:
    with pytest.raises(StateError, match=message):
        identity().load(wrong)


def asked(batch_size: int, drop_last: bool = True, draws: int | None = None, **more: Any) -> OrderOptions:
    sampling = None if draws is None else Balance("label", num_samples=draws)
    return OrderOptions(batch_size, None, 0, drop_last, sampling=sampling, **more)


@pytest.mark.parametrize(
    ("options", "samples", "batches"),
    [
        ({"batch_size": 10, "steps_per_epoch": None, "drop_last": True}, 1234, 41),
        ({"batch_size": 10, "steps_per_epoch": None, "drop_last": False}, 1234, 42),
        ({"batch_size": 10, "steps_per_epoch": 7, "drop_last": True}, 210, 7),
        ({"batch_size": 10, "steps_per_epoch": None, "drop_last": True, "draws": 95}, 95, 3),
        ({"batch_size": 10, "steps_per_epoch": 2, "drop_last": True, "draws": 95}, 60, 2),
        ({"batch_size": 411, "steps_per_epoch": None, "drop_last": True}, 1234, 1),
    ],
)
def test_epochs_of_a_loader(options: dict[str, Any], samples: int, batches: int) -> None:
    data: Any = Data()
    epochs = find_epochs(data, asked(**options), Ranks(1, 3))
    assert (epochs.samples, epochs.batches, epochs.batch_size) == (samples, batches, 3 * options["batch_size"])
    assert (epochs.rank, epochs.world_size, epochs.drop_last) == (1, 3, options["drop_last"])


@pytest.mark.parametrize(
    ("batch_size", "ranks", "draws", "message"),
    [
        (
            1235,
            Ranks(0, 1),
            None,
            r"^batch_size 1235: is larger than shards/train \(1,234 samples\), so an epoch has no",
        ),
        (618, Ranks(1, 2), None, r"^batch_size 618 x world_size 2: is larger than shards/train \(1,234 samples\)"),
        (8, Ranks(0, 1), 7, r"^batch_size 8: is larger than shards/train \(7 samples\)"),
    ],
)
def test_an_epoch_without_a_batch_is_refused(batch_size: int, ranks: Ranks, draws: int | None, message: str) -> None:
    data: Any = Data()
    with pytest.raises(ArgumentError, match=message):
        find_epochs(data, asked(batch_size, draws=draws), ranks)
    assert find_epochs(data, asked(batch_size, drop_last=False, draws=draws), ranks).batches == 1
    assert find_epochs(data, asked(batch_size, steps_per_epoch=1, draws=draws), ranks).batches == 1
