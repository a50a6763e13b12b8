"""Executes steps on images and masks, and erases: the part of this package that needs torch.

Each kernel does the arithmetic of a step on uint8 images, the same on CPU and GPU; torchvision's results within one
level. It takes images, uint8 (n, 3, h, w), contiguous, and the first number of their steps, float32 (n, 1, 1, 1), or
all of them, float32 (n, ARGS), on the same device. It returns new images, and none waits for the GPU. What looks odd is
for the CPU, where torch has vector code for some operations only: for 224 × 224 pixels on one thread, float32 to uint8
takes 46 µs, through int16 16 µs; `where` takes 590 µs, minimum and exclusive or 20 µs.

One image of 224 × 224 on one thread, in µs of processor time (EPYC of 2.6 GHz, 2 cores shared with other work, so the
minimum of 80 runs each, 2026-11; 9 of these are the call): brightness 57, contrast 104, saturation 96, hue 286,
grayscale 63, blur of 23 pixels 487 with a sigma of 1 and 834 with 2, solarize 30, posterize 25, autocontrast 92,
equalize 235, invert 13, sharpness 190, affine 182.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from gpuload.errors import ArgumentError
from gpuload.fields.images import RGB, Pixels
from gpuload.fields.rows import take
from gpuload.lists import starts_of
from gpuload.transforms.compose import kernel_of
from gpuload.transforms.erasing import ErasedRegions
from gpuload.transforms.ops import MAP_ARGS, OF_COLORS, Op
from gpuload.transforms.steps import Steps
from gpuload.types import F32, I8, I64

Tensor = torch.Tensor
Kernel = Callable[[Tensor, Tensor], Tensor]
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
    # Else pinning would make a context on GPU 0, in every rank.
    with torch.cuda.device(device):
        return tensor.pin_memory().to(device, non_blocking=True)


def random_bits(key: torch.Tensor, counters: torch.Tensor) -> torch.Tensor:
    """int64, in the common shape of both: the bits of `gpuload.draws.random_bits`. int64 overflows as uint64 does."""
    bits = (counters + 1).mul_(_GAMMA).add_(key)
    bits = bits.bitwise_xor_(_shifted(bits, 30)).mul_(_MIX_1)
    bits = bits.bitwise_xor_(_shifted(bits, 27)).mul_(_MIX_2)
    return bits.bitwise_xor_(_shifted(bits, 31))


def normal_noise(
    keys: npt.NDArray[np.uint64], sizes: npt.NDArray[np.integer], device: torch.device
) -> torch.Tensor:
    """float32 (3, sum of sizes), of mean 0 and variance 1: for each channel `sizes[i]` numbers of key i, then the next.

    Args:
        keys: uint64 (n,).
        sizes: (n,), how many numbers each key gives for a channel.
        device: Where they are made.

    A hash of 64 bits gives 21 bits for each channel, which choose a quantile of the normal distribution, at most 5
    sigmas.
    """
    total = int(sizes.sum())
    facts = np.stack([keys.view(np.int64), starts_of(sizes), sizes])
    key, begin, size = on_device(device, facts.astype(np.int64))
    counters = torch.arange(total, device=device)
    if len(sizes) > 1:  # a single one is broadcast
        key = key.repeat_interleave(size, output_size=total)
        begin = begin.repeat_interleave(size, output_size=total)
    bits = random_bits(key, counters.sub_(begin))
    red = _shifted(bits, 43)
    green = _shifted(bits, 22) & 0x1FFFFF
    blue = _shifted(bits, 1) & 0x1FFFFF
    parts = torch.stack([red, green, blue])
    # The centre of each of 2**21 parts of -1..1.
    centred = (2 * parts + 1 - (1 << 21)).float()
    centred.mul_(2.0**-21)
    return centred.erfinv_().mul_(math.sqrt(2))


def _shifted(bits: torch.Tensor, by: int) -> torch.Tensor:
    """Shifted right by so many bits, filled with zeros, as unsigned numbers are."""
    return (bits >> by).bitwise_and_((1 << (64 - by)) - 1)


@torch.no_grad()
def apply_steps(images: Tensor, steps: Steps, pixels: Pixels = RGB) -> Tensor:
    """The images after their steps: uint8 (n, c, h, w) on the same device, new ones, or the same where there is nothing
    to do.

    For each step, its operations come one after another, each on all images that have it. The numbers, and which images
    have which operation, are copied to the device at once, and nothing waits for it.

    Args:
        images: uint8 (n, c, h, w), which stay as they are; or float32, the values of `pixels` that are not uint8.
        steps: Of the n images. For float32 warps alone are defined.
        pixels: What the set stores: its channels and the range of their values.
    """
    result = images.contiguous()
    mixtures = _Mixtures(result) if (steps.ops == Op.KEEP).any() else None
    for group in _groups(steps, images.device):
        if group.rows is None:
            result = _execute(result, group, pixels)
            continue
        if result.data_ptr() == images.data_ptr():
            result = images.clone(memory_format=torch.contiguous_format)
        part = result.index_select(0, group.rows)
        if group.code in _MIXING:
            assert mixtures is not None
            part = mixtures.mix(group.code, part, group.args, group.rows)
        else:
            part = _execute(part, group, pixels)
        result.index_copy_(0, group.rows, part)
    return result


@torch.no_grad()
def erase(batch: Tensor, regions: ErasedRegions) -> None:
    """Overwrites the regions in a batch (n, 3, h, w) of any dtype; values are rounded for uint8.

    On a CPU image by image, so that each stays in the cache; on a GPU all regions at once, in as many kernels for a
    batch as for one image. Both write the same values.
    """
    areas = regions.box[:, 2] * regions.box[:, 3]
    chosen = np.flatnonzero(areas)
    if not len(chosen):
        return
    erase_chosen = _erase_each if batch.device.type == "cpu" else _erase_at_once
    erase_chosen(batch, chosen, take(regions, chosen))


def _erase_each(batch: Tensor, chosen: I64, regions: ErasedRegions) -> None:
    """Overwrites the regions image by image.

    Args:
        chosen: int64 (n,), rows of the batch.
        regions: Of these images, of which each has one.
    """
    value = torch.from_numpy(regions.value[:, :, None, None])
    scale = torch.from_numpy(regions.noise[:, :, None, None])
    noise = _noise_of(regions, batch.device)
    for region, image in enumerate(chosen.tolist()):
        top, left, height, width = regions.box[region].tolist()
        pixels = value[region]
        if noise:
            pixels = pixels + scale[region] * noise[region].view(3, height, width)
        rows = slice(top, top + height)
        columns = slice(left, left + width)
        batch[image, :, rows, columns] = _rounded(pixels, batch.dtype)


def _noise_of(regions: ErasedRegions, device: torch.device) -> Sequence[Tensor]:
    """Of each region float32 (3, its pixels); empty where none has noise."""
    if not regions.noise.any():
        return ()
    sizes = regions.box[:, 2] * regions.box[:, 3]
    noise = normal_noise(regions.key, sizes, device)
    return torch.split(noise, sizes.tolist(), dim=1)


def _erase_at_once(batch: Tensor, chosen: I64, regions: ErasedRegions) -> None:
    """As `_erase_each`, by one index for each pixel of the regions, one region after another."""
    sizes = regions.box[:, 2].astype(np.int64) * regions.box[:, 3]
    total = int(sizes.sum())
    corners_and_widths = regions.box[:, [0, 1, 3]]
    facts = np.column_stack([chosen, starts_of(sizes), corners_and_widths])
    lengths = on_device(batch.device, sizes)
    numbers = torch.arange(len(chosen), device=batch.device)
    region_of = numbers.repeat_interleave(lengths, output_size=total)
    facts_of_regions = on_device(batch.device, facts.astype(np.int64))
    places = _places_in(facts_of_regions.index_select(0, region_of))
    values = on_device(batch.device, regions.value).index_select(0, region_of)
    if regions.noise.any():
        noise = normal_noise(regions.key, sizes, batch.device)
        scale = on_device(batch.device, regions.noise).index_select(0, region_of)
        values = values + scale * noise.T
    values = _rounded(values, batch.dtype).to(batch.dtype)
    batch.permute(0, 2, 3, 1).index_put_(places, values)


def _places_in(facts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The image, row and column of each pixel of some regions, one region after another.

    Args:
        facts: int64 (P, 5), of the region of each pixel: the image, the number of its first pixel, and top, left and
            width.
    """
    image, begin, top, left, width = facts.unbind(1)
    pixel = torch.arange(len(facts), device=facts.device).sub_(begin)
    row = top + pixel.div(width, rounding_mode="floor")
    return image, row, left + pixel.remainder(width)


def _rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.round().clamp(0, 255) if dtype == torch.uint8 else values


class _Group(NamedTuple):
    """The images of a batch that have the same operation in a step.

    Attributes:
        code: Of the operation.
        rows: int64 (n,) on the device, which images these are; None: all in their order, where that makes no mixture.
        args: float32 (n, ARGS) on the device, the numbers of each.
        numbers: The same in host memory.
    """

    code: int
    rows: Tensor | None
    args: Tensor
    numbers: F32


def _groups(steps: Steps, device: torch.device) -> Iterator[_Group]:
    """Step by step, the images by their operations, without those for which nothing is to be done."""
    order = np.argsort(steps.ops, axis=0, kind="stable")  # (n, K): by operation
    rows = on_device(device, np.ascontiguousarray(order.T))
    args = on_device(device, steps.args)
    for step, ops in enumerate(steps.ops.T):
        numbers = steps.args[:, step]
        for code, begin, end in _spans(ops):
            if end - begin == len(ops) and code not in _MIXING:
                yield _Group(code, None, args[:, step], numbers)
                continue
            chosen = rows[step, begin:end]
            chosen_args = args[:, step].index_select(0, chosen)
            chosen_numbers = numbers[order[begin:end, step]]
            yield _Group(code, chosen, chosen_args, chosen_numbers)


def _spans(codes: I8) -> Iterator[tuple[int, int, int]]:
    """Where each code begins and ends when all are sorted, without those that do nothing."""
    distinct, counts = np.unique(codes, return_counts=True)
    begin = 0
    for code, end in zip(distinct.tolist(), counts.cumsum().tolist(), strict=True):
        if code != Op.NOTHING:
            yield code, begin, end
        begin = end


def _execute(images: Tensor, group: _Group, pixels: Pixels) -> Tensor:
    """One operation on images that all have it, those of a group."""
    code, _, args, numbers = group
    if (kernel := kernel_of(code)) is not None:
        return _checked(kernel(images, args), images, kernel)
    if code in OF_COLORS and images.shape[1] != 3:
        return images
    match code:
        case Op.GAUSSIAN_BLUR:
            return gaussian_blur(images, args, numbers)
        case Op.AFFINE:
            return affine(images, args)
        case Op.AFFINE_BILINEAR:
            return warp(images, *_as_warp(args, numbers), True, pixels)
        case Op.WARP_NEAREST:
            return warp(images, args, numbers, False, pixels)
        case Op.WARP_BILINEAR:
            return warp(images, args, numbers, True, pixels)
    return _KERNELS[code](images, _of_each(args[:, 0]))


def _as_warp(args: Tensor, numbers: F32) -> tuple[Tensor, F32]:
    """The numbers of affine steps as those of warps, whose matrix has a third row, 0 0 1: on the device, and here."""
    matrix = args[:, :6]
    fill = args[:, 6:MAP_ARGS]
    third_row = torch.zeros_like(fill)
    third_row[:, 2].fill_(1)  # a copy from the host would wait for the GPU
    widened = np.insert(numbers[:, :MAP_ARGS], [6, 6, 6], [0, 0, 1], axis=1)
    return torch.cat([matrix, third_row, fill], dim=1), widened


class _Mixtures:
    """The images that the chains of a mixture begin with, and the mixtures so far, of a batch."""

    def __init__(self, images: Tensor) -> None:
        self._kept = torch.empty_like(images)
        self._mixture = torch.empty(images.shape, device=images.device)

    def mix(self, code: int, images: Tensor, args: Tensor, rows: Tensor) -> Tensor:
        """What becomes of the images in these rows of the batch."""
        share = _of_each(args[:, 0])
        parts = images.float().mul_(share)
        if code == Op.KEEP:
            self._kept.index_copy_(0, rows, images)
            self._mixture.index_copy_(0, rows, parts)
            return images
        self._mixture.index_add_(0, rows, parts)
        if code == Op.MIXED:
            return levels(self._mixture.index_select(0, rows))
        return self._kept.index_select(0, rows)


def _checked(
    result: Any, images: Tensor, kernel: Callable[[Tensor, Tensor], object]
) -> Tensor:
    """What a kernel of the user's has made."""
    actual = _in_words(result)
    expected = _in_words(images)
    if actual != expected:
        raise ArgumentError(
            f"{kernel.__qualname__}: returned {actual}, expected {expected}"
        )
    return result.contiguous()


def _in_words(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{value.dtype} {tuple(value.shape)} on {value.device}"


# ---- kernels


def _of_each(numbers: Tensor) -> Tensor:
    """(n, 1, 1, 1): one number for each image, for all of its pixels."""
    return numbers.view(-1, 1, 1, 1)


def levels(pixels: Tensor) -> Tensor:
    """uint8, clamped to 0..255 and truncated, out of float32, which is overwritten."""
    return pixels.clamp_(0, 255).to(torch.int16).to(torch.uint8)


def _gray(pixels: Tensor) -> Tensor:
    """float32 (n, 1, h, w), whole numbers, out of any (n, 3, h, w)."""
    if pixels.shape[1] == 1:
        return pixels.clone()
    red, green, blue = torch.split(pixels, 1, dim=1)
    gray = red.mul(0.2989)
    gray.add_(green, alpha=0.587)
    gray.add_(blue, alpha=0.114)
    return gray.floor_()


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    return levels(images.float().mul_(factor))


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    pixels = images.float()
    # The sum of a line is a whole number that float32 holds exactly, the sum of lines one that float64 does: so the
    # order of additions does not matter, and an image is the same in any batch.
    line_sums = _gray(pixels).sum(dim=3)
    sums = line_sums.sum(dim=(1, 2), dtype=torch.float64)
    means = sums / images[0, 0].numel()
    mean = _of_each(means.float())
    pixels.mul_(factor)
    pixels.add_(mean * (1 - factor))
    return levels(pixels)


def saturation(images: Tensor, factor: Tensor) -> Tensor:
    pixels = images.float()
    gray = _gray(pixels)
    pixels.mul_(factor)
    pixels.addcmul_(gray, 1 - factor)
    return levels(pixels)


# Of red, green and blue: the share of the chroma at a turn is sign * |turn - middle| + offset, within 0..1.
_HUE_RAMPS = ((3, 1, -1), (2, -1, 2), (4, -1, 2))


def hue(images: Tensor, turns: Tensor) -> Tensor:
    """Rotates the hue hexagon of HSV (Smith, SIGGRAPH 1978); the largest and smallest channel stay."""
    turn, chroma, smallest = _hexagon(images)
    turn.add_(6 * turns)
    # 0..6: red, yellow, green, cyan, blue, magenta.
    turn.sub_(torch.floor(turn / 6), alpha=6)
    channels = []
    for middle, sign, offset in _HUE_RAMPS:
        share = (turn - middle).abs_()
        share.mul_(sign).add_(offset).clamp_(0, 1)
        values = share.mul_(chroma).add_(smallest)
        # As torchvision rounds: 256 equal parts of 0..1.
        values.mul_(255.999 / 255)
        channels.append(levels(values))
    return torch.cat(channels, dim=1)


def _hexagon(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The hue in sixths of a turn from red on, the chroma and the smallest channel: float32 (n, 1, h, w) each.

    Instead of a selection, which is slow in torch, this uses arithmetic with 0 and 1: `not_r` is 1 where red is not the
    largest channel.
    """
    red, green, blue = torch.split(images, 1, dim=1)
    largest = torch.maximum(torch.maximum(red, green), blue)
    smallest = torch.minimum(torch.minimum(red, green), blue)
    not_r = (red < largest).to(torch.int16)
    not_g = (green < largest).to(torch.int16)
    red = red.to(torch.int16)
    green = green.to(torch.int16)
    blue = blue.to(torch.int16)
    difference = (blue - red).mul_(1 - not_g)
    difference.add_((red - green).mul_(not_g))
    difference.mul_(not_r)
    difference.add_((green - blue).mul_(1 - not_r))
    chroma = (largest - smallest).float()
    turn = difference.float().div_(chroma.clamp(min=1))
    sixths = (not_g + 1).mul_(not_r)
    turn.add_(sixths, alpha=2)
    return turn, chroma, smallest.float()


def grayscale(images: Tensor, unused: Tensor) -> Tensor:
    gray = levels(_gray(images.float()))
    return gray.expand(images.shape).contiguous()


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    return torch.where(images < threshold, images, ~images)


def solarize_add(images: Tensor, added: Tensor) -> Tensor:
    is_dark = (images < 128).to(torch.uint8)
    is_dark.mul_(added.to(torch.uint8))
    return is_dark.add_(images)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    lost = 8 - bits.round()
    mask = 256 - torch.exp2(lost)
    return images & mask.to(torch.uint8)


def autocontrast(images: Tensor, unused: Tensor) -> Tensor:
    low = images.amin((2, 3), keepdim=True).float()
    high = images.amax((2, 3), keepdim=True).float()
    flat = (high == low).float()  # a channel of one level stays as it is
    scale = (high - low) * (1 / 255) + flat
    pixels = images.float().sub_(low * (1 - flat))
    return levels(pixels.div_(scale))


def equalize(images: Tensor, unused: Tensor) -> Tensor:
    """Pillow's ImageOps.equalize, in whole numbers: the levels of a channel become its cumulative histogram."""
    n, channels = images.shape[:2]
    device = images.device
    flat = images.view(n, channels, -1).long()
    one_each = torch.ones((), dtype=torch.int32, device=device).expand_as(flat)
    histogram = torch.zeros((n, channels, 256), dtype=torch.int32, device=device)
    histogram.scatter_add_(2, flat, one_each)
    below = histogram.cumsum(2) - histogram  # pixels of a lower level
    # All pixels but those of the highest level, below which most pixels are.
    counted = (below * histogram.clamp(max=1)).amax(2, keepdim=True)
    step = counted // 255
    table = (below + step // 2) // step.clamp(min=1)
    unchanged = torch.arange(256, device=device)
    table = torch.where(step > 0, table.clamp_(0, 255), unchanged)
    return table.to(torch.uint8).gather(2, flat).view_as(images)


def invert(images: Tensor, unused: Tensor) -> Tensor:
    return images.bitwise_not()


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Blends with a blur of weights 1, 5 in the centre, over 13; a border of one pixel stays as it is."""
    if min(images.shape[2:]) < 3:
        return images.clone()
    pixels = images.float()
    inner = pixels[:, :, 1:-1, 1:-1]
    blurred = _sum_of_three(_sum_of_three(pixels, 2), 3)
    blurred.add_(inner, alpha=4)
    blurred.mul_(1 / 13).round_()
    difference = blurred.sub_(inner)
    inner += difference.mul_(1 - factor)
    return levels(pixels)


def _sum_of_three(pixels: Tensor, dim: int) -> Tensor:
    """The sum of each three neighbours along `dim`, which becomes shorter by 2."""
    size = pixels.shape[dim] - 2
    total = pixels.narrow(dim, 0, size) + pixels.narrow(dim, 1, size)
    return total.add_(pixels.narrow(dim, 2, size))


def gaussian_blur(images: Tensor, args: Tensor, numbers: F32) -> Tensor:
    """One direction after the other, a weight at a time.

    Weights beyond five sigmas, less than a millionth of the sum, are omitted, so that the kernel is no larger than
    needed.

    Args:
        images: uint8 (n, c, h, w).
        args: float32 (n, ARGS) on their device, the numbers of the step.
        numbers: The same in host memory.
    """
    sigmas, *sizes = numbers[:, :3].T
    reaches = [np.minimum(np.ceil(5 * sigmas), size // 2) for size in sizes]
    x, y = (int(reach.max()) for reach in reaches)
    sigma, width, height = torch.split(args[:, :3], 1, dim=1)
    pixels = functional.pad(images.float(), (x, x, y, y), mode="reflect")
    pixels = _weighted(pixels, _weights(sigma, width, x), 3)
    pixels = _weighted(pixels, _weights(sigma, height, y), 2)
    return levels(pixels.round_())


def _weights(sigma: Tensor, size: Tensor, reach: int) -> Tensor:
    """The normal density around a pixel, float32 (n, 2 reach + 1), of sum 1.

    Args:
        sigma: float32 (n, 1), in pixels.
        size: float32 (n, 1), of each image's kernel, beyond which the density is 0.
        reach: The farthest pixel of any kernel.
    """
    away = torch.arange(-reach, reach + 1, device=sigma.device, dtype=torch.float32)
    weights = torch.exp(-0.5 * (away / sigma) ** 2)
    weights = weights * (away.abs() <= size // 2)
    return weights / weights.sum(dim=1, keepdim=True)


def _weighted(pixels: Tensor, weights: Tensor, dim: int) -> Tensor:
    """The weighted sum of neighbours along `dim`, which becomes shorter by the number of weights less 1."""
    first, *others = map(_of_each, weights.unbind(1))
    size = pixels.shape[dim] - len(others)
    total = pixels.narrow(dim, 0, size) * first
    for index, weight in enumerate(others, 1):
        total.addcmul_(pixels.narrow(dim, index, size), weight)
    return total


def affine(images: Tensor, args: Tensor) -> Tensor:
    """Each pixel takes the nearest one that it comes from, or the fill; (n, c, h, w), of any number of channels c."""
    channels = images.shape[1]
    x, y = _from_center(images)
    matrix = _coefficients(args, 6)
    x_source, y_source = (
        # Each line's part is summed first: float32 rounds another order differently.
        x * along_x + (y * along_y + shift + middle)
        for middle, (along_x, along_y, shift) in zip(
            _middle(images), (matrix[:3], matrix[3:]), strict=True
        )
    )
    return _nearest(images, x_source, y_source, args[:, 6 : 6 + channels])


def _coefficients(args: Tensor, count: int) -> Sequence[Tensor]:
    """The first numbers of steps, each (n, 1, 1), for all pixels of a channel."""
    return args[:, :count].reshape(-1, count, 1, 1).unbind(1)


def _middle(images: Tensor) -> tuple[float, float]:
    """x and y of the centre, from the first pixel."""
    height, width = images.shape[2:]
    return (width - 1) / 2, (height - 1) / 2


def _from_center(images: Tensor) -> tuple[Tensor, Tensor]:
    """float32 (w,) and (h, 1): x and y of each pixel, from the centre."""
    height, width = images.shape[2:]
    middle_x, middle_y = _middle(images)
    x = torch.arange(width, device=images.device) - middle_x
    y = torch.arange(height, device=images.device) - middle_y
    return x, y.view(-1, 1)


def _nearest(images: Tensor, x: Tensor, y: Tensor, fill: Tensor) -> Tensor:
    """The pixels nearest to x, y, float32 (n, h, w), which are overwritten, or the fill (n, c)."""
    n, channels, height, width = images.shape
    # -1 and the size: the frame.
    column = x.round_().clamp_(-1, width).int()
    line = y.round_().clamp_(-1, height).int()
    fills = fill.to(images.dtype).view(n, channels, 1, 1)
    framed = fills.repeat(1, 1, height + 2, width + 2)
    framed[:, :, 1:-1, 1:-1] = images
    line.add_(1).mul_(width + 2)
    place = line.add_(column).add_(1).long()
    source = place.view(n, 1, -1).expand(-1, channels, -1)
    return framed.flatten(2).gather(2, source).view_as(images)


def warp(
    images: Tensor, args: Tensor, numbers: F32, bilinear: bool, pixels: Pixels = RGB
) -> Tensor:
    """Each pixel takes those that it comes from, the nearest one or four weighted ones, or the fill.

    Args:
        images: (n, c, h, w) of any number of channels: uint8, or the values of other `pixels` as float32, whose fill is
            that share of their peak. Whole numbers are rounded, floats are not, as in torchvision.
        args: float32 (n, ARGS) on their device: the matrix, then the fill.
        numbers: The same in host memory.
        bilinear: Whether four pixels are weighted; else the nearest one is taken.
        pixels: What the set stores: its channels and the range of their values.
    """
    has_perspective = bool(numbers[:, 6:8].any())
    is_filled = bool(numbers[:, MAP_ARGS:].any())
    x, y = _sources(images, args, has_perspective)
    fill = _warp_fill(images, args, pixels)
    if not bilinear:
        middle_x, middle_y = _middle(images)
        return _nearest(images, x.add_(middle_x), y.add_(middle_y), fill)
    height, width = images.shape[2:]
    x.mul_(2 / width)
    y.mul_(2 / height)
    grid = torch.stack([x, y], dim=-1)
    values = _interpolated(images, grid, fill if is_filled else None)
    if images.dtype == torch.uint8:
        return levels(values.round_())
    if pixels.dtype == "float32":
        return values
    return values.round_().clamp_(0, pixels.peak)


def _sources(
    images: Tensor, args: Tensor, has_perspective: bool
) -> tuple[Tensor, Tensor]:
    """Where each pixel comes from, x and y from the centre: float32 (n, h, w) each."""
    x, y = _from_center(images)
    matrix = _coefficients(args, MAP_ARGS)
    x_source, y_source = (
        x * along_x + (y * along_y + shift)
        for along_x, along_y, shift in (matrix[:3], matrix[3:6])
    )
    along_x, along_y, depth = matrix[6:]
    if not has_perspective:
        return x_source.div_(depth), y_source.div_(depth)
    depth = x * along_x + (y * along_y + depth)
    x_source.div_(depth).nan_to_num_(nan=torch.inf)
    y_source.div_(depth).nan_to_num_(nan=torch.inf)
    return x_source, y_source


def _warp_fill(images: Tensor, args: Tensor, pixels: Pixels) -> Tensor:
    """The fill of each image, (n, c): three levels where there are three channels, else one for all."""
    n, channels = images.shape[:2]
    levels_given = 3 if channels == 3 else 1
    fill = args[:, MAP_ARGS : MAP_ARGS + levels_given].expand(n, channels)
    if pixels.peak == RGB.peak:
        return fill
    fill = fill * (pixels.peak / RGB.peak)
    return fill if pixels.dtype == "float32" else fill.round()


def _interpolated(images: Tensor, grid: Tensor, fill: Tensor | None) -> Tensor:
    """float32 (n, c, h, w): four weighted pixels at each place of a grid.

    Args:
        fill: (n, c), of what is outside; None: 0.
    """
    n, channels = images.shape[:2]
    # The last channel is the share of each pixel that is not the fill, where there is one.
    values = images.float()
    if fill is not None:
        values = functional.pad(values, (0, 0, 0, 0, 0, 1), value=1.0)
    values = functional.grid_sample(
        values, grid, mode="bilinear", padding_mode="zeros", align_corners=False
    )
    if fill is None:
        return values
    outside = values[:, channels:].neg().add_(1)
    return values[:, :channels].addcmul_(outside, fill.view(n, channels, 1, 1))


_KERNELS: dict[int, Kernel] = {
    Op.BRIGHTNESS: brightness,
    Op.CONTRAST: contrast,
    Op.SATURATION: saturation,
    Op.HUE: hue,
    Op.GRAYSCALE: grayscale,
    Op.SOLARIZE: solarize,
    Op.SOLARIZE_ADD: solarize_add,
    Op.POSTERIZE: posterize,
    Op.AUTOCONTRAST: autocontrast,
    Op.EQUALIZE: equalize,
    Op.INVERT: invert,
    Op.SHARPNESS: sharpness,
}
