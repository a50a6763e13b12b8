"""Errors for invalid fields, raised before the first batch where that is possible."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import encode, photo
from packed_fields import COUNT, open_loader, pack, sample, values_of

import gpuload
from gpuload import Boxes, Mask, MultiHot, OneHot, Target, Tokens


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> gpuload.Dataset:
    """Eleven samples in shards of four, in this order."""
    return pack(tmp_path_factory.mktemp("fields") / "packed", [sample(number) for number in range(COUNT)])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("captions", r"train: has no field 'captions'; its fields are 'image', 'label', .*'mask'"),
        (Tokens("word"), r"train: has no field 'word'; its fields are"),
        (Boxes("caption"), r"Boxes\('caption'\): expected a field of kind 'boxes', 'caption' in .*train has kind 'caption'. Request 'caption' by its name, or a field of kind 'boxes' \('boxes'\)"),
        (OneHot("labels"), r"OneHot\('labels'\): .* has kind 'labels'.* a field of kind 'class' \('label'\)"),
        (Target("label"), r"Target\('label'\): .* has kind 'class'.* a field of kind 'target' \('angle', 'drive'\)"),
        (Mask("image"), r"Mask\('image'\): .* has kind 'image'.* a field of kind 'mask' \('mask'\)"),
        (Tokens("features"), r"Tokens\('features'\): tokens must be integers, the packed arrays have dtype >f4. Request 'features' by its name"),
        (Target("drive", (True, False)), r"Target\('drive', negate_on_flip=\(True, False\)\): expected one bool for each of the packed numbers, 3; found 2"),
        (Target("angle", (True, False)), r"each of the packed numbers, 1; found 2"),
        (OneHot(num_classes=2), r"OneHot\('label', num_classes=2\): the named classes of .*train need 3. Leave num_classes out"),
        (OneHot(num_classes=3, background=True), r"num_classes=3\): .*train need 4"),
        (MultiHot(num_classes=3), r"MultiHot\('labels', num_classes=3\): the named classes of .*train need 4. Leave num_classes out"),
        ("letters", r"'letters': torch does not have the packed dtype <U2. Leave the field out"),
    ],
)  # fmt: skip
def test_specs_that_do_not_fit_the_data_set_are_refused(dataset: gpuload.Dataset, spec: Any, message: str) -> None:
    with pytest.raises(gpuload.ArgumentError, match=message):
        open_loader(spec, dataset)


def test_arrays_of_unequal_shapes(dataset: gpuload.Dataset, tmp_path: Path) -> None:
    key, first = dataset.keys([3, 0])
    message = rf"train: sample '{key}': its 'text' has shape \(4,\), that of .*'{first}' has \(5,\). Arrays are stacked, so their shapes must be equal; Tokens\('text'\) pads one-dimensional ones"
    with pytest.raises(gpuload.DecodeError, match=message):
        values_of("text", dataset, [0, 2, 3, 4])
    assert values_of("text", dataset, [2, 4]).shape == (2, 5)
    grids = [np.zeros((2,), int), np.zeros((1, 2), int)]
    mixed = pack(tmp_path / "grids", [{"image": encode(photo()), "text": grid} for grid in grids])
    with pytest.raises(gpuload.DecodeError, match=r"its 'text' has shape \(1, 2\), that of .* has \(2,\)"):
        values_of("text", mixed, [0, 1])
    with pytest.raises(
        gpuload.DecodeError, match=r"tokens must have one dimension, its 'text' has shape \(1, 2\). Pack it again"
    ):
        values_of(Tokens("text"), mixed, [0, 1])
    with pytest.raises(
        gpuload.ArgumentError, match=r"tokens must have one dimension, the first array in .*train has shape \(1, 2\)"
    ):
        open_loader(Tokens("text"), mixed.subset([1]))


def mixture(*sets: gpuload.Dataset) -> gpuload.Mixture:
    return gpuload.Mixture(sets, (1 / len(sets),) * len(sets))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("drive", [0.5, 1.5], r"its field 'drive' has size 2, that of .* has 3. Mix data sets whose fields are alike, or"),
        ("tokens", np.arange(3), r"its field 'tokens' has dtype '<i8', that of .* has '<u2'"),
        ("caption", 0.5, r"its field 'caption' has kind 'target', that of .* has 'caption'"),
        ("labels", ["dog"], r"its field 'labels' has classes \('dog',\), that of .* has \('ant', 'background', 'bee', 'cat'\)"),
        ("label", "dog", r"its field 'label' has classes \('dog',\)"),
        ("features", np.zeros((3, 3), ">f4"), r"out/train: its first 'features' has shape \(3, 3\), that of \S*packed/train has \(2, 3\)"),
    ],
)  # fmt: skip
def test_data_sets_that_cannot_be_mixed(
    dataset: gpuload.Dataset, tmp_path: Path, name: str, value: Any, message: str
) -> None:
    other = pack(tmp_path / "out", [{"image": encode(photo()), name: value}])
    with pytest.raises(gpuload.ArgumentError, match=message):
        open_loader(name, mixture(dataset, other))
    for sets in ((dataset, other), (other, dataset)):
        missing = "mask" if name != "mask" else "caption"
        with pytest.raises(gpuload.ArgumentError, match=rf"{re.escape(str(other.folder))}: has no field '{missing}'"):
            open_loader(missing, mixture(*sets))


def test_packed_fields_with_a_reserved_name(dataset: gpuload.Dataset, tmp_path: Path) -> None:
    other = pack(tmp_path / "out", [{"image": encode(photo()), "weight": 0.5}])
    other.fields["index"] = other.fields.pop(
        "weight"
    )  # the packer refuses the name, but sets indexed from other tools' shards may have it
    for spec in ("index", Target("index")):
        message = r"out/train: has a packed field 'index', a name that gpuload reserves .* Pack it under another"
        with pytest.raises(gpuload.ArgumentError, match=message):
            open_loader(spec, mixture(dataset, other))
    assert values_of("dataset", other, [0]).tolist() == [0]


def test_text_that_is_not_json(tmp_path: Path) -> None:
    """As a set of another tool may have it."""
    other = pack(tmp_path, [{"image": encode(photo()), "text": text} for text in ('{"a": 1}', "{a: 1}")])
    other.fields["text"] = dataclasses.replace(other.fields["text"], kind="json")
    message = rf"train: sample '{other.keys([1])[0]}': its field 'text' is not a JSON document \(Expecting property"
    with open_loader("text", other) as loader, pytest.raises(gpuload.DecodeError, match=message):
        next(iter(loader))
