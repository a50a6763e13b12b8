"""Draws one augmented batch, as a training loop gets it, with the class under each image.

    python tools/contact_sheet.py shards/train sheet.png

Worth a look before a long training run: are the crops sensible, are the labels right?
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import gpuload
from gpuload.counted import counted

_COLUMNS, _GAP_PX, _FONT_PX = 8, 6, 13


def draw_sheet(images: np.ndarray, names: list[str]) -> Image.Image:
    """The picture, eight images in a row. images: uint8 (N, height, width, 3)."""
    count, height, width, _ = images.shape
    font = ImageFont.load_default(_FONT_PX)
    cell_width, cell_height = width + _GAP_PX, height + _FONT_PX + 2 * _GAP_PX
    sheet = Image.new("RGB", (_COLUMNS * cell_width + _GAP_PX, -(-count // _COLUMNS) * cell_height + _GAP_PX), "white")
    draw = ImageDraw.Draw(sheet)
    for number, (image, name) in enumerate(zip(images, names, strict=True)):
        left = _GAP_PX + number % _COLUMNS * cell_width
        top = _GAP_PX + number // _COLUMNS * cell_height
        sheet.paste(Image.fromarray(image), (left, top))
        short = name
        while font.getlength(short) > width and len(short) > 1:
            short = short[:-2] + "…"
        draw.text((left + width / 2, top + height + 2), short, fill="black", font=font, anchor="ma")
    return sheet


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a packed split, such as shards/train")
    parser.add_argument("picture", type=Path, help="PNG to write")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--size", type=int, default=112, help="side of the crops in pixels")
    parser.add_argument("--min-scale", type=float, default=0.08, help="smallest random crop, as a share of the area")
    parser.add_argument("--flip", type=float, default=0.5, help="probability of a horizontal flip")
    args = parser.parse_args(argv)
    try:
        augment = gpuload.Augment(args.size, scale=(args.min_scale, 1.0), flip=args.flip)
        with gpuload.DaliIterator(
            args.folder, args.images, augment=augment, device="cpu", drop_last=False, output="numpy"
        ) as loader:
            images, labels = next(iter(loader))
    except gpuload.GpuloadError as error:
        print(error, file=sys.stderr)
        return 2
    mean, std = (np.array(values).reshape(3, 1, 1) for values in (augment.mean, augment.std))
    pixels = np.rint(np.clip(images * std + mean, 0, 1) * 255).astype(np.uint8).transpose(0, 2, 3, 1)
    names = [loader.classes[label] if loader.classes else f"class {label}" for label in labels]
    args.picture.parent.mkdir(parents=True, exist_ok=True)
    draw_sheet(pixels, names).save(args.picture)
    print(f"{args.picture}: {counted(len(names), 'image')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
