"""Cores and memory that this process may use, also in a container that has less than its host.

A container's share of the processor is a quota of its control group (`docker run --cpus 4`, `limits.cpu` in
Kubernetes), which neither `os.cpu_count` nor the affinity shows: the kernel stops a process that starts a thread for
each of 64 cores but may use 4 for most of every 100 ms. Memory has such a limit, too: the kernel kills a process that
exceeds it, whatever `free` shows.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/")


def count_cores(root: Path = _ROOT) -> int:
    """Cores that this process may use, by its affinity and by the CPU quota of its control groups, rounded down."""
    quota = cpu_quota(root)
    cores = affinity()
    return cores if quota is None else max(1, min(cores, int(quota)))


def affinity() -> int:
    """Cores that this process may run on, regardless of its quota."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota(root: Path = _ROOT) -> float | None:
    """The CPU quota of this process's control groups, in cores; None if they set no limit.

    root: the root of the file system, for tests.
    """
    quotas = []
    for folder in _groups("cpu", root):
        with suppress(OSError, ValueError):
            if (folder / "cpu.max").exists():
                limit, period = (folder / "cpu.max").read_text().split()
            else:
                limit, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
            if limit not in ("max", "-1"):
                quotas.append(int(limit) / int(period))
    return min((quota for quota in quotas if quota > 0), default=None)


def throttled(root: Path = _ROOT) -> float | None:
    """Share of the scheduler's periods so far in which this container was throttled; None if there is no quota."""
    for folder in _groups("cpu", root):
        with suppress(OSError, ValueError):
            told = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
            if int(told.get("nr_periods", 0)) > 0:
                return int(told["nr_throttled"]) / int(told["nr_periods"])
    return None


def memory_limit(root: Path = _ROOT) -> int | None:
    """The memory limit of this process's control groups in bytes; None if they set none below the machine's memory."""
    limits = []
    for folder in _groups("memory", root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):
                limits.append(int((folder / name).read_text()))  # "max": no limit
    total = machine_memory(root)
    return min((limit for limit in limits if total is None or limit < total), default=None)


def machine_memory(root: Path = _ROOT) -> int | None:
    """Bytes of memory of the machine; None if /proc does not show it."""
    return _meminfo("MemTotal", root)


def available_memory(root: Path = _ROOT) -> int | None:
    """Bytes that can be allocated without swapping, on the machine; None if /proc does not show it."""
    return _meminfo("MemAvailable", root)


def _meminfo(name: str, root: Path) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """The folders of this process's control group of a controller and of those above it, in either version."""
    try:
        own = dict(_own_groups(root))
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return
    for line in mounts:
        # proc(5): id, parent, device, root of the mount, mount point, options, optional fields, "-", type, source,
        # options of the file system, where version 1 names its controllers.
        before, _, after = line.partition(" - ")
        places, kinds = before.split(), after.split()
        if len(places) < 5 or not kinds or kinds[0] not in ("cgroup", "cgroup2"):
            continue
        if kinds[0] == "cgroup" and controller not in kinds[-1].split(","):
            continue
        path = own.get("" if kinds[0] == "cgroup2" else controller)
        if path is None:
            continue
        # In a container the group's path may be the host's, of which the mount shows a part.
        mount = root / places[4].lstrip("/")
        relative = path.removeprefix(places[3].rstrip("/")).strip("/")
        is_below = ".." not in relative.split("/") and (mount / relative).is_dir()
        folder = mount / relative if is_below else mount
        while True:
            yield folder
            if folder == mount:
                break
            folder = folder.parent


def _own_groups(root: Path) -> Iterator[tuple[str, str]]:
    """(controller, path) of each control group of this process; version 2 has one, without a controller's name."""
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, path
