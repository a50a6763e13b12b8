"""Recipes of others, as docs/augmentations.md has them, in torchvision's and timm's own transforms."""

import importlib
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import gpuload
from gpuload import Augment, CenterCrop
from gpuload import transforms as T


@pytest.mark.parametrize("mode", ["BILINEAR", "BICUBIC"])
def test_evaluation_is_what_weights_transforms_do(transforms: ModuleType, mode: str) -> None:
    presets = importlib.import_module("torchvision.transforms._presets")
    constants: Any = {"mean": (0.5, 0.4, 0.3), "std": (0.25, 0.2, 0.3)}
    interpolation = transforms.InterpolationMode[mode]
    preset = presets.ImageClassification(crop_size=112, resize_size=128, interpolation=interpolation, **constants)
    own = Augment(112, "center", interpolation=mode.lower(), normalize=gpuload.Normalize(**constants))
    given = Augment.torchvision(preset)
    assert (given.crop, own.crop) == (CenterCrop(128), CenterCrop())
    same(given, own)


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
    jitter, blur = T.ColorJitter(0.8, 0.8, 0.8, 0.2), T.GaussianBlur(23, (0.1, 2.0))
    changes = [T.RandomApply([jitter], 0.8), T.RandomGrayscale(0.2), T.RandomApply([blur], 0.5)]
    own = Augment(224, interpolation="bicubic", transforms=changes, normalize=None)
    same(own, Augment.torchvision(published))


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

    def view(size: int, scale: tuple[float, float], blurred: float, *last: Any) -> Augment:
        jitter, blur = T.ColorJitter(0.4, 0.4, 0.2, 0.1), T.GaussianBlur(9, (0.1, 2.0))
        changes = [T.RandomApply([jitter], 0.8), T.RandomGrayscale(0.2), T.RandomApply([blur], blurred), *last]
        return Augment(size, gpuload.RandomResizedCrop(scale), interpolation="bicubic", transforms=changes)

    same(view(224, (0.32, 1.0), 1.0), Augment.torchvision(published(224, (0.32, 1.0), 1.0)))
    own, theirs = T.RandomSolarize(128, 0.2), t.RandomSolarize(128, 0.2)
    same(view(224, (0.32, 1.0), 0.1, own), Augment.torchvision(published(224, (0.32, 1.0), 0.1, theirs)))


def same(ours: gpuload.Augment, theirs: gpuload.Augment) -> None:
    """They draw the same for the same images, and normalise alike."""
    widths, heights = np.arange(300, 400, dtype=np.int32), np.arange(500, 400, -1, dtype=np.int32)
    one, other = (augment.draw(1, 2, np.arange(100), widths, heights) for augment in (ours, theirs))
    for first, second in zip((*one.crops, *(one.steps or ())), (*other.crops, *(other.steps or ())), strict=True):
        np.testing.assert_array_equal(first, second)
    assert ours.form == theirs.form
    assert str(one.erased) == str(other.erased)


def test_deit_is_what_timm_makes_of_its_arguments(transforms: ModuleType) -> None:
    importlib.import_module("torchvision_anywhere")
    pytest.importorskip("timm", reason="needs the extra 'frameworks'")
    published = {
        "auto_augment": "rand-m9-mstd0.5-inc1",
        "color_jitter": 0.3,
        "interpolation": "bicubic",
        "re_prob": 0.25,
        "re_mode": "pixel",
    }
    erasing = T.RandomErasing(0.25, (0.02, 1 / 3), (0.3, 1 / 0.3), "random")
    changes = [T.TimmAutoAugment("rand-m9-mstd0.5-inc1", (124, 116, 104)), erasing]
    own = Augment(224, interpolation="bicubic", transforms=changes)
    same(own, Augment.timm({"input_size": (3, 224, 224)}, is_training=True, **published))


def test_segmentation_scales_crops_and_pads_as_torchvisions_references(transforms: ModuleType) -> None:
    """Shorter sides are RandomResize's, and windows RandomCrop's; what is smaller is padded on the right and below."""
    width, height, count = 300, 200, 400
    sides = np.full((2, count), [[width], [height]], np.int32)
    crops = Augment(48, gpuload.ScaleJitter(shorter=(26, 104)), flip=0).draw(0, 0, np.arange(count), *sides).crops
    shown = (crops.roi_end - crops.roi_start).astype(np.float64)
    scaled = np.rint(48 / shown * [height, width]).astype(int)
    resizes = [transforms.RandomResize(side, side + 1) for side in range(26, 104)]  # its upper end is not drawn
    theirs = {tuple(resize(torch.zeros(1, height, width, dtype=torch.uint8)).shape[1:]) for resize in resizes}
    assert {*map(tuple, scaled.tolist())} == theirs and set(scaled[:, 0]) == set(range(26, 104))
    top, left = np.rint((crops.start + crops.roi_start) * scaled / [height, width]).astype(int).T
    assert ((top >= 0) & (top <= np.maximum(scaled[:, 0] - 48, 0))).all() and (top[scaled[:, 0] <= 48] == 0).all()
    assert left.min() == 0 and (left == scaled[:, 1] - 48).any()
    evaluation = Augment(None, gpuload.Resize(52, pad_to_multiple_of=1)).draw(0, 0, np.arange(count), *sides)
    assert evaluation.size == tuple(transforms.Resize(52)(torch.zeros(1, height, width)).shape[1:])


# ---- torchvision's references and weights for detection and segmentation


@pytest.mark.parametrize("backend", ["pil", "tv_tensor"])
def test_references_for_detection(transforms: ModuleType, backend: str) -> None:
    t = transforms
    boxes = importlib.import_module("torchvision.tv_tensors").BoundingBoxFormat.XYXY

    class DetectionPresetTrain:
        """As that of the references: it holds a Compose, and applies it to images and targets."""

        def __init__(self, *steps: Any) -> None:
            first, last = ([t.ToImage()], []) if backend == "tv_tensor" else ([], [t.ToImage()])
            ends = [t.ConvertBoundingBoxFormat(boxes), t.SanitizeBoundingBoxes(), t.ToPureTensor()]
            self.transforms = t.Compose([*first, *steps, *last, t.ToDtype(torch.float, scale=True), *ends])

        def __call__(self, img: Any, target: Any) -> Any:
            return self.transforms(img, target)

    flip = t.RandomHorizontalFlip(p=0.5)
    hflip = Augment.torchvision(DetectionPresetTrain(flip))
    assert hflip == Augment(None, "keep", flip=0.5, normalize=None)
    sides = tuple(range(480, 801, 32))
    multiscale = Augment.torchvision(DetectionPresetTrain(t.RandomShortestSize(sides, max_size=1333), flip))
    assert multiscale == Augment(None, gpuload.Resize(sides, 1333), flip=0.5, normalize=None)
    assert Augment.torchvision(DetectionPresetTrain()) == Augment(None, "keep", flip=0.0, normalize=None)
    for step, message in (
        (
            t.ScaleJitter((1024, 1024)),
            r"ScaleJitter has no.*With FixedSizeCrop it is Augment\(size, crop=gpuload.Scale",
        ),
        (t.RandomIoUCrop(), "RandomIoUCrop has no.*before_crop=True"),
        (t.RandomPhotometricDistort(), "RandomPhotometricDistort has no counterpart"),
        (t.ConvertBoundingBoxFormat("CXCYWH"), "ConvertBoundingBoxFormat has no counterpart"),
    ):
        with pytest.raises(gpuload.ArgumentError, match=message):
            Augment.torchvision(DetectionPresetTrain(step, flip))


def test_weights_of_detectors_and_segmentation_networks(transforms: ModuleType) -> None:
    presets = importlib.import_module("torchvision.transforms._presets")
    detection = Augment.torchvision(presets.ObjectDetection())
    assert detection == Augment(None, "keep", flip=0.0, normalize=None)
    constants: Any = {"mean": (0.5, 0.4, 0.3), "std": (0.25, 0.2, 0.3)}
    normalize = gpuload.Normalize(**constants)
    resized = Augment.torchvision(presets.SemanticSegmentation(resize_size=520, **constants))
    assert resized == Augment(None, gpuload.Resize(520), flip=0.0, normalize=normalize)
    kept = Augment.torchvision(presets.SemanticSegmentation(resize_size=None, **constants))
    assert kept == Augment(None, "keep", flip=0.0, normalize=normalize)


def test_sizes_of_images_of_their_own_sizes(transforms: ModuleType) -> None:
    t = transforms
    limited = Augment.torchvision(t.Compose([t.RGB(), t.Resize(size=None, max_size=100)]))
    assert limited.crop == gpuload.Resize(None, 100) and limited.size is None
    assert Augment.torchvision(t.RandomResize(30, 34)).crop == gpuload.Resize((30, 31, 32, 33))
    canvas = Augment.torchvision(t.Compose([t.RandomZoomOut((9, 8, 7), (1, 2), 0.3), t.Resize((30, 40))]))
    assert canvas.crop == gpuload.ZoomOut((1, 2), 0.3, (9, 8, 7)) and canvas.size == (30, 40)


# ---- lightly's views


def of_lightly(name: str, call: Any, **attributes: Any) -> Any:
    """An object as lightly has it, of a class with this name and `__call__`."""
    made = type(name, (), {"__module__": "lightly.transforms.made_up", "__call__": call})()
    vars(made).update(attributes)
    return made


def stand_in_view(t: Any, size: int) -> Any:
    """A view with the steps of SimCLR's, and a multi-view transform of two."""

    def apply(self: Any, image: Any) -> Any:
        transformed = self.transform(image)
        return transformed  # noqa: RET504

    def several(self: Any, image: Any) -> Any:
        return [transform(image) for transform in self.transforms]

    jitter = t.RandomApply([t.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8)
    steps = [
        t.RandomResizedCrop(size=size, scale=(0.08, 1.0)),
        t.RandomHorizontalFlip(p=0.5),
        t.RandomVerticalFlip(p=0.0),
        of_lightly("RandomRotate", several, prob=0.0, angle=90),
        jitter,
        t.RandomGrayscale(p=0.2),
        of_lightly("GaussianBlur", several, prob=0.5, sigmas=(0.1, 2)),
        of_lightly("ToTensor", apply, transform=t.Compose([t.ToImage(), t.ToDtype(torch.float32, scale=True)])),
        t.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
    ]
    view = of_lightly("SimCLRViewTransform", apply, transform=t.Compose(steps))
    return of_lightly("SimCLRTransform", several, transforms=[view, view])


def real_view(t: Any, size: int) -> Any:
    reason = "lightly is not installed: hydra-core, which it needs, wants another antlr4 than moto"
    return pytest.importorskip("lightly.transforms", reason=reason).SimCLRTransform(input_size=size)


@pytest.mark.parametrize("views_of", [stand_in_view, real_view])
def test_the_views_of_lightly(transforms: ModuleType, views_of: Any) -> None:
    views = views_of(transforms, 96)
    changes = [
        T.RandomApply([T.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8),
        T.RandomGrayscale(0.2),
        T.GaussianBlur(17, (0.1, 2.0), 0.5),
    ]
    for view in views.transforms:
        same(Augment.torchvision(view), Augment(96, transforms=changes))
    with pytest.raises(gpuload.ArgumentError, match=r"SimCLRTransform makes 2 views.*Translate each: \[Augment.torch"):
        Augment.torchvision(views)


def test_a_blur_of_lightly_on_tensors_is_refused(transforms: ModuleType) -> None:
    """It turns them into Pillow's images and back, whatever they were."""
    blur = of_lightly("GaussianBlur", None, prob=0.5, sigmas=(0.1, 2))
    pipeline = transforms.Compose([transforms.RandomCrop(32), transforms.ToImage(), blur])
    with pytest.raises(
        gpuload.ArgumentError, match=r"lightly's GaussianBlur makes Pillow's images.*before ToTensor\(\)"
    ):
        Augment.torchvision(pipeline)


@pytest.mark.parametrize("name", ["RandomRotate", "RandomSolarization"])
def test_steps_of_lightly(transforms: ModuleType, name: str) -> None:
    step = of_lightly(name, None, prob=0.3, angle=90, threshold=100)
    rotation = T.RandomApply((T.RandomRotation((90, 90)),), 0.3)
    ours = rotation if name == "RandomRotate" else T.RandomSolarize(100, 0.3)
    assert Augment.torchvision(transforms.Compose([transforms.RandomCrop(32), step])).transforms == (ours,)
