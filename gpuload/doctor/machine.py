"""Cores, memory and file handles that this process may use."""

import os
import platform
import sys
from typing import Any

from gpuload import __version__
from gpuload.doctor.findings import Finding, size
from gpuload.machine.limits import (
    affinity,
    available_memory,
    count_cores,
    cpu_quota,
    machine_memory,
    memory_limit,
    throttled,
)

_LITTLE_MEMORY = 1e9
_FEW_HANDLES = 1024  # the usual limit


def check_system() -> Finding:
    said = f"gpuload {__version__}, Python {platform.python_version()}, {platform.system()} {platform.release()}, "
    said += platform.machine()
    data = {"gpuload": __version__, "python": platform.python_version(), "machine": platform.machine()}
    if not sys.platform.startswith("linux"):
        return Finding("system", "attention", said, "It is tested on Linux alone, and packing needs it", data)
    return Finding("system", "ok", said, data=data)


def check_cores() -> Finding:
    """Cores by the affinity and the quota, and how many threads torch would start."""
    cores, quota, whole = count_cores(), cpu_quota(), os.cpu_count() or 1
    data: dict[str, Any] = {
        "cores": cores,
        "affinity": affinity(),
        "quota": quota,
        "machine": whole,
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
    }
    said = f"{cores} of the machine's {whole} can be used"
    if quota is not None and quota < affinity():
        said += f": the container's quota is {quota:g} cores' time"
    elif affinity() < whole:
        said += ": the process is bound to them (taskset, a batch system or the container's cpuset)"
    stopped = data["throttled"] = throttled()
    if stopped is not None and stopped > 0.1:
        return Finding(
            "cores",
            "attention",
            f"{said}; it was stopped in {stopped:.0%} of the periods so far, since it had used up its quota",
            f"Raise the quota (`docker run --cpus`, Kubernetes' limits.cpu), or use no more threads than {cores}: "
            f"OMP_NUM_THREADS={cores} for torch, num_threads for the loader",
            data,
        )
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if quota is not None and quota < affinity() and not (threads.isdecimal() and int(threads) <= cores):
        return Finding(
            "cores",
            "attention",
            f"{said}. gpuload keeps to that, but torch starts a thread for each core that it sees",
            f"Set OMP_NUM_THREADS={cores}",
            data,
        )
    if data["load"] > 1.5 * whole:
        said += (
            f". They are busy: {data['load']:.1f} processes want to run at a time, so that what is measured here is "
        )
        return Finding("cores", "note", f"{said}less than the machine can do", data=data)
    return Finding("cores", "ok", said, data=data)


def check_memory() -> Finding:
    total, limit, free = machine_memory(), memory_limit(), available_memory()
    data = {"total": total, "limit": limit, "available": free}
    if total is None or free is None:
        return Finding("memory", "note", "/proc/meminfo does not tell", data=data)
    usable = min(free, limit or free)
    said = f"{size(free)} of {size(total)} are free"
    if limit is not None:
        said += f", and this container may use {size(limit)}, page cache included"
    if usable < _LITTLE_MEMORY:
        remedy = "Free some: a loader needs about 0.4 GB, and the page cache what is left"
        return Finding("memory", "attention", said, remedy, data)
    return Finding("memory", "ok", said, data=data)


def check_file_handles(needed: int = 0) -> Finding:
    """needed: by the shards of two windows, of which each has one."""
    try:
        import resource
    except ImportError:  # Windows
        return Finding("file handles", "note", "this system does not tell how many there may be")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    data = {"soft": soft, "hard": hard}
    limit = "no limit" if soft == resource.RLIM_INFINITY else f"{soft:,} at a time"
    if soft != resource.RLIM_INFINITY and soft < max(256, 2 * needed):
        return Finding(
            "file handles",
            "attention",
            f"{limit}; each shard of two windows takes one",
            f"`ulimit -n {_FEW_HANDLES * 4}` before the start (`docker run --ulimit nofile={_FEW_HANDLES * 4}`)",
            data,
        )
    return Finding("file handles", "ok", limit, data=data)
