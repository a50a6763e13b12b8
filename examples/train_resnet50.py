"""Training speed of ResNet-50 by loader: gpuload, DALI by hand, torch's DataLoader with Pillow, and a resident batch.

    python examples/train_resnet50.py shards/train
    python examples/train_resnet50.py shards/train --batch-size 128 --json figures.json
    python examples/train_resnet50.py shards/train --loaders synthetic gpuload-dali gpuload-native gpuload-both dali
    python examples/train_resnet50.py shards/train --batch-size 8 --steps 2 --warm-up 1    # without a GPU

Each loader gets 120 steps of 256 images: a GPU is meant, and a CPU would take hours.

The loaders take turns; every second round goes through them backwards, so that none is always measured on a cooler GPU
than another. A loader that fails is left out, with the reason, and the others are measured.

The resident batch, one that stays on the device, shows what the device could do if data were free; what a loader falls
short of that is its cost.
bfloat16 (on a GPU) and channels_last; the net is ResNet-50 v1.5 (stride in the 3×3 convolution) of plain torch
modules. Only one loader is open at a time, since a loader that fills its queue would disturb the others.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

import dali_loader
import pillow_loader
import torch
import torch.nn.functional as F
from torch import nn

import gpuload

LOADERS = {
    "synthetic": "one resident batch",
    "gpuload": "gpuload",
    "gpuload-dali": "gpuload, DALI",
    "gpuload-native": "gpuload, CPU decoder",
    "gpuload-both": "gpuload, both",
    "dali": "DALI by hand",
    "dali-cores": "DALI, CUDA cores",
    "dali-engines": "DALI, JPEG engines",
    "torch": "DataLoader + Pillow",
}
# Of DALI by hand: the share of the images for the JPEG engines of a GPU.
HW_DECODER_LOADS = {
    "dali": dali_loader.HW_DECODER_LOAD,
    "dali-cores": 0.0,
    "dali-engines": 1.0,
}
USUAL = ("synthetic", "gpuload", "torch")
# He et al., arXiv 1512.03385, table 1.
DEPTHS = (3, 4, 6, 3)
WIDTHS = (64, 128, 256, 512)


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions and a shortcut, with 4 * width output channels."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(4 * width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False),
                nn.BatchNorm2d(4 * width),
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


def resnet50(classes: int) -> nn.Module:
    """25.6 million weights for 1,000 classes."""
    blocks = []
    channels = 64
    for depth, width in zip(DEPTHS, WIDTHS, strict=True):
        for number in range(depth):
            blocks.append(
                Bottleneck(
                    channels,
                    width,
                    stride=2 if number == 0 and width > WIDTHS[0] else 1,
                )
            )
            channels = 4 * width
    stem = (
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    )
    return nn.Sequential(
        *stem,
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, classes),
    )


class Trainer:
    """The net and its optimizer: bfloat16 on a GPU, float32 on a CPU, where bfloat16 is slow.

    Unlike float16, bfloat16 needs no scaled gradients, whose check makes each step wait for the device.
    """

    def __init__(self, classes: int, device: str) -> None:
        self.device = torch.device(device)
        self._mixed = self.device.type == "cuda"
        self.dtype = torch.bfloat16 if self._mixed else torch.float32
        self._net = resnet50(classes).to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._optimizer = torch.optim.SGD(
            self._net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-5
        )

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss, on the device."""
        images = images.to(
            self.device,
            self.dtype,
            memory_format=torch.channels_last,
            non_blocking=True,
        )
        labels = labels.to(self.device, non_blocking=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._mixed):
            loss = F.cross_entropy(self._net(images), labels)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        return loss.detach()

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Turn(NamedTuple):
    """Figures of the counted steps. waited_s: time waited for batches. cores: CPU cores that this process kept busy."""

    images_per_s: float
    waited_s: float
    cores: float
    last_loss: float


Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]


@contextmanager
def open_loader(
    name: str, args: argparse.Namespace, trainer: Trainer, classes: int
) -> Iterator[Batches]:
    """Endless batches."""
    if name == "synthetic":
        shape = (args.batch_size, 3, args.size, args.size)
        images = torch.randn(shape, device=trainer.device).to(
            trainer.dtype, memory_format=torch.channels_last
        )
        yield repeat((images, torch.randint(classes, shape[:1], device=trainer.device)))
    elif name == "torch":
        loader = pillow_loader.train_loader(
            args.folder,
            args.batch_size,
            size=args.size,
            workers=args.workers,
            pin_memory=trainer.device.type == "cuda",
        )
        yield chain.from_iterable(repeat(loader))
    elif name in HW_DECODER_LOADS:
        yield dali_loader.train_loader(
            args.folder,
            args.batch_size,
            size=args.size,
            threads=args.workers,
            device=args.device,
            hw_decoder_load=HW_DECODER_LOADS[name],
        )
    else:
        augment = gpuload.Augment(
            args.size,
            dtype=str(trainer.dtype).removeprefix("torch."),
            layout="channels_last",
        )  # type: ignore[arg-type]
        decoder: Any = name.partition("-")[2] or "auto"
        with gpuload.DaliIterator(
            args.folder,
            args.batch_size,
            augment=augment,
            device=args.device,
            decoder=decoder,
            num_threads=args.workers,
            steps_per_epoch=args.warm_up
            + args.steps,  # no epoch ends, and drains the pipeline, meanwhile
        ) as opened:
            yield opened


def run(batches: Batches, trainer: Trainer, warm_up: int, steps: int) -> Turn:
    """Trains `warm_up` steps, which empty the loader's queues, then the steps that count."""
    source = iter(batches)
    for images, labels in islice(source, warm_up):
        trainer.step(images, labels)
    trainer.wait()
    seen = 0
    waited = 0.0
    started = time.perf_counter()
    cpu = time.process_time()
    for _ in range(steps):
        before = time.perf_counter()
        images, labels = next(source)
        waited += time.perf_counter() - before
        loss = trainer.step(images, labels)
        seen += len(labels)
    trainer.wait()
    elapsed = time.perf_counter() - started
    return Turn(
        seen / elapsed, waited, (time.process_time() - cpu) / elapsed, loss.item()
    )


def measure(
    args: argparse.Namespace, after_turn: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """All figures, as they go into the JSON; `after_turn` receives those measured so far."""
    packed = gpuload.Dataset(args.folder)
    classes = len(packed.classes or ()) or int(packed.labels.max()) + 1
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    trainer = Trainer(classes, args.device)
    # Lets cuDNN choose algorithms and allocate memory.
    with open_loader("synthetic", args, trainer, classes) as batches:
        run(batches, trainer, 0, max(1, args.warm_up))
    record: dict[str, Any] = {
        "machine": {
            "device": torch.cuda.get_device_name()
            if trainer.device.type == "cuda"
            else platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "data": {
            "folder": str(args.folder),
            "samples": len(packed),
            "classes": classes,
        },
        "setting": {
            name: getattr(args, name)
            for name in ("size", "batch_size", "steps", "warm_up", "workers")
        },
        "precision": str(trainer.dtype).removeprefix("torch."),
    }
    turns: dict[str, list[Turn]] = {}
    left_out: dict[str, str] = {}
    record["left_out"] = left_out
    for number in range(args.rounds):
        for name in args.loaders if number % 2 == 0 else args.loaders[::-1]:
            if name in left_out:
                continue
            try:
                with open_loader(name, args, trainer, classes) as batches:
                    turn = run(batches, trainer, args.warm_up, args.steps)
            except (gpuload.GpuloadError, RuntimeError, ImportError, OSError) as error:
                left_out[name] = (str(error).splitlines() or [type(error).__name__])[0]
                print(
                    f"{LOADERS[name]}: left out: {left_out[name]}",
                    file=sys.stderr,
                    flush=True,
                )
            else:
                turns.setdefault(name, []).append(turn)
                print(
                    f"{LOADERS[name]}: {turn.images_per_s:,.1f} images/s",
                    file=sys.stderr,
                    flush=True,
                )
            record["loaders"] = summarise(turns)
            after_turn(record)
    return record


def summarise(turns: dict[str, list[Turn]]) -> list[dict[str, Any]]:
    """A row per loader: the medians and every turn."""
    rates = {
        name: statistics.median(turn.images_per_s for turn in figures)
        for name, figures in turns.items()
    }
    return [
        {
            "name": name,
            "images_per_s": rates[name],
            "share_of_resident": rates[name] / rates["synthetic"]
            if "synthetic" in rates
            else None,
            "turns": [turn._asdict() for turn in figures],
        }
        for name, figures in turns.items()
    ]


def main(argv: list[str] | None = None) -> int:
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", type=Path, help="a packed split with labels, such as shards/train"
    )
    parser.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="cpu, cuda or cuda:1",
    )
    parser.add_argument(
        "--loaders",
        nargs="+",
        choices=list(LOADERS),
        default=list(USUAL),
        metavar="NAME",
    )
    parser.add_argument(
        "--size", type=int, default=224, help="side of the crops in pixels"
    )
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument(
        "--steps", type=int, default=100, help="counted steps per loader and round"
    )
    parser.add_argument(
        "--warm-up",
        type=int,
        default=20,
        help="steps before those; more than a loader's queue holds",
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--workers",
        type=int,
        default=cores,
        help="workers, or decoding threads (%(default)s)",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the figures to it, after each loader's turn",
    )
    args = parser.parse_args(argv)
    for name in ("size", "batch_size", "steps", "rounds", "workers"):
        if getattr(args, name) < 1:
            parser.error(
                f"--{name.replace('_', '-')} {getattr(args, name)}: expected at least 1"
            )
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU here; use --device cpu")

    def write(record: dict[str, Any]) -> None:
        if args.json:
            args.json.write_text(json.dumps(record, indent=1) + "\n")

    try:
        figures = measure(args, write)
    except gpuload.GpuloadError as error:
        print(error, file=sys.stderr)
        return 2
    for row in figures["loaders"]:
        share = (
            f"{row['share_of_resident']:>7.1%} of it"
            if row["share_of_resident"] is not None
            else ""
        )
        waited = statistics.median(turn["waited_s"] for turn in row["turns"])
        print(
            f"{LOADERS[row['name']]:<20} {row['images_per_s']:>9,.1f} images/s  {share}  waited {waited:.2f} s"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
