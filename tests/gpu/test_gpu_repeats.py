"""Pixels that repeat, whatever the batch, and the memory that a loader takes for its largest images."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_decoders import DECODERS, Load, deterministic, params
from test_gpu_steady import gpu_mib

import gpuload

# What DALI takes beside what is allocated for the largest images (gpuload/decode/dali/memory.py), at most.
MOST_MIB = 3 * 1024


def pixels(load: Load, folder: Path, batch_size: int, options: dict[str, Any]) -> torch.Tensor:
    """In stored order, whatever the batches."""
    loader = load(folder, batch_size, options, shuffle=False, augment=gpuload.Augment(48, dtype="uint8"))
    return torch.cat([images.cpu() for images, _ in loader])


@pytest.mark.parametrize("decoder", params("native", "cuda", "hardware", "copied", "both"))
def test_an_image_is_the_same_in_any_batch(kinds: Path, load: Load, decoder: str) -> None:
    options = deterministic(decoder)
    expected = pixels(load, kinds, 40, options)
    for batch_size in (1, 7, 16, 40):
        assert torch.equal(pixels(load, kinds, batch_size, options), expected)


@pytest.mark.gpu
def test_by_how_much_two_units_differ(kinds: Path, load: Load, record_property: Callable[[str, object], None]) -> None:
    """Not a demand but a figure: of images that are decoded by another unit in another batch."""
    one, other = (pixels(load, kinds, size, DECODERS["default"]).int() for size in (40, 7))
    apart = (one - other).abs()
    changed = apart.flatten(1).amax(1) > 0
    record_property("images", {"changed": int(changed.sum()), "of": len(changed), "max": int(apart.max())})
    assert len(changed) == len(one) > 30


@pytest.mark.gpu
def test_one_large_image_does_not_take_memory_for_a_whole_batch_of_it(
    kinds: Path, load: Load, record_property: Callable[[str, object], None]
) -> None:
    """Its set has images of 4000×3000: 36 MB each, 9 GB for 256 of them."""
    torch.cuda.synchronize()
    before = gpu_mib()
    loader = load(kinds, 256, DECODERS["default"], drop_last=False)
    next(iter(loader))
    torch.cuda.synchronize()
    taken = gpu_mib() - before
    record_property("memory_mib", taken)
    assert 0 < taken < MOST_MIB
