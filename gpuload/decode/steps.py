"""Executes the steps of images and masks: compiled on a CPU, otherwise in torch."""

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from itertools import groupby
from typing import Any

import numpy as np

from gpuload.fields.pixels import RGB, Pixels
from gpuload.fields.tree import take
from gpuload.machine.installed import fault_of
from gpuload.transforms.geometry import mask_steps
from gpuload.transforms.ops import FIRST_OWN
from gpuload.transforms.steps import Steps
from gpuload.types import F32


@cache
def has_compiled() -> bool:
    """Whether numba is installed."""
    return fault_of("gpuload.decode.native.transforms.run") is None


def has_own(steps: Steps) -> bool:
    """Whether one of the steps belongs to a user's transform."""
    return bool((steps.ops >= FIRST_OWN).any())


def is_compiled(images: Any) -> bool:
    """Whether compiled code executes the steps of these images: a NumPy array, or a tensor in host memory."""
    in_memory = isinstance(images, np.ndarray) or images.device.type == "cpu"
    return in_memory and str(images.dtype).rpartition(".")[2] == "uint8" and has_compiled()


def transform(images: Any, steps: Steps, pixels: Pixels = RGB) -> Any:
    """As `gpuload.transforms.apply.apply_steps`, on any device, of a tensor or a NumPy array. Where compiled code
    executes them, kernels of the user's get images one by one."""
    if not is_compiled(images):
        return _in_torch(images, steps, pixels)
    if not steps.ops.any():
        return images
    made, channels = np.ascontiguousarray(images), images.shape[1]
    for part in _parts(steps):
        if has_own(part):
            each = (slice(i, i + 1) for i in range(len(made)))
            made = np.concatenate([_in_torch(made[one], take(part, one), pixels) for one in each])
        else:
            before, made = made, np.empty_like(made)
            _run(before, part, made, np.zeros(channels, np.float32), np.ones(channels, np.float32))
    return made if isinstance(images, np.ndarray) else import_module("torch").from_numpy(made)


def transform_into(images: Any, steps: Steps, out: Any, mean: F32, factor: F32) -> None:
    """The same for those that `is_compiled` says: their levels, less mean (C,) and times factor, to `out`, which is
    uint8 or float32 (N, C, height, width), contiguous so or with channels last."""
    *first, last = _parts(steps)
    if has_own(last):
        first, last = [*first, last], Steps(steps.ops[:, :0], steps.args[:, :0])
    for part in first:
        images = transform(images, part)
    _run(images, last, out, mean, factor)


def warp_masks(masks: Any, steps: Steps, fill: int) -> Any:
    """Masks uint8 (n, h, w) after the geometric steps of their images, by nearest pixel; `fill` from outside."""
    return transform(masks[:, None], mask_steps(steps, fill))[:, 0]


def _in_torch(images: Any, steps: Steps, pixels: Pixels) -> Any:
    apply_steps = import_module("gpuload.transforms.apply").apply_steps
    if isinstance(images, np.ndarray):
        return apply_steps(import_module("torch").from_numpy(images), steps, pixels).numpy()
    return apply_steps(images, steps, pixels)


def _run(images: Any, steps: Steps, out: Any, mean: F32, factor: F32) -> None:
    from gpuload.decode.native.transforms.run import run  # numba is needed by the native decoder alone

    run(np.ascontiguousarray(images), steps, np.asarray(out), mean, factor)


def _parts(steps: Steps) -> Iterator[Steps]:
    """The steps in order, divided into gpuload's and the user's; at least one part."""
    is_own = [bool((column >= FIRST_OWN).any()) for column in steps.ops.T]
    begin = 0
    for _, group in groupby(is_own or [False]):
        end = begin + len(list(group))
        yield Steps(steps.ops[:, begin:end], steps.args[:, begin:end])
        begin = end
