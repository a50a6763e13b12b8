"""Makes the pictures of docs/augmentations.md: what each augmentation makes of a drawing, by gpuload itself.

    python tools/documentation/pictures.py

The drawing is made here, by code. Each picture shows the drawing as four samples of one batch get it.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

import gpuload
from gpuload import batchwise
from gpuload import transforms as T

FOLDER = Path(__file__).parents[2] / "docs" / "images" / "augmentations"
SIDE = 120
COUNT = 4
GAP = 6


def drawing(width: int = 240, height: int = 180) -> Image.Image:
    """A house beside a tree below the sun, drawn at twice the size."""
    rng = np.random.default_rng(1)
    sky = np.linspace((90, 150, 220), (205, 225, 245), 2 * height).round()
    image = Image.fromarray(np.repeat(sky[:, None], 2 * width, 1).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    draw.ellipse((370, 30, 440, 100), (255, 215, 60))
    draw.polygon(
        [
            (0, 250),
            (130, 150),
            (260, 240),
            (380, 170),
            (480, 240),
            (480, 270),
            (0, 270),
        ],
        (110, 130, 150),
    )
    draw.rectangle((0, 240, 480, 360), (105, 165, 80))
    draw.rectangle((60, 160, 240, 310), (205, 90, 65))
    draw.polygon([(40, 165), (150, 75), (260, 165)], (120, 60, 50))
    draw.rectangle((130, 230, 170, 310), (85, 55, 40))
    for x in (80, 190):
        draw.rectangle((x, 190, x + 35, 225), (250, 245, 190), (70, 50, 40), 3)
    draw.rectangle((345, 220, 365, 320), (95, 70, 45))
    for x, y in zip(
        rng.integers(305, 380, 40), rng.integers(130, 220, 40), strict=True
    ):
        draw.ellipse(
            (x, y, x + 28, y + 28),
            tuple(int(level) for level in rng.integers((30, 95, 45), (70, 135, 85))),
        )
    for x, y in zip(
        rng.integers(0, 480, 160), rng.integers(300, 356, 160), strict=True
    ):
        draw.line((x, y, x + 2, y - 9), (70, 130, 55), 2)
    return image.resize((width, height), Image.Resampling.LANCZOS)


def whole(*transforms: Any) -> gpuload.Augment:
    """The whole drawing with these transforms."""
    return gpuload.Augment(SIDE, crop="none", dtype="uint8", transforms=transforms)


def augment(**settings: Any) -> gpuload.Augment:
    return gpuload.Augment(SIDE, dtype="uint8", **settings)


AUGMENTS: dict[str, gpuload.Augment] = {
    "crop-random": augment(flip=0),
    "crop-center": augment(crop="center"),
    "crop-none": augment(crop="none"),
    "crop-pad_or_crop": gpuload.Augment(
        (210, 210), crop=gpuload.PadOrCrop(128), dtype="uint8"
    ),
    "crop-cover": augment(crop="cover"),
    "RandomCrop": gpuload.Augment(
        (180, 240),
        crop=gpuload.RandomCrop(40, padding_mode="reflect"),
        flip=0,
        dtype="uint8",
    ),
    "crop-letterbox": augment(crop="letterbox"),
    "ScaleJitter": augment(crop=gpuload.ScaleJitter((0.5, 2.0), fill=128), flip=0),
    "ZoomOut": augment(crop=gpuload.ZoomOut((1.0, 3.0), p=0.75, fill=128), flip=0),
    "flip": augment(crop="none", flip=0.5),
    "vertical_flip": augment(crop="none", vertical_flip=0.5),
    "ColorJitter": whole(T.ColorJitter(0.4, 0.4, 0.4, 0.1)),
    "GaussianBlur": whole(T.GaussianBlur(9, (0.5, 3.0))),
    "RandomGrayscale": whole(T.RandomGrayscale(p=0.5)),
    "RandomSolarize": whole(T.RandomSolarize(128, p=0.5)),
    "RandomPosterize": whole(T.RandomPosterize(2, p=0.5)),
    "RandomEqualize": whole(T.RandomEqualize(p=0.5)),
    "RandomAutocontrast": whole(
        T.ColorJitter(contrast=(0.4, 0.4)), T.RandomAutocontrast(p=0.5)
    ),
    "RandomInvert": whole(T.RandomInvert(p=0.5)),
    "RandomAdjustSharpness": whole(T.RandomAdjustSharpness(4, p=0.5)),
    "RandomRotation": whole(T.RandomRotation(30, "bilinear", fill=128)),
    "RandomAffine": whole(
        T.RandomAffine(0, (0.2, 0.2), (0.7, 1.1), 15, "bilinear", fill=128)
    ),
    "RandomPerspective": whole(T.RandomPerspective(0.5, p=0.75, fill=128)),
    "RandomErasing": whole(T.RandomErasing(p=0.75)),
    "RandomApply": whole(
        T.RandomApply([T.GaussianBlur(9, 2.0), T.RandomGrayscale(p=1)], p=0.5)
    ),
    "RandomChoice": whole(
        T.RandomChoice(
            [
                T.RandomGrayscale(p=1),
                T.RandomSolarize(128, p=1),
                T.GaussianBlur(23, (2.0, 4.0)),
            ]
        )
    ),
    "RandomOrder": whole(
        T.RandomOrder([T.RandomPosterize(2, p=1), T.ColorJitter(brightness=(1.6, 1.6))])
    ),
    "RandAugment": whole(T.RandAugment()),
    "TrivialAugmentWide": whole(T.TrivialAugmentWide()),
    "AutoAugment": whole(T.AutoAugment()),
    "AugMix": whole(T.AugMix()),
    "TimmAutoAugment": whole(T.TimmAutoAugment("rand-m9-mstd0.5-inc1")),
    "recipe-simclr": augment(
        interpolation="bicubic",
        transforms=(
            T.RandomApply([T.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8),
            T.RandomGrayscale(0.2),
            T.RandomApply([T.GaussianBlur(13, (0.1, 2.0))], 0.5),
        ),
    ),
    "recipe-dino": augment(
        crop=gpuload.RandomResizedCrop((0.32, 1.0)),
        interpolation="bicubic",
        transforms=(
            T.RandomApply([T.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
            T.RandomGrayscale(0.2),
            T.RandomApply([T.GaussianBlur(9, (0.1, 2.0))], 0.1),
            T.RandomSolarize(128, 0.2),
        ),
    ),
    "recipe-deit": augment(
        interpolation="bicubic",
        transforms=(
            T.TimmAutoAugment("rand-m9-mstd0.5-inc1", (124, 116, 104)),
            T.RandomErasing(0.25, (0.02, 1 / 3), (0.3, 1 / 0.3), "random"),
        ),
    ),
    "recipe-segmentation": augment(crop=gpuload.ScaleJitter(shorter=(65, 260))),
    "recipe-detection": augment(
        crop=gpuload.ScaleJitter((0.1, 2.0), fill=(123, 117, 104))
    ),
}
BATCHWISE: dict[str, Callable[[batchwise.FieldBatch], None]] = {
    "MixUp": batchwise.MixUp(alpha=1.0),
    "CutMix": batchwise.CutMix(),
    "TimmMixup": batchwise.TimmMixup(0.8, 1.0, mode="elem"),
    "CenterHole": batchwise.CenterHole(48),
}
# With which a picture shows both what is changed and what is not.
SEEDS = {"vertical_flip": 2, "RandomAdjustSharpness": 1, "RandomChoice": 2}
# The batch of a batch transform holds different images, so that they can be seen through one another.
TINTS = ((1.0, 1.0, 1.0), (1.0, 0.6, 0.6), (0.6, 0.75, 1.1), (0.8, 1.1, 0.6))


def pack(folder: Path) -> None:
    """plain/train: the drawing four times. tinted/train: in four colours and mirrored in turn."""
    pixels = np.asarray(drawing())
    tinted = [np.clip(pixels * tint, 0, 255).astype(np.uint8) for tint in TINTS]
    tinted = [
        image[:, ::-1] if number % 2 else image for number, image in enumerate(tinted)
    ]
    settings: dict[str, Any] = {
        "encode": "raw",
        "shuffle": False,
        "workers": 1,
        "progress": False,
    }
    gpuload.pack(
        [{"image": pixels, "label": "a"}] * COUNT, folder / "plain", **settings
    )
    gpuload.pack(
        [
            {"image": image, "label": "abcd"[number]}
            for number, image in enumerate(tinted)
        ],
        folder / "tinted",
        **settings,
    )


def render(name: str, folder: Path) -> Image.Image:
    """The four images side by side."""
    batched = name in BATCHWISE
    with gpuload.DaliIterator(
        folder / ("tinted" if batched else "plain") / "train",
        COUNT,
        augment=whole() if batched else AUGMENTS[name],
        batch_transforms=[BATCHWISE[name]] if batched else (),
        fields=["image", "label"],
        device="cpu",
        decoder="native",
        shuffle=False,
        seed=SEEDS.get(name, 5),
        num_threads=1,
        output="numpy",
    ) as loader:
        (batch,) = loader
    images = [
        Image.fromarray(image.transpose(1, 2, 0)).resize((SIDE, SIDE))
        for image in batch[0]
    ]
    sheet = Image.new("RGB", (COUNT * SIDE + (COUNT - 1) * GAP, SIDE), "white")
    for number, image in enumerate(images):
        sheet.paste(image, (number * (SIDE + GAP), 0))
    return sheet


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=FOLDER,
        help="folder for the files (docs/images/augmentations)",
    )
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        pack(Path(folder))
        drawing().save(options.out / "drawing.webp", quality=85, method=6)
        for name in (*AUGMENTS, *BATCHWISE):
            render(name, Path(folder)).save(
                options.out / f"{name}.webp", quality=82, method=6
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
