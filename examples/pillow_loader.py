"""The usual way, for comparison: torch's DataLoader with Pillow, on the same packed images.

Does what `torchvision.datasets.ImageFolder` with the usual transforms does, without torchvision, which has no build for
every torch: open with Pillow, RandomResizedCrop and a flip for training, Resize and CenterCrop for evaluation,
normalise. The images come from the packed shards, so that all loaders read the same bytes from the same disk.
"""

import io
import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import gpuload

# ImageNet's, for pixels in 0..1: those of torchvision's pretrained weights, and the defaults of `gpuload.Augment`.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)

Transform = Callable[[Image.Image], Image.Image]


class PackedImages(Dataset[tuple[torch.Tensor, int]]):
    """The samples of a packed folder by index: normalised float32 (3, height, width), and the label."""

    def __init__(self, folder: str | Path, transform: Transform) -> None:
        packed = gpuload.Dataset(folder)
        rows = [packed.rows(shard) for shard in range(len(packed.shard_paths))]
        self.classes = packed.classes
        self._shard_paths = packed.shard_paths
        self._shards = np.repeat(np.arange(len(rows)), packed.shard_sizes)
        self._offsets = np.concatenate(
            [part.column("image_offset").to_numpy() for part in rows]
        )
        self._sizes = np.concatenate(
            [part.column("image_bytes").to_numpy() for part in rows]
        )
        self.labels = (
            packed.labels
            if "label" in packed.fields
            else np.zeros(len(self._offsets), np.int64)
        )
        self._transform = transform
        self._files: dict[int, int] = {}
        self._mean = torch.tensor(MEAN).view(3, 1, 1)
        self._std = torch.tensor(STD).view(3, 1, 1)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        pixels = self.pixels(number).to(torch.float32)
        return pixels.div_(255).sub_(self._mean).div_(self._std), int(
            self.labels[number]
        )

    def pixels(self, number: int) -> torch.Tensor:
        """uint8 (3, height, width), before normalisation."""
        image = Image.open(io.BytesIO(self.read(number))).convert("RGB")
        return (
            torch.from_numpy(np.array(self._transform(image)))
            .permute(2, 0, 1)
            .contiguous()
        )

    def read(self, number: int) -> bytes:
        """The encoded image. Each process opens a shard when it first reads from it."""
        shard = int(self._shards[number])
        if shard not in self._files:
            self._files[shard] = os.open(self._shard_paths[shard], os.O_RDONLY)
        return os.pread(
            self._files[shard], int(self._sizes[number]), int(self._offsets[number])
        )

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_files": {}}


def random_crop(
    image: Image.Image,
    size: int,
    scale: tuple[float, float] = (0.08, 1.0),
    flip: float = 0.5,
) -> Image.Image:
    """torchvision's RandomResizedCrop(size, scale) and RandomHorizontalFlip(flip)."""
    left, top, width, height = random_window(image.width, image.height, scale)
    box = (left, top, left + width, top + height)
    image = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return (
        image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if torch.rand(1).item() < flip
        else image
    )


def random_window(
    width: int, height: int, scale: tuple[float, float]
) -> tuple[int, int, int, int]:
    """(left, top, width, height): ten attempts at an area and a ratio, then the largest window in the center."""
    low = 3 / 4
    high = 4 / 3
    for _ in range(10):
        area = width * height * torch.empty(1).uniform_(*scale).item()
        ratio = math.exp(torch.empty(1).uniform_(math.log(low), math.log(high)).item())
        w = round(math.sqrt(area * ratio))
        h = round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left = int(torch.randint(0, width - w + 1, (1,)).item())
            top = int(torch.randint(0, height - h + 1, (1,)).item())
            return left, top, w, h
    w = min(width, round(height * high))
    h = min(height, round(width / low))
    return (width - w) // 2, (height - h) // 2, w, h


def center_crop(image: Image.Image, size: int) -> Image.Image:
    """torchvision's Resize(size * 256 / 224), by the shorter side, and CenterCrop(size)."""
    shorter = round(size * 256 / 224)
    side = min(image.size)
    width, height = (int(shorter * length / side) for length in image.size)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left = round((width - size) / 2)
    top = round((height - size) / 2)
    return image.crop((left, top, left + size, top + size))


def train_loader(
    folder: str | Path,
    batch_size: int,
    *,
    size: int,
    scale: tuple[float, float] = (0.08, 1.0),
    flip: float = 0.5,
    seed: int = 0,
    workers: int = 2,
    pin_memory: bool = False,
) -> DataLoader[tuple[torch.Tensor, int]]:
    """A loader for training: shuffled, randomly cropped and flipped, without a last, smaller batch."""
    return DataLoader(
        PackedImages(folder, partial(random_crop, size=size, scale=scale, flip=flip)),
        batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=pin_memory,
        generator=torch.Generator().manual_seed(seed),
    )


def val_loader(
    folder: str | Path, batch_size: int, *, size: int, workers: int = 2
) -> DataLoader[tuple[torch.Tensor, int]]:
    """A loader for evaluation: each image once, in stored order, center-cropped."""
    return DataLoader(
        PackedImages(folder, partial(center_crop, size=size)),
        batch_size,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
