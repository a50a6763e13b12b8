"""What people try who know torch's DataLoader or DALI's iterators: an error that says what to write instead."""

import copy
import inspect
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaders import load
from torch.utils.data import DataLoader

import gpuload
from gpuload.batchwise import FieldBatch, MixUp
from gpuload.iterator_checks import ADVICE, ARGUMENTS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": 8}, "DaliIterator: has no argument 'num_workers'. Use num_threads"),
        ({"pin_memory": True}, "has no argument 'pin_memory'. Leave it out: batches are on the device already"),
        ({"collate_fn": len}, "has no argument 'collate_fn'. Use fields, .* and batch_transforms"),
        ({"sampler": None}, r"has no argument 'sampler'. Use weights or balance .*, Dataset.subset\(...\)"),
        ({"persistent_workers": True}, "has no argument 'persistent_workers'. Leave it out"),
        ({"prefetch_factor": 2}, "has no argument 'prefetch_factor'. Use prefetch"),
        ({"batchsize": 2}, "has no argument 'batchsize'. Did you mean batch_size?"),
        ({"colour": 2}, "has no argument 'colour'. Its arguments are data, batch_size, augment, device"),
    ],
)
def test_arguments_of_a_dataloader(packed: Path, options: dict[str, Any], message: str) -> None:
    for kind in (gpuload.ArgumentError, TypeError):
        with pytest.raises(kind, match=message):
            load(packed, **options)


def test_every_argument_of_a_dataloader_is_known_or_explained() -> None:
    theirs = set(inspect.signature(DataLoader).parameters)
    assert theirs - set(ARGUMENTS) <= set(ADVICE)
    assert set(ADVICE).isdisjoint(ARGUMENTS)


def test_calls_with_too_few_or_too_many_arguments(packed: Path) -> None:
    with pytest.raises(
        TypeError, match="DaliIterator: missing a required argument: 'augment'. Its arguments are data,"
    ):
        gpuload.DaliIterator(packed, 8)  # type: ignore[call-arg]
    with pytest.raises(gpuload.ArgumentError, match="DaliIterator: too many positional arguments"):
        gpuload.DaliIterator(packed, 8, gpuload.Augment(8))  # type: ignore[misc]
    with pytest.raises(TypeError, match="mix: too many positional arguments. Its arguments are parts"):
        gpuload.mix(packed, packed)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": "64"}, r"DaliIterator\(batch_size='64'\): expected a whole number"),
        ({"batch_size": True}, r"DaliIterator\(batch_size=True\): expected a whole number"),
        ({"fields": "image"}, r"DaliIterator\(fields='image'\): expected a list of names and specs, such as \['image'"),
        ({"batch_transforms": MixUp()}, r"batch_transforms=MixUp\(.*\)\): expected a list of functions, such as \[MixUp\(\)\]"),
        ({"batch_transforms": [MixUp]}, r"batch_transforms: <class .*MixUp'> is no function of a batch. Expected .* instances"),
        ({"shuffle": "no"}, r"DaliIterator\(shuffle='no'\): expected True or False"),
        ({"drop_last": "yes"}, r"DaliIterator\(drop_last='yes'\): expected True or False, or None"),
        ({"seed": None}, r"DaliIterator\(seed=None\): expected a whole number"),
        ({"augment": 224}, r"augment=224: expected a gpuload.Augment, several, or a dict"),
        ({"data": None}, r"DaliIterator\(data=None\): expected a packed folder, a gpuload.Dataset"),
        ({"decoder": "nvjpeg"}, r"decoder='nvjpeg'\): expected one of 'auto', 'dali', 'native'"),
    ],
)  # fmt: skip
def test_values_of_the_wrong_type(packed: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(gpuload.ArgumentError, match=message):
        load(**{"packed": packed, **{{"data": "packed"}.get(name, name): value for name, value in options.items()}})


@pytest.mark.parametrize(
    ("do", "message"),
    [
        (lambda loader: next(loader), r"next\(loader\) does not exist.*next\(iter\(loader\)\)"),
        (lambda loader: loader[0], r"loader\[...\] does not exist.*Use a loop"),
        (pickle.dumps, "cannot be pickled or copied.*Construct one in each process"),
        (copy.copy, "cannot be pickled or copied"),
        (copy.deepcopy, "cannot be pickled or copied"),
        (lambda loader: 3 in loader, "`in` does not exist, since it would decode a whole epoch"),
        (lambda loader: setattr(loader, "batch_size", 2), "batch_size cannot be changed after construction"),
    ],
)
def test_what_a_loader_does_not_do(packed: Path, do: Callable[[Any], object], message: str) -> None:
    with load(packed) as loader:
        for kind in (gpuload.GpuloadError, TypeError):
            with pytest.raises(kind, match=message):
                do(loader)
        assert len(list(loader)) == len(loader)


def test_attributes_of_a_dataloader(packed: Path) -> None:
    with load(packed) as loader:
        for name in ("num_workers", "pin_memory", "reset"):
            assert not hasattr(loader, name)
        with pytest.raises(AttributeError, match="DaliIterator has no attribute 'num_workers'. Use num_threads"):
            loader.num_workers  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    "returned",
    [
        lambda batch: {**batch.fields, "image": batch.fields["image"] * 2},
        lambda batch: batch.fields["image"] * 2,
        lambda batch: FieldBatch({}, None, batch.draws),
    ],
)
def test_what_a_batch_transform_returns_is_not_ignored(packed: Path, returned: Callable[[Any], object]) -> None:
    loader = load(packed, batch_transforms=[returned])
    with pytest.raises(gpuload.ArgumentError, match="returned .*what it returns is not used. Change the arrays"):
        next(iter(loader))
    in_place: list[Any] = [lambda b: b, lambda b: b.fields, lambda b: np.negative(b.fields["label"], b.fields["label"])]
    with load(packed, batch_transforms=in_place) as loader:
        _, _, labels = next(iter(loader))
        assert int(labels.min()) < 0


def test_a_batch_of_fields_is_not_its_dict() -> None:
    batch: Any = FieldBatch({"image": np.zeros(3)}, None, lambda number: np.zeros(1))
    with pytest.raises(AttributeError, match=r"no attribute 'image'. Write batch.fields\['image'\]$"):
        batch.image  # noqa: B018
    with pytest.raises(TypeError, match=r"in a dict. Write len\(batch.fields\['image'\]\)"):
        len(batch)
    with pytest.raises(TypeError, match=r"FieldBatch: its fields are in a dict. Write batch.fields\['image'\]$"):
        batch["image"]
    with pytest.raises(gpuload.ArgumentError, match=r"Write batch.fields\['image'\] = …"):
        batch["image"] = 0


def test_a_batch_may_be_larger_than_the_set(packed: Path) -> None:
    for decoder in ("dali", "native"):
        with load(packed, 2**31 - 1, decoder=decoder, drop_last=False) as loader:
            assert [len(images) for _, images, _ in loader] == [97]


def test_what_is_no_state(packed: Path) -> None:
    with load(packed) as loader:
        state = loader.state_dict()
        for wrong, message in [
            ({}, "is not what state_dict.. of a loader returned .it is empty."),
            ({"weight": 1}, "its entries are .'weight'... Was it made by a model"),
            ({"model": {}, "loader": state}, "is a checkpoint that holds one.* Give its entry 'loader'"),
            ({**state, "version": 2}, "is of version 2, this gpuload reads 1"),
            ({**state, "seed": "0"}, "was made with seed='0', this loader has seed=0"),
            ({**state, "samples": 98}, "is 98 samples into its epoch, which has 97 here.*made with steps_per_epoch"),
            ({**state, "epoch": 10**30}, "expected a whole number from 0"),
        ]:
            with pytest.raises(gpuload.StateError, match=message):
                loader.load_state_dict(wrong)
        assert loader.state_dict() == state
        loader.load_state_dict(json.loads(json.dumps(state)))
        assert loader.state_dict() == state


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epoch": -1}, "has epoch=-1, expected a whole number from 0"),
        ({"samples": 3.5}, "has samples=3.5, expected a whole number"),
        ({"begin": "x"}, "has begin='x', expected a whole number"),
        ({"begin": None}, "has begin=None, expected a whole number"),
    ],
)
def test_a_damaged_state_changes_nothing(packed: Path, change: dict[str, Any], message: str) -> None:
    with load(packed) as loader:
        state = loader.state_dict()
        with pytest.raises(gpuload.StateError, match=message):
            loader.load_state_dict({**state, **change})
        for name in set(state) - {"version"}:
            with pytest.raises(gpuload.StateError, match=f"has no entry '{name}'"):
                loader.load_state_dict({key: value for key, value in state.items() if key != name})
        assert loader.state_dict() == state
        as_arrays = {name: np.array(value) for name, value in state.items() if isinstance(value, int)}
        loader.load_state_dict({**state, **as_arrays})


def test_epochs_have_numbers_up_to_a_billion(packed: Path) -> None:
    with load(packed) as loader:
        loader.set_epoch(10**9)
        assert loader.state_dict()["epoch"] == 10**9
        with pytest.raises(gpuload.ArgumentError, match=r"epoch=1000000001.: expected a whole number in 0..1000000000"):
            loader.set_epoch(10**9 + 1)
