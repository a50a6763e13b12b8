"""SPDL: its pipeline of threads, with its own decoder (FFmpeg) and with simplejpeg and OpenCV.

SPDL leaves decoding to the functions that the user puts into the pipeline. spdl.io's filters decode, crop, scale and
flip one image in one call. The second variant uses functions that release the GIL, as its guide recommends.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from timing.crops import OpenCVCrop, decode_rgb, shown_window
from timing.peers.dataloader import Moved
from timing.work import MEAN, STD, Batches, Work


@contextmanager
def open_ffmpeg(work: Work, device: str = "cpu") -> Iterator[Batches]:
    import numpy as np
    import spdl.io
    import torch

    mean = torch.tensor(MEAN).view(1, 1, 3) * 255
    factor = 1 / (torch.tensor(STD).view(1, 1, 3) * 255)
    dtype = getattr(torch, work.dtype)

    def decode(encoded: bytes) -> Any:
        packets = spdl.io.demux_image(encoded)
        top, left, height, width = shown_window(work, packets.height, packets.width)
        flip = ",hflip" if random.random() < 0.5 else ""
        # `area` averages when it downscales, which antialiases.
        scaled = f"scale={work.size}:{work.size}:flags={'area' if min(height, width) > work.size else 'bilinear'}"
        frames = spdl.io.decode_packets(
            packets, f"crop={width}:{height}:{left}:{top},{scaled}{flip},format=rgb24"
        )
        pixels = torch.from_numpy(
            np.asarray(spdl.io.to_numpy(spdl.io.convert_frames(frames)))
        )
        return (
            pixels.to(torch.float32).sub_(mean).mul_(factor).permute(2, 0, 1).to(dtype)
        )

    yield from _run(decode, work, device)


@contextmanager
def open_opencv(work: Work, device: str = "cpu") -> Iterator[Batches]:
    import cv2

    cv2.setNumThreads(0)
    crop = OpenCVCrop(work)

    def decode(encoded: bytes) -> Any:
        return crop(decode_rgb(encoded))

    yield from _run(decode, work, device)


def _run(decode: Callable[[bytes], Any], work: Work, device: str) -> Iterator[Batches]:
    import pillow_loader
    import torch
    from spdl.pipeline import PipelineBuilder

    images = pillow_loader.PackedImages(work.folder, None)
    torch.set_num_threads(1)  # the pipeline's threads do the work

    def load(number: int) -> tuple[Any, int]:
        return decode(images.read(number)), int(images.labels[number])

    def collate(samples: list[tuple[Any, int]]) -> tuple[Any, Any]:
        pixels, labels = zip(*samples, strict=True)
        return torch.stack(pixels), torch.tensor(labels)

    class Epochs:
        def __iter__(self) -> Iterator[tuple[Any, Any]]:
            order = list(range(len(images)))
            random.shuffle(order)
            pipeline = (
                PipelineBuilder()
                .add_source(order)
                .pipe(load, concurrency=work.threads)
                .aggregate(work.batch_size, drop_last=True)
                .pipe(collate)
                .add_sink(2)
                .build(num_threads=work.threads)
            )
            with pipeline.auto_stop():
                yield from pipeline.get_iterator(timeout=60)

    yield Epochs() if device == "cpu" else Moved(Epochs(), device)
