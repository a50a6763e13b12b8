"""Usable packages, their import, and the commands that install missing ones."""

import ctypes
import gc
import importlib.util
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from gpuload.errors import MissingPackageError

_CUDA_13 = (13, 0)

# The packages of extras for any machine; others come with "cuda13", "cuda12" or "cpu".
_PACKAGES = {
    "sources": ("h5py", "lmdb", "msgpack", "pillow_heif", "jpeglib", "yaml"),
    "stores": ("array_record", "duckdb", "lance", "py7zr", "zarr"),
    "ray": ("ray",),
    "remote": ("obstore", "huggingface_hub"),
    "examples": ("sklearn",),
    "bench": ("matplotlib",),
    "report": ("jinja2",),
    "codecs": ("imagecodecs", "tifffile"),
    "dicom": ("pydicom",),
    "exr": ("OpenEXR",),
    "fits": ("astropy",),
}
_EXTRAS = {
    package: extra for extra, packages in _PACKAGES.items() for package in packages
}
# The extra without an NVIDIA driver, if it is not "cpu".
_WITHOUT_GPU = {"nvidia.dali": "dali", "cupy": "cuda13"}
# pip's names of packages, if they differ; {} stands for the extra of the driver.
_DISTRIBUTIONS = {
    "yaml": "pyyaml",
    "lance": "pylance",
    "nvidia.dali": "nvidia-dali-{}0",
    "cupy": "cupy-{}x",
}


class PackageFault(NamedTuple):
    """Why a package cannot be used.

    Attributes:
        reason: What is wrong, for the message.
        remedy: How to get it, for the message.
        is_missing: Whether it is simply not installed.
    """

    reason: str
    remedy: str
    is_missing: bool = False


def fault_of(package: str) -> PackageFault | None:
    """Why a package cannot be used; None if it can, in which case it is imported."""
    try:
        if importlib.util.find_spec(package) is None:
            return _missing(package)
        with paused_collector():
            import_module(package)
    except ValueError:  # find_spec: sys.modules holds None for it
        return _missing(package)
    except Exception as error:  # one of its parts is missing, needs another NumPy, or lacks a library of the system
        if isinstance(error, ModuleNotFoundError) and f"{package}.".startswith(
            f"{error.name}."
        ):
            return _missing(
                package
            )  # its parent is missing, or sys.modules holds None for it
        lines = [
            f"{type(error).__name__}: {line}"
            for line in str(error).splitlines()
            if line.strip()
        ]
        name = _DISTRIBUTIONS.get(package, package).format(cuda_extra() or "cuda13")
        return PackageFault(
            f"{package} is installed but cannot be imported ({(lines or [type(error).__name__])[0]})",
            f"`pip install -U {name}` brings versions that fit",
        )
    return None


_MANY_OBJECTS = 10_000  # the collector scans fewer in less than 1 ms


@contextmanager
def paused_collector() -> Iterator[None]:
    """Turns the collector off during imports, which create hundreds of thousands of objects and no garbage.

    Otherwise the collector scans all of torch's objects again and again during the imports that follow torch's: 0.5 of
    the 1.7 seconds that a new process waits for its first batch (2 cores, 2026-11). Freezing and unfreezing moves the
    new objects to the oldest generation; otherwise two scans, of 14 and 38 ms, would fall into the first epoch.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            # Unless the user froze objects. To count those takes 20 ms for a million, so not after a few new ones.
            if gc.get_count()[0] > _MANY_OBJECTS and not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def require(subject: str, *packages: str) -> None:
    """Checks that packages can be used.

    Raises MissingPackageError, which names those that cannot, and how to get them.

    Args:
        subject: What they are needed for, the beginning of the message.
        *packages: Names as they are imported.
    """
    faults = [fault for package in packages if (fault := fault_of(package)) is not None]
    if faults:
        remedies = dict.fromkeys(fault.remedy for fault in faults)
        raise MissingPackageError(
            f"{subject}: {'; '.join(f.reason for f in faults)}. {'; '.join(remedies)}"
        )


def _missing(package: str) -> PackageFault:
    return PackageFault(f"{package} is not installed", remedy(package), is_missing=True)


def remedy(package: str) -> str:
    """What to run on this machine to get a package that is missing, as the end of a message."""
    extra = _EXTRAS.get(package) or cuda_extra() or _WITHOUT_GPU.get(package, "cpu")
    return f"`{install_command(extra)}` brings it"


def install_command(extra: str) -> str:
    """What installs an extra of gpuload: from the clone that this gpuload runs from; otherwise for the gpuload that pip
    has installed, from wherever that came."""
    clone = Path(__file__).resolve().parents[2]
    with suppress(OSError):
        if 'name = "gpuload"' in (clone / "pyproject.toml").read_text():
            return f"pip install -e {shlex.quote(f'{clone}[{extra}]')}"
    return f"pip install 'gpuload[{extra}]'"


def cuda_version() -> tuple[int, int] | None:
    """The newest CUDA that this machine's driver runs, as (13, 0); None without a driver."""
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return _CUDA_13 if failed else (version.value // 1000, version.value % 1000 // 10)


def cuda_extra() -> str | None:
    """The extra for this machine's driver, "cuda13" or "cuda12"; None without a driver."""
    version = cuda_version()
    if version is None:
        return None
    return "cuda13" if version >= _CUDA_13 else "cuda12"


def has_driver() -> bool:
    """Whether NVIDIA's driver is installed. This costs nothing, while asking DALI costs its import, 0.3 s."""
    return cuda_extra() is not None
