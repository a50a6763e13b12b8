"""What clients do on two ranks of gloo, started by torchrun: each program's findings, as JSON.

torchrun --standalone --nproc-per-node 2 two_ranks.py DATA NOTES
"""

import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from small import load
from torch import distributed, nn


def accelerate(data: Path, folder: Path) -> dict[str, Any]:
    """The evaluation of its examples, by tensors and by objects, and training in steps of 4 batches."""
    accelerator = importlib.import_module("accelerate").Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = nn.Linear(3 * 8 * 8, 3)
    net, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    found: dict[str, Any] = {"tensors": [], "objects": [], "updates": 0}
    for _, index in load(data, fields=("image", "index"), shuffle=False, drop_last="even"):
        found["tensors"] += accelerator.gather_for_metrics(index).tolist()
    for _, index in load(data, fields=("image", "index"), shuffle=False):
        found["objects"] += accelerator.gather_for_metrics(index.tolist(), use_gather_object=True)
    for images, labels in load(data):
        with accelerator.accumulate(net):
            accelerator.backward(F.cross_entropy(net(images.flatten(1)), labels))
            optimizer.step()
            optimizer.zero_grad()
        found["updates"] += accelerator.sync_gradients
    return found


def transformers(data: Path, folder: Path) -> dict[str, Any]:
    """Trainer: trains, and resumes from a checkpoint in mid-epoch; then it evaluates."""
    from test_transformers import FIELDS, make_trainer

    found: dict[str, Any] = {"seen": []}
    for checkpoint in (None, folder / "checkpoint-7"):
        train = load(data, fields={**FIELDS, "key": "key"})
        val = load(data, shuffle=False, drop_last="even", fields=FIELDS)
        trainer = make_trainer(train, val, folder)
        trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
        found["seen"].append(trainer.accelerator.unwrap_model(trainer.model).seen)
    return {**found, "labels": trainer.evaluate()["eval_labels"]}


def torchmetrics(data: Path, folder: Path) -> dict[str, Any]:
    """Metrics that add up over ranks."""
    classification = importlib.import_module("torchmetrics.classification")
    metric = classification.MulticlassAccuracy(num_classes=3, average="micro")
    count = torch.zeros(1)
    for _, labels in load(data, shuffle=False):
        metric.update(torch.zeros_like(labels), labels)
        count += len(labels)
    distributed.all_reduce(count)
    return {"zeros": float(metric.compute()), "count": int(count)}


PROGRAMS: dict[str, Callable[[Path, Path], dict[str, Any]]] = {
    program.__name__: program for program in (accelerate, transformers, torchmetrics)
}


def main(data: Path, notes: Path) -> None:
    importlib.import_module("torchvision_anywhere")
    distributed.init_process_group("gloo")
    warnings.simplefilter("ignore")
    found = {}
    for name, program in PROGRAMS.items():
        (notes / name).mkdir(exist_ok=True)
        found[name] = program(data, notes / name)
    (notes / f"rank{os.environ['RANK']}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
