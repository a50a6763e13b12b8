"""Checks that the installed torch and torchvision are compatible. Imports neither, since that may fail.

Exit codes: 0 compatible, or one is missing; 1 not compatible.
"""

import importlib.metadata
import sys

from gpuload.doctor.environment import build, mismatch


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
