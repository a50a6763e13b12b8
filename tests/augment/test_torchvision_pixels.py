"""`Augment.torchvision` gives torchvision's own values, in its dtype and range, or refuses: of every class that it has.

Transforms are given parameters that leave nothing to chance, so that both do the same.
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
from PIL import Image

import gpuload
from gpuload import Augment

pytestmark = pytest.mark.filterwarnings("ignore:The transform `ToTensor:UserWarning")
SIZE = 150, 100  # width, height


@pytest.fixture(scope="module")
def jpeg() -> bytes:
    return encode(smooth_image(np.random.default_rng(3), *SIZE), quality=95)


@pytest.fixture(scope="module")
def folder(jpeg: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("torchvision")
    gpuload.pack([{"image": jpeg, "label": 0}], out, workers=1)
    return out / "train"


@pytest.fixture(params=["v1", "v2"])
def tv(request: pytest.FixtureRequest, transforms: ModuleType) -> ModuleType:
    return transforms if request.param == "v2" else importlib.import_module("torchvision.transforms")


def ours(folder: Path, transform: Any) -> torch.Tensor:
    augment = Augment.torchvision(transform)
    with gpuload.DaliIterator(folder, 1, augment=augment, decoder="native", device="cpu", num_threads=1) as loader:
        [(images, _)] = loader
    assert isinstance(images, torch.Tensor)
    return images[0]


def check(folder: Path, jpeg: bytes, transform: Any, peak: float = 1.0) -> None:
    """peak: what the highest level of the images becomes. Two levels may lie between the results."""
    theirs = transform(Image.open(io.BytesIO(jpeg)))
    if isinstance(theirs, Image.Image):  # is to become a tensor: as ToTensor does it
        theirs = importlib.import_module("torchvision.transforms").ToTensor()(theirs)
    found = ours(folder, transform)
    assert (found.dtype, found.shape) == (theirs.dtype, theirs.shape)
    gap = (found.double() - torch.as_tensor(theirs).double()).abs() * 255 / peak
    assert gap.max() <= 2.1 and gap.mean() < 0.3, (float(gap.max()), float(gap.mean()))


MEAN, STD = [0.485, 0.456, 0.406], [0.25, 0.25, 0.25]
Steps = Callable[[Any], list[Any]]
ENDS: dict[str, tuple[Steps, float]] = {
    "nothing": (lambda tv: [], 1),
    "ToTensor": (lambda tv: [tv.ToTensor()], 1),
    "PILToTensor": (lambda tv: [tv.PILToTensor()], 255),
    "PILToTensor, float": (lambda tv: [tv.PILToTensor(), tv.ConvertImageDtype(torch.float32)], 1),
    "half": (lambda tv: [tv.ToTensor(), tv.ConvertImageDtype(torch.float16)], 1),
    "bfloat16": (lambda tv: [tv.PILToTensor(), tv.ConvertImageDtype(torch.bfloat16)], 1),
    "to and fro": (lambda tv: [tv.ToTensor(), tv.ToPILImage(), tv.PILToTensor()], 255),
    "levels again": (lambda tv: [tv.ToTensor(), tv.ConvertImageDtype(torch.uint8)], 255),
    "Normalize": (lambda tv: [tv.ToTensor(), tv.Normalize(MEAN, STD)], 4),
    "Normalize, half": (lambda tv: [tv.ToTensor(), tv.Normalize([0.5], [0.5]), tv.ConvertImageDtype(torch.half)], 2),
}
ENDS_OF_V2: dict[str, tuple[Steps, float]] = {
    "ToImage": (lambda tv: [tv.ToImage()], 255),
    "ToPureTensor": (lambda tv: [tv.ToImage(), tv.Identity(), tv.ToPureTensor()], 255),
    "uint8": (lambda tv: [tv.ToImage(), tv.ToDtype(torch.uint8)], 255),
    "scaled": (lambda tv: [tv.ToImage(), tv.ToDtype(torch.float32, scale=True)], 1),
    "unscaled": (lambda tv: [tv.ToImage(), tv.ToDtype(torch.float32)], 255),
    "unscaled half": (lambda tv: [tv.ToImage(), tv.ToDtype(torch.float16)], 255),
    "by class": (lambda tv: [tv.ToImage(), tv.ToDtype({type(tv.ToImage()(np.zeros((1, 1, 3)))): torch.float32})], 255),
    "by none": (lambda tv: [tv.ToImage(), tv.ToDtype({"others": None})], 255),
    "unscaled, then Normalize": (
        lambda tv: [tv.ToImage(), tv.ToDtype(torch.float32), tv.Normalize([120.0, 110, 100], [60.0] * 3)],
        4,
    ),
}


@pytest.mark.parametrize("end", [*ENDS, *ENDS_OF_V2])
def test_dtype_and_range_of_values_are_kept(folder: Path, jpeg: bytes, tv: ModuleType, end: str) -> None:
    if end in ENDS_OF_V2 and not hasattr(tv, "ToImage"):
        tv = importlib.import_module("torchvision.transforms.v2")
    steps, peak = {**ENDS, **ENDS_OF_V2}[end]
    check(folder, jpeg, tv.Compose([tv.Resize((32, 48)), *steps(tv)]), peak)


CROPS: dict[str, Steps] = {
    "RandomResizedCrop": lambda tv: [tv.RandomResizedCrop((40, 60), scale=(1, 1), ratio=(1.5, 1.5))],
    "Resize": lambda tv: [tv.Resize((30, 40))],
    "CenterCrop": lambda tv: [tv.Resize(64), tv.CenterCrop(50)],
    "Resize both, CenterCrop": lambda tv: [tv.Resize((72, 72)), tv.CenterCrop(64)],
    "Resize both, CenterCrop of them": lambda tv: [tv.Resize((41, 72)), tv.CenterCrop((33, 64))],
    "RandomCrop": lambda tv: [tv.RandomCrop((100, 150))],
    "RandomCrop, padding": lambda tv: [tv.RandomCrop((108, 156), padding=(3, 4), fill=9)],
    "Pad": lambda tv: [tv.Pad(5, padding_mode="reflect"), tv.RandomCrop((110, 160))],
}


@pytest.mark.parametrize("crop", CROPS)
@pytest.mark.parametrize(("flips", "end"), [((), "PILToTensor"), (("Horizontal", "Vertical"), "Normalize")], ids=str)
def test_every_crop(folder: Path, jpeg: bytes, tv: ModuleType, crop: str, flips: tuple[str, ...], end: str) -> None:
    steps, peak = ENDS[end]
    flipped = [getattr(tv, f"Random{flip}Flip")(1.0) for flip in flips]
    check(folder, jpeg, tv.Compose([*CROPS[crop](tv), *flipped, *steps(tv)]), peak)


PIXELS: dict[str, Steps] = {
    "ColorJitter": lambda tv: [tv.ColorJitter((1.3, 1.3))],
    "RandomGrayscale": lambda tv: [tv.RandomGrayscale(1.0)],
    "GaussianBlur": lambda tv: [tv.GaussianBlur(5, (1.5, 1.5))],
    "RandomInvert": lambda tv: [tv.RandomInvert(1.0)],
    "RandomPosterize": lambda tv: [tv.RandomPosterize(4, 1.0)],
    "RandomSolarize": lambda tv: [tv.RandomSolarize(128, 1.0)],
    "RandomAdjustSharpness": lambda tv: [tv.RandomAdjustSharpness(2, 1.0)],
    "RandomAutocontrast": lambda tv: [tv.RandomAutocontrast(1.0)],
    "RandomEqualize": lambda tv: [tv.RandomEqualize(1.0)],
    "RandomRotation": lambda tv: [tv.RandomRotation((10, 10), fill=3)],
    "RandomAffine": lambda tv: [tv.RandomAffine((10, 10), scale=(1.3, 1.3))],
    "RandomPerspective": lambda tv: [tv.RandomPerspective(0.0, 1.0)],
    "RandomApply": lambda tv: [tv.RandomApply([tv.RandomInvert(1.0), tv.RandomPosterize(2, 1.0)], p=1.0)],
    "RandAugment": lambda tv: [tv.RandAugment(1, 0)],
    "TrivialAugmentWide": lambda tv: [tv.TrivialAugmentWide(2)],
    "AutoAugment": lambda tv: [tv.AutoAugment()],
    "AugMix": lambda tv: [tv.AugMix()],
}
DRAWN = ("RandAugment", "TrivialAugmentWide", "AutoAugment", "AugMix")  # what they do is compared elsewhere
AFTER: dict[str, Steps] = {"RandomErasing": lambda tv: [tv.RandomErasing(1.0, (0.5, 0.5), (0.6, 0.6), 0.5)]}


@pytest.mark.parametrize("name", [name for name in PIXELS if name not in DRAWN])
def test_every_transform_of_pixels(folder: Path, jpeg: bytes, tv: ModuleType, name: str) -> None:
    """Without a resize, whose rounding would count when levels are compared."""
    check(folder, jpeg, tv.Compose([tv.RandomCrop((100, 150)), tv.PILToTensor(), *PIXELS[name](tv)]), 255)


READ = {
    *("Compose", "Resize", "CenterCrop", "Pad", "RandomCrop", "RandomResizedCrop", "Normalize", "ToPILImage"),
    *("RandomHorizontalFlip", "RandomVerticalFlip", "ToTensor", "PILToTensor", "ConvertImageDtype", "ToImage"),
    *("ToDtype", "ToPureTensor", "Identity", "Grayscale", "RandomChoice", "RandomOrder", *PIXELS, *AFTER),
}
NEEDS: dict[str, dict[str, Any]] = {
    "Lambda": {"lambd": abs},
    "FiveCrop": {"size": 8},
    "TenCrop": {"size": 8},
    "JPEG": {"quality": 50},
    "LinearTransformation": {"transformation_matrix": torch.eye(3), "mean_vector": torch.zeros(3)},
    "ConvertBoundingBoxFormat": {"format": "XYXY"},
    "CutMix": {"num_classes": 2},
    "MixUp": {"num_classes": 2},
    "RandomResize": {"min_size": 8, "max_size": 9},
    "RandomShortestSize": {"min_size": 8},
    "ScaleJitter": {"target_size": (8, 8)},
    "SetClampingMode": {"clamping_mode": "hard"},
    "UniformTemporalSubsample": {"num_samples": 2},
}


def test_every_class_is_read_or_refused_by_its_name(tv: ModuleType) -> None:
    classes = {name: kind for name, kind in vars(tv).items() if isinstance(kind, type) and name[0].isupper()}
    others = set(classes) - READ - {"InterpolationMode", "AutoAugmentPolicy"}
    assert len(others) > 4 and len(set(classes) & READ) > 25
    for name in sorted(others):
        made = classes[name](**NEEDS.get(name, {}))
        with pytest.raises(
            gpuload.ArgumentError, match=rf"^Augment.torchvision: {name} has no counterpart.*transforms\.Function"
        ):
            Augment.torchvision(tv.Compose([tv.RandomResizedCrop(32), made]))
    for name, steps in {**PIXELS, **AFTER}.items():
        found = Augment.torchvision(tv.Compose([tv.RandomResizedCrop(32), *steps(tv)]))
        assert [type(one).__name__ for one in found.transforms] == [name]


def look_alike(name: str) -> Any:
    """An object of a class of one's own with the name of one of torchvision's, as dinov2's GaussianBlur."""
    return type(name, (torch.nn.Module,), {"size": 8, "p": 0.5, "transforms": ()})()


@pytest.mark.parametrize("name", sorted(READ))
def test_look_alikes_and_subclasses_are_refused_by_name(tv: ModuleType, name: str) -> None:
    with pytest.raises(
        gpuload.ArgumentError, match=rf"{__name__}.{name} is not torchvision's own.*transforms\.Function"
    ):
        Augment.torchvision(tv.Compose([tv.RandomResizedCrop(32), look_alike(name)]))
    if (theirs := getattr(tv, name, None)) is None:
        return
    changed = type(name, (theirs,), {"__init__": lambda self: None, "__module__": "mae.util.crop"})()
    with pytest.raises(gpuload.ArgumentError, match=rf"mae.util.crop.{name} is a subclass of torchvision's {name}, wh"):
        Augment.torchvision(changed)
    if name == "RandomErasing":
        with pytest.raises(gpuload.ArgumentError, match="is a subclass of torchvision's"):
            Augment.torchvision(tv.Compose([tv.RandomResizedCrop(32), tv.RandomApply([changed])]))


def shrink(image: Any) -> Any:
    return image


class Preset:
    """As in torchvision's references: not a transform of theirs, but it holds one."""

    def __init__(self, transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        return self.transforms(image)


def test_functions_classes_and_presets_are_refused_with_the_way_out(tv: ModuleType) -> None:
    for made, message in (
        (shrink, rf"{__name__}.shrink is not torchvision's own. Give it to gpuload as"),
        (tv.RandomInvert, r"RandomInvert is a class. Give an object: RandomInvert\(\.\.\.\)"),
        (Preset(tv.Compose([tv.RandomInvert()])), "Preset is not torchvision's own. Give its attribute `transforms`"),
    ):
        with pytest.raises(gpuload.ArgumentError, match=message):
            Augment.torchvision(tv.Compose([tv.RandomResizedCrop(32), made]))


CHANGED: dict[str, tuple[Steps, str]] = {
    "a dtype that batches do not have": (
        lambda tv: [tv.PILToTensor(), tv.ConvertImageDtype(torch.float64)],
        r"ConvertImageDtype\(float64, scale=True\): expected one of float32, float16",
    ),
    "normalised uint8": (
        lambda tv: [tv.PILToTensor(), tv.Normalize(MEAN, STD)],
        r"Normalize gets uint8; expected floats. Put ToDtype\(torch.float32, scale=True\) before",
    ),
    "erased uint8": (lambda tv: [tv.PILToTensor(), tv.RandomErasing()], "RandomErasing gets uint8; expected floats"),
    "normalised, then levels": (
        lambda tv: [tv.ToTensor(), tv.Normalize(MEAN, STD), tv.ConvertImageDtype(torch.uint8)],
        r"ConvertImageDtype\(uint8, scale=True\) gets normalised floats",
    ),
    "normalised, then Pillow's": (
        lambda tv: [tv.ToTensor(), tv.Normalize(MEAN, STD), tv.ToPILImage()],
        r"ToPILImage gets normalised floats; expected uint8, or floats in 0\.\.1",
    ),
    "erased, then levels": (
        lambda tv: [tv.ToTensor(), tv.RandomErasing(), tv.ConvertImageDtype(torch.float16), tv.ToPILImage()],
        "ToPILImage comes after RandomErasing, whose values it would change",
    ),
    "a conversion of nothing": (
        lambda tv: [tv.ToTensor(), tv.ToPILImage(), tv.ConvertImageDtype(torch.float16)],
        r"ConvertImageDtype\(float16, scale=True\) has no effect on Pillow's images. Put ToImage\(\) before it",
    ),
    "floats too early": (
        lambda tv: [tv.ConvertImageDtype(torch.float32), tv.PILToTensor()],
        "PILToTensor comes after what has no effect on Pillow's images. Put it first",
    ),
}
CHANGED_BY_V2: dict[str, tuple[Steps, str]] = {
    "levels cut off": (
        lambda tv: [tv.ToImage(), tv.ToDtype(torch.float32, scale=True), tv.ToDtype(torch.uint8)],
        r"ToDtype\(uint8\) gets float32 in 0\.\.1; expected scale=True",
    ),
    "levels scaled twice": (
        lambda tv: [tv.ToImage(), tv.ToDtype(torch.float32), tv.ToDtype(torch.uint8, scale=True)],
        r"ToDtype\(uint8, scale=True\) gets float32 in 0\.\.255",
    ),
    "colours of floats in 0..255": (
        lambda tv: [tv.ToImage(), tv.ToDtype(torch.float32), tv.RandomSolarize(100)],
        r"RandomSolarize gets float32 in 0\.\.255; expected 0\.\.1. Put ToDtype",
    ),
}


@pytest.mark.parametrize("case", [*CHANGED, *CHANGED_BY_V2])
def test_other_values_and_dtypes_are_refused(tv: ModuleType, case: str) -> None:
    if case in CHANGED_BY_V2:
        tv = importlib.import_module("torchvision.transforms.v2")
    steps, message = {**CHANGED, **CHANGED_BY_V2}[case]
    with pytest.raises(gpuload.ArgumentError, match=message):
        Augment.torchvision(tv.Compose([tv.Resize((32, 48)), *steps(tv)]))


def test_bicubic_of_floats_leaves_their_range(tv: ModuleType) -> None:
    mode = importlib.import_module("torchvision.transforms").InterpolationMode.BICUBIC
    with pytest.raises(gpuload.ArgumentError, match=r"Resize\(interpolation='bicubic'\) of floats gives values beyond"):
        Augment.torchvision(tv.Compose([tv.ToTensor(), tv.Resize((32, 48), interpolation=mode)]))


def test_erasing_writes_its_value(folder: Path, tv: ModuleType) -> None:
    """Half of the image, wherever it lies, as torchvision's: the value in units of what it is given."""
    erase = tv.RandomErasing(1.0, (0.5, 0.5), (0.6, 0.6), 0.5)
    for end, dtype in (
        ([tv.ToTensor(), erase], torch.float32),
        ([tv.ToTensor(), tv.Normalize(MEAN, STD), erase], None),
    ):
        found = ours(folder, tv.Compose([tv.Resize((64, 96)), *end]))
        assert found.dtype == (dtype or torch.float32)
        assert 0.45 < float((found == 0.5).all(dim=0).float().mean()) < 0.55
