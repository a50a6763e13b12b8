"""One rank of a training run: a process that takes batches in step with the other ranks and saves its loader's state.

What it saw stands in its log, one line of JSON for each step, which a SIGKILL cannot take back.
"""

import ctypes
import json
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from counting.loaders import Place
from counting.table import loader_class

EPOCHS = 2
SAVE_EVERY = 2  # steps
# Of a training step, so that loaders read ahead of it.
_STEP_S = 0.004
_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


@dataclass(frozen=True)
class Checkpoint:
    """What all ranks saved after one step. step: steps of the run up to there. epoch: of its last batch."""

    step: int
    epoch: int
    states: Sequence[Any]


@dataclass(frozen=True)
class Run:
    """Where a run of some ranks is recorded, and what it starts from."""

    loader: str
    data: Path
    folder: Path
    world_size: int
    start: Checkpoint | None = None

    def log(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.jsonl"

    def state(self, step: int, rank: int) -> Path:
        return self.folder / f"state-{step:06d}-{rank}.pickle"


def train(run: Run, rank: int) -> None:
    """The whole life of the process: exits with 0 at the end of the last epoch, with 1 after an error."""
    _join_own_session()
    output = os.open(run.folder / f"rank-{rank}.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(_variables(run, rank))
    # What a DataLoader's workers start by, as in a program of its own; this process was started in another way.
    multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(1)
    try:
        distributed.init_process_group(
            "gloo",
            init_method=f"file://{run.folder}/rendezvous",
            rank=rank,
            world_size=run.world_size,
        )
        _epochs(run, rank)
        distributed.barrier()
    except BaseException as error:
        traceback.print_exc()
        (run.folder / f"error-{rank}.txt").write_text(
            f"{type(error).__name__}: {error}"
        )
        _exit(1)
    _exit(0)


def _epochs(run: Run, rank: int) -> None:
    kind = loader_class(run.loader)
    opened = time.perf_counter()
    loader = kind(Place(run.data, rank, run.world_size))
    first_epoch = 0
    step = 0
    if run.start is not None:
        loader.load(run.start.states)
        first_epoch = run.start.epoch
        step = run.start.step
    with run.log(rank).open("w", buffering=1) as log:
        for epoch in range(first_epoch, EPOCHS):
            batches = loader.epoch(epoch)
            while True:
                numbers = next(batches, None)
                if not _any_rank(numbers is not None):
                    break
                step += 1
                seconds = time.perf_counter() - opened
                log.write(
                    json.dumps(
                        {
                            "step": step,
                            "epoch": epoch,
                            "numbers": numbers or [],
                            "s": seconds,
                        }
                    )
                    + "\n"
                )
                time.sleep(_STEP_S)
                if step % SAVE_EVERY == 0:
                    _save(run.state(step, rank), epoch, loader.state())


def _any_rank(has_batch: bool) -> bool:
    """The ranks' common step: whether at least one of them has a batch."""
    count = torch.tensor(int(has_batch))
    distributed.all_reduce(count)
    return bool(count)


def _save(path: Path, epoch: int, state: Any) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(pickle.dumps((epoch, state)))
    temporary.rename(path)


def _variables(run: Run, rank: int) -> dict[str, str]:
    """Those of torchrun, which some loaders read."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(run.world_size),
        "LOCAL_WORLD_SIZE": str(run.world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }


def _join_own_session() -> None:
    """One signal to the session's group ends this rank with its workers; it ends, too, when its parent does."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _exit(code: int) -> None:
    """Without the clean-up of libraries, which may wait for another rank; the parent ends the workers."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
