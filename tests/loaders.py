"""Loaders on small packed sets, and what an epoch of them gives."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gpuload

AUGMENT = gpuload.Augment(12, dtype="uint8")
FIELDS = ("index", "image", "label")
DECODER = {"decoder": "auto"}


def load(packed: Path, batch_size: int = 8, **options: Any) -> gpuload.DaliIterator:
    usual = {"augment": AUGMENT, "device": "cpu", "num_threads": 1, "fields": FIELDS, **DECODER}
    return gpuload.DaliIterator(packed, batch_size, **{**usual, **options})


def world(packed: Path, size: int, batch_size: int, **options: Any) -> list[gpuload.DaliIterator]:
    return [load(packed, batch_size, rank=rank, world_size=size, **options) for rank in range(size)]


def drain(loaders: Sequence[gpuload.DaliIterator], steps: int | None = None) -> list[tuple[int, bytes]]:
    """One epoch, or `steps` of it, over all ranks in step: (sample, pixels) in the global order."""
    rows = []
    for number, batches in enumerate(zip(*loaders, strict=True), start=1):
        for (index, images, _), loader in zip(batches, loaders, strict=True):
            if loader.padding:
                continue
            rows += [(int(i), image.numpy().tobytes()) for i, image in zip(index, images, strict=True)]
        if number == steps:
            break
    return rows


def check_epoch(data: Any, batch_size: int = 8, **options: Any) -> list[tuple[int, bytes]]:
    """One epoch, which is the same on two ranks, and for a run that four ranks resume after its first step."""
    rows = drain([load(data, batch_size, **options)])
    assert drain(world(data, 2, batch_size // 2, **options)) == rows
    first = load(data, batch_size, **options)
    head = drain([first], steps=1)
    resumed = world(data, 4, batch_size // 4, **options)
    for loader in resumed:
        loader.load_state_dict(first.state_dict())
    assert 0 < len(head) < len(rows) and head + drain(resumed) == rows
    return rows
