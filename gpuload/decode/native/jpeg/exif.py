"""The orientation of an image (Exif 2.3, 4.6.4: tag 0x0112 of the first directory of a TIFF header)."""

from typing import Any

import numpy as np

from gpuload.decode.native.compiled import inlined
from gpuload.headers.exif import ORIENTATION

UPRIGHT, UNKNOWN = 1, 0

_LITTLE, _BIG = 0x49, 0x4D  # "II" and "MM", the byte order
_VERSION, _SHORT = 42, 3


@inlined
def _number(file: Any, at: int, size: int, little: bool) -> int:
    value = np.int64(0)
    for byte in range(size):
        value = value << 8 | np.int64(file[at + (size - 1 - byte if little else byte)])
    return int(value)


@inlined
def read_orientation(file: Any, begin: int, end: int) -> int:
    """The orientation, 1 to 8 as the standard counts, of the Exif data in file[begin:end], from their TIFF header on;
    UNKNOWN where they do not give one or are malformed. file: pointer to uint8."""
    if end - begin < 8 or file[begin] != file[begin + 1] or (file[begin] != _LITTLE and file[begin] != _BIG):
        return UNKNOWN
    little = file[begin] == _LITTLE
    at = begin + _number(file, begin + 4, 4, little)
    if _number(file, begin + 2, 2, little) != _VERSION or at + 2 > end:
        return UNKNOWN
    entries = _number(file, at, 2, little)
    for entry in range(entries):
        tag = at + 2 + 12 * entry
        if tag + 12 > end:
            return UNKNOWN
        if _number(file, tag, 2, little) == ORIENTATION:
            is_short = _number(file, tag + 2, 2, little) == _SHORT and _number(file, tag + 4, 4, little) == 1
            value = _number(file, tag + 8, 2, little)
            return value if is_short and 1 <= value <= 8 else UNKNOWN
    return UNKNOWN
