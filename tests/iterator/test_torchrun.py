"""Many processes, started by the real torchrun and joined by gloo: killed, resumed, one differing."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import prepared
import pytest
import torch
from loaders import load

import gpuload
from gpuload.machine.limits import count_cores

SCRIPT = Path(__file__).with_name("ddp_script.py")
EPOCHS = 3  # as in ddp_script.py


def command(processes: int, *arguments: object) -> list[str]:
    return [*prepared.torchrun(processes), str(SCRIPT), *map(str, arguments)]


def torchrun(processes: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return subprocess.run(command(processes, *arguments), capture_output=True, text=True, env=environment)


def notes(folder: Path, ranks: int) -> list[list[dict[str, Any]]]:
    """What each rank noted: first itself, then its batches. A kill may cut off the last line."""
    lines = [(folder / f"rank{rank}.jsonl").read_text().split("\n")[:-1] for rank in range(ranks)]
    return [[json.loads(line) for line in rank] for rank in lines]


def global_order(ranks: Sequence[Sequence[dict[str, Any]]], steps: int | None = None) -> list[tuple[int, str]]:
    """(epoch, key) of the first steps: rank after rank within each global batch."""
    batches = zip(*(rank[1:] for rank in ranks), strict=steps is None)
    return [
        (batch["epoch"], key)
        for _, step in zip(range(steps or 10**6), batches, strict=False)
        for batch in step
        for key in batch["keys"]
    ]


@pytest.fixture(scope="module")
def undisturbed(packed: Path) -> list[tuple[int, str]]:
    """(epoch, key) as one process sees them, with another batch size."""
    with load(packed, 10, fields=("key",), drop_last=False, shuffle=gpuload.Shuffle(window=3)) as loader:
        return [(epoch, key) for epoch in range(EPOCHS) for (keys,) in loader for key in keys]


@pytest.fixture(scope="module")
def killed(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The notes and the checkpoint of two ranks that were killed, with torchrun, in the middle of the second epoch."""
    folder = tmp_path_factory.mktemp("killed")
    run = subprocess.Popen(command(2, packed, folder, "--pause-at", 6))
    try:
        notes = [folder / f"rank{rank}.jsonl" for rank in range(2)]
        while not all(file.is_file() and '"paused"' in file.read_text() for file in notes):
            assert run.poll() is None
            time.sleep(0.02)
    finally:
        run.kill()  # at once: torchrun cannot end its ranks in an orderly way
        run.wait()
        for file in folder.glob("rank*.jsonl"):
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(json.loads(file.read_text().split("\n")[0])["pid"], signal.SIGKILL)
    return folder


@pytest.mark.parametrize(("ranks", "batch_size"), [(1, 7), (3, 4)])
def test_killed_and_resumed_by_another_number_of_ranks(
    packed: Path, killed: Path, undisturbed: list[tuple[int, str]], tmp_path: Path, ranks: int, batch_size: int
) -> None:
    saved = torch.load(killed / "checkpoint.pt", weights_only=True)
    assert saved["epoch"] == 1 and saved["samples"] == 32  # in mid-epoch
    seen = global_order(notes(killed, 2), steps=13 + saved["samples"] // 8)
    options = ["--batch-size", batch_size, "--resume", killed / "checkpoint.pt"]
    done = torchrun(ranks, packed, tmp_path, *options)
    assert done.returncode == 0, done.stderr
    rest = global_order(notes(tmp_path, ranks))
    assert len(rest) == 2 * 97 - saved["samples"]
    assert seen + rest == undisturbed


def test_ranks_on_one_machine_share_its_cores(killed: Path) -> None:
    share = max(1, count_cores() // 2)
    for number, rank in enumerate(notes(killed, 2)):
        assert rank[0]["threads"] == share
        assert f"rank {number} of 2, on cpu" in rank[0]["loader"]
        assert f"with {share} thread{'s' * (share > 1)}" in rank[0]["loader"]


@pytest.fixture(scope="module")
def said(packed: Path, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """What two ranks were told, by what they tried; the folders are beside it."""
    from gpuload.cli import main

    folder = tmp_path_factory.mktemp("said")
    assert main(["pack", str(photos), str(folder / "other"), "--maxcount", "20", "--workers", "1"]) == 0
    done = torchrun(2, packed, folder, "--other", folder / "other/train")
    assert done.returncode == 0, done.stderr
    prints = {
        name: gpuload.Dataset(path).fingerprint
        for name, path in (("packed", packed), ("other", folder / "other/train"))
    }
    return [{**prints, **json.loads((folder / f"said{rank}.json").read_text())} for rank in range(2)]


NOTHING = "^nothing$"
ALONE = ".* a loader of one rank alone needs rank=0, world_size=1$"
SETTINGS = "^ArgumentError: ranks differ: seed 0 on rank 0, 1 on rank 1; window 3 on rank 0, 4 on rank 1[.] "
DATA = "ranks differ: fingerprint '{packed}' on rank 0, '{other}' on rank 1[.] All"
TWICE = "the 2 processes were given rank=0, 0; expected each number once. Omit"
LEGAL = ("many", "other sequence", "other lines", "rank 0 alone", "in a loop", "a world of its own", "resumed", "same")


@pytest.mark.parametrize(
    ("tried", "first", "second"),
    [
        *[(legal, NOTHING, NOTHING) for legal in LEGAL],
        ("settings", SETTINGS, SETTINGS),
        ("data", DATA, DATA),
        ("rank", TWICE, TWICE),
        ("late", "GpuloadError: rank 0 of 2 waited 2 s for the others to open their data. One has ended", None),
        ("waits in the store", "^0$", None),  # nobody waits for a rank that constructs nothing
        # Compared while they are constructed: the later rank is told, the other finds nothing to compare with.
        ("other data", NOTHING, f"^ArgumentError: ranks differ: fingerprint {ALONE}"),
        ("other seed", NOTHING, f"^ArgumentError: ranks differ: seed {ALONE}"),
        (
            "other last batch",
            NOTHING,
            f"^ArgumentError: ranks differ: drop_last 'even' on rank 0, 'exact' on ra{ALONE}",
        ),
        ("other part", NOTHING, f"^ArgumentError: ranks differ: fingerprint {ALONE}"),
    ],
)
def test_what_ranks_are_told(said: list[dict[str, str]], tried: str, first: str, second: str | None) -> None:
    for told, message in zip(said, (first, second), strict=True):
        assert message is None or re.search(message.format(**told), told[tried])


def test_loaders_before_init_process_group_are_not_compared(packed: Path) -> None:
    code = (
        "import gpuload, sys\n"
        "for number in range(2): gpuload.DaliIterator(sys.argv[1], 4, augment=gpuload.Augment(8), device='cpu')\n"
    )
    for rank in range(2):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"}
        run = [*prepared.python(), "-c", code, str(packed)]
        done = subprocess.run(run, capture_output=True, text=True, env=environment)
        assert done.returncode == 0
        assert done.stderr.count("are not compared, since torch.distributed is not initialised yet") == (rank == 0)
