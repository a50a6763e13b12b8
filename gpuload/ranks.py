"""The rank of this process, and the device and cores that it may use."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from gpuload.errors import ArgumentError, DeviceError, GpuloadError
from gpuload.limits import count_cores


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together; `local_` counts the processes on this machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1


def find_ranks(rank: int | None, world_size: int | None) -> Ranks:
    """As given, else from `torch.distributed`, else from the environment that `torchrun` sets, else one process.

    Raises:
        ArgumentError: only one of the two is given, or rank is not in 0..world_size-1.
    """
    if (rank is None) != (world_size is None):
        raise ArgumentError(
            f"rank={rank}, world_size={world_size}: give both, or neither to use those of torch.distributed or torchrun"
        )
    if rank is None or world_size is None:
        if (distributed := _torch_distributed()) is not None:
            rank, world_size = distributed.get_rank(), distributed.get_world_size()
        else:
            rank, world_size = _from_environment("RANK", 0), _from_environment("WORLD_SIZE", 1, least=1)
    if not 0 <= rank < world_size:
        raise ArgumentError(f"rank={rank}, world_size={world_size}: expected 0 <= rank < world_size")
    return Ranks(rank, world_size, _from_environment("LOCAL_RANK", 0), _from_environment("LOCAL_WORLD_SIZE", 1, 1))


def count_threads(ranks: Ranks) -> int:
    """This process's share of the cores that it may use, in a container those of its CPU quota."""
    return max(1, count_cores() // ranks.local_world_size)


def compare_ranks(ranks: Ranks, settings: Mapping[str, Any], timeout_s: float) -> None:
    """Compares the settings of all ranks: returns on every rank, or raises on every rank.

    Raises:
        ArgumentError: the settings are not the same on all ranks, or two processes have the same rank.
        GpuloadError: a rank did not call this within the time.
    """
    if (distributed := _torch_distributed()) is None:
        return
    try:  # in a separate gloo group: the training's may be NCCL, with a timeout of half an hour
        group = distributed.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        told: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(told, (ranks.rank, dict(settings)), group=group)
        distributed.destroy_process_group(group)
    except RuntimeError as error:
        raise GpuloadError(
            f"rank {ranks.rank} of {ranks.world_size} waited {timeout_s:g} s for the others to open their data. One "
            f"has ended, hangs, or does not call check_ranks: see its output ({str(error).splitlines()[0]})"
        ) from None
    if sorted(rank for rank, _ in told) != list(range(len(told))):
        raise ArgumentError(
            f"ranks: the {len(told)} processes were given rank={', '.join(str(rank) for rank, _ in told)}; expected "
            "each number once. Omit rank and world_size to use those of torch.distributed or torchrun"
        )
    differing = []
    for name in settings:
        values = {rank: other[name] for rank, other in sorted(told, key=lambda pair: pair[0])}
        # Only the first rank with each value, so that the message stays readable with a thousand ranks.
        firsts = {repr(value): rank for rank, value in reversed(values.items())}
        if len(firsts) > 1:
            found = sorted((rank, value) for value, rank in firsts.items())
            differing.append(f"{name} " + ", ".join(f"{value} on rank {rank}" for rank, value in found))
    if differing:
        raise ArgumentError(
            f"ranks differ: {'; '.join(differing)}. All ranks must open the same data set with the same settings"
        )


def find_device(device: str, ranks: Ranks, gpus: int) -> int | None:
    """Number of the GPU, or None for the CPU.

    device: "auto" (a GPU where there is one), "cpu", "cuda" or "cuda:1". gpus: how many this process can use.

    Without a number it is the GPU that `torch.cuda.set_device` chose, else the one numbered LOCAL_RANK; of a single
    GPU, as where each process sees only its own, that one.

    Raises:
        DeviceError: there is no such GPU.
    """
    kind, _, number = device.partition(":")
    if kind == "cpu" or (kind == "auto" and gpus == 0):
        return None
    if number:
        wanted, why = int(number), ""
    elif gpus == 1:
        wanted, why = 0, ""
    else:
        # 0 is torch's device where nobody chose one, so it does not count as chosen.
        chosen = _torch_device()
        wanted, why = (chosen, " (torch's current device)") if chosen else (ranks.local_rank, " (LOCAL_RANK)")
    if wanted >= gpus:
        raise DeviceError(
            f"device={device!r}: needs GPU {wanted}{why if gpus else ''}, and {gpus or 'none'} can be used here (see "
            "`nvidia-smi`). Use device='cpu', or 'auto' to take a GPU only where there is one"
        )
    return wanted


def _torch_device() -> int:
    """torch's current GPU in this process; 0 where torch has not been imported, or has not used a GPU yet."""
    torch = sys.modules.get("torch")
    return int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_initialized() else 0


def _torch_distributed() -> Any:
    """The module, where it is initialised; torch has been imported then."""
    torch = sys.modules.get("torch")
    in_use = torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed if torch is not None and in_use else None


def _from_environment(name: str, default: int, least: int = 0) -> int:
    value = os.environ.get(name, str(default))
    if value.strip() == "-1":  # how some launchers say that there is only one process
        return default
    if not value.strip().isdecimal() or int(value) < least:
        raise ArgumentError(
            f"environment variable {name}={value!r}: expected a whole number of at least {least}, as torchrun sets it"
        )
    return int(value)
