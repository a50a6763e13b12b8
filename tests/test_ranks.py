"""Which rank a process has, and which GPU it takes. The GPUs are counted by others, so any number can be pretended."""

from collections.abc import Callable

import pytest
import torch

import gpuload
from gpuload.machine.ranks import Ranks, find_device, find_ranks

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
    message = "rank 3 of 8 can use 4 GPUs, and nothing tells which is its own. Call"
    with pytest.raises(gpuload.DeviceError, match=message):
        find_device("auto", ranks, 4)
    assert find_device("cuda:2", ranks, 4) == 2 and find_device("auto", ranks, 1) == 0
    assert find_device("auto", ranks, 0) is None
    for chosen in (0, 2):
        torch_uses(chosen)
        assert find_device("auto", ranks, 4) == chosen
