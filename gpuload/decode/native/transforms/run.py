"""What transforms on the CPU: each image in the cache, in the thread that decodes, without Python's lock."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.decode.native import steps as compiled
from gpuload.decode.native.compiled import address_of, load
from gpuload.decode.native.transforms.image import mix, transform_rows
from gpuload.decode.native.transforms.moves import move
from gpuload.decode.native.transforms.points import hue, points, saturation
from gpuload.decode.native.transforms.stencils import blur, sharpness
from gpuload.decode.native.values import Target, output_of
from gpuload.machine.installed import paused_collector
from gpuload.transforms.ops import FIRST_OWN, Op
from gpuload.transforms.steps import Steps
from gpuload.types import F32, U8

_FUNCTIONS: tuple[Any, ...] = (points, move, transform_rows, blur, hue, sharpness, saturation, mix)
_NAMED = {one.py_func.__name__: one for one in _FUNCTIONS}
_OPERATIONS = {op: _NAMED[op.compiled] for op in Op if op.compiled}
_addresses = np.zeros(FIRST_OWN, np.int64)  # of the operations that are loaded, by code


def functions_of(ops: Iterable[int]) -> list[Any]:
    """The compiled functions that steps with these codes need, those first that take longest to compile."""
    chosen = {_OPERATIONS[Op(code)] for code in ops if 0 < code < FIRST_OWN}
    return [one for one in _FUNCTIONS if one in chosen or (chosen and one is transform_rows)]


def _load_operations(ops: npt.NDArray[np.int8]) -> None:
    missing = [code for code in set(ops.ravel().tolist()) if 0 < code < FIRST_OWN and not _addresses[code]]
    if not missing:
        return
    with paused_collector():
        load(functions_of(missing))
    for code in missing:
        _addresses[code] = address_of(_OPERATIONS[Op(code)])


def transform(steps: Steps, target: Target, levels: compiled.Step) -> compiled.Step:
    """What makes views after their steps. levels: what makes them before, as uint8 (N, C, height, width)."""
    return _step(steps, target, *levels.call, len(levels.numbers), held=levels)


def run(images: U8, steps: Steps, out: npt.NDArray[Any], mean: F32, factor: F32) -> None:
    """The images after their steps, less `mean` (C,) and times `factor`, as values of a batch.

    images: uint8 (N, C, height, width), contiguous, which stay as they are. out: as in `Target`, of N images.
    """
    _step(steps, Target(out, mean, factor), 0, images.ctypes.data, 0, held=images)(0, len(images))


def _step(steps: Steps, target: Target, function: int, arguments: int, number: int, held: Any) -> compiled.Step:
    ops, args = np.ascontiguousarray(steps.ops), np.ascontiguousarray(steps.args)
    _load_operations(ops)
    source, channels, count = (function, arguments, number), target.out.shape[1], ops.shape[1]
    settings = (channels, ops, args, count, _addresses, *output_of(target))
    return compiled.Step(transform_rows, *source, *settings, held=(held, target))
