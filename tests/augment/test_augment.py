"""Crops and flips: the distribution against torchvision's, and what an Augment refuses."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loaders import largest_gap
from PIL import Image

import gpuload
from gpuload import Augment, CenterCrop, Cover, Normalize, PadOrCrop, RandomResizedCrop, Stretch
from gpuload.transforms import Function, RandomInvert


def speckle(sample: Any, rng: np.random.Generator) -> Any:
    return sample["image"]


def draw(augment: Augment, count: int, width: int, height: int, *, seed: int = 0, epoch: int = 0) -> Any:
    sizes = np.full((2, count), [[width], [height]], np.int32)
    return augment.draw(seed, epoch, np.arange(count), *sizes).crops


@pytest.mark.parametrize(
    ("width", "height", "options"),
    [
        (500, 375, {"scale": (0.5, 1.0)}),
        (64, 64, {"ratio": (0.5, 2.0)}),
        (300, 40, {}),  # so wide that many draws end in the fallback
        (40, 400, {"scale": (0.9, 1.0)}),  # all of them do
    ],
)
def test_random_crops_are_distributed_as_torchvisions(
    transforms: ModuleType, width: int, height: int, options: dict[str, Any]
) -> None:
    count = 10_000
    torch.manual_seed(0)
    image = torch.empty((3, height, width), device="meta")
    reference = transforms.RandomResizedCrop(224, **options)
    params = [reference.make_params([image]) for _ in range(count)]
    expected = np.array([[p["top"], p["left"], p["height"], p["width"]] for p in params])
    crops = draw(Augment(224, crop=RandomResizedCrop(**options)), count, width, height)
    found = np.concatenate([crops.start, crops.shape], axis=1)
    assert (crops.roi_start == 0).all() and (crops.roi_end == crops.shape).all()
    # Two samples of 10,000 from one distribution are further apart than 0.0276 once in 1,000 draws.
    for column in range(4):
        assert largest_gap(expected[:, column], found[:, column]) < 0.0276
    assert largest_gap(expected[:, 2] * expected[:, 3], found[:, 2] * found[:, 3]) < 0.0276


def test_place_size_and_flip_are_independent() -> None:
    crops = draw(Augment(8), 20_000, 1000, 1000)
    height, width = crops.shape.T
    top, left = (crops.start / np.maximum(1000 - crops.shape, 1)).T
    together = np.corrcoef([top, left, height * width, width / height, crops.mirror])
    # A correlation of independent draws has a standard error of 0.007; ten pairs, so allow four of them.
    assert np.abs(together - np.eye(5)).max() < 0.028


@given(st.integers(1, 900), st.integers(1, 900), st.integers(0, 2**62), st.sampled_from(["random", "center", "none"]))
def test_crops_lie_in_the_image(width: int, height: int, seed: int, crop: Any) -> None:
    crops = draw(Augment((20, 31), crop=crop), 8, width, height, seed=seed)
    assert (crops.start >= 0).all() and (crops.shape >= 1).all()
    assert (crops.start + crops.shape <= [height, width]).all()
    assert (crops.roi_start >= 0).all() and (crops.roi_end <= crops.shape + 1e-3).all()
    assert (crops.roi_end > crops.roi_start).all()


def test_seed_and_epoch_change_the_crops() -> None:
    drawn = {
        draw(Augment(8), 4, 500, 375, seed=s, epoch=e).start.tobytes() for s, e in [(0, 0), (0, 1), (1, 0), (1, 1)]
    }
    assert len(drawn) == 4


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 0.5),
        ({"crop": "center"}, 0),
        ({"crop": "none"}, 0),
        ({"flip": 0.2}, 0.2),
        ({"flip": 0}, 0),
        ({"flip": 1}, 1),
    ],
)
def test_share_of_flips(options: dict[str, Any], expected: float) -> None:
    mirror = draw(Augment(8, **options), 20_000, 50, 50).mirror
    assert set(mirror.tolist()) <= {0, 1}
    assert abs(mirror.mean() - expected) < (0.015 if 0 < expected < 1 else 1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": CenterCrop(resize=200)}, r"CenterCrop\(resize=200\): the shorter side must be at least size, 224"),
        ({"normalize": Normalize((123.7, 116.3, 103.5))}, r"expected values for pixels in 0..1. Divide yours by 255"),
        ({"mean": (0.5, 0.5, 0.5)}, r"Augment: has no argument 'mean'. Use normalize=gpuload.Normalize\(mean, std\)"),
        ({"transforms": [RandomInvert(), Function(speckle)]}, r"Function\(<function speckle .*is not the first. Flips"),
        ({"transforms": [Function(speckle), Function(speckle)]}, r"put it first, and call several in one"),
    ],
)
def test_impossible_augments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(gpuload.GpuloadError, match=message):
        Augment(**{"size": 224, **options})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CenterCrop(40, 0.5), "each says what to crop; give one of them"),
        (lambda: Normalize((0.5, 0.5)), r"mean=\(0.5, 0.5\)\): expected three numbers \(R, G, B\).* the other has, 3"),
    ],
)
def test_impossible_crops_and_constants_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(gpuload.ArgumentError, match=message):
        make()


def test_a_word_is_the_crop_without_arguments() -> None:
    words = {"random": RandomResizedCrop(), "center": CenterCrop(), "none": Stretch(), "pad_or_crop": PadOrCrop()}
    words |= {"cover": Cover(), "center_cover": Cover(random=False)}
    for word, crop in words.items():
        for size in (40, (30, 200)):
            first, second = (draw(Augment(size, crop=one), 50, 90, 70) for one in (word, crop))  # type: ignore[arg-type]
            for one, other in zip(first, second, strict=True):
                np.testing.assert_array_equal(one, other)


def test_dtypes_and_filters_of_other_libraries_are_known() -> None:
    for dtype in (torch.float16, np.float16, np.dtype("float16"), "float16"):
        assert Augment(8, dtype=dtype).dtype == "float16"  # type: ignore[arg-type]
    assert Augment(8, dtype=torch.bfloat16).dtype == "bfloat16"  # type: ignore[arg-type]
    assert Augment(8, layout=torch.channels_last).layout == "channels_last"  # type: ignore[arg-type]
    for filter in (Image.Resampling.BICUBIC, "bicubic"):
        assert Augment(8, interpolation=filter).interpolation == "bicubic"  # type: ignore[arg-type]
    for unknown in (torch.float64, np.int8, float, 3, "fp16"):
        with pytest.raises(gpuload.ArgumentError, match=r"dtype=.*expected one of 'float32', 'float16'"):
            Augment(8, dtype=unknown)  # type: ignore[arg-type]
    with pytest.raises(gpuload.ArgumentError, match="expected one of 'bilinear', 'bicubic'"):
        Augment(8, interpolation=Image.Resampling.LANCZOS)  # type: ignore[arg-type]
