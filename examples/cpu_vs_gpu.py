"""Compares decoding on the CPU and on the GPU: images/s, CPU time, and pixels.

    python examples/cpu_vs_gpu.py shards/train --picture cpu_vs_gpu.png

Both deliver the same center crops on the same device in the same order, so that pixels can be compared one by one:
decoded and cropped on the CPU's cores, by gpuload's own decoder, and copied to the GPU; or decoded on the GPU. Each is
measured alone, and into the same training step, of a small net. Without a GPU, DALI's decode on the CPU is compared
with Pillow's, with a message that says so. The picture shows a few images of both and their difference, magnified.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pillow_loader
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import nn

import gpuload

MAGNIFIED = 64  # factor by which the picture magnifies the difference
SHOWN = 4
_GAP_PX = 8
_FONT_PX = 14


class Measured(NamedTuple):
    """images: uint8 (N, 3, size, size) on the CPU, the first N that were decoded. trained_per_s: images/s with a
    training step."""

    images: torch.Tensor
    images_per_s: float
    cores: float
    trained_per_s: float


@contextmanager
def open_gpuload(
    args: argparse.Namespace, device: str, decoder: Any
) -> Iterator[Iterable[torch.Tensor]]:
    augment = gpuload.Augment(args.size, crop="center", dtype="uint8")
    with gpuload.DaliIterator(
        args.folder,
        args.batch_size,
        augment=augment,
        device=device,
        decoder=decoder,
        fields=["image"],
        shuffle=False,
        num_threads=args.threads,
    ) as loader:
        yield (images for _ in count() for (images,) in loader)


@contextmanager
def open_pillow(args: argparse.Namespace) -> Iterator[Iterable[torch.Tensor]]:
    """Pillow in this thread only, with torchvision's center crop."""
    # Idle OpenMP threads spin, and would count as a second core.
    torch.set_num_threads(1)
    images = pillow_loader.PackedImages(
        args.folder, partial(pillow_loader.center_crop, size=args.size)
    )
    starts = range(0, len(images), args.batch_size)
    numbers = [
        range(start, min(start + args.batch_size, len(images))) for start in starts
    ]
    yield (
        torch.stack([images.pixels(number) for number in batch])
        for _ in count()
        for batch in numbers
    )


def measure(
    opened: AbstractContextManager[Iterable[torch.Tensor]], images: int
) -> Measured:
    """Keeps the first images, then times as many again, and as many with a training step."""
    with opened as batches:
        kept = torch.cat([batch.cpu() for batch in first_batches(batches, images)])[
            :images
        ]
        rate, cores = timed(batches, images, lambda batch: None)
        for batch in first_batches(batches, 1):
            step = TrainingStep(batch.device)
            step(batch)  # what is loaded with the first step
        trained, _ = timed(batches, images, step)
        return Measured(kept, rate, cores, trained)


def timed(
    batches: Iterable[torch.Tensor], images: int, use: Callable[[torch.Tensor], None]
) -> tuple[float, float]:
    """images/s, and the CPU cores kept busy."""
    started = time.perf_counter()
    cpu = time.process_time()
    seen = 0
    for batch in first_batches(batches, images):
        use(batch)
        seen += len(batch)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - started
    return seen / elapsed, (time.process_time() - cpu) / elapsed


class TrainingStep:
    """Forward, backward and update of a small net, which learns to tell the mean level of an image."""

    def __init__(self, device: torch.device) -> None:
        layers = (
            nn.Conv2d(3, 64, 7, 4, 3),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, 1),
        )
        self._net = nn.Sequential(*layers).to(device)
        self._optimizer = torch.optim.SGD(self._net.parameters(), lr=1e-3)

    def __call__(self, images: torch.Tensor) -> None:
        values = images.float().div_(255)
        loss = (self._net(values) - values.mean((1, 2, 3))[:, None]).square().mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()


def first_batches(
    batches: Iterable[torch.Tensor], images: int
) -> Iterator[torch.Tensor]:
    seen = 0
    for batch in batches:
        yield batch
        seen += len(batch)
        if seen >= images:
            return


def draw(left: Measured, right: Measured, names: tuple[str, str]) -> Image.Image:
    """A few images from all over the set, side by side, and their difference."""
    difference = (left.images.int() - right.images.int()).abs()
    chosen = torch.linspace(0, len(left.images) - 1, SHOWN).long().tolist()
    magnified = (difference * MAGNIFIED).clamp(max=255).to(torch.uint8)
    side = left.images.shape[-1]
    step = side + _GAP_PX
    head = _FONT_PX + 2 * _GAP_PX
    picture = Image.new("RGB", (3 * step + _GAP_PX, len(chosen) * step + head), "white")
    pen = ImageDraw.Draw(picture)
    font = ImageFont.load_default(_FONT_PX)
    for column, (title, pixels) in enumerate(
        (
            (names[0], left.images),
            (names[1], right.images),
            (f"difference x {MAGNIFIED}", magnified),
        )
    ):
        x = _GAP_PX + column * step
        pen.text((x + side / 2, _GAP_PX), title, fill="black", font=font, anchor="ma")
        for row, number in enumerate(chosen):
            tile = np.ascontiguousarray(pixels[number].permute(1, 2, 0).numpy())
            picture.paste(Image.fromarray(tile), (x, head + row * step))
    return picture


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", type=Path, help="a packed split, such as shards/train"
    )
    parser.add_argument(
        "--images", type=int, default=512, help="number of images to compare"
    )
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument(
        "--size", type=int, default=224, help="side of the crops in pixels"
    )
    parser.add_argument(
        "--threads", type=int, default=2, help="CPU threads that decode"
    )
    parser.add_argument(
        "--picture", type=Path, default=Path("cpu_vs_gpu.png"), help="PNG to write"
    )
    args = parser.parse_args(argv)

    on_gpu = torch.cuda.is_available()
    names = ("CPU, copied", "GPU") if on_gpu else ("DALI, CPU", "Pillow")
    if not on_gpu:
        print("No GPU was found: this compares DALI's decode on the CPU with Pillow's.")
    try:
        first = (
            open_gpuload(args, "cuda", "native")
            if on_gpu
            else open_gpuload(args, "cpu", "dali")
        )
        first_figures = measure(first, args.images)
        second_figures = measure(
            open_gpuload(args, "cuda", "dali") if on_gpu else open_pillow(args),
            args.images,
        )
    except gpuload.GpuloadError as error:
        print(error, file=sys.stderr)
        return 2

    for name, result in zip(names, (first_figures, second_figures), strict=True):
        alone = f"{result.images_per_s:>8,.0f} images/s  {result.cores:.2f} CPU cores"
        print(
            f"{name:<11} {alone}; {result.trained_per_s:,.0f} images/s into a training step"
        )
    difference = (
        (first_figures.images.int() - second_figures.images.int()).abs().float()
    )
    print(
        f"{len(difference):,} images, {args.size}×{args.size}: pixels (0..255) differ by {difference.mean():.3f} on "
        f"average, by {difference.max():.0f} at most; {(difference > 2).float().mean():.3%} by more than 2"
    )
    args.picture.parent.mkdir(parents=True, exist_ok=True)
    draw(first_figures, second_figures, names).save(args.picture)
    print(f"{args.picture}: {SHOWN} images side by side")
    return 0


if __name__ == "__main__":
    sys.exit(main())
