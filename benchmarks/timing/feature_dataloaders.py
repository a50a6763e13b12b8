"""What users of a DataLoader write for the features of `timing.features`: Pillow, torchvision, and samplers."""

import io
import json
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from importlib import import_module
from typing import Any

import numpy as np
import pillow_loader
import torch
from PIL import Image
from torch.utils.data import DataLoader, Sampler, WeightedRandomSampler

import gpuload
from timing.feature_data import bucket_sizes, fade, learned, texts_of
from timing.recipes import torchvisions
from timing.work import Batches, Work

_BILINEAR = Image.Resampling.BILINEAR


class Images(pillow_loader.PackedImages):
    """Images of a mode, of encoded ones or raw pixels, and what `second` gives of a sample's number.

    mode: of the images, as Pillow calls it. second: by default the label.
    """

    def __init__(
        self,
        folder: Any,
        transform: Callable[[Any], Any],
        mode: str = "RGB",
        second: Callable[[int], Any] | None = None,
    ) -> None:
        super().__init__(folder, transform)
        packed = gpuload.Dataset(folder)
        rows = [packed.rows(shard) for shard in range(len(packed.shard_paths))]
        columns = (
            [part.column(side).to_numpy() for part in rows]
            for side in ("height", "width")
        )
        self.sizes = np.stack([np.concatenate(column) for column in columns], axis=1)
        self._raw = packed.fields["image"].kind == "raw"
        self._mode = mode
        self._second = second or (lambda number: int(self.labels[number]))
        self._peak = 65_535 if mode == "I;16" else 255
        if mode != "RGB":
            self._mean = self._std = torch.tensor([0.5]).view(1, 1, 1)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, Any]:
        data = self.read(number)
        if self._raw:
            image = Image.fromarray(
                np.frombuffer(data, np.uint8).reshape(*self.sizes[number], 3)
            )
        else:
            image = Image.open(io.BytesIO(data))
            image = image if image.mode == self._mode else image.convert(self._mode)
        transformed = np.array(self._transform(image))
        planes = (
            transformed[None]
            if transformed.ndim == 2
            else np.ascontiguousarray(transformed.transpose(2, 0, 1))
        )
        pixels = torch.from_numpy(planes.astype(np.float32))
        return pixels.div_(self._peak).sub_(self._mean).div_(self._std), self._second(
            number
        )


def _load(images: Any, work: Work, **sampling: Any) -> Batches:
    if "batch_sampler" not in sampling:
        sampling = {
            "batch_size": work.batch_size,
            "drop_last": True,
            **(sampling or {"shuffle": True}),
        }
    return DataLoader(
        images, num_workers=work.threads, persistent_workers=True, **sampling
    )


def _crop(work: Work) -> Callable[[Any], Any]:
    return partial(pillow_loader.random_crop, size=work.size)


def with_function(work: Work) -> Batches:
    crop = _crop(work)
    rng = np.random.default_rng()
    return _load(
        Images(
            work.folder,
            lambda image: Image.fromarray(
                fade({"image": np.asarray(crop(image))}, rng)
            ),
        ),
        work,
    )


def balanced(work: Work) -> Batches:
    images = Images(work.folder, _crop(work))
    weights = (1 / np.bincount(images.labels).clip(1))[images.labels]
    return _load(
        images, work, sampler=WeightedRandomSampler(weights.tolist(), len(images))
    )


def unscaled(work: Work) -> Batches:
    """A crop in the centre, of an image that is padded where it is smaller, and a flip."""
    side = work.size

    def crop(image: Any) -> Any:
        left = (image.width - side) // 2
        top = (image.height - side) // 2
        # Pillow's pads with black.
        image = image.crop((left, top, left + side, top + side))
        return (
            image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            if torch.rand(1).item() < 0.5
            else image
        )

    return _load(Images(work.folder, crop), work)


def padded(work: Work, mode: str) -> Batches:
    v2 = _v2()
    crop = v2.RandomCrop(work.size, padding=4, pad_if_needed=True, padding_mode=mode)
    return _load(
        Images(work.folder, v2.Compose([crop, v2.RandomHorizontalFlip()])), work
    )


def warped(work: Work, *warps: tuple[Any, ...]) -> Batches:
    """warps: names of torchvision's transforms and their arguments, those of gpuload's."""
    v2 = _v2()
    crop = _crop(work)
    modes = {mode.value: mode for mode in v2.InterpolationMode}
    steps = [
        getattr(v2, name)(
            *(
                modes.get(value, value) if isinstance(value, str) else value
                for value in arguments
            )
        )
        for name, *arguments in warps
    ]

    def transform(image: Any) -> Any:
        image = crop(image)
        for warp in steps:
            image = warp(image)
        return image

    return _load(Images(work.folder, transform), work)


def recipe(work: Work, name: str) -> Batches:
    """torchvision's transforms of a recipe of `timing.recipes`, on images of Pillow's."""
    crop = _crop(work)
    colors = torchvisions(_v2(), name)
    return _load(
        Images(
            work.folder,
            lambda image: reduce(lambda made, one: one(made), colors, crop(image)),
        ),
        work,
    )


def stretched(work: Work) -> Batches:
    return _load(
        Images(
            work.folder, lambda image: image.resize((work.size, work.size), _BILINEAR)
        ),
        work,
    )


def bucketed(work: Work) -> Batches:
    """Each image covers the bucket of its shape; batches are of one bucket."""
    buckets = bucket_sizes(work)

    def cover(image: Any) -> Any:
        number = int(buckets.numbers([image.width], [image.height])[0])
        height, width = buckets.all_sizes[number]
        scale = min(image.width / width, image.height / height)
        across = width * scale
        down = height * scale
        left, top = (
            torch.rand(2) * torch.tensor([image.width - across, image.height - down])
        ).tolist()
        return image.resize(
            (width, height), _BILINEAR, (left, top, left + across, top + down)
        )

    images = Images(work.folder, cover)
    numbers = np.asarray(buckets.numbers(images.sizes[:, 1], images.sizes[:, 0]))
    return _load(images, work, batch_sampler=_BucketBatches(numbers, work.batch_size))


class _BucketBatches(Sampler[list[int]]):
    """Batches of one bucket each, as they fill; what is left at the end of an epoch is left out."""

    def __init__(self, numbers: Any, batch_size: int) -> None:
        self._numbers = numbers
        self._batch_size = batch_size

    def __iter__(self) -> Iterator[list[int]]:
        waiting: dict[int, list[int]] = {}
        for sample in torch.randperm(len(self._numbers)).tolist():
            bucket = waiting.setdefault(int(self._numbers[sample]), [])
            bucket.append(sample)
            if len(bucket) == self._batch_size:
                yield list(bucket)
                bucket.clear()


def texts(work: Work) -> Batches:
    """All captions of each image, as they are stored."""
    folder = work.set_folder("texts")
    return _load(Images(folder, _crop(work), second=texts_of(folder).__getitem__), work)


def captioned(work: Work, tokens: bool) -> Batches:
    """One of the captions, or none; with `tokens` as numbers."""
    folder = work.set_folder("texts")
    stored = texts_of(folder)
    tokenizer = learned(folder) if tokens else None

    def caption(number: int) -> Any:
        text = (
            "" if random.random() < 0.1 else random.choice(json.loads(stored[number]))
        )
        return text if tokenizer is None else np.array(tokenizer.encode(text).ids)

    return _load(Images(folder, _crop(work), second=caption), work)


def of_mode(work: Work, mode: str, data: str = "") -> Batches:
    """data: the set that was made for it; "": what is measured is converted."""
    return _load(Images(work.set_folder(data), _crop(work), mode), work)


def mixture(work: Work) -> Batches:
    images = Images(work.folder, _crop(work))
    return _load(
        images, work, sampler=WeightedRandomSampler(_shares(len(images)), len(images))
    )


def _shares(count: int) -> Sequence[float]:
    """Weights of samples: the first third of them comes three times as often as the rest."""
    third = count // 3
    return [3 / third] * third + [1 / (count - third)] * (count - third)


def stratified(work: Work) -> Batches:
    images = Images(work.folder, _crop(work))
    return _load(images, work, batch_sampler=_ExactShares(len(images), work.batch_size))


class _ExactShares(Sampler[list[int]]):
    """Three quarters of each batch from the first third of the samples."""

    def __init__(self, count: int, batch_size: int) -> None:
        self._third = count // 3
        self._count = count
        self._batch_size = batch_size

    def __iter__(self) -> Iterator[list[int]]:
        many = self._batch_size * 3 // 4
        for _ in range(self._count // self._batch_size):
            first = torch.randint(self._third, (many,))
            second = torch.randint(self._third, self._count, (self._batch_size - many,))
            yield torch.cat([first, second]).tolist()


def _v2() -> Any:
    import_module("torchvision_anywhere")
    return import_module("torchvision.transforms.v2")
