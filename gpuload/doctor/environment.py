"""Cores, memory and file handles; NVIDIA's driver and the packages, whether they fit together; compiled code."""

import ctypes
import os
import platform
import re
import sys
from importlib import import_module, metadata
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from packaging.version import Version

from gpuload import __version__
from gpuload.doctor.findings import Finding, size
from gpuload.machine.installed import cuda_version, fault_of
from gpuload.machine.limits import (
    affinity,
    available_memory,
    count_cores,
    cpu_quota,
    machine_memory,
    memory_limit,
    throttled,
)

_LITTLE_MEMORY = 1e9
_FEW_HANDLES = 1024  # the usual limit

_DRIVER_VERSION = Path("/proc/driver/nvidia/version")
_DALI_PACKAGES = ("nvidia-dali-cuda130", "nvidia-dali-cuda120", "nvidia-dali-cuda110")
_CODEC_PACKAGES = ("nvidia-nvimgcodec-cu13", "nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu11")

_CUPY = re.compile(r"cupy(-cuda\w+|-rocm\S*)?$")


def check_system() -> Finding:
    said = f"gpuload {__version__}, Python {platform.python_version()}, {platform.system()} {platform.release()}, "
    said += platform.machine()
    data = {"gpuload": __version__, "python": platform.python_version(), "machine": platform.machine()}
    if not sys.platform.startswith("linux"):
        return Finding("system", "attention", said, "It is tested on Linux alone, and packing needs it", data)
    return Finding("system", "ok", said, data=data)


def check_cores() -> Finding:
    """Cores by the affinity and the quota, and how many threads torch would start."""
    cores, quota, whole = count_cores(), cpu_quota(), os.cpu_count() or 1
    data: dict[str, Any] = {
        "cores": cores,
        "affinity": affinity(),
        "quota": quota,
        "machine": whole,
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
    }
    said = f"{cores} of the machine's {whole} can be used"
    if quota is not None and quota < affinity():
        said += f": the container's quota is {quota:g} cores' time"
    elif affinity() < whole:
        said += ": the process is bound to them (taskset, a batch system or the container's cpuset)"
    stopped = data["throttled"] = throttled()
    if stopped is not None and stopped > 0.1:
        return Finding(
            "cores",
            "attention",
            f"{said}; it was stopped in {stopped:.0%} of the periods so far, since it had used up its quota",
            f"Raise the quota (`docker run --cpus`, Kubernetes' limits.cpu), or use no more threads than {cores}: "
            f"OMP_NUM_THREADS={cores} for torch, num_threads for the loader",
            data,
        )
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if quota is not None and quota < affinity() and not (threads.isdecimal() and int(threads) <= cores):
        return Finding(
            "cores",
            "attention",
            f"{said}. gpuload keeps to that, but torch starts a thread for each core that it sees",
            f"Set OMP_NUM_THREADS={cores}",
            data,
        )
    if data["load"] > 1.5 * whole:
        said += (
            f". They are busy: {data['load']:.1f} processes want to run at a time, so that what is measured here is "
        )
        return Finding("cores", "note", f"{said}less than the machine can do", data=data)
    return Finding("cores", "ok", said, data=data)


def check_memory() -> Finding:
    total, limit, free = machine_memory(), memory_limit(), available_memory()
    data = {"total": total, "limit": limit, "available": free}
    if total is None or free is None:
        return Finding("memory", "note", "/proc/meminfo does not tell", data=data)
    usable = min(free, limit or free)
    said = f"{size(free)} of {size(total)} are free"
    if limit is not None:
        said += f", and this container may use {size(limit)}, page cache included"
    if usable < _LITTLE_MEMORY:
        remedy = "Free some: a loader needs about 0.4 GB, and the page cache what is left"
        return Finding("memory", "attention", said, remedy, data)
    return Finding("memory", "ok", said, data=data)


def check_file_handles() -> Finding:
    """Each shard of two windows, 16 by default, has one."""
    try:
        import resource
    except ImportError:  # Windows
        return Finding("file handles", "note", "this system does not tell how many there may be")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    data = {"soft": soft, "hard": hard}
    limit = "no limit" if soft == resource.RLIM_INFINITY else f"{soft:,} at a time"
    if soft != resource.RLIM_INFINITY and soft < 256:
        return Finding(
            "file handles",
            "attention",
            f"{limit}; each shard of two windows takes one",
            f"`ulimit -n {_FEW_HANDLES * 4}` before the start (`docker run --ulimit nofile={_FEW_HANDLES * 4}`)",
            data,
        )
    return Finding("file handles", "ok", limit, data=data)


class Driver(NamedTuple):
    """NVIDIA's driver. cuda: the newest CUDA that it runs, as (13, 0). error: why it cannot be used. gpus: names."""

    cuda: tuple[int, int]
    error: str | None
    gpus: tuple[str, ...]


def find_driver() -> Driver | None:
    """None without a driver."""
    if (cuda := cuda_version()) is None:
        return None
    library, number = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
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


def check_driver(driver: Driver | None) -> Finding:
    if driver is None:
        return Finding("driver", "note", "there is no NVIDIA driver: the CPU decodes", data={"gpus": []})
    said = f"runs CUDA {_text(driver.cuda)} and older"
    lines = _DRIVER_VERSION.read_text().splitlines() if _DRIVER_VERSION.exists() else []
    said += f" ({' '.join(lines[0].split()[-8:])})" if lines else ""
    data = {"cuda": list(driver.cuda), "gpus": list(driver.gpus), "error": driver.error}
    if driver.error == "CUDA_ERROR_NO_DEVICE":
        said += ", but shows this process no GPU"
        remedy = "Give it one: `docker run --gpus all`, CUDA_VISIBLE_DEVICES; or use device='cpu'"
        return Finding("driver", "attention", said, remedy, data)
    if driver.error is not None:
        said += f", and cannot be used: {driver.error}"
        remedy = "See `nvidia-smi` and `dmesg`. After an upgrade of the driver the machine must be restarted"
        return Finding("driver", "broken", said, remedy, data)
    names = ", ".join(f"{driver.gpus.count(name)} × {name}" for name in dict.fromkeys(driver.gpus))
    return Finding("driver", "ok", f"{names}; {said}", data=data)


def check_dali(driver: Driver | None) -> list[Finding]:
    """DALI, and the image decoder of its GPU half."""
    found = _installed(_DALI_PACKAGES)
    needs = "without it no GPU can be used, and on the CPU decoder='native' decodes"
    if not found:
        grade, remedy = "note", ""
        if driver is not None and driver.gpus:
            grade, remedy = "attention", f"`pip install 'gpuload[cuda{min(driver.cuda[0], 13)}]'`"
        return [Finding("DALI", grade, f"is not installed; {needs}", remedy)]  # type: ignore[arg-type]
    names = ", ".join(f"{name} {number}" for name, number in found.items())
    if len(found) > 1:
        remedy = f"`pip uninstall {' '.join(found)}`, then install the one that you need"
        return [Finding("DALI", "broken", f"{names}: both lie in the same folder", remedy, {"packages": found})]
    name, data = next(iter(found)), {"packages": found}
    if (fault := fault_of("nvidia.dali")) is not None:
        return [Finding("DALI", "broken", f"{names}: {fault.reason}", fault.remedy, data)]
    needed = int(name[-3:-1])
    if driver is not None and driver.gpus and driver.cuda[0] < needed:
        return [
            Finding(
                "DALI",
                "broken",
                f"{names} needs a driver for CUDA {needed}, and this one runs CUDA {_text(driver.cuda)}",
                _newer_driver(needed, f"install gpuload[cuda{driver.cuda[0]}]"),
                data,
            )
        ]
    return [Finding("DALI", "ok", names, data=data), *_check_codec()]


def _check_codec() -> list[Finding]:
    found = _installed(_CODEC_PACKAGES)
    if not found:
        return []
    said = ", ".join(f"{name} {number}" for name, number in found.items())
    if any(Version(number).release[:2] == (0, 9) for number in found.values()):
        said += "; gpuload lets it decode whole images, since parts crash it on a GPU (NVIDIA/nvImageCodec#55)"
    return [Finding("nvImageCodec", "ok", said, data={"packages": found})]


def check_torch(driver: Driver | None) -> Finding:
    """Whether torch's build and the driver fit."""
    if (fault := fault_of("torch")) is not None:
        grade = "note" if fault.is_missing else "broken"
        said = f"{fault.reason}; without it batches are NumPy's (output='numpy'), and decoder='native' cannot be used"
        return Finding("torch", grade, said, fault.remedy)  # type: ignore[arg-type]
    torch = import_module("torch")
    built = torch.version.cuda
    hip = getattr(torch.version, "hip", None)
    data = {"version": torch.__version__, "cuda": built, "threads": torch.get_num_threads()}
    said = torch.__version__ + (
        f", built for CUDA {built}" if built else ", built for ROCm" if hip else ", a CPU build"
    )
    if driver is None or not driver.gpus:
        return Finding("torch", "ok", said, data=data)
    if not built:
        remedy = "Install the build for CUDA (https://pytorch.org/get-started), or use output='cupy' or 'numpy'"
        return Finding("torch", "broken", f"{said}, which cannot use the GPU", remedy, data)
    if Version(built).major > driver.cuda[0]:
        remedy = _newer_driver(Version(built).major, "install torch's build for an older CUDA")
        return Finding(
            "torch", "broken", f"{said}, and the driver runs CUDA {_text(driver.cuda)}: it sees no GPU", remedy, data
        )
    if not torch.cuda.is_available():
        remedy = '`python -c "import torch; torch.cuda.init()"` says why'
        return Finding("torch", "broken", f"{said}, cannot use the GPU that the driver has", remedy, data)
    return Finding("torch", "ok", said, data=data)


def _newer_driver(cuda: int, otherwise: str) -> str:
    least = {13: " (580 or newer)", 12: " (525 or newer)"}.get(cuda, "")
    return f"Install a driver for CUDA {cuda}{least}, or {otherwise}"


def _installed(packages: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _text(numbers: tuple[int, int]) -> str:
    return f"{numbers[0]}.{numbers[1]}"


def check_versions() -> Finding:
    """Installed packages against what gpuload's own metadata ask for."""
    try:
        wanted = metadata.requires("gpuload") or []
    except metadata.PackageNotFoundError:
        return Finding("versions", "note", "gpuload runs from its folder, without being installed")
    old: list[str] = []
    for requirement in map(Requirement, dict.fromkeys(wanted)):
        for name, installed in _installed((requirement.name,)).items():
            if not requirement.specifier.contains(Version(installed).base_version):
                old.append(f"{name} {installed}, expected {requirement.specifier}")
    if cupy := [name for name in _names() if _CUPY.match(name)][1:]:
        old.append(f"CuPy is installed {len(cupy) + 1} times, for different versions of CUDA")
    if old:
        remedy = "`pip install -U` these, or `pip uninstall` what is installed twice"
        return Finding("versions", "broken", "; ".join(old), remedy, {"old": old})
    return Finding("versions", "ok", "installed packages are as new as gpuload needs", data={"old": []})


def check_torchvision() -> list[Finding]:
    try:
        problem = mismatch(build("torch"), build("torchvision"), metadata.requires("torchvision") or [])
    except (metadata.PackageNotFoundError, OSError):
        return []  # gpuload itself does not need it
    remedy = "Install the torchvision that goes with this torch (https://pytorch.org/get-started)"
    if problem is not None:
        return [Finding("torchvision", "broken", problem, remedy)]
    found = build("torchvision")
    if build("torch").endswith("+cpu") and "+cu" in found:
        said = (
            f"{found} is built for CUDA, and cannot be imported with a CPU build of torch; gpuload needs it only for "
        )
        return [Finding("torchvision", "note", f"{said}Augment.torchvision", remedy)]
    return [Finding("torchvision", "ok", f"{found} fits torch")]


def mismatch(torch: str, torchvision: str, requirements: list[str]) -> str | None:
    """What is wrong with two versions such as "2.13.0+cu130" and "0.28.0+cu130", or None.

    requirements: those of torchvision's metadata. A CPU build of torch with torchvision's CUDA build, the only one on
    PyPI, is accepted: the tests import it by means of tests/torchvision_anywhere.py.
    """
    for requirement in requirements:
        found = re.match(r"torch\s*\(?==\s*([\w.]+)", requirement)
        if found and found[1] != torch.partition("+")[0]:
            return f"torchvision {torchvision} requires torch {found[1]}, and torch {torch} is installed"
    versions = [re.search(r"\+cu(\d+)\d$", one) for one in (torch, torchvision)]
    if versions[0] and versions[1] and versions[0][1] != versions[1][1]:
        return f"torch {torch} and torchvision {torchvision} are built for different versions of CUDA"
    return None


def build(package: str) -> str:
    """Version with the suffix of the build, which metadata on PyPI leaves out. Imports nothing, since that may fail.

    Raises:
        PackageNotFoundError, OSError: it is not installed.
    """
    distribution = metadata.distribution(package)
    text = Path(str(distribution.locate_file(f"{package}/version.py"))).read_text()
    found = re.search(r"^__version__ = ['\"](.*)['\"]", text, re.MULTILINE)
    return found[1] if found else distribution.version


def check_native() -> list[Finding]:
    """The CPU decoder, and where its machine code is kept."""
    for package in ("simplejpeg", "numba"):
        if (fault := fault_of(package)) is not None:
            said = f"cannot be used: {fault.reason}; on a CPU DALI decodes, where it is installed, but slower"
            return [Finding("CPU decoder", "note" if fault.is_missing else "broken", said, fault.remedy)]
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        said = "cannot be used: NUMBA_DISABLE_JIT is set, so that numba compiles nothing"
        return [Finding("CPU decoder", "attention", said, "Unset it")]
    if (fault := fault_of("gpuload.decode.native.decoder")) is not None:
        return [Finding("CPU decoder", "broken", fault.reason, fault.remedy)]
    folders = import_module("gpuload.decode.native.compiled").cache_folders()
    numba = metadata.version("numba")
    if not folders:
        return [
            Finding(
                "CPU decoder",
                "attention",
                f"can be used (numba {numba}), but its machine code cannot be kept: each process compiles it again, "
                "for some 12 s of one core's time",
                "Set NUMBA_CACHE_DIR to a folder that can be written",
                {"folders": []},
            )
        ]
    where = " and ".join(map(str, folders))
    data = {"folders": [str(folder) for folder in folders], "compiled": is_compiled(folders)}
    if not data["compiled"]:
        said = (
            f"can be used (numba {numba}), and is not compiled yet: the first process does that for some 12 s of one "
        )
        said += f"core's time, and keeps it in {where}"
        remedy = "`python -m gpuload warm-up` compiles it ahead, for instance into a container's image"
        return [Finding("CPU decoder", "note", said, remedy, data)]
    return [Finding("CPU decoder", "ok", f"can be used (numba {numba}), and is compiled, in {where}", data=data)]


def is_compiled(folders: list[Path]) -> bool:
    """Whether there is machine code in these folders: numba's files end in .nbc."""
    return any(next(folder.glob("*.nbc"), None) is not None for folder in folders)


def _names() -> list[str]:
    return sorted({str(one.metadata["Name"]).lower() for one in metadata.distributions() if one.metadata["Name"]})
