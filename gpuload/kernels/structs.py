"""The structures that kernels take, as in their headers; `tests/kernels/test_kernels.py` compares the fields.

Arrays are given by their address (`array.ctypes.data`), and whoever gives one keeps it alive. Numbers and addresses
have 64 bits each.
"""

import ctypes
from typing import Any

import numpy as np

_INT = ctypes.c_int64
_POINTER = ctypes.c_void_p

# The decoded pixels of an image, one row for each image of a batch.
PICTURE = np.dtype(
    [
        ("pixels", np.int64),  # address of the first value; 0: not decoded
        ("height", np.int64),
        ("width", np.int64),
        ("stride", np.int64),  # bytes from row to row
        ("top", np.int64),  # where the first pixel lies in the stored image
        ("left", np.int64),
        (
            "factor",
            np.int64,
        ),  # pixels of the stored image, along each side, that make one of these
    ]
)


class Bands(ctypes.Structure):
    """Pixels that are not 8-bit RGB: bytes of a value (1: uint8, 2: uint16, 4: float32), channels that are needed,
    values from one pixel to the next, the largest value, and whether the one channel is computed from RGB."""

    _fields_ = (
        ("value_bytes", _INT),
        ("channels", _INT),
        ("step", _INT),
        ("peak", _INT),
        ("luma", _INT),
    )


class OutputMemory(ctypes.Structure):
    """A batch's memory, written as (level - mean) * factor."""

    _fields_ = (
        ("values", _POINTER),
        ("height", _INT),
        ("width", _INT),
        ("planar", _INT),
        ("floats", _INT),
        ("mean", _POINTER),
        ("factor", _POINTER),
    )


class ResizeArguments(ctypes.Structure):
    """The arguments of `resize_rgb` and `resize_bands`."""

    _fields_ = (
        ("pictures", _POINTER),
        ("windows", _POINTER),
        ("regions", _POINTER),
        ("flips", _POINTER),
        ("cubic", _INT),
        ("bands", _POINTER),
        ("output", OutputMemory),
    )


class CropArguments(ctypes.Structure):
    """The arguments of `crop_or_pad_rgb` and `crop_or_pad_bands`."""

    _fields_ = (
        ("pictures", _POINTER),
        ("windows", _POINTER),
        ("flips", _POINTER),
        ("sizes", _POINTER),
        ("fill", _POINTER),
        ("padding_mode", _INT),
        ("bands", _POINTER),
        ("output", OutputMemory),
    )


class NearestArguments(ctypes.Structure):
    """The arguments of `pick_nearest`."""

    _fields_ = (
        ("pictures", _POINTER),
        ("starts", _POINTER),
        ("shapes", _POINTER),
        ("regions", _POINTER),
        ("flips", _POINTER),
        ("sizes", _POINTER),
        ("outputs", _POINTER),
        ("fill", _POINTER),
        ("table", _POINTER),
        ("padding_mode", _INT),
        ("within_windows", _INT),
        ("value_bytes", _INT),
        ("entry_bytes", _INT),
        ("channels", _INT),
        ("step", _INT),
        ("values", _POINTER),
        ("inside", _POINTER),
        ("height", _INT),
        ("width", _INT),
    )


class TransformArguments(ctypes.Structure):
    """The arguments of `transform_images`."""

    _fields_ = (
        ("make_levels", _POINTER),
        ("arguments", _POINTER),
        ("arguments_bytes", _INT),
        ("output_offset", _INT),
        ("pictures", _POINTER),
        ("levels", _POINTER),
        ("channels", _INT),
        ("ops", _POINTER),
        ("numbers", _POINTER),
        ("steps", _INT),
        ("output", OutputMemory),
    )


class ImageBatch(ctypes.Structure):
    """The encoded images of a batch, and which part of each is needed."""

    _fields_ = (
        ("files", _POINTER),
        ("points", _POINTER),
        ("windows", _POINTER),
        ("factors", _POINTER),
        ("room", _POINTER),
        ("pictures", _POINTER),
        ("all_upright", _INT),
        ("layout", _INT),
    )


class ImageThread(ctypes.Structure):
    """What a thread decodes with."""

    _fields_ = (("memory", _POINTER), ("scratch", _POINTER))


class KernelCall(ctypes.Structure):
    """A kernel and its arguments, for `run_blocks`."""

    _fields_ = (("run", _POINTER), ("arguments", _POINTER))


class Blocks(ctypes.Structure):
    """The arguments of `run_blocks`."""

    _fields_ = (
        ("rows", _INT),
        ("rows_at_once", _INT),
        ("pictures", _POINTER),
        ("images", _POINTER),
        ("steps", _POINTER),
        ("steps_number", _INT),
        ("leaves_all", _INT),
    )


def address(structure: Any) -> int:
    """The address of a structure, which its owner keeps alive."""
    return ctypes.addressof(structure)
