"""The compiled resizes, of RGB and of other pixels: against torch, Pillow, NumPy and plain arithmetic, and what they must
not touch."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.nn import functional

from gpuload.decode.native.cuts import crop_or_pad, resample
from gpuload.decode.native.images import bands_of
from gpuload.decode.native.values import PixelTarget
from gpuload.fields.images import Pixels
from gpuload.kernels.structs import PICTURE

PEAKS = {"uint8": 255, "uint16": 65_535, "float32": 1}
RGB = (3, "rgb")  # by the code for RGB alone; all others are a number of channels and a dtype
KINDS = [RGB, *((channels, dtype) for channels in (1, 4, 7) for dtype in PEAKS)]
RESIZES = {False: Image.Resampling.BILINEAR, True: Image.Resampling.BICUBIC}


def noise(height: int, width: int, seed: int = 0, kind: tuple[int, str] = RGB) -> np.ndarray:
    dtype = kind[1].replace("rgb", "uint8")
    values = np.random.default_rng(seed).random((height, width, kind[0]))
    return (values * (PEAKS[dtype] + (dtype == "uint8"))).astype(dtype)


def target_of(out: Any, kind: tuple[int, str] = RGB, mean: Any = 0, factor: Any = 1, **bands: Any) -> PixelTarget:
    """bands: arguments of `bands_of`."""
    channels = out.shape[1]
    constants = (np.full(channels, number, np.float32) for number in (mean, factor))
    return PixelTarget(out, *constants, None if kind is RGB else bands_of(Pixels(*kind), **bands))


def picture_of(pixels: np.ndarray, at: tuple[int, int] = (0, 0), factor: int = 1) -> np.ndarray:
    height, width, _ = pixels.shape
    return np.array([(pixels.ctypes.data, height, width, pixels.strides[0], *at, factor)], PICTURE)


def run(
    pixels: np.ndarray,
    size: tuple[int, int],
    region: tuple[float, ...] | None = None,
    window: tuple[int, ...] | None = None,
    *,
    flips: tuple[bool, bool] = (False, False),
    cubic: bool = False,
    at: tuple[int, int] = (0, 0),
    factor: int = 1,
    target: PixelTarget | None = None,
    kind: tuple[int, str] = RGB,
) -> np.ndarray:
    """One image through `resample`; region and window are (top, left, bottom, right)."""
    height, width, channels = pixels.shape
    whole = (0, 0, height * factor, width * factor)
    dtype = np.uint8 if kind is RGB else np.float32
    target = target or target_of(np.empty((1, channels, *size), dtype), kind)
    pictures, windows = picture_of(pixels, at, factor), np.array([window or whole])
    resample(pictures, windows, np.array([region or whole], np.float64), np.array([flips]), cubic, target)(0, 1)
    return np.asarray(target.out[0].transpose(1, 2, 0))


def by_torch(pixels: np.ndarray, size: tuple[int, int], mode: str = "bilinear") -> np.ndarray:
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    return functional.interpolate(image, size=size, mode=mode, antialias=True)[0].permute(1, 2, 0).numpy()


def apart(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one.astype(float) - other).max())


sides = st.integers(1, 70)


@settings(max_examples=250)
@given(st.tuples(sides, sides), st.tuples(sides, sides), st.sampled_from(KINDS), st.booleans(), st.integers(0, 99))
@example((50, 40), (50, 25), RGB, True, 0)
@example((50, 40), (20, 40), (4, "uint16"), True, 0)
def test_all_kinds_are_pillows_in_each_channel_even_of_noise(
    held: tuple[int, int], size: tuple[int, int], kind: tuple[int, str], cubic: bool, seed: int
) -> None:
    pixels, largest = noise(*held, seed, kind), PEAKS.get(kind[1], 255)
    if largest > 1 and cubic and held[0] != size[0] and held[1] != size[1]:
        # What overshoots is clamped after each of two passes, and Pillow's not always in this order.
        pixels = pixels // 4 + np.array(largest * 3 // 8, pixels.dtype)
    channels = [Image.fromarray(channel).resize(size[::-1], RESIZES[cubic]) for channel in np.moveaxis(pixels, 2, 0)]
    expected = np.stack([np.asarray(channel) for channel in channels], axis=2)
    gaps = np.abs(run(pixels, size, cubic=cubic, kind=kind).astype(float) - expected)
    assert gaps.max() <= (1e-6 if largest == 1 else 2)  # a level in each pass
    if kind is RGB and not cubic and min(*held, *size) >= 8:  # else the few pixels there are may all be the same one
        # Most where weights of 1/2 end between two levels; the weights of an enlarged image are of two pixels alone.
        assert (gaps > 0).mean() <= (0.15 if size[0] >= held[0] and size[1] >= held[1] else 0.3)


@settings(max_examples=50)
@given(height=st.integers(2, 50), width=st.integers(2, 50), rows=sides, columns=sides, cubic=st.booleans())
def test_one_colour_stays_that_colour(height: int, width: int, rows: int, columns: int, cubic: bool) -> None:
    """The weights sum to one, of any region."""
    for level in (0, 1, 128, 254, 255):
        pixels = np.full((height, width, 3), level, np.uint8)
        found = run(pixels, (rows, columns), (0.3, 0.7, height - 0.4, width - 0.1), cubic=cubic)
        assert (found == level).all()


@pytest.mark.parametrize("cubic", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_sizes_that_are_right_flips_and_windows(kind: tuple[int, str], cubic: bool) -> None:
    options: dict[str, Any] = {"kind": kind, "cubic": cubic}
    pixels, window = noise(50, 41, kind=kind), (11, 7, 43, 31)
    np.testing.assert_array_equal(run(pixels, (50, 41), **options), pixels)
    np.testing.assert_array_equal(run(pixels, (10, 9), (4, 5, 14, 14), **options), pixels[4:14, 5:14])
    upright = run(pixels, (24, 40), **options)
    for y, x in ((False, True), (True, False), (True, True)):
        expected = upright[:: -1 if y else 1, :: -1 if x else 1]
        np.testing.assert_array_equal(run(pixels, (24, 40), flips=(y, x), **options), expected)
    around, cut = np.full_like(pixels, PEAKS.get(kind[1], 255)), (slice(11, 43), slice(7, 31))
    around[cut] = pixels[cut]
    for region in (window, (12.4, 8.2, 40.7, 30.9)):  # nothing outside the window is seen
        found = run(pixels, (20, 24), region, window, **options)
        np.testing.assert_array_equal(found, run(around, (20, 24), region, window, **options))
        part = np.ascontiguousarray(pixels[cut])
        np.testing.assert_array_equal(run(part, (20, 24), region, window, at=window[:2], **options), found)


def test_an_edge_between_pixels_is_a_crop_of_the_resized_image() -> None:
    """torchvision's Resize and CenterCrop: 90×120 to 45×60, of which 32×32 in the middle."""
    pixels, step = noise(90, 121), 121 / 60
    expected = by_torch(pixels, (45, 60))[6:38, 14:46]
    assert apart(run(pixels, (32, 32), (12, 14 * step, 76, 46 * step)), expected) <= 1


def test_a_reduced_image_counts_in_pixels_of_the_stored_one() -> None:
    """Of 101×75 stored pixels, decoded at 1/2: 51×38, where the last ones are not whole."""
    half, region = noise(51, 38), (10, 20, 70, 60)
    found = run(half, (12, 10), region, region, factor=2)
    assert apart(found, run(half, (12, 10), (5, 10, 35, 30), (5, 10, 35, 30))) <= 1
    whole = run(half, (25, 20), (0, 0, 101, 75), factor=2, flips=(True, True))
    assert apart(whole, run(half, (25, 20), (0, 0, 50.5, 37.5), flips=(True, True))) <= 1


@pytest.mark.parametrize("kind", [RGB, (3, "uint8")], ids=str)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
@pytest.mark.parametrize("cubic", [False, True])
@pytest.mark.parametrize("width", [1, 5, 15, 16, 19, 40])  # 16 pixels are stored at a time
def test_memory_of_the_output(kind: Any, dtype: Any, channels_last: bool, cubic: bool, width: int) -> None:
    pixels = noise(40, 30)
    shape = (3, 17, width, 3) if channels_last else (3, 3, 17, width)
    memory = np.full(shape, 77, dtype)
    out = (memory.transpose(0, 3, 1, 2) if channels_last else memory)[1:2]
    found = run(pixels, (17, width), cubic=cubic, target=target_of(out, kind))
    wider = run(pixels, (17, 40), (0, 0, 40, 30 * 40 / width), cubic=cubic, kind=kind)
    np.testing.assert_array_equal(found, wider[:, :width])
    assert (memory[[0, 2]] == 77).all()


@pytest.mark.parametrize("kind", [RGB, *((3, dtype) for dtype in PEAKS)], ids=str)
def test_values_are_normalised_as_torch_does(kind: tuple[int, str]) -> None:
    mean, factor = np.float32([123.7, 116.3, 103.5]), np.float32([0.0171, 0.0175, 0.0174])
    pixels = noise(20, 20, kind=kind)
    found = run(pixels, (20, 20), target=target_of(np.empty((1, 3, 20, 20), np.float32), kind, mean, factor))
    expected = (torch.from_numpy(pixels.astype(np.float32)) - torch.from_numpy(mean)) * torch.from_numpy(factor)
    np.testing.assert_array_equal(found, expected.numpy())


def test_gray_is_made_of_rgb_as_pillow_does() -> None:
    pixels = noise(20, 30)
    target = target_of(np.empty((1, 1, 20, 30), np.uint8), (1, "uint8"), step=3, luma=True)
    found = run(pixels, (20, 30), target=target)
    np.testing.assert_array_equal(found[..., 0], np.asarray(Image.fromarray(pixels).convert("L")))


def test_an_image_that_is_not_there_is_left_alone_and_one_smaller_than_said_is_safe() -> None:
    target = target_of(np.full((1, 3, 8, 8), 77, np.uint8))
    pictures, window = np.array([[0, 5, 5, 15, 0, 0, 1]]), np.array([[0, 0, 5, 5]])
    flips = np.zeros((1, 2), np.bool_)
    resample(pictures, window, window.astype(np.float64), flips, False, target)(0, 1)
    crop_or_pad(pictures, window, flips, pictures[:, 1:3].copy(), np.full(3, 3, np.uint8), 0, target)(0, 1)
    assert (target.out == 77).all()
    pixels = np.full((5, 6, 3), 9, np.uint8)
    assert (run(pixels, (8, 8), (20, 30, 60, 70), (20, 30, 60, 70)) == 9).all()


@settings(max_examples=120)
@given(
    held=st.tuples(sides, sides),
    size=st.tuples(sides, sides),
    place=st.tuples(st.integers(-30, 30), st.integers(-30, 30)),
    flips=st.tuples(st.booleans(), st.booleans()),
    kind=st.sampled_from([RGB, *((2, dtype) for dtype in PEAKS)]),
)
def test_a_window_is_cut_and_padded(
    held: tuple[int, int], size: tuple[int, int], place: tuple[int, int], flips: tuple[bool, bool], kind: Any
) -> None:
    pixels, fill = noise(*held, kind=kind), 50 if kind is RGB else PEAKS[kind[1]]
    padded = np.pad(pixels, [(100, 100), (100, 100), (0, 0)], constant_values=fill)
    (top, left), (rows, columns) = place, size
    expected = padded[100 + top : 100 + top + rows, 100 + left : 100 + left + columns]
    expected = expected[:: -1 if flips[0] else 1, :: -1 if flips[1] else 1]
    fills = np.full(3, fill, np.uint8) if kind is RGB else np.array([float(fill)])
    target = target_of(np.empty((1, kind[0], *size), np.float32), kind, factor=2)
    windows = np.array([[top, left, top + rows, left + columns]])
    crop_or_pad(picture_of(pixels), windows, np.array([flips]), np.array([held]), fills, 0, target)(0, 1)
    np.testing.assert_array_equal(target.out[0].transpose(1, 2, 0), expected * 2.0)
