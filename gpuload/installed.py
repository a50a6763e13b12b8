"""Which packages can be used here, and what to run to install the others."""

import ctypes
import importlib.util
import json
import shlex
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from gpuload.collector import paused_collector
from gpuload.errors import MissingPackageError

_CUDA_13 = 13_000  # as NVIDIA's driver tells its version: 13000 is 13.0

# The extra that brings a package whatever the machine is; what is not here comes with "cuda13", "cuda12" or "cpu".
_EXTRAS = {
    "h5py": "sources",
    "lmdb": "sources",
    "msgpack": "sources",
    "ray": "ray",
    "obstore": "remote",
    "huggingface_hub": "remote",
    "sklearn": "examples",
    "matplotlib": "bench",
    "jinja2": "report",
}
# The extra without an NVIDIA driver, where that is not "cpu".
_WITHOUT_GPU = {"nvidia.dali": "dali", "cupy": "cuda13"}
# The names under which pip knows packages, where they differ, by the version of CUDA where there is one.
_DISTRIBUTIONS = {
    "nvidia.dali": {"cuda12": "nvidia-dali-cuda120", "": "nvidia-dali-cuda130"},
    "cupy": {"cuda12": "cupy-cuda12x", "": "cupy-cuda13x"},
    "gpuload.decode.native.decoder": {"": "numba"},
}


class Fault(NamedTuple):
    """Why a package cannot be used. reason, remedy: for messages. is_missing: it is only not installed."""

    reason: str
    remedy: str
    is_missing: bool = False


def fault_of(package: str) -> Fault | None:
    """Why a package cannot be used; None where it can, and is imported."""
    try:
        if importlib.util.find_spec(package) is None:
            return _missing(package)
        with paused_collector():
            import_module(package)
    except ValueError:  # find_spec: sys.modules holds None for it
        return _missing(package)
    except Exception as error:  # one of its parts is missing, needs another NumPy, or lacks a library of the system
        if isinstance(error, ModuleNotFoundError) and f"{package}.".startswith(f"{error.name}."):
            return _missing(package)  # its parent is missing, or sys.modules holds None for it
        lines = [f"{type(error).__name__}: {line}" for line in str(error).splitlines() if line.strip()]
        names = _DISTRIBUTIONS.get(package, {})
        return Fault(
            f"{package} is installed but cannot be imported ({(lines or [type(error).__name__])[0]})",
            f"`pip install -U {names.get(cuda_extra() or '') or names.get('', package)}` brings versions that fit",
        )
    return None


def require(subject: str, *packages: str) -> None:
    """Raises MissingPackageError, which names those of the packages that cannot be used, for what they are needed
    (`subject`), and how to get them.
    """
    faults = [fault for package in packages if (fault := fault_of(package)) is not None]
    if faults:
        remedies = dict.fromkeys(fault.remedy for fault in faults)
        raise MissingPackageError(f"{subject}: {'; '.join(f.reason for f in faults)}. {'; '.join(remedies)}")


def _missing(package: str) -> Fault:
    return Fault(f"{package} is not installed", remedy(package), is_missing=True)


def remedy(package: str) -> str:
    """What to run on this machine to get a package that is missing, as the end of a message."""
    extra = _EXTRAS.get(package) or cuda_extra() or _WITHOUT_GPU.get(package, "cpu")
    return f"`{install_command(extra)}` brings it"


def install_command(extra: str) -> str:
    """What installs an extra of gpuload, from where this gpuload came: a clone, an address, or a package index."""
    clone = _clone()
    if clone is not None:
        return f"pip install -e {shlex.quote(f'{clone}[{extra}]')}"
    address = _address()
    return f"pip install {shlex.quote(f'gpuload[{extra}]' + (f' @ {address}' if address else ''))}"


def upgrade_command() -> str:
    """What brings a newer gpuload, from where this one came."""
    clone = _clone()
    if clone is not None:
        return f"git -C {shlex.quote(str(clone))} pull"
    address = _address()
    return f"pip install -U {shlex.quote(f'gpuload @ {address}') if address else 'gpuload'}"


def _clone() -> Path | None:
    """The repository that this gpuload runs from; None where it was copied into an environment."""
    folder = Path(__file__).resolve().parents[1]
    try:
        return folder if 'name = "gpuload"' in (folder / "pyproject.toml").read_text() else None
    except OSError:
        return None


def _address() -> str:
    """Where pip copied this gpuload from, as pip takes it; "" for a package index (PEP 610 has the file)."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        found = json.loads(distribution("gpuload").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return ""
    url, repository = found.get("url", ""), found.get("vcs_info")
    return f"{repository['vcs']}+{url}@{repository['commit_id']}" if repository else url


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
