"""Gray PNGs of 16 bits, as users of a DataLoader with OpenCV or imagecodecs, and users of DALI, load them."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from timing.crops import random_window
from timing.work import Batches, Work

_AREA = (0.08, 1.0)
_RATIO = (3 / 4, 4 / 3)
_PEAK = 65_535


@contextmanager
def open_decoder(work: Work, data: str, decoder: str) -> Iterator[Batches]:
    """A DataLoader with OpenCV's resize. decoder: "opencv" or "imagecodecs"."""
    import cv2
    import pillow_loader
    import torch

    from timing.peers.dataloader import seed_worker

    decode = _decode_by_opencv if decoder == "opencv" else _decode_by_imagecodecs

    class Images(pillow_loader.PackedImages):
        def __getitem__(self, number: int) -> tuple[Any, int]:
            pixels = _crop(decode(self.read(number)), work.size)
            return torch.from_numpy(pixels)[None], int(self.labels[number])

    cv2.setNumThreads(0)  # the workers already use all cores
    loader = torch.utils.data.DataLoader(
        Images(work.set_folder(data), lambda image: image),
        work.batch_size,
        shuffle=True,
        num_workers=work.threads,
        drop_last=True,
        persistent_workers=True,
        worker_init_fn=seed_worker,
    )
    yield loader
    del loader


def _decode_by_opencv(encoded: bytes) -> Any:
    import cv2

    return cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_UNCHANGED)


def _decode_by_imagecodecs(encoded: bytes) -> Any:
    import imagecodecs

    return imagecodecs.png_decode(encoded)


def _crop(pixels: np.ndarray, size: int) -> np.ndarray:
    """float32 (size, size): a random crop, flipped or not, in 0..1."""
    import cv2

    top, left, height, width = random_window(*pixels.shape[:2])
    shrinks = height > size and width > size
    cropped = cv2.resize(
        pixels[top : top + height, left : left + width],
        (size, size),
        interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR,
    )
    if random.random() < 0.5:
        cropped = cv2.flip(cropped, 1)
    return cropped.astype(np.float32) / _PEAK


@contextmanager
def open_dali(work: Work, data: str) -> Iterator[Batches]:
    """DALI's CPU operators, on whole images."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    from timing.peers.dali import _Pairs

    @pipeline_def
    def graph() -> Any:
        shards = sorted(work.set_folder(data).glob("*.tar"))
        encoded, labels = fn.readers.webdataset(
            paths=[str(path) for path in shards],
            index_paths=[str(path.with_suffix(".idx")) for path in shards],
            ext=["png", "cls"],
            random_shuffle=True,
            name="reader",
        )
        whole = fn.decoders.image(encoded, output_type=types.GRAY, dtype=types.UINT16)
        cropped = fn.random_resized_crop(
            whole,
            size=[work.size, work.size],
            random_area=_AREA,
            random_aspect_ratio=_RATIO,
            interp_type=types.INTERP_TRIANGULAR,
        )
        pixels = fn.crop_mirror_normalize(
            cropped,
            dtype=types.FLOAT,
            output_layout="CHW",
            std=_PEAK,
            mirror=fn.random.coin_flip(),
        )
        return pixels, fn.pad(labels, fill_value=ord(" "))

    pipeline = graph(
        batch_size=work.batch_size,
        num_threads=work.threads,
        device_id=None,
        prefetch_queue_depth=2,
    )
    batches = DALIGenericIterator(
        pipeline,
        ["images", "labels"],
        reader_name="reader",
        last_batch_policy=LastBatchPolicy.DROP,
        auto_reset=True,
    )
    yield _Pairs(batches, "cpu")
