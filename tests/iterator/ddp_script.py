"""Trains a tiny net on gloo, to be run by torchrun; notes what each rank saw, and fails on request.

torchrun --standalone --nproc-per-node 2 ddp_script.py DATA NOTES [--resume] [--fault dies]
"""

import argparse
import json
import os
import signal
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import gpuload

EPOCHS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("notes", type=Path)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--pause-at", type=int, help="step of the second epoch before which to wait, to be killed")
    parser.add_argument("--fault", choices=["none", "dies", "no-data"], default="none")
    args = parser.parse_args()

    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    failing = rank == 1 and args.fault
    loader = gpuload.DaliIterator(
        args.data / "none" if failing == "no-data" else args.data,
        args.batch_size,
        augment=gpuload.Augment(8),
        device="cpu",
        fields=("image", "label", "key"),
        drop_last=False,
        shuffle=gpuload.Shuffle(window=3),
    )
    torch.manual_seed(0)
    net = nn.Linear(3 * 8 * 8, 3)
    parallel, optimizer, first_epoch = DistributedDataParallel(net), torch.optim.SGD(net.parameters(), 0.01), 0
    if args.resume:
        saved = torch.load(args.resume, weights_only=True)
        net.load_state_dict(saved["net"])
        loader.load_state_dict(saved["loader"])
        first_epoch = saved["loader"]["epoch"]
    loader.check_ranks()

    args.notes.mkdir(exist_ok=True)
    with (args.notes / f"rank{rank}.jsonl").open("w", buffering=1) as notes:
        notes.write(json.dumps({"pid": os.getpid(), "loader": repr(loader), "threads": loader.num_threads}) + "\n")
        for epoch in range(first_epoch, EPOCHS):
            loader.set_epoch(epoch)
            for step, (images, labels, keys) in enumerate(loader):
                if step == 5 and failing == "dies":
                    os.kill(os.getpid(), signal.SIGKILL)
                if (epoch, step) == (1, args.pause_at):
                    notes.write(json.dumps({"paused": step}) + "\n")
                    signal.pause()
                loss = F.cross_entropy(parallel(images.flatten(1)), labels, reduction="sum") / args.batch_size
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                notes.write(json.dumps({"epoch": epoch, "keys": keys}) + "\n")
                if rank == 0 and step % 4 == 3:
                    checkpoint, whole = args.notes / "checkpoint.pt", args.notes / "checkpoint.pt.tmp"
                    torch.save({"net": net.state_dict(), "loader": loader.state_dict()}, whole)
                    whole.replace(checkpoint)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
