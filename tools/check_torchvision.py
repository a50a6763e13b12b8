"""Checks that the installed torch and torchvision are compatible. Imports neither, since that may fail.

Exit codes: 0 compatible, or one is missing; 1 not compatible.
"""

import importlib.metadata
import re
import sys
from pathlib import Path


def mismatch(torch: str, torchvision: str, requirements: list[str]) -> str | None:
    """What is wrong with two versions such as "2.13.0+cu130" and "0.28.0+cu130", or None.

    requirements: those of torchvision's metadata. A CPU build of torch with torchvision's CUDA build, the only one on
    PyPI, is accepted: the tests import it by means of tests/torchvision_anywhere.py.
    """
    for requirement in requirements:
        found = re.match(r"torch\s*\(?==\s*([\w.]+)", requirement)
        if found and found[1] != torch.partition("+")[0]:
            return f"torchvision {torchvision} requires torch {found[1]}, and torch {torch} is installed"
    versions = [re.search(r"\+cu(\d+)\d$", build) for build in (torch, torchvision)]
    if versions[0] and versions[1] and versions[0][1] != versions[1][1]:
        return f"torch {torch} and torchvision {torchvision} are built for different versions of CUDA"
    return None


def build(package: str) -> str:
    """Version with the suffix of the build, which metadata on PyPI leaves out."""
    distribution = importlib.metadata.distribution(package)
    text = Path(str(distribution.locate_file(f"{package}/version.py"))).read_text()
    found = re.search(r"^__version__ = ['\"](.*)['\"]", text, re.MULTILINE)
    return found[1] if found else distribution.version


def problem() -> str | None:
    """What is wrong with the installed torch and torchvision, and what to do; None if nothing, or one is missing."""
    try:
        found = mismatch(build("torch"), build("torchvision"), importlib.metadata.requires("torchvision") or [])
    except (importlib.metadata.PackageNotFoundError, OSError):
        return None
    if found is None:
        return None
    return (
        f"{found}. Delete .venv and run the same command again, or install the torchvision that goes with this torch "
        "(https://pytorch.org/get-started)"
    )


def main() -> int:
    found = problem()
    if found is None:
        return 0
    print(found, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
