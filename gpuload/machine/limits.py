"""Cores and memory that this process may use, also in a container that has less than its host.

A container's share of the processor is a quota of its control group (`docker run --cpus 4`, `limits.cpu` in
Kubernetes), which neither `os.cpu_count` nor the affinity shows: the kernel stops a process that starts a thread for
each of 64 cores but may use 4 for most of every 100 ms.
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
    return (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1
    )


def cpu_quota(root: Path = _ROOT) -> float | None:
    """The CPU quota of this process's control groups in cores; None if they set no limit.

    Args:
        root: Where the file system begins, for tests.
    """
    quotas = []
    version_1 = _words_of(root, "cpu.cfs_quota_us", "cpu.cfs_period_us")
    for words in (*_words_of(root, "cpu.max"), *version_1):
        with suppress(ValueError):  # "max": no limit; so is -1 in version 1
            limit, period = map(int, words)
            quotas.append(limit / period)
    return min((quota for quota in quotas if quota > 0), default=None)


def is_in_memory(folder: Path, root: Path = _ROOT) -> bool:
    """Whether a folder is in a file system that lies in memory, such as /dev/shm.

    Args:
        folder: That exists.
        root: Where the file system begins, for tests.
    """
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError):
        for line in (root / "proc/self/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            if before.split()[2:3] == [number]:
                return after.split()[:1] in (["tmpfs"], ["ramfs"])
    return False


def free_memory(root: Path = _ROOT) -> int | None:
    """Bytes of memory that are free, of the machine and of this process's control groups; None where that is unknown.

    What the kernel keeps of files counts as free, apart from files in memory.

    Args:
        root: Where the file system begins, for tests.
    """
    free = list[int]()
    with suppress(OSError, ValueError, IndexError):
        facts = (root / "proc/meminfo").read_text().partition("MemAvailable:")[2]
        free.append(int(facts.split()[0]) << 10)
    for folder in _groups(root):
        with suppress(OSError, ValueError, KeyError):  # "max": no limit
            limit = int((folder / "memory.max").read_text())
            lines = (folder / "memory.stat").read_text().splitlines()
            used = dict(line.split() for line in lines)
            free.append(limit - int(used["anon"]) - int(used["shmem"]))
    return max(0, min(free)) if free else None


def _words_of(root: Path, *names: str) -> Iterator[list[str]]:
    """The words of these files, for each of this process's control groups that has them."""
    for folder in _groups(root):
        with suppress(OSError):
            yield " ".join((folder / name).read_text() for name in names).split()


def _group_paths(root: Path) -> dict[str, str]:
    """The path of this process's group, by controller; version 2 has one group, without a controller's name."""
    lines = (root / "proc/self/cgroup").read_text().splitlines()
    groups = [line.split(":", 2) for line in lines]
    return {
        name: path for _, controllers, path in groups for name in controllers.split(",")
    }


def _groups(root: Path) -> Iterator[Path]:
    """The folders of this process's control group for processors and of those above it, in either version."""
    try:
        paths = _group_paths(root)
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return
    for line in mounts:
        # proc(5): id, parent, device, root of the mount, mount point, options, optional fields, "-", type, source,
        # options of the file system, where version 1 names its controllers.
        before, _, after = line.partition(" - ")
        places = before.split()
        kinds = after.split()
        if len(places) < 5 or not kinds or kinds[0] not in ("cgroup", "cgroup2"):
            continue
        name = "" if kinds[0] == "cgroup2" else "cpu"
        if name in paths and name in ["", *kinds[-1].split(",")]:
            mount = root / places[4].lstrip("/")
            yield from _folders_in(mount, paths[name], places[3])


def _folders_in(mount: Path, path: str, mounted: str) -> Iterator[Path]:
    """The folder of a group in a mount of control groups, and those above it.

    In a container the group's path may be the host's, of which the mount shows a part: `mounted`.
    """
    relative = path.removeprefix(mounted.rstrip("/")).strip("/")
    is_below = ".." not in relative.split("/") and (mount / relative).is_dir()
    folder = mount / relative if is_below else mount
    for group in (folder, *folder.parents):
        if group.is_relative_to(mount):
            yield group
