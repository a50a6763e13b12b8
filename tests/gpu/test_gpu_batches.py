"""Batches in the user's hands: kept, computed on in streams and by kernels, from two loaders at once, without copies, and
without memory that grows."""

import gc
import importlib
from contextlib import AbstractContextManager, nullcontext
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import raw_kernel
import torch
from damaged import damage
from gpu_decoders import DECODERS, REFERENCE, Load, delay, deterministic, params, synchronize

import gpuload
from gpuload.batchwise import CenterHole, CutMix, FieldBatch, MixUp, RandomMixer

BATCHES, WARM_UP = 1_000, 300
MIB = 1 << 20
# What DALI takes beside what is allocated for the largest images (gpuload/decode/dali/memory.py), at most.
MOST_MIB = 3 * 1024


def test_batches_that_are_kept_do_not_change(mixed: Path, load: Load, accelerated: dict[str, Any]) -> None:
    """Also when the loader is closed, and another one has its memory."""
    kept, copies = [], []
    loader = load(mixed, 8, accelerated)
    for _ in range(5):
        for images, labels in loader:
            synchronize()
            kept.append((images, labels))
            copies.append((images.cpu().clone(), labels.cpu().clone()))
    loader.close()
    del loader
    gc.collect()
    assert len(list(load(mixed, 8, accelerated, seed=5))) == 12
    synchronize()
    assert len(kept) == 5 * 12
    for held, copied in zip(kept, copies, strict=True):
        assert all(torch.equal(one.cpu(), other) for one, other in zip(held, copied, strict=True))
    assert len({copied.sum().item() for copied, _ in copies}) == len(copies)  # each is another


def sums(batches: Any) -> list[tuple[float, int]]:
    return [(images.double().sum().item(), labels.sum().item()) for images, labels in batches]


def test_two_loaders_at_once(mixed: Path, load: Load, exact: dict[str, Any]) -> None:
    alone = [sums(load(mixed, 8, exact, seed=seed)) for seed in (1, 2)]
    first, second = (load(mixed, 8, exact, seed=seed) for seed in (1, 2))
    together = [sums([batch])[0] for pair in zip(first, second, strict=True) for batch in pair]
    assert together[::2] == alone[0] and together[1::2] == alone[1]
    assert alone[0] != alone[1]


def in_own_stream(device: str) -> AbstractContextManager[Any]:
    return torch.cuda.stream(torch.cuda.Stream()) if device == "cuda" else nullcontext()


@pytest.mark.parametrize("transforms", [[], [gpuload.transforms.ColorJitter(0.4)]], ids=["plain", "transforms"])
@pytest.mark.parametrize("decoder", params("native", "default", "copied", "both"))
def test_batches_in_a_late_stream_are_those_of_a_stream_that_waits(
    mixed: Path, load: Load, decoder: str, transforms: Any
) -> None:
    """The loader has the memory back while the training's stream has not begun to read, in a step forward and back."""
    augment = gpuload.Augment(160, transforms=transforms, dtype="float16")
    options = deterministic(decoder)
    device, expected = options["device"], []
    for images, _ in load(mixed, 8, options, augment=augment):
        synchronize()
        expected.append(images.double().sum().item())
    weight = torch.ones((), dtype=torch.float16, device=device, requires_grad=True)
    for stream in (nullcontext(), in_own_stream(device)):
        loader, sums = load(mixed, 8, options, augment=augment), []
        with stream:
            for images, _ in loader:
                delay(device)
                loss = (images * weight).double().sum()
                loss.backward()
                sums.append(loss.detach())
                del images, loss
        assert torch.stack(sums).tolist() == expected
    assert len(set(expected)) == 12


def test_a_damaged_image_is_named(mixed: Path, tmp_path: Path, load: Load, accelerated: dict[str, Any]) -> None:
    damaged = damage(mixed, tmp_path / "damaged", [27])
    (key,) = gpuload.Dataset(damaged).keys([27])
    loader = load(damaged, 8, accelerated, shuffle=False, fields=("index", "image"))
    seen: list[int] = []
    with pytest.raises(gpuload.DecodeError, match=rf"shard-000001.tar: sample '{key}' does not decode"):
        for index, _ in loader:
            seen += index.tolist()
    assert seen == list(range(24))
    loader.set_epoch(1)
    assert [len(index) for index, _ in islice(loader, 2)] == [8, 8]  # the loader still works


@pytest.mark.parametrize("layout", ["NCHW", "channels_last"])
def test_tensors_are_views_of_the_decoders_memory_on_a_cpu(
    mixed: Path, load: Load, accelerated: dict[str, Any], layout: Any
) -> None:
    """Torch cannot resize memory that is not its own. On a GPU all is its own: other memory would not wait for the
    streams that read it. bfloat16 is a copy: NumPy has none, so torch casts."""
    is_on_gpu = accelerated["device"] == "cuda"
    for dtype in ("float32", "float16", "uint8", "bfloat16"):
        images, _ = next(iter(load(mixed, 8, accelerated, augment=gpuload.Augment(48, dtype=dtype, layout=layout))))
        assert images.untyped_storage().resizable() is (is_on_gpu or dtype == "bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize("output", ["torch", "cupy"])
def test_batches_are_in_torchs_memory_once(mixed: Path, load: Load, output: Any) -> None:
    """Copied out of DALI's, and handed on to CuPy, whose pool holds the labels only."""
    batch_bytes = 16 * 3 * 224 * 224 * 4
    before = torch.cuda.memory_allocated()
    loader = load(mixed, 16, DECODERS["default"], output=output, augment=gpuload.Augment(224), prefetch=1)
    held = [images for images, _ in islice(loader, 4)]
    assert sum(images.nbytes for images in held) == 4 * batch_bytes
    used = torch.cuda.memory_allocated() - before
    assert 4 * batch_bytes <= used < 7 * batch_bytes  # two more are on their way; a second copy would make 8
    if output == "cupy":
        assert importlib.import_module("cupy").get_default_memory_pool().used_bytes() < batch_bytes


def test_batch_transforms_are_the_same_on_every_device(mixed: Path, load: Load, accelerated: dict[str, Any]) -> None:
    transforms = [RandomMixer([MixUp(alpha=1.0, num_classes=5), CutMix(num_classes=5)]), CenterHole(16, fill=9.0)]
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
    loaders = (load(mixed, 8, deterministic("default"), output=output) for output in ("torch", "cupy"))
    for (ours, labels), (theirs, numbers) in zip(*loaders, strict=True):
        assert torch.equal(ours, torch.from_dlpack(theirs)) and labels.tolist() == numbers.tolist()


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


@pytest.mark.gpu
def test_the_kernel_does_what_numpy_does() -> None:
    """examples/raw_kernel.py against its NumPy twin."""
    cupy: Any = importlib.import_module("cupy")
    rng = np.random.default_rng(0)
    for shape in [(5, 3, 12, 17), (1, 3, 1, 1), (64, 3, 224, 224)]:
        images, strength = rng.normal(size=shape).astype(np.float32), rng.random(shape[0])
        on_gpu = cupy.asarray(images)
        for batch in (images, on_gpu):
            raw_kernel.Fade()(FieldBatch({"image": batch}, None, lambda number, strength=strength: strength))
        np.testing.assert_allclose(on_gpu.get(), images, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
def test_the_kernel_in_a_loader_is_in_the_order_of_torchs_stream(mixed: Path, load: Load) -> None:
    def losses(**options: Any) -> list[float]:
        # Sums at once, without waiting for the GPU: a kernel that came late would be missing in them.
        return torch.stack([images.sum() for images, _ in load(mixed, 8, deterministic("default"), **options)]).tolist()

    plain, faded = losses(), losses(batch_transforms=[raw_kernel.Fade()])
    with torch.cuda.stream(torch.cuda.Stream()):
        np.testing.assert_allclose(losses(batch_transforms=[raw_kernel.Fade()]), faded, rtol=1e-5)
    assert not np.allclose(plain, faded)


def host_mib() -> float:
    """Resident memory of this process without that of mapped files, which is the page cache."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def gpu_mib() -> float:
    """Memory in use on the GPU by anything: DALI's allocator is not torch's."""
    if not torch.cuda.is_available():
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / MIB


def test_memory_is_steady_over_a_thousand_batches(
    mixed: Path, load: Load, accelerated: dict[str, Any], record_property: Any
) -> None:
    loader = load(mixed, 4, accelerated)
    seen, host, gpu = 0, [], []
    for _ in count():
        for images, _ in loader:
            seen += 1
            assert len(images) == 4
            if seen in (WARM_UP, BATCHES):
                gc.collect()
                host.append(host_mib())
                gpu.append(gpu_mib())
        if seen >= BATCHES:
            break
    record_property("memory_mib", {"host": host, "gpu": gpu})
    # 700 batches of 4 images are 74 MiB as floats, 105 as decoded pixels. On a CPU a leak of a tenth of either shows; a
    # GPU's allocators, and those of pinned memory, take tens of MiB at once.
    most = 48 if accelerated["device"] == "cuda" else 7
    assert host[1] - host[0] < most
    assert gpu[1] - gpu[0] < most


@pytest.mark.gpu
def test_one_large_image_does_not_take_memory_for_a_whole_batch_of_it(
    kinds: Path, load: Load, record_property: Any
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
