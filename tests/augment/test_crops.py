"""Which part of an image is shown: against TensorFlow's formulas written out in NumPy, and what views have in common."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from images import encode
from made_batches import make_batch
from PIL import Image

from gpuload.augment import Augment, View
from gpuload.augment.crops import Crops
from gpuload.decode.dali.decoder import DaliDecoder
from gpuload.decode.interface import Stored
from gpuload.decode.native.decoder import NativeDecoder
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


def draw(augment: Augment, width: int, height: int, count: int = 1, view: int = 0) -> View:
    sizes = np.full((2, count), [[width], [height]], np.int32)
    return augment.draw(0, 0, np.arange(count), *sizes, view)


def window(image: np.ndarray, crops: Crops, fill: int) -> np.ndarray:
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
    crops = draw(Augment(8, crop="center", fraction=fraction), width, height).crops
    for axis, length in enumerate((height, width)):
        # tf.image.central_crop: bbox_h_start = int((img_hd - img_hd * central_fraction) / 2), and so much at each end
        start = int((length - length * fraction) / 2)
        assert (crops.start[0, axis], crops.shape[0, axis]) == (start, length - 2 * start)
        assert (crops.roi_start[0, axis], crops.roi_end[0, axis]) == (0, crops.shape[0, axis])


@pytest.mark.parametrize("which", ["dali", "native"])
@pytest.mark.parametrize("size", [(20, 31), (21, 30), (40, 9), (9, 40), (23, 17), (64, 64)])
def test_pad_or_crop_keeps_each_pixel(which: str, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    arrays = [rng.integers(0, 256, (h, w, 3), np.uint8) for h, w in [(20, 31), (21, 32), (50, 8), (7, 33), (1, 1)]]
    augment = Augment(size, crop="pad_or_crop", fill=77, flip=0.5, vertical_flip=0.5, **UINT8)
    encoded = [np.frombuffer(encode(Image.fromarray(array), "PNG"), np.uint8) for array in arrays]
    batch = make_batch(augment, encoded, [array.shape[1::-1] for array in arrays], seed=1)
    options: Any = {"batch_size": 5, "num_threads": 1, "prefetch": 1}
    decoder: Any = (
        NativeDecoder([augment.form], Stored(), **options)
        if which == "native"
        else DaliDecoder([augment.form], Stored(), device_id=None, **options)
    )
    [(_, decoded)] = decoder.decode(iter([batch]))
    crops = batch.views[0].crops
    flips = set()
    for image, found, mirror, mirror_y in zip(arrays, np.asarray(decoded.images[0]), *crops[-2:], strict=True):
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
        assert view.steps is not None and view.erased is not None
        size = view.crops.shape.prod(axis=1)
        columns += [view.crops.start[:, 0], size, view.crops.mirror, view.crops.mirror_y]
        columns += [view.steps.ops[:, 0], view.erased.box[:, 0]]
    together = np.corrcoef(columns)
    for one in range(3):
        for other in range(one):
            # A correlation of independent draws has a standard error of 0.007; 108 pairs, so allow four of them.
            assert np.abs(together[6 * one : 6 * one + 6, 6 * other : 6 * other + 6]).max() < 0.028
    keys = [view.erased.key for view in drawn if view.erased is not None]
    assert len(np.unique(np.concatenate(keys))) == 60_000
    first = draw(augment, 1000, 1000, 20_000)
    assert first.crops.start.tobytes() == drawn[0].crops.start.tobytes()


@given(st.integers(0, 3), st.integers(0, 11), st.integers(1, 12))
def test_rows_of_a_view_are_those_of_its_images(view: int, start: int, count: int) -> None:
    """A part of a view is what would have been drawn for that part alone."""
    augment = Augment((8, 9), vertical_flip=0.5, transforms=[RandAugment(2), RandomErasing()])
    widths, heights = np.arange(40, 52, dtype=np.int32), np.arange(90, 78, -1, dtype=np.int32)
    rows = slice(start, min(start + count, 12))
    some = augment.draw(4, 5, np.arange(12), widths, heights, view).select(rows)
    alone = augment.draw(4, 5, np.arange(12)[rows], widths[rows], heights[rows], view)
    for one, other in zip((some.crops, some.steps, some.erased), (alone.crops, alone.steps, alone.erased), strict=True):
        assert one is not None and other is not None
        for first, second in zip(one, other, strict=True):
            np.testing.assert_array_equal(first, second)
