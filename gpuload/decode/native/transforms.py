"""Transforms on the CPU: each image in the cache, in the thread that decodes, without Python's lock."""

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.decode.native.steps import Step
from gpuload.decode.native.values import PixelTarget, output_of
from gpuload.kernels.structs import CropArguments, ResizeArguments, TransformArguments
from gpuload.transforms.steps import Steps
from gpuload.types import F32, U8


def transform(steps: Steps, target: PixelTarget, levels: Step) -> Step:
    """What makes views after their steps.

    Args:
        steps: Of N images.
        target: Of the views.
        levels: What makes the images before the steps, as uint8 (N, C, height, width); it writes where the kernel says.
    """
    made_by = levels.arguments
    assert isinstance(made_by, ResizeArguments | CropArguments)
    ops = np.ascontiguousarray(steps.ops)
    numbers = np.ascontiguousarray(steps.args)
    arguments = _arguments(ops, numbers, target)
    arguments.make_levels = levels.function_address
    arguments.arguments = levels.address
    arguments.arguments_bytes = ctypes.sizeof(made_by)
    arguments.output_offset = type(made_by).output.offset
    arguments.pictures = made_by.pictures
    return Step("transform_images", arguments, target, ops, numbers, levels)


def run(
    images: U8, steps: Steps, out: npt.NDArray[Any], mean: F32, factor: F32
) -> None:
    """Writes images after their steps, less `mean` and times `factor`, as values of a batch.

    Args:
        images: uint8 (N, C, height, width), contiguous; stays as it is.
        steps: Of the images.
        out: float32 or uint8 (N, C, height, width), contiguous so or with channels last.
        mean: float32 (C,).
        factor: float32 (C,).
    """
    target = PixelTarget(out, mean, factor)
    ops = np.ascontiguousarray(steps.ops)
    numbers = np.ascontiguousarray(steps.args)
    arguments = _arguments(ops, numbers, target)
    arguments.levels = images.ctypes.data
    Step("transform_images", arguments, target, ops, numbers, images)(0, len(images))


def _arguments(
    ops: npt.NDArray[np.int8], numbers: F32, target: PixelTarget
) -> TransformArguments:
    return TransformArguments(
        channels=target.out.shape[1],
        ops=ops.ctypes.data,
        numbers=numbers.ctypes.data,
        steps=ops.shape[1],
        output=output_of(target),
    )
