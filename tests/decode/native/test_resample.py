"""The compiled resize: against torch, Pillow and plain arithmetic, and what it must not touch."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from images import smooth_image
from PIL import Image
from torch.nn import functional

from gpuload.decode.native.cuts import crop_or_pad, resample
from gpuload.decode.native.values import Target

ZEROS, ONES = np.zeros(3, np.float32), np.ones(3, np.float32)


def run(
    pixels: np.ndarray,
    size: tuple[int, int],
    region: tuple[float, ...],
    window: tuple[int, ...] | None = None,
    *,
    flips: tuple[bool, bool] = (False, False),
    cubic: bool = False,
    at: tuple[int, int] = (0, 0),
    factor: int = 1,
    out: Any = None,
) -> np.ndarray:
    """One image through `resample`; region and window are (top, left, bottom, right)."""
    height, width, _ = pixels.shape
    if out is None:
        out = np.empty((1, 3, *size), np.uint8)
    pictures = np.array([[pixels.ctypes.data, height, width, pixels.strides[0], *at, factor]])
    windows = np.array([window or (0, 0, height * factor, width * factor)])
    resample(pictures, windows, np.array([region], np.float64), np.array([flips]), cubic, Target(out, ZEROS, ONES))(
        0, 1
    )
    return out[0].transpose(1, 2, 0)


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def by_torch(pixels: np.ndarray, size: tuple[int, int], mode: str = "bilinear") -> np.ndarray:
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    return functional.interpolate(image, size=size, mode=mode, antialias=True)[0].permute(1, 2, 0).numpy()


def levels_apart(one: np.ndarray, other: np.ndarray) -> int:
    return int(np.abs(one.astype(int) - other).max())


sides = st.integers(1, 70)


@settings(max_examples=150)
@given(height=sides, width=sides, rows=sides, columns=sides, seed=st.integers(0, 99))
def test_bilinear_is_torchs_but_for_the_rounding_of_weights_even_of_noise(
    height: int, width: int, rows: int, columns: int, seed: int
) -> None:
    pixels = noise(height, width, seed)
    found = run(pixels, (rows, columns), (0, 0, height, width))
    apart = np.abs(found.astype(int) - by_torch(pixels, (rows, columns)))
    assert apart.max() <= 2  # a level in each pass
    if min(height, width, rows, columns) >= 8:  # else the few pixels there are may all be the same one
        assert (apart > 0).mean() <= 0.3  # most where weights of 1/2 end between two levels


@settings(max_examples=100)
@given(height=sides, width=sides, rows=sides, columns=sides, seed=st.integers(0, 99))
def test_bicubic_is_its_formula(height: int, width: int, rows: int, columns: int, seed: int) -> None:
    def weights(inputs: int, outputs: int) -> np.ndarray:
        """Keys' cubic with a = -0.5, in float64: (outputs, inputs)."""
        step = inputs / outputs
        x = np.abs(np.arange(inputs) + 0.5 - (np.arange(outputs)[:, None] + 0.5) * step) / max(step, 1)
        near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
        found = np.select([x < 1, x < 2], [near, far], 0.0)
        return found / found.sum(axis=1, keepdims=True)

    def along(axis: str, levels: np.ndarray) -> np.ndarray:
        by = weights(height, rows) if axis == "y" else weights(width, columns)
        summed = np.einsum("oi,ixc->oxc" if axis == "y" else "oi,yic->yoc", by, levels)
        return np.clip(np.rint(summed), 0, 255)

    pixels = noise(height, width, seed)
    expected = along("y", along("x", pixels))
    found = run(pixels, (rows, columns), (0, 0, height, width), cubic=True)
    assert (
        levels_apart(found, expected) <= 2
    )  # weights of 12 bits may round a level of the first pass to the other side


@pytest.mark.parametrize("cubic", [False, True])
@pytest.mark.parametrize("size", [(40, 56), (224, 200), (130, 77)])
def test_it_is_pillows_on_pictures(size: tuple[int, int], cubic: bool) -> None:
    picture = smooth_image(np.random.default_rng(5), 150, 130)
    region = (10, 20, 120, 148)
    method = Image.Resampling.BICUBIC if cubic else Image.Resampling.BILINEAR
    expected = picture.crop((20, 10, 148, 120)).resize(size[::-1], method)
    found = run(np.array(picture), size, region, region, cubic=cubic)
    assert levels_apart(found, np.asarray(expected)) <= (2 if cubic else 1)


@settings(max_examples=50)
@given(height=st.integers(2, 50), width=st.integers(2, 50), rows=sides, columns=sides, cubic=st.booleans())
def test_one_colour_stays_that_colour(height: int, width: int, rows: int, columns: int, cubic: bool) -> None:
    """The weights sum to one, of any region."""
    for level in (0, 1, 128, 254, 255):
        pixels = np.full((height, width, 3), level, np.uint8)
        found = run(pixels, (rows, columns), (0.3, 0.7, height - 0.4, width - 0.1), cubic=cubic)
        assert (found == level).all()


@pytest.mark.parametrize("cubic", [False, True])
def test_a_size_that_is_already_right_changes_nothing(cubic: bool) -> None:
    pixels = noise(30, 41)
    np.testing.assert_array_equal(run(pixels, (30, 41), (0, 0, 30, 41), cubic=cubic), pixels)
    np.testing.assert_array_equal(run(pixels, (10, 9), (4, 5, 14, 14), cubic=cubic), pixels[4:14, 5:14])


def test_flips_turn_the_output() -> None:
    pixels = noise(50, 31)
    upright = run(pixels, (24, 40), (0, 0, 50, 31))
    for y in (False, True):
        for x in (False, True):
            expected = upright[:: -1 if y else 1, :: -1 if x else 1]
            np.testing.assert_array_equal(run(pixels, (24, 40), (0, 0, 50, 31), flips=(y, x)), expected)


def test_nothing_outside_the_window_is_seen() -> None:
    pixels, window = noise(60, 60), (11, 7, 43, 51)
    around = pixels.copy()
    inside = np.zeros((60, 60), np.bool_)
    inside[window[0] : window[2], window[1] : window[3]] = True
    around[~inside] = 255 - around[~inside]
    for region in (window, (12.4, 8.2, 40.7, 50.9)):
        np.testing.assert_array_equal(run(pixels, (20, 24), region, window), run(around, (20, 24), region, window))
        cut = np.ascontiguousarray(pixels[window[0] : window[2], window[1] : window[3]])
        np.testing.assert_array_equal(
            run(cut, (20, 24), region, window, at=window[:2]), run(pixels, (20, 24), region, window)
        )


def test_an_edge_between_pixels_is_a_crop_of_the_resized_image() -> None:
    """torchvision's Resize and CenterCrop: 90×120 to 45×60, of which 32×32 in the middle."""
    pixels = noise(90, 121)
    expected = by_torch(pixels, (45, 60))[6:38, 14:46]
    step = 121 / 60
    found = run(pixels, (32, 32), (12, 14 * step, 76, 46 * step))
    assert levels_apart(found, expected) <= 1


def test_a_reduced_image_counts_in_pixels_of_the_stored_one() -> None:
    """Of 101×75 stored pixels, decoded at 1/2: 51×38, where the last ones are not whole."""
    half = noise(51, 38)
    region = (10, 20, 70, 60)
    found = run(half, (12, 10), region, region, factor=2)
    assert levels_apart(found, run(half, (12, 10), (5, 10, 35, 30), (5, 10, 35, 30))) <= 1
    whole = run(half, (25, 20), (0, 0, 101, 75), factor=2, flips=(True, True))
    assert levels_apart(whole, run(half, (25, 20), (0, 0, 50.5, 37.5), flips=(True, True))) <= 1


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
@pytest.mark.parametrize("cubic", [False, True])
@pytest.mark.parametrize("width", [1, 5, 15, 16, 19, 40])  # 16 pixels are stored at a time
def test_memory_of_the_output(dtype: Any, channels_last: bool, cubic: bool, width: int) -> None:
    pixels = noise(40, 30)
    shape = (3, 17, width, 3) if channels_last else (3, 3, 17, width)
    memory = np.full(shape, 77, dtype)
    out = (memory.transpose(0, 3, 1, 2) if channels_last else memory)[1:2]
    found = run(pixels, (17, width), (0, 0, 40, 30), cubic=cubic, out=out)
    np.testing.assert_array_equal(found, run(pixels, (17, 40), (0, 0, 40, 30 * 40 / width), cubic=cubic)[:, :width])
    assert (memory[[0, 2]] == 77).all()


def test_values_are_normalised_as_torch_does() -> None:
    pixels, mean, factor = noise(20, 20), np.float32([123.7, 116.3, 103.5]), np.float32([0.0171, 0.0175, 0.0174])
    pictures = np.array([[pixels.ctypes.data, 20, 20, 60, 0, 0, 1]])
    window, flips = np.array([[0, 0, 20, 20]]), np.zeros((1, 2), np.bool_)
    out = np.empty((1, 3, 20, 20), np.float32)
    resample(pictures, window, window.astype(np.float64), flips, False, Target(out, mean, factor))(0, 1)
    levels = torch.from_numpy(pixels).permute(2, 0, 1).float()
    expected = levels.sub(torch.from_numpy(mean).view(3, 1, 1)).mul(torch.from_numpy(factor).view(3, 1, 1))
    np.testing.assert_array_equal(out[0], expected.numpy())


def test_an_image_that_is_not_there_is_left_alone_and_one_smaller_than_said_is_safe() -> None:
    out = np.full((1, 3, 8, 8), 77, np.uint8)
    pictures, window = np.array([[0, 5, 5, 15, 0, 0, 1]]), np.array([[0, 0, 5, 5]])
    flips = np.zeros((1, 2), np.bool_)
    resample(pictures, window, window.astype(np.float64), flips, False, Target(out, ZEROS, ONES))(0, 1)
    crop_or_pad(pictures, window, flips, pictures[:, 1:3].copy(), np.full(3, 3, np.uint8), 0, Target(out, ZEROS, ONES))(
        0, 1
    )
    assert (out == 77).all()
    pixels = np.full((5, 6, 3), 9, np.uint8)
    assert (run(pixels, (8, 8), (20, 30, 60, 70), (20, 30, 60, 70)) == 9).all()


@pytest.mark.parametrize("window", [(-3, -5, 13, 9), (2, 3, 8, 7), (-2, 4, 6, 20), (30, 40, 36, 44)])
@pytest.mark.parametrize("flips", [(False, False), (True, False), (False, True)])
def test_placing_pads_and_crops(window: tuple[int, int, int, int], flips: tuple[bool, bool]) -> None:
    pixels = noise(10, 12)
    padded = np.full((110, 112, 3), 50, np.uint8)
    padded[50:60, 50:62] = pixels
    top, left, bottom, right = (edge + 50 for edge in window)
    expected = padded[top:bottom, left:right][:: -1 if flips[0] else 1, :: -1 if flips[1] else 1]
    out = np.empty((1, 3, *expected.shape[:2]), np.float32)
    pictures = np.array([[pixels.ctypes.data, 10, 12, 36, 0, 0, 1]])
    fills = np.full(3, 50, np.uint8)
    crop_or_pad(
        pictures, np.array([window]), np.array([flips]), pictures[:, 1:3].copy(), fills, 0, Target(out, ZEROS, ONES * 2)
    )(0, 1)
    np.testing.assert_array_equal(out[0].transpose(1, 2, 0), expected * 2.0)
