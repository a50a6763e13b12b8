"""The facts about the images of each split: sizes, classes, looks and formats, histograms with the same bins for all
splits, and outliers."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpuload.disk.dataset import Dataset
from gpuload.fields.registry import kind_of
from gpuload.fields.rows import flat, lengths_of, rows_of
from gpuload.headers import encodings, jpeg, png
from gpuload.loader.pipeline import CorruptSample
from gpuload.report.pixels import Looks, choose, look_at, shares, side_for
from gpuload.report.samples import Split, describe
from gpuload.types import I32, I64, ClassNames

# Rows whose sizes are kept, 24 bytes each. Of larger splits, those of evenly spaced shards.
MOST_ROWS = 5_000_000
_EXAMPLES = 24  # kept for each class and split
_FIRST_BYTES = 1 << 14  # of an image; enough for most headers
_BINS = 28
_FEW = 12  # different values that get a bar each
_NICE = (1, 2, 2.5, 5, 10)
_SHOWN = 12  # of a ranking


@dataclass(frozen=True)
class Columns:
    """Of the samples at `numbers`, int64 (N,), in stored order: int32 widths and heights in pixels, and int64 bytes of
    the stored image.

    names: of the classes of each field with classes, "label" first, where they are known. of_samples: whether a sample
    has one of them. counts: how often each class number comes, and examples: some numbers of samples with it; by field,
    over all samples.
    """

    numbers: I64
    widths: I32
    heights: I32
    bytes: I64
    names: dict[str, ClassNames]
    of_samples: dict[str, bool]
    counts: dict[str, Counter[int]]
    examples: dict[str, dict[int, list[int]]]

    @property
    def pixels(self) -> I64:
        """int64 (N,)."""
        return self.widths.astype(np.int64) * self.heights

    @property
    def density(self) -> npt.NDArray[Any]:
        """Stored bits per pixel."""
        return 8 * self.bytes / np.maximum(self.pixels, 1)

    @property
    def aspect(self) -> npt.NDArray[Any]:
        return self.widths / np.maximum(self.heights, 1)


@dataclass(frozen=True)
class Part:
    """columns: of the index. looks: of the images that were looked at, formats: how many of them are of which. corrupt:
    the first 1,000 of those that do not decode, and corrupt_images, how many there are."""

    split: Split
    columns: Columns
    looks: Looks
    formats: Counter[str]
    corrupt: tuple[CorruptSample, ...]
    corrupt_images: int


def look_at_all(splits: Sequence[Split], most_images: int, progress: Callable[[int, int, int], None]) -> list[Part]:
    """Reads the index of each split, and the pixels and headers of at most so many images of all together.

    progress: as of `build`.
    """
    columns = [read_columns(split.dataset) for split in splits]
    counts = list(shares([len(split.dataset) for split in splits], most_images))
    side = side_for(np.concatenate([np.minimum(found.widths, found.heights) for found in columns]))
    parts, done = [], 0

    def more(images: int) -> None:
        nonlocal done
        done += images
        progress(done, sum(counts), 0)

    for split, found, count in zip(splits, columns, counts, strict=True):
        numbers = choose(split.dataset, count)
        looks, corrupt, images = look_at(split.dataset, numbers, side, more)
        formats = count_formats(split.dataset, split.dataset.stored_samples(numbers))
        parts.append(Part(split, found, looks, formats, corrupt, images))
    return parts


def read_columns(dataset: Dataset) -> Columns:
    """One pass over the index, shard by shard."""
    dataset.fetch_rows()
    columns = {field: name for field in dataset.fields.values() if (name := kind_of(field).class_column(field))}
    fields = sorted(columns, key=lambda field: field.name != "label")
    counts = {field.name: Counter[int]() for field in fields}
    examples: dict[str, dict[int, list[int]]] = {field.name: {} for field in fields}
    selected = dataset.stored_samples(np.arange(len(dataset)))
    kept = selected[choose(dataset, MOST_ROWS)]
    parts: list[tuple[Any, ...]] = [tuple(np.empty(0, dtype) for dtype in (np.int64, np.int32, np.int32, np.int64))]
    for shard, (first, end) in enumerate(zip(dataset.first_samples[:-1], dataset.first_samples[1:], strict=True)):
        numbers = selected[slice(*np.searchsorted(selected, [first, end]))]
        if not len(numbers):
            continue
        rows = dataset.rows(shard).take(numbers - first)
        for field in fields:
            column = rows.column(columns[field])
            if hasattr(column, "value_lengths"):
                values, owners = flat(column), rows_of(lengths_of(column))
            else:
                values, owners = column.fill_null(-1).to_numpy(zero_copy_only=False), np.arange(len(numbers))
            _count(values, numbers[owners], counts[field.name], examples[field.name])
        mine = np.searchsorted(numbers, kept[slice(*np.searchsorted(kept, [first, end]))])
        sides = (rows.column(name).to_numpy()[mine] for name in ("width", "height", "image_bytes"))
        parts.append((numbers[mine], *sides))
    names = {field.name: kind_of(field).class_names(field, dataset.classes) for field in fields}
    of_samples = {field.name: columns[field] == field.name for field in fields}
    numbers, widths, heights, sizes = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Columns(numbers, widths, heights, sizes, names, of_samples, counts, examples)


def _count(values: I64, numbers: I64, counts: Counter[int], examples: dict[int, list[int]]) -> None:
    """Adds the classes of one shard. values: class numbers; numbers: the sample of each."""
    order = np.argsort(values, kind="stable")
    classes, starts = np.unique(values[order], return_index=True)
    for number, samples in zip(classes.tolist(), np.split(numbers[order], starts[1:]), strict=True):
        counts[number] += len(samples)
        known = examples.setdefault(number, [])
        if len(known) < _EXAMPLES:
            known += np.unique(samples)[:4].tolist()


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
                    found[_format(_read_head(file.fileno(), offset, size))] += 1
    finally:
        store.close()
    return found


def _read_head(descriptor: int, offset: int, size: int) -> bytes:
    """The first bytes of an image; empty where they cannot be read."""
    try:
        return os.pread(descriptor, min(size, _FIRST_BYTES), offset) if offset >= 0 and size > 0 else b""
    except OSError:
        return b""


def _format(head: bytes) -> str:
    data = memoryview(head)
    if head.startswith(jpeg.START):
        return "JPEG, progressive" if jpeg.read_header(head).progressive else "JPEG"
    tests = {"WebP": encodings.is_webp, "AVIF": encodings.is_avif, "TIFF": encodings.is_tiff}
    if head.startswith(png.START):
        return "PNG"
    return next((name for name, is_of in tests.items() if is_of(data)), "other")


def histogram(title: str, unit: str, values: Sequence[npt.NDArray[Any]], names: Sequence[str]) -> dict[str, Any]:
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
        found["series"].append({"split": name, "counts": np.bincount(places, minlength=len(labels)).tolist(), **told})
    return found


def _edges(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
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
    """What images are ranked by. what: how it is measured. values: of columns or looks, the smallest first."""

    name: str
    title: str
    what: str
    values: Callable[[Any], npt.NDArray[Any]]
    text: Callable[[float], str]


def _in_pixels(count: float) -> str:
    return f"{abs(count) / 1e6:.2f} MP" if abs(count) >= 1e5 else f"{abs(count):,.0f} px"


_BY_LOOKS = (
    _Ranking("darkest", "Darkest", "the level that 95 % of the pixels stay below", lambda f: f.bright_parts,
             "{:.0%}".format),
    _Ranking("brightest", "Brightest", "the level that 95 % of the pixels are above", lambda f: -f.dark_parts,
             lambda v: f"{-v:.0%}"),
    _Ranking("blurriest", "Most blurred", "deviation of the Laplacian of the small image", lambda f: f.sharpness,
             "{:.1f}".format),
    _Ranking("least-informative", "Least informative", "entropy of the brightness, at most 6 bits",
             lambda f: f.entropy, lambda v: f"{abs(v):.2f} bits"),
)  # fmt: skip
_BY_COLUMNS = (
    _Ranking("aspect", "Oddest in aspect", "longer : shorter side", lambda f: -np.abs(np.log(f.aspect)),
             lambda v: f"{np.exp(-v):.2f} : 1"),
    _Ranking("smallest", "Smallest", "in pixels", lambda f: f.pixels, _in_pixels),
    _Ranking("largest", "Largest", "in pixels", lambda f: -f.pixels, _in_pixels),
    _Ranking("lightest", "Fewest bytes for its pixels", "stored bits per pixel", lambda f: f.density,
             "{:.2f} bits/px".format),
)  # fmt: skip


def find_extremes(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """For each ranking the images at its end, over all splits, the most extreme first."""
    found, images = [], sum(len(part.columns.numbers) for part in parts)
    for ranking in (*_BY_LOOKS, *_BY_COLUMNS):
        ends: list[tuple[float, int, int]] = []
        for n, part in enumerate(parts):
            source: Looks | Columns = part.looks if ranking in _BY_LOOKS else part.columns
            values = ranking.values(source)
            rows = np.flatnonzero(np.isfinite(values))
            rows = rows[np.argsort(values[rows], kind="stable")[: _SHOWN + 1]]
            ends += [(float(values[row]), n, int(source.numbers[row])) for row in rows.tolist()]
        ends.sort()
        if len(ends) > _SHOWN:  # what many share is not extreme
            ends = [end for end in ends[:_SHOWN] if end[0] < ends[_SHOWN][0]]
        if images > 1 and ends and (len(ends) == 1 or ends[0][0] < ends[-1][0]):
            items = [describe(parts[n].split, number, ranking.text(value)) for value, n, number in ends]
            found.append({"name": ranking.name, "title": ranking.title, "what": ranking.what, "samples": items})
    return found
