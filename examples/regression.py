"""Numbers predicted from images that lie in an HDF5 file, such as a steering angle: a net trained, and what takes time.

    python examples/regression.py                                     # a small made-up set
    python examples/regression.py road.h5 --shards packed             # your own: arrays of images and targets
    python examples/regression.py road.h5 --shards raw --encode raw   # pixels as they are, not JPEG

Packs the file once, shuffled, in shards of 32 MB; the loader mixes eight of them at a time and has the next eight read
ahead, so that memory does not grow with the set. Then it times --epochs epochs each way and prints the medians, and the
largest memory:

    loader alone    a loop over the batches that does nothing
    net alone       training steps, all on one batch that is there already: some after every hundred of those below,
                    since the speed of a machine that others share comes and goes within seconds
    both            training: as long as the slower of the two alone, where each has its own GPU or cores

On a CPU the net and the loader share the cores. Start it with OMP_NUM_THREADS=1 in the environment, for torch's threads
wait for one another in a loop, and with `--threads` for the cores that the net leaves free. Every flip from left to
right turns the sign of the targets. `--dtype uint8` leaves normalisation to the net's device.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from operator import add
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import made_up
import measure
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import gpuload
from gpuload.cli import REJECTED
from gpuload.cli import main as gpuload_command

MAX_SHARD = "32MB"
STEPS, RESIDENT_STEPS = 100, 50  # of training, then of the net alone, in turn


def pack(store: Path, shards: Path, encode: str, size: int) -> None:
    """The file as shards, shuffled; nothing is done where they are there already."""
    if (shards / "train" / "manifest.json").exists():
        print(f"Reusing {shards}; delete it to pack anew")
        return
    form = ["--encode", encode, "--size", str(size), "--fit", "center-crop"]
    command = ["pack", str(store), str(shards), *form, "--maxsize", MAX_SHARD, "--resume"]
    print("$ python -m gpuload", *command)
    if (code := gpuload_command(command)) not in (0, REJECTED):
        raise SystemExit(code)


def open_loader(data: gpuload.Dataset, args: argparse.Namespace) -> gpuload.DaliIterator:
    """Batches (images, targets): (N, 3, size, size) in -1..1 (uint8: 0..255), and float32 (N,)."""
    half = (0.5, 0.5, 0.5)
    return gpuload.DaliIterator(
        data,
        args.batch_size,
        augment=gpuload.Augment(args.size, crop="none", flip=0.5, mean=half, std=half, dtype=args.dtype),
        fields=("image", gpuload.Target(args.target, negate_on_flip=True)),
        decoder=args.decoder,
        num_threads=args.threads,
    )


class Trainer:
    """A small net and its optimizer."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        channels = 3
        for width, kernel, stride in ((16, 5, 4), (32, 3, 2), (64, 3, 2)):
            layers += [nn.Conv2d(channels, width, kernel, stride, kernel // 2), nn.ReLU()]
            channels = width
        self.net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * channels, 1)).to(device)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 1e-3)

    def step(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """One step. Gives the mean squared error, on the device."""
        inputs = images.float().div_(127.5).sub_(1) if images.dtype == torch.uint8 else images.float()
        loss = F.mse_loss(self.net(inputs).squeeze(1), targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class Clock:
    """Seconds, by the wall and of the processor, inside `with`, added up; waits for a GPU at both ends."""

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
        """share: what part of an epoch was timed; the seconds are those of a whole one."""
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
    """Seconds of training, and of as many steps of the net alone. error: mean squared error of the training."""

    both: dict[str, float]
    net: dict[str, float]
    error: float


def train(loader: gpuload.DaliIterator, trainer: Trainer, other: Trainer, peak: measure.PeakMemory) -> Epoch:
    """One epoch. other: takes the steps of the net alone."""
    total = torch.zeros((), device=loader.device)
    both, net, resident = Clock(loader.device), Clock(loader.device), 0
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
    next(batches, None)  # ends the epoch
    return Epoch(both.times(), net.times(resident / len(loader)), total.item() / len(loader))


def variance(data: gpuload.Dataset, target: str) -> float:
    """Mean square of the targets, with either sign as flips make them: the error of an answer that is always 0."""
    rows = [data.rows(shard).column(target).to_numpy() for shard in range(len(data.shard_paths))]
    return float(np.mean(np.concatenate(rows).astype(np.float64) ** 2))


def run(args: argparse.Namespace, store: Path) -> None:
    shards = args.shards or store.with_name(f"{store.stem}-packed")
    pack(store, shards, args.encode, args.size)
    peak = measure.PeakMemory()  # what it has now is the interpreter's and the libraries'; DALI is still to come
    data = gpuload.Dataset(shards / "train")
    measure.read_through(shards)
    with open_loader(data, args) as loader:
        print(f"{len(data):,} images; {loader}")
        base = variance(data, args.target)
        for _ in zip(range(64), loader, strict=False):  # what happens once a process is not timed
            pass
        trainer, other = Trainer(loader.device), Trainer(loader.device)
        alone, net, both = [], [], []
        for number in range(args.epochs):
            alone.append(time_loader(loader))
            epoch = train(loader, trainer, other, peak)
            net.append(epoch.net)
            both.append({**epoch.both, "explained": 1 - epoch.error / base})
            print(
                f"epoch {number + 1}: {epoch.both['seconds']:.2f} s, {1 - epoch.error / base:.1%} of the targets' "
                f"variance told; net alone {epoch.net['seconds']:.2f} s, loader alone {alone[-1]['seconds']:.2f} s"
            )
        excess = peak.excess
    for what, times in {"loader alone": alone, "net alone": net, "both": both}.items():
        wall, cpu = (median(one[name] for one in times) for name in ("seconds", "cpu_seconds"))
        rate = len(data) / wall
        print(f"{what:13} {wall:7.2f} s an epoch, {cpu:7.2f} s of processor time, {rate:8,.0f} images/s")
    print(
        f"both takes {ratio(both, alone, net, max):.2f} times the slower of the two alone, and "
        f"{ratio(both, alone, net, add):.2f} times their sum\n"
        f"memory beside the interpreter and its libraries: at most {measure.in_bytes(excess.own)}; and "
        f"{measure.in_bytes(excess.mapped)} of files, which the kernel takes back when it likes"
    )
    measure.save_record(
        args.json,
        samples=len(data),
        settings={name: getattr(args, name) for name in ("encode", "size", "batch_size", "dtype")},
        decoder=loader.decoder,
        threads=loader.num_threads,
        torch_threads=torch.get_num_threads(),
        loader_alone=alone,
        net_alone=net,
        both=both,
        own_bytes=excess.own,
        mapped_bytes=excess.mapped,
    )


def ratio(both: list[Any], alone: list[Any], net: list[Any], of_two: Callable[[float, float], float]) -> float:
    """The median over the epochs: how long both took, to what `of_two` makes of each alone in the same epoch."""
    epochs = zip(both, alone, net, strict=True)
    return median(b["seconds"] / of_two(a["seconds"], n["seconds"]) for b, a, n in epochs)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, nargs="?", help="HDF5 file; without: made up")
    parser.add_argument("--shards", type=Path, help="folder to pack to, or one that is packed (STORE-packed)")
    parser.add_argument("--target", default="target", help="array of the numbers to be predicted")
    parser.add_argument("--encode", choices=["jpeg", "raw"], default="jpeg", help="how images are packed")
    parser.add_argument("--size", type=int, default=128, help="side of the images in pixels")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--dtype", choices=["float32", "float16", "uint8"], default="float32", help="of the batches")
    parser.add_argument("--threads", type=int, help="threads that decode (one for each core)")
    parser.add_argument("--decoder", choices=["auto", "dali", "native"], default="auto")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args(argv)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            run(args, args.store or made_up.make("hdf5", Path(scratch) / "road.h5"))
    except gpuload.GpuloadError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
