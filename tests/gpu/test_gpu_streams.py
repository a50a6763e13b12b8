"""Batches that are copied from the CPU, or put together of two halves: read only once they are there, and written to only
once they were read."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_decoders import DECODERS, Load, delay, deterministic, params

import gpuload


@pytest.mark.parametrize("decoder", params("copied", "both"))
@pytest.mark.parametrize("transforms", [[], [gpuload.transforms.ColorJitter(0.4)]], ids=["plain", "transforms"])
def test_batches_in_a_late_stream_are_those_of_a_stream_that_waits(
    mixed: Path, load: Load, decoder: str, transforms: Any
) -> None:
    """Pinned memory and the device's are used again while the training's stream has not begun to read."""
    augment = gpuload.Augment(160, transforms=transforms, dtype="float16")
    options = {**deterministic(decoder), "augment": augment}
    expected = []
    for images, _ in load(mixed, 8, options):
        torch.cuda.synchronize()
        expected.append(images.double().sum().item())
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        loader, sums = load(mixed, 8, options), []
        with torch.cuda.stream(stream):
            for images, _ in loader:
                delay("cuda")
                sums.append(images.double().sum())
                del images
        assert torch.stack(sums).tolist() == expected
    assert len(set(expected)) == 12


@pytest.mark.gpu
def test_pixels_are_copied_from_pinned_memory_on_another_stream(mixed: Path, load: Load) -> None:
    """As torch's profiler sees it: copies of the size of a batch of uint8, from pinned memory, beside the kernels."""
    loader = load(mixed, 8, DECODERS["copied"], augment=gpuload.Augment(160))
    batches = iter(loader)
    list(islice(batches, 3))
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiled:
        list(islice(batches, 4))
        torch.cuda.synchronize()
    names = [event.name for event in profiled.events() if "Memcpy HtoD" in event.name]
    assert len(names) >= 4 and all("Pinned" in name for name in names)


@pytest.mark.gpu
def test_a_loader_on_another_gpu_leaves_the_first_alone(mixed: Path, load: Load) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two NVIDIA GPUs")
    for decoder in ("default", "copied", "both"):
        options = {**DECODERS[decoder], "device": "cuda:1"}
        transforms = [gpuload.batchwise.CenterHole(16)]
        images, labels, *_ = next(iter(load(mixed, 8, options, batch_transforms=transforms)))
        assert {images.device, labels.device} == {torch.device("cuda", 1)}
        assert torch.cuda.memory_allocated(0) == 0
