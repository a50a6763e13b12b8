"""A packed set with every kind of field, and its values as they come in a batch."""

from pathlib import Path
from typing import Any

import numpy as np
from images import encode, photo

import gpuload

COUNT = 11
WORDS = ("ant", "background", "bee", "cat")  # sorted, as the packer numbers them


def sample(number: int) -> dict[str, Any]:
    width, height = 24 + number, 20 + number % 3
    boxes = [[0, 0, width / 2, height], [2, 3, 5 + number, 9]][: number % 3]
    return {
        "image": encode(photo(number, width, height)),
        "name": f"{number:02d}",
        "label": WORDS[number % 4],
        "labels": [WORDS[bit] for bit in range(4) if number >> bit & 1],
        "angle": number / 8 - 0.5,
        "drive": [number / 4, -1.5, 2.0],
        "caption": f"photo {number}, größer",
        "about": {"number": number, "list": [None, {"a": 1.5}]},
        "tokens": np.arange(number, dtype=np.uint16) + 60_000,
        "text": np.arange(number % 2, 5, dtype=np.int32),
        "features": (np.arange(6).reshape(2, 3) + number).astype(">f4"),
        "flag": np.array([number % 2 == 0, True]),
        "wave": np.array([1j * number], np.complex128),
        "letters": np.array(["a", "bc"]),
        "boxes": boxes,
        "boxes_class": ["cat", "ant"][: len(boxes)],
        "mask": np.full((height, width), number, np.uint8),
    }


def pack(folder: Path, samples: Any) -> gpuload.Dataset:
    gpuload.pack(samples, folder, workers=1, maxcount=4, shuffle=False)
    return gpuload.Dataset(folder / "train")


def open_loader(spec: Any, data: Any, batch_size: int = COUNT, **options: Any) -> gpuload.DaliIterator:
    """Whole images of 20x20 pixels in stored order, unless options say otherwise."""
    augment = gpuload.Augment(20, crop="none", flip=0)
    usual = {"augment": augment, "fields": (spec,), "device": "cpu", "output": "numpy", "shuffle": False}
    return gpuload.DaliIterator(data, batch_size, **{**usual, "drop_last": False, **options})


def values_of(spec: Any, data: gpuload.Dataset, numbers: list[int], **options: Any) -> Any:
    """The field's values of some samples, by increasing number, in one batch, which may be empty."""
    if not numbers:
        options = {**options, "rank": 1, "world_size": 2, "drop_last": "exact"}
    with open_loader(spec, data.subset(numbers or [0]), **options) as loader:
        ((values,),) = loader
    return values


def unnamed(folder: Path) -> gpuload.Dataset:
    """Two samples whose classes have no names: label 0 with labels [1], and label 2 with labels [0, 2]."""
    image = encode(photo())
    return pack(folder, [{"image": image, "label": 0, "labels": [1]}, {"image": image, "label": 2, "labels": [0, 2]}])
