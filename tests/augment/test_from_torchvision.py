"""`Augment.torchvision`: what is read out of torchvision's transforms, old and new, and what is refused."""

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import gpuload
from gpuload import Augment, CenterCrop, Normalize
from gpuload import transforms as own

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PLAIN: dict[str, Any] = {"normalize": None, "flip": 0.0}


@pytest.fixture(params=["v1", "v2"])
def tv(request: pytest.FixtureRequest, transforms: ModuleType) -> ModuleType:
    """torchvision's transforms of either kind."""
    return transforms if request.param == "v2" else importlib.import_module("torchvision.transforms")


def build(tv: ModuleType, *steps: Any) -> Augment:
    return Augment.torchvision(tv.Compose(list(steps)))


def test_the_usual_training_and_evaluation(tv: ModuleType) -> None:
    floats = [tv.ToImage(), tv.ToDtype(torch.float32, scale=True)] if hasattr(tv, "ToImage") else [tv.ToTensor()]
    end = [*floats, tv.Normalize(MEAN, STD)]
    assert build(tv, tv.RandomResizedCrop(224), tv.RandomHorizontalFlip(), *end) == Augment(
        224, crop=gpuload.RandomResizedCrop(), flip=0.5
    )
    assert build(tv, tv.Resize(256), tv.CenterCrop(224), *end) == Augment(224, crop=CenterCrop(resize=256), flip=0.0)
    mode = importlib.import_module("torchvision.transforms").InterpolationMode.BICUBIC
    cropped = build(
        tv,
        tv.RandomVerticalFlip(0.25),
        tv.RandomResizedCrop((30, 40), scale=(0.2, 0.9), ratio=(0.5, 2), interpolation=mode),
        tv.RandomHorizontalFlip(0.75),
    )
    options: dict[str, Any] = {"interpolation": "bicubic", "vertical_flip": 0.25, "normalize": None, "flip": 0.75}
    assert cropped == Augment((30, 40), crop=gpuload.RandomResizedCrop((0.2, 0.9), (0.5, 2)), **options)


def test_one_transform_and_nested_ones(tv: ModuleType) -> None:
    assert Augment.torchvision(tv.Resize((30, 40))) == Augment((30, 40), crop="none", **PLAIN)
    assert Augment.torchvision(tv.RandomResizedCrop(30)) == Augment(30, crop=gpuload.RandomResizedCrop(), **PLAIN)
    inner = tv.Compose(
        [tv.Compose([tv.Resize([40])]), torch.nn.Sequential(tv.CenterCrop(32), tv.Normalize([0.5], [0.25]))]
    )
    assert Augment.torchvision(inner) == Augment(
        32, crop=CenterCrop(resize=40), flip=0.0, normalize=Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    )


def test_changes_take_precedence(tv: ModuleType) -> None:
    found = Augment.torchvision(tv.Resize((8, 8)), dtype="uint8", flip=0.5)
    assert found == Augment(8, crop="none", **{**PLAIN, "flip": 0.5}, dtype="uint8")


def test_weights_transforms(transforms: ModuleType) -> None:
    presets = importlib.import_module("torchvision.transforms._presets")
    mode = importlib.import_module("torchvision.transforms").InterpolationMode
    assert Augment.torchvision(presets.ImageClassification(crop_size=224)) == Augment.imagenet_eval(
        224, crop=CenterCrop(resize=256)
    )
    found = Augment.torchvision(
        presets.ImageClassification(
            crop_size=299, resize_size=342, mean=(0.5,) * 3, std=(0.25,) * 3, interpolation=mode.BICUBIC
        )
    )
    expected: dict[str, Any] = {"interpolation": "bicubic", "normalize": Normalize((0.5,) * 3, (0.25,) * 3)}
    assert found == Augment.imagenet_eval(299, crop=CenterCrop(342), **expected)


def policy_named(name: str) -> Any:
    return importlib.import_module("torchvision.transforms").AutoAugmentPolicy(name)


def bilinear() -> Any:
    return importlib.import_module("torchvision.transforms").InterpolationMode.BILINEAR


PIXELS: list[tuple[Callable[[Any], Any], Any]] = [
    (lambda tv: tv.ColorJitter(0.4), own.ColorJitter((0.6, 1.4))),
    (
        lambda tv: tv.ColorJitter((0.5, 1.2), 0.3, 0.2, (-0.1, 0.2)),
        own.ColorJitter((0.5, 1.2), (0.7, 1.3), (0.8, 1.2), (-0.1, 0.2)),
    ),
    (lambda tv: tv.RandomGrayscale(0.3), own.RandomGrayscale(0.3)),
    (lambda tv: tv.GaussianBlur(5), own.GaussianBlur((5, 5))),
    (lambda tv: tv.GaussianBlur([3, 5], 1.5), own.GaussianBlur((3, 5), (1.5, 1.5))),
    (lambda tv: tv.RandomInvert(0.2), own.RandomInvert(0.2)),
    (lambda tv: tv.RandomPosterize(3, 0.2), own.RandomPosterize(3, 0.2)),
    (lambda tv: tv.RandomSolarize(100, 0.2), own.RandomSolarize(100, 0.2)),
    (lambda tv: tv.RandomAdjustSharpness(2, 0.2), own.RandomAdjustSharpness(2, 0.2)),
    (lambda tv: tv.RandomAutocontrast(0.2), own.RandomAutocontrast(0.2)),
    (lambda tv: tv.RandomEqualize(0.2), own.RandomEqualize(0.2)),
    (lambda tv: tv.RandAugment(3, 5, 20), own.RandAugment(3, 5, 20)),
    (lambda tv: tv.RandAugment(fill=[1, 2, 3]), own.RandAugment(fill=(1, 2, 3))),
    (lambda tv: tv.TrivialAugmentWide(20, fill=128), own.TrivialAugmentWide(20, fill=128)),
    (lambda tv: tv.AutoAugment(), own.AutoAugment("imagenet")),
    (lambda tv: tv.AutoAugment(policy_named("svhn"), fill=9), own.AutoAugment("svhn", fill=9)),
    (lambda tv: tv.AugMix(), own.AugMix()),
    (
        lambda tv: tv.AugMix(2, 4, 2, 0.5, False, tv.InterpolationMode.NEAREST, [1, 2, 3]),
        own.AugMix(2, 4, 2, 0.5, False, "nearest", (1, 2, 3)),
    ),
    (
        lambda tv: tv.RandomApply([tv.ColorJitter(hue=0.1), tv.RandomInvert(1.0)], p=0.8),
        own.RandomApply((own.ColorJitter(hue=(-0.1, 0.1)), own.RandomInvert(1.0)), p=0.8),
    ),
    (
        lambda tv: tv.RandomRotation(15, bilinear(), center=[3, 4], fill=7),
        own.RandomRotation((-15, 15), "bilinear", center=(3, 4), fill=7),
    ),
    (
        lambda tv: tv.RandomAffine((-5, 10), (0.1, 0.2), (0.9, 1.1), [-3, 4, -5, 6], fill=[1, 2, 3]),
        own.RandomAffine((-5, 10), (0.1, 0.2), (0.9, 1.1), (-3, 4, -5, 6), fill=(1, 2, 3)),
    ),
    (lambda tv: tv.RandomAffine(0, shear=8), own.RandomAffine(0, shear=(-8, 8))),
    (lambda tv: tv.RandomPerspective(0.3, 0.7), own.RandomPerspective(0.3, 0.7)),
    (lambda tv: tv.RandomErasing(), own.RandomErasing(value=0)),
    (lambda tv: tv.RandomErasing(0.3, (0.1, 0.2), (0.5, 2), 1.5), own.RandomErasing(0.3, (0.1, 0.2), (0.5, 2), 1.5)),
    (lambda tv: tv.RandomErasing(value="random"), own.RandomErasing(value="random")),
    (lambda tv: tv.RandomErasing(value=[1, 2, 3]), own.RandomErasing(value=(1, 2, 3))),
]


@pytest.mark.parametrize(("theirs", "ours"), PIXELS, ids=[str(number) for number in range(len(PIXELS))])
def test_transforms_of_pixels(tv: ModuleType, theirs: Callable[[Any], Any], ours: Any) -> None:
    found = build(tv, tv.RandomResizedCrop(64), tv.RandomHorizontalFlip(0), theirs(tv))
    assert found == Augment(64, transforms=[ours], **PLAIN)


CROPS: list[tuple[Callable[[Any], list[Any]], gpuload.RandomCrop]] = [
    (lambda tv: [tv.RandomCrop(32)], gpuload.RandomCrop()),
    (lambda tv: [tv.RandomCrop(32, padding=4)], gpuload.RandomCrop(4)),
    (lambda tv: [tv.RandomCrop([32], (4, 5), fill=9)], gpuload.RandomCrop((4, 5, 4, 5), fill=9)),
    (lambda tv: [tv.RandomCrop(32, (1, 2, 3, 4), True)], gpuload.RandomCrop((1, 2, 3, 4), pad_if_needed=True)),
    (lambda tv: [tv.RandomCrop(32, 4, padding_mode="reflect")], gpuload.RandomCrop(4, padding_mode="reflect")),
    (
        lambda tv: [tv.RandomCrop(32, pad_if_needed=True, fill=(1, 2, 3))],
        gpuload.RandomCrop(pad_if_needed=True, fill=(1, 2, 3)),
    ),
    (
        lambda tv: [tv.Pad((3, 4), padding_mode="symmetric"), tv.RandomHorizontalFlip(0), tv.RandomCrop(32)],
        gpuload.RandomCrop((3, 4), padding_mode="symmetric"),
    ),
]


@pytest.mark.parametrize(("theirs", "ours"), CROPS, ids=[str(number) for number in range(len(CROPS))])
def test_random_crops_and_their_padding(
    tv: ModuleType, theirs: Callable[[Any], list[Any]], ours: gpuload.RandomCrop
) -> None:
    found = build(tv, *theirs(tv)).crop
    assert isinstance(found, gpuload.RandomCrop)
    sides: Any = np.full((2, 50), 40, np.int32)
    first, second = (Augment(32, crop=crop).draw(0, 0, np.arange(50), *sides).crops for crop in (found, ours))
    np.testing.assert_array_equal(first.start, second.start)
    assert (found.fill, found.pad_if_needed, found.padding_mode) == (ours.fill, ours.pad_if_needed, ours.padding_mode)


def test_a_fill_of_float_images_is_of_0_to_1(transforms: ModuleType) -> None:
    v1 = importlib.import_module("torchvision.transforms")
    for tv in (v1, transforms):
        assert build(tv, v1.ToTensor(), tv.RandomCrop(32, 4, fill=0.5)).crop == gpuload.RandomCrop(4, fill=128)


def test_several_keep_their_order(tv: ModuleType) -> None:
    steps = [tv.RandomInvert(0.1), tv.GaussianBlur(3), tv.RandomInvert(0.2)]
    found = build(tv, tv.Resize((32, 32)), *steps, tv.Normalize(MEAN, STD), tv.RandomErasing(0.5))
    assert [type(one).__name__ for one in found.transforms] == [
        "RandomInvert",
        "GaussianBlur",
        "RandomInvert",
        "RandomErasing",
    ]
    assert [found.transforms[number].p for number in (0, 2)] == [0.1, 0.2]  # type: ignore[union-attr]


def test_levels_of_float_images_are_of_0_to_1(transforms: ModuleType) -> None:
    v1 = importlib.import_module("torchvision.transforms")
    for to_float, to_levels in (
        (v1.ToTensor(), v1.ToPILImage()),
        (v1.ConvertImageDtype(torch.float32), v1.ConvertImageDtype(torch.uint8)),
        (transforms.ToDtype(torch.float16, scale=True), transforms.ToDtype(torch.uint8, scale=True)),
    ):
        steps = [transforms.RandomSolarize(0.5), transforms.RandAugment(fill=[0.2, 0.4, 1.0])]
        found = build(v1, v1.Resize((32, 32)), to_float, *steps, to_levels, v1.RandomSolarize(100)).transforms
        assert [found[0].threshold, found[2].threshold] == [127.5, 100]  # type: ignore[union-attr]
        assert found[1].fill == (51, 102, 255)  # type: ignore[union-attr]


class Unheard:
    """A transform of the user's own."""


REFUSED: list[tuple[Callable[[Any], Any], str]] = [
    (
        lambda tv: [tv.RandomResizedCrop(32), tv.ElasticTransform()],
        "ElasticTransform has no counterpart. Known: RandomResizedCrop, Resize",
    ),
    (lambda tv: [Unheard()], r"Unheard is not torchvision's own.*transforms.Function\("),
    (
        lambda tv: [tv.RandomResizedCrop(32), tv.RandomApply([tv.ElasticTransform()])],
        "ElasticTransform has no counterpart",
    ),
    (
        lambda tv: [tv.RandomResizedCrop(32), tv.RandomRotation(10, expand=True)],
        r"RandomRotation\(expand=True\): gives images of different sizes, which make no batch",
    ),
    (
        lambda tv: [tv.RandomRotation(10), tv.RandomResizedCrop(32)],
        "RandomRotation comes before crop and resize; here pixels change after",
    ),
    *[
        (
            lambda tv, make=make: [tv.Resize((32, 32)), make(tv), tv.RandomHorizontalFlip()],
            "RandomHorizontalFlip comes after a Random(Rotation|Affine) that turns images to one side more",
        )
        for make in (
            lambda tv: tv.RandomRotation((0, 20)),
            lambda tv: tv.RandomAffine(5, center=(3, 4)),
            lambda tv: tv.RandomApply([tv.RandomAffine(5, shear=(-10, 10, 0, 20))]),
        )
    ],
    (lambda tv: [tv.Pad(4)], r"Pad without a RandomCrop after it. Use Augment\(crop='pad_or_crop'\)"),
    (lambda tv: [tv.Pad(4), tv.RandomCrop(32, padding=4)], "Pad comes before a RandomCrop that pads, too; here one"),
    (lambda tv: [tv.Resize(64), tv.RandomCrop(32, padding=4)], r"Resize before a RandomCrop that pads.*--resize"),
    (lambda tv: [tv.Resize((64, 40)), tv.RandomCrop(32)], r"Resize\(\(height, width\)\), or Resize before.*--resize"),
    (
        lambda tv: [tv.ColorJitter(0.5, 0.5), tv.RandomResizedCrop(32)],
        "ColorJitter comes before crop and resize; here pixels change after",
    ),
    (
        lambda tv: [tv.Resize(40), tv.GaussianBlur(3), tv.CenterCrop(32)],
        "CenterCrop comes after GaussianBlur; the order here is crop and resize,",
    ),
    (lambda tv: [tv.Grayscale(), tv.RandomResizedCrop(32)], r"Grayscale\(1\) gives images of one channel"),
    (
        lambda tv: [tv.Resize((40, 40)), tv.Normalize(MEAN, STD), tv.RandomInvert()],
        "RandomInvert comes after Normalize; the order here is",
    ),
    (
        lambda tv: [tv.Resize((40, 40)), tv.RandomErasing(), tv.Normalize(MEAN, STD)],
        "Normalize comes after RandomErasing; the order",
    ),
    (lambda tv: [tv.Resize((40, 40)), tv.Normalize(MEAN, STD), tv.Normalize(MEAN, STD)], "Normalize comes twice"),
    (
        lambda tv: [tv.RandomHorizontalFlip(), tv.Resize((40, 40)), tv.RandomHorizontalFlip()],
        "RandomHorizontalFlip comes twice",
    ),
    (lambda tv: [tv.RandomResizedCrop(64), tv.Resize((32, 32))], "RandomResizedCrop and Resize both crop or resize"),
    (lambda tv: [tv.Resize((64, 40)), tv.RandomResizedCrop(32)], "before RandomResizedCrop has no counterpart"),
    (
        lambda tv: [tv.Resize((32, 64)), tv.CenterCrop(40)],
        r"resize=\(32, 64\)\): must be at least as large as size, 40",
    ),
    (lambda tv: [tv.CenterCrop(32)], "CenterCrop without a Resize before it.*pad_or_crop"),
    (
        lambda tv: [tv.Resize(64)],
        r"Resize\(64\) without a CenterCrop gives images of different sizes.*Resize\(\(height, width\)\)",
    ),
    (lambda tv: [tv.Resize(64, max_size=90), tv.CenterCrop(32)], r"Resize\(max_size=90\) has no counterpart"),
    (lambda tv: [tv.Resize(20), tv.CenterCrop(32)], r"resize=20\): the shorter side must be at least size, 32"),
    (lambda tv: [tv.RandomHorizontalFlip()], "Compose holds no crop or resize, which gives the size"),
    (
        lambda tv: [tv.RandomResizedCrop(32, antialias=False)],
        r"RandomResizedCrop\(antialias=False\); here resizing always antialiases",
    ),
]


@pytest.mark.parametrize(("steps", "message"), REFUSED, ids=[str(number) for number in range(len(REFUSED))])
def test_what_has_no_counterpart_is_refused(tv: ModuleType, steps: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(gpuload.ArgumentError, match=message):
        build(tv, *steps(tv))


def test_other_interpolation_is_refused(tv: ModuleType) -> None:
    mode = importlib.import_module("torchvision.transforms").InterpolationMode
    with pytest.raises(gpuload.ArgumentError, match="interpolation 'nearest'; expected bilinear or bicubic"):
        build(tv, tv.RandomResizedCrop(32, interpolation=mode.NEAREST))
    expected = r"RandAugment\(interpolation='bicubic'\): expected one of 'nearest'"
    with pytest.raises(gpuload.ArgumentError, match=expected):
        build(tv, tv.RandomResizedCrop(32), tv.RandAugment(interpolation=mode.BICUBIC))
    found = build(tv, tv.RandomResizedCrop(32), tv.RandAugment(interpolation=mode.BILINEAR)).transforms
    assert found == (gpuload.transforms.RandAugment(interpolation="bilinear"),)


def blur_of_dinov2(tv: ModuleType) -> Any:
    """A class as DINOv2 has it, which derives from RandomApply."""
    kind = type("GaussianBlur", (tv.RandomApply,), {"__module__": "dinov2.data.transforms"})
    return kind([tv.GaussianBlur(9, (0.2, 1.5))], p=0.9)


def test_what_may_stand_elsewhere_is_moved(tv: ModuleType) -> None:
    """Steps that treat each pixel by itself, a resize before a crop, and functions that convert to RGB."""
    jitter = gpuload.transforms.ColorJitter((0.7, 1.3), 0, (0.8, 1.2))
    early = build(tv, tv.ColorJitter(0.3, 0, 0.2), tv.Grayscale(3), tv.Resize(40), tv.RandomResizedCrop(32))
    assert early.transforms == (jitter, gpuload.transforms.RandomGrayscale(1.0))
    assert early.crop == gpuload.RandomResizedCrop()
    cut = build(tv, tv.Lambda(lambda image: image.convert("RGB")), tv.Resize(40), tv.RandomCrop(32))
    assert cut.crop == gpuload.Cover(resize=40) and cut.output_size == (32, 32)
    with pytest.raises(gpuload.ArgumentError, match="Lambda"):
        build(tv, tv.Lambda(lambda image: image.convert("L").convert("RGB")), tv.RandomResizedCrop(32))
    with pytest.raises(gpuload.ArgumentError, match="Lambda"):
        build(tv, tv.Lambda(lambda image: image), tv.RandomResizedCrop(32))


def test_transforms_made_of_others(tv: ModuleType) -> None:
    own = gpuload.transforms
    made = build(
        tv,
        tv.RandomResizedCrop(32),
        tv.RandomChoice([tv.RandomInvert(1.0), tv.RandomSolarize(9, 1.0)]),
        tv.RandomOrder([tv.RandomInvert(), tv.RandomGrayscale()]),
        blur_of_dinov2(tv),
    )
    choice, order, blur = made.transforms
    assert isinstance(choice, own.RandomChoice) and len(choice.transforms) == 2
    assert order == own.RandomOrder((own.RandomInvert(), own.RandomGrayscale()))
    assert blur == own.RandomApply((own.GaussianBlur((9, 9), (0.2, 1.5)),), p=0.9)
