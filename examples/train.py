"""Trains a small convolutional net on packed images: the whole loop, to read and to copy from.

    python -m gpuload pack photos shards --val 0.1
    python examples/train.py shards --epochs 5 --checkpoint run.pt
    python examples/train.py shards --epochs 5 --checkpoint run.pt --resume  # goes on with the next batch

Ctrl-C saves the run after the current batch and ends it. For several GPUs see ddp.py.
"""

import argparse
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import gpuload


def make_net(classes: int) -> nn.Module:
    """Put your own model here."""
    layers: list[nn.Module] = []
    for channels_in, channels in ((3, 32), (32, 64), (64, 128), (128, 128)):
        layers += [
            nn.Conv2d(channels_in, channels, 3, stride=2, padding=1),
            nn.GroupNorm(8, channels),
            nn.ReLU(),
        ]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(9 * 128, classes)
    )


@torch.inference_mode()
def accuracy(net: nn.Module, loader: Any) -> float:
    correct = sum(
        int((net(images).argmax(1) == labels).sum()) for images, labels in loader
    )
    return correct / len(loader.dataset)


def train(args: argparse.Namespace, stopped: list[int]) -> None:
    """Trains until all epochs are done, or `stopped` holds something."""
    crop = gpuload.RandomResizedCrop(scale=(args.min_scale, 1.0))
    options = {"batch_size": args.batch_size, "device": args.device}
    augment = gpuload.Augment(args.size, crop=crop, flip=args.flip)
    loader = gpuload.DaliIterator(args.shards / "train", augment=augment, **options)
    center = gpuload.Augment(args.size, crop="center")
    val_loader = gpuload.DaliIterator(
        args.shards / "val", augment=center, shuffle=False, **options
    )
    torch.manual_seed(0)
    net = make_net(loader.num_classes).to(loader.device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    if args.resume:
        saved = torch.load(
            args.checkpoint, map_location=loader.device, weights_only=True
        )
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])  # a few numbers
    if args.preview:
        loader.preview(64).save(args.preview)

    def save() -> None:
        if args.checkpoint:
            content = {
                "net": net.state_dict(),
                "optimizer": optimizer.state_dict(),
                "loader": loader.state_dict(),
            }
            torch.save(content, f"{args.checkpoint}.tmp")
            # At any time there is a whole checkpoint.
            Path(f"{args.checkpoint}.tmp").replace(args.checkpoint)

    first = loader.state_dict()["epoch"]
    if first >= args.epochs:
        print(
            f"{args.checkpoint}: {first} epochs are done; to go on, give --epochs {first + 1} or more"
        )
    for epoch in range(first, args.epochs):
        seen = 0
        started = time.perf_counter()
        for images, labels in loader:
            if seen == 0:
                started = time.perf_counter()  # without the set-up of the loader
            loss = F.cross_entropy(net(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(labels)
            if stopped or seen % (100 * args.batch_size) == 0:
                save()
            if stopped:
                return
        rate = seen / (time.perf_counter() - started)
        print(
            f"epoch {epoch + 1} of {args.epochs}: {rate:,.0f} images/s, accuracy {accuracy(net, val_loader):.1%}"
        )
        save()


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shards", type=Path, help="packed folder with train/ and val/")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument(
        "--size", type=int, default=96, help="side of the crops in pixels"
    )
    parser.add_argument(
        "--min-scale",
        type=float,
        default=0.25,
        help="smallest random crop, as a share of the area",
    )
    parser.add_argument(
        "--flip", type=float, default=0.5, help="probability of a horizontal flip"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    parser.add_argument(
        "--checkpoint", type=Path, metavar="FILE", help="save the run to FILE"
    )
    parser.add_argument("--resume", action="store_true", help="go on from --checkpoint")
    parser.add_argument(
        "--preview",
        type=Path,
        metavar="PNG",
        help="save a sheet of what the training sees first",
    )
    args = parser.parse_args(argv)
    if args.resume and not (args.checkpoint and args.checkpoint.is_file()):
        parser.error(
            f"--resume: needs --checkpoint FILE, which a run has written; got {args.checkpoint}"
        )
    if (args.shards / "manifest.json").exists():
        args.shards = args.shards.parent  # shards/train means the set in shards
    stopped: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: stopped.append(number))
    try:
        train(args, stopped)
    except gpuload.GpuloadError as error:
        print(error, file=sys.stderr)
        return 2
    if stopped and args.checkpoint:
        words = [word for word in argv if word != "--resume"]
        print(
            f"Stopped. To go on: python {shlex.join([sys.argv[0], *words, '--resume'])}"
        )
    elif stopped:
        print("Stopped. Nothing is saved without --checkpoint FILE")
    return 130 if stopped else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
