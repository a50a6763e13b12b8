"""Checks that the installed torch and torchvision are compatible. Imports neither, since that may fail.

Exit codes: 0 compatible, or one is missing; 1 not compatible.
"""

import importlib.metadata
import sys

from gpuload.doctor.packages import build, mismatch


def main() -> int:
    try:
        problem = mismatch(build("torch"), build("torchvision"), importlib.metadata.requires("torchvision") or [])
    except (importlib.metadata.PackageNotFoundError, OSError):
        return 0
    if problem is None:
        return 0
    print(
        f"{problem}. Delete .venv and run the same command again, or install the torchvision that goes with this "
        "torch (https://pytorch.org/get-started)",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
