"""Presets give torchvision's own pixels: of JPEGs, decoded, cropped, resized and normalised, on both decoders.

How far they are apart, in levels of 255 (mean; 99.9th percentile; largest), over 12 JPEGs of 0.06 to 1.5 megapixels at
size 224 (2026-11; torchvision 0.28 on Pillow 13, DALI 2.4, torch 2.13):

                    native           dali
    eval, bilinear   0.0005; 0; 1    0.16; 1; 1
    eval, bicubic    0.0026; 1; 2    0.17; 1; 1
    train, bilinear  0.0023; 1; 1    0.16; 1; 1
    train, bicubic   0.0028; 1; 2    0.17; 1; 1

Pillow and torch round to whole levels between the two passes of a resize, DALI does not.
"""

import importlib
import io
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from images import encode, smooth_image
from loaders import load
from PIL import Image

import gpuload
from gpuload import Augment, CenterCrop

SIZES = [(375, 250), (250, 375), (300, 300), (640, 200), (120, 500), (700, 600)]
MEAN = {"native": 0.02, "dali": 0.25}


@pytest.fixture(scope="module")
def jpegs() -> list[bytes]:
    rng = np.random.default_rng(11)
    return [encode(smooth_image(rng, *size), quality=90) for size in SIZES]


@pytest.fixture(scope="module")
def pictures(jpegs: list[bytes]) -> list[Image.Image]:
    return [Image.open(io.BytesIO(jpeg)) for jpeg in jpegs]


@pytest.fixture(scope="module")
def folder(jpegs: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("presets")
    samples = [{"image": jpeg, "label": number % 2} for number, jpeg in enumerate(jpegs)]
    gpuload.pack(samples, out, workers=1, shuffle=False)
    return out / "train"


def batch(folder: Path, decoder: str, augment: Augment) -> torch.Tensor:
    """All images, in stored order."""
    with load(folder, len(SIZES), augment=augment, decoder=decoder, shuffle=False, fields=("image",)) as loader:
        [(images,)] = loader
    assert len(images) == len(SIZES)
    return images


def check_levels(images: torch.Tensor, std: Any, mean: float, expected: Callable[[int], torch.Tensor]) -> None:
    """Normalised images against those expected: `mean` levels of 255 apart, or less, and 2 at most."""
    for number, image in enumerate(images):
        other = expected(number)
        assert image.shape == other.shape and image.dtype == other.dtype == torch.float32
        gap = (image - other).abs() * 255 * torch.tensor(std).view(3, 1, 1)
        assert gap.mean() < mean and gap.max() < 2.01


@pytest.mark.parametrize("mode", ["BILINEAR", "BICUBIC"])
def test_evaluation_is_what_weights_transforms_do(
    folder: Path, pictures: list[Image.Image], transforms: ModuleType, decoder: str, mode: str
) -> None:
    presets = importlib.import_module("torchvision.transforms._presets")
    interpolation = importlib.import_module("torchvision.transforms").InterpolationMode[mode]
    constants: Any = {"mean": (0.5, 0.4, 0.3), "std": (0.25, 0.2, 0.3)}
    preset = presets.ImageClassification(crop_size=112, resize_size=128, interpolation=interpolation, **constants)
    own = Augment.imagenet_eval(112, interpolation=mode.lower(), normalize=gpuload.Normalize(**constants))
    for augment in (Augment.torchvision(preset), own):
        images = batch(folder, decoder, augment)
        check_levels(images, augment.normalize.std, MEAN[decoder], lambda number: preset(pictures[number]))


@pytest.mark.parametrize("mode", ["BILINEAR", "BICUBIC"])
def test_the_same_crops_give_the_same_training_images(
    folder: Path, pictures: list[Image.Image], transforms: ModuleType, decoder: str, mode: str
) -> None:
    functional = transforms.functional
    interpolation = importlib.import_module("torchvision.transforms").InterpolationMode[mode]
    augment = Augment.imagenet_train(224, interpolation=mode.lower(), vertical_flip=0.5)
    widths, heights = np.array(SIZES, np.int32).T
    crops = augment.draw(0, 0, np.arange(len(SIZES)), widths, heights).crops
    assert 0 < crops.mirror.sum() < len(SIZES) and 0 < crops.mirror_y.sum() < len(SIZES)

    def expected(number: int) -> torch.Tensor:
        top, left, height, width = *crops.start[number].tolist(), *crops.shape[number].tolist()
        image = functional.resized_crop(pictures[number], top, left, height, width, [224, 224], interpolation)
        image = functional.horizontal_flip(image) if crops.mirror[number] else image
        image = functional.vertical_flip(image) if crops.mirror_y[number] else image
        return functional.normalize(
            functional.to_dtype(functional.to_image(image), scale=True), augment.normalize.mean, augment.normalize.std
        )

    check_levels(batch(folder, decoder, augment), augment.normalize.std, MEAN[decoder], expected)


def test_inceptions_training_distorts_colours_and_reaches_from_minus_1_to_1(folder: Path, decoder: str) -> None:
    images = batch(folder, decoder, Augment.inception(80, train=True))
    plain = batch(folder, decoder, Augment.inception(80, train=True, transforms=()))
    assert images.shape == (len(SIZES), 3, 80, 80)
    assert -1 <= images.min() < -0.5 and 0.5 < images.max() <= 1
    assert not (images == plain).flatten(1).all(dim=1).any()
    # The same crops: what is bright in one is bright in the other, but for the hue.
    for one, other in zip(images.mean(dim=1).flatten(1), plain.mean(dim=1).flatten(1), strict=True):
        assert torch.corrcoef(torch.stack([one, other]))[0, 1] > 0.7


def test_presets_can_be_changed() -> None:
    assert Augment.imagenet_train() == Augment(224, crop="random")
    assert Augment.imagenet_train(64, dtype="uint8", flip=0.1) == Augment(64, dtype="uint8", flip=0.1)
    crop = CenterCrop(resize=120)
    assert Augment.imagenet_eval(112, crop=crop) == Augment(112, crop=crop)
    half = gpuload.Normalize((0.5,) * 3, (0.5,) * 3)
    assert Augment.inception(train=False) == Augment(299, CenterCrop(fraction=0.875), normalize=half)
    assert Augment.inception(train=False, crop=crop, size=100) == Augment(100, crop, normalize=half)


def test_the_views_of_simclr(transforms: ModuleType) -> None:
    """Its pipeline as published, in torchvision's transforms."""
    t = transforms
    published = t.Compose(
        [
            t.RandomResizedCrop(224, (0.08, 1.0), interpolation=t.InterpolationMode.BICUBIC),
            t.RandomHorizontalFlip(0.5),
            t.RandomApply([t.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8),
            t.RandomGrayscale(0.2),
            t.RandomApply([t.GaussianBlur(23, (0.1, 2.0))], 0.5),
        ]
    )
    same(gpuload.Augment.simclr(), gpuload.Augment.torchvision(published))


def test_the_views_of_dinov2(transforms: ModuleType) -> None:
    t = transforms

    def published(size: int, scale: tuple[float, float], blurred: float, *last: Any) -> Any:
        return t.Compose(
            [
                t.RandomResizedCrop(size, scale, interpolation=t.InterpolationMode.BICUBIC),
                t.RandomHorizontalFlip(0.5),
                t.RandomApply([t.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
                t.RandomGrayscale(0.2),
                t.RandomApply([t.GaussianBlur(9, (0.1, 2.0))], blurred),
                *last,
                t.ToImage(),
                t.ToDtype(torch.float32, scale=True),
                t.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        )

    first, second, *local = gpuload.Augment.dino()
    same(first, gpuload.Augment.torchvision(published(224, (0.32, 1.0), 1.0)))
    same(second, gpuload.Augment.torchvision(published(224, (0.32, 1.0), 0.1, t.RandomSolarize(128, 0.2))))
    assert len(local) == 8 and len({*map(repr, local)}) == 1
    same(local[0], gpuload.Augment.torchvision(published(98, (0.05, 0.32), 0.5)))


def same(ours: gpuload.Augment, theirs: gpuload.Augment) -> None:
    """They draw the same for the same images, and normalise alike."""
    widths, heights = np.arange(300, 400, dtype=np.int32), np.arange(500, 400, -1, dtype=np.int32)
    one, other = (augment.draw(1, 2, np.arange(100), widths, heights) for augment in (ours, theirs))
    assert one.steps is not None and other.steps is not None
    for first, second in zip((*one.crops, *one.steps), (*other.crops, *other.steps), strict=True):
        np.testing.assert_array_equal(first, second)
    assert ours.form == theirs.form
    assert str(one.erased) == str(other.erased)


def test_deit_is_what_timm_makes_of_its_arguments(transforms: ModuleType) -> None:
    importlib.import_module("torchvision_anywhere")
    published = {
        "auto_augment": "rand-m9-mstd0.5-inc1",
        "color_jitter": 0.3,
        "interpolation": "bicubic",
        "re_prob": 0.25,
        "re_mode": "pixel",
    }
    same(Augment.deit(), Augment.timm({"input_size": (3, 224, 224)}, is_training=True, **published))


def test_segmentation_scales_crops_and_pads_as_torchvisions_references(transforms: ModuleType) -> None:
    """Shorter sides are RandomResize's, and windows RandomCrop's; what is smaller is padded on the right and below."""
    width, height, count = 300, 200, 400
    sides = np.full((2, count), [[width], [height]], np.int32)
    crops = Augment.segmentation(48, base_size=52, flip=0).draw(0, 0, np.arange(count), *sides).crops
    shown = (crops.roi_end - crops.roi_start).astype(np.float64)
    scaled = np.rint(48 / shown * [height, width]).astype(int)
    resizes = [transforms.RandomResize(side, side + 1) for side in range(26, 104)]  # its upper end is not drawn
    theirs = {tuple(resize(torch.zeros(1, height, width, dtype=torch.uint8)).shape[1:]) for resize in resizes}
    assert {*map(tuple, scaled.tolist())} == theirs and set(scaled[:, 0]) == set(range(26, 104))
    top, left = np.rint((crops.start + crops.roi_start) * scaled / [height, width]).astype(int).T
    assert ((top >= 0) & (top <= np.maximum(scaled[:, 0] - 48, 0))).all() and (top[scaled[:, 0] <= 48] == 0).all()
    assert left.min() == 0 and (left == scaled[:, 1] - 48).any()
    evaluation = Augment.segmentation(base_size=52, train=False).draw(0, 0, np.arange(count), *sides)
    assert evaluation.size == tuple(transforms.Resize(52)(torch.zeros(1, height, width)).shape[1:])


def test_detection_has_torchvisions_policies(transforms: ModuleType) -> None:
    keep, several, large = (Augment.detection(policy) for policy in ("hflip", "multiscale", "lsj"))
    assert keep == Augment(None, "keep", flip=0.5, normalize=None)
    assert several.crop == gpuload.Resize([480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800], 1333)
    assert large == Augment(1024, gpuload.ScaleJitter((0.1, 2.0), fill=(123, 117, 104)), flip=0.5, normalize=None)
    with pytest.raises(gpuload.ArgumentError, match="'ssd'.*'hflip', 'lsj' or 'multiscale'|policy"):
        Augment.detection("ssd")  # type: ignore[arg-type]
