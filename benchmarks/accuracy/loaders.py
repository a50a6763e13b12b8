"""The loaders whose models are compared: each gives the batches of a run, epoch by epoch."""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch
from PIL import Image
from torch import Tensor

import gpuload
from accuracy.sets import LabelledSet, files

BATCH_SIZE = 64
SIZE = 32  # side of the images in pixels
_RESIZED = 36  # shorter side before the central crop of a validation, 256 / 224 of SIZE

Batches = Iterator[tuple[Tensor, Tensor]]

REFERENCE = "DataLoader + torchvision"


class Setting(NamedTuple):
    """How gpuload is used: which shards, how many of them are mixed at a time, and by which decoder."""

    order: str = "shuffled"
    window: int = 8
    decoder: Literal["native", "dali"] = "native"


_ALL_SHARDS = 1000  # more than a set has
_SETTINGS = {
    "gpuload": Setting(),
    "gpuload, DALI": Setting(decoder="dali"),
    "gpuload, window of 1 shard": Setting(window=1),
    "gpuload, all shards in a window": Setting(window=_ALL_SHARDS),
    "gpuload, set sorted by class": Setting("sorted"),
    "gpuload, sorted, all shards in a window": Setting("sorted", _ALL_SHARDS),
}
LOADERS = (REFERENCE, *_SETTINGS)


def training_batches(loader: str, labelled: LabelledSet, seed: int) -> Batches:
    """All batches of a run: float32 (N, 3, 32, 32) and int64 (N,).

    The incomplete last batch of an epoch is left out.
    """
    if loader == REFERENCE:
        yield from _torchvision_batches(labelled, seed)
        return
    setting = _SETTINGS[loader]
    iterator = gpuload.DaliIterator(
        labelled.shards(setting.order),
        BATCH_SIZE,
        augment=gpuload.Augment(
            SIZE,
            crop=gpuload.RandomResizedCrop(scale=labelled.scale),
            flip=labelled.flip,
        ),
        shuffle=gpuload.Shuffle(window=setting.window),
        seed=seed,
        decoder=setting.decoder,
        num_threads=1,
        device="cpu",
    )
    for _ in range(labelled.epochs):
        yield from iterator


def validation_images(loader: str, labelled: LabelledSet) -> tuple[Tensor, Tensor]:
    """The images of val and their labels, as a loader resizes them: shorter side to 36, the centre of 32."""
    if loader == REFERENCE:
        images, labels = zip(
            *_torchvision_set(labelled, is_training=False), strict=True
        )
        return torch.stack(images), torch.tensor(labels)
    shards = labelled.folder / "validation"
    if not shards.exists():
        gpuload.pack(labelled.val_images, shards, from_="folder", progress=False)
    batches = gpuload.DaliIterator(
        shards / "train",
        BATCH_SIZE,
        augment=gpuload.Augment(SIZE, crop=gpuload.CenterCrop(resize=_RESIZED)),
        shuffle=False,
        decoder=_SETTINGS[loader].decoder,
        num_threads=1,
        device="cpu",
    )
    parts = [(images.clone(), labels.clone()) for images, labels in batches]
    return torch.cat([part[0] for part in parts]), torch.cat(
        [part[1] for part in parts]
    )


def _torchvision_batches(labelled: LabelledSet, seed: int) -> Batches:
    batches = torch.utils.data.DataLoader(
        _torchvision_set(labelled, is_training=True),
        BATCH_SIZE,
        shuffle=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(seed),
    )
    torch.manual_seed(seed)  # of the crops
    for _ in range(labelled.epochs):
        yield from batches


def _torchvision_set(labelled: LabelledSet, is_training: bool) -> Any:
    from torchvision.transforms import v2

    if is_training:
        shaping = [
            v2.RandomResizedCrop(SIZE, scale=labelled.scale),
            v2.RandomHorizontalFlip(labelled.flip),
        ]
    else:
        shaping = [v2.Resize(_RESIZED), v2.CenterCrop(SIZE)]
    normalisation = [
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
    folder = labelled.train_images if is_training else labelled.val_images
    return _Files(list(files(folder)), v2.Compose(shaping + normalisation))


class _Files(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """torchvision's ImageFolder, which the CPU build of torch cannot import."""

    def __init__(self, samples: list[tuple[Any, int]], transform: Any) -> None:
        self._samples = samples
        self._transform = transform

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index >= len(self._samples):
            raise IndexError(index)
        path, label = self._samples[index]
        return self._transform(Image.open(path).convert("RGB")), label
