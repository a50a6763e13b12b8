"""Which part of an image is shown: against TensorFlow's formulas written out in NumPy, and what views have in common."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from images import encode
from made_batches import make_batch
from opened import open_runner
from PIL import Image

from gpuload import Augment, CenterCrop, PadOrCrop, RandomResizedCrop
from gpuload.augment.crops import Images
from gpuload.decode.interface import Stored
from gpuload.fields.rows import take
from gpuload.transforms import RandAugment, RandomErasing

side = st.integers(1, 40)
UINT8: Any = {"dtype": "uint8", "layout": "channels_last"}


def resize_with_crop_or_pad(image: np.ndarray, height: int, width: int, fill: int) -> np.ndarray:
    """What tf.image.resize_with_crop_or_pad documents and does: crop_to_bounding_box, then pad_to_bounding_box."""
    for axis, target in ((0, height), (1, width)):
        difference = target - image.shape[axis]
        first = max(-difference // 2, 0)
        image = np.take(image, range(first, first + min(target, image.shape[axis])), axis)
        before = max(difference // 2, 0)
        after = max(target - before - image.shape[axis], 0)
        widths = [(before, after) if one == axis else (0, 0) for one in range(image.ndim)]
        image = np.pad(image, widths, constant_values=fill)
    return image


def draw(augment: Augment, width: int, height: int, count: int = 1, view: int = 0) -> Any:
    sizes = np.full((2, count), [[width], [height]], np.int32)
    return augment.draw(0, 0, np.arange(count), *sizes, view)


def window(image: np.ndarray, crops: Any, fill: int) -> np.ndarray:
    """The window of a plain crop, pixel by pixel, with `fill` outside of the image."""
    assert (crops.roi_start == 0).all() and (crops.roi_end == crops.shape).all()
    (top, left), (height, width) = crops.start[0].tolist(), crops.shape[0].tolist()
    shown = np.full((height, width), fill)
    for y in range(height):
        for x in range(width):
            if 0 <= top + y < image.shape[0] and 0 <= left + x < image.shape[1]:
                shown[y, x] = image[top + y, left + x]
    return shown


@given(side, side, side, side)
def test_pad_or_crop_is_tensorflows(width: int, height: int, to_width: int, to_height: int) -> None:
    image = np.arange(width * height).reshape(height, width)
    crops = draw(Augment((to_height, to_width), crop="pad_or_crop"), width, height).crops
    np.testing.assert_array_equal(window(image, crops, -1), resize_with_crop_or_pad(image, to_height, to_width, -1))


@given(st.integers(1, 5000), st.integers(1, 5000), st.floats(0.01, 1))
def test_a_central_fraction_is_tensorflows(width: int, height: int, fraction: float) -> None:
    crops = draw(Augment(8, crop=CenterCrop(fraction=fraction)), width, height).crops
    for axis, length in enumerate((height, width)):
        # tf.image.central_crop: bbox_h_start = int((img_hd - img_hd * central_fraction) / 2), and so much at each end
        start = int((length - length * fraction) / 2)
        assert (crops.start[0, axis], crops.shape[0, axis]) == (start, length - 2 * start)
        assert (crops.roi_start[0, axis], crops.roi_end[0, axis]) == (0, crops.shape[0, axis])


def torchvisions_window(
    drawn: np.ndarray, width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[int, int, int, int]:
    """RandomResizedCrop.get_params with given random numbers: top, left, height, width."""
    for area_drawn, ratio_drawn in drawn[2:].reshape(-1, 2):
        area = width * height * (scale[0] + area_drawn * (scale[1] - scale[0]))
        aspect = math.exp(math.log(ratio[0]) + ratio_drawn * (math.log(ratio[1]) - math.log(ratio[0])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(drawn[0] * (height - h + 1)), int(drawn[1] * (width - w + 1)), h, w
    if width / height < min(ratio):
        w, h = width, round(width / min(ratio))
    elif width / height > max(ratio):
        w, h = round(height * max(ratio)), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


@given(
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
    st.sampled_from([(0.08, 1.0), (0.9, 1.0), (0.001, 0.01)]),
    st.sampled_from([(3 / 4, 4 / 3), (1.0, 1.0), (0.2, 0.3), (2.0, 5.0)]),
    st.integers(0, 2**32),
)
def test_random_crops_are_torchvisions(
    size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float], seed: int
) -> None:
    drawn = np.random.default_rng(seed).random((2 + 2 * 10, 6))  # a position, and ten attempts
    width, height = (np.full(6, float(side)) for side in size)
    draw = lambda numbers, rows: drawn[numbers - 1][:, rows]  # noqa: E731
    images = Images(np.arange(6), width, height, (8, 8), 1, drawn[:4], draw)
    crops = RandomResizedCrop(scale, ratio).draw(images)
    found = np.concatenate([crops.start, crops.shape], axis=1).tolist()
    assert found == [list(torchvisions_window(numbers, *size, scale, ratio)) for numbers in drawn.T]
    assert all(part.flags.c_contiguous for part in crops[:6])


@pytest.mark.parametrize(
    ("image", "resize_px", "size", "reach", "window", "region"),
    [
        # 100 × 50 to 50 × 25; of that 20 × 20 from (2, 15): source pixels (4, 30) to (44, 70), and 2 around for the filter
        ((100, 50), 25, (20, 20), 1, ((2, 28), (46, 72)), ((4, 30), (44, 70))),
        ((100, 50), 25, (20, 20), 2, ((0, 26), (48, 74)), ((4, 30), (44, 70))),
        # 40 × 80 to 10 × 20; of that 8 high, 6 wide from (6, 2)
        ((40, 80), 10, (8, 6), 1, ((20, 4), (60, 36)), ((24, 8), (56, 32))),
        # enlarged from 30 × 20 to 60 × 40: the filter reaches one source pixel, or two, whatever the enlargement
        ((30, 20), 40, (20, 20), 1, ((4, 9), (16, 21)), ((5, 10), (15, 20))),
        ((30, 20), 40, (20, 20), 2, ((3, 8), (17, 22)), ((5, 10), (15, 20))),
        # 33 × 20 to 16 × 10: sides are cut off, not rounded, and half pixels go to the even one
        ((33, 20), 10, (5, 5), 1, ((2, 10), (16, 25)), ((4, 12.375), (14, 22.6875))),
    ],
)
def test_center_crops(
    image: tuple[int, int], resize_px: int, size: tuple[int, int], reach: int, window: Any, region: Any
) -> None:
    """Worked out by hand. Two images, so that nothing of one is computed from the other."""
    width, height = np.array([image, (7, 5000)], np.int32).T
    interpolation: Any = {1: "bilinear", 2: "bicubic"}[reach]
    augment = Augment(size, crop=CenterCrop(resize_px), interpolation=interpolation)
    crops = augment.draw(0, 0, np.arange(2), width, height).crops
    assert (crops.start[0].tolist(), (crops.start + crops.shape)[0].tolist()) == tuple(map(list, window))
    np.testing.assert_allclose(crops.start[0] + crops.roi_start[0], region[0], atol=1e-5)
    np.testing.assert_allclose(crops.start[0] + crops.roi_end[0], region[1], atol=1e-5)
    assert not crops.mirror.any() and not crops.mirror_y.any()


@pytest.mark.parametrize("which", ["dali", "native"])
@pytest.mark.parametrize("size", [(20, 31), (21, 30), (40, 9), (9, 40), (23, 17), (64, 64)])
def test_pad_or_crop_keeps_each_pixel(which: str, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    arrays = [rng.integers(0, 256, (h, w, 3), np.uint8) for h, w in [(20, 31), (21, 32), (50, 8), (7, 33), (1, 1)]]
    augment = Augment(size, crop=PadOrCrop(77), flip=0.5, vertical_flip=0.5, **UINT8)
    encoded = [np.frombuffer(encode(Image.fromarray(array), "PNG"), np.uint8) for array in arrays]
    batch = make_batch(augment, encoded, [array.shape[1::-1] for array in arrays], seed=1)
    decoder = open_runner(which, [augment.form], Stored(), 5, num_threads=1)
    [(_, decoded)] = decoder.decode(iter([batch]))
    crops = batch.views[0].crops
    flips = set()
    for image, found, mirror, mirror_y in zip(
        arrays, np.asarray(decoded.images[0]), crops.mirror, crops.mirror_y, strict=True
    ):
        expected = resize_with_crop_or_pad(image, *size, 77)
        expected = expected[:, ::-1] if mirror else expected
        np.testing.assert_array_equal(found, expected[::-1] if mirror_y else expected)
        flips.add((int(mirror), int(mirror_y)))
    decoder.close()
    assert len(flips) > 2


@pytest.mark.parametrize(("probability", "expected"), [(0.0, 0), (0.3, 0.3), (1.0, 1)])
def test_share_of_vertical_flips(probability: float, expected: float) -> None:
    crops = draw(Augment(8, vertical_flip=probability), 50, 50, 20_000).crops
    assert abs(crops.mirror_y.mean() - expected) < (0.015 if 0 < expected < 1 else 1e-9)
    if 0 < expected < 1:
        assert abs(np.corrcoef(crops.mirror, crops.mirror_y)[0, 1]) < 0.03


def test_views_of_a_sample_are_drawn_independently() -> None:
    augment = Augment(8, vertical_flip=0.5, transforms=[RandAugment(1), RandomErasing(p=1)])
    drawn = [draw(augment, 1000, 1000, 20_000, view) for view in range(3)]
    columns = []
    for view in drawn:
        assert view.steps is not None and len(view.erased) == 1
        size = view.crops.shape.prod(axis=1)
        columns += [view.crops.start[:, 0], size, view.crops.mirror, view.crops.mirror_y]
        columns += [view.steps.ops[:, 0], view.erased[0].box[:, 0]]
    together = np.corrcoef(columns)
    for one in range(3):
        for other in range(one):
            # A correlation of independent draws has a standard error of 0.007; 108 pairs, so allow four of them.
            assert np.abs(together[6 * one : 6 * one + 6, 6 * other : 6 * other + 6]).max() < 0.028
    keys = [view.erased[0].key for view in drawn]
    assert len(np.unique(np.concatenate(keys))) == 60_000
    first = draw(augment, 1000, 1000, 20_000)
    assert first.crops.start.tobytes() == drawn[0].crops.start.tobytes()


@given(st.integers(0, 3), st.integers(0, 11), st.integers(1, 12))
def test_rows_of_a_view_are_those_of_its_images(view: int, start: int, count: int) -> None:
    """A part of a view is what would have been drawn for that part alone."""
    augment = Augment((8, 9), vertical_flip=0.5, transforms=[RandAugment(2), RandomErasing()])
    widths, heights = np.arange(40, 52, dtype=np.int32), np.arange(90, 78, -1, dtype=np.int32)
    rows = slice(start, min(start + count, 12))
    some = take(augment.draw(4, 5, np.arange(12), widths, heights, view), rows)
    alone = augment.draw(4, 5, np.arange(12)[rows], widths[rows], heights[rows], view)
    for one, other in zip(
        (some.crops, some.steps, *some.erased), (alone.crops, alone.steps, *alone.erased), strict=True
    ):
        assert one is not None and other is not None
        for first, second in zip(one, other, strict=True):
            np.testing.assert_array_equal(first, second)
