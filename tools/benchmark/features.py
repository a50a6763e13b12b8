"""The features that `tools/bench.py --with` can switch on. A new one is an entry in `FEATURES`.

Each is measured as two loaders that take turns, gpuload with it and without it; where a DataLoader has a counterpart,
as two more.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmark.work import Batches, Work


@dataclass(frozen=True)
class Feature:
    """What is switched on.

    what: in words. loader, augment: arguments of `DaliIterator` and of `Augment` beside the usual ones. dataloader:
    gives a DataLoader over Pillow that does the same; None: there is none that is simple.
    """

    what: str
    loader: Mapping[str, Any] = field(default_factory=dict)
    augment: Mapping[str, Any] = field(default_factory=dict)
    dataloader: Callable[[Work], Batches] | None = None


def fade(sample: Any, rng: np.random.Generator) -> Any:
    """Brightness by a table, as a function of a user's may be: 0.1 ms of NumPy for 224×224."""
    factor = rng.uniform(0.6, 1.4)
    return np.clip(np.arange(256) * factor, 0, 255).astype(np.uint8)[sample["image"]]


def _fade_pillow(work: Work) -> Batches:
    from PIL import Image

    loader = _pillow(work)
    dataset: Any = loader.dataset
    crop, rng = dataset._transform, np.random.default_rng()
    dataset._transform = lambda image: Image.fromarray(fade({"image": np.asarray(crop(image))}, rng))
    return loader  # type: ignore[no-any-return]


def _balance_pillow(work: Work) -> Batches:
    import torch

    loader = _pillow(work)
    labels = loader.dataset._labels
    weights = (1 / np.bincount(labels).clip(1))[labels]
    return torch.utils.data.DataLoader(
        loader.dataset,
        work.batch_size,
        sampler=torch.utils.data.WeightedRandomSampler(weights.tolist(), len(labels)),
        drop_last=True,
        num_workers=work.threads,
        persistent_workers=True,
    )


def _pillow(work: Work) -> Any:
    import pillow_loader

    return pillow_loader.train_loader(work.folder, work.batch_size, size=work.size, workers=work.threads)


FEATURES = {
    "function": Feature(
        "a NumPy function of each sample, in threads", augment={"function": fade}, dataloader=_fade_pillow
    ),
    "function-processes": Feature(
        "the same in two processes", loader={"function_processes": 2}, augment={"function": fade}
    ),
    "function-before": Feature(
        "the same on the whole image, before the crop", augment={"function": fade, "function_at": "before_crop"}
    ),
    "balance": Feature(
        "balance='label'; a WeightedRandomSampler", loader={"balance": "label"}, dataloader=_balance_pillow
    ),
}


@contextmanager
def open_gpuload(work: Work, feature: str) -> Iterator[Batches]:
    """gpuload with a feature."""
    import gpuload

    found = FEATURES[feature]
    augment = gpuload.Augment(work.size, dtype=work.dtype, **found.augment)
    with gpuload.DaliIterator(
        work.folder, work.batch_size, augment=augment, device="cpu", num_threads=work.threads, **found.loader
    ) as loader:
        yield loader


@contextmanager
def open_dataloader(work: Work, feature: str) -> Iterator[Batches]:
    """A DataLoader that does the same."""
    make = FEATURES[feature].dataloader
    assert make is not None
    loader = make(work)
    yield loader
    del loader


def opened() -> dict[str, tuple[str, Any]]:
    """For each contender's name, what it is and how it is opened."""
    found: dict[str, tuple[str, Any]] = {}
    for name, feature in FEATURES.items():
        found[f"gpuload+{name}"] = f"gpuload, {feature.what}", partial(open_gpuload, feature=name)
        if feature.dataloader is not None:
            found[f"torch+{name}"] = f"DataLoader + Pillow, {feature.what}", partial(open_dataloader, feature=name)
    return found


def names_of(features: list[str]) -> list[str]:
    """The contenders: both loaders without a feature, where they are needed, then with each."""
    found = ["gpuload", *(f"gpuload+{name}" for name in features)]
    if with_torch := [name for name in features if FEATURES[name].dataloader is not None]:
        found += ["torch", *(f"torch+{name}" for name in with_torch)]
    return found


def ratios(features: list[str], rates: Mapping[str, list[float]]) -> list[dict[str, Any]]:
    """A row for each feature and loader: images/s with it, and over those without it, round by round.

    rates: images/s of each contender in each round; those that could not run are missing.
    """
    rows = []
    for name in features:
        for loader in ("gpuload", "torch"):
            if loader in rates and f"{loader}+{name}" in rates:
                own = rates[f"{loader}+{name}"]
                found = [one / other for one, other in zip(own, rates[loader], strict=True)]
                rows.append(
                    {
                        "feature": name,
                        "loader": loader,
                        "images_per_s": median(own),
                        "without": median(rates[loader]),
                        "ratio": median(found),
                        "ratio_min": min(found),
                        "ratio_max": max(found),
                    }
                )
    return rows


def print_ratios(rows: list[dict[str, Any]], title: str, lines: list[str]) -> None:
    """The table."""
    from rich.console import Console
    from rich.table import Table

    console = Console(soft_wrap=True)
    for line in lines:
        console.print(line, highlight=False)
    table = Table(title=title, title_justify="left", box=None)
    for head in ("with", "loader", "images/s", "without", "ratio", "min–max"):
        table.add_column(head, justify="left" if head in ("with", "loader") else "right")
    for row in rows:
        table.add_row(
            row["feature"],
            row["loader"],
            f"{row['images_per_s']:,.0f}",
            f"{row['without']:,.0f}",
            f"{row['ratio']:.2f}",
            f"{row['ratio_min']:.2f}–{row['ratio_max']:.2f}",
        )
    console.print(table)
