"""The sources of the kernels, and how a compiler makes them into a library. This file imports nothing of gpuload: the
build of the package runs it, in an environment without gpuload's dependencies."""

import hashlib
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).with_name("src")
LIBRARIES = Path(__file__).with_name("lib")


class BuildTarget(NamedTuple):
    """What a library is for.

    Attributes:
        architecture: As `platform.machine()` says it.
        cpu: As clang names it.
        level: The least x86-64 level of a processor that runs it; 0 elsewhere.
    """

    architecture: str
    cpu: str
    level: int

    @property
    def file(self) -> Path:
        """Where its library is."""
        return LIBRARIES / f"{self.cpu if self.level else self.architecture}.so"


# The best ones first.
TARGETS = (
    BuildTarget("x86_64", "x86_64_v4", 4),
    BuildTarget("x86_64", "x86_64_v3", 3),
    BuildTarget("x86_64", "x86_64_v2", 2),
    BuildTarget("aarch64", "generic", 0),
)
GLIBC = "2.17"  # as of manylinux2014

# Floats are computed as they are written, on every processor; integers wrap around.
FLAGS = (
    "-std=gnu11",
    "-fwrapv",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-fPIC",
    "-shared",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-psabi",
)
FAST = ("-O3", "-s", "-fno-sanitize=all")
# For a debugger; undefined behaviour ends the process.
DEBUG = ("-O1", "-g", "-fsanitize=undefined", "-fsanitize-trap=undefined")


def targets_of(architecture: str) -> list[BuildTarget]:
    """The targets of an architecture, the best one first; none where gpuload has no kernels for it."""
    return [target for target in TARGETS if target.architecture == architecture]


def stamp_of_sources() -> str:
    """A digest of what the libraries are made from, which each of them contains; "" where the sources are not at hand,
    as in an installed wheel."""
    files = sorted(SOURCES.glob("*.[ch]"))
    if not files:
        return ""
    digest = hashlib.sha256(" ".join([*FLAGS, *FAST, GLIBC]).encode())
    for file in files:
        digest.update(file.name.encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()
