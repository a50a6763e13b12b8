"""Compiles all that any loader on a CPU may call, ahead of the first one."""

import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import get_args

from gpuload.augment import Augment
from gpuload.augment.views import Crop, DType, Layout
from gpuload.decode.interface import Stored
from gpuload.decode.native import jpeg
from gpuload.decode.native.compiled import cache_folders, count_compiled
from gpuload.decode.native.decoder import NativeDecoder


@dataclass(frozen=True)
class WarmUp:
    """What a warm-up did.

    folders: where the machine code lies; none where no folder can be written, so that it is lost again.
    seconds: what it took. compiled: versions of functions that were compiled; the others were there already.
    """

    folders: tuple[Path, ...]
    seconds: float
    compiled: int


def warm_up() -> WarmUp:
    """Compiles what the native decoder calls, for every dtype, layout and kind of crop, or loads it.

    Compiling takes about 15 s of one core's time. It is for this kind of processor, this Python and this version of
    numba; elsewhere the first loader compiles again.
    """
    started = time.perf_counter()
    kinds = product(get_args(DType), get_args(Layout), get_args(Crop))
    forms = [Augment(1, dtype=dtype, layout=layout, crop=crop).form for dtype, layout, crop in kinds]
    NativeDecoder(forms, Stored(), batch_size=1, num_threads=1, prefetch=1).close()
    jpeg.load_compiled()  # which the decoder has left to a thread of its own
    return WarmUp(tuple(cache_folders()), time.perf_counter() - started, count_compiled())
