"""Packages: whether their versions fit one another, and whether the CPU decoder can be used and is compiled."""

import os
import re
from importlib import import_module, metadata
from pathlib import Path

from gpuload.doctor.finding import Finding
from gpuload.installed import fault_of

_CUPY = re.compile(r"cupy(-cuda\w+|-rocm\S*)?$")


def check_versions() -> Finding:
    """Installed packages against what gpuload's own metadata ask for."""
    try:
        wanted = metadata.requires("gpuload") or []
    except metadata.PackageNotFoundError:
        return Finding("versions", "note", "gpuload runs from its folder, without being installed")
    old, seen = [], set()
    for requirement in wanted:
        found = re.match(r"([\w.-]+)\s*>=\s*([\w.]+)", requirement)
        if found is None or found[1] in seen:
            continue
        seen.add(found[1])
        try:
            installed = metadata.version(found[1])
        except metadata.PackageNotFoundError:
            continue
        if version_numbers(installed) < version_numbers(found[2]):
            old.append(f"{found[1]} {installed}, expected {found[2]} or newer")
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
    for package in ("simplejpeg", "torch", "numba"):
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


def version_numbers(number: str) -> tuple[int, ...]:
    """The leading numbers of a version: (2, 13, 0) of "2.13.0+cpu"."""
    found = re.match(r"\d+(\.\d+)*", number)
    return tuple(map(int, found[0].split("."))) if found else ()


def _names() -> list[str]:
    return sorted({str(one.metadata["Name"]).lower() for one in metadata.distributions() if one.metadata["Name"]})
