"""Names for array types and sizes, one for each in the whole package."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]
I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

# Two orders of the same numbers, as their users write them: arrays are (height, width), Pillow and people width×height.
HeightWidth = tuple[int, int]
WidthHeight = tuple[int, int]

# By class number; None where the data set does not name its classes.
ClassNames = tuple[str, ...] | None
