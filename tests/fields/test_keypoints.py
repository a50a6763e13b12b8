"""Keypoints: how they are given, what moves them, and what a batch has of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from images import encode, photo
from packed_fields import pack, values_of

import gpuload
from gpuload import Augment, Keypoints
from gpuload.fields.field import Field
from gpuload.fields.keypoints import pairs_by_name
from gpuload.fields.motion import Motion, place
from gpuload.fields.registry import KINDS

KIND = KINDS["keypoints"]
COCO_PERSON = (
    *("nose", "left_eye", "right_eye", "left_ear", "right_ear", "left_shoulder", "right_shoulder", "left_elbow"),
    *("right_elbow", "left_wrist", "right_wrist", "left_hip", "right_hip", "left_knee", "right_knee", "left_ankle"),
    "right_ankle",
)


@pytest.mark.parametrize(
    ("names", "pairs"),
    [
        (None, ()),
        (("nose", "tail"), ()),
        (("nose", "left_eye", "right_eye"), ((1, 2),)),
        (("eyeRight", "eyeLeft", "left", "right"), ((1, 0), (2, 3))),
        (("left_eye", "right_ear"), ()),  # no point of the same name on the other side
        (COCO_PERSON, tuple((n, n + 1) for n in range(1, 17, 2))),
    ],
)
def test_pairs_by_name(names: Any, pairs: Any) -> None:
    assert pairs_by_name(names) == pairs


@pytest.mark.parametrize(
    ("value", "names", "expected"),
    [
        ([[[1, 2, 2], [3, 4, 0]]], None, [1, 2, 2, 0, 0, 0]),  # what is not labelled has no place
        ([[1, 2, 2, 3, 4, 0]], None, [1, 2, 2, 0, 0, 0]),
        ([np.array([[1, 2, 2], [3, 4, 0]])], None, [1, 2, 2, 0, 0, 0]),
        (np.array([[[1, 2, 2], [3, 4, 0]]], np.float32), None, [1, 2, 2, 0, 0, 0]),
        ([[[1, 2], [3, 4]]], ("nose", "tail"), [1, 2, 2, 3, 4, 2]),  # without visibility they are visible
        ([[1, 2, 3, 4]], ("nose", "tail"), [1, 2, 2, 3, 4, 2]),
    ],
)
def test_nested_or_flat_they_are_the_same(value: Any, names: Any, expected: list[int]) -> None:
    field, (column,) = KIND.parse("here", "keypoints", [value, []], names, "")
    assert (field.kind, field.size, field.member) == ("keypoints", 2, "keypoints.json")
    assert column.to_pylist() == [[expected], []]


def stored(points: Any, **placement: Any) -> list[list[float]]:
    field = Field("keypoints", "keypoints", "keypoints.json", None, len(points[0]) // 3)
    return KIND.store(field, {"keypoints": points}, place(**placement)).values["keypoints"]  # type: ignore[no-any-return]


def test_the_packer_moves_them() -> None:
    points = [[0, 0, 2, 500, 375, 1, 0, 0, 0], [250, 187.5, 2, 10, 10, 2, 490, 300, 1]]
    settings: dict[str, Any] = {"source": (500, 375), "size": (250, 250), "enlarge": False}
    assert stored(points, **settings, fit="longest") == [
        [0, 0, 2, 250, 188, 1, 0, 0, 0],
        pytest.approx([125, 94, 2, 5, 10 * 188 / 375, 2, 245, 150.4, 1]),
    ]
    # 500×375 becomes 333×250, of which the middle 250 columns stay: what is cut off becomes invisible.
    assert stored(points, **settings, fit="center-crop") == [
        [0, 0, 0, 0, 0, 0, 0, 0, 0],
        pytest.approx([250 * 333 / 500 - 42, 125, 2, 0, 0, 0, 0, 0, 0]),
    ]


def test_what_lies_outside_of_its_image_is_counted_and_becomes_invisible(tmp_path: Path) -> None:
    image = encode(photo(0, 40, 30))
    samples = [
        {"image": image, "keypoints": [[1, 1, 2, 41, 3, 2]]},
        {"image": image, "keypoints": [[0, 0, 0, -1, 3, 1]]},
    ]
    report = gpuload.pack(samples, tmp_path / "out", workers=1, shuffle=False)
    assert report.notes == ("keypoints that lie outside their images: 2, made invisible",)
    rows = gpuload.Dataset(tmp_path / "out" / "train").rows(0).column("keypoints").to_pylist()
    assert rows == [[[1, 1, 2, 0, 0, 0]], [[0, 0, 0, 0, 0, 0]]]


def test_batches_have_the_number_of_instances_that_was_asked_for(tmp_path: Path) -> None:
    """The first ones of an image with more, and zeros after those of one with fewer."""
    image = encode(photo(0, 20, 20), "PNG")
    instances = [[[n, 2, 2, 3, 4, 1] for n in range(count)] for count in (0, 1, 3)]
    data = pack(tmp_path, [{"image": image, "keypoints": some} for some in instances])
    for most, counts in ((None, [0, 1, 3]), (2, [0, 1, 2])):
        found = values_of(Keypoints(flip_pairs=(), max_instances=most), data, [0, 1, 2])
        assert found.keypoints.shape == (3, counts[2], 2, 3) and found.counts.tolist() == counts
        for shown, some, count in zip(found.keypoints, instances, counts, strict=True):
            assert shown[:count].reshape(-1, 6).tolist() == some[:count] and not shown[count:].any()


def whole_images(count: int, size: tuple[int, int] = (20, 20)) -> Motion:
    """Of images of 20x20 pixels."""
    sides = np.full((2, count), 20, np.int32)
    return Motion(Augment(20, crop="none", flip=0).draw(0, 0, np.arange(count), *sides).crops, size)


def test_points_that_were_not_labelled_have_no_place_in_a_crop() -> None:
    """What a function gets, where only their visibility was 0."""
    field = Field("keypoints", "keypoints", "keypoints.json", None, 3)
    moving = KINDS["keypoints"].bind(Keypoints(flip_pairs=()), field, ())
    stored = pa.array([[[1, 2, 2, 3, 4, 0, 30, 4, 2]], []], pa.list_(pa.list_(pa.float32(), 9)))
    first, second = moving.split({"keypoints": stored}, whole_images(2))
    assert np.asarray(first["keypoints"]).tolist() == [[[1, 2, 2], [0, 0, 0], [0, 0, 0]]]
    assert np.asarray(second["keypoints"]).shape == (0, 3, 3)
    stored = pa.array([[[4, 8, 2, 4, 24, 2, 24, 4, 2]]], stored.type)  # into half the height
    (only,) = moving.split({"keypoints": stored}, whole_images(1, (10, 20)))
    assert np.asarray(only["keypoints"]).tolist() == [[[4, 4, 2], [0, 0, 0], [0, 0, 0]]]
    joined = moving.join([only, first])["keypoints"]
    assert joined.to_pylist() == [[[4, 4, 2, 0, 0, 0, 0, 0, 0]], [[1, 2, 2, 0, 0, 0, 0, 0, 0]]]
