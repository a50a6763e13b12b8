"""Two pictures a sample on a device: DALI makes of both the same, and how many pictures a second that gives.

    python tools/pair_check.py shards/train --device cuda --json pair.json

Images of the set are packed anew into a temporary folder, each of them twice in its sample: as `image` and `right`.
They are loaded with one crop and flip, by one unit of the device, and compared bit by bit; then the image alone and
both are timed in turns.

Exit codes: 0 they are equal; 1 they differ; 2 wrong arguments.
"""

import argparse
import io
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch

import gpuload

_SHORTEST = 2  # batches that make a figure


def samples_of(folder: Path, count: int) -> Iterator[dict[str, Any]]:
    """The first images of a set, each twice, in one encoding, which the packer keeps."""
    dataset = gpuload.Dataset(folder)
    for number in range(min(count, len(dataset))):
        file = io.BytesIO()
        dataset[number]["image"].save(file, "JPEG", quality=92)
        image = file.getvalue()
        yield {"image": image, "right": image, "label": number}


def open_loader(
    folder: Path, args: argparse.Namespace, *fields: str, **options: Any
) -> gpuload.DaliIterator:
    """A loader of these fields, with random crops."""
    usual = {"decoder": "dali", "device": args.device, "num_threads": args.threads}
    augment = gpuload.Augment(args.size, dtype="float16")
    return gpuload.DaliIterator(
        folder,
        args.batch_size,
        augment=augment,
        fields=fields,
        **{**usual, **options},
    )


def count_different(folder: Path, args: argparse.Namespace) -> tuple[int, int]:
    """How many samples were compared, and of how many the two pictures differ."""
    one_unit = gpuload.Dali(deterministic=True)
    compared = 0
    different = 0
    with open_loader(folder, args, "image", "right", decoder=one_unit) as loader:
        for image, right in loader:
            compared += len(image)
            unlike = (image != right).flatten(1).any(dim=1)
            different += int(unlike.sum())
    return compared, different


def pictures_per_second(loader: gpuload.DaliIterator, pictures: int) -> float:
    """Of one epoch, behind its first batch."""
    batches = iter(loader)
    next(batches)
    _wait()
    begun = time.perf_counter()
    samples = sum(len(batch[0]) for batch in batches)
    _wait()
    return samples * pictures / (time.perf_counter() - begun)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure(folder: Path, args: argparse.Namespace) -> dict[str, float]:
    """Medians of pictures/s: of the image alone, and of both."""
    rates: dict[str, list[float]] = {"one": [], "two": []}
    fields = {"one": ("image",), "two": ("image", "right")}
    for _ in range(args.rounds):
        for name, requested in fields.items():
            with open_loader(folder, args, *requested) as loader:
                rates[name].append(pictures_per_second(loader, len(requested)))
    return {name: median(measured) for name, measured in rates.items()}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="a split of a packed set of JPEGs")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--images", type=int, default=2048, help="that are packed")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    args = parser.parse_args(argv)
    if args.images < _SHORTEST * args.batch_size:
        parser.error(f"--images {args.images}: expected {_SHORTEST} batches or more")
    with tempfile.TemporaryDirectory() as folder:
        gpuload.pack(samples_of(args.folder, args.images), folder, progress=False)
        packed = Path(folder) / "train"
        compared, different = count_different(packed, args)
        rates = measure(packed, args)
    figures = {"compared": compared, "different": different, "pictures_per_s": rates}
    if args.json:
        args.json.write_text(json.dumps(figures))
    share = rates["two"] / rates["one"]
    print(
        f"{different} of {compared} pairs differ; {rates['two']:,.0f} pictures/s, {share:.2f} times those of one"
    )
    return 1 if different or not compared else 0


if __name__ == "__main__":
    sys.exit(main())
