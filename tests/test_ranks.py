"""Which rank a process has, and what it may use of its machine: a GPU, cores and memory. The GPUs are counted by others,
so any number can be pretended."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from images import write_files

import gpuload
from gpuload.machine.limits import count_cores, cpu_quota
from gpuload.machine.ranks import Ranks, count_threads, find_device, find_ranks
from gpuload.packing.options import PackOptions

Pretend = Callable[[int | None], None]


@pytest.fixture
def torch_uses(monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """Pretends that torch's current device is this GPU; None: that torch has not used one."""

    def pretend(gpu: int | None) -> None:
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: gpu is not None)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: gpu)

    return pretend


@pytest.mark.parametrize("device", ["auto", "cuda"])
@pytest.mark.parametrize(
    ("local_rank", "gpus", "current", "expected"),
    [
        (0, 1, None, 0),
        (3, 8, None, 3),
        (3, 1, None, 0),  # each process sees one GPU, its own
        (3, 1, 0, 0),
        (0, 8, 2, 2),  # torch.cuda.set_device(2)
        (3, 8, 5, 5),
        (3, 8, 0, 3),  # torch was used, but nobody chose a device
    ],
)
def test_a_rank_takes_its_own_gpu(
    torch_uses: Pretend, device: str, local_rank: int, gpus: int, current: int | None, expected: int
) -> None:
    """A number means that GPU, and the CPU none."""
    torch_uses(current)
    ranks = Ranks(local_rank, 8, local_rank, 8)
    assert find_device(device, ranks, gpus) == expected
    assert find_device("cuda:1", ranks, 8) == 1
    assert find_device("cpu", ranks, gpus) is find_device("auto", ranks, 0) is None


@pytest.mark.parametrize(
    ("device", "gpus", "message"),
    [
        ("auto", 2, r"device='auto': needs GPU 3 \(its local rank\), and 2 can be used here"),
        ("cuda", 2, r"device='cuda': needs GPU 3 \(its local rank\), and 2 can be used here"),
        ("cuda", 0, r"device='cuda': needs GPU 3, and none can be used here.*device='cpu', or 'auto'"),
        ("cuda:1", 1, r"device='cuda:1': needs GPU 1, and 1 can be used here"),
    ],
)
def test_a_gpu_that_is_not_there(torch_uses: Pretend, device: str, gpus: int, message: str) -> None:
    torch_uses(None)
    with pytest.raises(gpuload.DeviceError, match=message):
        find_device(device, Ranks(3, 8, 3, 8), gpus)


@pytest.mark.parametrize(
    ("name", "value"),
    [("RANK", "three"), ("RANK", "-2"), ("RANK", ""), ("WORLD_SIZE", "0"), ("LOCAL_RANK", "0.5"), ("LOCAL_WORLD_SIZE", "0")],
)  # fmt: skip
def test_environments_that_cannot_be(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """-1 means a single process."""
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(variable, "-1")
    assert find_ranks(None, None) == Ranks()
    monkeypatch.setenv(name, value)
    with pytest.raises(gpuload.ArgumentError, match=f"environment variable {name}='{value}': expected a whole number"):
        find_ranks(None, None)


LOCAL = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


@pytest.mark.parametrize(
    ("environment", "local_rank", "local_world_size"),
    [
        ({"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4", "SLURM_LOCALID": "0"}, 3, 4),  # torchrun, within Slurm
        ({"SLURM_LOCALID": "2", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "4,3"}, 2, 3),
        ({"SLURM_LOCALID": "2", "SLURM_NODEID": "2", "SLURM_STEP_TASKS_PER_NODE": "4(x2),8(x3)"}, 2, 8),
        ({"SLURM_LOCALID": "2", "SLURM_NODEID": "9", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, 2, 1),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 1, 2),
        ({"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, 1, 2),
        ({}, None, 1),
    ],
)
def test_the_local_rank_is_that_of_the_launcher(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], local_rank: int | None, local_world_size: int
) -> None:
    for name in (*LOCAL, "SLURM_STEP_TASKS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert find_ranks(5, 8) == Ranks(5, 8, local_rank, local_world_size)
    if "LOCAL_RANK" not in environment:  # of a single process only torchrun tells: a script may run inside a Slurm job
        assert find_ranks(None, None) == Ranks()


def test_ranks_whose_gpu_nobody_tells_do_not_share_the_first_one(torch_uses: Pretend) -> None:
    ranks = Ranks(3, 8, None, 1)
    torch_uses(None)
    assert find_device("cuda:2", ranks, 4) == 2 and find_device("auto", ranks, 1) == 0
    assert find_device("auto", ranks, 0) is None
    with pytest.raises(
        gpuload.DeviceError, match="rank 3 of 8 can use 4 GPUs, and nothing tells which is its own. Call"
    ):
        find_device("auto", ranks, 4)
    for chosen in (0, 2):
        torch_uses(chosen)
        assert find_device("auto", ranks, 4) == chosen


# Cores of a container, on made-up trees of control groups as kernels show them.

V2 = "31 23 0:28 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
V1 = "32 31 0:29 {root} /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
V1 += "35 31 0:32 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


def quota(group: str, quota: int) -> dict[str, str]:
    """Of 100 ms, by version 1."""
    place = f"cpu,cpuacct/{group}cpu.cfs"
    return {f"{place}_quota_us": f"{quota}\n", f"{place}_period_us": "100000\n"}


def machine(root: Path, groups: str, mounts: str, files: dict[str, str]) -> Path:
    files = {"proc/self/cgroup": f"{groups}\n", "proc/self/mountinfo": mounts, **files}
    write_files(root, {name: text.encode() for name, text in files.items()})
    return root


SLICE = {"a/b/cpu.max": "400000 100000", "a/cpu.max": "150000 50000"}


@pytest.mark.parametrize(
    ("mounts", "root", "groups", "files", "cores"),
    [
        # A container of version 2, which sees itself as the root.
        (V2, "/", "0::/", {"cpu.max": "250000 100000\n"}, 2.5),
        (V2, "/", "0::/", {"cpu.max": "max 100000\n"}, None),
        # A systemd slice: the group above it has the lower limit.
        (V2, "/", "0::/a/b", SLICE, 3.0),
        # Version 1, whose paths are the host's, of which the container's mount shows a part; and a group inside it.
        (V1, "/x", "5:memory:/x\n4:cpu,cpuacct:/x", quota("", 150_000), 1.5),
        (V1, "/x", "4:cpu,cpuacct:/x/sub", quota("", 150_000) | quota("sub/", 50_000), 0.5),
        # Version 1 without a limit.
        (V1, "/", "5:memory:/\n4:cpu,cpuacct:/", quota("", -1), None),
        # The path of a group that this process cannot see.
        (V2, "/", "0::/../other", {"cpu.max": "100000 100000", "../other/cpu.max": "9 100000"}, 1.0),
        (V2, "/", "0::/", {"cpu.max": "nonsense"}, None),
    ],
)
def test_limits_of_control_groups(
    tmp_path: Path, mounts: str, root: str, groups: str, files: dict[str, str], cores: float | None
) -> None:
    files = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    place = machine(tmp_path, groups, mounts.format(root=root), files)
    assert cpu_quota(place) == cores


def test_a_machine_without_control_groups(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None
    assert count_cores(tmp_path) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("quota", "cores"), [(0.5, 1), (1.0, 1), (2.9, 2), (64.0, 8)])
def test_threads_keep_within_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: float, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    files = {"sys/fs/cgroup/cpu.max": f"{int(quota * 100_000)} 100000"}
    root = machine(tmp_path, "0::/", V2.format(root="/"), files)
    assert count_cores(root) == cores
    for module in (gpuload.machine.ranks, gpuload.packing.options):
        monkeypatch.setattr(module, "count_cores", lambda: count_cores(root))
    assert count_threads(Ranks()) == cores and count_threads(Ranks(local_world_size=2)) == max(1, cores // 2)
    assert PackOptions().worker_count == cores
