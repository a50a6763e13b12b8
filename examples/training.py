"""What train.py needs beside its loop: a net, options, checkpoints, and Ctrl-C."""

import argparse
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
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


class Run:
    """A run that can be saved, stopped and resumed.

    Args:
        args: The options, as `parse` returns them.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.is_stopped = False
        self._parts: dict[str, Any] = {}

    def hold(self, **parts: Any) -> None:
        """Names what a checkpoint consists of; with --resume, gives each its saved state."""
        self._parts = parts
        if self.args.resume:
            device = parts["loader"].device
            saved = torch.load(
                self.args.checkpoint, map_location=device, weights_only=True
            )
            for name, part in parts.items():
                part.load_state_dict(saved[name])

    def save(self) -> None:
        """Writes the checkpoint, if one is wanted. At any time there is a whole one."""
        if self.args.checkpoint:
            unfinished = Path(f"{self.args.checkpoint}.tmp")
            states = {name: part.state_dict() for name, part in self._parts.items()}
            torch.save(states, unfinished)
            unfinished.replace(self.args.checkpoint)

    def epochs_after(self, done: int) -> range:
        """The numbers of the epochs that are left."""
        if done >= self.args.epochs:
            print(
                f"{self.args.checkpoint}: {done} epochs are done; to go on, give "
                f"--epochs {done + 1} or more"
            )
        return range(done, self.args.epochs)

    def stop(self, *_: object) -> None:
        """Ends the run after the current batch."""
        self.is_stopped = True


def run_program(train: Callable[[Run], None], argv: list[str], about: str) -> int:
    """Trains with the options of a command line; returns the exit code."""
    run = Run(parse(argv, about))
    signal.signal(signal.SIGINT, run.stop)
    try:
        train(run)
    except gpuload.GpuloadError as error:
        print(error, file=sys.stderr)
        return 2
    if not run.is_stopped:
        return 0
    if run.args.checkpoint:
        words = [word for word in argv if word != "--resume"]
        command = shlex.join([sys.argv[0], *words, "--resume"])
        print(f"Stopped. To go on: python {command}")
    else:
        print("Stopped. Nothing is saved without --checkpoint FILE")
    return 130


def parse(argv: list[str], about: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
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
    return args
