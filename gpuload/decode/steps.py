"""Executes the steps of images and masks: compiled on a CPU, else in torch."""

from collections.abc import Iterator
from functools import cache
from itertools import groupby

import numpy as np
import torch

from gpuload.fields.pixels import RGB, Pixels
from gpuload.fields.tree import take
from gpuload.machine.installed import fault_of
from gpuload.transforms.apply import apply_steps
from gpuload.transforms.geometry import mask_steps
from gpuload.transforms.ops import FIRST_OWN
from gpuload.transforms.steps import Steps
from gpuload.types import F32

Tensor = torch.Tensor


@cache
def has_compiled() -> bool:
    """Whether numba is there."""
    return fault_of("gpuload.decode.native.transforms.run") is None


def has_own(steps: Steps) -> bool:
    """Whether one of them is of a transform of the user's."""
    return bool((steps.ops >= FIRST_OWN).any())


def is_compiled(images: Tensor) -> bool:
    """Whether compiled code executes the steps of these images."""
    return images.dtype == torch.uint8 and images.device.type == "cpu" and has_compiled()


@torch.no_grad()
def transform(images: Tensor, steps: Steps, pixels: Pixels = RGB) -> Tensor:
    """As `gpuload.transforms.apply.apply_steps`, on any device. Where compiled code executes them, kernels of the
    user's get images one by one."""
    if not is_compiled(images):
        return apply_steps(images, steps, pixels)
    if not steps.ops.any():
        return images
    images, channels = images.contiguous(), images.shape[1]
    for part in _parts(steps):
        if has_own(part):
            each = (slice(i, i + 1) for i in range(len(images)))
            images = torch.cat([apply_steps(images[one], take(part, one), pixels) for one in each])
        else:
            made = torch.empty_like(images)
            _run(images, part, made, np.zeros(channels, np.float32), np.ones(channels, np.float32))
            images = made
    return images


@torch.no_grad()
def transform_into(images: Tensor, steps: Steps, out: Tensor, mean: F32, factor: F32) -> None:
    """The same for those that `is_compiled` says: their levels, less mean (C,) and times factor, to `out`, which is
    uint8 or float32 (N, C, height, width), contiguous so or with channels last."""
    *first, last = _parts(steps)
    if has_own(last):
        first, last = [*first, last], Steps(steps.ops[:, :0], steps.args[:, :0])
    for part in first:
        images = transform(images, part)
    _run(images.contiguous(), last, out, mean, factor)


def warp_masks(masks: Tensor, steps: Steps, fill: int) -> Tensor:
    """Masks uint8 (n, h, w) after the geometric steps of their images, by nearest pixel; `fill` from outside."""
    return transform(masks.unsqueeze(1), mask_steps(steps, fill)).squeeze(1)


def _run(images: Tensor, steps: Steps, out: Tensor, mean: F32, factor: F32) -> None:
    from gpuload.decode.native.transforms.run import run  # numba is needed by the native decoder alone

    run(images.numpy(), steps, out.numpy(), mean, factor)


def _parts(steps: Steps) -> Iterator[Steps]:
    """The steps in their order, in parts that are gpuload's, or the user's; at least one."""
    is_own = [bool((column >= FIRST_OWN).any()) for column in steps.ops.T]
    begin = 0
    for _, group in groupby(is_own or [False]):
        end = begin + len(list(group))
        yield Steps(steps.ops[:, begin:end], steps.args[:, begin:end])
        begin = end
