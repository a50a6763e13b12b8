"""The rank of this process, the device and cores that it may use, and whether all ranks open the same data."""

import hashlib
import json
import logging
import os
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from types import FrameType
from typing import Any

from gpuload.errors import ArgumentError, DeviceError, GpuloadError
from gpuload.machine.limits import count_cores

# Variables for a process's number on its machine, and the number of processes there: torchrun, Slurm, Open MPI, Intel
# MPI. srun gives the numbers of all machines in one text.
_LOCAL_RANK = (
    "LOCAL_RANK",
    "SLURM_LOCALID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
)
_LOCAL_SIZE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")

_LOG = logging.getLogger(__name__)
_PATIENCE_S = 20.0  # for ranks that construct the same loaders in another order
_POLL_S = 0.05

_constructed: Counter[str] = Counter()  # loaders, by the lines that construct them


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together.

    Attributes:
        rank: The number of this process, from 0.
        world_size: How many processes train.
        local_rank: Its number among those of this machine; None if several processes train and it is unknown.
        local_world_size: How many of them run on this machine.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int | None = 0
    local_world_size: int = 1


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
            rank = distributed.get_rank()
            world_size = distributed.get_world_size()
        else:
            rank = from_environment("RANK", 0)
            world_size = from_environment("WORLD_SIZE", 1, least=1)
    if not 0 <= rank < world_size:
        raise ArgumentError(
            f"rank={rank}, world_size={world_size}: expected 0 <= rank < world_size"
        )
    if (
        world_size == 1
    ):  # other launchers' variables may belong to a job that this process is not part of
        return Ranks(
            rank,
            world_size,
            from_environment("LOCAL_RANK", 0),
            from_environment("LOCAL_WORLD_SIZE", 1, 1),
        )
    local_rank = next(
        (from_environment(name, 0) for name in _LOCAL_RANK if name in os.environ), None
    )
    sizes = (
        from_environment(name, 1, least=1) for name in _LOCAL_SIZE if name in os.environ
    )
    return Ranks(rank, world_size, local_rank, next(sizes, None) or _slurm_tasks())


def _slurm_tasks() -> int:
    """The tasks of this Slurm step on this node; 1 outside of one. Slurm writes "4(x2),3" for nodes of 4, 4 and 3."""
    runs = re.findall(
        r"(\d+)(?:\(x(\d+)\))?", os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    )
    counts = [int(count) for count, times in runs for _ in range(int(times or 1))]
    node = from_environment("SLURM_NODEID", 0)
    return max(1, counts[node]) if node < len(counts) else 1


def count_threads(ranks: Ranks) -> int:
    """This process's share of the usable cores, in a container limited by its CPU quota."""
    return max(1, count_cores() // ranks.local_world_size)


def find_device(device: str, ranks: Ranks, gpus: int) -> int | None:
    """The number of the GPU, or None for the CPU.

    Without a number, a single visible GPU is chosen; otherwise the one that `torch.cuda.set_device` chose, or the one
    with the number of the local rank, from torchrun, srun or mpirun.

    Args:
        device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1".
        ranks: This process among those that train.
        gpus: How many GPUs this process can use.

    Raises:
        DeviceError: there is no such GPU, or this rank's choice among several GPUs is unknown.
    """
    kind, _, number = device.partition(":")
    if kind == "cpu" or (kind == "auto" and gpus == 0):
        return None
    chosen = _torch_device()
    if number:
        wanted = int(number)
        why = ""
    elif gpus == 1:
        wanted = 0
        why = ""
    elif (
        ranks.local_rank is not None and not chosen
    ):  # 0 is also torch's default device
        wanted = ranks.local_rank
        why = " (its local rank)"
    elif chosen is not None:
        wanted = chosen
        why = " (torch's current device)"
    else:
        raise DeviceError(
            f"device={device!r}: rank {ranks.rank} of {ranks.world_size} can use {gpus} GPUs, and nothing tells which "
            "is its own. Call torch.cuda.set_device before, set LOCAL_RANK, or give a number, as in 'cuda:1'"
        )
    if wanted >= gpus:
        raise DeviceError(
            f"device={device!r}: needs GPU {wanted}{why if gpus else ''}, and {gpus or 'none'} can be used here (see "
            "`nvidia-smi`). Use device='cpu', or 'auto' to take a GPU only where there is one"
        )
    return wanted


def _torch_device() -> int | None:
    """torch's current GPU in this process; None if torch has not been imported or has not used a GPU yet."""
    torch = sys.modules.get("torch")
    return (
        int(torch.cuda.current_device())
        if torch is not None and torch.cuda.is_initialized()
        else None
    )


def torch_distributed() -> Any:
    """torch.distributed if it is initialised (torch has then been imported), otherwise None."""
    torch = sys.modules.get("torch")
    in_use = (
        torch is not None
        and torch.distributed.is_available()
        and torch.distributed.is_initialized()
    )
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


def compare_with_counterparts(ranks: Ranks, settings: Mapping[str, Any]) -> None:
    """Compares a loader under construction with its counterparts on other ranks.

    A counterpart is constructed by the same lines of the program, on the same pass through them. The first rank leaves
    its settings in torch.distributed's store, and the others compare theirs with them. No rank waits for one that
    constructs no loader. A loader on only one rank, or with its own world_size, is not compared.

    Raises:
        ArgumentError: on the later rank, if the settings differ and the earlier rank has not constructed such a loader
            there in another order.
    """
    if (distributed := torch_distributed()) is None:
        if ranks.rank == 0 and 1 < ranks.world_size == from_environment(
            "WORLD_SIZE", 1, least=1
        ):
            _say_once(
                "the data and settings of the ranks are not compared, since torch.distributed is not initialised yet. "
                "Construct loaders after init_process_group, or call check_ranks()"
            )
        return
    if ranks.world_size == 1 or ranks.world_size != distributed.get_world_size():
        return
    place = _calling_lines(sys._getframe(1))
    _constructed[place] += 1
    try:
        store = distributed.distributed_c10d._get_default_store()
        first = _compare(
            store, f"{place}/{_constructed[place]}", place, (ranks.rank, dict(settings))
        )
    except (
        Exception
    ) as error:  # a lost or incompatible store; training will report it better
        _say_once(
            f"the data and settings of the ranks are not compared ({type(error).__name__}: {error})"
        )
        return
    if first is not None:
        raise ArgumentError(_difference([first, (ranks.rank, settings)]))


def compare_ranks(ranks: Ranks, settings: Mapping[str, Any], timeout_s: float) -> None:
    """Compares the settings of all ranks: returns on every rank, or raises on every rank.

    Args:
        ranks: This process among those that train.
        settings: What must be equal, by the name that the message gives it; compared by `repr`.
        timeout_s: Seconds until all ranks must have called this.

    Raises:
        ArgumentError: the settings are not the same on all ranks, or two processes have the same rank.
        GpuloadError: a rank did not call this in time.
    """
    if (distributed := torch_distributed()) is None:
        return
    try:  # a separate gloo group: that of training may be NCCL, with a timeout of half an hour
        group = distributed.new_group(
            backend="gloo", timeout=timedelta(seconds=timeout_s)
        )
        entries: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(
            entries, (ranks.rank, dict(settings)), group=group
        )
        distributed.destroy_process_group(group)
    except RuntimeError as error:
        raise GpuloadError(
            f"rank {ranks.rank} of {ranks.world_size} waited {timeout_s:g} s for the others to open their data. One "
            f"has ended, hangs, or does not call check_ranks: see its output ({str(error).splitlines()[0]})"
        ) from None
    if sorted(rank for rank, _ in entries) != list(range(len(entries))):
        raise ArgumentError(
            f"ranks: the {len(entries)} processes were given rank={', '.join(str(rank) for rank, _ in entries)}; "
            "expected each number once. Omit rank and world_size to use those of torch.distributed or torchrun"
        )
    if difference := _difference(sorted(entries, key=lambda pair: pair[0])):
        raise ArgumentError(difference)


def _compare(
    store: Any, key: str, place: str, entry: tuple[int, dict[str, Any]]
) -> tuple[int, dict[str, Any]] | None:
    """Puts rank and settings into a store. Returns the first rank's entry if its settings differ for good."""
    digest = _digest(json.dumps(entry[1], sort_keys=True))
    store.set(f"gpuload/{place}/{entry[0]}/{digest}", "1")
    rank, settings = json.loads(
        store.compare_set(f"gpuload/{key}", "", json.dumps(entry))
    )
    if settings == entry[1]:
        return None
    ends = time.monotonic() + _PATIENCE_S
    while not store.check([f"gpuload/{place}/{rank}/{digest}"]):
        if time.monotonic() > ends:
            return rank, settings
        time.sleep(_POLL_S)
    return None


def _difference(entries: Sequence[tuple[int, Mapping[str, Any]]]) -> str:
    """A message about the settings that differ among ranks; empty if they agree."""
    differing = []
    for name in entries[0][1]:
        # Only the first rank with each value, so the message stays readable with a thousand ranks.
        firsts = {repr(settings[name]): rank for rank, settings in reversed(entries)}
        values = [
            f"{value} on rank {rank}"
            for value, rank in sorted(firsts.items(), key=lambda first: first[1])
        ]
        if len(values) > 1:
            differing.append(f"{name} {', '.join(values)}")
    if not differing:
        return ""
    advice = "All ranks must open the same data set with the same settings; a loader of one rank alone needs rank=0"
    return f"ranks differ: {'; '.join(differing)}. {advice}, world_size=1"


def _calling_lines(frame: FrameType) -> str:
    """A digest of the call stack's lines, without folders, which may differ among machines."""
    lines = [(frame.f_code, number) for frame, number in traceback.walk_stack(frame)]
    return _digest(
        repr(
            [
                (os.path.basename(code.co_filename), number, code.co_name)
                for code, number in lines
            ]
        )
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def _say_once(message: str) -> None:
    _LOG.warning("%s", message)
