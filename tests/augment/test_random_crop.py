"""RandomCrop: where it lies, and what is in its padding, against torchvision's."""

import importlib
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuload
from gpuload import Augment, RandomCrop
from gpuload.augment.crops import Images
from gpuload.augment.placed import source_of, source_range


def drawn(augment: Augment, width: int, height: int, count: int = 400) -> Any:
    """The crops of `count` samples of this size."""
    sizes = np.full((2, count), [[width], [height]], np.int32)
    return augment.draw(3, 1, np.arange(count), *sizes).crops


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@given(size=st.integers(1, 12), at=st.integers(-60, 60), length=st.integers(1, 20))
@settings(max_examples=60)
def test_padding_is_numpys(mode: Any, size: int, at: int, length: int) -> None:
    line, places = np.arange(size), np.arange(at, at + length)
    expected = np.pad(line, 80, mode=mode, **({"constant_values": -1} if mode == "constant" else {}))[places + 80]
    np.testing.assert_array_equal(source_of(places, size, mode), expected)
    low, high = source_range(np.array([at]), np.array([at + length]), np.array([size]), mode)
    assert 0 <= low[0] < high[0] <= size
    shown = expected[expected >= 0]
    assert ((shown >= low[0]) & (shown < high[0])).all()


@pytest.mark.parametrize(
    ("crop", "size", "low", "high"),
    [
        (RandomCrop(), (20, 30), (0, 0), (30, 10)),  # of an image of 40 × 50 pixels
        (RandomCrop(4), (20, 30), (-4, -4), (34, 14)),
        (RandomCrop((3, 5)), (20, 30), (-5, -3), (35, 13)),
        (RandomCrop((1, 2, 3, 4)), (20, 30), (-2, -1), (34, 13)),
        (RandomCrop(5), (60, 50), (-5, -5), (-5, -5)),
        (RandomCrop(pad_if_needed=True), (52, 45), (-2, -5), (0, 0)),
        (RandomCrop((2, 0, 0, 1), pad_if_needed=True), (54, 44), (-3, -4), (0, -2)),
    ],
)
def test_every_position_of_the_padded_image_comes_and_no_other(
    crop: RandomCrop, size: tuple[int, int], low: tuple[int, int], high: tuple[int, int]
) -> None:
    crops = drawn(Augment(size, crop=crop), 40, 50, 1500)
    assert (crops.shape == size).all() and (crops.roi_end == size).all() and not crops.roi_start.any()
    for axis in range(2):
        assert set(crops.start[:, axis].tolist()) == set(range(low[axis], high[axis] + 1))
    assert 0.4 < crops.mirror.mean() < 0.6  # flips by default, as "random" does
    assert (drawn(Augment(size, crop=crop), 40, 50, 1500).start == crops.start).all()


@pytest.mark.parametrize("crop", [RandomCrop(6), RandomCrop((7, 1, 2, 9)), RandomCrop(3, pad_if_needed=True)])
def test_it_pads_and_crops_as_torchvisions(crop: RandomCrop, transforms: ModuleType) -> None:
    theirs = transforms.RandomCrop(
        (24, 40), padding=crop.padding, pad_if_needed=crop.pad_if_needed, padding_mode="symmetric"
    )
    for width, height in ((40, 30), (36, 18), (80, 60)):
        parameters = theirs.make_params([torch.zeros(3, height, width)])
        left, top, right, bottom = parameters["padding"]
        room = np.array([height + top + bottom - 24, width + left + right - 40])
        starts = []
        for share in (0.0, 1 - 2**-53):
            sides = np.array([float(width)]), np.array([float(height)])
            images = Images(np.arange(1), *sides, (24, 40), 1, np.full((2, 1), share), lambda numbers, rows: numbers)
            starts.append(crop.draw(images).start[0])
        np.testing.assert_array_equal(starts[0], [-top, -left])
        np.testing.assert_array_equal(starts[1], room - [top, left])


def test_an_image_smaller_than_the_crop_is_an_error() -> None:
    for crop, message in (
        (RandomCrop(), r"RandomCrop: sample 0, 30 × 40 pixels, is smaller than the crop of 34 × 34. Use RandomCrop\(p"),
        (RandomCrop(1), r"sample 0, 30 × 40 pixels, is with its padding \(32 × 42\) smaller than the crop of 34 × 34"),
    ):
        with pytest.raises(gpuload.ArgumentError, match=message):
            drawn(Augment(34, crop=crop), 30, 40, 1)
    assert (drawn(Augment(34, crop=RandomCrop(2)), 30, 40).start[:, 1] == -2).all()


def test_a_fill_is_for_constant_padding() -> None:
    with pytest.raises(gpuload.ArgumentError, match="only padding_mode='constant' has a fill. Leave out one of them"):
        RandomCrop(fill=7, padding_mode="edge")


def test_what_augment_refuses() -> None:
    for arguments, message in (
        ({"crop": RandomCrop}, r"expected one of 'random', .*, or an object"),
        ({"transforms": [RandomCrop(4)]}, r"RandomCrop is a crop. Give it as Augment\(crop=RandomCrop\(...\)\)"),
    ):
        with pytest.raises(gpuload.ArgumentError, match=message):
            Augment(32, **arguments)  # type: ignore[arg-type]
    assert importlib.import_module("gpuload").RandomCrop is RandomCrop
