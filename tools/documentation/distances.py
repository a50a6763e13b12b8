"""How far each operation of `gpuload.transforms` is from torchvision's, on tensors and on Pillow's images.

python tools/documentation/distances.py FOLDER   # of JPEGs; prints the table of docs/lab/augment.md
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as tv

from gpuload.decode.steps import transform
from gpuload.transforms import geometry
from gpuload.transforms.ops import Op
from gpuload.transforms.steps import Steps, one_step

SIDE, PHOTOS = 224, 40


def _step(op: Op, *numbers: float) -> Steps:
    return one_step(op, 1, *numbers)


def _turned(op: Op) -> Steps:
    steps = geometry.rotate(np.array([17.0]), SIDE, SIDE, None)
    steps.ops[:] = op
    return steps


CASES: dict[str, tuple[Steps, Callable[[Any], Any]]] = {
    "brightness 1.4": (_step(Op.BRIGHTNESS, 1.4), lambda image: tv.adjust_brightness(image, 1.4)),
    "contrast 0.6": (_step(Op.CONTRAST, 0.6), lambda image: tv.adjust_contrast(image, 0.6)),
    "saturation 1.4": (_step(Op.SATURATION, 1.4), lambda image: tv.adjust_saturation(image, 1.4)),
    "hue 0.1": (_step(Op.HUE, 0.1), lambda image: tv.adjust_hue(image, 0.1)),
    "grayscale": (_step(Op.GRAYSCALE), lambda image: tv.rgb_to_grayscale(image, 3)),
    "solarize 128": (_step(Op.SOLARIZE, 128), lambda image: tv.solarize(image, 128)),
    "posterize 4": (_step(Op.POSTERIZE, 4), lambda image: tv.posterize(image, 4)),
    "autocontrast": (_step(Op.AUTOCONTRAST), tv.autocontrast),
    "equalize": (_step(Op.EQUALIZE), tv.equalize),
    "invert": (_step(Op.INVERT), tv.invert),
    "sharpness 1.9": (_step(Op.SHARPNESS, 1.9), lambda image: tv.adjust_sharpness(image, 1.9)),
    "blur 23, sigma 1.5": (
        _step(Op.GAUSSIAN_BLUR, 1.5, 23, 23),
        lambda image: tv.gaussian_blur(image, [23, 23], [1.5, 1.5]),
    ),
    "rotation of 17°, nearest": (_turned(Op.AFFINE), lambda image: tv.rotate(image, 17.0)),
    "rotation of 17°, bilinear": (
        _turned(Op.AFFINE_BILINEAR),
        lambda image: tv.rotate(image, 17.0, InterpolationMode.BILINEAR),
    ),
}


def photos(folder: Path) -> list[Image.Image]:
    """The first ones by name, their centres."""
    found = []
    for path in sorted(folder.rglob("*.jpg"))[:PHOTOS]:
        with Image.open(path) as image:
            found.append(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC))
    return found


def distance(found: torch.Tensor, theirs: torch.Tensor) -> str:
    """Share of the values that differ, and how far they do at most, in levels."""
    gap = (found.int() - theirs.int()).abs()
    share = float((gap > 0).float().mean())
    return "equal" if not share else f"{100 * share:.2g} % by up to {int(gap.max())}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints how far gpuload's operations are from torchvision's.")
    parser.add_argument("folder", type=Path, help="of JPEGs, 40 of which are taken")
    images = photos(parser.parse_args().folder)
    tensors = torch.stack([tv.pil_to_tensor(image) for image in images])
    print("| operation | torchvision on tensors | torchvision on Pillow's images |\n|---|---|---|")
    for name, (steps, theirs) in CASES.items():
        every = Steps(steps.ops.repeat(len(images), 0), steps.args.repeat(len(images), 0))
        found = transform(tensors, every)
        on_tensors = torch.stack([theirs(image) for image in tensors])
        on_pillow = torch.stack([tv.pil_to_tensor(theirs(image)) for image in images])
        print(f"| {name} | {distance(found, on_tensors)} | {distance(found, on_pillow)} |")


if __name__ == "__main__":
    main()
