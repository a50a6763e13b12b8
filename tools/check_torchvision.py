"""Checks that the installed torch and torchvision are compatible. Imports neither, since that may fail.

Exit codes: 0 compatible, or one is missing; 1 not compatible.
"""

import sys

from gpuload.doctor.environment import unmet


def problem() -> str | None:
    """What is wrong with the installed torch and torchvision, and what to do; None if nothing, or one is missing."""
    found = [one for one in unmet("torchvision") if one.startswith("torch ")]
    if not found:
        return None
    return (
        f"{found[0]}. Delete .venv and run the same command again, or install the torchvision that goes with this "
        "torch (https://pytorch.org/get-started)"
    )


if __name__ == "__main__":
    sys.exit(problem())
