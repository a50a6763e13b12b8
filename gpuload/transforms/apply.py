"""Executes steps on images and masks; with `kernels`, the part of this package that needs torch."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gpuload.errors import ArgumentError
from gpuload.fields.images import RGB, Pixels
from gpuload.fields.rows import take
from gpuload.transforms.compose import kernel_of
from gpuload.transforms.erasing import ErasedRegions
from gpuload.transforms.kernels import KERNELS, gaussian_blur, levels, warp
from gpuload.transforms.ops import MAP_ARGS, TRAITS, Op
from gpuload.transforms.steps import Steps
from gpuload.types import F32, I8, I64

Tensor = torch.Tensor
_MIXING = (Op.KEEP, Op.MIX, Op.MIXED)


# SplitMix64's constants (see gpuload/draws.py), as int64, since torch has no uint64 arithmetic.
_GAMMA, _MIX_1, _MIX_2 = (
    int(np.uint64(constant).astype(np.int64))
    for constant in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def on_device(device: torch.device, numbers: npt.NDArray[Any]) -> torch.Tensor:
    """The same numbers on the device, copied through pinned memory, since other copies would wait for the GPU."""
    tensor = torch.from_numpy(np.ascontiguousarray(numbers))
    if device.type != "cuda":
        return tensor
    with torch.cuda.device(device):  # else pinning would make a context on GPU 0, in every rank
        return tensor.pin_memory().to(device, non_blocking=True)


def random_bits(key: torch.Tensor, counters: torch.Tensor) -> torch.Tensor:
    """int64, in the common shape of both: the bits of `gpuload.draws.random_bits`. int64 overflows as uint64 does."""
    bits = (counters + 1).mul_(_GAMMA).add_(key)
    bits = bits.bitwise_xor_(_shifted(bits, 30)).mul_(_MIX_1)
    bits = bits.bitwise_xor_(_shifted(bits, 27)).mul_(_MIX_2)
    return bits.bitwise_xor_(_shifted(bits, 31))


def normal_noise(keys: npt.NDArray[np.uint64], sizes: npt.NDArray[np.integer], device: torch.device) -> torch.Tensor:
    """float32 (3, sum of sizes), of mean 0 and variance 1: for each channel `sizes[i]` numbers of key i, then the next.

    keys: (n,). A hash of 64 bits gives 21 bits for each channel, which choose a quantile of the normal distribution, at
    most 5 sigmas.
    """
    total = int(sizes.sum())
    begins = np.cumsum(sizes) - sizes
    key, begin, size = on_device(device, np.stack([keys.view(np.int64), begins, sizes]).astype(np.int64))
    counters = torch.arange(total, device=device)
    if len(sizes) > 1:  # a single one is broadcast
        key, begin = (numbers.repeat_interleave(size, output_size=total) for numbers in (key, begin))
    bits = random_bits(key, counters.sub_(begin))
    parts = torch.stack([_shifted(bits, 43), _shifted(bits, 22) & 0x1FFFFF, _shifted(bits, 1) & 0x1FFFFF])
    centred = (2 * parts + 1 - (1 << 21)).float().mul_(2.0**-21)  # the centre of each of 2**21 parts of -1..1
    return centred.erfinv_().mul_(math.sqrt(2))


def _shifted(bits: torch.Tensor, by: int) -> torch.Tensor:
    """Shifted right by so many bits, filled with zeros, as unsigned numbers are."""
    return (bits >> by).bitwise_and_((1 << (64 - by)) - 1)


@torch.no_grad()
def apply_steps(images: Tensor, steps: Steps, pixels: Pixels = RGB) -> Tensor:
    """The images after their steps: uint8 (n, c, h, w), on the device of `images`, which stay as they are. Of `pixels`
    that are not uint8 their values as float32, for which warps alone are defined.

    Where there is nothing to do, `images` themselves are returned. For each step, its operations come one after
    another, each on all images that have it. The numbers, and which images have which operation, are copied to the
    device at once, and nothing waits for it.
    """
    steps = _without_gaps(steps)
    order = np.argsort(steps.ops, axis=0, kind="stable")  # (n, K): by operation
    args, rows = on_device(images.device, steps.args), on_device(images.device, np.ascontiguousarray(order.T))
    result = images.contiguous()
    if (steps.ops == Op.KEEP).any():
        kept, mixture = torch.empty_like(result), torch.empty(result.shape, device=result.device)
    for step in range(steps.ops.shape[1]):
        for code, begin, end in _groups(steps.ops[order[:, step], step]):
            if end - begin == len(images) and code not in _MIXING:
                result = _execute(code, result, args[:, step], steps.args[:, step], pixels)
                continue
            if result.data_ptr() == images.data_ptr():
                result = images.clone(memory_format=torch.contiguous_format)
            chosen = rows[step, begin:end]
            numbers = steps.args[order[begin:end, step], step]
            chosen_args = args[:, step].index_select(0, chosen)
            some = result.index_select(0, chosen)
            if code in _MIXING:
                some = _mix(code, some, chosen_args, chosen, kept, mixture)
            else:
                some = _execute(code, some, chosen_args, numbers, pixels)
            result.index_copy_(0, chosen, some)
    return result


@torch.no_grad()
def erase(batch: Tensor, regions: ErasedRegions) -> None:
    """Overwrites the regions in a batch (n, 3, h, w) of any dtype; values are rounded for uint8.

    On a CPU image by image, so that each stays in the cache; on a GPU all regions at once, in as many kernels for a
    batch as for one image. Both write the same values.
    """
    chosen = np.flatnonzero(regions.box[:, 2] * regions.box[:, 3])
    if len(chosen):
        (_erase_each if batch.device.type == "cpu" else _erase_at_once)(batch, chosen, take(regions, chosen))


def _erase_each(batch: Tensor, chosen: I64, regions: ErasedRegions) -> None:
    """regions: of the chosen images, of which each has one."""
    sizes = regions.box[:, 2] * regions.box[:, 3]
    value, scale = (torch.from_numpy(numbers[:, :, None, None]) for numbers in (regions.value, regions.noise))
    noise = normal_noise(regions.key, sizes, batch.device) if regions.noise.any() else None
    ends = np.cumsum(sizes).tolist()
    for region, image in enumerate(chosen.tolist()):
        top, left, height, width = regions.box[region].tolist()
        pixels = value[region]
        if noise is not None:
            own = noise[:, ends[region] - height * width : ends[region]]
            pixels = pixels + scale[region] * own.view(3, height, width)
        batch[image, :, top : top + height, left : left + width] = _rounded(pixels, batch.dtype)


def _erase_at_once(batch: Tensor, chosen: I64, regions: ErasedRegions) -> None:
    """As `_erase_each`, by one index for each pixel of the regions, one region after another."""
    sizes = regions.box[:, 2].astype(np.int64) * regions.box[:, 3]
    total = int(sizes.sum())
    begins = np.cumsum(sizes) - sizes
    facts = np.concatenate([chosen[:, None], begins[:, None], regions.box[:, [0, 1, 3]]], axis=1).astype(np.int64)
    lengths = on_device(batch.device, sizes)
    each = torch.arange(len(chosen), device=batch.device).repeat_interleave(lengths, output_size=total)
    image, begin, top, left, width = on_device(batch.device, facts).index_select(0, each).unbind(1)
    pixel = torch.arange(total, device=batch.device).sub_(begin)
    y, x = top + pixel.div(width, rounding_mode="floor"), left + pixel.remainder(width)
    values = on_device(batch.device, regions.value).index_select(0, each)
    if regions.noise.any():
        noise = normal_noise(regions.key, sizes, batch.device)
        values = values + on_device(batch.device, regions.noise).index_select(0, each) * noise.T
    batch.permute(0, 2, 3, 1).index_put_((image, y, x), _rounded(values, batch.dtype).to(batch.dtype))


def _rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.round().clamp(0, 255) if dtype == torch.uint8 else values


def _without_gaps(steps: Steps) -> Steps:
    """The same without the steps that are nothing for all images."""
    used = (steps.ops != Op.NOTHING).any(axis=0)
    return steps if used.all() else Steps(steps.ops[:, used], steps.args[:, used])


def _groups(codes: I8) -> list[tuple[int, int, int]]:
    """(code, begin, end) of each group of equal codes in sorted ones, without those that do nothing."""
    found, begins = np.unique(codes, return_index=True)
    ends = [*begins[1:].tolist(), len(codes)]
    return [(code, b, e) for code, b, e in zip(found.tolist(), begins.tolist(), ends, strict=True) if code]


def _execute(code: int, images: Tensor, args: Tensor, numbers: F32, pixels: Pixels) -> Tensor:
    """One operation on images that all have it; `numbers` are `args` as a NumPy array."""
    if (kernel := kernel_of(code)) is not None:
        return _checked(kernel(images, args), images, kernel)
    if images.shape[1] != 3 and not TRAITS[Op(code)].any_channels:
        return images
    if code == Op.GAUSSIAN_BLUR:
        return gaussian_blur(images, args, numbers)
    if code == Op.AFFINE_BILINEAR:
        below = args.new_tensor([0.0, 0.0, 1.0]).expand(len(args), 3)
        args = torch.cat([args[:, :6], below, args[:, 6:MAP_ARGS]], dim=1)
        return warp(images, args, np.insert(numbers[:, :9], [6, 6, 6], [0, 0, 1], axis=1), True, pixels)
    if code in (Op.WARP_NEAREST, Op.WARP_BILINEAR):
        return warp(images, args, numbers, code == Op.WARP_BILINEAR, pixels)
    return KERNELS[Op(code)](images, args)


def _mix(code: int, images: Tensor, args: Tensor, rows: Tensor, kept: Tensor, mixture: Tensor) -> Tensor:
    """What becomes of the images in these rows of a batch, for which `kept` and `mixture` are."""
    parts = images.float().mul_(args[:, 0].view(-1, 1, 1, 1))
    if code == Op.KEEP:
        kept.index_copy_(0, rows, images)
        mixture.index_copy_(0, rows, parts)
        return images
    mixture.index_add_(0, rows, parts)
    return levels(mixture.index_select(0, rows)) if code == Op.MIXED else kept.index_select(0, rows)


def _checked(made: object, images: Tensor, kernel: Callable[[Tensor, Tensor], object]) -> Tensor:
    """What a kernel of the user's has made."""
    if isinstance(made, Tensor) and (made.shape, made.dtype, made.device) == (
        images.shape,
        images.dtype,
        images.device,
    ):
        return made.contiguous()
    found = f"{made.dtype} {tuple(made.shape)} on {made.device}" if isinstance(made, Tensor) else type(made).__name__
    raise ArgumentError(
        f"{kernel.__qualname__}: returned {found}, expected {images.dtype} {tuple(images.shape)} on {images.device}"
    )
