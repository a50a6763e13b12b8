"""Maps of coordinates move exactly as keypoints do, whatever is drawn, on each decoder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coordinate_sets import SIZES, maps_to_output, origins, pack_coordinates
from loaders import load

import gpuload
from gpuload import Augment, CenterCrop, Cover, Depth, Letterbox, RandomCrop, ScaleJitter, ZoomOut
from gpuload.transforms import ColorJitter, RandomAffine, RandomPerspective, RandomRotation

OUT = (44, 52)

# By name: crops, with flips and warps, whose fits are exact.
AUGMENTS = {
    "random": Augment(OUT, flip=0.5, vertical_flip=0.5),
    "stretched": Augment(OUT, crop="none", flip=0.5),
    "center": Augment(OUT, crop=CenterCrop(resize=60), vertical_flip=0.5),
    "cover": Augment(OUT, crop=Cover(), flip=0.5),
    "letterbox": Augment(OUT, crop=Letterbox(), flip=0.5, vertical_flip=0.5),
    "jitter": Augment(OUT, crop=ScaleJitter((0.6, 1.6)), flip=0.5),
    "zoom out": Augment(OUT, crop=ZoomOut((1.0, 1.6))),
    "padded": Augment(OUT, crop=RandomCrop(padding=6, pad_if_needed=True), flip=0.5),
    "pad or crop": Augment(OUT, crop="pad_or_crop", flip=0.5),
    "rotated": Augment(OUT, crop="none", flip=0.5, transforms=[ColorJitter(0.4), RandomRotation(25)]),
    "affine": Augment(OUT, transforms=[RandomAffine(15, translate=(0.1, 0.1), scale=(0.8, 1.2), shear=8)]),
    "perspective": Augment(OUT, crop="none", transforms=[RandomPerspective(0.3, p=1.0)]),
}


CASES = [*((name, "native") for name in AUGMENTS), ("random", "dali"), ("affine", "dali")]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_coordinates(tmp_path_factory.mktemp("coordinates") / "set")


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_coordinates(tmp_path_factory.mktemp("half") / "set", ratio=2.0)


def batches(packed: Path, augment: Any, interpolation: Any, decoder: str) -> Any:
    fields = (
        "label",
        Depth("x", invalid=None, missing=np.nan, interpolation=interpolation),
        Depth("y", invalid=None, missing=np.nan, interpolation=interpolation),
        gpuload.Keypoints("keypoints"),
        "image",
    )
    with load(packed, 6, augment=augment, fields=fields, decoder=decoder) as loader:
        for label, x, y, keypoints, _ in loader:
            points = keypoints.keypoints if hasattr(keypoints, "keypoints") else keypoints[0]
            for row, number in enumerate(label.tolist()):
                projection = maps_to_output(points[row, 0].double().numpy(), number)
                if projection is not None:
                    yield number, projection, np.stack([x[row, 0].numpy(), y[row, 0].numpy()])


@pytest.mark.parametrize(("name", "decoder"), CASES)
def test_the_nearest_pixel_is_the_one_that_keypoints_tell(packed: Path, name: str, decoder: str) -> None:
    compared = 0
    for number, projection, found in batches(packed, AUGMENTS[name], "nearest", decoder):
        expected = origins(projection, OUT)
        if AUGMENTS[name].transforms:
            compared += agrees_roughly(found, expected, projection)
            continue
        size = np.array(SIZES[number % len(SIZES)])[:, None, None]
        inside = ((expected > 0) & (expected < size)).all(axis=0)
        clear = (np.abs(expected - np.rint(expected)) > 2e-3).all(axis=0)
        assert np.array_equal(np.isnan(found[0]), ~inside) or not clear.all()
        chosen = inside & clear
        assert np.array_equal(found[:, chosen], (np.floor(expected) + 0.5)[:, chosen])
        compared += int(chosen.sum())
    assert compared > 5_000


@pytest.mark.parametrize(("name", "decoder"), CASES)
def test_weighted_values_are_those_between_pixels(packed: Path, name: str, decoder: str) -> None:
    compared = 0
    for number, projection, found in batches(packed, AUGMENTS[name], "bilinear", decoder):
        expected = origins(projection, OUT)
        if AUGMENTS[name].transforms:
            compared += agrees_roughly(found, expected, projection)
            continue
        # Filters have fewer pixels than they want at the edges of images and crops.
        reduction = max(1.0, 1 / np.abs(projection[[0, 1], [0, 1]]).min())
        margin = 1 + 2 * reduction
        size = np.array(SIZES[number % len(SIZES)])[:, None, None]
        inner = ((expected > margin) & (expected < size - margin)).all(axis=0)
        inner[:3], inner[-3:], inner[:, :3], inner[:, -3:] = False, False, False, False
        # Where an image is reduced, the triangle of Pillow's filter has its centre off by up to a tenth of a pixel.
        assert np.abs(found - expected)[:, inner].max(initial=0) < (1e-3 if reduction < 1.001 else 0.1)
        compared += int(inner.sum())
    assert compared > 2_000


def agrees_roughly(found: np.ndarray, expected: np.ndarray, projection: np.ndarray) -> int:
    """Asserts that values are within a pixel of the crop and one of the warp, which each takes the nearest; returns how
    many were compared."""
    there = ~np.isnan(found[0])
    step = np.abs(np.gradient(expected, axis=2)).max() + np.abs(np.gradient(expected, axis=1)).max()
    assert np.abs(found - expected)[:, there].max() < 1.0 + step
    return int(there.sum())


@pytest.mark.parametrize("name", ["random", "letterbox", "padded", "rotated"])
def test_maps_of_another_size_show_the_same_part(half: Path, name: str) -> None:
    compared = 0
    for _, projection, found in batches(half, AUGMENTS[name], "nearest", "native"):
        compared += agrees_roughly(found, origins(projection, OUT), projection)
    assert compared > 5_000
