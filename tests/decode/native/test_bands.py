"""The compiled resize of other pixels than RGB: against Pillow and torch, channel by channel."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.nn import functional

import gpuload
from gpuload.decode.native.cuts import crop_or_pad, resample
from gpuload.decode.native.images import bands_of
from gpuload.decode.native.values import Target
from gpuload.fields.images import Pixels

PEAKS = {"uint8": 255, "uint16": 65_535, "float32": 1}


def noise(height: int, width: int, channels: int, dtype: str, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).random((height, width, channels))
    return (values * PEAKS[dtype]).astype(dtype)


def run(
    pixels: np.ndarray,
    size: tuple[int, int],
    *,
    region: tuple[float, ...] | None = None,
    window: tuple[int, ...] | None = None,
    cubic: bool = False,
    flips: tuple[bool, bool] = (False, False),
    out: Any = None,
    mean: float = 0,
    factor: float = 1,
) -> np.ndarray:
    height, width, channels = pixels.shape
    if out is None:
        out = np.empty((1, channels, *size), np.float32)
    whole = (0, 0, height, width)
    resample(
        np.array([[pixels.ctypes.data, height, width, pixels.strides[0], 0, 0, 1]]),
        np.array([window or whole]),
        np.array([region or whole], np.float64),
        np.array([flips]),
        cubic,
        Target(
            out,
            np.full(channels, mean, np.float32),
            np.full(channels, factor, np.float32),
            bands_of(Pixels(channels, pixels.dtype.name)),
        ),
    )(0, 1)
    return np.asarray(out[0].transpose(1, 2, 0))


def by_pillow(pixels: np.ndarray, size: tuple[int, int], cubic: bool) -> np.ndarray:
    method = Image.Resampling.BICUBIC if cubic else Image.Resampling.BILINEAR
    channels = [Image.fromarray(channel).resize(size[::-1], method) for channel in np.moveaxis(pixels, 2, 0)]
    return np.stack([np.asarray(channel) for channel in channels], axis=2).astype(np.float64)


sides = st.integers(1, 40)


@settings(max_examples=120)
@given(
    height=sides,
    width=sides,
    rows=sides,
    columns=sides,
    channels=st.sampled_from([1, 4, 7]),
    dtype=st.sampled_from(sorted(PEAKS)),
    cubic=st.booleans(),
    seed=st.integers(0, 99),
)
def test_it_is_pillows_of_each_channel_even_of_noise(
    height: int, width: int, rows: int, columns: int, channels: int, dtype: str, cubic: bool, seed: int
) -> None:
    pixels = noise(height, width, channels, dtype, seed)
    if (
        dtype != "float32" and cubic
    ):  # what overshoots is clamped after each pass, and Pillow's are not always in this order
        pixels = pixels // 4 + np.array(PEAKS[dtype] * 3 // 8, dtype)
    apart = np.abs(run(pixels, (rows, columns), cubic=cubic) - by_pillow(pixels, (rows, columns), cubic)).max()
    assert apart <= (1e-6 if dtype == "float32" else 2)  # a level in each pass


@pytest.mark.parametrize("cubic", [False, True])
@pytest.mark.parametrize("channels", [1, 4, 7])
def test_floats_are_torchs(channels: int, cubic: bool) -> None:
    pixels = noise(50, 40, channels, "float32")
    for size in ((20, 31), (77, 64), (50, 40)):
        image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
        expected = functional.interpolate(image, size=size, mode="bicubic" if cubic else "bilinear", antialias=True)
        np.testing.assert_allclose(run(pixels, size, cubic=cubic), expected[0].permute(1, 2, 0), atol=1e-5)


@pytest.mark.parametrize("dtype", PEAKS)
def test_regions_flips_layouts_and_constants(dtype: str) -> None:
    """A region is resized as if it were an image, where the filter may use no more than that; all else follows."""
    pixels = noise(30, 40, 3, dtype)
    part = np.ascontiguousarray(pixels[5:25, 8:33])
    whole = run(part, (9, 11))
    np.testing.assert_array_equal(run(pixels, (9, 11), region=(5, 8, 25, 33), window=(5, 8, 25, 33)), whole)
    for flips in ((True, False), (False, True), (True, True)):
        turned = whole[:: -1 if flips[0] else 1, :: -1 if flips[1] else 1]
        np.testing.assert_array_equal(run(part, (9, 11), flips=flips), turned)
    last = np.empty((1, 9, 11, 3), np.float32).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(run(part, (9, 11), out=last), whole)
    np.testing.assert_allclose(run(part, (9, 11), mean=2, factor=0.5), (whole - 2) / 2, rtol=1e-6)
    if dtype == "uint8":
        levels = np.empty((1, 3, 9, 11), np.uint8)
        np.testing.assert_array_equal(run(part, (9, 11), out=levels), whole)


def test_gray_is_made_of_rgb_as_pillow_does() -> None:
    pixels = noise(20, 30, 3, "uint8")
    out = np.empty((1, 1, 20, 30), np.uint8)
    pictures, sides_ = np.array([[pixels.ctypes.data, 20, 30, 90, 0, 0, 1]]), np.array([[0, 0, 20, 30]])
    constants = np.zeros(1, np.float32), np.ones(1, np.float32)
    flips = np.zeros((1, 2), bool)
    target = Target(out, *constants, bands_of(Pixels(1), 3, True))
    resample(pictures, sides_, sides_ * 1.0, flips, False, target)(0, 1)
    np.testing.assert_array_equal(out[0, 0], np.asarray(Image.fromarray(pixels).convert("L")))


@settings(max_examples=60)
@given(
    height=sides,
    width=sides,
    rows=sides,
    columns=sides,
    top=st.integers(-20, 20),
    left=st.integers(-20, 20),
    flips=st.tuples(st.booleans(), st.booleans()),
    dtype=st.sampled_from(sorted(PEAKS)),
)
def test_a_window_is_cut_and_padded(
    height: int, width: int, rows: int, columns: int, top: int, left: int, flips: tuple[bool, bool], dtype: str
) -> None:
    pixels, fill = noise(height, width, 2, dtype), PEAKS[dtype]
    padded = np.pad(pixels, [(60, 60), (60, 60), (0, 0)], constant_values=fill)
    expected = padded[60 + top : 60 + top + rows, 60 + left : 60 + left + columns]
    expected = expected[:: -1 if flips[0] else 1, :: -1 if flips[1] else 1]
    out = np.empty((1, 2, rows, columns), np.float32)
    crop_or_pad(
        np.array([[pixels.ctypes.data, height, width, pixels.strides[0], 0, 0, 1]]),
        np.array([[top, left, top + rows, left + columns]]),
        np.array([flips]),
        np.array([[height, width]]),
        np.array([float(fill)]),
        0,
        Target(out, np.zeros(2, np.float32), np.ones(2, np.float32), bands_of(Pixels(2, dtype))),
    )(0, 1)
    np.testing.assert_array_equal(out[0].transpose(1, 2, 0), expected)


def test_who_loads_rgb_does_not_wait_until_it_is_compiled() -> None:
    """No module imports it at its top, so it is compiled for those alone who need it."""
    root = Path(gpuload.__file__).parent
    top = {
        path.name: [
            line for line in path.read_text().splitlines() if line.startswith(("import", "from")) and "bands" in line
        ]
        for path in root.rglob("*.py")
    }
    assert "bands.py" in top and {name: lines for name, lines in top.items() if lines} == {}
