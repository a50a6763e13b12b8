"""`python -m gpuload warm-up`: compiles the CPU decoder ahead of the first loader, for a container's image."""

import argparse

from gpuload.commands.exit_codes import DONE
from gpuload.errors import GpuloadError, MissingPackageError


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    warm_up = commands.add_parser(
        "warm-up",
        help="compile the CPU decoder ahead of the first loader",
        description="Compiles the CPU decoder, which the first loader on a machine would do, and keeps it where later "
        "processes find it: in the folder NUMBA_CACHE_DIR, in the package, or in the user's cache folder. Run it while "
        "you build a container's image, on the kind of processor that will use it.",
        epilog="Exit codes: 0 it is compiled; 2 it cannot be kept, or a package is not installed.",
    )
    warm_up.set_defaults(run=_warm_up)


def _warm_up(args: argparse.Namespace) -> int:
    from gpuload.decode.open import native_fault

    if (fault := native_fault()) is not None:
        raise MissingPackageError(f"warm-up compiles the CPU decoder: {fault.reason}. {fault.remedy}")
    from gpuload.decode.native.warm_up import warm_up

    done = warm_up()
    if not done.folders:
        raise GpuloadError(
            "the CPU decoder was compiled, but no folder can be written to keep it. Set NUMBA_CACHE_DIR to one that can"
        )
    where = " and ".join(map(str, done.folders))
    if done.compiled:
        print(f"compiled the CPU decoder in {done.seconds:.1f} s; it is kept in {where}")
    else:
        print(f"the CPU decoder is compiled already, in {where}")
    return DONE
