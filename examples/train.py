"""Trains a small residual net on packed images. One file, to read and to copy from.

    python -m gpuload pack photos shards --val 0.1
    python examples/train.py shards --epochs 5
    python examples/train.py shards --epochs 5 --loader torch                       # the same with a DataLoader
    python examples/train.py shards --epochs 5 --checkpoint run.pt --max-batches 70 # stops in mid-epoch
    python examples/train.py shards --epochs 5 --checkpoint run.pt --resume         # continues with the next batch
    torchrun --standalone --nproc-per-node 8 examples/train.py shards --epochs 5    # the same with 8 GPUs, or processes

The folder holds train/ and val/, as the packer writes them. Uses a GPU if there is one. A run that was stopped can be
resumed with any number of processes; --batch-size is per process.
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pillow_loader
import torch
import torch.nn.functional as F
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import gpuload

LOADERS = {"dali": "DaliIterator", "torch": "DataLoader"}


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut; a stride of 2 halves the image."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(8, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(8, channels)
        self.shortcut = nn.Conv2d(channels_in, channels, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def make_net(classes: int) -> nn.Module:
    """A net with 0.7 million weights. With group norm the size of a batch does not matter."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1, bias=False),
        nn.GroupNorm(8, 32),
        nn.ReLU(),
        Block(32, 32, 2),
        Block(32, 64, 2),
        Block(64, 128, 2),
        Block(128, 128, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, classes),
    )


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up over the first tenth of the run, then cosine decay to zero."""
    warm_up = max(1, steps // 10)
    if step < warm_up:
        return peak * (step + 1) / warm_up
    return peak * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up))) / 2


def train_batch(
    net: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor, lr: float
) -> torch.Tensor:
    """One step. Returns the sum of the losses and the number of correct answers, on the device."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    logits = net(images)
    loss = F.cross_entropy(logits, labels, label_smoothing=0.1)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        return torch.stack([loss * len(labels), (logits.argmax(1) == labels).sum()])


def evaluate(net: nn.Module, batches: Iterable[Any], device: str) -> tuple[int, int]:
    """(correct, all): exact counts over every image of the split and all processes."""
    net.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    with torch.inference_mode():
        for images, labels in batches:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            counts[0] += (net(images).argmax(1) == labels).sum()
            counts[1] += len(labels)
    net.train()
    if distributed.is_initialized():
        distributed.all_reduce(counts)
    right, images_seen = counts.tolist()
    return right, images_seen


def save(path: Path, content: dict[str, Any]) -> None:
    """Writes a temporary file first, so that an interruption leaves the previous checkpoint intact."""
    temporary = path.with_name(path.name + ".tmp")
    torch.save(content, temporary)
    temporary.replace(path)


def make_loaders(args: argparse.Namespace, device: str) -> tuple[Any, Any]:
    """Loaders for training and validation: all that differs between a DataLoader and gpuload."""
    train, val, batch_size, size, scale = args.data / "train", args.data / "val", args.batch_size, args.size, args.scale
    if args.loader == "torch":
        return (
            pillow_loader.train_loader(train, batch_size, size=size, scale=scale, flip=args.flip, seed=args.seed),
            pillow_loader.val_loader(val, batch_size, size=size),
        )
    augment, center = (
        gpuload.Augment(size, crop=gpuload.RandomResizedCrop(scale=scale), flip=args.flip),
        gpuload.Augment(size, crop="center"),
    )
    return (
        gpuload.DaliIterator(train, batch_size, augment=augment, device=device, seed=args.seed),
        gpuload.DaliIterator(val, batch_size, augment=center, device=device, shuffle=False),
    )


def join_ranks(device: str) -> str:
    """This process's device; under torchrun, also joins the process group."""
    device = device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if "LOCAL_RANK" in os.environ:
        if device == "cuda":
            device = f"cuda:{os.environ['LOCAL_RANK']}"
            torch.cuda.set_device(device)
        distributed.init_process_group("gloo" if device == "cpu" else "nccl")
    return device


def run(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    device = join_ranks(args.device)
    first_rank = not distributed.is_initialized() or distributed.get_rank() == 0
    say = print if first_rank else lambda text: None
    packed = gpuload.Dataset(args.data / "train")
    classes = len(packed.classes or ()) or int(packed.labels.max()) + 1
    loader, val_loader = make_loaders(args, device)
    if args.loader == "dali":
        loader.check_ranks()  # names a rank that differs or is late, before training hangs or goes wrong
    net = make_net(classes).to(device)
    parallel = DistributedDataParallel(net) if distributed.is_initialized() else net
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.05)
    steps, step = args.epochs * len(loader), 0

    def checkpoint(epoch: int) -> None:
        if args.checkpoint and first_rank:
            # The loader's state is a few integers; a DataLoader has none.
            place = loader.state_dict() if args.loader == "dali" else None
            content = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch, "step": step}
            save(args.checkpoint, {**content, "loader": place})

    first_epoch = 0
    if args.resume:
        saved = torch.load(args.checkpoint, map_location=device, weights_only=True)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        first_epoch, step = saved["epoch"], saved["step"]
        if args.loader == "dali" and saved["loader"]:
            loader.load_state_dict(saved["loader"])
            # With another number of processes or batch size, the rest of the epoch has another number of batches.
            rest = (len(loader.dataset) - saved["loader"]["samples"]) // (args.batch_size * loader.ranks.world_size)
            step = (first_epoch + 1) * len(loader) - rest
        else:  # a DataLoader cannot resume in mid-epoch: it starts the epoch again
            step = first_epoch * len(loader)
            if args.loader == "dali":  # a DataLoader made the checkpoint
                loader.set_epoch(first_epoch)
        say(f"Resumed from {args.checkpoint} in epoch {first_epoch + 1}, after {step} of {steps} batches")

    if args.preview and args.loader == "dali" and first_rank:
        loader.preview(64).save(args.preview)
    say(f"{len(packed):,} images of {classes} classes, {args.size} px, with {LOADERS[args.loader]} on {device}")
    # A finished run that is resumed trains no epoch, and would not be evaluated.
    right, val_images = evaluate(net, val_loader, device) if first_epoch >= args.epochs else (0, 0)
    started = time.perf_counter()
    for epoch in range(first_epoch, args.epochs):
        with make_progress(disable=not first_rank) as progress:
            task = progress.add_task(f"epoch {epoch + 1}/{args.epochs}", total=len(loader), figures="")
            sums, seen, epoch_started = torch.zeros(2, device=device), 0, time.perf_counter()
            progress.update(task, completed=step - epoch * len(loader))
            for images, labels in loader:
                images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
                sums += train_batch(parallel, optimizer, images, labels, learning_rate(step, steps, args.lr))
                step += 1
                seen += len(labels)
                if step % 10 == 0 or step % len(loader) == 0:  # reading a value makes the CPU wait for the GPU
                    loss, accuracy = (sums / seen).tolist()
                    rate = seen / (time.perf_counter() - epoch_started)
                    progress.update(task, figures=f"loss {loss:.3f}  accuracy {accuracy:.1%}  {rate:,.0f} images/s")
                progress.advance(task)
                if step == args.max_batches:
                    break
                if step % args.checkpoint_every == 0:
                    checkpoint(epoch)
        if step == args.max_batches:
            checkpoint(epoch)
            say(f"Stopped after {step} of {steps} batches, as --max-batches says; --resume continues from there")
            return
        right, val_images = evaluate(net, val_loader, device)
        say(f"    validation accuracy {right / val_images:.1%} ({right} of {val_images})")
        checkpoint(epoch + 1)

    took_s = time.perf_counter() - started
    say(
        f"Trained {args.epochs} epoch{'s' * (args.epochs != 1)} in {took_s:.0f} s: "
        f"validation accuracy {right / val_images:.1%} "
        f"({right} of {val_images}; chance is {1 / classes:.1%})"
        + (f", in {args.checkpoint}" if args.checkpoint else "")
    )


def make_progress(disable: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[figures]}"),
        disable=disable,
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="packed folder with train/ and val/")
    parser.add_argument("--loader", choices=["dali", "torch"], default="dali")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=96, help="side of the crops in pixels")
    parser.add_argument("--min-scale", type=float, default=0.25, help="smallest random crop, as a share of the area")
    parser.add_argument("--flip", type=float, default=0.5, help="probability of a horizontal flip")
    parser.add_argument("--lr", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, help="file to save to")
    parser.add_argument("--checkpoint-every", type=int, default=100, metavar="BATCHES")
    parser.add_argument(
        "--preview", type=Path, metavar="PNG", help="save a contact sheet of what the training sees first"
    )
    parser.add_argument("--resume", action="store_true", help="continue from --checkpoint")
    parser.add_argument("--max-batches", type=int, help="stop after so many since the start of the run")
    args = parser.parse_args(argv)
    args.scale = (args.min_scale, 1.0)
    if args.loader == "torch" and "LOCAL_RANK" in os.environ:
        parser.error("--loader torch: runs in one process only, for comparison; start it with python, not torchrun")
    if args.resume and not (args.checkpoint and args.checkpoint.is_file()):
        parser.error(
            f"--resume: there is no file --checkpoint {args.checkpoint}; leave out --resume to start from the beginning"
        )
    try:
        run(args)
    except gpuload.GpuloadError as error:
        print(error, file=sys.stderr)
        return 2
    if distributed.is_initialized():
        distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
