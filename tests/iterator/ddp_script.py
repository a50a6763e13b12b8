"""Run by torchrun, on gloo: notes what each rank saw, step by step together; or notes what ranks are told.

torchrun --standalone --nproc-per-node 2 ddp_script.py DATA NOTES [--resume CHECKPOINT]
torchrun --standalone --nproc-per-node 2 ddp_script.py DATA NOTES --other OTHER
"""

import argparse
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed

import gpuload
from gpuload.machine import ranks

EPOCHS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("notes", type=Path)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--pause-at", type=int, help="step of the second epoch before which to wait, to be killed")
    parser.add_argument("--other", type=Path, help="another set: notes what ranks are told whose loaders differ")
    args = parser.parse_args()

    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    if args.other:
        tell(rank, args.data, args.other, args.notes)
        return
    loader = gpuload.DaliIterator(
        args.data,
        args.batch_size,
        augment=gpuload.Augment(8),
        device="cpu",
        fields=("key",),
        drop_last=False,
        shuffle=gpuload.Shuffle(window=3),
    )
    if args.resume:
        loader.load_state_dict(torch.load(args.resume, weights_only=True))
    loader.check_ranks()

    args.notes.mkdir(exist_ok=True)
    with (args.notes / f"rank{rank}.jsonl").open("w", buffering=1) as notes:
        notes.write(json.dumps({"pid": os.getpid(), "loader": repr(loader), "threads": loader.num_threads}) + "\n")
        for epoch in range(loader.state_dict()["epoch"], EPOCHS):
            loader.set_epoch(epoch)
            for step, (keys,) in enumerate(loader):
                if (epoch, step) == (1, args.pause_at):
                    notes.write(json.dumps({"paused": step}) + "\n")
                    signal.pause()
                distributed.barrier()
                notes.write(json.dumps({"epoch": epoch, "keys": keys}) + "\n")
                if rank == 0 and step % 4 == 3:
                    checkpoint, whole = args.notes / "checkpoint.pt", args.notes / "checkpoint.pt.tmp"
                    torch.save(loader.state_dict(), whole)
                    whole.replace(checkpoint)
    distributed.destroy_process_group()


def said(check: Callable[[], object]) -> str:
    try:
        check()
    except gpuload.GpuloadError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def tell(rank: int, packed: Path, other: Path, notes: Path) -> None:
    """What the ranks are told whose loaders agree, differ, or have no counterpart."""
    waits: list[float] = []
    sleep = ranks.time.sleep
    ranks.time.sleep = lambda seconds: (waits.append(seconds), sleep(seconds))  # type: ignore[assignment, func-returns-value]

    def load(data: Any = packed, **options: Any) -> gpuload.DaliIterator:
        return gpuload.DaliIterator(data, 4, augment=gpuload.Augment(8), device="cpu", **options)

    def later(make: Callable[[], object]) -> str:
        """Rank 1 constructs after rank 0 has."""
        if rank == 1:
            distributed.barrier()
        told = said(make)
        if rank == 0:
            distributed.barrier()
        return told

    def in_turn(*data: Path) -> None:
        for folder in data:
            load(folder)

    def resumed() -> None:
        loader = load()
        next(iter(loader))
        load().load_state_dict(loader.state_dict())

    answers = {
        "many": said(lambda: [load(folder) for folder in (packed, other, packed)]),
        "other sequence": said(lambda: in_turn(*(packed, other)[:: 1 - 2 * rank])),
        "other lines": said(lambda: (load(), load(other)) if rank else (load(other), load())),
        "rank 0 alone": said(lambda: None if rank else load(other)),
        "in a loop": said(lambda: in_turn(*[packed, other, other][: 1 + 2 * rank])),
        "a world of its own": said(lambda: load(other if rank else packed, rank=0, world_size=1)),
        "resumed": said(resumed),
    }
    if rank == 0:
        waits.clear()
        load(other)
        answers["waits in the store"] = str(len(waits))
    ranks._PATIENCE_S = 0.5
    if rank:  # on other lines, so that the constructor compares nothing
        first, second = load(seed=1, shuffle=gpuload.Shuffle(window=4)), load(other)
    else:
        first, second = load(shuffle=gpuload.Shuffle(window=3)), load()
    part = gpuload.Dataset(packed).subset(range(40 + rank))
    answers |= {
        "other data": later(lambda: load(other if rank else packed)),
        "other seed": later(lambda: load(seed=rank)),
        "other last batch": later(lambda: load(shuffle=False, drop_last=("even", "exact")[rank])),
        "other part": later(lambda: load(part)),
        "same": said(load().check_ranks),
        "settings": said(first.check_ranks),
        "data": said(second.check_ranks),
        "rank": said(load(rank=0, world_size=2).check_ranks),
    }
    same = load()
    if rank == 0:
        answers["late"] = said(lambda: same.check_ranks(timeout_s=2))
    (notes / f"said{rank}.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
