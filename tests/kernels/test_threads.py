"""Threads that make the views of one batch at the same time do not disturb each other."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from gpuload.decode.native.cuts import resample
from gpuload.decode.native.transforms import transform
from gpuload.decode.native.values import PixelTarget, as_levels
from gpuload.kernels.structs import PICTURE
from gpuload.transforms.ops import ARGS, Op
from gpuload.transforms.steps import Steps

IMAGES, SIDE = 64, 48


def test_views_with_transforms_are_the_same_by_many_threads() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (IMAGES, SIDE, SIDE, 3), np.uint8)
    pictures = np.zeros(IMAGES, PICTURE)
    for row, image in enumerate(pixels):
        pictures[row] = (image.ctypes.data, SIDE, SIDE, 3 * SIDE, 0, 0, 1)
    windows = np.tile([0, 0, SIDE, SIDE], (IMAGES, 1))
    steps = Steps(np.full((IMAGES, 1), Op.INVERT, np.int8), np.zeros((IMAGES, 1, ARGS), np.float32))
    out = np.zeros((IMAGES, 3, 32, 32), np.float32)
    target = PixelTarget(out, np.zeros(3, np.float32), np.ones(3, np.float32))
    nowhere = np.empty((1, 3, 32, 32), np.uint8)
    regions = windows.astype(np.float64)
    levels = resample(pictures, windows, regions, np.zeros((IMAGES, 2), np.bool_), False, as_levels(nowhere))
    make = transform(steps, target, levels)
    make(0, IMAGES)
    expected = out.copy()
    assert expected.any()
    with ThreadPoolExecutor(8) as pool:
        for _ in range(50):
            out[:] = -1
            list(pool.map(lambda row: make(row, row + 1), range(IMAGES)))
            np.testing.assert_array_equal(out, expected)
