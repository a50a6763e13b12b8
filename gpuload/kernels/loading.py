"""Loads the library of kernels for this processor, and declares its functions."""

import ctypes
import functools
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpuload.errors import MissingPackageError
from gpuload.kernels.sources import BuildTarget, stamp_of_sources, targets_of

CHOICE = "GPULOAD_KERNELS"  # names a library, such as x86_64_v2, or the file of one, to use in place of the best one
_BUILD = "python tools/build_kernels.py"

_INT = ctypes.c_int64
_POINTER = ctypes.c_void_p
_ROWS = (_POINTER, _INT, _INT)  # of a step: its arguments, and the rows to process
# By name: the type of the result, and of the arguments.
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "processor_level": (_INT, ()),
    "resize_rgb": (_INT, _ROWS),
    "resize_bands": (_INT, _ROWS),
    "crop_or_pad_rgb": (_INT, _ROWS),
    "crop_or_pad_bands": (_INT, _ROWS),
    "pick_nearest": (_INT, _ROWS),
    "transform_images": (_INT, _ROWS),
    "run_blocks": (_INT, (_POINTER, _POINTER, _POINTER)),
    "decode_rows": (None, (_POINTER, _POINTER, _INT, _INT)),
    "image_scratch_bytes": (_INT, ()),
    "image_room": (_INT, (_POINTER, _INT)),
    "jpeg_scratch_bytes": (_INT, ()),
    "png_scratch_bytes": (_INT, ()),
    "divide_png": (
        _INT,
        (_POINTER, _INT, _INT, _POINTER, _POINTER, _INT, _POINTER),
    ),
    "find_points": (_INT, (_POINTER, _INT, _POINTER, _INT, _INT, _POINTER, _INT)),
    "points_hold": (_INT, (_POINTER, _INT, _POINTER, _INT, _INT, _POINTER, _INT)),
    "check_jpegs": (None, (_POINTER, _POINTER, _POINTER, _INT, _POINTER)),
    "exif_orientation": (_INT, (ctypes.c_char_p, _INT)),
    "install_bus_handler": (None, ()),
    "protect_range": (None, (_INT, ctypes.c_size_t, ctypes.c_size_t)),
    "release_range": (None, (_INT,)),
    "range_slots": (_INT, ()),
    "count_bus_faults": (_INT, ()),
    "bus_fault_of": (_INT, (_INT,)),
}


@functools.cache
def library() -> ctypes.CDLL:
    """The best library for this processor. Its functions run without Python's lock.

    Raises:
        MissingPackageError: it was not built, is older than its sources, or this processor cannot run any.
    """
    return load(library_file())


@functools.cache
def library_file() -> Path:
    """The file of the library: the best one for this processor, or what the variable GPULOAD_KERNELS says."""
    machine = platform.machine()
    targets = targets_of(machine)
    wanted = os.environ.get(CHOICE)
    if wanted:
        return _wanted_file(wanted, targets)
    if not targets:
        raise MissingPackageError(
            f"gpuload has kernels for x86_64 and aarch64, and this machine is {machine}"
        )
    plainest = targets[-1]
    if plainest.level == 0:
        return plainest.file
    # Which runs everywhere, as far as this function.
    level = int(load(plainest.file).processor_level())
    for target in targets:
        if level >= target.level:
            return target.file
    raise MissingPackageError(
        "gpuload's kernels need a processor of the level x86-64-v2 (SSE 4.2 and POPCNT, as all have since 2009), and "
        f"this one has the level {level}"
    )


def _wanted_file(wanted: str, targets: Sequence[BuildTarget]) -> Path:
    for target in targets:
        if target.file.stem == wanted:
            return target.file
    if wanted.endswith(".so"):
        return Path(wanted)
    names = ", ".join(target.file.stem for target in targets)
    raise MissingPackageError(
        f"{CHOICE}={wanted}: not a library for this machine. Expected one of {names}, or a file"
    )


@functools.cache
def load(path: Path) -> ctypes.CDLL:
    """The library in a file, with its functions declared."""
    stamp = stamp_of_sources()
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        remedy = f"Build them: {_BUILD}" if stamp else "Install gpuload anew"
        raise MissingPackageError(
            f"gpuload's kernels cannot be loaded: {error}. {remedy}"
        ) from None
    loaded.kernel_stamp.restype = ctypes.c_char_p
    if stamp and loaded.kernel_stamp() != stamp.encode():
        raise MissingPackageError(
            f"{path}: gpuload's kernels are older than their sources. Build them: {_BUILD}"
        )
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype = result
        function.argtypes = arguments
    return loaded


@functools.cache
def address_of(name: str) -> int:
    """The address of a function of the library, for other functions that call it."""
    return ctypes.cast(getattr(library(), name), ctypes.c_void_p).value or 0


def kernel(name: str) -> Callable[..., Any]:
    """A function of the library."""
    function: Callable[..., Any] = getattr(library(), name)
    return function
