"""A small packed set whose images are of four shapes, one of them rare, and what loaders with buckets give of it."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import loaders
import numpy as np
from images import encode, photo

import gpuload
from gpuload import Augment, Buckets

COUNT = 150
SIZES = [(16, 16), (8, 16), (16, 8), (12, 15)]
SHAPES = [(40, 40), (64, 32), (32, 64), (50, 40)]  # (width, height) of stored images, one for each bucket
SHARES = [75, 45, 25, 5]
AUGMENT = Augment(Buckets(SIZES), crop="cover", dtype="uint8")
FIELDS = ("image", "index", "bucket", "label")


def make_samples(seed: int = 0) -> Iterator[dict[str, Any]]:
    buckets = np.random.default_rng(seed).permutation(np.repeat(np.arange(4), SHARES))
    images = [encode(photo(number, *shape), "PNG") for number, shape in enumerate(SHAPES)]
    for number, bucket in enumerate(buckets.tolist()):
        yield {"image": images[bucket], "label": number % 5, "name": f"{number:03d}", "text": f"{bucket}"}


def load(data: Any, batch_size: int = 12, **options: Any) -> gpuload.DaliIterator:
    usual = {"augment": AUGMENT, "fields": FIELDS, "shuffle": gpuload.Shuffle(window=2), "decoder": "native"}
    return loaders.load(data, batch_size, **{**usual, **options})


def world(data: Any, ranks: int, batch_size: int = 12, **options: Any) -> list[gpuload.DaliIterator]:
    return [load(data, batch_size, rank=rank, world_size=ranks, **options) for rank in range(ranks)]


Step = tuple[int, list[int], bytes]  # bucket, samples, pixels


def steps(loaders: Sequence[gpuload.DaliIterator], epochs: int = 1, stop: int | None = None) -> list[Step]:
    """The global batches of some epochs, each of one bucket and of its size on every rank."""
    found = []
    for _ in range(epochs):
        for parts in islice(zip(*loaders, strict=True), stop):
            buckets = {int(bucket) for _, _, numbers, _ in parts for bucket in numbers}
            assert len(buckets) == 1
            (bucket,) = buckets
            assert {tuple(images.shape[1:]) for images, *_ in parts} == {(3, *SIZES[bucket])}
            samples = [int(sample) for _, index, *_ in parts for sample in index]
            found.append((bucket, samples, b"".join(images.numpy().tobytes() for images, *_ in parts)))
    return found


def all_samples(found: Sequence[Step]) -> list[int]:
    return [sample for _, samples, _ in found for sample in samples]
