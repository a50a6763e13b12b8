"""Recipes of colour that training uses: gpuload's transforms, and the same in torchvision, Albumentations and DALI."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from timing.work import MEAN, STD, Batches, Work

_JITTER = (0.4, 0.4, 0.4, 0.1)
_SIMCLR = (0.8, 0.8, 0.8, 0.2)
_DINO = (0.4, 0.4, 0.2, 0.1)

WHAT = {
    "jitter": "ColorJitter(0.4, 0.4, 0.4, 0.1)",
    "rand": "RandAugment(2, 9)",
    "trivial": "TrivialAugmentWide()",
    "simclr": "SimCLR: jitter 0.8 (p 0.8), gray 0.2, blur 23 (p 0.5)",
    "aug3": "3-Augment: gray, solarize or blur, then jitter 0.3",
    "dino": "DINO's second view: jitter 0.4 (p 0.8), gray 0.2, blur 0.1, solarize 0.2",
    "augmix": "AugMix()",
}


def gpuloads(name: str) -> list[Any]:
    """gpuload's transforms."""
    from gpuload import transforms as t

    blur = t.GaussianBlur(23, (0.1, 2.0))
    return {
        "jitter": lambda: [t.ColorJitter(*_JITTER)],
        "rand": lambda: [t.RandAugment(2, 9)],
        "trivial": lambda: [t.TrivialAugmentWide()],
        "simclr": lambda: [
            t.ColorJitter(*_SIMCLR, p=0.8),
            t.RandomGrayscale(0.2),
            t.RandomApply([blur]),
        ],
        "aug3": lambda: [
            t.RandomChoice([t.RandomGrayscale(1), t.RandomSolarize(128, 1), blur]),
            t.ColorJitter(0.3, 0.3, 0.3),
        ],
        "dino": lambda: [
            t.ColorJitter(*_DINO, p=0.8),
            t.RandomGrayscale(0.2),
            t.RandomApply([blur], 0.1),
            t.RandomSolarize(128, 0.2),
        ],
        "augmix": lambda: [t.AugMix()],
    }[name]()


def torchvisions(v2: Any, name: str) -> list[Any]:
    """torchvision's, for images of Pillow's."""
    blur = v2.GaussianBlur(23, (0.1, 2.0))
    return {
        "jitter": lambda: [v2.ColorJitter(*_JITTER)],
        "rand": lambda: [v2.RandAugment(2, 9)],
        "trivial": lambda: [v2.TrivialAugmentWide()],
        "simclr": lambda: [
            v2.RandomApply([v2.ColorJitter(*_SIMCLR)], 0.8),
            v2.RandomGrayscale(0.2),
            v2.RandomApply([blur]),
        ],
        "aug3": lambda: [
            v2.RandomChoice([v2.RandomGrayscale(1), v2.RandomSolarize(128, 1), blur]),
            v2.ColorJitter(0.3, 0.3, 0.3),
        ],
        "dino": lambda: [
            v2.RandomApply([v2.ColorJitter(*_DINO)], 0.8),
            v2.RandomGrayscale(0.2),
            v2.RandomApply([blur], 0.1),
            v2.RandomSolarize(128, 0.2),
        ],
        "augmix": lambda: [v2.AugMix()],
    }[name]()


def albumentations(name: str) -> list[Any]:
    """Albumentations' where it has the recipe, on OpenCV."""
    a = import_module("albumentations")

    def jitter(*strengths: float, p: float = 1.0) -> Any:
        return a.ColorJitter(
            *((max(0, 1 - s), 1 + s) for s in strengths[:3]),
            (-strengths[3], strengths[3]),
            p=p,
        )

    def blur(p: float) -> Any:
        return a.GaussianBlur((23, 23), (0.1, 2.0), p=p)

    solarize = a.Solarize((0.5, 0.5), p=0.2)
    return {
        "jitter": lambda: [jitter(*_JITTER)],
        "simclr": lambda: [jitter(*_SIMCLR, p=0.8), a.ToGray(p=0.2), blur(0.5)],
        "aug3": lambda: [
            a.OneOf([a.ToGray(p=1), a.Solarize((0.5, 0.5), p=1), blur(1)], p=1),
            jitter(0.3, 0.3, 0.3, 0.0),
        ],
        "dino": lambda: [jitter(*_DINO, p=0.8), a.ToGray(p=0.2), blur(0.1), solarize],
    }[name]()


IN_ALBUMENTATIONS = ("jitter", "simclr", "aug3", "dino")


def dalis(name: str) -> Callable[[Any], Any]:
    """DALI's operators, on images, in a pipeline with conditionals."""
    from nvidia.dali import fn, types
    from nvidia.dali.auto_aug import rand_augment, trivial_augment

    def chosen(p: float) -> Any:
        return fn.random.coin_flip(probability=p, dtype=types.BOOL)

    def drawn(low: float, high: float) -> Any:
        return fn.random.uniform(range=[low, high]) if low < high else low

    def twisted(
        images: Any, brightness: float, contrast: float, saturation: float, hue: float
    ) -> Any:
        return fn.color_twist(
            images,
            brightness=drawn(1 - brightness, 1 + brightness),
            contrast=drawn(1 - contrast, 1 + contrast),
            saturation=drawn(1 - saturation, 1 + saturation),
            hue=drawn(-360 * hue, 360 * hue),
        )

    def gray(images: Any) -> Any:
        return fn.saturation(images, saturation=0.0)

    def blurred(images: Any) -> Any:
        return fn.gaussian_blur(images, window_size=23, sigma=drawn(0.1, 2.0))

    def solarized(images: Any) -> Any:
        levels = types.Constant(255, dtype=types.UINT8)
        return images ^ (fn.cast(images >= 128, dtype=types.UINT8) * levels)

    def simclr(images: Any) -> Any:
        if chosen(0.8):
            images = twisted(images, *_SIMCLR)
        if chosen(0.2):
            images = gray(images)
        if chosen(0.5):
            images = blurred(images)
        return images

    def aug3(images: Any) -> Any:
        if chosen(1 / 3):
            images = gray(images)
        elif chosen(0.5):
            images = solarized(images)
        else:
            images = blurred(images)
        return twisted(images, 0.3, 0.3, 0.3, 0.0)

    def dino(images: Any) -> Any:
        if chosen(0.8):
            images = twisted(images, *_DINO)
        if chosen(0.2):
            images = gray(images)
        if chosen(0.1):
            images = blurred(images)
        if chosen(0.2):
            images = solarized(images)
        return images

    return {
        "jitter": lambda images: twisted(images, *_JITTER),
        "rand": lambda images: rand_augment.rand_augment(images, n=2, m=9),
        "trivial": trivial_augment.trivial_augment_wide,
        "simclr": simclr,
        "aug3": aug3,
        "dino": dino,
    }[name]


IN_DALI = ("jitter", "rand", "trivial", "simclr", "aug3", "dino")


@contextmanager
def open_albumentations(work: Work, name: str = "") -> Iterator[Batches]:
    """A DataLoader with simplejpeg, OpenCV and Albumentations."""
    import numpy as np
    import pillow_loader
    import simplejpeg
    import torch

    a = import_module("albumentations")
    cv2 = import_module("cv2")
    cv2.setNumThreads(0)  # the workers already use all cores
    crop = a.RandomResizedCrop((work.size, work.size))
    transform = a.Compose(
        [
            crop,
            a.HorizontalFlip(),
            *(albumentations(name) if name else []),
            a.Normalize(MEAN, STD),
        ]
    )

    class Images(pillow_loader.PackedImages):
        def __getitem__(self, number: int) -> tuple[Any, int]:
            pixels = transform(image=simplejpeg.decode_jpeg(self.read(number)))["image"]
            planes = np.ascontiguousarray(pixels.transpose(2, 0, 1))
            return torch.from_numpy(planes), int(self.labels[number])

    images = Images(work.folder, lambda image: image)
    yield torch.utils.data.DataLoader(
        images,
        work.batch_size,
        shuffle=True,
        num_workers=work.threads,
        drop_last=True,
        persistent_workers=True,
    )
