"""The facts about the images of each split: sizes, classes, looks and formats, histograms with the same bins for all
splits, and outliers."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpuload.disk.dataset import Dataset
from gpuload.fields.registry import kind_of
from gpuload.fields.rows import flat, rows_of
from gpuload.headers import encodings, jpeg, png
from gpuload.loader.pipeline import CorruptSample
from gpuload.report.pixels import choose, look_at, shares, side_for
from gpuload.report.samples import Split, describe
from gpuload.types import I64, Array, ClassNames

# Rows whose sizes are kept, 32 bytes each. Of larger splits, those of evenly spaced shards.
MOST_ROWS = 5_000_000
_EXAMPLES = 24  # kept for each class and split
_FIRST_BYTES = 1 << 14  # of an image; enough for most headers
_BINS = 28
_FEW = 12  # different values that get a bar each
_NICE = (1, 2, 2.5, 5, 10)
_SHOWN = 12  # of a ranking


# What the index says of an image. number: in the whole set.
SIZES = np.dtype([(name, np.int64) for name in ("number", "width", "height", "image_bytes")])


@dataclass(frozen=True)
class Classes:
    """The classes of a field over all samples.

    names: where they are known. of_samples: whether a sample has one of them. counts: how often each class number
    comes. examples: some numbers of samples with it.
    """

    names: ClassNames
    of_samples: bool
    counts: Counter[int]
    examples: dict[int, list[int]]

    def add(self, column: Any, numbers: I64) -> None:
        """Counts those of some samples. column: of the index."""
        if hasattr(column, "value_lengths"):
            values, numbers = flat(column), numbers[rows_of(column)]
        else:
            values = column.fill_null(-1).to_numpy(zero_copy_only=False)
        order = np.argsort(values, kind="stable")
        classes, starts = np.unique(values[order], return_index=True)
        for number, samples in zip(classes.tolist(), np.split(numbers[order], starts[1:]), strict=True):
            self.counts[number] += len(samples)
            known = self.examples.setdefault(number, [])
            if len(known) < _EXAMPLES:
                known += np.unique(samples)[:4].tolist()


@dataclass(frozen=True)
class Part:
    """A split. sizes: `SIZES` (N,), in stored order. classes: of each field that has some, "label" first. looks: of the
    images that were looked at, formats: how many of them are of which. corrupt: the first 1,000 of those that do not
    decode, and corrupt_images, how many there are."""

    split: Split
    sizes: Array
    classes: dict[str, Classes]
    looks: Array
    formats: Counter[str]
    corrupt: tuple[CorruptSample, ...]
    corrupt_images: int


def look_at_all(splits: Sequence[Split], most_images: int, progress: Callable[[int, int, int], None]) -> list[Part]:
    """Reads the index of each split, and the pixels and headers of at most so many images of all together.

    progress: as of `build`.
    """
    indexes = [read_index(split.dataset) for split in splits]
    counts = list(shares([len(split.dataset) for split in splits], most_images))
    side = side_for(np.concatenate([np.minimum(sizes["width"], sizes["height"]) for sizes, _ in indexes]))
    parts, done = [], 0

    def more(images: int) -> None:
        nonlocal done
        done += images
        progress(done, sum(counts), 0)

    for split, (sizes, classes), count in zip(splits, indexes, counts, strict=True):
        numbers = choose(split.dataset, count)
        looks, corrupt, images = look_at(split.dataset, numbers, side, more)
        formats = count_formats(split.dataset, split.dataset.stored_samples(numbers))
        parts.append(Part(split, sizes, classes, looks, formats, corrupt, images))
    return parts


def read_index(dataset: Dataset) -> tuple[Array, dict[str, Classes]]:
    """Sizes and classes, by one pass over the index, shard by shard."""
    dataset.fetch_rows()
    columns = {field: name for field in dataset.fields.values() if (name := kind_of(field).class_column(field))}
    classes = {
        field.name: Classes(kind_of(field).class_names(field, dataset.classes), name == field.name, Counter(), {})
        for field, name in sorted(columns.items(), key=lambda item: item[0].name != "label")
    }
    selected = dataset.stored_samples(np.arange(len(dataset)))
    kept = selected[choose(dataset, MOST_ROWS)]
    sizes = np.empty(len(kept), SIZES)
    sizes["number"] = kept
    for shard, (first, end) in enumerate(zip(dataset.first_samples[:-1], dataset.first_samples[1:], strict=True)):
        numbers, mine = (of[slice(*np.searchsorted(of, [first, end]))] for of in (selected, kept))
        if len(numbers):
            rows = dataset.rows(shard)
            for field, name in columns.items():
                classes[field.name].add(rows.column(name).take(numbers - first), numbers)
            for size in ("width", "height", "image_bytes"):
                sizes[size][slice(*np.searchsorted(kept, [first, end]))] = rows.column(size).to_numpy()[mine - first]
    return sizes, classes


def count_formats(dataset: Dataset, numbers: I64) -> Counter[str]:
    """How many of these images, given by their numbers in the whole set, ascending, are of which format."""
    if dataset.manifest.is_raw:
        return Counter({"raw pixels": len(numbers)})
    found = Counter[str]()
    store = dataset.open_store()
    try:
        shards = dataset.shards_of(numbers)
        for shard in np.unique(shards).tolist():
            rows = numbers[shards == shard] - int(dataset.first_samples[shard])
            table = dataset.rows(shard)
            offsets, sizes = (table.column(f"image_{what}").to_numpy()[rows].tolist() for what in ("offset", "bytes"))
            lease = store.open(shard)
            with lease.open(buffering=0) as file:
                for offset, size in zip(offsets, sizes, strict=True):
                    found[_format(os.pread(file.fileno(), min(size, _FIRST_BYTES), offset))] += 1
    finally:
        store.close()
    return found


def _format(head: bytes) -> str:
    data = memoryview(head)
    if head.startswith(jpeg.START):
        return "JPEG, progressive" if jpeg.read_header(head).progressive else "JPEG"
    tests = {"WebP": encodings.is_webp, "AVIF": encodings.is_avif, "TIFF": encodings.is_tiff}
    if head.startswith(png.START):
        return "PNG"
    return next((name for name, is_of in tests.items() if is_of(data)), "other")


def histogram(title: str, unit: str, values: Sequence[Array], names: Sequence[str]) -> dict[str, Any]:
    """Of the values of each split: bins of a round width between the outermost half percents, and two of what is
    beyond; or where there are few different values, a bin for each."""
    parts = [np.asarray(part, np.float64) for part in values]
    parts = [part[np.isfinite(part)] for part in parts]
    joined = np.concatenate(parts)
    found: dict[str, Any] = {"title": title, "unit": unit, "bins": [], "series": []}
    if not len(joined):
        return found
    different = np.unique(joined[:: max(1, len(joined) // 200_000)])
    if len(different) <= _FEW and np.isin(joined, different).all():
        edges, labels = np.append(different, np.inf), list(map(in_short, different.tolist()))
    else:
        edges = _edges(joined)
        labels = [_range(one, other) for one, other in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)]
    found["bins"] = labels
    for name, part in zip(names, parts, strict=True):
        places = np.clip(np.searchsorted(edges, part, side="right") - 1, 0, len(labels) - 1)
        middle = np.percentile(part, [0, 50, 100]).tolist() if len(part) else [0, 0, 0]
        told = dict(zip(("smallest", "median", "largest"), middle, strict=True))
        counts = np.bincount(places, minlength=len(labels))
        shares = (counts / max(1, len(part))).tolist()
        found["series"].append({"split": name, "counts": counts.tolist(), "shares": shares, **told})
    return found


def _edges(values: Array) -> Array:
    """Of bins of a round width."""
    low, high = np.percentile(values, [0.5, 99.5])
    width = (high - low) / (_BINS - 2) if high > low else max(abs(high), 1) / _BINS
    power = 10.0 ** np.floor(np.log10(max(width, 1e-9)))
    step = next(nice * power for nice in _NICE if nice * power >= width * 0.999)
    if np.array_equal(values, np.rint(values)):  # no bin without a whole number in it
        step = max(1.0, np.ceil(step))
    inner = np.arange(np.floor(low / step), np.ceil(high / step) + 1) * step
    before, after = ([-np.inf] if values.min() < inner[0] else []), ([np.inf] if values.max() >= inner[-1] else [])
    return np.concatenate([before, inner, after])


def _range(low: float, high: float) -> str:
    if np.isneginf(low):
        return f"under {in_short(high)}"
    if np.isposinf(high):
        return f"{in_short(low)} and more"
    return f"{in_short(low)} to {in_short(high)}"


def in_short(value: float) -> str:
    """A number with three digits, or as a whole one."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == round(value) else f"{value:.3g}"


class _Ranking(NamedTuple):
    """What images are ranked by. of: "looks" or "sizes", of which `values` makes numbers, the smallest first. what: how
    it is measured."""

    of: str
    name: str
    title: str
    what: str
    values: Callable[[Array], Array]
    text: Callable[[float], str]


def aspect(sizes: Array) -> Array:
    """Width : height."""
    ratio: Array = sizes["width"] / np.maximum(sizes["height"], 1)
    return ratio


def _pixels(sizes: Array) -> Array:
    count: Array = sizes["width"] * sizes["height"]
    return count


def _in_pixels(count: float) -> str:
    return f"{abs(count) / 1e6:.2f} MP" if abs(count) >= 1e5 else f"{abs(count):,.0f} px"


_RANKINGS = (
    _Ranking("looks", "darkest", "Darkest", "the level that 95 % of the pixels stay below",
             lambda looks: looks["bright"], "{:.0%}".format),
    _Ranking("looks", "brightest", "Brightest", "the level that 95 % of the pixels are above",
             lambda looks: -looks["dark"], lambda v: f"{-v:.0%}"),
    _Ranking("looks", "blurriest", "Most blurred", "deviation of the Laplacian of the small image",
             lambda looks: looks["sharpness"], "{:.1f}".format),
    _Ranking("looks", "least-informative", "Least informative", "entropy of the brightness, at most 6 bits",
             lambda looks: looks["entropy"], lambda v: f"{abs(v):.2f} bits"),
    _Ranking("sizes", "aspect", "Oddest in aspect", "longer : shorter side",
             lambda sizes: -np.abs(np.log(aspect(sizes))), lambda v: f"{np.exp(-v):.2f} : 1"),
    _Ranking("sizes", "smallest", "Smallest", "in pixels", _pixels, _in_pixels),
    _Ranking("sizes", "largest", "Largest", "in pixels", lambda sizes: -_pixels(sizes), _in_pixels),
)  # fmt: skip


def find_extremes(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """For each ranking the images at its end, over all splits, the most extreme first."""
    found, images = [], sum(len(part.sizes) for part in parts)
    for ranking in _RANKINGS:
        ends: list[tuple[float, int, int]] = []
        for n, part in enumerate(parts):
            source = getattr(part, ranking.of)
            values = ranking.values(source)
            rows = np.flatnonzero(np.isfinite(values))
            rows = rows[np.argsort(values[rows], kind="stable")[: _SHOWN + 1]]
            ends += [(float(values[row]), n, int(source["number"][row])) for row in rows.tolist()]
        ends.sort()
        if len(ends) > _SHOWN:  # what many share is not extreme
            ends = [end for end in ends[:_SHOWN] if end[0] < ends[_SHOWN][0]]
        if images > 1 and ends and (len(ends) == 1 or ends[0][0] < ends[-1][0]):
            items = [describe(parts[n].split, number, ranking.text(value)) for value, n, number in ends]
            found.append({"name": ranking.name, "title": ranking.title, "what": ranking.what, "samples": items})
    return found
