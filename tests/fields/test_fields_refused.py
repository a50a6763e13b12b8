"""What is said of fields that cannot be, before the first batch where that is possible."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from images import encode, photo
from packed_fields import COUNT, pack, sample, values_of

import gpuload
from gpuload.fields import Boxes, Mask, MultiHot, OneHot, Rows, Target, Tokens, bind_field


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> gpuload.Dataset:
    """Eleven samples in shards of four, in this order."""
    return pack(tmp_path_factory.mktemp("fields") / "packed", [sample(number) for number in range(COUNT)])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("captions", r"train: has no field 'captions'; its fields are 'image', 'label', .*'mask'"),
        (Tokens("word"), r"train: has no field 'word'; its fields are"),
        (Boxes("caption"), r"Boxes\('caption'\): .*train has 'caption' as a field of kind 'caption', expected 'boxes' \(there 'boxes'\). Ask for 'caption' as it is"),
        (OneHot("labels"), r"OneHot\('labels'\): .* of kind 'labels', expected 'class' \(there 'label'\)"),
        (Target("label"), r"Target\('label'\): .* of kind 'class', expected 'target' \(there 'angle', 'drive'\)"),
        (Mask("image"), r"Mask\('image'\): .* of kind 'image', expected 'mask' \(there 'mask'\)"),
        (Tokens("features"), r"Tokens\('features'\): arrays of dtype >f4 were packed, and tokens are whole numbers. Ask for 'features' as it is"),
        (Target("drive", (True, False)), r"Target\('drive', negate_on_flip=\(True, False\)\): says it of 2 numbers, and 'drive' was packed with 3"),
        (Target("angle", (True, False)), r"'angle' was packed with 1"),
        (OneHot(num_classes=2), r"OneHot\('label', num_classes=2\): .*train needs 3 for its named classes. Leave it out"),
        (OneHot(num_classes=3, background=True), r"num_classes=3\): .*train needs 4"),
        (MultiHot(num_classes=3), r"MultiHot\('labels', num_classes=3\): .*train has 4 named classes. Leave it out"),
        ("letters", r"'letters': arrays of dtype <U2 were packed, which torch does not have. Leave the field out"),
        (3, r"fields: expected names and OneHot\(…\), .*, found 3"),
    ],
)  # fmt: skip
def test_fields_that_cannot_be(dataset: gpuload.Dataset, spec: Any, message: str) -> None:
    with pytest.raises(gpuload.ArgumentError, match=message):
        bind_field(spec, [dataset])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OneHot(num_classes=0), r"OneHot\('label', num_classes=0\): expected at least 1"),
        (lambda: MultiHot(num_classes=0), r"MultiHot\('labels', num_classes=0\): expected at least 1"),
        (lambda: Tokens(max_length=0), r"Tokens\('tokens', max_length=0\): expected at least 1"),
        (lambda: Target("angle", (True, 1)), r"Target\('angle', negate_on_flip=\(True, 1\)\): expected True, False or a tuple"),
        (lambda: Target("angle", [True]), r"negate_on_flip=\[True\]\): expected True, False or a tuple"),
        (lambda: Mask(fill=256), r"Mask\('mask', fill=256\): expected a class number, in 0..255"),
        (lambda: Mask(fill=-1), r"fill=-1\)"),
    ],
)  # fmt: skip
def test_impossible_specs_are_refused(make: Any, message: str) -> None:
    with pytest.raises(gpuload.ArgumentError, match=message):
        make()


def test_arrays_of_unequal_shapes(dataset: gpuload.Dataset, tmp_path: Path) -> None:
    key, first = dataset.keys([1, 2])
    message = rf"train: sample '{key}': its 'text' is an array of shape \(4,\), that of .*'{first}' of \(5,\). Arrays are stacked, so they must be alike; Tokens\('text'\) pads those of one dimension"
    with pytest.raises(gpuload.DecodeError, match=message):
        values_of("text", dataset, [2, 0, 4, 1])
    assert values_of("text", dataset, [2, 4]).shape == (2, 5)
    grids = [np.zeros((2,), int), np.zeros((1, 2), int)]
    mixed = pack(tmp_path / "grids", [{"image": encode(photo()), "text": grid} for grid in grids])
    with pytest.raises(gpuload.DecodeError, match=r"its 'text' is an array of shape \(1, 2\), that of .* of \(2,\)"):
        values_of("text", mixed, [0, 1])
    with pytest.raises(
        gpuload.DecodeError, match=r"'text' is an array of shape \(1, 2\), and tokens have one dimension"
    ):
        values_of(Tokens("text"), mixed, [0, 1])
    with pytest.raises(gpuload.ArgumentError, match=r"first array in .*train has shape \(1, 2\), and tokens have one"):
        bind_field(Tokens("text"), [mixed.subset([1])])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("drive", [0.5, 1.5], r"its field 'drive' has size 2, that of .* 3. Mix data sets whose fields are alike, or"),
        ("tokens", np.arange(3), r"its field 'tokens' has dtype '<i8', that of .* '<u2'"),
        ("caption", 0.5, r"its field 'caption' has kind 'target', that of .* 'caption'"),
        ("labels", ["dog"], r"its field 'labels' has classes \('dog',\), that of .* \('ant', 'background', 'bee', 'cat'\)"),
        ("label", "dog", r"its field 'label' has classes \('dog',\)"),
        ("features", np.zeros((3, 3), ">f4"), r"its first 'features' is an array of shape \(3, 3\), that of .* of \(2, 3\)"),
    ],
)  # fmt: skip
def test_sets_that_do_not_mix(dataset: gpuload.Dataset, tmp_path: Path, name: str, value: Any, message: str) -> None:
    other = pack(tmp_path / "out", [{"image": encode(photo()), name: value}])
    with pytest.raises(gpuload.ArgumentError, match=message):
        bind_field(name, [dataset, other])
    for sets in ([dataset, other], [other, dataset]):
        lacking = "mask" if name != "mask" else "caption"
        with pytest.raises(gpuload.ArgumentError, match=rf"{re.escape(str(other.folder))}: has no field '{lacking}'"):
            bind_field(lacking, sets)


def test_packed_fields_with_a_name_of_gpuloads_own(dataset: gpuload.Dataset, tmp_path: Path) -> None:
    other = pack(tmp_path / "out", [{"image": encode(photo()), "weight": 0.5}])
    other.fields["index"] = other.fields.pop("weight")  # the packer refuses the name, but others' sets may have it
    for spec in ("index", Target("index")):
        message = r"out/train: has a packed field 'index', which is also what gpuload calls .* Pack it under another"
        with pytest.raises(gpuload.ArgumentError, match=message):
            bind_field(spec, [dataset, other])
    assert values_of("dataset", other, [0]).tolist() == [0]


def test_text_that_is_no_json(dataset: gpuload.Dataset) -> None:
    field = bind_field("about", [dataset])
    texts = pa.array([json.dumps({"a": 1}), "{a: 1}"], pa.large_string())
    rows = Rows({"about": texts, "index": np.array([3, 4]), "dataset": np.zeros(2, np.int64)}, {}, [], [], [])
    message = rf"train: sample '{dataset.keys([4])[0]}': its field 'about' is no JSON document \(Expecting property"
    with pytest.raises(gpuload.DecodeError, match=message):
        field.values(rows)  # type: ignore[union-attr]
