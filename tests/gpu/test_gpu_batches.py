"""Batches in the user's hands: kept, computed on in streams, from two loaders at once, and without copies."""

import gc
import importlib
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damaged import damage
from gpu_decoders import DECODERS, REFERENCE, Load, delay, synchronize

import gpuload
from gpuload.batchwise import CenterHole, CutMix, MixUp, RandomChoice


def test_batches_that_are_kept_do_not_change(mixed: Path, load: Load, accelerated: dict[str, Any]) -> None:
    kept, copies = [], []
    loader = load(mixed, 8, accelerated)
    for _ in range(5):
        for images, labels in loader:
            synchronize()
            kept.append((images, labels))
            copies.append((images.cpu().clone(), labels.cpu().clone()))
    synchronize()
    assert len(kept) == 5 * 12
    for held, copied in zip(kept, copies, strict=True):
        assert all(torch.equal(one.cpu(), other) for one, other in zip(held, copied, strict=True))
    assert len({copied.sum().item() for copied, _ in copies}) == len(copies)  # each is another


def sums(batches: Any) -> list[tuple[float, int]]:
    return [(images.double().sum().item(), labels.sum().item()) for images, labels in batches]


def test_two_loaders_at_once(mixed: Path, load: Load, accelerated: dict[str, Any]) -> None:
    alone = [sums(load(mixed, 8, accelerated, seed=seed)) for seed in (1, 2)]
    first, second = (load(mixed, 8, accelerated, seed=seed) for seed in (1, 2))
    together = [sums([batch])[0] for pair in zip(first, second, strict=True) for batch in pair]
    assert together[::2] == alone[0] and together[1::2] == alone[1]
    assert alone[0] != alone[1]


def in_own_stream(device: str) -> AbstractContextManager[Any]:
    return torch.cuda.stream(torch.cuda.Stream()) if device == "cuda" else nullcontext()


def train(batches: Any, device: str, wait: bool) -> tuple[list[float], torch.Tensor]:
    """Losses and weights of a linear model; `wait`: for the GPU, before and after each step."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 48 * 48, 5)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    losses = []
    for images, labels in batches:
        if wait:
            synchronize()
        else:
            delay(device)
        loss = torch.nn.functional.cross_entropy(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        del images, labels, loss  # the loader has the memory back while the GPU has not even begun to read it
        if wait:
            synchronize()
    return torch.stack(losses).tolist(), net[1].weight.detach().cpu()


def test_a_training_step_on_its_own_stream(mixed: Path, load: Load, accelerated: dict[str, Any]) -> None:
    device = accelerated["device"]
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # sums are the same only where they are made alike
    try:
        losses, weights = train(load(mixed, 8, accelerated), device, wait=True)
        for _ in range(3):
            with in_own_stream(device):
                found_losses, found_weights = train(load(mixed, 8, accelerated), device, wait=False)
            np.testing.assert_allclose(found_losses, losses, rtol=1e-4)
            np.testing.assert_allclose(found_weights, weights, rtol=1e-3, atol=1e-5)
    finally:
        torch.set_num_threads(before)
    assert len(losses) == 12 and len(set(losses)) == 12


def test_a_damaged_image_is_named(mixed: Path, tmp_path: Path, load: Load, accelerated: dict[str, Any]) -> None:
    damaged = damage(mixed, tmp_path / "damaged", [27])
    (key,) = gpuload.Dataset(damaged).keys([27])
    loader = load(damaged, 8, accelerated, shuffle=False, fields=("index", "image"))
    seen: list[int] = []
    with pytest.raises(gpuload.DecodeError, match=rf"shard-000001.tar: sample '{key}' does not decode"):
        for index, _ in loader:
            seen += index.tolist()
    assert seen == list(range(24))
    assert [len(index) for index, _ in islice(loader, 2)] == [8, 8]  # the loader still works


@pytest.mark.parametrize("layout", ["NCHW", "channels_last"])
def test_tensors_are_views_of_the_decoders_memory(
    mixed: Path, load: Load, accelerated: dict[str, Any], layout: Any
) -> None:
    """Torch cannot resize memory that is not its own. bfloat16 is a copy: DALI and NumPy have none, so torch casts."""
    if accelerated["device"] == "cuda" and accelerated["decoder"] != "dali":
        pytest.skip("what is copied to a GPU, or put together there, is in torch's memory")
    for dtype, is_view in (("float32", True), ("float16", True), ("uint8", True), ("bfloat16", False)):
        images, _ = next(iter(load(mixed, 8, accelerated, augment=gpuload.Augment(48, dtype=dtype, layout=layout))))
        assert images.untyped_storage().resizable() is not is_view


@pytest.mark.gpu
@pytest.mark.parametrize("output", ["torch", "cupy"])
def test_batches_take_no_memory_of_the_library(mixed: Path, load: Load, output: Any) -> None:
    """DALI's batches are in memory of its own: a copy would be in that of torch or CuPy."""
    if output == "torch":
        used = torch.cuda.memory_allocated
    else:
        used = importlib.import_module("cupy").get_default_memory_pool().used_bytes
    before = used()
    loader = load(mixed, 16, DECODERS["default"], output=output, augment=gpuload.Augment(224))
    held = [images for images, _ in islice(loader, 4)]
    batch_bytes = 16 * 3 * 224 * 224 * 4
    assert sum(images.nbytes for images in held) == 4 * batch_bytes
    assert used() - before < batch_bytes  # labels only


def test_batch_transforms_are_the_same_on_every_device(mixed: Path, load: Load, accelerated: dict[str, Any]) -> None:
    transforms = [RandomChoice([MixUp(alpha=1.0, num_classes=5), CutMix(num_classes=5)]), CenterHole(16, fill=9.0)]
    both = [load(mixed, 8, options, batch_transforms=transforms) for options in (REFERENCE, accelerated)]
    soft = []
    for expected, found in zip(*both, strict=True):
        images, labels, middle = (value.cpu() for value in found)
        assert all(value.device.type == accelerated["device"] for value in found)
        torch.testing.assert_close(labels, expected[1])
        for ours, theirs in ((images, expected[0]), (middle, expected[2])):
            assert (ours - theirs).abs().mean() < 1 / 255 / 0.225  # a level of 255, normalised
        assert (images[..., 16:32, 16:32] == 9).all() and middle.shape == (8, 3, 16, 16)
        soft.append(labels)
    shares = torch.cat(soft).amax(1)
    assert len(soft) == 12 and (shares < 0.99).sum() > 20  # mixed indeed


@pytest.mark.gpu
def test_cupy_and_torch_hold_the_same(mixed: Path, load: Load) -> None:
    for (ours, labels), (theirs, numbers) in zip(
        load(mixed, 8, DECODERS["default"]), load(mixed, 8, DECODERS["default"], output="cupy"), strict=True
    ):
        assert torch.equal(ours, torch.from_dlpack(theirs)) and labels.tolist() == numbers.tolist()


def test_a_loader_that_is_closed_leaves_its_batches(mixed: Path, load: Load, accelerated: dict[str, Any]) -> None:
    loader = load(mixed, 8, accelerated)
    images, _ = next(iter(loader))
    expected = images.cpu().clone()
    loader.close()
    del loader
    gc.collect()
    other = list(load(mixed, 8, accelerated, seed=5))
    synchronize()
    assert torch.equal(images.cpu(), expected) and len(other) == 12
