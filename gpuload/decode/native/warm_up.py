"""Compiles all code that a loader of RGB images on a CPU may call, ahead of the first one."""

import time
from dataclasses import dataclass
from pathlib import Path

from gpuload.augment import Augment
from gpuload.augment.geometries import CROPS
from gpuload.decode.native import jpeg
from gpuload.decode.native.compiled import cache_folders, count_compiled
from gpuload.decode.native.cuts import load_compiled
from gpuload.decode.native.transforms.run import load_all
from gpuload.machine.installed import paused_collector


@dataclass(frozen=True)
class WarmUp:
    """The result of a warm-up.

    folders: of the machine code; none if no folder is writable, so the code is lost again.
    seconds: its duration. compiled: number of function versions compiled; the others existed already.
    """

    folders: tuple[Path, ...]
    seconds: float
    compiled: int


def warm_up() -> WarmUp:
    """Compiles or loads the native decoder's code for RGB, for every kind of crop.

    Compiling takes about 8 s of one core's time. It is for this kind of processor, this Python and this version of
    numba; elsewhere the first loader compiles again.
    """
    started = time.perf_counter()
    with paused_collector():
        for crop in CROPS.values():
            load_compiled(Augment(None if crop.own_sizes else 1, crop=crop).form)
        load_all()
        jpeg.load_compiled()
    return WarmUp(tuple(cache_folders()), time.perf_counter() - started, count_compiled())
