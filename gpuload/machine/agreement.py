"""Whether all ranks open the same data with the same settings."""

import hashlib
import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import FrameType
from typing import Any

from gpuload.errors import ArgumentError, GpuloadError
from gpuload.machine.ranks import Ranks, from_environment, torch_distributed

_LOG = logging.getLogger(__name__)
_PATIENCE_S = 20.0  # for ranks that construct the same loaders in another order
_POLL_S = 0.05

_constructed: Counter[str] = Counter()  # loaders, by the lines that construct them
_said: set[str] = set()


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
        if ranks.rank == 0 and 1 < ranks.world_size == from_environment("WORLD_SIZE", 1, least=1):
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
        first = _compare(_store(distributed), f"{place}/{_constructed[place]}", place, (ranks.rank, dict(settings)))
    except Exception as error:  # a lost or incompatible store; training will report it better
        _say_once(f"the data and settings of the ranks are not compared ({type(error).__name__}: {error})")
        return
    if first is not None:
        raise ArgumentError(_difference([first, (ranks.rank, settings)]))


def compare_ranks(ranks: Ranks, settings: Mapping[str, Any], timeout_s: float) -> None:
    """Compares the settings of all ranks: returns on every rank, or raises on every rank.

    Raises:
        ArgumentError: the settings are not the same on all ranks, or two processes have the same rank.
        GpuloadError: a rank did not call this in time.
    """
    if (distributed := torch_distributed()) is None:
        return
    try:  # a separate gloo group: that of training may be NCCL, with a timeout of half an hour
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
    if difference := _difference(sorted(told, key=lambda pair: pair[0])):
        raise ArgumentError(difference)


def _compare(store: Any, key: str, place: str, own: tuple[int, dict[str, Any]]) -> tuple[int, dict[str, Any]] | None:
    """Puts rank and settings into a store. Returns the first rank's entry if its settings differ for good."""
    digest = _digest(json.dumps(own[1], sort_keys=True))
    store.set(f"gpuload/{place}/{own[0]}/{digest}", "1")
    rank, settings = json.loads(store.compare_set(f"gpuload/{key}", "", json.dumps(own)))
    if settings == own[1]:
        return None
    ends = time.monotonic() + _PATIENCE_S
    while not store.check([f"gpuload/{place}/{rank}/{digest}"]):
        if time.monotonic() > ends:
            return rank, settings
        time.sleep(_POLL_S)
    return None


def _difference(told: Sequence[tuple[int, Mapping[str, Any]]]) -> str:
    """A message about the settings that differ among ranks; empty if they agree."""
    differing = []
    for name in told[0][1]:
        # Only the first rank with each value, so the message stays readable with a thousand ranks.
        firsts = {repr(settings[name]): rank for rank, settings in reversed(told)}
        if len(firsts) > 1:
            values = sorted((rank, value) for value, rank in firsts.items())
            differing.append(f"{name} " + ", ".join(f"{value} on rank {rank}" for rank, value in values))
    if not differing:
        return ""
    return (
        f"ranks differ: {'; '.join(differing)}. All ranks must open the same data set with the same settings; a loader "
        "of one rank alone needs rank=0, world_size=1"
    )


def _calling_lines(frame: FrameType | None) -> str:
    """A digest of the call stack's lines, without folders, which may differ among machines."""
    lines = []
    while frame is not None:
        code = frame.f_code
        lines.append((os.path.basename(code.co_filename), frame.f_lineno, code.co_name))
        frame = frame.f_back
    return _digest(repr(lines))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _store(distributed: Any) -> Any:
    return distributed.distributed_c10d._get_default_store()


def _say_once(message: str) -> None:
    if message not in _said:
        _said.add(message)
        _LOG.warning("%s", message)
