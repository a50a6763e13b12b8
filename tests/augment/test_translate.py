"""`Augment.torchvision` and `Augment.timm`: what is read out of the transforms of torchvision, old and new, of timm and of
open_clip, their pixels, and what is refused.

For pixels, transforms are given parameters that leave nothing to chance, so that both do the same.
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
from PIL import Image, ImageOps

import gpuload
from gpuload import Augment, CenterCrop, Cover, Normalize, RandomCrop
from gpuload import transforms as own

pytestmark = pytest.mark.filterwarnings("ignore:The transform `ToTensor:UserWarning")
SIZE = 150, 100  # width, height
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
F32 = torch.float32
RRC, INVERT, GRAY = gpuload.RandomResizedCrop(), own.RandomInvert(), own.RandomGrayscale()
PLAIN: dict[str, Any] = {"normalize": None, "flip": 0.0}
Steps = Callable[[Any], list[Any]]


def v1() -> Any:
    return importlib.import_module("torchvision.transforms")


@pytest.fixture(params=["v1", "v2"])
def tv(request: pytest.FixtureRequest, transforms: ModuleType) -> ModuleType:
    """torchvision's transforms of either kind."""
    return transforms if request.param == "v2" else v1()


def mode(name: str) -> Any:
    return v1().InterpolationMode(name)


def build(tv: ModuleType, *steps: Any) -> Augment:
    return Augment.torchvision(tv.Compose(list(steps)))


# ---- what is read


READ_PIXELS: list[tuple[Callable[[Any], Any], Any]] = [
    (lambda tv: tv.ColorJitter(0.4), own.ColorJitter((0.6, 1.4))),
    (lambda tv: tv.ColorJitter((0.5, 2), 0.3, hue=(-0.1, 0.2)), own.ColorJitter((0.5, 2), (0.7, 1.3), 0, (-0.1, 0.2))),
    (lambda tv: tv.RandomGrayscale(0.3), own.RandomGrayscale(0.3)),
    (lambda tv: tv.GaussianBlur(5), own.GaussianBlur((5, 5))),
    (lambda tv: tv.GaussianBlur([3, 5], 1.5), own.GaussianBlur((3, 5), (1.5, 1.5))),
    (lambda tv: tv.RandomInvert(0.2), own.RandomInvert(0.2)),
    (lambda tv: tv.RandomPosterize(3, 0.2), own.RandomPosterize(3, 0.2)),
    (lambda tv: tv.RandomSolarize(100, 0.2), own.RandomSolarize(100, 0.2)),
    (lambda tv: tv.RandomAdjustSharpness(2, 0.2), own.RandomAdjustSharpness(2, 0.2)),
    (lambda tv: tv.RandomAutocontrast(0.2), own.RandomAutocontrast(0.2)),
    (lambda tv: tv.RandomEqualize(0.2), own.RandomEqualize(0.2)),
    (lambda tv: tv.RandAugment(3, 5, 20, fill=[1, 2, 3]), own.RandAugment(3, 5, 20, fill=(1, 2, 3))),
    (lambda tv: tv.TrivialAugmentWide(20, fill=128), own.TrivialAugmentWide(20, fill=128)),
    (lambda tv: tv.AutoAugment(), own.AutoAugment("imagenet")),
    (lambda tv: tv.AutoAugment(v1().AutoAugmentPolicy("svhn"), fill=9), own.AutoAugment("svhn", fill=9)),
    (lambda tv: tv.AugMix(2, 4, 2, 0.5, False, mode("nearest")), own.AugMix(2, 4, 2, 0.5, False, "nearest")),
    (lambda tv: tv.RandomApply([tv.RandomInvert(), tv.RandomGrayscale()], 0.8), own.RandomApply((INVERT, GRAY), 0.8)),
    (lambda tv: tv.RandomRotation(9, mode("bilinear"), fill=7), own.RandomRotation((-9, 9), "bilinear", fill=7)),
    (
        lambda tv: tv.RandomAffine((-5, 10), (0.1, 0.2), (0.9, 1.1), [-3, 4, -5, 6], fill=[1, 2, 3]),
        own.RandomAffine((-5, 10), (0.1, 0.2), (0.9, 1.1), (-3, 4, -5, 6), fill=(1, 2, 3)),
    ),
    (lambda tv: tv.RandomAffine(0, shear=8, center=[3, 4]), own.RandomAffine(0, shear=(-8, 8), center=(3, 4))),
    (lambda tv: tv.RandomPerspective(0.3, 0.7), own.RandomPerspective(0.3, 0.7)),
]


@pytest.mark.parametrize(("theirs", "ours"), READ_PIXELS, ids=[str(number) for number in range(len(READ_PIXELS))])
def test_transforms_of_pixels(tv: ModuleType, theirs: Callable[[Any], Any], ours: Any) -> None:
    found = build(tv, tv.RandomResizedCrop(64), tv.RandomHorizontalFlip(0), theirs(tv))
    assert found == Augment(64, transforms=[ours], **PLAIN)


READ_ERASING: list[tuple[Callable[[Any], Any], Any]] = [
    (lambda tv: tv.RandomErasing(), own.RandomErasing(value=0)),
    (lambda tv: tv.RandomErasing(0.3, (0.1, 0.2), (0.5, 2), 1.5), own.RandomErasing(0.3, (0.1, 0.2), (0.5, 2), 1.5)),
    (lambda tv: tv.RandomErasing(value="random"), own.RandomErasing(value="random")),
    (lambda tv: tv.RandomErasing(value=[1, 2, 3]), own.RandomErasing(value=(1, 2, 3))),
]


@pytest.mark.parametrize(("theirs", "ours"), READ_ERASING, ids=[str(number) for number in range(len(READ_ERASING))])
def test_erasing_of_tensors(tv: ModuleType, theirs: Callable[[Any], Any], ours: Any) -> None:
    found = build(tv, tv.RandomResizedCrop(64), tv.RandomHorizontalFlip(0), tv.ToTensor(), theirs(tv))
    assert found == Augment(64, transforms=[ours], **PLAIN)


def test_erasing_of_what_may_be_pillows(transforms: Any) -> None:
    """v2's writes levels into Pillow's images, v1's raises an error for them: only what is the same for tensors is read."""
    half = transforms.RandomErasing(1.0, value=0.5)
    assert np.asarray(half(Image.new("RGB", (32, 32)))).max() == 0
    assert float(half(torch.zeros(3, 32, 32)).max()) == 0.5
    with pytest.raises(gpuload.ArgumentError, match="RandomErasing of .*v2 takes its value for levels"):
        build(transforms, transforms.Resize((64, 96)), half)
    build(transforms, transforms.Resize((64, 96)), transforms.RandomErasing())
    build(transforms, transforms.Resize((64, 96)), transforms.ToDtype(F32, scale=True), half)
    build(v1(), v1().Resize((64, 96)), v1().RandomErasing(value=0.5))


def blur_of_dinov2(tv: ModuleType) -> Any:
    """A class as DINOv2 has it, which derives from RandomApply."""
    kind = type("GaussianBlur", (tv.RandomApply,), {"__module__": "dinov2.data.transforms"})
    return kind([tv.GaussianBlur(9, (0.2, 1.5))], p=0.9)


# Steps, the crop that they are, and the transforms.
READ_ALL: list[tuple[Steps, Any, list[Any]]] = [
    (lambda tv: [tv.RandomCrop(32)], RandomCrop(), []),
    (lambda tv: [tv.RandomCrop(32, padding=4)], RandomCrop(4), []),
    (lambda tv: [tv.RandomCrop([32], (4, 5, 4, 5), fill=9)], RandomCrop((4, 5, 4, 5), fill=9), []),
    (lambda tv: [tv.RandomCrop(32, (1, 2, 3, 4), True)], RandomCrop((1, 2, 3, 4), pad_if_needed=True), []),
    (lambda tv: [tv.RandomCrop(32, pad_if_needed=True, fill=(1, 2, 3))], RandomCrop(None, True, (1, 2, 3)), []),
    (lambda tv: [tv.Pad((3, 4), 0, "edge"), tv.RandomCrop(32)], RandomCrop((3, 4), False, 0, "edge"), []),
    (lambda tv: [tv.Compose([tv.Resize([40])]), torch.nn.Sequential(tv.CenterCrop(32))], CenterCrop(40), []),
    (lambda tv: [tv.RandomResizedCrop(32), tv.RandomGrayscale(), tv.RandomInvert()], RRC, [GRAY, INVERT]),
    # What treats each pixel by itself, a resize before a crop, and functions that convert to RGB may stand elsewhere.
    (
        lambda tv: [tv.ColorJitter((0.5, 1), saturation=(0, 1)), tv.Resize(40), tv.RandomResizedCrop(32)],
        RRC,
        [own.ColorJitter((0.5, 1), 0, (0, 1))],
    ),
    (
        lambda tv: [tv.ColorJitter(0.5, hue=0.1), tv.RandomSolarize(9), tv.RandomCrop(32, 4)],
        RandomCrop(4),
        [own.ColorJitter((0.5, 1.5), hue=(-0.1, 0.1)), own.RandomSolarize(9)],
    ),
    (
        lambda tv: [tv.RandomInvert(), tv.RandomCrop(32, 4, padding_mode="edge")],
        RandomCrop(4, False, 0, "edge"),
        [INVERT],
    ),
    (lambda tv: [tv.Grayscale(3), tv.RandomInvert(), tv.RandomResizedCrop(32)], RRC, [own.RandomGrayscale(1), INVERT]),
    (lambda tv: [tv.Lambda(lambda it: it.convert("RGB")), tv.Resize(40), tv.RandomCrop(32)], Cover(resize=40), []),
    (lambda tv: [tv.Lambda(lambda it: it.convert(mode="RGB")), to_rgb, tv.RandomCrop(32)], RandomCrop(), []),
    (lambda tv: [tv.Lambda(rgb_if_needed), tv.RandomCrop(32)], RandomCrop(), []),
    # Classes that only apply what they hold, whosever they are.
    (lambda tv: [Preset(tv.Compose([tv.RandomCrop(32), tv.RandomInvert()]))], RandomCrop(), [INVERT]),
    (lambda tv: [Detection(tv.Compose([tv.RandomCrop(32)])), tv.RandomInvert()], RandomCrop(), [INVERT]),
    # Parts that are made of several, or change nothing, remain one part.
    (
        lambda tv: [
            tv.RandomCrop(32),
            tv.RandomChoice(
                [tv.Compose([tv.RandomInvert(), tv.RandomGrayscale()]), tv.RandomInvert(), tv.Lambda(to_rgb)],
                [0.5, 0.25, 0.25],
            ),
        ],
        RandomCrop(),
        [own.RandomChoice((own.RandomApply((INVERT, GRAY), 1.0), INVERT, own.RandomGrayscale(0.0)), (0.5, 0.25, 0.25))],
    ),
    # What crops and flips leave as it is.
    (
        lambda tv: [tv.PILToTensor(), tv.ConvertImageDtype(F32), tv.RandomHorizontalFlip(0), tv.RandomCrop(32)],
        RandomCrop(),
        [],
    ),
    (
        lambda tv: [
            tv.RandomResizedCrop(32),
            tv.RandomChoice([tv.RandomInvert(), tv.RandomGrayscale()], [0.25, 0.75]),
            tv.RandomOrder([tv.RandomInvert(), tv.RandomGrayscale()]),
            blur_of_dinov2(tv),
        ],
        RRC,
        [
            own.RandomChoice((INVERT, GRAY), (0.25, 0.75)),
            own.RandomOrder((INVERT, GRAY)),
            own.RandomApply((own.GaussianBlur((9, 9), (0.2, 1.5)),), p=0.9),
        ],
    ),
]


def to_rgb(image: Any) -> Any:
    """As open_clip's and CLIP's."""
    return image.convert("RGB")


def rgb_if_needed(image: Any) -> Any:
    if image.mode != "RGB":
        image = image.convert("RGB")
    return image


class Preset:
    """As in torchvision's references: not a transform of theirs, but it holds one, and only applies it."""

    def __init__(self, transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        return self.transforms(image)


class Detection(Preset):
    def __call__(self, img: Any, target: Any) -> Any:  # type: ignore[override]
        return self.transforms(img, target)


class Other(Preset):
    """Does more than to apply what it holds."""

    def __call__(self, image: Any) -> Any:
        return self.transforms(image.transpose(0))


class Alternating(Preset):
    """Applies what it holds, which is another one each time."""

    def __init__(self, *several: Any) -> None:
        self.several = list(several)

    @property
    def transforms(self) -> Any:  # type: ignore[override]
        self.several.reverse()
        return self.several[0]


class NotALambda:
    def __init__(self, lambd: Any) -> None:
        self.lambd = lambd

    def __call__(self, image: Any) -> Any:
        return ImageOps.mirror(self.lambd(image))


@pytest.mark.parametrize(("theirs", "crop", "changes"), READ_ALL, ids=[str(number) for number in range(len(READ_ALL))])
def test_several_transforms(tv: ModuleType, theirs: Steps, crop: Any, changes: list[Any]) -> None:
    assert build(tv, *theirs(tv)) == Augment(32, crop, transforms=changes, **PLAIN)


def test_the_usual_training(tv: ModuleType) -> None:
    floats = [tv.ToImage(), tv.ToDtype(torch.float32, scale=True)] if hasattr(tv, "ToImage") else [tv.ToTensor()]
    usual = tv.RandomResizedCrop(224), tv.RandomHorizontalFlip(), *floats, tv.Normalize([0.5], [0.25])
    normalize = Normalize((0.5,) * 3, (0.25,) * 3)
    assert build(tv, *usual) == Augment(224, RRC, flip=0.5, normalize=normalize)
    crop = tv.RandomResizedCrop((30, 40), (0.2, 0.9), (0.5, 2), mode("bicubic"))
    cropped = build(tv, tv.RandomVerticalFlip(0.25), crop, tv.RandomHorizontalFlip(0.75))
    options: Any = {"interpolation": "bicubic", "vertical_flip": 0.25, "normalize": None, "flip": 0.75}
    assert cropped == Augment((30, 40), gpuload.RandomResizedCrop((0.2, 0.9), (0.5, 2)), **options)


def test_constants_that_are_numbers(transforms: ModuleType) -> None:
    """As the first kind of torchvision's transforms takes them."""
    found = build(v1(), v1().RandomCrop(32), v1().ToTensor(), v1().Normalize(0.5, 0.25))
    assert found == Augment(32, RandomCrop(), flip=0.0, normalize=Normalize((0.5,) * 3, (0.25,) * 3))


def test_flips_are_joined(tv: ModuleType) -> None:
    """An image is mirrored where an odd number of flips is drawn."""
    flips = [tv.RandomHorizontalFlip(0.5), tv.RandomVerticalFlip(1.0), tv.RandomHorizontalFlip(0.2)]
    found = build(tv, *flips, tv.Resize((32, 40)), tv.RandomVerticalFlip(1.0))
    assert (found.flip, found.vertical_flip) == (pytest.approx(0.5), 0.0)
    found = build(tv, tv.RandomHorizontalFlip(0.1), tv.Resize((32, 40)), tv.RandomHorizontalFlip(0.2))
    assert found.flip == pytest.approx(0.1 * 0.8 + 0.9 * 0.2)


def test_padding_of_normalised_images(tv: ModuleType) -> None:
    """A fill is in units of the images: 0 is the mean that they were normalised with."""
    found = build(tv, tv.ToTensor(), tv.Normalize((0.2, 0.4, 0.6), (0.25,) * 3), tv.RandomCrop(32, 4))
    assert found.crop == RandomCrop(4, fill=(51, 102, 153))


def test_one_transform_and_changes_that_take_precedence(tv: ModuleType) -> None:
    assert Augment.torchvision(tv.Resize((30, 40))) == Augment((30, 40), crop="none", **PLAIN)
    found = Augment.torchvision(tv.Resize((8, 8)), dtype="uint8", flip=0.5)
    assert found == Augment(8, crop="none", **{**PLAIN, "flip": 0.5}, dtype="uint8")


def test_levels_of_float_images_are_of_0_to_1(transforms: ModuleType) -> None:
    tv = v1()
    for to_float, to_levels in (
        (tv.ToTensor(), tv.ToPILImage()),
        (tv.ConvertImageDtype(torch.float32), tv.ConvertImageDtype(torch.uint8)),
        (transforms.ToDtype(torch.float16, scale=True), transforms.ToDtype(torch.uint8, scale=True)),
    ):
        floats = [transforms.RandomCrop(32, 4, fill=0.5), transforms.RandomSolarize(0.5)]
        found = build(
            tv, to_float, *floats, transforms.RandAugment(fill=[0.2, 0.4, 1.0]), to_levels, tv.RandomSolarize(100)
        )
        policy = own.RandAugment(fill=(51, 102, 255))
        assert found.crop == RandomCrop(4, fill=128)
        assert found.transforms == (own.RandomSolarize(127.5), policy, own.RandomSolarize(100))


# ---- pixels


@pytest.fixture(scope="module")
def jpeg() -> bytes:
    return encode(smooth_image(np.random.default_rng(3), *SIZE), quality=95)


@pytest.fixture(scope="module")
def folder(jpeg: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("torchvision")
    gpuload.pack([{"image": jpeg, "label": 0}] * 40, out, workers=1)
    return out / "train"


def load(folder: Path, augment: Augment, batch_size: int = 1, decoder: Any = "native") -> torch.Tensor:
    options: Any = {"decoder": decoder, "device": "cpu", "num_threads": 1}
    with gpuload.DaliIterator(folder, batch_size, augment=augment, **options) as loader:
        return next(iter(loader))[0]


def check(
    folder: Path,
    jpeg: bytes,
    transform: Any,
    peak: float = 1.0,
    augment: Any = None,
    most: float = 2.1,
    decoder: str = "native",
) -> None:
    """peak: what the highest level of the images becomes. most: levels that may lie between the results."""
    theirs = transform(Image.open(io.BytesIO(jpeg)))
    if isinstance(theirs, Image.Image):  # is to become a tensor: as ToTensor does it
        theirs = v1().ToTensor()(theirs)
    found = load(folder, augment or Augment.torchvision(transform), decoder=decoder)[0]
    assert (found.dtype, found.shape) == (torch.as_tensor(theirs).dtype, theirs.shape)
    gap = (found.double() - torch.as_tensor(theirs).double()).abs() * 255 / peak
    assert gap.max() <= most and gap.mean() < most / 7, (float(gap.max()), float(gap.mean()))


ENDS: dict[str, tuple[Steps, float]] = {
    "nothing": (lambda tv: [], 1),
    "ToTensor": (lambda tv: [tv.ToTensor()], 1),
    "PILToTensor": (lambda tv: [tv.PILToTensor()], 255),
    "PILToTensor, float": (lambda tv: [tv.PILToTensor(), tv.ConvertImageDtype(F32)], 1),
    "half": (lambda tv: [tv.ToTensor(), tv.ConvertImageDtype(torch.float16)], 1),
    "bfloat16": (lambda tv: [tv.PILToTensor(), tv.ConvertImageDtype(torch.bfloat16)], 1),
    "to and fro": (lambda tv: [tv.ToTensor(), tv.ToPILImage(), tv.PILToTensor()], 255),
    "levels again": (lambda tv: [tv.ToTensor(), tv.ConvertImageDtype(torch.uint8)], 255),
    "Normalize": (lambda tv: [tv.ToTensor(), tv.Normalize(MEAN, [0.25] * 3)], 4),
    "Normalize, half": (lambda tv: [tv.ToTensor(), tv.Normalize([0.5], [0.5]), tv.ConvertImageDtype(torch.half)], 2),
    # Of v2 alone.
    "ToImage": (lambda tv: [tv.ToImage()], 255),
    "ToPureTensor": (lambda tv: [tv.ToImage(), tv.Identity(), tv.ToPureTensor()], 255),
    "uint8": (lambda tv: [tv.ToImage(), tv.ToDtype(torch.uint8)], 255),
    "scaled": (lambda tv: [tv.ToImage(), tv.ToDtype(F32, scale=True)], 1),
    "unscaled": (lambda tv: [tv.ToImage(), tv.ToDtype(F32)], 255),
    "unscaled half": (lambda tv: [tv.ToImage(), tv.ToDtype(torch.float16)], 255),
    "by class": (lambda tv: [tv.ToImage(), tv.ToDtype({type(tv.ToImage()(np.zeros((1, 1, 3)))): F32})], 255),
    "by another class": (lambda tv: [tv.ToImage(), tv.ToDtype({torch.Tensor: F32, "others": None})], 255),
    "by class, plain": (lambda tv: [tv.ToImage(), tv.ToPureTensor(), tv.ToDtype({torch.Tensor: F32})], 255),
    "RGB": (lambda tv: [tv.ToImage(), tv.RGB()], 255),
    "by none": (lambda tv: [tv.ToImage(), tv.ToDtype({"others": None})], 255),
    "unscaled, then Normalize": (lambda tv: [tv.ToImage(), tv.ToDtype(F32), tv.Normalize([120.0], [60.0])], 4),
}


@pytest.mark.parametrize("end", ENDS)
def test_dtype_and_range_of_values_are_kept(folder: Path, jpeg: bytes, tv: ModuleType, end: str) -> None:
    steps, peak = ENDS[end]
    if "ToImage" in steps.__code__.co_names:
        tv = importlib.import_module("torchvision.transforms.v2")
    check(folder, jpeg, tv.Compose([tv.Resize((32, 48)), *steps(tv)]), peak)


CROPS: dict[str, Steps] = {
    "RandomResizedCrop": lambda tv: [tv.RandomResizedCrop((40, 60), scale=(1, 1), ratio=(1.5, 1.5))],
    "RandomResizedCrop, bicubic": lambda tv: [tv.RandomResizedCrop(56, (1, 1), (1.5, 1.5), mode("bicubic"))],
    "Resize": lambda tv: [tv.Resize((30, 40))],
    "CenterCrop": lambda tv: [tv.Resize(64), tv.CenterCrop(50)],
    "CenterCrop, bicubic": lambda tv: [tv.Resize(64, mode("bicubic")), tv.CenterCrop((50, 60))],
    "Resize both, CenterCrop": lambda tv: [tv.Resize((72, 72)), tv.CenterCrop(64)],
    "Resize both, CenterCrop of them": lambda tv: [tv.Resize((41, 72)), tv.CenterCrop((33, 64))],
    "RandomCrop": lambda tv: [tv.RandomCrop((100, 150))],
    "RandomCrop, padding": lambda tv: [tv.RandomCrop((108, 156), padding=(3, 4), fill=9)],
    "Pad": lambda tv: [tv.Pad(5, padding_mode="reflect"), tv.RandomCrop((110, 160))],
    "keep": lambda tv: [],
    "of its own size": lambda tv: [tv.Resize(40)],
    "of a limited size": lambda tv: [tv.Resize(60, max_size=70)],
}


@pytest.mark.parametrize("crop", CROPS)
@pytest.mark.parametrize(
    ("flips", "end", "decoder"),
    [((), "PILToTensor", "native"), *((("Horizontal", "Vertical"), "Normalize", one) for one in ("native", "dali"))],
)
def test_every_crop(
    folder: Path, jpeg: bytes, tv: ModuleType, crop: str, flips: tuple[str, ...], end: str, decoder: str
) -> None:
    if (crop, decoder) == ("Pad", "dali"):
        return  # which has no mirrored padding
    steps, peak = ENDS[end]
    flipped = [getattr(tv, f"Random{flip}Flip")(1.0) for flip in flips]
    check(folder, jpeg, tv.Compose([*CROPS[crop](tv), *flipped, *steps(tv)]), peak, decoder=decoder)


CHANGES = {type(ours).__name__ for _, ours in [*READ_PIXELS, *READ_ERASING]}
READ = {
    *("Compose", "Resize", "CenterCrop", "Pad", "RandomCrop", "RandomResizedCrop", "Normalize", "ToPILImage"),
    *("RandomHorizontalFlip", "RandomVerticalFlip", "ToTensor", "PILToTensor", "ConvertImageDtype", "ToImage"),
    *("ToDtype", "ToPureTensor", "Identity", "Grayscale", "RandomChoice", "RandomOrder", *CHANGES),
    *("RGB", "RandomResize", "RandomShortestSize", "RandomZoomOut", "ConvertBoundingBoxFormat"),
    *("ClampBoundingBoxes", "ClampKeyPoints", "SanitizeBoundingBoxes", "SanitizeKeyPoints"),
}


def test_every_class_is_read_or_refused_by_its_name(tv: ModuleType) -> None:
    classes = {name: kind for name, kind in vars(tv).items() if isinstance(kind, type) and name[0].isupper()}
    others = set(classes) - READ - {"InterpolationMode", "AutoAugmentPolicy"}
    assert len(others) > 4 and len(set(classes) & READ) > 25
    for name in sorted(others):
        made = classes[name].__new__(classes[name])  # whatever its arguments are
        with pytest.raises(gpuload.ArgumentError, match=rf"^Augment.torchvision: {name} has no.*transforms\.Function"):
            Augment.torchvision(tv.Compose([tv.RandomResizedCrop(32), made]))
    assert set(own.__all__) - {"Function", "PixelTransform", "TimmAutoAugment"} <= READ


def test_erasing_writes_its_value(folder: Path, tv: ModuleType) -> None:
    """Half of the image, wherever it lies, as torchvision's: the value in units of what it is given."""
    erase = tv.RandomErasing(1.0, (0.5, 0.5), (0.6, 0.6), 0.5)
    for end, dtype in (
        ([tv.ToTensor(), erase], torch.float32),
        ([tv.ToTensor(), tv.Normalize(MEAN, STD), erase], None),
    ):
        found = load(folder, Augment.torchvision(tv.Compose([tv.Resize((64, 96)), *end])))[0]
        assert found.dtype == (dtype or torch.float32)
        assert 0.45 < float((found == 0.5).all(dim=0).float().mean()) < 0.55


def look_alike(name: str) -> Any:
    """An object of a class of one's own with the name of one of torchvision's, as dinov2's GaussianBlur."""
    return type(name, (torch.nn.Module,), {"size": 8, "p": 0.5, "transforms": ()})()


@pytest.mark.parametrize("name", sorted(READ))
def test_look_alikes_and_subclasses_are_refused_by_name(tv: ModuleType, name: str) -> None:
    refused = pytest.raises(
        gpuload.ArgumentError, match=rf"(mae.util.crop|{__name__}).{name} is not.*transforms\.Function"
    )
    with refused:
        build(tv, tv.RandomResizedCrop(32), look_alike(name))
    if (theirs := getattr(tv, name, None)) is not None:
        changed = type(name, (theirs,), {"__init__": lambda self: None, "__module__": "mae.util.crop"})()
        for transform in (changed, tv.Compose([tv.RandomResizedCrop(32), tv.RandomApply([changed])])):
            with refused:
                Augment.torchvision(transform)


# ---- what is refused


def shrink(image: Any) -> Any:
    return image


def thumbnail(image: Any) -> Any:
    image = image.convert("RGB")
    image.thumbnail((512, 512))
    return image


def mirrored_at_times(image: Any) -> Any:
    image = image.convert("RGB")
    return ImageOps.mirror(image) if RNG.random() < 0.01 else image


RNG = np.random.default_rng(0)
CONSTANTS = {"mode": "RGB"}


REFUSED: list[tuple[Steps, str]] = [
    (lambda tv: [tv.RandomResizedCrop(32), shrink], rf"{__name__}.shrink.*transforms.Function"),
    (lambda tv: [tv.RandomResizedCrop(32), tv.RandomInvert], "RandomInvert is not an object"),
    (lambda tv: [tv.RandomResizedCrop(32), Other(tv.Compose([tv.RandomInvert()]))], "Other.*holds in `transforms`"),
    (lambda tv: [tv.RandomResizedCrop(32), tv.RandomApply([tv.ElasticTransform()])], "ElasticTransform has no"),
    (lambda tv: [tv.RandomResizedCrop(32), tv.RandomRotation(10, expand=True)], "expand=True"),
    (lambda tv: [tv.RandomResizedCrop(32), tv.Lambda(lambda image: image)], "Lambda"),
    (lambda tv: [tv.RandomResizedCrop(32), tv.Lambda(lambda image: image.convert("L").convert("RGB"))], "Lambda"),
    (lambda tv: [Alternating(tv.RandomCrop(32), tv.RandomResizedCrop(32))], "Alternating.*holds in `transforms`"),
    # Functions that convert, and do more.
    (lambda tv: [NotALambda(to_rgb), tv.RandomResizedCrop(32)], "NotALambda is not an object"),
    (lambda tv: [tv.Lambda(thumbnail), tv.RandomResizedCrop(32)], "Lambda has no.*transforms.Function"),
    (lambda tv: [thumbnail, tv.RandomResizedCrop(32)], rf"{__name__}.thumbnail.*transforms.Function"),
    (lambda tv: [tv.Lambda(mirrored_at_times), tv.RandomResizedCrop(32)], "Lambda has no"),
    (lambda tv: [tv.Lambda(lambda image: ImageOps.autocontrast(image.convert("RGB")))], "Lambda has no"),
    (lambda tv: [tv.Lambda(lambda image: image.convert(**CONSTANTS))], "Lambda has no"),
    # Another order
    (lambda tv: [tv.RandomRotation(10), tv.RandomResizedCrop(32)], "RandomResizedCrop comes after RandomRotation"),
    (lambda tv: [tv.ColorJitter(0.5, 0.5), tv.RandomResizedCrop(32)], "RandomResizedCrop comes after ColorJitter"),
    (lambda tv: [tv.Resize((9, 9)), tv.Normalize(MEAN, STD), tv.RandomInvert()], "RandomInvert comes after Normalize"),
    (lambda tv: [tv.Resize((9, 9)), tv.RandomErasing(), tv.Normalize(MEAN, STD)], "Normalize comes after Random"),
    (lambda tv: [tv.Resize((9, 9)), tv.Normalize(MEAN, STD), tv.Normalize(MEAN, STD)], "Normalize comes twice"),
    (
        lambda tv: [tv.RandomInvert(), tv.RandomCrop(32, 4)],
        "RandomCrop comes after RandomInvert, and RandomInvert would change the padding.*put RandomCrop before Random",
    ),
    (lambda tv: [tv.Grayscale(3), tv.Pad(2, (9, 0, 0)), tv.RandomCrop(32)], "Grayscale would change the padding"),
    (lambda tv: [tv.ColorJitter(0.3), tv.RandomResizedCrop(32)], "ColorJitter does not change levels in proportion"),
    (lambda tv: [tv.RandomHorizontalFlip(), tv.RandomCrop(32, (1, 2, 3, 2))], "pads 1 pixels on the left and 3 on the"),
    (
        lambda tv: [tv.RandomVerticalFlip(), tv.Pad((1, 2, 1, 3)), tv.RandomCrop(32)],
        "pads 2 pixels at the top and 3 at",
    ),
    (lambda tv: [tv.Resize(64), tv.RandomVerticalFlip(), tv.CenterCrop(32)], "one pixel more on one side where the"),
    (
        lambda tv: [tv.Resize((64, 63)), tv.RandomHorizontalFlip(), tv.CenterCrop(32)],
        "CenterCrop before RandomHorizontal",
    ),
    (
        lambda tv: [tv.RandomHorizontalFlip(), tv.RandomResizedCrop(32, (0.6, 1))],
        "takes the middle where no window fits",
    ),
    (
        lambda tv: [tv.Resize((32, 32)), tv.RandAugment(), tv.RandomHorizontalFlip()],
        "shears about the upper left corner",
    ),
    (
        lambda tv: [tv.Resize((9, 9)), tv.RandomApply([tv.RandomRotation((0, 20))]), tv.RandomHorizontalFlip()],
        "one side",
    ),
    (lambda tv: [tv.Resize((32, 32)), tv.RandomAffine(5, center=(3, 4)), tv.RandomHorizontalFlip()], "one side"),
    (lambda tv: [tv.Resize((32, 32)), tv.RandomAffine(5, shear=(-9, 9, 0, 9)), tv.RandomVerticalFlip()], "one side"),
    # Crops and resizes
    (lambda tv: [tv.Pad(4)], "Pad has no counterpart.*pad_or_crop"),
    (lambda tv: [tv.Resize(64), tv.RandomCrop(32, padding=4)], "Resize, padded RandomCrop has no.*pack --size"),
    (
        lambda tv: [tv.Resize((64, 40)), tv.RandomCrop(32)],
        r"Resize\(\(height, width\)\), RandomCrop has no.*pack --size",
    ),
    (lambda tv: [tv.RandomRotation(9)], r"RandomRotation: needs images of one size"),
    (lambda tv: [tv.Resize(64, max_size=90), tv.CenterCrop(32)], r"Resize\(max_size\), CenterCrop has no"),
    (lambda tv: [tv.Resize((32, 64)), tv.CenterCrop(40)], r"Resize\(\(32, 64\)\) comes before CenterCrop\(40, 40\)"),
    (
        lambda tv: [tv.Resize(30), tv.CenterCrop((20, 40))],
        r"Resize\(30\) comes before CenterCrop\(20, 40\), which pads",
    ),
    (lambda tv: [tv.Resize(30), tv.RandomCrop(32)], r"Resize\(30\) comes before RandomCrop\(32, 32\), for which"),
    (lambda tv: [tv.Resize(8), tv.RandomResizedCrop(32)], r"Resize\(8\) comes before .*which blurs .*\(pack --size\)"),
    (lambda tv: [tv.RandomResizedCrop(32, antialias=False)], "antialias"),
    (
        lambda tv: [tv.PILToTensor(), tv.Resize((9, 9), antialias=None)],
        r"Resize\(antialias=None\) resizes tensors with",
    ),
    (lambda tv: [tv.ToImage(), tv.Resize((9, 9), antialias=None)], r"Resize\(antialias=None\) resizes tensors without"),
    (lambda tv: [tv.RandomResizedCrop(32, interpolation=mode("nearest"))], "'nearest'"),
    (lambda tv: [tv.RandomResizedCrop(32), tv.RandAugment(interpolation=mode("bicubic"))], "RandAugment.*'bicubic'"),
    (lambda tv: [tv.ToTensor(), tv.Resize((32, 48), interpolation=mode("bicubic"))], "Resize of floats"),
    (lambda tv: [tv.Grayscale(), tv.RandomResizedCrop(32)], "Grayscale"),
    # Other dtypes and ranges of values
    (lambda tv: [tv.PILToTensor(), tv.ConvertImageDtype(torch.float64)], r"ConvertImageDtype\(float64, scale=True\)"),
    (lambda tv: [tv.PILToTensor(), tv.Normalize(MEAN, STD)], "Normalize gets uint8; expected floats"),
    (lambda tv: [tv.PILToTensor(), tv.RandomErasing()], "RandomErasing gets uint8; expected floats"),
    (lambda tv: [tv.ToTensor(), tv.Normalize(MEAN, STD), tv.ConvertImageDtype(torch.uint8)], "gets normalised floats"),
    (lambda tv: [tv.RandomErasing(), tv.ConvertImageDtype(torch.float16), tv.ToPILImage()], "ToPILImage comes after"),
    (lambda tv: [tv.ToTensor(), tv.ToPILImage(), tv.ConvertImageDtype(torch.float16)], "no effect on Pillow's images"),
    (lambda tv: [tv.ConvertImageDtype(torch.float32), tv.PILToTensor()], "PILToTensor comes after"),
    (lambda tv: [tv.ToImage(), tv.ToDtype(F32, scale=True), tv.ToDtype(torch.uint8)], r"in 0\.\.1; expected scale"),
    (lambda tv: [tv.ToImage(), tv.ToDtype(F32), tv.ToDtype(torch.uint8, scale=True)], r"ToDtype.*float32 in 0\.\.255"),
    (
        lambda tv: [tv.Resize((9, 9)), tv.ToDtype(F32)],
        r"ToDtype\(float32\) gives tensors a range.*Put ToImage\(\) before",
    ),
    (lambda tv: [tv.ToDtype({torch.Tensor: F32, "others": None})], r"ToDtype\(.*depends on the class.*put ToImage\(\)"),
    (
        lambda tv: [tv.ToTensor(), tv.Normalize(MEAN, STD), tv.RandomCrop(32, 4, fill=9)],
        "fill=9.*is no level of an image",
    ),
    (lambda tv: [tv.ToImage(), tv.ToDtype(F32), tv.RandomInvert()], r"RandomInvert gets float32 in 0\.\.255"),
]


@pytest.mark.parametrize(("steps", "message"), REFUSED)
def test_what_has_no_counterpart_is_refused(tv: ModuleType, steps: Steps, message: str) -> None:
    if {"ToImage", "ToDtype"} & {*steps.__code__.co_names} and not hasattr(tv, "ToImage"):
        return  # of v2 alone
    with pytest.raises(gpuload.ArgumentError, match=message):
        build(tv, *steps(tv))


# ---- timm's and open_clip's factories

SMALL = {"input_size": (3, 64, 64)}
# What leaves nothing to chance: the whole image, always flipped.
WHOLE: dict[str, Any] = {"is_training": True, "scale": (1.0, 1.0), "ratio": (1.5, 1.5), "hflip": 1.0}
TIMMS: dict[str, dict[str, Any]] = {
    "evaluation": {},
    "bicubic": {"interpolation": "bicubic", "crop_pct": 0.95},
    "other constants": {"mean": (0.5, 0.4, 0.3), "std": (0.5, 0.4, 0.3)},
    "squash": {"crop_mode": "squash", "crop_pct": 0.9},
    "not square": {"input_size": (3, 48, 72), "crop_pct": 0.9},
    "tall": {"input_size": (3, 72, 48), "crop_pct": 1.0, "interpolation": "bicubic"},
    "for the prefetcher": {"use_prefetcher": True},
    "not normalised": {"normalize": False},
    "without augmentation": {"is_training": True, "no_aug": True},
    "flipped": {**WHOLE, "color_jitter": None},
    "flipped vertically": {**WHOLE, "hflip": 0.0, "vflip": 1.0, "color_jitter": None, "interpolation": "bicubic"},
    "gray": {**WHOLE, "color_jitter": None, "grayscale_prob": 1.0},
    "never": {**WHOLE, "color_jitter": 0.4, "color_jitter_prob": 0.0, "gaussian_blur_prob": 0.0, "re_prob": 0.0},
}
TIMMS_REFUSED = {
    "border": ({"crop_mode": "border"}, "timm's ResizeKeepRatio"),
    "border_pixels": ({"crop_border_pixels": 4}, "timm's TrimBorder has no counterpart"),
    "rkrc": ({"is_training": True, "train_crop_mode": "rkrc"}, "timm's ResizeKeepRatio"),
    "naflex": ({"is_training": True, "naflex": True}, "RandomResizedCropToSequence has no counterpart"),
    "patches": ({"patchify": True}, "Patchify has no counterpart"),
    "too many": ({"is_training": True, "auto_augment": "rand-n65"}, r"TimmAutoAugment\(config='rand-n65'\)"),
    "too wide": ({"is_training": True, "auto_augment": "augmix-w17"}, r"TimmAutoAugment\(config='augmix-w17'\)"),
    "splits": ({"is_training": True, "re_prob": 0.5, "re_num_splits": 2}, "num_splits"),
}


@pytest.fixture(scope="module")
def timm_data() -> Any:
    importlib.import_module("torchvision_anywhere")
    return pytest.importorskip("timm.data", reason="needs the extra 'frameworks'")


@pytest.mark.parametrize("variant", TIMMS)
def test_variants_of_create_transform_give_timms_pixels(
    folder: Path, jpeg: bytes, timm_data: Any, variant: str
) -> None:
    options = {**SMALL, **TIMMS[variant]}
    made = timm_data.create_transform(**options)
    check(folder, jpeg, made, 255 if options.get("use_prefetcher") else 1 / 0.225, Augment.timm(**options), 4.2)


def test_a_data_config_is_taken_as_it_is(timm_data: Any) -> None:
    config = timm_data.resolve_data_config({"input_size": (3, 48, 48)})
    augment = Augment.timm(config, crop_pct=1.0)
    assert augment == Augment.timm(**{**config, "crop_pct": 1.0}) and augment.output_size == (48, 48)
    train = Augment.timm(config, is_training=True, re_prob=0.3, re_mode="pixel", re_count=2)
    erasing = train.transforms[-1]
    assert isinstance(erasing, gpuload.transforms.RandomErasing)
    assert (erasing.p, erasing.value, erasing.count) == (0.3, "random", (1, 2))


@pytest.mark.parametrize("variant", TIMMS_REFUSED)
def test_other_variants_are_refused_by_name(timm_data: Any, variant: str) -> None:
    options, message = TIMMS_REFUSED[variant]
    with pytest.raises(gpuload.ArgumentError, match=message):
        Augment.timm(**options)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["shortest", "squash"])
def test_open_clips_evaluation(folder: Path, jpeg: bytes, timm_data: Any, mode: str) -> None:
    transform = importlib.import_module("open_clip.transform").image_transform(48, is_train=False, resize_mode=mode)
    check(folder, jpeg, transform, 1 / 0.225, most=4.2)


@pytest.mark.filterwarnings("ignore")
def test_open_clips_training(timm_data: Any) -> None:
    transform = importlib.import_module("open_clip.transform").image_transform(48, is_train=True)
    augment = Augment.torchvision(transform)
    assert augment.crop == gpuload.RandomResizedCrop((0.9, 1.0)) and augment.interpolation == "bicubic"


def test_rectangles_of_timm(folder: Path, timm_data: Any) -> None:
    """Each has its part of the area, and a colour of its own, or noise."""
    erase = gpuload.transforms.RandomErasing(1.0, (0.2, 0.3), count=(1, 3), value="color")
    plain = load(folder, Augment(64, crop="none"), 40)
    images = load(folder, Augment(64, crop="none", transforms=[erase]), 40)
    numbers = set()
    for before, image in zip(plain, images, strict=True):
        changed = (before != image).any(0)
        colors = {tuple(color) for color in image[:, changed].T.tolist()}
        numbers.add(len(colors))
        assert 0 < changed.float().mean() <= 0.31
    assert numbers == {1, 2, 3}
    theirs = timm_data.random_erasing.RandomErasing(1.0, 0.2, 0.3, mode="rand", min_count=1, max_count=3, device="cpu")
    shares = [(theirs(torch.full((3, 64, 64), 9.0)) != 9).any(0).float().mean() for _ in range(300)]
    ours = [(load(folder, Augment(64, crop="none", transforms=[erase]), 40) != plain).any(1).float().mean()]
    assert abs(float(np.mean(shares)) - float(np.mean(ours))) < 0.03
    noise = gpuload.transforms.RandomErasing(1.0, (0.2, 0.3), count=(2, 2), value="random")
    assert len({*load(folder, Augment(64, crop="none", transforms=[noise]), 1)[0, 0].flatten().tolist()}) > 700


@pytest.mark.parametrize("decoder", ["native", "dali", "both"])
def test_the_filter_is_drawn_for_each_image(folder: Path, timm_data: Any, decoder: Any) -> None:
    """timm's default in training: each image is resized by one of the two filters, and as with that filter alone."""
    augment = Augment.timm({**SMALL, "interpolation": "random"}, is_training=True, color_jitter=None)
    assert augment.interpolation == "random"
    made = {}
    for name in ("random", "bilinear", "bicubic"):
        made[name] = load(folder, Augment(64, interpolation=name, dtype="uint8"), 40, decoder)
    equal = [(made["random"] == made[name]).flatten(1).all(1) for name in ("bilinear", "bicubic")]
    assert (equal[0] ^ equal[1]).all() and 8 < equal[0].sum() < 32
