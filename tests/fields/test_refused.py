"""What no field can be made of: in sources and in data sets, by a word of each message."""

import dataclasses
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged import change_manifest
from images import encode, photo
from packed_fields import open_loader, pack, unnamed, values_of
from PIL import Image

import gpuload
from gpuload import Boxes, Captions, Keypoints, Mask, MultiHot, OneHot, SourceError, Target, Tokens
from gpuload.fields.field import Field
from gpuload.fields.kind import Origin
from gpuload.fields.motion import place
from gpuload.fields.registry import KINDS, kind_of

NAN, NAMES = float("nan"), ("a", "b")
NUMBERS = np.arange(12).reshape(3, 4) * 23


@pytest.mark.parametrize(
    ("kind", "values", "classes", "words"),
    [
        ("labels", [[3, -1]], NAMES * 5, r"must be in 0\.\.9; found"),
        ("labels", [[0, 2]], NAMES, r"must be in 0\.\.1; found"),
        ("labels", [["a", "c"]], NAMES, "in the source's list of classes; found 'c'"),
        ("labels", [[["a"]]], None, "numbers or names"),
        ("labels", [[1.5]], None, "whole numbers or names; .*target"),
        ("class", ["a", 1], NAMES, "all numbers or all names; found '1'"),
        ("class", ["1", "--7"], ("1",), "in the source's list of classes; found '--7'"),
        ("target", [1.0, NAN, NAN], None, "sample 1 must be .*; found nan"),
        ("target", [[1.0, 2.0], [5.0, float("inf")]], None, "sample 1 must be"),
        ("target", [[[1.0]], [[2.0]]], None, "sample 0 must be"),
        ("target", [[1.0], [2.0, 3.0]], None, "sample 1 is"),
        ("caption", ["a", None, None], None, "sample 1 must be a text"),
        ("boxes", [([[0, 0, 5, 5]], [0]), ([[0, 1, 2]], [0])], None, "sample 1 must be boxes x0 y0 x1 y1"),
        ("boxes", [([[0, 0, NAN, 8]], [0])], None, "not finite"),
        ("boxes", [([[0, 0, 1e39, 8]], [0])], None, "not finite"),
        ("boxes", [([[0, 0, 2, 8]], [0, 1])], None, "for 1 boxes there are 2 classes"),
        ("keypoints", [[[1, 2]]], None, "sample 0 must be instances"),
        ("keypoints", [[], [["a", 1, 2]]], None, "sample 1 must be"),
        ("keypoints", [3], None, "sample 0 must be"),
        ("keypoints", [[[1, 2, 2], [1, 2, 2, 3, 4, 2]]], None, "sample 0 must be instances of equal points"),
        ("keypoints", [[[1, 2, 3]]], None, "a visibility is none"),
        ("keypoints", [[[NAN, 2, 2]]], None, "not finite"),
        ("keypoints", [[[1, 2, 2]], [[1, 2, 2, 3, 4, 2]]], None, "found instances of 1 and of 2"),
        ("keypoints", [[], []], None, "their number is unknown"),
    ],
)
def test_values_that_are_refused(kind: str, values: Any, classes: Any, words: str) -> None:
    """The first sample is named. tests/sources/test_refusals.py has more, through the packer."""
    with pytest.raises(SourceError, match=f"^source: .*{words}"):
        KINDS[kind].parse(Origin("source"), kind, values, classes, "")


def png(value: Any, **how: Any) -> bytes:
    return encode(Image.fromarray(value.astype(np.uint8)), "PNG", **how)


def stored_mask(value: Any) -> bytes:
    placement = place((4, 3), None, "shortest", False)
    return KINDS["mask"].store(Field("mask", "mask", "mask.png"), value, placement).content


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (NUMBERS - 1, "in 0..255; found -1..252"),
        (NUMBERS + 3, "in 0..255; found 3..256"),
        (NUMBERS.T, "the mask has 3 x 4 pixels, its image 4 x 3"),
        (np.stack([NUMBERS] * 3, axis=2), r"colours \(an array \(3, 4, 3\)\)"),
        (NUMBERS[:, None], "colours"),
        (b"garbage", "cannot be decoded"),
        (png(NUMBERS)[:50], "cannot be decoded"),
        (png(np.stack([NUMBERS] * 3, axis=2)), r"colours \(mode RGB\)"),
        (png(NUMBERS.T), "the mask has 3 x 4 pixels, its image 4 x 3"),
    ],
)
def test_masks_that_are_refused(value: Any, words: str) -> None:
    with pytest.raises(gpuload.DecodeError, match=words):
        stored_mask(value)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.uint16])
def test_masks_with_a_channel_or_without(dtype: Any) -> None:
    for value in (NUMBERS.astype(dtype), NUMBERS.astype(dtype)[..., None]):
        assert np.asarray(Image.open(io.BytesIO(stored_mask(value)))).tolist() == NUMBERS.tolist()
    kept = png(NUMBERS, compress_level=0)  # no PNG as it would be written
    assert stored_mask(kept) == kept


@pytest.mark.parametrize("cell", ["[oops", "[1", "[" * 3000])
def test_cells_that_begin_as_json_and_are_none(cell: str) -> None:
    with pytest.raises(ValueError, match=r"is not a JSON list$"):
        KINDS["labels"].parse_column([(cell,)])


def test_most_kinds_take_one_column_of_a_table() -> None:
    with pytest.raises(ValueError, match="a field of kind 'class' takes one column, 2 are given"):
        KINDS["class"].parse_cells(["1", "2"])


def test_a_kind_that_is_not_known() -> None:
    with pytest.raises(gpuload.FormatError, match="field 'clip' has kind 'video'; this gpuload knows image, .*newer"):
        kind_of(Field("clip", "video", "mp4"))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("captions", r"train: has no field 'captions'; its fields are 'image', 'label', .*'mask'"),
        (Tokens("word"), "train: has no field 'word'; its fields are"),
        (Captions("image"), r"Captions\('image'\): expected a field of kind 'caption'"),
        (Boxes("caption"), r"Boxes\('caption'\): .* has kind 'caption'.* a field of kind 'boxes' \('boxes'\)"),
        (Boxes(as_targets=True, masks=True), "were packed without masks and crowds. Pack them again"),
        (OneHot("labels"), r"has kind 'labels'.* a field of kind 'class' \('label'\)"),
        (Target("label"), r"has kind 'class'.* a field of kind 'target' \('angle', 'drive'\)"),
        (Mask("image"), r"has kind 'image'.* a field of kind 'mask' \('mask'\)"),
        (Tokens("features"), "tokens must be integers, the packed arrays have dtype >f4"),
        (Target("drive", (True, False)), "one bool for each of the packed numbers, 3; found 2"),
        (Target("angle", (True, False)), "one bool for each of the packed numbers, 1; found 2"),
        (OneHot(num_classes=2), "num_classes=2, expected at least 3"),
        (OneHot(num_classes=3, background=True), "num_classes=3, expected at least 4"),
        (MultiHot(num_classes=3), r"MultiHot\('labels'\): num_classes=3, expected at least 4"),
        ("letters", "'letters': torch does not have the packed dtype <U2"),
        (Keypoints(flip_pairs=((0, 2),)), "names point 2; 'keypoints' was packed with 2 points"),
    ],
)
def test_specs_that_do_not_fit_the_data_set_are_refused(dataset: gpuload.Dataset, spec: Any, words: str) -> None:
    with pytest.raises(gpuload.ArgumentError, match=words):
        open_loader(spec, dataset)


NO_NAMES, BEYOND = (
    "num_classes=None, expected at least .* has 0 classes with names",
    "{}': its 'labels?' has class 2, expected 2",
)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        *((spec, NO_NAMES) for spec in (OneHot(), "labels", MultiHot())),
        *((spec, BEYOND) for spec in (OneHot(num_classes=2), MultiHot(num_classes=2), OneHot(num_classes=3, background=True))),
    ],
)  # fmt: skip
def test_classes_without_names_need_enough_columns(spec: Any, words: str, tmp_path: Path) -> None:
    dataset = unnamed(tmp_path / "out")
    with pytest.raises(gpuload.ArgumentError, match=words.format(dataset.keys([1])[0])):
        values_of(spec, dataset, [0, 1])


def test_arrays_of_unequal_shapes(dataset: gpuload.Dataset, tmp_path: Path) -> None:
    message = rf"sample '{dataset.keys([3])[0]}': its 'text' has shape \(4,\), expected \(5,\) .* Tokens\('text'\) pads"
    with pytest.raises(gpuload.DecodeError, match=message):
        values_of("text", dataset, [0, 2, 3, 4])
    assert values_of("text", dataset, [2, 4]).shape == (2, 5)
    grids = [np.zeros((2,), int), np.zeros((1, 2), int)]
    mixed = pack(tmp_path / "grids", [{"image": encode(photo()), "text": grid} for grid in grids])
    with pytest.raises(gpuload.DecodeError, match=r"its 'text' has shape \(1, 2\), expected \(2,\)"):
        values_of("text", mixed, [0, 1])
    with pytest.raises(gpuload.DecodeError, match=r"its 'text' has shape \(1, 2\), expected tokens in one dimension"):
        values_of(Tokens("text"), mixed, [0, 1])


def mixture(*sets: gpuload.Dataset) -> gpuload.Mixture:
    return gpuload.Mixture(sets, (1 / len(sets),) * len(sets))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("drive", [0.5, 1.5], "its field 'drive' has size 2, that of .* has 3"),
        ("tokens", np.arange(3), "its field 'tokens' has dtype '<i8', that of .* has '<u2'"),
        ("caption", 0.5, "its field 'caption' has kind 'target', that of .* has 'caption'"),
        ("labels", ["dog"], r"its field 'labels' has classes \('dog',\), that of .* has \('ant', 'background'"),
        ("label", "dog", r"its field 'label' has classes \('dog',\)"),
    ],
)
def test_data_sets_that_cannot_be_mixed(
    dataset: gpuload.Dataset, tmp_path: Path, name: str, value: Any, words: str
) -> None:
    other = pack(tmp_path / "out", [{"image": encode(photo()), name: value}])
    with pytest.raises(gpuload.ArgumentError, match=words):
        open_loader(name, mixture(dataset, other))
    for sets in ((dataset, other), (other, dataset)):
        with pytest.raises(gpuload.ArgumentError, match=rf"{re.escape(str(other.folder))}: has no field 'mask'"):
            open_loader("mask", mixture(*sets))


def test_packed_fields_with_a_reserved_name(dataset: gpuload.Dataset, tmp_path: Path) -> None:
    other = pack(tmp_path / "out", [{"image": encode(photo()), "weight": 0.5}])
    other.fields["index"] = other.fields.pop("weight")  # the packer refuses the name, shards of other tools may have it
    for spec in ("index", Target("index")):
        with pytest.raises(gpuload.ArgumentError, match=r"out/train: has a packed field 'index'"):
            open_loader(spec, mixture(dataset, other))
    assert values_of("dataset", other, [0]).tolist() == [0]


def test_text_that_is_not_json(tmp_path: Path) -> None:
    """As a set of another tool may have it."""
    other = pack(tmp_path, [{"image": encode(photo()), "text": text} for text in ('{"a": 1}', "{a: 1}")])
    other.fields["text"] = dataclasses.replace(other.fields["text"], kind="json")
    message = rf"sample '{other.keys([1])[0]}': its field 'text' is not a JSON document \(Expecting property"
    with open_loader("text", other) as loader, pytest.raises(gpuload.DecodeError, match=message):
        next(iter(loader))


LONG = "x" * 4096


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("name", [f"{LONG}x", "a\0", "\ud800", 7, None], "a text of up to 4,096 characters"),
        ("kind", [f"{LONG}x"], "a text of up to 4,096 characters"),
        ("dtype", [f"{LONG}x", 7], "a text of up to 4,096 characters, or None"),
        ("classes", [["a", f"{LONG}x"], [7], "ab"], "a list of texts, or None"),
        ("member", [f"{LONG}x", "a/b", "a\\b", "a\x7fb", 7, None], "extensions of file names"),
    ],
)
def test_texts_of_a_manifest(copy: Path, name: str, values: list[Any], expected: str) -> None:
    for value in values:
        change_manifest(copy, lambda found, value=value: found["fields"][1].update({name: value}))
        with pytest.raises(gpuload.FormatError, match=rf"fields\[1\].{name} is .*expected {expected}"):
            gpuload.Dataset(copy)


def test_a_text_of_a_manifest_may_be_long(copy: Path) -> None:
    change_manifest(copy, lambda found: found["classes"].__setitem__(0, LONG))
    assert gpuload.Dataset(copy).classes[0] == LONG
