"""Checks that the installed torch and torchvision are compatible. Imports neither, since that may fail.

Exit codes: 0 compatible, or one is missing; 1 not compatible.
"""

import sys
from importlib import metadata

from packaging.requirements import Requirement
from packaging.version import Version


def problem() -> str | None:
    """What is wrong with the installed torch and torchvision, and what to do; None if nothing, or one is missing."""
    try:
        installed = metadata.version("torch")
        wanted = metadata.requires("torchvision") or []
    except metadata.PackageNotFoundError:
        return None
    for requirement in map(Requirement, wanted):
        if requirement.name == "torch" and not requirement.specifier.contains(
            Version(installed).base_version
        ):
            return (
                f"torch {installed}, expected {requirement.specifier} by torchvision. Delete .venv and run the same "
                "command again, or install the torchvision that goes with this torch (https://pytorch.org/get-started)"
            )
    return None


if __name__ == "__main__":
    sys.exit(problem())
