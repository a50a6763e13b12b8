"""A minimal DistributedDataParallel loop to copy: one process per GPU, resumable with any number of processes.

torchrun --standalone --nproc-per-node 2 examples/ddp.py shards run.pt           # on one machine
torchrun --nnodes 4 --nproc-per-node 8 --rdzv-endpoint HOST:29500 examples/ddp.py shards run.pt
"""

import os
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from training import make_net  # your own model

import gpuload


def main(shards: Path, checkpoint: Path, epochs: int = 2, batch_size: int = 64) -> None:
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    if device != "cpu":
        torch.cuda.set_device(device)
    distributed.init_process_group("gloo" if device == "cpu" else "nccl")

    # The loader finds its rank by itself. batch_size is per process.
    loader = gpuload.DaliIterator(
        shards / "train", batch_size, augment=gpuload.Augment(96), device=device
    )
    net = make_net(len(loader.classes or ())).to(device)
    parallel = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters())

    if checkpoint.is_file():  # every rank loads the same file
        saved = torch.load(checkpoint, map_location=device, weights_only=True)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    loader.check_ranks()

    def save() -> None:
        if distributed.get_rank() == 0:
            content = {
                "net": net.state_dict(),
                "optimizer": optimizer.state_dict(),
                "loader": loader.state_dict(),
            }
            torch.save(content, checkpoint.with_suffix(".tmp"))
            checkpoint.with_suffix(".tmp").replace(checkpoint)

    for epoch in range(loader.state_dict()["epoch"], epochs):
        for step, (images, labels) in enumerate(loader, start=1):
            loss = F.cross_entropy(parallel(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 100 == 0:
                save()
        save()
        if distributed.get_rank() == 0:
            print(f"epoch {epoch + 1} of {epochs} done")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
