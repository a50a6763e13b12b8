"""Compiles the kernels (gpuload/kernels/src) into libraries beside them (gpuload/kernels/lib).

    python tools/build_kernels.py                         # for this machine's architecture, where something has changed
    python tools/build_kernels.py --architecture aarch64  # for another one
    python tools/build_kernels.py --wheels dist           # a wheel for each architecture, for every Python from 3.10 on
    python tools/build_kernels.py --debug kernels.so      # for a debugger: GPULOAD_KERNELS=kernels.so uses it

The compiler is clang, out of the package ziglang, which needs no C compiler and no headers on the machine and compiles
for every architecture. Building the package (`pip install .`, also with -e) does the first of these. Exits with 1 where
the compiler does not succeed.
"""

import argparse
import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURE = "GPULOAD_ARCHITECTURE"  # for which the build of a wheel compiles, if not for this machine's


def load_sources() -> ModuleType:
    """gpuload/kernels/sources.py, without importing gpuload, whose dependencies a build does not have."""
    spec = importlib.util.spec_from_file_location(
        "kernel_sources", ROOT / "gpuload" / "kernels" / "sources.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def architecture() -> str:
    """The architecture to compile for."""
    return os.environ.get(ARCHITECTURE) or platform.machine()


def build(machine: str) -> list[Path]:
    """Compiles the libraries of an architecture that are missing or older than their sources, and returns those made.

    Raises:
        RuntimeError: there are no kernels for it, or the compiler is missing or does not succeed.
    """
    sources = load_sources()
    targets = sources.targets_of(machine)
    if not targets:
        raise RuntimeError(
            f"{machine}: gpuload has kernels for x86_64 and aarch64 alone"
        )
    stamp = sources.stamp_of_sources()
    libraries = []
    for target in targets:
        if target.file.exists() and stamp.encode() in target.file.read_bytes():
            continue
        compile_library(target, target.file, sources.FAST, sources)
        libraries.append(target.file)
    return libraries


def compile_library(
    target: Any, library: Path, flags: Sequence[str], sources: ModuleType
) -> None:
    """Compiles one library. It takes its place once it is complete, so that no process loads half of one."""
    library.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        unfinished = Path(folder) / library.name
        command = [sys.executable, "-m", "ziglang", "cc"]
        command += [
            "-target",
            f"{target.architecture}-linux-gnu.{sources.GLIBC}",
            f"-mcpu={target.cpu}",
        ]
        command += [
            *sources.FLAGS,
            *flags,
            f'-DSTAMP="{sources.stamp_of_sources()}"',
            "-o",
            str(unfinished),
        ]
        command += [*map(str, sorted(sources.SOURCES.glob("*.c"))), "-lm"]
        cache = dict.fromkeys(("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), folder)
        done = subprocess.run(
            command, env={**os.environ, **cache}, capture_output=True, text=True
        )
        if "No module named ziglang" in done.stderr:
            raise RuntimeError(
                "the compiler is missing: the package ziglang. `pip install ziglang` brings it"
            )
        if done.returncode:
            raise RuntimeError(f"{library.name} cannot be compiled:\n{done.stderr}")
        unfinished.replace(library)


def build_wheels(folder: Path) -> None:
    """Builds a wheel for each architecture."""
    for machine in dict.fromkeys(
        target.architecture for target in load_sources().TARGETS
    ):
        command = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--no-deps",
            "--wheel-dir",
            str(folder),
            str(ROOT),
        ]
        subprocess.run(command, env={**os.environ, ARCHITECTURE: machine}, check=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--architecture", default=architecture(), help="by default %(default)s"
    )
    parser.add_argument(
        "--wheels", type=Path, metavar="FOLDER", help="build wheels into this folder"
    )
    parser.add_argument(
        "--debug", type=Path, metavar="FILE", help="build a library for a debugger"
    )
    args = parser.parse_args(arguments)
    if args.wheels:
        build_wheels(args.wheels)
        return 0
    try:
        if args.debug:
            sources = load_sources()
            compile_library(
                sources.targets_of(args.architecture)[-1],
                args.debug,
                sources.DEBUG,
                sources,
            )
            return 0
        libraries = build(args.architecture)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    print(
        *(f"made {library.relative_to(ROOT)}" for library in libraries)
        if libraries
        else ["nothing has changed"],
        sep="\n",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
