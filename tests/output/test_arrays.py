"""Arrays of the user's library: without a copy, of the batch's dtype and layout, and what is said where that cannot be."""

from typing import Any

import numpy as np
import pytest
import torch

import gpuload
from gpuload import Augment
from gpuload.output.arrays import make_arrays


def pixels_of(layout: str, dtype: str = "float32") -> np.ndarray:
    """What a decoder delivers for two images of 4 × 5 pixels."""
    shape = (2, 4, 5, 3) if layout == "channels_last" else (2, 3, 4, 5)
    return np.arange(120).reshape(shape).astype(dtype)


@pytest.mark.parametrize("layout", ["NCHW", "channels_last"])
@pytest.mark.parametrize("output", ["torch", "numpy"])
@pytest.mark.parametrize("made_by", ["numpy", "dlpack"])
def test_images_are_views_of_the_decoders_memory(output: str, layout: Any, made_by: str) -> None:
    pixels = pixels_of(layout)
    arrays = make_arrays(output, None, Augment(8, layout=layout).form)
    images = arrays.images(pixels if made_by == "numpy" else torch.from_numpy(pixels))
    assert isinstance(images, torch.Tensor if output == "torch" else np.ndarray) and images.shape == (2, 3, 4, 5)
    expected = pixels.transpose(0, 3, 1, 2) if layout == "channels_last" else pixels
    np.testing.assert_array_equal(np.asarray(images), expected)
    images[1, 2, 3, 4] = -1
    assert pixels[1, 3, 4, 2] == -1 if layout == "channels_last" else pixels[1, 2, 3, 4] == -1


def test_bfloat16_is_cast_when_a_batch_is_handed_over() -> None:
    arrays = make_arrays("torch", None, Augment(8, dtype="bfloat16").form)
    assert arrays.images(pixels_of("NCHW")).dtype == torch.bfloat16
    assert arrays.images(pixels_of("NCHW")[:0]).dtype == torch.bfloat16  # of a batch without samples
    assert arrays.adopt(pixels_of("NCHW"), is_image=True).dtype == torch.bfloat16
    assert arrays.adopt(pixels_of("NCHW"), is_image=False).dtype == torch.float32


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_other_fields_keep_their_dtype_and_memory(output: str) -> None:
    arrays = make_arrays(output, None, Augment(8, dtype="float16").form)
    for dtype in ("int64", "uint8", "float32"):
        numbers = np.arange(6, dtype=dtype)
        for found in (arrays.from_host(numbers), arrays.from_decoder(numbers), arrays.staging().from_host(numbers)):
            found[0] = 9
            assert numbers[0] == 9 and str(found.dtype).endswith(dtype)
            numbers[0] = 0


@pytest.mark.parametrize(
    ("output", "dtype", "error", "message"),
    [
        (
            "numpy",
            "bfloat16",
            gpuload.ArgumentError,
            "output='numpy': has no bfloat16; use float16 or float32, or output=",
        ),
        (
            "cupy",
            "float32",
            gpuload.DeviceError,
            "CuPy arrays are on a GPU, and the device is the CPU. Use output='numpy'",
        ),
    ],
)
def test_what_a_library_cannot_hold(output: str, dtype: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make_arrays(output, None, Augment(8, dtype=dtype).form)
