"""What sources hold, as the kinds of fields take it, and what they refuse."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpuload import Augment, FormatError, Keypoints, SourceError
from gpuload.fields.field import Field
from gpuload.fields.images import Pixels
from gpuload.fields.registry import KINDS, kind_of


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
    assert KINDS["labels"].parse_cell(cell) == expected


@pytest.mark.parametrize("cell", ["[oops", "[1", "[" * 3000])
def test_what_begins_as_json_and_is_none(cell: str) -> None:
    with pytest.raises(ValueError, match=r"is not a JSON list$"):
        KINDS["labels"].parse_cell(cell)


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
    field, (column,) = KINDS["labels"].parse("source", "labels", rows, classes, "")
    assert (column.to_pylist(), field.classes) == (numbers, names)


@pytest.mark.parametrize(
    ("rows", "classes", "message"),
    [
        ([[3, -1]], None, "class numbers of 'labels' must be 0 or more; found -1. Renumber"),
        ([[3, -1]], ("a",) * 9, "class numbers of 'labels' must be in 0..8; found -1. Renumber"),
        ([[0, 2]], ("a", "b"), "class numbers of 'labels' must be in 0..1; found 2. Renumber"),
        ([["a", "c"]], ("a", "b"), "the classes of 'labels' must be in the source's list of classes; it lacks 'c'"),
        ([[["a"]]], None, "classes of 'labels' are numbers or names; found"),
    ],
)
def test_classes_that_are_refused(rows: Any, classes: Any, message: str) -> None:
    with pytest.raises(SourceError, match=f"^source: {message}"):
        KINDS["labels"].parse("source", "labels", rows, classes, "")


def test_targets_that_are_no_numbers() -> None:
    """The first of them is named."""
    kind, nan = KINDS["target"], float("nan")
    for values, message in (
        ([1.0, nan, nan], "sample 1 has nan"),
        ([[1.0, 2.0], [3.0, 4.0], [5.0, float("inf")]], r"sample 2 has \[5.0, inf\]"),
        ([[[1.0]], [[nan]]], "sample 1 has"),
        ([[[1.0]], [[2.0]]], "sample 0 has"),
        ([[1.0], [2.0, 3.0]], "found"),
        ([1.0, "x"], "found 'x'"),
    ):
        with pytest.raises(SourceError, match=f"^source: 'angle' must hold .*{message}"):
            kind.parse("source", "angle", values, None, "")


def test_a_kind_that_is_not_known() -> None:
    with pytest.raises(FormatError, match="field 'clip' has kind 'video'; this gpuload knows image, .*newer gpuload"):
        kind_of(Field("clip", "video", "mp4"))


@pytest.mark.parametrize(("dtype", "peak"), [("uint8", 255), ("uint16", 65_535), ("float32", 1)])
def test_the_level_of_white(dtype: str, peak: int) -> None:
    assert Pixels(1, dtype).peak == peak


def whole_images(count: int) -> Any:
    """The crops of images of 20x20 pixels."""
    sides = np.full((2, count), 20, np.int32)
    return Augment(20, crop="none", flip=0).draw(0, 0, np.arange(count), *sides).crops


def test_points_that_were_not_labelled_have_no_place_in_a_crop() -> None:
    """What a function gets, where only their visibility was 0."""
    field = Field("keypoints", "keypoints", "keypoints.json", None, 3)
    moving = KINDS["keypoints"].bind(Keypoints(flip_pairs=()), field, ())
    stored = pa.array([[[1, 2, 2, 3, 4, 0, 30, 4, 2]], []], pa.list_(pa.list_(pa.float32(), 9)))
    first, second = moving.split({"keypoints": stored}, whole_images(2), (20, 20))
    assert np.asarray(first["keypoints"]).tolist() == [[[1, 2, 2], [0, 0, 0], [0, 0, 0]]]
    assert np.asarray(second["keypoints"]).shape == (0, 3, 3)
    stored = pa.array([[[4, 8, 2, 4, 24, 2, 24, 4, 2]]], stored.type)  # into half the height
    (only,) = moving.split({"keypoints": stored}, whole_images(1), (10, 20))
    assert np.asarray(only["keypoints"]).tolist() == [[[4, 4, 2], [0, 0, 0], [0, 0, 0]]]
    joined = moving.join([only, first])["keypoints"]
    assert joined.to_pylist() == [[[4, 4, 2, 0, 0, 0, 0, 0, 0]], [[1, 2, 2, 0, 0, 0, 0, 0, 0]]]
