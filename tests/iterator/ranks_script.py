"""What `check_ranks` says to two ranks that agree, that differ, and of which one does not come; run by torchrun."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from torch import distributed

import gpuload


def said(check: Callable[[], None]) -> str:
    try:
        check()
    except gpuload.GpuloadError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def main(data: Path, other_data: Path, notes: Path) -> None:
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()

    def load(folder: Path = data, **options: int) -> gpuload.DaliIterator:
        return gpuload.DaliIterator(folder, 4, augment=gpuload.Augment(8), device="cpu", **options)

    same = load()
    answers = {
        "same": said(same.check_ranks),
        "settings": said(load(seed=rank, window=3 + rank).check_ranks),
        "data": said(load(other_data if rank else data).check_ranks),
        "rank": said(load(rank=0, world_size=2).check_ranks),
    }
    started = time.monotonic()
    if rank == 0:
        answers["late"] = said(lambda: same.check_ranks(timeout_s=2))
        answers["waited"] = f"{time.monotonic() - started:.1f}"
    (notes / f"said{rank}.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
