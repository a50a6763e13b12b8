"""Switches a training from a DataLoader to gpuload, in two ways, and compares what comes of it.

    python examples/switch.py                                  # a made-up set, three seeds, some minutes on 2 cores
    python examples/switch.py --seeds 1 --epochs 2 --images 400
    python examples/switch.py --json switch.json --plot switch.png

The same small net is trained on the same images three times for each seed:

    dataloader   a DataLoader with torchvision's v2 transforms and a WeightedRandomSampler
    gpuload      gpuload's own crop, flip and ColorJitter, and Balance("label")
    function     gpuload's crop and flip, the same ColorJitter of torchvision's as a Function, and Balance("label")

The set has four shapes of any colour on noise, of which the rarest is an eighth as frequent as the commonest; accuracy
is that on as many of each. The ways take turns; images/s are those of the training, without its first epoch.
"""

import argparse
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import pillow_loader
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch import nn
from torch.utils.data import DataLoader, WeightedRandomSampler
from torchvision.transforms import v2

import gpuload

SHAPES = ("disc", "square", "triangle", "cross")
FREQUENCY = (8, 4, 2, 1)  # of each, in the training set
# Pixels of a stored image, and of a crop.
STORED = 96
SIZE = 48
SCALE = (0.5, 1.0)
JITTER = (0.4, 0.4, 0.4)
Loader = Iterable[tuple[torch.Tensor, torch.Tensor]]


def draw(shape: str, rng: np.random.Generator) -> bytes:
    """A JPEG of one shape: any colour, place and size, on noise."""
    image = Image.fromarray(rng.integers(0, 180, (STORED, STORED, 3), np.uint8))
    pen = ImageDraw.Draw(image)
    colour = tuple(int(level) for level in rng.integers(80, 256, 3))
    side = int(rng.integers(STORED // 6, STORED // 3))
    x, y = (
        int(place)
        for place in rng.integers(STORED // 8, STORED - side - STORED // 8, 2)
    )
    third = side // 3
    if shape == "disc":
        pen.ellipse((x, y, x + side, y + side), fill=colour)
    elif shape == "square":
        pen.rectangle((x, y, x + side, y + side), fill=colour)
    elif shape == "triangle":
        pen.polygon(
            [(x, y + side), (x + side, y + side), (x + side // 2, y)], fill=colour
        )
    else:
        pen.rectangle((x + third, y, x + 2 * third, y + side), fill=colour)
        pen.rectangle((x, y + third, x + side, y + 2 * third), fill=colour)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue()


def make_set(folder: Path, images: int) -> None:
    """Packs train/ and val/: `images` of the first, and a quarter as many of the second, as many of each shape."""
    rng = np.random.default_rng(0)
    splits = {
        "train": [images * part // sum(FREQUENCY) for part in FREQUENCY],
        "val": [images // 16] * len(SHAPES),
    }
    for split, counts in splits.items():
        samples = [
            {"image": draw(shape, rng), "label": shape}
            for shape, count in zip(SHAPES, counts, strict=True)
            for _ in range(count)
        ]
        gpuload.pack(samples, folder / f"{split}-set", maxcount=256, seed=1)
        (folder / f"{split}-set" / "train").rename(folder / split)


def open_dataloader(folder: Path, batch_size: int, seed: int) -> Loader:
    """What is switched from. The data set makes normalised tensors of what the transform returns."""
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(SIZE, SCALE, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(*JITTER),
        ]
    )
    data = pillow_loader.PackedImages(folder, transform)
    weights = (1 / np.bincount(data.labels))[data.labels]
    order = torch.Generator().manual_seed(seed)
    sampler = WeightedRandomSampler(weights.tolist(), len(data), generator=order)
    return DataLoader(
        data,
        batch_size,
        sampler=sampler,
        drop_last=True,
        num_workers=2,
        persistent_workers=True,
    )


def open_gpuload(folder: Path, batch_size: int, seed: int, jitter: Any) -> Loader:
    """The same with gpuload, and this ColorJitter."""
    augment = gpuload.Augment(
        SIZE, crop=gpuload.RandomResizedCrop(scale=SCALE), transforms=[jitter]
    )
    return gpuload.DaliIterator(
        folder,
        batch_size,
        augment=augment,
        seed=seed,
        sampling=gpuload.Balance("label"),
    )


WAYS: dict[str, Callable[[Path, int, int], Loader]] = {
    "dataloader": open_dataloader,
    "gpuload": partial(open_gpuload, jitter=gpuload.transforms.ColorJitter(*JITTER)),
    "function": partial(
        open_gpuload, jitter=gpuload.transforms.Function(v2.ColorJitter(*JITTER))
    ),
}


def make_net() -> nn.Module:
    """25,000 weights: so small that it does not hide the loader."""
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [
            nn.Conv2d(before, after, 3, 2, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
        ]
    return nn.Sequential(
        *layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, len(SHAPES))
    )


def train(loader: Loader, val: Loader, epochs: int, seed: int) -> dict[str, float]:
    """Accuracy on `val` after training, and images/s of all epochs but the first."""
    torch.manual_seed(seed)
    net = make_net()
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    seen = 0
    begun = time.perf_counter()
    for epoch in range(epochs):
        if epoch == 1:
            seen = 0
            begun = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * (1 - epoch / epochs)
        for images, labels in loader:
            seen += len(labels)
            optimizer.zero_grad()
            F.cross_entropy(net(images), labels).backward()
            optimizer.step()
    seconds = time.perf_counter() - begun
    net.eval()
    with torch.no_grad():
        right = [net(images).argmax(1) == labels for images, labels in val]
    return {
        "accuracy": float(torch.cat(right).float().mean()),
        "images_per_s": seen / seconds,
    }


def compare(
    folder: Path, seeds: int, epochs: int, batch_size: int
) -> dict[str, list[dict[str, float]]]:
    """A run of each way for each seed, in turn; whoever is first changes."""
    outcomes: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    val = gpuload.DaliIterator(
        folder / "val",
        batch_size,
        augment=gpuload.Augment(SIZE, crop="none"),
        shuffle=False,
    )
    names = list(WAYS)
    for seed in range(seeds):
        for name in [*names[seed % len(names) :], *names[: seed % len(names)]]:
            loader = WAYS[name](folder / "train", batch_size, seed)
            outcomes[name].append(train(loader, val, epochs, seed))
            if isinstance(loader, gpuload.DaliIterator):
                loader.close()
            last = outcomes[name][-1]
            print(
                f"seed {seed}  {name:<10}  {last['accuracy']:.1%}  {last['images_per_s']:,.0f} images/s",
                flush=True,
            )
            del loader
    val.close()
    return outcomes


def plot(found: dict[str, list[dict[str, float]]], path: Path) -> None:
    """Accuracy of each run, and images/s: the median, and a point for each run."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    titles = {
        "dataloader": "DataLoader,\ntorchvision",
        "gpuload": "gpuload,\nits own\ntransforms",
        "function": "gpuload,\ntorchvision's\nas a Function",
    }
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    colours = ("#8a8a8a", "#1f6fb4", "#d1702a")
    for place, runs in enumerate(found.values()):
        accuracies = [100 * run["accuracy"] for run in runs]
        rates = [run["images_per_s"] for run in runs]
        left.plot(
            [place] * len(runs),
            accuracies,
            "o",
            color=colours[place],
            markersize=8,
            alpha=0.8,
        )
        left.plot(
            [place - 0.2, place + 0.2],
            [mean(accuracies)] * 2,
            color=colours[place],
            linewidth=2,
        )
        right.bar(place, median(rates), 0.6, color=colours[place], alpha=0.6)
        right.plot([place] * len(runs), rates, "o", color=colours[place], markersize=5)
        right.text(
            place,
            0.03 * max(rates),
            f"{median(rates):,.0f}",
            ha="center",
            weight="bold",
        )
    left.set(title="Accuracy on as many of each class (%)", xlim=(-0.6, 2.6))
    right.set(
        title="Images/s while training (median)",
        xlim=(-0.6, 2.6),
        ylim=(0, 1.15 * right.get_ylim()[1]),
    )
    for axes in (left, right):
        axes.set_xticks(range(len(found)), [titles[name] for name in found], fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
    figure.savefig(path, dpi=130)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--images", type=int, default=1200, help="in the training set (%(default)s)"
    )
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument(
        "--seeds", type=int, default=3, help="runs of each way (%(default)s)"
    )
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument(
        "--folder",
        type=Path,
        help="where the set is kept, and found again (default: nowhere)",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write all figures to it"
    )
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw them")
    args = parser.parse_args(argv)
    if min(args.epochs, args.seeds, args.batch_size) < 1 or args.epochs < 2:
        parser.error("expected at least 2 epochs, 1 seed and 1 sample in a batch")
    if args.images < 16 * args.batch_size:
        parser.error(
            f"--images {args.images}: expected at least 16 batches of {args.batch_size}"
        )
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        if not (folder / "val" / "manifest.json").exists():
            make_set(folder, args.images)
        # For the net; the other cores are for whichever loader.
        torch.set_num_threads(1)
        outcomes = compare(folder, args.seeds, args.epochs, args.batch_size)
    for name, runs in outcomes.items():
        accuracies = [run["accuracy"] for run in runs]
        print(
            f"{name:<10}  accuracy {mean(accuracies):.1%} ({min(accuracies):.1%}–{max(accuracies):.1%}), "
            f"{median(run['images_per_s'] for run in runs):,.0f} images/s"
        )
    if args.json:
        setting = {
            "images": args.images,
            "epochs": args.epochs,
            "batch_size": args.batch_size,
            "size": SIZE,
        }
        machine = {"cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0]}
        args.json.write_text(
            json.dumps(
                {"setting": setting, "machine": machine, "runs": outcomes}, indent=1
            )
            + "\n"
        )
    if args.plot:
        plot(outcomes, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
