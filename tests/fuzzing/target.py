"""What is fuzzed: a parser, small valid files for it, and how they are changed."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import ClassVar

from fuzzing.mutate import mutate_bytes
from gpuload.errors import GpuloadError


class Target:
    """One parser. An instance is made in each process that fuzzes.

    seconds: of processor time for one input. memory: bytes of address space beyond what the process has at its start.
    processes: whether gpuload itself reads such files in a process that may die, so that a death is counted as
        "contained": C libraries do not promise to survive any file.
    """

    name: ClassVar[str]
    refusals: ClassVar[tuple[type[BaseException], ...]] = (GpuloadError,)
    tokens: ClassVar[Sequence[bytes]] = ()
    seconds: ClassVar[float] = 10
    memory: ClassVar[int] = 2 << 30
    processes: ClassVar[bool] = False

    def seeds(self) -> list[bytes]:
        """Valid files, the same in each process."""
        raise NotImplementedError

    def mutate(self, rng: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
        return mutate_bytes(rng, data, seeds, self.tokens)

    def run(self, data: bytes) -> None:
        """Reads the input.

        Raises:
            one of `refusals`: it is refused. Anything else is a finding.
        """
        raise NotImplementedError


def scratch_folder() -> Path:
    """A new folder, which `fuzzing.run` removes with its own."""
    return Path(tempfile.mkdtemp())
