"""The rank of this process, and the device and cores that it may use."""

import os
import re
import sys
from dataclasses import dataclass
from typing import Any

from gpuload.errors import ArgumentError, DeviceError
from gpuload.machine.limits import count_cores


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together; `local_` counts the processes on this machine.

    local_rank: None if several processes train and this one's number on its machine is unknown.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int | None = 0
    local_world_size: int = 1


# Variables for a process's number on its machine, and the number of processes there: torchrun, Slurm, Open MPI, Intel
# MPI. srun gives the numbers of all machines in one text.
_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_LOCAL_SIZE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def find_ranks(rank: int | None, world_size: int | None) -> Ranks:
    """The ranks as given, or from `torch.distributed`, or from the environment that `torchrun` sets, or one process.

    Raises:
        ArgumentError: only one of the two is given, or rank is not in 0..world_size-1.
    """
    if (rank is None) != (world_size is None):
        raise ArgumentError(
            f"rank={rank}, world_size={world_size}: give both, or neither to use those of torch.distributed or torchrun"
        )
    if rank is None or world_size is None:
        if (distributed := torch_distributed()) is not None:
            rank, world_size = distributed.get_rank(), distributed.get_world_size()
        else:
            rank, world_size = from_environment("RANK", 0), from_environment("WORLD_SIZE", 1, least=1)
    if not 0 <= rank < world_size:
        raise ArgumentError(f"rank={rank}, world_size={world_size}: expected 0 <= rank < world_size")
    if world_size == 1:  # other launchers' variables may belong to a job that this process is not part of
        return Ranks(rank, world_size, from_environment("LOCAL_RANK", 0), from_environment("LOCAL_WORLD_SIZE", 1, 1))
    known = next((name for name in _LOCAL_RANK if name in os.environ), None)
    size = next((name for name in _LOCAL_SIZE if name in os.environ), None)
    return Ranks(
        rank,
        world_size,
        from_environment(known, 0) if known else None,
        from_environment(size, 1, 1) if size else _slurm_tasks(),
    )


def _slurm_tasks() -> int:
    """The tasks of this Slurm step on this node; 1 outside of one. Slurm writes "4(x2),3" for nodes of 4, 4 and 3."""
    counts = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")):
        counts += [int(count)] * int(times or 1)
    node = from_environment("SLURM_NODEID", 0)
    return max(1, counts[node]) if node < len(counts) else 1


def count_threads(ranks: Ranks) -> int:
    """This process's share of the usable cores, in a container limited by its CPU quota."""
    return max(1, count_cores() // ranks.local_world_size)


def find_device(device: str, ranks: Ranks, gpus: int) -> int | None:
    """The number of the GPU, or None for the CPU.

    device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1". gpus: how many this process can use.

    Without a number, a single visible GPU is chosen; otherwise the one that `torch.cuda.set_device` chose, or the one
    with the number of the local rank, from torchrun, srun or mpirun.

    Raises:
        DeviceError: there is no such GPU, or this rank's choice among several GPUs is unknown.
    """
    kind, _, number = device.partition(":")
    if kind == "cpu" or (kind == "auto" and gpus == 0):
        return None
    if number:
        wanted, why = int(number), ""
    elif gpus == 1:
        wanted, why = 0, ""
    else:
        chosen = _torch_device()
        if chosen is None and ranks.local_rank is None:
            raise DeviceError(
                f"device={device!r}: rank {ranks.rank} of {ranks.world_size} can use {gpus} GPUs, and nothing tells "
                "which is its own. Call torch.cuda.set_device before, set LOCAL_RANK, or give a number, as in 'cuda:1'"
            )
        # 0 is also torch's default device, so a local rank takes precedence.
        if chosen or ranks.local_rank is None:
            wanted, why = chosen or 0, " (torch's current device)"
        else:
            wanted, why = ranks.local_rank, " (its local rank)"
    if wanted >= gpus:
        raise DeviceError(
            f"device={device!r}: needs GPU {wanted}{why if gpus else ''}, and {gpus or 'none'} can be used here (see "
            "`nvidia-smi`). Use device='cpu', or 'auto' to take a GPU only where there is one"
        )
    return wanted


def _torch_device() -> int | None:
    """torch's current GPU in this process; None if torch has not been imported or has not used a GPU yet."""
    torch = sys.modules.get("torch")
    return int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_initialized() else None


def torch_distributed() -> Any:
    """torch.distributed if it is initialised (torch has then been imported), otherwise None."""
    torch = sys.modules.get("torch")
    in_use = torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed if torch is not None and in_use else None


def from_environment(name: str, default: int, least: int = 0) -> int:
    """A whole number set by a launcher."""
    value = os.environ.get(name, str(default))
    if value.strip() == "-1":  # some launchers' value for a single process
        return default
    if not value.strip().isdecimal() or int(value) < least:
        raise ArgumentError(
            f"environment variable {name}={value!r}: expected a whole number of at least {least}, as torchrun sets it"
        )
    return int(value)
