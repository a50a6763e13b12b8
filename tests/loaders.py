"""Loaders on small packed sets, what an epoch of them gives, and how two of these compare."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuload

AUGMENT = gpuload.Augment(12, dtype="uint8")
FIELDS = ("index", "image", "label")
DECODER = {"decoder": "auto"}


def _has_dali() -> bool:
    try:
        return importlib.util.find_spec("nvidia.dali") is not None
    except ModuleNotFoundError:  # not even its parent
        return False


HAS_DALI = _has_dali()  # also while a test hides it


def skip_without_dali(decoder: Any) -> None:
    """Skips a test of DALI's decoder where DALI is not installed: `pip install -e '.[cpu,dev]'` does without."""
    name = str(decoder).partition("-")[0]
    if not HAS_DALI and (name in ("dali", "both") or isinstance(decoder, gpuload.Dali | gpuload.Both)):
        pytest.skip("needs DALI: pip install -e '.[dali]'")


def load(packed: Path, batch_size: int = 8, **options: Any) -> gpuload.DaliIterator:
    usual = {"augment": AUGMENT, "device": "cpu", "num_threads": 1, "fields": FIELDS, **DECODER}
    options = {**usual, **options}
    skip_without_dali(options["decoder"])
    return gpuload.DaliIterator(packed, batch_size, **options)


def remote(url: Any, cache: Path | None = None, **options: Any) -> gpuload.DaliIterator:
    """Of all samples of a set at a URL, or of one that was opened."""
    data = url if isinstance(url, gpuload.Dataset) else gpuload.Dataset(url, cache)
    return load(data, **{"drop_last": False, "shuffle": gpuload.Shuffle(window=2), **options})  # type: ignore[arg-type]


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


def same(first: Any, second: Any) -> bool:
    """Whether two epochs are equal, bit for bit."""
    pairs = list(zip(first, second, strict=True))
    return len(pairs) > 0 and all(a.equal(b) for one, other in pairs for a, b in zip(one, other, strict=True))


def largest_gap(first: np.ndarray, second: np.ndarray) -> float:
    """Kolmogorov–Smirnov distance of two samples."""
    values = np.union1d(first, second)
    below = [np.searchsorted(np.sort(sample), values, side="right") / len(sample) for sample in (first, second)]
    return float(np.abs(below[0] - below[1]).max())
