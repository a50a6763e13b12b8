"""Cores and memory of a container, on made-up trees of control groups as kernels show them."""

import os
from pathlib import Path

import pytest
from images import write_files

import gpuload.machine.ranks
from gpuload.machine.limits import available_memory, count_cores, cpu_quota, memory_limit
from gpuload.machine.ranks import Ranks, count_threads
from gpuload.packing.options import PackOptions

V2 = "31 23 0:28 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
QUOTA = {"cpu,cpuacct/cpu.cfs_quota_us": "150000\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}
V1 = "32 31 0:29 {root} /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
V1 += "35 31 0:32 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


def machine(root: Path, groups: str, mounts: str, files: dict[str, str]) -> Path:
    files = {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts, **files}
    files.setdefault("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 600 kB\n")
    write_files(root, {name: text.encode() for name, text in files.items()})
    return root


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "cores", "memory"),
    [
        # A container of version 2, which sees itself as the root.
        ("0::/\n", V2.format(root="/"), {"cpu.max": "250000 100000\n", "memory.max": "512000\n"}, 2.5, 512_000),
        ("0::/\n", V2.format(root="/"), {"cpu.max": "max 100000\n", "memory.max": "max\n"}, None, None),
        # A systemd slice: the group above it has the lower limit.
        (
            "0::/a/b\n",
            V2.format(root="/"),
            {"a/b/cpu.max": "400000 100000", "a/cpu.max": "150000 50000", "a/b/memory.max": "max", "a/memory.max": "9"},
            3.0,
            9,
        ),
        # Version 1, whose paths are the host's, of which the container's mount shows a part.
        (
            "5:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n",
            V1.format(root="/docker/x"),
            {**QUOTA, "memory/memory.limit_in_bytes": "300000\n"},
            1.5,
            300_000,
        ),
        # A group inside such a container.
        (
            "4:cpu,cpuacct:/docker/x/sub\n",
            V1.format(root="/docker/x"),
            {
                **QUOTA,
                "cpu,cpuacct/sub/cpu.cfs_quota_us": "50000\n",
                "cpu,cpuacct/sub/cpu.cfs_period_us": "100000\n",
            },
            0.5,
            None,
        ),
        # Version 1 without limits: -1, and more bytes than the machine has.
        (
            "5:memory:/\n4:cpu,cpuacct:/\n",
            V1.format(root="/"),
            {
                **QUOTA,
                "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            None,
            None,
        ),
        # The path of a group that this process cannot see.
        ("0::/../other\n", V2.format(root="/"), {"cpu.max": "100000 100000"}, 1.0, None),
        ("0::/\n", V2.format(root="/"), {"cpu.max": "nonsense", "memory.max": ""}, None, None),
    ],
)
def test_limits_of_control_groups(
    tmp_path: Path, groups: str, mounts: str, files: dict[str, str], cores: float | None, memory: int | None
) -> None:
    root = machine(tmp_path, groups, mounts, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert cpu_quota(root) == cores
    assert memory_limit(root) == memory
    assert available_memory(root) == 614_400


def test_a_machine_without_control_groups(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None and memory_limit(tmp_path) is None
    assert count_cores(tmp_path) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("quota", "cores"), [(0.5, 1), (1.0, 1), (2.9, 2), (64.0, 8)])
def test_threads_keep_within_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: float, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    files = {"sys/fs/cgroup/cpu.max": f"{int(quota * 100_000)} 100000"}
    root = machine(tmp_path, "0::/\n", V2.format(root="/"), files)
    assert count_cores(root) == cores
    for module in (gpuload.machine.ranks, gpuload.packing.options):
        monkeypatch.setattr(module, "count_cores", lambda: count_cores(root))
    assert count_threads(Ranks()) == cores and count_threads(Ranks(local_world_size=2)) == max(1, cores // 2)
    assert PackOptions().worker_count == cores
