"""The arithmetic of each step on uint8 images, the same on CPU and GPU; torchvision's results within one level.

Each kernel takes images, uint8 (n, 3, h, w), contiguous, and the numbers of their steps, float32 (n, ARGS), on the same
device, and returns new images. None waits for the GPU. What looks roundabout is for the CPU, where torch has vector
code for some operations only: for 224 × 224 pixels on one thread, float32 to uint8 takes 46 µs, through int16 16 µs;
`where` takes 590 µs, minimum and exclusive or 20 µs.

One image of 224 × 224 on one thread, in µs of processor time (EPYC of 2.6 GHz, 2 cores shared with other work, so the
minimum of 80 runs each, 2026-11; 9 of these are the call): brightness 57, contrast 104, saturation 96, hue 286,
grayscale 63, blur of 23 pixels 487 with a sigma of 1 and 834 with 2, solarize 30, posterize 25, autocontrast 92,
equalize 235, invert 13, sharpness 190, affine 182.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional

from gpuload.fields.images import RGB, Pixels
from gpuload.transforms.ops import MAP_ARGS, Op
from gpuload.types import F32

Tensor = torch.Tensor
Kernel = Callable[[Tensor, Tensor], Tensor]


def _column(args: Tensor, index: int) -> Tensor:
    """float32 (n, 1, 1, 1): one number for each image."""
    return args[:, index].view(-1, 1, 1, 1)


def levels(pixels: Tensor) -> Tensor:
    """uint8, clamped to 0..255 and truncated, out of float32, which is overwritten."""
    return pixels.clamp_(0, 255).to(torch.int16).to(torch.uint8)


def _gray(pixels: Tensor) -> Tensor:
    """float32 (n, 1, h, w), whole numbers, out of any (n, 3, h, w)."""
    if pixels.shape[1] == 1:
        return pixels.clone()
    r, g, b = (pixels[:, i : i + 1] for i in range(3))
    return r.mul(0.2989).add_(g, alpha=0.587).add_(b, alpha=0.114).floor_()


def brightness(images: Tensor, args: Tensor) -> Tensor:
    return levels(images.float().mul_(_column(args, 0)))


def contrast(images: Tensor, args: Tensor) -> Tensor:
    pixels = images.float()
    # The sum of a line is a whole number that float32 holds exactly, the sum of lines one that float64 does: so the
    # order of additions does not matter, and an image is the same in any batch.
    sums = _gray(pixels).sum(dim=3).sum(dim=(1, 2), dtype=torch.float64)
    mean = (sums / (images.shape[2] * images.shape[3])).float().view(-1, 1, 1, 1)
    factor = _column(args, 0)
    return levels(pixels.mul_(factor).add_(mean * (1 - factor)))


def saturation(images: Tensor, args: Tensor) -> Tensor:
    pixels, factor = images.float(), _column(args, 0)
    gray = _gray(pixels)
    return levels(pixels.mul_(factor).addcmul_(gray, 1 - factor))


def hue(images: Tensor, args: Tensor) -> Tensor:
    """Rotates the hue hexagon of HSV (Smith, SIGGRAPH 1978); the largest and smallest channel stay.

    Instead of a selection, which is slow in torch, this uses arithmetic with 0 and 1: `not_r` is 1 where red is not the
    largest channel.
    """
    r, g, b = (images[:, i : i + 1] for i in range(3))
    largest = torch.maximum(torch.maximum(r, g), b)
    smallest = torch.minimum(torch.minimum(r, g), b)
    not_r, not_g = ((largest - channel).clamp_(max=1).to(torch.int16) for channel in (r, g))
    r, g, b = (channel.to(torch.int16) for channel in (r, g, b))
    difference = (b - r).mul_(1 - not_g).add_((r - g).mul_(not_g)).mul_(not_r).add_((g - b).mul_(1 - not_r))
    chroma = (largest - smallest).float()
    turn = difference.float().div_(chroma.clamp(min=1)).add_((not_g + 1).mul_(not_r), alpha=2)
    turn.add_(6 * _column(args, 0))
    turn.sub_(torch.floor(turn / 6), alpha=6)  # 0..6: red, yellow, green, cyan, blue, magenta
    smallest = smallest.float()
    result = torch.empty_like(images)
    for channel, (middle, sign, offset) in enumerate(((3, 1, -1), (2, -1, 2), (4, -1, 2))):
        above = (turn - middle).abs_().mul_(sign).add_(offset).clamp_(0, 1).mul_(chroma).add_(smallest)
        # As torchvision rounds: 256 equal parts of 0..1.
        result[:, channel : channel + 1] = levels(above.mul_(255.999 / 255))
    return result


def grayscale(images: Tensor, args: Tensor) -> Tensor:
    return levels(_gray(images.float())).expand(images.shape).contiguous()


def solarize(images: Tensor, args: Tensor) -> Tensor:
    return torch.where(images < _column(args, 0), images, ~images)


def solarize_add(images: Tensor, args: Tensor) -> Tensor:
    return (images < 128).to(torch.uint8).mul_(_column(args, 0).to(torch.uint8)).add_(images)


def posterize(images: Tensor, args: Tensor) -> Tensor:
    kept = 256 - torch.exp2(8 - _column(args, 0).round())
    return images & kept.to(torch.uint8)


def autocontrast(images: Tensor, args: Tensor) -> Tensor:
    low, high = (bound.float() for bound in (images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)))
    flat = (high == low).float()  # a channel of one level stays as it is
    scale = (high - low) * (1 / 255) + flat
    return levels(images.float().sub_(low * (1 - flat)).div_(scale))


def equalize(images: Tensor, args: Tensor) -> Tensor:
    """Pillow's ImageOps.equalize, in whole numbers: the levels of a channel become its cumulative histogram."""
    n, channels = images.shape[:2]
    flat = images.view(n, channels, -1).long()
    histogram = torch.zeros((n, channels, 256), dtype=torch.int32, device=images.device)
    histogram.scatter_add_(2, flat, torch.ones((), dtype=torch.int32, device=images.device).expand_as(flat))
    below = histogram.cumsum(2) - histogram  # pixels of a lower level
    # All pixels but those of the highest level, below which most pixels are.
    step = (below * histogram.clamp(max=1)).amax(2, keepdim=True) // 255
    table = ((below + step // 2) // step.clamp(min=1)).clamp_(0, 255)
    table = torch.where(step > 0, table, torch.arange(256, device=images.device))
    return table.to(torch.uint8).gather(2, flat).view_as(images)


def invert(images: Tensor, args: Tensor) -> Tensor:
    return images.bitwise_not()


def sharpness(images: Tensor, args: Tensor) -> Tensor:
    """Blends with a blur of weights 1, 5 in the centre, over 13; a border of one pixel stays as it is."""
    if min(images.shape[2:]) < 3:
        return images.clone()
    pixels = images.float()
    inner = pixels[:, :, 1:-1, 1:-1]
    lines = (pixels[:, :, :-2] + pixels[:, :, 1:-1]).add_(pixels[:, :, 2:])
    blurred = (lines[..., :-2] + lines[..., 1:-1]).add_(lines[..., 2:]).add_(inner, alpha=4).mul_(1 / 13).round_()
    inner += blurred.sub_(inner).mul_(1 - _column(args, 0))
    return levels(pixels)


def gaussian_blur(images: Tensor, args: Tensor, numbers: F32) -> Tensor:
    """One direction after the other, a weight at a time; `numbers` are `args` as a NumPy array.

    Weights beyond five sigmas, less than a millionth of the sum, are omitted, so that the kernel is no larger than
    needed.
    """
    x, y = (int(np.minimum(np.ceil(5 * numbers[:, 0]), numbers[:, size] // 2).max()) for size in (1, 2))
    pixels = functional.pad(images.float(), (x, x, y, y), mode="reflect")
    pixels = _weighted(pixels, _weights(args, x, 1), 3)
    return levels(_weighted(pixels, _weights(args, y, 2), 2).round_())


def _weights(args: Tensor, reach: int, size: int) -> Tensor:
    """float32 (n, 2 reach + 1), of sum 1: the normal density, 0 beyond each image's kernel, of size args[:, size]."""
    away = torch.arange(-reach, reach + 1, device=args.device, dtype=torch.float32)
    weights = torch.exp(-0.5 * (away / args[:, :1]) ** 2)
    weights = weights * (away.abs() <= args[:, size : size + 1] // 2)
    return weights / weights.sum(dim=1, keepdim=True)


def _weighted(pixels: Tensor, weights: Tensor, dim: int) -> Tensor:
    """The weighted sum of neighbours along `dim`, which becomes shorter by the number of weights less 1."""
    size = pixels.shape[dim] - weights.shape[1] + 1
    total = pixels.narrow(dim, 0, size) * _column(weights, 0)
    for index in range(1, weights.shape[1]):
        total.addcmul_(pixels.narrow(dim, index, size), _column(weights, index))
    return total


def affine(images: Tensor, args: Tensor) -> Tensor:
    """Each pixel takes the nearest one that it comes from, or the fill; (n, c, h, w), of any number of channels c."""
    n, channels, height, width = images.shape
    x = torch.arange(width, device=images.device) - (width - 1) / 2
    y = (torch.arange(height, device=images.device) - (height - 1) / 2).view(-1, 1)
    matrix = args[:, :6].reshape(n, 6, 1, 1)
    x_at, y_at = (
        x * matrix[:, first] + (y * matrix[:, first + 1] + matrix[:, first + 2] + (size - 1) / 2)
        for first, size in ((0, width), (3, height))
    )
    return _nearest(images, x_at, y_at, args[:, 6 : 6 + channels])


def _nearest(images: Tensor, x: Tensor, y: Tensor, fill: Tensor) -> Tensor:
    """The pixels nearest to x, y, float32 (n, h, w), which are overwritten, or the fill (n, c)."""
    n, channels, height, width = images.shape
    # -1 and the size: the frame.
    x, y = (at.round_().clamp_(-1, size).int() for at, size in ((x, width), (y, height)))
    framed = fill.to(images.dtype).view(n, channels, 1, 1).repeat(1, 1, height + 2, width + 2)
    framed[:, :, 1:-1, 1:-1] = images
    source = y.add_(1).mul_(width + 2).add_(x).add_(1).view(n, 1, -1).long()
    return framed.view(n, channels, -1).gather(2, source.expand(-1, channels, -1)).view_as(images)


def warp(images: Tensor, args: Tensor, numbers: F32, bilinear: bool, pixels: Pixels = RGB) -> Tensor:
    """Each pixel takes those that it comes from, the nearest one or four weighted ones, or the fill; (n, c, h, w), of
    any number of channels c. `numbers` are `args` as a NumPy array.

    images: uint8, or the values of other `pixels` as float32, whose fill is that share of their peak. Whole numbers are
    rounded, floats are not, as in torchvision.
    """
    n, channels, height, width = images.shape
    x = torch.arange(width, device=images.device) - (width - 1) / 2
    y = (torch.arange(height, device=images.device) - (height - 1) / 2).view(-1, 1)
    matrix = args[:, :MAP_ARGS].reshape(n, MAP_ARGS, 1, 1)
    rows = [x * matrix[:, first] + (y * matrix[:, first + 1] + matrix[:, first + 2]) for first in (0, 3)]
    if numbers[:, 6:8].any():
        along = x * matrix[:, 6] + (y * matrix[:, 7] + matrix[:, 8])
        rows = [row.div_(along).nan_to_num_(nan=torch.inf) for row in rows]
    else:
        rows = [row.div_(matrix[:, 8]) for row in rows]
    x_at, y_at = rows
    # Three levels where there are three channels, else one for all.
    fill = args[:, MAP_ARGS : MAP_ARGS + (3 if channels == 3 else 1)].expand(n, channels)
    if pixels.peak != RGB.peak:
        fill = fill * (pixels.peak / RGB.peak)
        fill = fill if pixels.dtype == "float32" else fill.round()
    if not bilinear:
        return _nearest(images, x_at.add_((width - 1) / 2), y_at.add_((height - 1) / 2), fill)
    grid = torch.stack([x_at.mul_(2 / width), y_at.mul_(2 / height)], dim=-1)
    fills = bool(numbers[:, MAP_ARGS:].any())
    # The last channel is the share of each pixel that is not the fill, where there is one.
    values = functional.pad(images.float(), (0, 0, 0, 0, 0, 1), value=1.0) if fills else images.float()
    values = functional.grid_sample(values, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    if fills:
        outside = values[:, channels:].neg().add_(1)
        values = values[:, :channels].addcmul_(outside, fill.view(n, channels, 1, 1))
    if images.dtype == torch.uint8:
        return levels(values.round_())
    return values if pixels.dtype == "float32" else values.round_().clamp_(0, pixels.peak)


KERNELS: dict[Op, Kernel] = {
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
    Op.AFFINE: affine,
}
