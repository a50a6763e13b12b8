"""Pairs of pictures, as gpuload, users of a DataLoader and users of DALI load them: the same crop and flip for both."""

import io
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from timing.crops import decode_rgb, random_window
from timing.work import MEAN, STD, Batches, Work

_AREA = (0.08, 1.0)
_RATIO = (3 / 4, 4 / 3)


class PackedPairs:
    """The samples of a packed folder by index: what `load` makes of the files of the image and of one more picture.

    Args:
        folder: A split.
        other: The name of the further picture, or mask.
        load: Gives the tensors of both.
    """

    def __init__(
        self, folder: Path, other: str, load: Callable[[bytes, bytes], tuple[Any, Any]]
    ) -> None:
        import gpuload

        packed = gpuload.Dataset(folder)
        rows = [packed.rows(shard) for shard in range(len(packed.shard_paths))]
        self._spans = {
            name: np.concatenate(
                [
                    np.stack(
                        [part.column(f"{name}_{end}") for end in ("offset", "bytes")], 1
                    )
                    for part in rows
                ]
            )
            for name in ("image", other)
        }
        self._shards = np.repeat(np.arange(len(rows)), packed.shard_sizes)
        self._paths = packed.shard_paths
        self._names = ("image", other)
        self._load = load
        self._files: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        image, other = (self._read(name, number) for name in self._names)
        return self._load(image, other)

    def _read(self, name: str, number: int) -> bytes:
        shard = int(self._shards[number])
        if shard not in self._files:
            self._files[shard] = os.open(self._paths[shard], os.O_RDONLY)
        offset, size = self._spans[name][number]
        return os.pread(self._files[shard], int(size), int(offset))

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_files": {}}


class PillowPair:
    """Two photos as normalised tensors (3, size, size), by Pillow."""

    def __init__(self, work: Work) -> None:
        import torch

        self._size = work.size
        self._mean = torch.tensor(MEAN).view(3, 1, 1)
        self._std = torch.tensor(STD).view(3, 1, 1)

    def __call__(self, image: bytes, other: bytes) -> tuple[Any, Any]:
        import torch
        from PIL import Image

        first, second = (
            Image.open(io.BytesIO(data)).convert("RGB") for data in (image, other)
        )
        top, left, height, width = random_window(first.height, first.width)
        box = (left, top, left + width, top + height)
        is_flipped = random.random() < 0.5
        tensors = []
        for picture in (first, second):
            cropped = picture.resize((self._size, self._size), 2, box=box)
            if is_flipped:
                cropped = cropped.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            planes = torch.from_numpy(np.array(cropped)).permute(2, 0, 1)
            floats = planes.to(torch.float32, memory_format=torch.contiguous_format)
            tensors.append(floats.div_(255).sub_(self._mean).div_(self._std))
        return tensors[0], tensors[1]


class OpenCVPair:
    """A photo, and another one, a map of depths or a mask of classes, by simplejpeg and OpenCV.

    Args:
        work: What is asked for.
        unit: Of depths; None: the second picture is a mask, or a photo.
    """

    def __init__(self, work: Work, unit: float | None = None) -> None:
        import torch

        self._size = work.size
        self._unit = unit
        self._mean = torch.tensor(MEAN).view(3, 1, 1) * 255
        self._factor = 1 / (torch.tensor(STD).view(3, 1, 1) * 255)

    def __call__(self, image: bytes, other: bytes) -> tuple[Any, Any]:
        import cv2
        import torch

        from timing.stored import is_jpeg

        first = decode_rgb(image)
        second = (
            decode_rgb(other)
            if is_jpeg(other)
            else cv2.imdecode(np.frombuffer(other, np.uint8), cv2.IMREAD_UNCHANGED)
        )
        window = random_window(*first.shape[:2])
        is_flipped = random.random() < 0.5
        photo = self._photo(first, window, is_flipped)
        if second.ndim == 3:
            return photo, self._photo(second, window, is_flipped)
        values = self._cut(second, window, cv2.INTER_NEAREST)
        values = cv2.flip(values, 1) if is_flipped else values
        if self._unit is None:
            return photo, torch.from_numpy(values)
        return photo, torch.from_numpy(values.astype(np.float32) * self._unit)[None]

    def _photo(
        self, pixels: np.ndarray, window: tuple[int, int, int, int], is_flipped: bool
    ) -> Any:
        import cv2
        import torch

        shrinks = window[2] > self._size and window[3] > self._size
        cropped = self._cut(
            pixels, window, cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        )
        cropped = cv2.flip(cropped, 1) if is_flipped else cropped
        planes = torch.from_numpy(cropped).permute(2, 0, 1)
        floats = planes.to(torch.float32, memory_format=torch.contiguous_format)
        return floats.sub_(self._mean).mul_(self._factor)

    def _cut(
        self, pixels: np.ndarray, window: tuple[int, int, int, int], how: int
    ) -> Any:
        import cv2

        top, left, height, width = window
        size = (self._size, self._size)
        return cv2.resize(
            pixels[top : top + height, left : left + width], size, interpolation=how
        )


def load_pairs(work: Work, data: str, other: str, load: Any) -> Batches:
    """A DataLoader with workers, as those of the other contenders.

    Args:
        work: What is asked for.
        data: The set that was made for it.
        other: The name of the further picture.
        load: Makes the tensors of a sample.
    """
    import torch

    from timing.peers.dataloader import seed_worker

    return torch.utils.data.DataLoader(
        PackedPairs(work.set_folder(data), other, load),  # type: ignore[arg-type]
        work.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=work.threads,
        persistent_workers=True,
        worker_init_fn=seed_worker,
    )


@contextmanager
def open_opencv(
    work: Work, data: str, other: str, unit: float | None = None
) -> Iterator[Batches]:
    """A DataLoader with simplejpeg and OpenCV."""
    import cv2

    cv2.setNumThreads(0)  # the workers already use all cores
    loader = load_pairs(work, data, other, OpenCVPair(work, unit))
    yield loader
    del loader


@contextmanager
def open_dali(
    work: Work, data: str, other: str, unit: float | None = None
) -> Iterator[Batches]:
    """A pipeline of DALI's CPU operators, written by hand: one drawn crop and flip for both pictures.

    JPEGs are decoded in the crop alone; PNGs as a whole, then cropped: DALI 2.4 takes as long for a part of a PNG.
    """
    from nvidia.dali import pipeline_def
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    pipeline = pipeline_def(_graph)(
        work,
        data,
        other,
        unit,
        batch_size=work.batch_size,
        num_threads=work.threads,
        device_id=None,
        prefetch_queue_depth=2,
    )
    batches = DALIGenericIterator(
        pipeline,
        ["images", "others"],
        reader_name="reader",
        last_batch_policy=LastBatchPolicy.DROP,
        auto_reset=True,
    )
    yield _Pairs(batches)


class _Pairs:
    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for (batch,) in self._batches:
            yield batch["images"], batch["others"]


def _graph(work: Work, data: str, other: str, unit: float | None) -> tuple[Any, Any]:
    from nvidia.dali import fn, types

    folder = work.set_folder(data)
    shards = sorted(folder.glob("*.tar"))
    is_photo = (unit is None) and other != "mask"
    encoded, encoded_other = fn.readers.webdataset(
        paths=[str(path) for path in shards],
        index_paths=[str(path.with_suffix(".idx")) for path in shards],
        ext=["jpg", f"{other}.jpg" if is_photo else f"{other}.png"],
        random_shuffle=True,
        name="reader",
    )
    start, shape = fn.random_crop_generator(
        fn.peek_image_shape(encoded), random_area=_AREA, random_aspect_ratio=_RATIO
    )
    mirror = fn.random.coin_flip()
    size = [work.size, work.size]

    def photo(content: Any) -> Any:
        cropped = fn.decoders.image_slice(
            content, start=start, shape=shape, axes=[0, 1]
        )
        resized = fn.resize(cropped, size=size, interp_type=types.INTERP_TRIANGULAR)
        return fn.crop_mirror_normalize(
            resized,
            dtype=types.FLOAT,
            output_layout="CHW",
            mean=[255 * value for value in MEAN],
            std=[255 * value for value in STD],
            mirror=mirror,
        )

    if is_photo:
        return photo(encoded), photo(encoded_other)
    whole = fn.decoders.image(
        encoded_other,
        output_type=types.GRAY,
        dtype=types.UINT8 if unit is None else types.UINT16,
    )
    values = fn.resize(
        fn.slice(whole, start=start, shape=shape, axes=[0, 1]),
        size=size,
        interp_type=types.INTERP_NN,
    )
    values = fn.flip(values, horizontal=mirror)
    if unit is None:
        return photo(encoded), values
    return photo(encoded), fn.cast(values, dtype=types.FLOAT) * unit
