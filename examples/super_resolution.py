"""Super-resolution by four, as ESRGAN and its like are trained: low and high resolution, cropped alike.

    python examples/super_resolution.py          # crops of two photos that come with scikit-learn, in seconds
    python examples/super_resolution.py DIV2K    # your own: DIV2K_train_HR and DIV2K_train_LR_bicubic/X4

The crop is drawn for the small image; that of the large one begins at four times its first pixel, exactly.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from recipe_command import run_recipe
from torch import nn

import gpuload

FACTOR = 4
PATTERNS = {
    "low": "DIV2K_{split}_LR_bicubic/X4/*x4.png",
    "high": "DIV2K_{split}_HR/*.png",
}


def make_pairs(folder: Path, side: int = 128) -> None:
    """Tiles of two photos as DIV2K has its images: large ones, and the same reduced by Pillow's bicubic filter."""
    from sklearn.datasets import load_sample_images

    high = folder / "DIV2K_train_HR"
    low = folder / "DIV2K_train_LR_bicubic" / "X4"
    high.mkdir(parents=True)
    low.mkdir(parents=True)
    number = 0
    for pixels in load_sample_images().images:
        photo = Image.fromarray(pixels)
        for top in range(0, photo.height - side + 1, side):
            for left in range(0, photo.width - side + 1, side):
                number += 1
                tile = photo.crop((left, top, left + side, top + side))
                tile.save(high / f"{number:04d}.png")
                small = tile.resize((side // FACTOR,) * 2, Image.Resampling.BICUBIC)
                small.save(low / f"{number:04d}x4.png")


def pack(folder: Path, shards: Path) -> None:
    """Packs pairs as they lie on disk, with the splits train and valid where both are there."""
    gpuload.pack(folder, shards, pictures=PATTERNS, resume=True)


def open_loader(
    shards: Path, batch_size: int = 8, crop: int = 24
) -> gpuload.DaliIterator:
    """Batches of low and high resolution in 0..1: float32 (N, 3, crop, crop) and four times that size."""
    augment = gpuload.Augment(
        crop,
        crop=gpuload.RandomCrop(),
        flip=0.5,
        vertical_flip=0.5,
        normalize=None,
    )
    return gpuload.DaliIterator(
        shards / "train",
        batch_size,
        augment=augment,
        fields=["low", gpuload.Picture("high", scale=FACTOR)],
        device="cuda" if torch.cuda.is_available() else "cpu",
    )


class Enlarger(nn.Module):
    """What is added to the image that bicubic interpolation gives."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 3 * FACTOR**2, 3, padding=1),
            nn.PixelShuffle(FACTOR),
        )

    def forward(self, low: torch.Tensor) -> torch.Tensor:
        smooth = F.interpolate(low, scale_factor=FACTOR, mode="bicubic")
        return smooth + self.body(low)


def train(shards: Path, epochs: int) -> list[float]:
    """The mean absolute error of each epoch, in levels of 255."""
    errors = []
    with open_loader(shards) as loader:
        net = Enlarger().to(loader.device)
        optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
        for epoch in range(epochs):
            total = 0.0
            for low, high in loader:
                loss = F.l1_loss(net(low), high)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += 255 * loss.item()
            errors.append(total / len(loader))
            print(f"epoch {epoch + 1} of {epochs}: off by {errors[-1]:.1f} of 255")
    return errors


def main(argv: list[str] | None = None) -> int:
    return run_recipe(argv, __doc__, make_pairs, pack, train, epochs=4)


if __name__ == "__main__":
    sys.exit(main())
