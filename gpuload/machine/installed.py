"""Usable packages, their import, and the commands that install missing ones."""

import builtins
import ctypes
import gc
import importlib.util
import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from gpuload.errors import MissingPackageError

_CUDA_13 = (13, 0)

# The extra of a package on any machine; packages that are not here come with "cuda13", "cuda12" or "cpu".
_EXTRAS = {
    "h5py": "sources",
    "lmdb": "sources",
    "msgpack": "sources",
    "pillow_heif": "sources",
    "jpeglib": "sources",
    "yaml": "sources",
    "ray": "ray",
    "obstore": "remote",
    "huggingface_hub": "remote",
    "sklearn": "examples",
    "matplotlib": "bench",
    "jinja2": "report",
}
# The extra without an NVIDIA driver, if it is not "cpu".
_WITHOUT_GPU = {"nvidia.dali": "dali", "cupy": "cuda13"}
# pip's names of packages, if they differ, by the version of CUDA if there is one.
_DISTRIBUTIONS = {
    "pillow_heif": {"": "pillow-heif"},
    "yaml": {"": "pyyaml"},
    "nvidia.dali": {"cuda12": "nvidia-dali-cuda120", "": "nvidia-dali-cuda130"},
    "cupy": {"cuda12": "cupy-cuda12x", "": "cupy-cuda13x"},
    "gpuload.decode.native.decoder": {"": "numba"},
}


class Fault(NamedTuple):
    """Why a package cannot be used. reason, remedy: for messages. is_missing: it is simply not installed."""

    reason: str
    remedy: str
    is_missing: bool = False


def fault_of(package: str) -> Fault | None:
    """Why a package cannot be used; None if it can, in which case it is imported."""
    try:
        if importlib.util.find_spec(package) is None:
            return _missing(package)
        with paused_collector(), _print_of_builtins():
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


@contextmanager
def paused_collector() -> Iterator[None]:
    """Turns the collector off during imports, which create hundreds of thousands of objects and no garbage.

    Otherwise the collector scans all of torch's objects again and again during the imports that follow torch's: 0.5 of
    the 1.7 seconds that a new process waits for its first batch (2 cores, 2026-11).
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _print_of_builtins() -> Iterator[None]:
    """Makes `builtins.print` look like Python's own. numba looks it up by module and name during its import,
    and training scripts replace it by a function that prints only on rank 0."""
    replaced = builtins.print
    if getattr(replaced, "__module__", None) == "builtins":
        yield
        return

    def stand_in(*values: Any, **options: Any) -> None:
        replaced(*values, **options)

    stand_in.__module__, stand_in.__name__ = "builtins", "print"
    builtins.print = stand_in
    try:
        yield
    finally:
        if builtins.print is stand_in:
            builtins.print = replaced


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
    """The command that upgrades gpuload from its source."""
    clone = _clone()
    if clone is not None:
        return f"git -C {shlex.quote(str(clone))} pull"
    address = _address()
    return f"pip install -U {shlex.quote(f'gpuload @ {address}') if address else 'gpuload'}"


def _clone() -> Path | None:
    """The repository that this gpuload runs from; None if it was copied into an environment."""
    folder = Path(__file__).resolve().parents[2]
    try:
        return folder if 'name = "gpuload"' in (folder / "pyproject.toml").read_text() else None
    except OSError:
        return None


def _address() -> str:
    """The source that pip copied this gpuload from, in pip's notation; "" for a package index (see PEP 610)."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        direct = json.loads(distribution("gpuload").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return ""
    url, repository = direct.get("url", ""), direct.get("vcs_info")
    return f"{repository['vcs']}+{url}@{repository['commit_id']}" if repository else url


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
    return None if version is None else "cuda13" if version >= _CUDA_13 else "cuda12"


def has_driver() -> bool:
    """Whether NVIDIA's driver is installed. This costs nothing, while asking DALI costs its import, 0.3 s."""
    return cuda_extra() is not None
