"""`Augment.torchvision` on pipelines of one, two and three steps that are drawn, by mean images: what is translated does the
same as torchvision, and what is refused would do something else in the order of `Augment`.

All draws are fixed by their seeds, so that nothing fails by chance.
"""

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter, ImageOps

import gpuload
from gpuload import Augment

pytestmark = pytest.mark.filterwarnings("ignore:The transform `ToTensor:UserWarning")

DRAWS = 100
FAR = 6.0  # of `distance`: what is the same stays below 4, and each other order of some steps goes beyond
F32 = torch.float32
Steps = Sequence[Any]
Rng = np.random.Generator


def picture(width: int, height: int, seed: int) -> Image.Image:
    """Dark and of little contrast on the left, strong colours of single pixels on the right, which no flip or shift leaves
    where they are, and no resize as they are."""
    rng = np.random.default_rng(seed)
    squares = rng.choice([10, 30, 50, 70], (height // 4 + 1, width // 4 + 1, 3)).repeat(4, axis=0).repeat(4, axis=1)
    image = squares[:height, :width]
    image[:, 2 * width // 5 :] = rng.choice([0, 90, 140, 255], (height, width - 2 * width // 5, 3))
    return Image.fromarray(image.astype(np.uint8))


# Of odd sizes, upright and not.
PICTURES = (picture(61, 44, 1), picture(37, 55, 2))


def stretched(image: Image.Image) -> Image.Image:
    return ImageOps.autocontrast(image.convert("RGB"))


def smaller(image: Image.Image) -> Image.Image:
    image = image.convert("RGB")
    image.thumbnail((30, 30))
    return image


def bit(rng: Rng) -> bool:
    return bool(rng.integers(2))


def size_of(rng: Rng) -> Any:
    return int(rng.integers(16, 36)) if bit(rng) else (int(rng.integers(16, 36)), int(rng.integers(16, 36)))


def padding_of(rng: Rng) -> Any:
    return [3, (4, 2), (14, 1, 0, 13), (1, 14, 12, 0)][rng.integers(4)]


def fill_of(rng: Rng) -> dict[str, Any]:
    return [{}, {"fill": 200}, {"padding_mode": "edge"}, {"padding_mode": "reflect"}][rng.integers(4)]


def crop_with_padding(tv: Any, rng: Rng) -> Any:
    return tv.RandomCrop(size_of(rng), padding=padding_of(rng), **fill_of(rng))


# Steps, with numbers that are drawn.
POOL: dict[str, Callable[[Any, Rng], Any]] = {
    "Resize": lambda tv, rng: tv.Resize(int(rng.integers(8, 48))),
    "Resize to both": lambda tv, rng: tv.Resize((int(rng.integers(16, 60)), int(rng.integers(16, 60)))),
    "RandomResizedCrop": lambda tv, rng: tv.RandomResizedCrop(size_of(rng), (0.3, 0.3), (1, 1)),
    "RandomResizedCrop, whole": lambda tv, rng: tv.RandomResizedCrop(size_of(rng), (1, 1), (1, 1)),
    "CenterCrop": lambda tv, rng: tv.CenterCrop(size_of(rng)),
    "RandomCrop": lambda tv, rng: tv.RandomCrop(size_of(rng)),
    "RandomCrop, padding": crop_with_padding,
    "Pad": lambda tv, rng: tv.Pad(padding_of(rng), **fill_of(rng)),
    "flip": lambda tv, rng: tv.RandomHorizontalFlip(float(rng.choice([0.5, 1.0]))),
    "vertical flip": lambda tv, rng: tv.RandomVerticalFlip(float(rng.choice([0.5, 1.0]))),
    "brightness": lambda tv, rng: tv.ColorJitter((1.7, 1.7)) if bit(rng) else tv.ColorJitter((0.4, 0.4)),
    "contrast": lambda tv, rng: tv.ColorJitter(0, (0.3, 0.3)),
    "saturation": lambda tv, rng: tv.ColorJitter(saturation=(2.5, 2.5) if bit(rng) else (0.3, 0.3)),
    "hue": lambda tv, rng: tv.ColorJitter(hue=(0.3, 0.3)),
    "gray": lambda tv, rng: tv.Grayscale(3),
    "invert": lambda tv, rng: tv.RandomInvert(1.0),
    "some inverted": lambda tv, rng: tv.RandomApply([tv.RandomInvert(1.0)], 0.5),
    "posterize": lambda tv, rng: tv.RandomPosterize(4, 1.0),
    "solarize": lambda tv, rng: tv.RandomSolarize(100, 1.0),
    "equalize": lambda tv, rng: tv.RandomEqualize(1.0),
    "sharpness": lambda tv, rng: tv.RandomAdjustSharpness(3, 1.0),
    "blur": lambda tv, rng: tv.GaussianBlur(5, 1.5),
    "rotation": lambda tv, rng: tv.RandomRotation((25, 25) if bit(rng) else 25),
    "shear": lambda tv, rng: tv.RandomAffine(0, shear=(-30, 30) if bit(rng) else (10, 30)),
    "RandAugment": lambda tv, rng: tv.RandAugment(4, 30),
    "to RGB": lambda tv, rng: tv.Lambda(lambda image: image.convert("RGB")),
    "to RGB, and more": lambda tv, rng: tv.Lambda(stretched if bit(rng) else smaller),
    "ToTensor": lambda tv, rng: tv.ToTensor(),
    "PILToTensor": lambda tv, rng: tv.PILToTensor(),
    "Normalize": lambda tv, rng: tv.Normalize((0.5, 0.4, 0.3), (0.25, 0.3, 0.2)),
    "RandomErasing": lambda tv, rng: tv.RandomErasing(1.0, (0.2, 0.2), (1, 1), 0.7),
    "without antialiasing": lambda tv, rng: tv.Resize((13, 17), antialias=None),
}


def only_shears(tv: Any, rng: Rng) -> Any:
    """A RandAugment of v2 that draws one of its changes alone, which others would hide in a mean image."""
    policy = tv.RandAugment(1, 30)
    policy._AUGMENTATION_SPACE = {name: policy._AUGMENTATION_SPACE[name] for name in ("ShearX", "ShearY")}
    return policy


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Small images are slower on more threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Many copies of each picture."""
    made = []
    for number, image in enumerate(PICTURES):
        out = tmp_path_factory.mktemp(f"picture{number}")
        rows = ({"image": np.asarray(image), "label": 0} for _ in range(DRAWS))
        gpuload.pack(rows, out, workers=1, encode="raw")
        made.append(out / "train")
    return made


Images = list[np.ndarray]  # of each picture, float64 (DRAWS, 3, height, width), in levels


def in_levels(images: torch.Tensor) -> np.ndarray:
    return np.asarray(images.double() * (1 if images.dtype == torch.uint8 else 255))


def by_torchvision(transform: Any) -> Images | None:
    """What torchvision makes of the pictures; None where it raises an error, or sizes differ."""
    torch.manual_seed(5)
    to_tensor = importlib.import_module("torchvision.transforms").ToTensor()
    results = []
    for image in PICTURES:
        try:
            draws = [transform(image) for _ in range(DRAWS)]
        except (TypeError, ValueError, RuntimeError, AttributeError):
            return None
        tensors = [to_tensor(one) if isinstance(one, Image.Image) else torch.as_tensor(one) for one in draws]
        if len({one.shape for one in tensors}) > 1:
            return None
        results.append(in_levels(torch.stack(tensors)))
    return results


def by_gpuload(augment: Augment, folders: list[Path]) -> Images:
    results = []
    for folder in folders:
        options: Any = {"decoder": "native", "device": "cpu", "num_threads": 1}
        with gpuload.DaliIterator(folder, DRAWS, augment=augment, **options) as loader:
            images = next(iter(loader))[0]
        results.append(in_levels(torch.stack(images) if isinstance(images, list) else images))
    return results


def distance(first: Images, second: Images) -> float:
    """Between mean images: the mean square of their gap, in units of what it is by chance and by rounding."""
    gaps = []
    for one, other in zip(first, second, strict=True):
        if one.shape != other.shape:
            return float("inf")
        spread = (one.var(axis=0) + other.var(axis=0)) / DRAWS
        gaps.append(float(np.mean((one.mean(axis=0) - other.mean(axis=0)) ** 2 / (spread + 2.0**2))))
    return max(gaps)


def drawn_pipelines(kind: str, first: int, count: int) -> Iterator[tuple[ModuleType, list[Any]]]:
    """Pipelines of one, two and three steps in turn, of torchvision's transforms of either kind."""
    tv = importlib.import_module("torchvision.transforms" + (".v2" if kind == "v2" else ""))
    for seed in range(first, first + count):
        rng = np.random.default_rng(seed)
        names = rng.choice(list(POOL), 1 + seed % 3, replace=False)
        yield tv, [POOL[str(name)](tv, rng) for name in names]


def refusal(tv: Any, steps: Steps) -> str:
    """Why a pipeline is not translated, which names one of its steps; "" if it is."""
    message = ""
    try:
        Augment.torchvision(tv.Compose(list(steps)))
    except gpuload.ArgumentError as error:
        message = str(error)
    assert not message or any(type(step).__name__ in message for step in steps), message
    return message


@pytest.mark.parametrize("first", range(0, 90, 30))
@pytest.mark.parametrize("kind", ["v1", "v2"])
@pytest.mark.usefixtures("transforms")
def test_what_is_translated_does_the_same(folders: list[Path], kind: str, first: int) -> None:
    translated = 0
    for tv, steps in drawn_pipelines(kind, first, 30):
        theirs = by_torchvision(tv.Compose(steps))
        if theirs is None or refusal(tv, steps):
            continue
        ours = by_gpuload(Augment.torchvision(tv.Compose(steps)), folders)
        assert distance(theirs, ours) < FAR, steps
        translated += 1
    assert translated > 8


def blurred(self: Any, image: Image.Image) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(radius=self.sigmas[0]))


def blur_of_lightly(sigma: float) -> Any:
    """A stand-in for lightly's, of a fixed strength."""
    made = type("GaussianBlur", (), {"__module__": "lightly.transforms.gaussian_blur", "__call__": blurred})()
    made.sigmas = (sigma, sigma)
    made.prob = 1.0
    return made


RARE: dict[str, Callable[[Any], list[Any]]] = {
    "zoomed out": lambda tv: [tv.RandomZoomOut((200, 90, 0), (1.5, 2.5), 1.0), tv.Resize((40, 48))],
    "flipped and zoomed out": lambda tv: [
        tv.RandomHorizontalFlip(1.0),
        tv.RandomZoomOut(9, (2, 2), 1.0),
        tv.RandomVerticalFlip(1.0),
        tv.Resize((40, 48)),
    ],
    "one shorter side": lambda tv: [tv.RandomShortestSize([33]), tv.RandomHorizontalFlip(0.5)],
    "the longer side": lambda tv: [tv.Resize(None, max_size=50), tv.RandomInvert(1.0)],
    "a range of sizes": lambda tv: [tv.RandomResize(33, 34), tv.ColorJitter((0.5, 1.5))],
    "normalised, then cropped": lambda tv: [
        *(tv.ToImage(), tv.ToDtype(F32, scale=True), tv.Normalize((0.2, 0.4, 0.6), (0.25, 0.3, 0.2))),
        *(tv.RandomCrop((40, 32), padding=6, fill=-0.3), tv.RandomHorizontalFlip(1.0), tv.GaussianBlur(5, 1.5)),
    ],
    "normalised, then resized": lambda tv: [
        *(tv.ToImage(), tv.ToDtype(F32, scale=True), tv.Normalize((0.2, 0.4, 0.6), (0.25, 0.3, 0.2))),
        *(tv.Resize((40, 32)), tv.RandomRotation((20, 30), fill=0.0)),
    ],
    "blurred by Pillow": lambda tv: [tv.Resize((40, 44)), blur_of_lightly(1.3)],
}


@pytest.mark.parametrize("name", RARE)
def test_what_random_pipelines_hardly_hold(folders: list[Path], transforms: Any, name: str) -> None:
    transform = transforms.Compose(RARE[name](transforms))
    theirs = by_torchvision(transform)
    assert theirs is not None
    assert distance(theirs, by_gpuload(Augment.torchvision(transform), folders)) < FAR


@pytest.mark.usefixtures("transforms")
def test_what_is_refused_for_its_order_would_do_something_else() -> None:
    """Of each reason there is a pipeline that makes other images with its steps in the order of `Augment`."""
    tv: Any = importlib.import_module("torchvision.transforms.v2")
    seen: dict[str, float] = {}
    begins: list[list[Any]] = [[], [tv.Resize(45)], [tv.Resize((60, 51))], [tv.Resize((60, 51)), tv.ToTensor()]]
    pool = {**POOL, "RandAugment": only_shears, "unequal padding": lambda tv, rng: tv.RandomCrop(40, (14, 1, 0, 13))}
    for number, (resized, first, second) in enumerate(product(begins, pool, pool)):
        pair = [pool[name](tv, np.random.default_rng(number)) for name in (first, second)]
        message = refusal(tv, [*resized, *pair])
        if "The order here" not in message:
            continue
        # Without the names of steps and numbers.
        reason = re.sub(r"\w*[A-Z0-9]\w*(\([^)]*\)\)?)?", "", message.split(", and ")[1].split(". The order")[0])
        if seen.get(reason, 0.0) > FAR or refusal(tv, [*resized, *reversed(pair)]):
            continue
        seen.setdefault(reason, 0.0)
        theirs = by_torchvision(tv.Compose([*resized, *pair]))
        reordered = by_torchvision(tv.Compose([*resized, *reversed(pair)]))
        if theirs is not None and reordered is not None:
            seen[reason] = max(seen[reason], distance(theirs, reordered))
    assert len(seen) > 10
    assert min(seen.values()) > FAR, seen
