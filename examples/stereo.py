"""Stereo matching: two views of a scene and the disparity of each pixel, as RAFT-Stereo and its like are trained.

    python examples/stereo.py                # generated pairs, in seconds
    python examples/stereo.py scenes         # your own: left/, right/, disparity/ and disparity_right/, KITTI's PNGs

Both views and the disparities get the same crop. In a flipped pair the views change places, and so do the disparities.
A set without those of the right view, such as KITTI's, is flipped vertically alone.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from recipe_command import run_recipe
from torch import nn

import gpuload

CROP = (48, 80)
FARTHEST = 16  # pixels, of the cost volume
FOLDERS = ("left", "right", "disparity", "disparity_right")


def make_pairs(folder: Path, count: int = 32) -> None:
    """A textured plane before a farther one, seen by two cameras; disparities as KITTI stores them, 0 where unknown."""
    height, width = 64, 128
    rng = np.random.default_rng(0)
    for name in FOLDERS:
        (folder / name).mkdir(parents=True)
    for number in range(count):
        far, near = rng.integers(1, 5), rng.integers(7, 13)
        textures = rng.integers(
            0, 256, (2, height, width + 2 * FARTHEST, 3), dtype=np.uint8
        )
        top, start = rng.integers(8, 24), rng.integers(30, 60)
        for view, shift in (("left", 1), ("right", 0)):
            # What is at x in the right view is at x + disparity in the left one.
            pixels = textures[0][:, FARTHEST - shift * far :][:, :width].copy()
            offsets = np.full((height, width), far)
            begin = start + shift * near
            box = np.s_[top : top + 32, begin : begin + 40]
            pixels[box] = textures[1][top : top + 32, :40]
            offsets[box] = near
            columns = np.arange(width) + (-offsets if shift else offsets)
            offsets[(columns < 0) | (columns >= width)] = 0
            map_name = "disparity" if shift else "disparity_right"
            name = f"{number:04d}.png"
            Image.fromarray(pixels).save(folder / view / name)
            Image.fromarray((256 * offsets).astype(np.uint16)).save(
                folder / map_name / name
            )


def pack(folder: Path, shards: Path) -> None:
    """Packs the four folders, whose files are called alike. The left view is the image of the sample."""
    folders = {name: folder / name for name in FOLDERS if (folder / name).exists()}
    gpuload.pack(folders, shards, resume=True)


def open_loader(
    shards: Path, batch_size: int = 8, crop: tuple[int, int] = CROP, jitter: float = 0.4
) -> gpuload.DaliIterator:
    """Batches of left, right and disparity: float32 (N, 3, h, w) twice, and (N, 1, h, w) in pixels, 0 where unknown."""
    maps = [gpuload.Disparity("disparity", unit=1 / 256)]
    has_both = "disparity_right" in gpuload.Dataset(shards / "train").fields
    if has_both:
        maps.append(
            gpuload.Disparity(
                "disparity_right", unit=1 / 256, like="disparity", swapped=True
            )
        )
    augment = gpuload.Augment(
        crop,
        crop=gpuload.RandomCrop(),  # unscaled, so that disparities are what was measured
        flip=0.5 if has_both else 0.0,
        vertical_flip=0.1,
        transforms=[gpuload.transforms.ColorJitter(jitter, jitter, jitter)],
    )
    # colors="own" draws another jitter for the right view, as RAFT's asymmetric one.
    right = gpuload.Picture("right", swapped=has_both)
    return gpuload.DaliIterator(
        shards / "train",
        batch_size,
        augment=augment,
        fields=["left", right, *maps],
        device="cuda" if torch.cuda.is_available() else "cpu",
    )


class StereoNet(nn.Module):
    """Features of both views, their correlation at each disparity, and the mean of the likely ones."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
        )
        self.regularise = nn.Conv2d(FARTHEST, FARTHEST, 5, padding=2)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """(N, 1, h, w) in pixels."""
        first = F.normalize(self.features(left), dim=1)
        second = F.normalize(self.features(right), dim=1)
        width = left.shape[3]
        costs = [
            (first * F.pad(second, (offset, 0))[..., :width]).sum(1)
            for offset in range(FARTHEST)
        ]
        volume = torch.stack(costs, dim=1)
        likely = F.softmax(20 * volume + self.regularise(volume), dim=1)
        offsets = torch.arange(FARTHEST, device=left.device).view(1, -1, 1, 1)
        return (likely * offsets).sum(1, keepdim=True)


def train(shards: Path, epochs: int) -> list[float]:
    """The mean error in pixels of each epoch, where the disparity is known."""
    errors = []
    with open_loader(shards) as loader:
        net = StereoNet().to(loader.device)
        optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
        for epoch in range(epochs):
            total = 0.0
            for batch in loader:
                valid = batch.disparity > 0
                found = net(batch.left, batch.right)
                loss = F.l1_loss(found[valid], batch.disparity[valid])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
            errors.append(total / len(loader))
            print(f"epoch {epoch + 1} of {epochs}: off by {errors[-1]:.2f} pixels")
    return errors


def main(argv: list[str] | None = None) -> int:
    return run_recipe(argv, __doc__, make_pairs, pack, train, epochs=3)


if __name__ == "__main__":
    sys.exit(main())
