"""The decoders under test, the reference, what tests need of a GPU, and sets of every kind of JPEG."""

import dataclasses
import tarfile
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hostile_images import exif
from images import encode, smooth_image
from PIL import Image
from tars import write_tar

import gpuload
from gpuload.packing.index import index_shards

Load = Callable[..., gpuload.DaliIterator]

REFERENCE = {"device": "cpu", "decoder": "dali"}
# By name: options of DaliIterator. On a GPU, hw_decoder_load shares the images between the engines and CUDA's cores.
DECODERS: dict[str, dict[str, Any]] = {
    "native": {"device": "cpu", "decoder": "native"},
    "cuda": {"device": "cuda", "decoder": gpuload.Dali(hardware=0.0)},
    "hardware": {"device": "cuda", "decoder": gpuload.Dali(hardware=1.0)},
    "default": {"device": "cuda", "decoder": "dali"},
    "copied": {"device": "cuda", "decoder": "native"},
    "both": {"device": "cuda", "decoder": gpuload.Both(cpu=0.5)},
}


def deterministic(name: str) -> dict[str, Any]:
    """The options of a decoder, with one unit for all images that DALI decodes: CUDA's cores, so not of "hardware"."""
    decoder = DECODERS[name]["decoder"]
    one = decoder if isinstance(decoder, str) else dataclasses.replace(decoder, deterministic=True)
    return {**DECODERS[name], "decoder": one}


def params(*names: str) -> list[Any]:
    return [name if name == "native" else pytest.param(name, marks=pytest.mark.gpu) for name in names]


def synchronize() -> None:
    """Waits for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def delay(device: str) -> None:
    """Keeps the current stream of a GPU busy for some milliseconds, so that what follows comes late."""
    if device == "cuda":
        torch.cuda._sleep(10_000_000)  # clock cycles; torch's own tests of streams do the same


_SIZES = [(90, 70), (64, 64), (121, 203), (333, 250)]

# Options of Pillow's writer; "mode" and "sizes" are ours.
KINDS: dict[str, dict[str, Any]] = {
    "420": {"subsampling": 2},
    "422": {"subsampling": 1},
    "444": {"subsampling": 0},
    "gray": {"mode": "L"},
    "progressive": {"progressive": True},
    "cmyk": {"mode": "CMYK"},
    "restart": {"restart_marker_rows": 1, "subsampling": 2},
    "exif": {"exif": exif(6)},
    "tiny": {"sizes": [(1, 1), (8, 8), (17, 3), (16, 16)]},
    "12-megapixel": {"sizes": [(4000, 3000)]},
}


def picture(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Like a photo, with edges between colours, at which decoders that upsample chroma otherwise differ most."""
    image = smooth_image(rng, width, height)
    for _ in range(4):
        left, top = int(rng.integers(width)), int(rng.integers(height))
        colour = tuple(rng.integers(0, 256, 3).tolist())
        image.paste(colour, (left, top, left + max(1, width // 5), top + max(1, height // 5)))
    return image


def every_kind() -> dict[str, bytes]:
    """By key, "<kind>-<number>"."""
    rng = np.random.default_rng(0)
    found = {}
    for kind, options in KINDS.items():
        written = {name: value for name, value in options.items() if name not in ("mode", "sizes")}
        for number, size in enumerate(options.get("sizes", _SIZES)):
            image = picture(rng, *size).convert(options.get("mode", "RGB"))
            found[f"{kind}-{number}"] = encode(image, quality=90, **written)
    return found


def write_set(folder: Path, images: dict[str, bytes], shards: int = 1) -> Path:
    """Shards of images as they are, each with a label, its number modulo 5, and their index.

    The packer would make plain JPEGs of what is not: CMYK or turned by EXIF. In shards of others they lie as they are.
    """
    samples = [
        [(f"{key}.jpg", image), (f"{key}.cls", str(number % 5).encode())]
        for number, (key, image) in enumerate(images.items())
    ]
    for shard in range(shards):
        write_tar(folder / f"shard-{shard:06d}.tar", chain(*samples[shard::shards]), tarfile.USTAR_FORMAT)
    index_shards([str(folder / "*.tar")])
    return folder


def write_pairs(folder: Path, count: int) -> Path:
    """Samples of an image, the same once more as `right`, and one to three times in a list."""
    rng = np.random.default_rng(2)
    samples = []
    for number in range(count):
        image = encode(picture(rng, *rng.integers(64, 200, 2).tolist()), quality=90)
        frames = [image] * (1 + number % 3)
        samples.append({"image": image, "right": image, "frames": frames, "label": number})
    gpuload.pack(samples, folder, workers=1, progress=False)
    return folder / "train"
