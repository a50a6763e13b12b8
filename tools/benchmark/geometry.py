"""What padding and warps cost: the rate of a loader with each, over that of the same loader without it."""

import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import gpuload
from gpuload.transforms import RandomAffine, RandomPerspective, RandomRotation
from gpuload.transforms.steps import Transform


def augments(option: str, size: int, dtype: str = "float32") -> dict[str, gpuload.Augment]:
    """By name, the loaders to compare; the first is the one without. option: "padding" or "rotation"."""
    return _padding(size, dtype) if option == "padding" else _rotation(size, dtype)


def _padding(size: int, dtype: Any) -> dict[str, gpuload.Augment]:
    crops: dict[str, gpuload.RandomCrop | None] = {"without": None}
    for mode in ("constant", "edge", "reflect", "symmetric"):
        crops[mode] = gpuload.RandomCrop(padding=4, padding_mode=mode)  # type: ignore[arg-type]
    return {
        name: gpuload.Augment(size, crop=crop or "pad_or_crop", flip=0.5, dtype=dtype) for name, crop in crops.items()
    }


def _rotation(size: int, dtype: Any) -> dict[str, gpuload.Augment]:
    warps: dict[str, tuple[Transform, ...]] = {
        "without": (),
        "RandomRotation(15)": (RandomRotation(15),),
        "RandomRotation(15, 'bilinear')": (RandomRotation(15, "bilinear"),),
        "RandomPerspective(p=1)": (RandomPerspective(p=1.0),),
        "rotation, affine and perspective, bilinear": (
            RandomRotation(15, "bilinear"),
            RandomAffine(0, (0.1, 0.1), (0.9, 1.1), interpolation="bilinear"),
            RandomPerspective(p=1.0),
        ),
    }
    return {name: gpuload.Augment(size, transforms=transforms, dtype=dtype) for name, transforms in warps.items()}


def measure(
    folder: Path, compared: Mapping[str, gpuload.Augment], *, batch_size: int, batches: int, rounds: int, **options: Any
) -> dict[str, dict[str, float]]:
    """By name: images/s, and images per second of processor time, of all threads; medians over the rounds.

    In each round the loaders take turns, each with so many batches. options: of `DaliIterator`.
    """
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in compared}
    with ExitStack() as stack:
        loaders = {
            name: stack.enter_context(
                gpuload.DaliIterator(folder, batch_size, augment=augment, fields=("image",), device="cpu", **options)
            )
            for name, augment in compared.items()
        }
        for number in range(-1, rounds):  # the first one is to warm up
            for name, loader in loaders.items():
                begun, busy, seen = time.perf_counter(), time.process_time(), 0
                while seen < batches:
                    seen += sum(1 for _ in islice(iter(loader), batches - seen))
                images = seen * batch_size
                if number >= 0:
                    took = time.perf_counter() - begun, time.process_time() - busy
                    rates[name].append((images / took[0], images / took[1]))
    medians = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in rates.items()}
    first = next(iter(medians.values()))
    return {
        name: {
            "images_per_s": round(rate),
            "images_per_cpu_s": round(cpu),
            "of_without": round(rate / first[0], 3),
            "of_without_per_cpu": round(cpu / first[1], 3),
        }
        for name, (rate, cpu) in medians.items()
    }
