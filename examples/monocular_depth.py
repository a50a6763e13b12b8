"""Depth of each pixel of one photo, as monodepth2, BTS or Depth Anything are trained: photos and 16-bit depths.

    python examples/monocular_depth.py       # generated scenes, in seconds
    python examples/monocular_depth.py nyu   # your own: nyu/SCENE/rgb_00001.jpg and sync_depth_00001.png, millimetres

Photo and depth get the same crop, resize and flip. Depths take the nearest pixel, so that none is made up between a
near and a far one; those that the sensor did not see (0) stay so, and do not count in the loss.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from recipe_command import run_recipe
from torch import nn

import gpuload

SIZE = (48, 64)
SCALED = gpuload.RandomResizedCrop(scale=(0.5, 1.0))


def make_scenes(folder: Path, count: int = 48) -> None:
    """Spheres before a wall, the darker the farther; a tenth of the depths is missing, as where a sensor sees none."""
    height, width = 60, 80
    y, x = np.mgrid[:height, :width]
    rng = np.random.default_rng(0)
    for number in range(count):
        depth = np.full((height, width), rng.uniform(6, 9))
        for _ in range(4):
            across, down, radius = rng.uniform((0, 0, 8), (width, height, 20))
            inside = np.hypot(x - across, y - down) < radius
            depth[inside] = np.minimum(depth[inside], rng.uniform(1, 5))
        shade = 255 * (1 - depth / 10)
        photo = shade[..., None] * rng.uniform(0.8, 1, 3) + rng.normal(
            0, 4, (height, width, 3)
        )
        millimetres = (1000 * depth).astype(np.uint16)
        millimetres[rng.random((height, width)) < 0.1] = 0
        scene = folder / f"room_{number % 4}"
        scene.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photo.clip(0, 255).astype(np.uint8)).save(
            scene / f"rgb_{number:05d}.jpg", quality=95
        )
        Image.fromarray(millimetres).save(scene / f"sync_depth_{number:05d}.png")


def pack(folder: Path, shards: Path) -> None:
    """Packs photos and depths, which lie in one folder for each scene."""
    pictures = {"image": "*/rgb_*.jpg", "depth": "*/sync_depth_*.png"}
    gpuload.pack(folder, shards, pictures=pictures, resume=True)


def open_loader(
    shards: Path,
    batch_size: int = 8,
    size: tuple[int, int] = SIZE,
    crop: gpuload.RandomCrop | gpuload.RandomResizedCrop = SCALED,
    jitter: float = 0.1,
) -> gpuload.DaliIterator:
    """Batches of photos, float32 (N, 3, h, w), and depths in metres, float32 (N, 1, h, w), 0 where there is none.

    Args:
        shards: The packed set.
        batch_size: Samples in a batch.
        size: Of the crops, (height, width).
        crop: How the part of the photo is drawn.
        jitter: Strength of the changes of colour, which photos get alone.
    """
    augment = gpuload.Augment(
        size,
        crop=crop,
        flip=0.5,
        transforms=[gpuload.transforms.ColorJitter(jitter, jitter, jitter)],
    )
    return gpuload.DaliIterator(
        shards / "train",
        batch_size,
        augment=augment,
        fields=["image", gpuload.Depth("depth", unit=0.001)],
        device="cuda" if torch.cuda.is_available() else "cpu",
    )


def make_net() -> nn.Module:
    """The logarithm of the depth, (N, 1, h, w)."""
    return nn.Sequential(
        nn.Conv2d(3, 24, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(24, 24, 5, padding=4, dilation=2),
        nn.ReLU(),
        nn.Conv2d(24, 1, 1),
    )


def silog(found: torch.Tensor, depth: torch.Tensor) -> torch.Tensor:
    """The scale-invariant loss of Eigen et al. (2014) on the depths that are known. found: logarithms."""
    valid = depth > 0
    difference = found[valid] - depth[valid].log()
    return (difference.square().mean() - 0.85 * difference.mean().square()).sqrt()


def train(shards: Path, epochs: int) -> list[float]:
    """The mean loss of each epoch."""
    losses = []
    with open_loader(shards) as loader:
        net = make_net().to(loader.device)
        optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
        for epoch in range(epochs):
            total = 0.0
            for images, depths in loader:
                loss = silog(net(images), depths)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
            losses.append(total / len(loader))
            print(f"epoch {epoch + 1} of {epochs}: loss {losses[-1]:.3f}")
    return losses


def main(argv: list[str] | None = None) -> int:
    return run_recipe(argv, __doc__, make_scenes, pack, train, epochs=4)


if __name__ == "__main__":
    sys.exit(main())
