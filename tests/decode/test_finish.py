"""Normalisation of each image by itself, and what else is done after the resize, on both decoders."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import encode, smooth_image
from loaders import load
from PIL import Image

import gpuload
from gpuload import Augment, Normalize, PadOrCrop
from gpuload.transforms import RandomErasing, RandomInvert

LEVELS = (0, 1, 200, 255)  # of constant images


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight pictures, and four images of one level."""
    rng = np.random.default_rng(2)
    images = [smooth_image(rng, 60 + number, 50) for number in range(8)]
    images += [Image.new("RGB", (40, 40), (level,) * 3) for level in LEVELS]
    out = tmp_path_factory.mktemp("finish")
    gpuload.pack([{"image": encode(image, "PNG"), "label": 0} for image in images], out, workers=1, shuffle=False)
    return out / "train"


def batch(folder: Path, decoder: str, **options: Any) -> torch.Tensor:
    augment = Augment(**{"size": (30, 36), **options})
    with load(folder, 12, augment=augment, decoder=decoder, shuffle=False, fields=("image",)) as loader:
        [(images,)] = loader
    assert images.dtype == getattr(torch, augment.dtype)
    return images


def standardised(image: np.ndarray) -> np.ndarray:
    """As tf.image.per_image_standardization is documented."""
    values = image.astype(np.float64)
    return (values - values.mean()) / max(values.std(), 1 / np.sqrt(values.size))


MEAN, STD = (0.5, 0.25, 0.0), (0.5, 0.25, 1.0)


@pytest.mark.parametrize(("dtype", "gap"), [("float32", 1e-4), ("float16", 4e-3), ("bfloat16", 4e-2)])
@pytest.mark.parametrize("layout", ["NCHW", "channels_last"])
@pytest.mark.parametrize("normalize", ["image", Normalize(MEAN, STD)])
@pytest.mark.parametrize("transforms", [[], [RandomInvert(p=1.0)]])
def test_values_are_levels_that_were_transformed_and_then_normalised(
    folder: Path, decoder: str, dtype: Any, gap: float, layout: Any, normalize: Any, transforms: Any
) -> None:
    levels = batch(folder, decoder, dtype="uint8").numpy()
    assert (levels[8:] == np.array(LEVELS)[:, None, None, None]).all()
    levels = 255 - levels if transforms else levels
    np.testing.assert_array_equal(batch(folder, decoder, dtype="uint8", transforms=transforms).numpy(), levels)
    found = batch(folder, decoder, normalize=normalize, dtype=dtype, layout=layout, transforms=transforms)
    memory = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    assert found.is_contiguous(memory_format=memory)
    by_constants = (levels / 255 - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))
    expected = np.stack([standardised(image) for image in levels]) if normalize == "image" else by_constants
    np.testing.assert_allclose(found.float().numpy(), expected, atol=gap)


@pytest.mark.parametrize("side", [1, 3, 30, 224])
def test_images_that_are_almost_constant(tmp_path: Path, decoder: str, side: int) -> None:
    """Of one pixel the standard deviation, √2 / 3, is below the smallest divisor, √3 / 3."""
    images = np.stack([np.full((side, side, 3), level, np.uint8) for level in (1, 100, 254) for _ in range(3)])
    for number, image in enumerate(images):
        place = number * 7 % image.size
        image.flat[place] = int(image.flat[place]) + number % 3 - 1
    gpuload.pack([{"image": image, "label": 0} for image in images], tmp_path, workers=1, encode="raw", shuffle=False)
    augment = Augment(side, crop="none", flip=0, normalize="image")
    options: dict[str, Any] = {"augment": augment, "shuffle": False, "output": "numpy", "fields": ("image",)}
    with load(tmp_path / "train", 9, decoder=decoder, **options) as loader:
        ((found,),) = loader
    # float32 has the mean to 1e-7 of it, which the smallest divisor, 1 / sqrt(values), makes more of.
    for one, image in zip(found, images, strict=True):
        atol = 255 * 4e-7 * np.sqrt(image.size)
        np.testing.assert_allclose(one.transpose(1, 2, 0), standardised(image), rtol=1e-4, atol=atol)


def test_erasing_comes_after_normalisation(folder: Path, decoder: str) -> None:
    erasing = {"transforms": [RandomErasing(p=1.0, value=(7.0, 8.0, 9.0))]}
    whole, erased = batch(folder, decoder), batch(folder, decoder, **erasing)
    changed = ((whole - erased).abs() > 1e-4).any(dim=1)  # more than the rounding of another kernel
    assert changed.flatten(1).any(dim=1).all() and not changed.flatten(1).all(dim=1).any()
    assert torch.equal(torch.unique(erased.permute(0, 2, 3, 1)[changed], dim=0), torch.tensor([[7.0, 8.0, 9.0]]))
    gray = Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    levels = batch(folder, decoder, dtype="uint8", transforms=[RandomErasing(p=1.0)], normalize=gray)
    assert (levels.permute(0, 2, 3, 1)[changed] == 128).all()  # value 0 is the mean: 127.5, rounded


@pytest.mark.parametrize("fill", [0, 77, 255])
def test_fill_of_padding_is_normalised_with_its_image(folder: Path, decoder: str, fill: int) -> None:
    options: dict[str, Any] = {"size": (90, 90), "crop": PadOrCrop(fill)}
    levels = batch(folder, decoder, dtype="uint8", **options)
    assert (levels[:, :, :20] == fill).all() and (
        levels[8:, :, 25:65, 25:65].flatten(1).numpy() == np.array(LEVELS)[:, None]
    ).all()
    found = batch(folder, decoder, normalize=None, **options)
    torch.testing.assert_close(found[:, :, :20], torch.full((12, 3, 20, 90), fill / 255))
    np.testing.assert_allclose(
        batch(folder, decoder, normalize="image", **options)[9].numpy(), standardised(levels[9].numpy()), atol=1e-3
    )
