"""Trains the same net on the same images with gpuload and with a DataLoader, and compares loss, accuracy and time.

    python examples/recipe.py                               # 1,797 handwritten digits, which come with scikit-learn
    python examples/recipe.py --images 20000                # 20,000 drawn shapes of ten classes
    python examples/recipe.py --images 20000 --json recipe.json --plot recipe.png

Both runs have the same images, net, initial weights, learning rates and kinds of crops; only the loader differs, and
with it the order of the samples and the random numbers of the crops. Their epochs are trained in turn, so that whatever
else the machine does slows both alike. With several --seeds, accuracies are means with their range. Time is that of the
training loops, without evaluation.
"""

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pillow_loader
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch import nn

import gpuload

# And their colours in the plot.
LOADERS = {
    "gpuload": "#12a594",
    "DataLoader": "#5f6670",
}
SHAPES = (
    "circle",
    "ring",
    "square",
    "frame",
    "triangle",
    "cross",
    "bar",
    "stripes",
    "dots",
    "checks",
)


def draw_shape(number: int, side: int = 64) -> dict[str, Any]:
    """A shape of a random place, size and colour on noise: a sample to be packed."""
    rng = np.random.default_rng(number)
    image = Image.fromarray(rng.integers(90, 165, (side, side, 3), np.uint8))
    draw = ImageDraw.Draw(image)
    kind = SHAPES[number % len(SHAPES)]
    size = int(rng.integers(side // 3, 3 * side // 4))
    x, y = rng.integers(0, side - size, 2).tolist()
    levels = rng.choice([20, 235], 3) + rng.integers(-15, 16, 3)
    color = tuple(levels.tolist())
    part = max(2, size // 5)
    box = (x, y, x + size, y + size)
    if kind in ("circle", "ring"):
        draw.ellipse(box, color if kind == "circle" else None, color, part)
    elif kind in ("square", "frame"):
        draw.rectangle(box, color if kind == "square" else None, color, part)
    elif kind == "triangle":
        draw.polygon([(x, y + size), (x + size, y + size), (x + size // 2, y)], color)
    elif kind == "cross":
        draw.line((x, y, x + size, y + size), color, part)
        draw.line((x, y + size, x + size, y), color, part)
    elif kind == "bar":
        draw.rectangle((x, y + 2 * part, x + size, y + 3 * part), color)
    elif kind == "stripes":
        for top in range(y, y + size, 2 * part):
            draw.rectangle((x, top, x + size, top + part - 1), color)
    else:
        draw_cells(draw, kind, box, part, color)
    return {"image": image, "label": kind}


def draw_cells(
    draw: ImageDraw.ImageDraw,
    kind: str,
    box: tuple[int, int, int, int],
    part: int,
    color: tuple[int, ...],
) -> None:
    """Dots or checks in a box, each `part` pixels wide."""
    left, top, right, bottom = box
    draw_cell = draw.ellipse if kind == "dots" else draw.rectangle
    for y in range(top, bottom, 2 * part):
        shift = part if kind == "checks" and (y - top) // part % 4 else 0
        for x in range(left + shift, right + shift, 2 * part):
            draw_cell((x, y, x + part, y + part), color)


def digits() -> Iterator[dict[str, Any]]:
    from sklearn.datasets import load_digits

    handwritten = load_digits()
    for pixels, label in zip(handwritten.images, handwritten.target, strict=True):
        small = Image.fromarray((pixels * (255 / 16)).astype(np.uint8)).convert("RGB")
        yield {
            "image": small.resize((64, 64), Image.Resampling.BICUBIC),
            "label": int(label),
        }


def make_net(classes: int) -> nn.Module:
    """A net with 0.1 million weights."""
    layers: list[nn.Module] = []
    for channels_in, channels in ((3, 24), (24, 48), (48, 96)):
        layers += [
            nn.Conv2d(channels_in, channels, 3, 2, 1),
            nn.GroupNorm(8, channels),
            nn.ReLU(),
        ]
    return nn.Sequential(
        *layers,
        nn.Conv2d(96, 48, 3, 1, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(192, classes),
    )


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up over the first tenth of the run, then cosine decay to zero."""
    warm_up = max(1, steps // 10)
    if step < warm_up:
        return peak * (step + 1) / warm_up
    return (
        peak * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up))) / 2
    )


class Run:
    """A net that is trained with one of the loaders.

    losses: of each batch. seconds: since the start of the first epoch, at each batch, of this run's loops alone.
    """

    def __init__(
        self,
        name: str,
        shards: Path,
        seed: int,
        epochs: int,
        batch_size: int,
        size: int,
    ) -> None:
        train = shards / "train"
        scale = (0.5, 1.0)
        if name == "gpuload":
            augment = gpuload.Augment(
                size, crop=gpuload.RandomResizedCrop(scale=scale), flip=0
            )
            self.loader: Any = gpuload.DaliIterator(
                train, batch_size, augment=augment, device="cpu", seed=seed
            )
        else:
            self.loader = pillow_loader.train_loader(
                train, batch_size, size=size, scale=scale, flip=0, seed=seed
            )
        torch.manual_seed(seed)
        self.net = make_net(len(gpuload.Dataset(train).classes or range(10)))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), weight_decay=0.05)
        self.steps = epochs * len(self.loader)
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def train_epoch(self) -> None:
        before = self.seconds[-1] if self.seconds else 0.0
        started = time.perf_counter()
        for images, labels in self.loader:
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(len(self.losses), self.steps, 4e-3)
            loss = F.cross_entropy(self.net(images), labels)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())
            self.seconds.append(before + time.perf_counter() - started)

    def accuracy(self, shards: Path, size: int) -> float:
        """The share of the validation images that are classified correctly; the same loader for both runs."""
        center = gpuload.Augment(size, crop="center")
        with gpuload.DaliIterator(
            shards / "val", 256, augment=center, device="cpu", shuffle=False
        ) as loader:
            with torch.inference_mode():
                right = sum(
                    int((self.net(images).argmax(1) == labels).sum())
                    for images, labels in loader
                )
            return right / len(loader.dataset)


def compare(
    shards: Path, seeds: int, epochs: int, batch_size: int, size: int
) -> dict[str, Any]:
    """Losses, seconds and accuracies of both loaders."""
    outcomes: dict[str, Any] = {
        name: {"accuracies": [], "runs": []} for name in LOADERS
    }
    for seed in range(seeds):
        runs = {
            name: Run(name, shards, seed, epochs, batch_size, size) for name in LOADERS
        }
        for _ in range(epochs):
            for run in runs.values():
                run.train_epoch()
        for name, run in runs.items():
            outcomes[name]["accuracies"].append(run.accuracy(shards, size))
            outcomes[name]["runs"].append(
                {"losses": run.losses, "seconds": run.seconds}
            )
            print(
                f"seed {seed}, {name}: accuracy {outcomes[name]['accuracies'][-1]:.1%}, {run.seconds[-1]:.1f} s"
            )
        runs["gpuload"].loader.close()
    return outcomes


def smooth(values: list[float], over: int) -> np.ndarray:
    """The mean of each value and those before it."""
    sums = np.cumsum([0.0, *values])
    first = np.maximum(np.arange(1, len(values) + 1) - over, 0)
    return np.asarray(
        (sums[1:] - sums[first]) / (np.arange(1, len(values) + 1) - first)
    )


def plot(found: dict[str, Any], title: str, path: Path) -> None:
    """The losses by batch and by second."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, sides = pyplot.subplots(
        1, 2, figsize=(10, 4), sharey=True, layout="constrained"
    )
    for name, color in LOADERS.items():
        accuracies = found[name]["accuracies"]
        label = f"{name}: accuracy {mean(accuracies):.1%}, {mean(r['seconds'][-1] for r in found[name]['runs']):.0f} s"
        for number, run in enumerate(found[name]["runs"]):
            losses = smooth(run["losses"], max(1, len(run["losses"]) // 40))
            for axes, places in zip(
                sides, (range(1, len(losses) + 1), run["seconds"]), strict=True
            ):
                axes.plot(
                    places,
                    losses,
                    color=color,
                    linewidth=1.4,
                    alpha=0.85,
                    label=label if not number else None,
                )
    for axes, unit in zip(sides, ("batches", "seconds of training"), strict=True):
        axes.set_xlabel(unit)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylim(bottom=0)
    sides[0].set_ylabel("training loss")
    sides[1].legend(frameon=False)
    figure.suptitle(title, size=11)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--images",
        type=int,
        default=0,
        help="drawn shapes in place of the digits; at least 100",
    )
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=1, help="pairs of runs")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument(
        "--size", type=int, default=32, help="side of the crops in pixels"
    )
    parser.add_argument(
        "--plot",
        type=Path,
        default=Path("recipe.png"),
        help="PNG to write (recipe.png)",
    )
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args(argv)
    if args.images and args.images < 100:
        parser.error(f"--images {args.images}: expected at least 100")
    torch.set_num_threads(1)  # more of them get in the way of those that decode
    images = (
        f"{args.images:,} drawn shapes" if args.images else "1,797 handwritten digits"
    )
    with tempfile.TemporaryDirectory() as folder:
        shards = Path(folder) / "shards"
        gpuload.pack(
            map(draw_shape, range(args.images)) if args.images else digits(),
            shards,
            val=0.2,
            progress=False,
        )
        outcomes = compare(shards, args.seeds, args.epochs, args.batch_size, args.size)
    for name, outcome in outcomes.items():
        accuracies = outcome["accuracies"]
        took = mean(run["seconds"][-1] for run in outcome["runs"])
        spread = (
            f" ({min(accuracies):.1%}–{max(accuracies):.1%})" if args.seeds > 1 else ""
        )
        print(
            f"{name}: accuracy {mean(accuracies):.1%}{spread} after {took:.1f} s of training"
        )
    ratio = [
        other["seconds"][-1] / first["seconds"][-1]
        for first, other in zip(
            outcomes["gpuload"]["runs"], outcomes["DataLoader"]["runs"], strict=True
        )
    ]
    print(
        f"{images}, {args.epochs} epochs: {mean(ratio):.2f} times as fast with gpuload"
    )
    if args.json:
        settings = {
            "epochs": args.epochs,
            "batch_size": args.batch_size,
            "size": args.size,
            "seeds": args.seeds,
        }
        args.json.write_text(
            json.dumps({"images": images, **settings, **outcomes}) + "\n"
        )
    plot(outcomes, f"{images}, {args.epochs} epochs", args.plot)
    print(f"{args.plot}: the losses of both")
    return 0


if __name__ == "__main__":
    sys.exit(main())
