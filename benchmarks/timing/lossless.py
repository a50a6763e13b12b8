"""Lossless images as users of a DataLoader load them: bands by rasterio, and crops that are not scaled."""

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from timing.crops import decode_by_imagecodecs, decode_rgb
from timing.work import MEAN, STD, Batches, Work

BANDS = 13
_PEAK = 65_535


def open_decoder(
    work: Work, data: str, decoder: str
) -> AbstractContextManager[Batches]:
    """Random resized crops of another set. decoder: as of `dataloader.open_opencv`."""
    from timing.peers import dataloader

    of_set = work._replace(folder=work.set_folder(data))
    return dataloader.open_opencv(of_set, decoder=decoder)


@contextmanager
def open_unscaled(work: Work, data: str, decoder: str) -> Iterator[Batches]:
    """Whole images, decoded by OpenCV or imagecodecs, and a random part of each that is not scaled."""
    import pillow_loader
    import torch

    decode = decode_rgb if decoder == "opencv" else decode_by_imagecodecs
    mean = torch.tensor(MEAN).view(3, 1, 1) * 255
    factor = 1 / (torch.tensor(STD).view(3, 1, 1) * 255)

    class Images(pillow_loader.PackedImages):
        def __getitem__(self, number: int) -> tuple[Any, int]:
            pixels = decode(self.read(number))
            top, left = _corner(*pixels.shape[:2], work.size)
            part = pixels[top : top + work.size, left : left + work.size]
            planes = torch.from_numpy(_flipped(part)).permute(2, 0, 1)
            values = planes.to(torch.float32, memory_format=torch.contiguous_format)
            return values.sub_(mean).mul_(factor), int(self.labels[number])

    images = Images(work.set_folder(data), lambda image: image)
    yield from _loaded(images, work)


@contextmanager
def open_rasterio(work: Work, data: str) -> Iterator[Batches]:
    """A random part of each GeoTIFF, which rasterio reads alone, in 0..1 and normalised."""
    import torch

    paths = sorted((work.cache / data / "files").rglob("*.tif"))

    class Scenes(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, number: int) -> tuple[Any, int]:
            import rasterio
            from rasterio.windows import Window

            with rasterio.open(paths[number]) as scene:
                top, left = _corner(scene.height, scene.width, work.size)
                part = scene.read(window=Window(left, top, work.size, work.size))
            values = _flipped(part.transpose(1, 2, 0)).transpose(2, 0, 1)
            floats = torch.from_numpy(values.astype(np.float32))
            return floats.div_(_PEAK).sub_(0.5).div_(0.5), number % 10

    yield from _loaded(Scenes(), work)


def unscaled(bands: int) -> Callable[[Work], dict[str, Any]]:
    """The same with gpuload."""

    def make(work: Work) -> dict[str, Any]:
        import gpuload

        augment: dict[str, Any] = {"crop": gpuload.RandomCrop(), "flip": 0.5}
        if bands == BANDS:
            halves = (0.5,) * BANDS
            augment["normalize"] = gpuload.Normalize(halves, halves)
        return {"augment": augment}

    return make


def _corner(height: int, width: int, size: int) -> tuple[int, int]:
    return random.randint(0, height - size), random.randint(0, width - size)


def _flipped(pixels: np.ndarray) -> np.ndarray:
    """(height, width, bands), with even chances mirrored."""
    if random.random() < 0.5:
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def _loaded(dataset: Any, work: Work) -> Iterator[Batches]:
    import torch

    from timing.peers.dataloader import seed_worker

    loader = torch.utils.data.DataLoader(
        dataset,
        work.batch_size,
        shuffle=True,
        num_workers=work.threads,
        drop_last=True,
        persistent_workers=True,
        worker_init_fn=seed_worker,
    )
    yield loader
    del loader
