"""torch's DataLoader: with Pillow, as is most common; with simplejpeg and OpenCV; and over an array of raw pixels."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from timing.crops import (
    OpenCVCrop,
    TorchvisionCrop,
    decode_by_imagecodecs,
    decode_rgb,
)
from timing.stored import stored_arrays
from timing.work import Batches, Work


@contextmanager
def open_pillow(work: Work, device: str = "cpu") -> Iterator[Batches]:
    """Persistent workers, which collate whole batches; pinned memory for a GPU."""
    import pillow_loader

    if work.whole:
        images = pillow_loader.PackedImages(work.folder, partial(_resized, work.size))
        yield from _load(
            images, work, device, _collate_half if work.dtype == "float16" else None
        )
        return
    loader = pillow_loader.train_loader(
        work.folder,
        work.batch_size,
        size=work.size,
        workers=work.threads,
        pin_memory=device == "cuda",
    )
    if work.dtype == "float16":
        loader.collate_fn = _collate_half
    yield loader if device == "cpu" else Moved(loader, device)
    del loader


@contextmanager
def open_opencv(
    work: Work, device: str = "cpu", decoder: str = "simplejpeg"
) -> Iterator[Batches]:
    """The same dataset and loader, with OpenCV's resize.

    Args:
        work: What is asked for.
        device: Where the batches end.
        decoder: "simplejpeg", which is libjpeg-turbo, and OpenCV for PNGs; or "imagecodecs" for both.
    """
    import cv2
    import pillow_loader

    crop = OpenCVCrop(work)
    decode = decode_rgb if decoder == "simplejpeg" else decode_by_imagecodecs

    class Images(pillow_loader.PackedImages):
        def __getitem__(self, number: int) -> tuple[Any, int]:
            return crop(decode(self.read(number))), int(self.labels[number])

    cv2.setNumThreads(0)  # the workers already use all cores
    yield from _load(Images(work.folder, None), work, device)


def prepare_array(work: Work, folder: Path) -> None:
    """One .npy of all pixels, and one of all labels."""
    labels = [label for _, label in stored_arrays(work.folder)]
    first, _ = next(stored_arrays(work.folder))
    images = np.lib.format.open_memmap(
        folder / "images.npy", "w+", np.uint8, (len(labels), *first.shape)
    )
    for number, (image, _) in enumerate(stored_arrays(work.folder)):
        images[number] = image  # raises ValueError unless all have the same size
    images.flush()
    np.save(folder / "labels.npy", np.array(labels))


@contextmanager
def open_array(work: Work, device: str = "cpu") -> Iterator[Batches]:
    """A memory map of the pixels, with torchvision's transforms on uint8 tensors."""
    import torch

    images = np.load(work.cache / "torch-raw" / "images.npy", mmap_mode="r")
    labels = np.load(work.cache / "torch-raw" / "labels.npy")
    transform = TorchvisionCrop(work)

    class Pixels(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(labels)

        def __getitem__(self, number: int) -> tuple[Any, int]:
            return transform(
                torch.from_numpy(images[number].copy()).permute(2, 0, 1)
            ), int(labels[number])

    yield from _load(Pixels(), work, device)


def _resized(size: int, image: Any) -> Any:
    """The whole image, for Pillow's images, and torchvision's RandomHorizontalFlip."""
    resized = image.resize((size, size), 2)  # Pillow's BILINEAR
    return (
        resized.transpose(0) if random.random() < 0.5 else resized
    )  # its FLIP_LEFT_RIGHT


def _load(
    dataset: Any, work: Work, device: str, collate: Any = None
) -> Iterator[Batches]:
    import torch

    loader = torch.utils.data.DataLoader(
        dataset,
        work.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=work.threads,
        persistent_workers=True,
        pin_memory=device == "cuda",
        worker_init_fn=seed_worker,
        collate_fn=collate,
    )
    yield loader if device == "cpu" else Moved(loader, device)
    del loader


def seed_worker(_: int) -> None:
    """Seeds Python's random numbers differently in each worker; torch does so only for its own."""
    import torch

    random.seed(torch.initial_seed())


def _collate_half(samples: list[Any]) -> tuple[Any, Any]:
    import torch

    images, labels = torch.utils.data.default_collate(samples)
    return images.half(), labels


class Moved:
    """A loader's batches, moved to a device."""

    def __init__(self, batches: Batches, device: str) -> None:
        self._batches = batches
        self._device = device

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for images, labels in self._batches:
            yield (
                images.to(self._device, non_blocking=True),
                labels.to(self._device, non_blocking=True),
            )
