"""Which packages can be used here, and the extra of gpuload that brings the others."""

import ctypes
import importlib.util
from importlib import import_module
from typing import NamedTuple

from gpuload.collector import paused_collector

_CUDA_13 = 13_000  # as NVIDIA's driver tells its version: 13000 is 13.0


class Fault(NamedTuple):
    """Why a package cannot be used. reason, remedy: for messages. is_missing: it is only not installed."""

    reason: str
    remedy: str
    is_missing: bool = False


def fault_of(package: str, without_gpu: str = "cpu") -> Fault | None:
    """Why a package cannot be used; None where it can, and is imported.

    without_gpu: the extra that brings it on a machine without NVIDIA's driver.
    """
    try:
        if importlib.util.find_spec(package) is None:
            return _missing(package, without_gpu)
        with paused_collector():
            import_module(package)
    except ValueError:  # find_spec: sys.modules holds None for it
        return _missing(package, without_gpu)
    except Exception as error:  # one of its parts is missing, needs another NumPy, or lacks a library of the system
        if isinstance(error, ModuleNotFoundError) and f"{package}.".startswith(f"{error.name}."):
            return _missing(package, without_gpu)  # its parent is missing, or sys.modules holds None for it
        lines = [f"{type(error).__name__}: {line}" for line in str(error).splitlines() if line.strip()]
        return Fault(
            f"{package} is installed but cannot be imported ({(lines or [type(error).__name__])[0]})",
            f"`pip install -U 'gpuload[{cuda_extra() or without_gpu}]'` brings versions that fit",
        )
    return None


def _missing(package: str, without_gpu: str) -> Fault:
    remedy = f"`pip install 'gpuload[{cuda_extra() or without_gpu}]'` brings it"
    return Fault(f"{package} is not installed", remedy, is_missing=True)


def cuda_extra() -> str | None:
    """The extra for this machine's driver, "cuda13" or "cuda12"; None without a driver."""
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return "cuda13" if failed or version.value >= _CUDA_13 else "cuda12"


def has_driver() -> bool:
    """Whether NVIDIA's driver is installed. This costs nothing, while asking DALI costs its import, 0.3 s."""
    return cuda_extra() is not None
