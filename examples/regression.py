"""Regression from images in an HDF5 file, such as a steering angle: trains a net, and times loader and net.

    python examples/regression.py                                     # a small generated set
    python examples/regression.py road.h5 --shards packed             # your own: arrays of images and targets
    python examples/regression.py road.h5 --shards raw --encode raw   # raw pixels instead of JPEGs

Packs the file once, shuffled, into shards of 32 MB. The loader mixes eight of them at a time and reads the next eight
ahead, so memory does not grow with the set. Then it times --epochs epochs in each of these ways, and prints the medians
and the peak memory:

    loader alone    a loop over the batches that does nothing
    net alone       training steps on one resident batch: a few after every hundred of the steps below, since the speed
                    of a shared machine changes within seconds
    both            training; takes as long as the slower of the two alone, if each has its own GPU or cores

On a CPU the net and the loader share the cores. Set OMP_NUM_THREADS=1 in the environment, since idle threads of torch
spin, and give `--threads` the number of cores that the net leaves free. A horizontal flip negates the targets. With
`--dtype uint8` the images are normalised on the net's device.
"""

import argparse
import sys
import time
from collections.abc import Callable
from itertools import islice
from operator import add
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import measure
import numpy as np
import torch
import torch.nn.functional as F

import gpuload

MAX_SHARD = "32MB"
# Steps of training, then of the net alone, in turn.
STEPS = 100
RESIDENT_STEPS = 50


def pack(store: Path, shards: Path, encode: str, size: int) -> None:
    """Packs the file into shards, shuffled, unless they exist."""
    form = ["--encode", encode, "--size", str(size), "--fit", "center-crop"]
    measure.pack(store, shards, *form, "--maxsize", MAX_SHARD)


def open_loader(
    data: gpuload.Dataset, args: argparse.Namespace
) -> gpuload.DaliIterator:
    """A loader of batches (images, targets): (N, 3, size, size) in -1..1 (uint8: 0..255) and float32 (N,)."""
    half = (0.5, 0.5, 0.5)
    return gpuload.DaliIterator(
        data,
        args.batch_size,
        augment=gpuload.Augment(
            args.size,
            crop="none",
            flip=0.5,
            normalize=gpuload.Normalize(half, half),
            dtype=args.dtype,
        ),
        fields=("image", gpuload.Target(args.target, negate_on_flip=True)),
        decoder=args.decoder,
        num_threads=args.threads,
    )


class Trainer:
    """A small net and its optimizer."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.net = measure.make_net(1, ((16, 5, 4), (32, 3, 2), (64, 3, 2)), 4).to(
            device
        )
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 1e-3)

    def step(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """One step. Returns the mean squared error, on the device."""
        inputs = (
            images.float().div_(127.5).sub_(1)
            if images.dtype == torch.uint8
            else images.float()
        )
        loss = F.mse_loss(self.net(inputs).squeeze(1), targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class Clock:
    """Adds up wall-clock and processor seconds inside `with`; synchronises the GPU at both ends."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._wall = self._cpu = 0.0

    def __enter__(self) -> None:
        self._wait()
        self._wall -= time.perf_counter()
        self._cpu -= measure.cpu_seconds()

    def __exit__(self, *_: object) -> None:
        self._wait()
        self._wall += time.perf_counter()
        self._cpu += measure.cpu_seconds()

    def times(self, share: float = 1.0) -> dict[str, float]:
        """share: the part of an epoch that was timed; the result is scaled to a whole one."""
        return {"seconds": self._wall / share, "cpu_seconds": self._cpu / share}

    def _wait(self) -> None:
        if self._device != "cpu":
            torch.cuda.synchronize(self._device)


def time_loader(loader: gpuload.DaliIterator) -> dict[str, float]:
    with (clock := Clock(loader.device)):
        for _ in loader:
            pass
    return clock.times()


class Epoch(NamedTuple):
    """Seconds of training, and of as many steps of the net alone. error: mean squared error in training."""

    both: dict[str, float]
    net: dict[str, float]
    error: float


def train(
    loader: gpuload.DaliIterator,
    trainer: Trainer,
    other: Trainer,
    peak: measure.PeakMemory,
) -> Epoch:
    """Trains one epoch. other: the trainer for the steps of the net alone."""
    total = torch.zeros((), device=loader.device)
    both = Clock(loader.device)
    net = Clock(loader.device)
    resident = 0
    batches = iter(loader)
    for first in range(0, len(loader), STEPS):
        with both:
            for batch in islice(batches, STEPS):
                total += trainer.step(*batch)
        peak.look()
        steps = min(RESIDENT_STEPS, len(loader) - first)
        with net:
            for _ in range(steps):
                other.step(*batch)
        resident += steps
    next(batches, None)  # finishes the epoch
    return Epoch(
        both.times(), net.times(resident / len(loader)), total.item() / len(loader)
    )


def variance(data: gpuload.Dataset, target: str) -> float:
    """Mean square of the targets: the error of always predicting 0. Flips make both signs equally likely."""
    rows = [
        data.rows(shard).column(target).to_numpy()
        for shard in range(len(data.shard_paths))
    ]
    return float(np.mean(np.concatenate(rows).astype(np.float64) ** 2))


def run(args: argparse.Namespace, store: Path) -> None:
    shards = args.shards or store.with_name(f"{store.stem}-packed")
    pack(store, shards, args.encode, args.size)
    # So far the interpreter and the libraries, without DALI.
    peak = measure.PeakMemory()
    data = gpuload.Dataset(shards / "train")
    measure.read_through(shards)
    with open_loader(data, args) as loader:
        print(f"{len(data):,} images; {loader}")
        base = variance(data, args.target)
        # What happens once per process is not timed.
        for _ in zip(range(64), loader, strict=False):
            pass
        trainer = Trainer(loader.device)
        other = Trainer(loader.device)
        alone = []
        net = []
        both = []
        for number in range(args.epochs):
            alone.append(time_loader(loader))
            epoch = train(loader, trainer, other, peak)
            net.append(epoch.net)
            both.append({**epoch.both, "explained": 1 - epoch.error / base})
            print(
                f"epoch {number + 1}: {epoch.both['seconds']:.2f} s, {1 - epoch.error / base:.1%} of the targets' "
                f"variance explained; net alone {epoch.net['seconds']:.2f} s, loader alone {alone[-1]['seconds']:.2f} s"
            )
        excess = peak.excess
    for part, times in {"loader alone": alone, "net alone": net, "both": both}.items():
        wall, cpu = (
            median(turn[name] for turn in times) for name in ("seconds", "cpu_seconds")
        )
        rate = len(data) / wall
        print(
            f"{part:13} {wall:7.2f} s per epoch, {cpu:7.2f} s of processor time, {rate:8,.0f} images/s"
        )
    print(
        f"both takes {ratio(both, alone, net, max):.2f} times the slower of the two alone, and "
        f"{ratio(both, alone, net, add):.2f} times their sum\n"
        f"memory beyond the interpreter and its libraries: at most {measure.in_bytes(excess.own)}, plus "
        f"{measure.in_bytes(excess.mapped)} of mapped files, which the kernel can reclaim"
    )
    measure.save_record(
        args.json,
        samples=len(data),
        settings={
            name: getattr(args, name)
            for name in ("encode", "size", "batch_size", "dtype")
        },
        decoder=loader.decoder,
        threads=loader.num_threads,
        torch_threads=torch.get_num_threads(),
        loader_alone=alone,
        net_alone=net,
        both=both,
        own_bytes=excess.own,
        mapped_bytes=excess.mapped,
    )


def ratio(
    both: list[Any],
    alone: list[Any],
    net: list[Any],
    of_two: Callable[[float, float], float],
) -> float:
    """Median over the epochs of the time of both, divided by `of_two` of the times of each alone in that epoch."""
    epochs = zip(both, alone, net, strict=True)
    return median(
        b["seconds"] / of_two(a["seconds"], n["seconds"]) for b, a, n in epochs
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "store", type=Path, nargs="?", help="HDF5 file (default: a generated set)"
    )
    parser.add_argument(
        "--shards",
        type=Path,
        help="folder to pack into, or a packed one (STORE-packed)",
    )
    parser.add_argument(
        "--target", default="target", help="array of the values to predict"
    )
    parser.add_argument(
        "--encode",
        choices=["jpeg", "raw"],
        default="jpeg",
        help="encoding of the packed images",
    )
    parser.add_argument(
        "--size", type=int, default=128, help="side of the images in pixels"
    )
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument(
        "--dtype",
        choices=["float32", "float16", "uint8"],
        default="float32",
        help="of the batches",
    )
    parser.add_argument(
        "--threads", type=int, help="decoding threads (default: one per core)"
    )
    parser.add_argument("--decoder", choices=["auto", "dali", "native"], default="auto")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args(argv)
    return measure.run_on(run, args, args.store, "hdf5", "road.h5")


if __name__ == "__main__":
    sys.exit(main())
