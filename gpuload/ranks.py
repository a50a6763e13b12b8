"""Which share of the work is this process's, and which device and cores it may use."""

import os
import sys
from dataclasses import dataclass

from gpuload.errors import ArgumentError, DeviceError


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together; `local_` counts those on this machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1


def find_ranks(rank: int | None, world_size: int | None) -> Ranks:
    """As told, else as `torch.distributed` knows, else as `torchrun` says in the environment, else one process.

    Raises:
        ArgumentError: only one of the two is given, or rank is not in 0..world_size-1.
    """
    if (rank is None) != (world_size is None):
        raise ArgumentError(f"rank={rank}, world_size={world_size}: give both, or neither to have them found")
    if rank is None or world_size is None:
        torch = sys.modules.get("torch")  # whoever uses torch.distributed has imported torch
        if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
            rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        else:
            rank, world_size = _from_environment("RANK", 0), _from_environment("WORLD_SIZE", 1)
    if not 0 <= rank < world_size:
        raise ArgumentError(f"rank={rank}, world_size={world_size}: expected 0 <= rank < world_size")
    return Ranks(rank, world_size, _from_environment("LOCAL_RANK", 0), _from_environment("LOCAL_WORLD_SIZE", 1))


def count_threads(ranks: Ranks) -> int:
    """This process's share of the cores it may run on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // ranks.local_world_size)


def find_device(device: str, ranks: Ranks, gpus: int) -> int | None:
    """Number of the GPU, or None for the CPU. "auto" is a GPU where there is one; "cuda" is this rank's.

    Raises:
        ArgumentError: not "auto", "cpu", "cuda" or "cuda:N".
        DeviceError: there is no such GPU.
    """
    kind, _, number = device.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (number and not (kind == "cuda" and number.isdecimal())):
        raise ArgumentError(f"device={device!r}: expected 'auto', 'cpu', 'cuda' or 'cuda:0', 'cuda:1', …")
    if kind == "cpu" or (kind == "auto" and gpus == 0):
        return None
    wanted = int(number) if number else ranks.local_rank
    if wanted >= gpus:
        raise DeviceError(
            f"device={device!r}: needs GPU {wanted}, and {gpus or 'none'} can be used here (see `nvidia-smi`). "
            "Use device='cpu', or 'auto' to take a GPU only where there is one"
        )
    return wanted


def _from_environment(name: str, default: int) -> int:
    value = os.environ.get(name, str(default))
    try:
        return int(value)
    except ValueError:
        raise ArgumentError(
            f"environment variable {name}={value!r}: expected a whole number, as torchrun sets it"
        ) from None
