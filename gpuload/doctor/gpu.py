"""NVIDIA's driver, and the packages that are built for a version of CUDA."""

import ctypes
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from gpuload.doctor.finding import Finding
from gpuload.installed import fault_of

_DRIVER_VERSION = Path("/proc/driver/nvidia/version")
_DALI_PACKAGES = ("nvidia-dali-cuda130", "nvidia-dali-cuda120", "nvidia-dali-cuda110")
_CODEC_PACKAGES = ("nvidia-nvimgcodec-cu13", "nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu11")
_OLDEST_DALI = (2, 2)


class Driver(NamedTuple):
    """NVIDIA's driver. cuda: the newest CUDA that it runs, as (13, 0). error: why it cannot be used. gpus: names."""

    cuda: tuple[int, int]
    error: str | None
    gpus: tuple[str, ...]


def find_driver() -> Driver | None:
    """None without a driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        number = ctypes.c_int()
        library.cuDriverGetVersion(ctypes.byref(number))
        failed = library.cuInit(0)
    except (OSError, AttributeError):
        return None
    cuda = number.value // 1000, number.value % 1000 // 10
    if failed:
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
    (name, number), data = next(iter(found.items())), {"packages": found}
    if (fault := fault_of("nvidia.dali")) is not None:
        return [Finding("DALI", "broken", f"{names}: {fault.reason}", fault.remedy, data)]
    if _numbers(number) < _OLDEST_DALI:
        remedy = f"`pip install -U '{name}>={_text(_OLDEST_DALI)}'`"
        return [Finding("DALI", "broken", f"{names} is too old: its outputs are not safe to keep", remedy, data)]
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
    if any(_numbers(number) == (0, 9) for number in found.values()):
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
    if _numbers(built)[0] > driver.cuda[0]:
        remedy = _newer_driver(_numbers(built)[0], "install torch's build for an older CUDA")
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


def _numbers(number: str) -> tuple[int, int]:
    """Major and minor of a version."""
    parts = [int("".join(filter(str.isdecimal, part)) or 0) for part in number.split(".")[:2]]
    return parts[0], [*parts, 0][1]


def _text(numbers: tuple[int, int]) -> str:
    return f"{numbers[0]}.{numbers[1]}"
