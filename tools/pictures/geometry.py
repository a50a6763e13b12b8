"""Draws docs/images/geometry.png: one image through padding, rotations, affine maps and perspectives.

python tools/pictures/geometry.py photo.jpg docs/images/geometry.png
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import gpuload
from gpuload.transforms import RandomAffine, RandomPerspective, RandomRotation

_SIZE, _STORED, _GAP, _FONT = 132, 132, 10, 13
_COLUMNS = 5
_GRAY = 128


def _views() -> dict[str, gpuload.Augment]:
    def crop(**options: Any) -> gpuload.Augment:
        return gpuload.Augment(_SIZE, crop=gpuload.RandomCrop(44, **options), flip=0, dtype="uint8")

    def warp(*transforms: Any) -> gpuload.Augment:
        return gpuload.Augment(_SIZE, crop="none", flip=0, dtype="uint8", transforms=transforms)

    rotation = RandomRotation((20, 20), "bilinear", fill=_GRAY)
    shifted = RandomAffine(0, (0.2, 0.2), interpolation="bilinear", fill=_GRAY)
    perspective = RandomPerspective(0.5, 1.0, fill=_GRAY)
    return {
        "as it is stored": warp(),
        "padding, constant": crop(fill=_GRAY),
        "edge": crop(padding_mode="edge"),
        "reflect": crop(padding_mode="reflect"),
        "symmetric": crop(padding_mode="symmetric"),
        "rotation": warp(rotation),
        "translate, scale": warp(RandomAffine(0, (0.2, 0.2), (0.7, 0.8), interpolation="bilinear", fill=_GRAY)),
        "shear": warp(RandomAffine(0, shear=(25, 25), interpolation="bilinear", fill=_GRAY)),
        "perspective": warp(perspective),
        "three, one sampling": warp(rotation, shifted, perspective),
    }


def draw(photo: Path) -> Image.Image:
    """The picture."""
    with Image.open(photo) as opened:
        side = min(opened.size)
        left, top = (opened.width - side) // 2, (opened.height - side) // 2
        stored = opened.convert("RGB").resize((_STORED, _STORED), box=(left, top, left + side, top + side))
    font, views = ImageFont.load_default(_FONT), _views()
    cell_width, cell_height = _SIZE + _GAP, _SIZE + _FONT + 2 * _GAP
    rows = -(-len(views) // _COLUMNS)
    sheet = Image.new("RGB", (_COLUMNS * cell_width + _GAP, rows * cell_height + _GAP), "white")
    pen = ImageDraw.Draw(sheet)
    with tempfile.TemporaryDirectory() as folder:
        sample = {"image": np.asarray(stored), "name": "photo", "label": 0}
        gpuload.pack([sample], folder, workers=1, encode="raw")
        options: dict[str, Any] = {"fields": ("image",), "device": "cpu", "drop_last": False, "output": "numpy"}
        for number, (name, augment) in enumerate(views.items()):
            with gpuload.DaliIterator(Path(folder) / "train", 1, augment=augment, seed=6, **options) as loader:
                ((images,),) = loader
            x, y = _GAP + number % _COLUMNS * cell_width, _GAP + number // _COLUMNS * cell_height
            sheet.paste(Image.fromarray(np.ascontiguousarray(images[0].transpose(1, 2, 0))), (x, y))
            pen.text((x + _SIZE / 2, y + _SIZE + 3), name, fill="black", font=font, anchor="ma")
    return sheet


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photo", type=Path, help="an image")
    parser.add_argument("picture", type=Path, help="PNG to write")
    args = parser.parse_args(argv)
    args.picture.parent.mkdir(parents=True, exist_ok=True)
    draw(args.photo).save(args.picture, optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
