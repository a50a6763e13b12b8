"""Evaluates under Accelerate, as two ranks started by torchrun: what each rank gathered, as JSON."""

import json
import sys
from pathlib import Path

import torch
from accelerate import Accelerator

import gpuload


def main(data: Path, notes: Path) -> None:
    accelerator = Accelerator(cpu=True)
    made = gpuload.DaliIterator(
        data, 8, augment=gpuload.Augment(8), device="cpu", fields=("image", "index"), shuffle=False
    )
    net, loader = accelerator.prepare(torch.nn.Linear(3 * 8 * 8, 1), made)
    gathered, counts = [], torch.zeros(2, dtype=torch.int64)
    for images, index in loader:
        net(images.flatten(1))
        gathered += accelerator.gather_for_metrics(index.tolist(), use_gather_object=True)
        counts += torch.tensor([len(index), int(index.sum())])
    told = {
        "same": loader is made,
        "ranks": [loader.ranks.rank, loader.ranks.world_size],
        "gathered": gathered,
        "reduced": accelerator.reduce(counts, reduction="sum").tolist(),
    }
    (notes / f"accelerate{accelerator.process_index}.json").write_text(json.dumps(told))
    accelerator.end_training()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
