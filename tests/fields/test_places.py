"""Boxes and keypoints, which move with their images: compared with torchvision, and general properties; how keypoints are
given, and what a batch has of them. tests/fields/test_follow.py compares both with painted images."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from images import encode, photo
from packed_fields import pack, values_of

import gpuload
from gpuload import Augment, Boxes, Keypoints
from gpuload.fields.boxes import move_boxes
from gpuload.fields.field import Field
from gpuload.fields.keypoints import pairs_by_name
from gpuload.fields.motion import Crops, Motion, place
from gpuload.fields.registry import KINDS

SEEDS = st.integers(0, 2**32 - 1)


def crops(windows: Any, mirror: Any = 0, mirror_y: Any = 0) -> Crops:
    """windows: (N, 4) top, left, bottom, right."""
    windows = np.array(windows, np.float64).reshape(-1, 4)
    start = np.floor(windows[:, :2]).astype(np.int32) - 1  # decoded with a margin, as center crops are
    roi = [(windows[:, :2] - start).astype(np.float32), (windows[:, 2:] - start).astype(np.float32)]
    flips = [np.broadcast_to(np.asarray(flip, np.int32), len(windows)) for flip in (mirror, mirror_y)]
    return Crops(start, start, *roi, *flips)


def draw_boxes(rng: np.random.Generator, count: int, width: int, height: int, step: float = 1) -> np.ndarray:
    """(count, 4) x0, y0, x1, y1 with sides of at least one step, at multiples of it."""
    low = rng.integers(0, [int(width / step), int(height / step)], (count, 2))
    high = rng.integers(low + 1, [int(width / step) + 1, int(height / step) + 1])
    return np.concatenate([low, high], axis=1) * step


def test_affines_apply_after_crop_and_flip() -> None:
    # Images of 16 x 8. The first is flipped left to right, then moved 6 left and 2 down; the second is enlarged.
    affines = np.array([[[1, 0, -6], [0, 1, 2]], [[2, 0, 0], [0, 2, 0]]], np.float64)
    boxes = np.array([[0, 0, 4, 4], [10, 0, 16, 8], [0, 0, 4, 4], [6, 2, 10, 6]], np.float64)
    view = crops([[0, 0, 8, 16]] * 2, mirror=[1, 0])
    moved, visible = move_boxes(boxes, np.array([0, 0, 1, 1]), Motion(view, (8, 16), affines))
    assert moved.tolist() == [[6, 2, 10, 6], [0, 2, 0, 8], [0, 0, 8, 8], [12, 4, 16, 8]]
    assert visible.tolist() == [1, 0, 1, 0.25]


def pack_boxes(folder: Path, width: int, height: int, *samples: list[list[int]]) -> gpuload.Dataset:
    """The classes of the boxes of an image are 0, 1, 2 …"""
    image = encode(photo(0, width, height), "PNG")
    given = [{"image": image, "boxes": boxes, "boxes_class": list(range(len(boxes)))} for boxes in samples]
    return pack(folder, given)


def test_min_visible_is_the_least_fraction_that_is_kept(tmp_path: Path) -> None:
    # A fifth of the first remains, 12 of 20 columns of the second, nothing of the third; the fourth is empty.
    data = pack_boxes(tmp_path, 36, 20, [[0, 0, 10, 10], [0, 0, 20, 10], [30, 0, 36, 10], [10, 2, 10, 9]], [])
    augment = Augment(20, crop=gpuload.CenterCrop(resize=20), flip=0)
    for min_visible, expected in [(0, [0, 1]), (0.2, [0, 1]), (0.21, [1]), (0.6, [1]), (0.61, []), (1, [])]:
        found = values_of(Boxes(min_visible=min_visible), data, [0, 1], augment=augment)
        assert found.labels.tolist() == [expected, [-1] * len(expected)]
        assert found.counts.tolist() == [len(expected), 0]


@pytest.mark.parametrize("form", ["xyxy", "xywh", "cxcywh"])
def test_formats(tmp_path: Path, form: Any) -> None:
    data = pack_boxes(tmp_path, 32, 40, [[4, 6, 12, 16]], [])
    augment = Augment((80, 32), crop="none", flip=0)
    found = values_of(Boxes(format=form), data, [0, 1], augment=augment)
    expected = {"xyxy": [4, 12, 12, 32], "xywh": [4, 12, 8, 20], "cxcywh": [8, 22, 8, 20]}[form]
    assert found.boxes.tolist() == [[expected], [[0] * 4]]
    assert [array.dtype for array in found] == [np.float32, np.int64, np.int64]
    # Of images that are padded to a batch, in pixels.
    augment = Augment(None, gpuload.Resize(64, pad_to_multiple_of=100), flip=0)
    own = values_of(Boxes(format=form), data, [0, 1], augment=augment)
    np.testing.assert_allclose(own.boxes, found.boxes * [2, 1, 2, 1], rtol=1e-6)


@pytest.mark.parametrize("transforms", [(), (gpuload.transforms.RandomRotation(9),)])
def test_batches_without_boxes(tmp_path: Path, transforms: Any) -> None:
    data, augment = pack_boxes(tmp_path, 8, 8, [], [], []), Augment(8, transforms=transforms)
    for most, numbers in ((None, []), (2, []), (None, [0, 1, 2]), (2, [0, 1, 2])):
        found = values_of(Boxes(max_boxes=most), data, numbers, augment=augment)
        assert found.boxes.shape == (*found.labels.shape, 4) == (len(numbers), most or 0, 4)
        assert found.counts.tolist() == [0] * len(numbers)


@given(seed=SEEDS)
def test_crop_resize_and_flips_match_torchvision(transforms: ModuleType, seed: int) -> None:
    tensors = importlib.import_module("torchvision.tv_tensors")
    functional = transforms.functional
    rng = np.random.default_rng(seed)
    boxes = draw_boxes(rng, 5, 90, 70, step=0.125).astype(np.float32)
    top, left, height, width = rng.integers(0, 40), rng.integers(0, 40), rng.integers(1, 31), rng.integers(1, 51)
    mirror, mirror_y = rng.integers(0, 2, 2)
    size = tuple(rng.integers(1, 300, 2).tolist())
    expected = tensors.BoundingBoxes(torch.from_numpy(boxes), format="XYXY", canvas_size=(70, 90))
    expected = functional.resized_crop(expected, int(top), int(left), int(height), int(width), size)
    expected = functional.horizontal_flip(expected) if mirror else expected
    expected = functional.vertical_flip(expected) if mirror_y else expected
    expected = functional.clamp_bounding_boxes(expected)
    motion = Motion(crops([top, left, top + height, left + width], mirror, mirror_y), size)
    found, visible = move_boxes(boxes.astype(np.float64), np.zeros(5, np.int64), motion)
    shown = visible > 0
    np.testing.assert_allclose(found[shown], expected.numpy()[shown], atol=1e-3)


# Keypoints

KIND = KINDS["keypoints"]


@pytest.mark.parametrize(
    ("names", "pairs"),
    [
        (None, ()),
        (("nose", "tail"), ()),
        (("nose", "left_eye", "right_eye", "left_ear", "right_ear"), ((1, 2), (3, 4))),  # as COCO's people have them
        (("eyeRight", "eyeLeft", "left", "right"), ((1, 0), (2, 3))),
        (("left_is_left", "right_is_left"), ((0, 1),)),
        (("left_eye", "right_ear"), ()),  # no point of the same name on the other side
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
