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
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from small import load
from torch import distributed, nn
from torch.utils.data import DataLoader, IterableDataset

import gpuload


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


FIELDS = {"pixel_values": "image", "labels": "label"}


class Net(nn.Module):
    """Notes the keys of what it is trained with."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.seen = nn.Linear(3 * 8 * 8, 3), []

    def forward(self, pixel_values: Any, labels: Any, key: Any = ()) -> dict[str, Any]:
        if self.training:
            self.seen.append(list(key))
        logits = self.net(pixel_values.flatten(1))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Batches(IterableDataset):
    """A loader as the data set of a DataLoader, of which Trainer skips the first batches where it resumes."""

    def __init__(self, loader: gpuload.DaliIterator) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)


def transformers(data: Path, folder: Path) -> dict[str, Any]:
    """Trainer: trains, and resumes from a checkpoint in mid-epoch; then it evaluates."""
    transformers = importlib.import_module("transformers")
    found: dict[str, Any] = {"seen": []}

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            return DataLoader(Batches(train), batch_size=None)

        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            return load(data, shuffle=False, drop_last="even", fields=FIELDS)

    class SetEpoch(transformers.TrainerCallback):
        def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            train.set_epoch(int(state.epoch))

    options = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 7, "logging_strategy": "no"}
    quiet = transformers.TrainingArguments(str(folder), use_cpu=True, report_to=[], disable_tqdm=True, **options)
    labels = {"compute_metrics": lambda found: {"labels": found.label_ids.tolist()}}
    for checkpoint in (None, folder / "checkpoint-7"):
        train = load(data, fields={**FIELDS, "key": "key"})
        trainer = Trainer(Net(), quiet, callbacks=[SetEpoch()], **labels)
        trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
        found["seen"].append(trainer.accelerator.unwrap_model(trainer.model).seen)
    return {**found, "labels": trainer.evaluate()["eval_labels"]}


def timm(data: Path, folder: Path) -> dict[str, Any]:
    """Its train.py: DistributedDataParallel, `validate` and statistics over ranks, as torchmetrics adds them up, too;
    then again from the second epoch."""
    model_of, utils = (importlib.import_module(f"timm.{name}") for name in ("models", "utils"))
    found: dict[str, Any] = {"seen": []}
    for first in (0, 1):  # --resume begins with the epoch after the checkpoint's
        train, val = load(data, fields=("image", "label", "key")), load(data, shuffle=False)
        net = nn.parallel.DistributedDataParallel(model_of.create_model("test_byobnet", num_classes=3))
        optimizer, seen = torch.optim.SGD(net.parameters(), 0.01), []
        for epoch in range(first, 2):
            for place in (train.dataset, train.batch_sampler or train.sampler):  # read without a guard, in this order
                if hasattr(place, "set_epoch"):
                    place.set_epoch(epoch)
            net.train()
            for images, labels, keys in train:
                seen.append(keys)
                loss = F.cross_entropy(net(images.repeat_interleave(4, 2).repeat_interleave(4, 3)), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        found["seen"].append(seen)
    utils.distribute_bn(net, 2, True)
    net.eval()
    counts, right = torch.zeros(3), torch.zeros(1)
    accuracy = importlib.import_module("torchmetrics.classification").MulticlassAccuracy(3, average="micro")
    with torch.inference_mode():
        for images, labels in val:
            guesses = net(images.repeat_interleave(4, 2).repeat_interleave(4, 3))
            right += utils.accuracy(guesses, labels)[0] * len(labels) / 100
            accuracy.update(guesses, labels)
            counts += labels.bincount(minlength=3)
    return {
        **found,
        "loss": float(utils.reduce_tensor(loss.detach(), 2)),
        "counts": utils.reduce_tensor(counts, 1).tolist(),
        "right": float(utils.reduce_tensor(right, 1)),
        "accuracy": float(accuracy.compute()),
    }


def open_clip(data: Path, folder: Path) -> dict[str, Any]:
    """Its own `train_one_epoch`, whose loss gathers the features of all ranks."""
    train_one_epoch = importlib.import_module("open_clip_train.train").train_one_epoch
    open_clip = importlib.import_module("open_clip")
    tokenize = importlib.import_module("open_clip.tokenizer").SimpleTokenizer(context_length=8)
    texts = gpuload.Dataset(folder.parent / "captions/train").column("caption").to_pylist()
    number_of = {tuple(tokens): number for number, tokens in enumerate(tokenize(texts).tolist())}
    vision = {"image_size": 8, "patch_size": 4, "head_width": 8, "width": 16, "layers": 1}
    text = {"context_length": 8, "heads": 2, "width": 16, "layers": 1}
    torch.manual_seed(0)
    model = open_clip.model.CLIP(8, vision, text, output_dict=True)
    seen: list[list[int]] = []
    model.register_forward_pre_hook(lambda _, given: seen.append([number_of[tuple(one)] for one in given[1].tolist()]))
    net = nn.parallel.DistributedDataParallel(model)
    fields = ("image", gpuload.Captions(tokenizer=tokenize))
    loader = load(folder.parent / "captions/train", 4, fields=fields)
    rank = distributed.get_rank()
    given = {"device": "cpu", "precision": "fp32", "accum_freq": 1, "log_every_n_steps": 1, "batch_size": 4}
    given |= {"rank": rank, "local_rank": rank, "world_size": 2, "skip_scheduler": True, "grad_clip_norm": None}
    arguments = SimpleNamespace(**given, **dict.fromkeys(("distill", "horovod", "wandb", "log_local"), False))
    loss, optimizer = open_clip.ClipLoss(rank=rank, world_size=2), torch.optim.SGD(net.parameters(), 0.1)
    for epoch in range(2):
        info = SimpleNamespace(dataloader=loader, set_epoch=loader.set_epoch)
        train_one_epoch(net, {"train": info}, loss, epoch, optimizer, None, None, None, arguments)
    return {"seen": seen, "weights": float(sum(value.detach().abs().sum() for value in net.parameters()))}


PROGRAMS: dict[str, Callable[[Path, Path], dict[str, Any]]] = {
    program.__name__: program for program in (accelerate, transformers, timm, open_clip)
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
