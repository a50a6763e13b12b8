"""Small packed sets of other pixels than RGB, one of each mode, and what loaders give of them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from images import encode, photo
from loaders import load
from PIL import Image

import gpuload
from gpuload import Augment, Normalize

COUNT, WIDTH, HEIGHT = 9, 24, 18


@dataclass(frozen=True)
class Case:
    """give: what is packed, by number. pixels: what it is, (height, width, channels). settings: of the packer."""

    give: Callable[[int], Any]
    pixels: Callable[[int], np.ndarray]
    settings: dict[str, Any]
    kind: str = "image"


def rgb(number: int) -> np.ndarray:
    return np.asarray(photo(number, WIDTH, HEIGHT))


def rgba(number: int) -> Image.Image:
    image = photo(number, WIDTH, HEIGHT)
    image.putalpha(photo(number + 50, WIDTH, HEIGHT).convert("L"))
    return image


def sixteen(number: int) -> np.ndarray:
    smooth = np.asarray(photo(number, WIDTH, HEIGHT).convert("L")).astype(np.uint16)
    return np.asarray(smooth * 250 + number)


def bands(dtype: str) -> Callable[[int], np.ndarray]:
    def make(number: int) -> np.ndarray:
        random = np.random.default_rng(number)
        channels = [Image.fromarray(random.random((4, 5)).astype(np.float32)).resize((WIDTH, HEIGHT)) for _ in range(5)]
        values = np.stack([np.asarray(channel) for channel in channels], axis=2)
        return np.asarray((values * (65_535 if dtype == "uint16" else 300)).astype(dtype))

    return make


def gray(number: int) -> Image.Image:
    return photo(number, WIDTH, HEIGHT).convert("L")


def as_pixels(make: Callable[[int], Any]) -> Callable[[int], np.ndarray]:
    return lambda number: np.asarray(make(number)).reshape(HEIGHT, WIDTH, -1)


CASES = {
    "RGB": Case(rgb, rgb, {"encode": "raw"}, "raw"),
    "L": Case(lambda n: encode(gray(n), ("PNG", "TIFF")[n % 2]), as_pixels(gray), {"mode": "L", "keep": "tiff"}),
    "RGBA": Case(
        lambda n: encode(rgba(n), "PNG") if n % 2 else encode(rgba(n), "WEBP", lossless=True, exact=True),
        as_pixels(rgba),
        {"mode": "RGBA", "keep": "webp"},
    ),
    "I;16": Case(
        lambda n: encode(Image.fromarray(sixteen(n)), ("PNG", "TIFF")[n % 2]),
        as_pixels(sixteen),
        {"mode": "I;16", "keep": "tiff"},
    ),
    "uint16x5": Case(bands("uint16"), bands("uint16"), {"mode": "uint16x5", "encode": "raw"}, "raw"),
    "float32x5": Case(bands("float32"), bands("float32"), {"mode": "float32x5", "encode": "raw"}, "raw"),
}


def pack_sets(root: Path) -> dict[str, Path]:
    """A set of each mode."""
    for name, case in CASES.items():
        samples = [{"image": case.give(n), "label": n % 2, "name": f"{n}."} for n in range(COUNT)]
        gpuload.pack(samples, root / name, workers=1, maxcount=4, shuffle=False, progress=False, **case.settings)
    return {name: root / name / "train" for name in CASES}


def pixels_of(name: str) -> np.ndarray:
    """All that was packed, (N, C, height, width)."""
    return np.stack([CASES[name].pixels(number) for number in range(COUNT)]).transpose(0, 3, 1, 2)


def constants(name: str) -> dict[str, Any]:
    """Values of 0..1, or floats as they are."""
    channels = CASES[name].pixels(0).shape[2]
    return {"normalize": Normalize((0.0,) * channels, (1.0,) * channels)}


def peak(name: str) -> float:
    return {"uint8": 255, "uint16": 65_535, "float32": 1}[CASES[name].pixels(0).dtype.name]


def images_of(folder: Any, augment: Augment, decoder: str, **options: Any) -> np.ndarray:
    """(N, C, height, width), float32, by the number of the sample."""
    options = {"fields": ("image", "index"), "shuffle": False, "drop_last": False, **options}
    rows = {}
    with load(folder, 4, augment=augment, decoder=decoder, **options) as loader:
        for images, index, *_ in loader:
            rows.update(zip(index.tolist(), images.float().numpy(), strict=True))
    return np.stack([rows[number] for number in sorted(rows)])
