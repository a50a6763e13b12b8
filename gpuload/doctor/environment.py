"""Checks of the machine: NVIDIA's driver and the packages, whether they fit together; compiled code; cores."""

import ctypes
import os
import platform
from collections import Counter
from collections.abc import Callable
from importlib import import_module, metadata
from typing import Any, NamedTuple

from packaging.version import Version

from gpuload import __version__
from gpuload.doctor import Answer
from gpuload.errors import MissingPackageError
from gpuload.kernels.loading import library, library_file
from gpuload.machine.installed import cuda_version, fault_of
from gpuload.machine.limits import affinity, count_cores, cpu_quota


class Driver(NamedTuple):
    """NVIDIA's driver.

    Attributes:
        cuda: The newest CUDA that it runs, as (13, 0).
        error: Why it cannot be used; None where it can.
        gpus: Their names.
    """

    cuda: tuple[int, int]
    error: str | None
    gpus: tuple[str, ...]


def find_driver() -> Driver | None:
    """None without a driver."""
    if (cuda := cuda_version()) is None:
        return None
    library = ctypes.CDLL("libcuda.so.1")
    number = ctypes.c_int()
    if failed := library.cuInit(0):
        name = ctypes.c_char_p()
        library.cuGetErrorName(failed, ctypes.byref(name))
        return Driver(cuda, (name.value or b"unknown error").decode(), ())
    library.cuDeviceGetCount(ctypes.byref(number))
    gpus = []
    for gpu in range(number.value):
        buffer = ctypes.create_string_buffer(100)
        library.cuDeviceGetName(buffer, 100, gpu)
        gpus.append(buffer.value.decode())
    return Driver(cuda, None, tuple(gpus))


def check_system(driver: Driver | None) -> Answer:
    said = f"gpuload {__version__}, Python {platform.python_version()}, {platform.platform()}"
    data = {
        "gpuload": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    return "ok", said, "", data


def check_driver(driver: Driver | None) -> Answer:
    if driver is None:
        return "note", "there is no NVIDIA driver: the CPU decodes", "", {"gpus": []}
    said = f"runs CUDA {_text(driver.cuda)} and older"
    data = {"cuda": list(driver.cuda), "gpus": list(driver.gpus), "error": driver.error}
    if driver.error == "CUDA_ERROR_NO_DEVICE":
        remedy = "Give it one: `docker run --gpus all`, CUDA_VISIBLE_DEVICES; or use device='cpu'"
        return "attention", f"{said}, but shows this process no GPU", remedy, data
    if driver.error is not None:
        remedy = "See `nvidia-smi` and `dmesg`. After an upgrade of the driver the machine must be restarted"
        return "broken", f"{said}, and cannot be used: {driver.error}", remedy, data
    names = ", ".join(
        f"{count} × {name}" for name, count in Counter(driver.gpus).items()
    )
    return "ok", f"{names}; {said}", "", data


def check_dali(driver: Driver | None) -> Answer:
    packages = _installed("nvidia-dali-cuda")
    names = ", ".join(
        f"{name} {number}"
        for name, number in {**packages, **_installed("nvidia-nvimgcodec")}.items()
    )
    data = {"packages": packages}
    if not packages:
        said = "is not installed; without it no GPU can be used, and on the CPU decoder='native' decodes"
        if driver is None or not driver.gpus:
            return "note", said, "", data
        return (
            "attention",
            said,
            f"`pip install 'gpuload[cuda{min(driver.cuda[0], 13)}]'`",
            data,
        )
    if len(packages) > 1:
        remedy = (
            f"`pip uninstall {' '.join(packages)}`, then install the one that you need"
        )
        return "broken", f"{names}: both lie in the same folder", remedy, data
    if (fault := fault_of("nvidia.dali")) is not None:
        return "broken", f"{names}: {fault.reason}", fault.remedy, data
    return _beside_driver(names, int(next(iter(packages))[-3:-1]), driver, data)


def check_torch(driver: Driver | None) -> Answer:
    """Whether torch's build and the driver fit."""
    if (fault := fault_of("torch")) is not None:
        said = f"{fault.reason}; without it batches are NumPy's (output='numpy')"
        return "note" if fault.is_missing else "broken", said, fault.remedy, {}
    torch = import_module("torch")
    built = torch.version.cuda
    data = {
        "version": torch.__version__,
        "cuda": built,
        "threads": torch.get_num_threads(),
    }
    said = f"{torch.__version__}, " + (
        f"built for CUDA {built}" if built else "built without CUDA"
    )
    if driver is None or not driver.gpus:
        return "ok", said, "", data
    if not built:
        remedy = "Install the build for CUDA (https://pytorch.org/get-started), or use output='cupy' or 'numpy'"
        return "broken", f"{said}, which cannot use the GPU", remedy, data
    if Version(built).major <= driver.cuda[0] and not torch.cuda.is_available():
        remedy = '`python -c "import torch; torch.cuda.init()"` says why'
        return "broken", f"{said}, cannot use the GPU that the driver has", remedy, data
    return _beside_driver(said, Version(built).major, driver, data)


def _beside_driver(
    said: str, cuda: int, driver: Driver | None, data: dict[str, Any]
) -> Answer:
    """Of a package that was built for this major version of CUDA."""
    if driver is None or not driver.gpus or cuda <= driver.cuda[0]:
        return "ok", said, "", data
    least = {13: "580", 12: "525"}.get(cuda, "")
    remedy = f"Install a newer driver ({least} or newer), or the package for CUDA {driver.cuda[0]}"
    return (
        "broken",
        f"{said}: needs CUDA {cuda}, and the driver runs CUDA {_text(driver.cuda)}",
        remedy,
        data,
    )


def check_native(driver: Driver | None) -> Answer:
    """The CPU decoder: which library of kernels this processor gets."""
    try:
        library()
    except MissingPackageError as error:
        return "broken", "cannot be used", str(error), {}
    name = library_file().stem
    return "ok", f"its kernels are compiled for {name}", "", {"library": name}


def check_cores(driver: Driver | None) -> Answer:
    """Cores by the affinity and the quota, and how many threads torch would start."""
    cores = count_cores()
    bound = affinity()
    quota = cpu_quota()
    all_cores = os.cpu_count() or 1
    load = os.getloadavg()[0]
    threads = os.environ.get("OMP_NUM_THREADS", "")
    data = {
        "cores": cores,
        "affinity": bound,
        "quota": quota,
        "machine": all_cores,
        "load": load,
    }
    said = f"{cores} of the machine's {all_cores} can be used"
    is_limited = quota is not None and quota < bound
    if is_limited:
        said += f": the container's quota is {quota:g} cores' time"
    elif bound < all_cores:
        said += ": the process is bound to them (taskset, a batch system or the container's cpuset)"
    if is_limited and not (threads.isdecimal() and int(threads) <= cores):
        said += ". gpuload keeps to that, but torch starts a thread for each core that it sees"
        return "attention", said, f"Set OMP_NUM_THREADS={cores}", data
    if load > 1.5 * all_cores:
        said += f". They are busy: {load:.1f} processes want to run at a time, so figures are lower than they could be"
        return "note", said, "", data
    return "ok", said, "", data


def _installed(start: str) -> dict[str, str]:
    """Versions of the installed packages whose names begin so."""
    names = {
        str(distribution.metadata["Name"]).lower(): distribution.version
        for distribution in metadata.distributions()
        if distribution.metadata["Name"]
    }
    return {
        name: number for name, number in sorted(names.items()) if name.startswith(start)
    }


def _text(numbers: tuple[int, int]) -> str:
    return f"{numbers[0]}.{numbers[1]}"


CHECKS: dict[str, Callable[[Driver | None], Answer]] = {
    "system": check_system,
    "driver": check_driver,
    "DALI": check_dali,
    "torch": check_torch,
    "CPU decoder": check_native,
    "cores": check_cores,
}
