"""Crops that scale and pad: sizes are torchvision's, and images lie whole within their outputs, or fill them."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gpuload
from gpuload import Augment, Letterbox, Resize, ScaleJitter, ZoomOut
from gpuload.fields.motion import covered

SIDES = st.integers(1, 300)


def draw(augment: Augment, width: int, height: int, count: int = 8, seed: int = 0) -> Any:
    sides = np.full((2, count), [[width], [height]], np.int32)
    return augment.draw(seed, 0, np.arange(count), *sides)


@pytest.mark.parametrize(("size", "longest"), [(80, None), (80, 133), (None, 90), (17, 40)])
def test_sizes_are_torchvisions(transforms: ModuleType, size: Any, longest: Any) -> None:
    theirs = transforms.Resize(size, max_size=longest)
    for width, height in [(64, 48), (48, 64), (300, 20), (9, 9), (80, 80), (133, 80), (641, 479), (3, 2)]:
        expected = theirs(torch.zeros(1, height, width, dtype=torch.uint8)).shape[1:]
        view = draw(Augment(None, Resize(size, longest)), width, height)
        assert (view.crops.sizes == list(expected)).all() and view.size == tuple(expected)


def test_of_several_sizes_each_image_gets_one() -> None:
    sizes = draw(Augment(None, Resize([20, 30, 40], 50)), 100, 80, 3000).crops.sizes
    found, counts = np.unique(sizes, axis=0, return_counts=True)
    assert found.tolist() == [[20, 25], [30, 37], [40, 50]] and (abs(counts - 1000) < 110).all()


@pytest.mark.parametrize(("multiple", "size"), [(1, (90, 75)), (32, (96, 96)), (50, (100, 100))])
def test_a_batch_is_padded_to_its_largest_sides(multiple: int, size: tuple[int, int]) -> None:
    sides = np.array([[60, 75, 20], [90, 10, 30]], np.int32)
    augment = Augment(None, Resize(pad_to_multiple_of=multiple))
    assert augment.draw(0, 0, np.arange(3), *sides).size == size
    assert augment.draw(0, 0, np.arange(0), *sides[:, :0]).size == (multiple, multiple)


@given(
    st.sampled_from([Letterbox(), ScaleJitter(), ScaleJitter((0.01, 9.0)), ZoomOut(), ZoomOut((3, 50), p=1)]),
    st.tuples(SIDES, SIDES),
    SIDES,
    SIDES,
    st.integers(0, 2**62),
    st.sampled_from([0, 1]),
)
def test_images_are_where_their_crops_say(
    crop: Any, size: Any, width: int, height: int, seed: int, flip: float
) -> None:
    view = draw(Augment(size, crop, flip=flip, vertical_flip=flip), width, height, seed=seed)
    start, shape = view.crops.start, view.crops.shape
    assert (start >= 0).all() and (shape >= 1).all() and (start + shape <= [height, width]).all()
    top, left, bottom, right = places = covered(view.crops, size, np.full((8, 2), [height, width])).T
    assert (places >= 0).all() and (top < bottom).all() and (left < right).all()
    assert (bottom <= size[0]).all() and (right <= size[1]).all()
    if isinstance(crop, Letterbox):  # the whole image, which touches two sides and lies in the middle
        assert ((bottom - top == size[0]) | (right - left == size[1])).all()
        assert (abs(top - (size[0] - bottom)) <= 1).all() and (abs(left - (size[1] - right)) <= 1).all()
    if isinstance(crop, ScaleJitter):  # padded on the right and at the bottom, of an output that is then flipped
        kept = (size[0] - bottom, size[1] - right) if flip else (top, left)
        assert not np.any(kept)


def test_half_of_the_images_are_zoomed_out_to_all_extents() -> None:
    view = draw(Augment(100, ZoomOut()), 60, 60, 4000)
    top, left, bottom, _ = covered(view.crops, (100, 100), np.full((4000, 2), 60)).T
    zoomed = (bottom - top) < 100
    assert abs(zoomed.mean() - 0.5) < 0.035  # four standard errors, and extents that round to 100
    assert min(bottom - top) in (25, 26) and top[zoomed].std() > 10 and left[zoomed].std() > 10
    assert (draw(Augment(100, ZoomOut(p=0)), 60, 60, 50).crops.roi_start == 0).all()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"size": 8, "crop": "keep"}, r"Augment\(size=8\): Resize gives each image its own size. Use size=None"),
        ({"crop": "random"}, r"Augment\(size=None\): RandomResizedCrop needs a size"),
        ({"normalize": "image"}, "normalize='image', size=None"),
        ({"transforms": [gpuload.transforms.RandomErasing()]}, "RandomErasing: needs images of one size"),
        ({"transforms": [gpuload.transforms.RandomRotation(3)]}, "RandomRotation: needs images of one size"),
        (
            {"transforms": [gpuload.transforms.RandomApply([gpuload.transforms.RandAugment()], 0.5)]},
            "RandAugment: needs images of one size",
        ),
        (
            {"transforms": [gpuload.transforms.Function(lambda sample, rng: sample)]},
            "Function: needs images of one size",
        ),
    ],
)
def test_what_needs_one_size_is_refused(options: Any, expected: str) -> None:
    with pytest.raises(gpuload.ArgumentError, match=expected):
        Augment(**{"size": None, "crop": "keep", **options})


def test_an_image_that_would_be_too_long_is_named() -> None:
    with pytest.raises(gpuload.ArgumentError, match="sample 0, 1 × 9000 pixels, would have a side of 720,000. Use max"):
        draw(Augment(None, Resize(80)), 1, 9000)
