"""How to pack: one value with all the settings, from which the command line takes its defaults."""

import os
from dataclasses import dataclass

from gpuload.errors import ArgumentError


@dataclass(frozen=True)
class PackOptions:
    """Settings of `packer.pack`. The same settings and images give the same bytes, however many workers there are.

    val: share of each class's images that goes into a validation split.
    shuffle: whether the samples are shuffled over all shards before they are packed.
    seed: of the shuffle and the split.
    maxcount, maxsize: most samples and bytes in a shard; maxsize None: a sixteenth of all, between 16 MB and 1 GB.
        Sizes count as images lie in the source: one that is not kept may come out larger or smaller.
    workers: processes; None: one for each core that this process may use.
    time_limit_s: seconds after which an image is given up.
    measure: about how many images mean and std are taken from (see `plan.choose_measured`).
    """

    val: float = 0.0
    shuffle: bool = True
    seed: int = 0
    maxcount: int = 10_000
    maxsize: int | None = None
    workers: int | None = None
    time_limit_s: float = 60.0
    measure: int = 4096

    def __post_init__(self) -> None:
        if not 0 <= self.val < 1:
            raise ArgumentError(
                f"--val is a share of the images, from 0 to below 1; got {self.val}. A tenth is --val 0.1"
            )
        if self.maxcount < 1:
            raise ArgumentError(f"--maxcount must be at least 1 sample a shard; got {self.maxcount}")
        if self.maxsize is not None and self.maxsize < 1:
            raise ArgumentError(f"--maxsize must be at least 1 byte; got {self.maxsize}. Write for instance 1GB")
        if self.workers is not None and self.workers < 1:
            raise ArgumentError(f"--workers must be at least 1; got {self.workers}. Leave it out to use every core")
        if not self.time_limit_s > 0:
            raise ArgumentError(f"--time-limit must be above 0 seconds; got {self.time_limit_s}")

    @property
    def worker_count(self) -> int:
        return self.workers or len(os.sched_getaffinity(0))


_UNITS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def parse_size(text: str) -> int:
    """Bytes in a size such as "1GB", "256 MiB", "1e9" or "500000".

    Raises:
        ArgumentError: it is no size.
    """
    upper = text.strip().upper()
    digits = upper.rstrip("BKMGTI ")
    try:
        return int(float(digits) * _UNITS[upper[len(digits) :].strip().removesuffix("B")])
    except (ValueError, KeyError, OverflowError):
        raise ArgumentError(f"{text!r} is not a size in bytes; write for instance 1GB, 256MiB or 500000") from None
