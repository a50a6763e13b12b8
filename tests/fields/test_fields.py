"""The values of every kind of field in a batch, read from a set packed with the real packer."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from packed_fields import unnamed, values_of

import gpuload
from gpuload import Augment, MultiHot, OneHot, Target, Tokens
from gpuload.fields.field import Field
from gpuload.fields.images import Pixels
from gpuload.fields.kind import Origin
from gpuload.fields.registry import KINDS, kind_of

SOME = [0, 3, 7, 10]
LABELS = np.array([[0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 0, 1]], np.float32)
ANGLE = [-0.5, -0.125, 0.375, 0.75]
DRIVE = [[0, -1.5, 2], [0.75, -1.5, 2], [1.75, -1.5, 2], [2.5, -1.5, 2]]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("label", np.array([0, 3, 3, 2])),
        (OneHot(background=True), np.eye(4, dtype=np.float32)[[1, 3, 3, 2]]),  # background, ant, bee, cat
        (OneHot(num_classes=5), np.eye(5, dtype=np.float32)[[0, 2, 2, 1]]),  # ant, bee, cat
        ("labels", LABELS),
        (MultiHot(num_classes=4), LABELS),
        (MultiHot(num_classes=5), np.pad(LABELS, [(0, 0), (0, 1)])),
        ("angle", np.array(ANGLE, np.float32)),
        (Target("angle", negate_on_flip=True), np.array(ANGLE, np.float32)),
        ("drive", np.array(DRIVE, np.float32)),
        ("features", np.arange(6, dtype=np.float32).reshape(2, 3) + np.array(SOME, np.float32)[:, None, None]),
        ("flag", np.array([[True, True], [False, True], [False, True], [True, True]])),
        ("wave", np.array([[0], [3j], [7j], [10j]], np.complex128)),
        ("index", np.array(SOME)),
        ("dataset", np.array([0, 0, 0, 0])),
    ],
)
def test_arrays_of_numbers(dataset: gpuload.Dataset, spec: Any, expected: np.ndarray) -> None:
    found = values_of(spec, dataset, SOME)
    assert (found.dtype, found.tolist()) == (expected.dtype, expected.tolist())
    assert torch.from_numpy(found).numpy().tolist() == expected.tolist()  # from_numpy warns of read-only memory
    empty = values_of(spec, dataset, [])
    assert (empty.dtype, empty.shape) == (expected.dtype, (0, *expected.shape[1:]))


def test_background_has_a_row_of_zeros_or_the_first_column(dataset: gpuload.Dataset) -> None:
    assert values_of(OneHot(), dataset, [0, 1, 2, 3]).tolist() == [[1, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert values_of(OneHot(background=True, num_classes=9), dataset, [0, 1]).tolist() == np.eye(9)[[1, 0]].tolist()


def test_classes_without_names(tmp_path: Path) -> None:
    dataset = unnamed(tmp_path / "out")
    assert values_of(OneHot(num_classes=3), dataset, [0, 1]).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert values_of(OneHot(num_classes=4, background=True), dataset, [0, 1]).tolist() == [[0, 1, 0, 0], [0, 0, 0, 1]]
    assert values_of(MultiHot(num_classes=3), dataset, [0, 1]).tolist() == [[0, 1, 0], [1, 0, 1]]


def test_targets_change_their_sign_with_a_flip(dataset: gpuload.Dataset) -> None:
    one, two = (Augment(20, crop="none", flip=flip) for flip in (1, 0))
    assert values_of("angle", dataset, SOME, augment=one).tolist() == ANGLE
    negated = values_of(Target("angle", negate_on_flip=True), dataset, SOME, augment=one)
    assert (negated.dtype, negated.tolist()) == (np.float32, [-angle for angle in ANGLE])
    some = Target("drive", negate_on_flip=(False, True, False))
    assert values_of(some, dataset, SOME, augment=one).tolist() == [[speed, 1.5, 2] for speed, *_ in DRIVE]
    found = values_of(Target("drive", negate_on_flip=True), dataset, SOME, augment=[one, two])
    assert type(found) is tuple and len(found) == 2
    np.testing.assert_array_equal(found, [-np.array(DRIVE), DRIVE])
    # Without a change of sign there is one value for both views.
    assert values_of("drive", dataset, SOME, augment=[one, two]).tolist() == DRIVE


def test_tokens(dataset: gpuload.Dataset) -> None:
    found = values_of(Tokens(), dataset, [0, 3, 5])
    assert type(found).__name__ == "PaddedTokens" and found.values.dtype == found.lengths.dtype == np.int64
    assert found.lengths.tolist() == [0, 3, 5]
    row = [60_000, 60_001, 60_002, 60_003, 60_004]
    assert found.values.tolist() == [[0] * 5, [*row[:3], 0, 0], row]
    cut = values_of(Tokens(pad=-100, max_length=4), dataset, [0, 3, 5])
    assert cut.values.tolist() == [[-100] * 4, [*row[:3], -100], row[:4]]
    assert cut.lengths.tolist() == [0, 3, 4]
    assert values_of(Tokens(), dataset, []).values.shape == (0, 0)
    assert values_of(Tokens(max_length=7), dataset, []).values.shape == (0, 7)
    assert values_of(Tokens(), dataset, [0]).values.shape == (1, 0)


@pytest.mark.parametrize(
    ("field", "values", "member"),
    [
        (Field("angle", "target", "angle.json"), {"angle": 0.1}, b"0.1"),
        (Field("angle", "target", "angle.json", size=2), {"angle": [1e-7, 16777216]}, b"[1e-07, 16777216.0]"),
        (
            Field("boxes", "boxes", "boxes.json"),
            {"boxes": [[0.1, 0.2, 0.3, 1e9]], "boxes_class": [2**53 + 1]},
            b'{"boxes": [[0.1, 0.2, 0.3, 1000000000.0]], "classes": [9007199254740993]}',
        ),
        (Field("boxes", "boxes", "boxes.json"), {"boxes": [], "boxes_class": []}, b'{"boxes": [], "classes": []}'),
        (Field("points", "keypoints", "points.json", size=1), {"points": [[0.1, 0.7, 2]]}, b"[[0.1, 0.7, 2.0]]"),
    ],
)
def test_members_have_the_shortest_decimals_of_their_float32(field: Field, values: Any, member: bytes) -> None:
    kind = kind_of(field)
    stored = pa.RecordBatch.from_pylist([values], pa.schema(kind.columns(field).items())).to_pylist()[0]
    assert kind.dump(field, stored) == member


@pytest.mark.parametrize(
    ("field", "column", "expected"),
    [
        (Field("caption", "caption", "txt"), pa.array(["a", "", "größer"]), [1, 0, 8]),
        (Field("about", "json", "about.json"), pa.array(["[1]", "{}", "7"]), [3, 2, 1]),
        (Field("labels", "labels", "labels.json"), pa.array([[3, 4], [], [5]]), [42, 30, 36]),
        (Field("points", "keypoints", "points.json", size=2), pa.array([[[1.0] * 6], [], []]), [66, 30, 30]),
        (Field("angle", "target", "angle.json", size=2), pa.array([[0.5, 1.0]], pa.list_(pa.float32(), 2)), [512]),
        (Field("mask", "mask", "mask.png"), pa.array(["a.png"]), [512]),
    ],
)
def test_the_size_of_members_is_known_about_before_they_are_made(
    field: Field, column: Any, expected: list[int]
) -> None:
    samples = pa.table({field.name: column})
    assert kind_of(field).estimate_bytes(field, samples).tolist() == expected


def test_captions_of_other_names_have_their_own_members() -> None:
    caption = KINDS["caption"]
    members = {name: caption.parse(Origin("here"), name, ["a"], None, "")[0].member for name in ("caption", "title")}
    assert members == {"caption": "txt", "title": "title.txt"}
    assert caption.guess("txt", b"a") == Field("caption", "caption", "txt") and caption.guess("title.txt", b"a") is None


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (None, []),
        ([1, "a"], [1, "a"]),
        (" [1, [2.5, null]] ", [1, [2.5, None]]),
        ("a; b,c;", ["a", "b,c"]),
        ("a|b, c", ["a", "b, c"]),
        ("1,2 ,3", ["1", "2", "3"]),
        ("1 2\t3", ["1", "2", "3"]),
        ("", []),
    ],
)
def test_lists_in_cells(cell: Any, expected: list[Any]) -> None:
    assert KINDS["labels"].parse_column([(cell,)]) == [expected]


@pytest.mark.parametrize(
    ("rows", "classes", "numbers", "names"),
    [
        ([[], []], None, [[], []], None),
        ([[2], [0, 2]], None, [[2], [0, 2]], None),
        ([[1], []], ("a", "b"), [[1], []], ("a", "b")),
        ([["b"], ["a", "b"]], None, [[1], [0, 1]], ("a", "b")),
        ([["b"]], ("z", "b"), [[1]], ("z", "b")),
    ],
)
def test_classes(rows: Any, classes: Any, numbers: Any, names: Any) -> None:
    field, (column,) = KINDS["labels"].parse(Origin("source"), "labels", rows, classes, "")
    assert (column.to_pylist(), field.classes) == (numbers, names)


anything = st.builds(Pixels, st.integers(1, 256), st.sampled_from(["uint8", "uint16", "float32"]))


@given(anything)
def test_the_mode_and_the_field_tell_all_of_them(pixels: Pixels) -> None:
    assert Pixels.of_mode(pixels.mode) == pixels and Pixels().in_field() == {}
    assert Pixels.of_field(Field("image", "raw", "raw", **pixels.in_field())) == pixels


@pytest.mark.parametrize("mode", ["", "CMYK", "float64x3", "uint8x0", "uint8x257", "uint8x", "uint8x3x"])
def test_other_modes_are_refused(mode: str) -> None:
    with pytest.raises(ValueError, match="there is no mode"):
        Pixels.of_mode(mode)


@pytest.mark.parametrize(("size", "dtype"), [(3, None), (0, "|u1"), (257, "|u1"), (1, ">u2"), (1, "<f8")])
def test_a_field_that_says_what_cannot_be_is_refused(size: int, dtype: str | None) -> None:
    for kind in ("image", "raw"):
        field = Field("image", kind, "raw", size=size, dtype=dtype)
        assert "its pixels cannot be" in kind_of(field).field_fault(field)
