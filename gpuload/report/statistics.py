"""The facts gathered from each split: its formats, histograms with the same bins for all splits, and outliers."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpuload.disk.dataset import Dataset
from gpuload.headers import jpeg, png
from gpuload.loader.corrupt import CorruptSample
from gpuload.report.classes import Columns, read_columns
from gpuload.report.pixels import Looks, choose, look_at, shares, side_for
from gpuload.report.samples import Split, describe
from gpuload.types import I64

_FIRST_BYTES = 1 << 14  # enough for most headers
_STARTS: dict[str, bytes | tuple[bytes, ...]] = {"PNG": png.START, "TIFF": (b"II*\0", b"MM\0*")}

_BINS = 28
_FEW = 12  # different values that get a bar each
_NICE = (1, 2, 2.5, 5, 10)


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
    if offset < 0 or size <= 0:
        return b""
    try:
        return os.pread(descriptor, min(size, _FIRST_BYTES), offset)
    except OSError:
        return b""


def _format(head: bytes) -> str:
    if head.startswith(jpeg.START):
        return "JPEG, progressive" if jpeg.read_header(head).progressive else "JPEG"
    for name, starts in _STARTS.items():
        if head.startswith(starts):
            return name
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "WebP"
    return "AVIF" if head[4:12] in (b"ftypavif", b"ftypavis") else "other"


def histogram(title: str, unit: str, values: Sequence[npt.NDArray[Any]], names: Sequence[str]) -> dict[str, Any]:
    """Of the values of each split: bins of a round width between the outermost half percents, and two of what is
    beyond; or where there are few different values, a bin for each."""
    joined = np.concatenate([np.asarray(part, np.float64) for part in values])
    joined = joined[np.isfinite(joined)]
    found: dict[str, Any] = {"title": title, "unit": unit, "bins": [], "series": []}
    if not len(joined):
        return found
    different = np.unique(joined[:: max(1, len(joined) // 200_000)])
    if len(different) <= _FEW and np.isin(joined, different).all():
        edges = np.append(different, np.inf)
        labels = [in_short(value) for value in different.tolist()]
    else:
        low, high = np.percentile(joined, [0.5, 99.5])
        step = _round_up((high - low) / (_BINS - 2) if high > low else max(abs(high), 1) / _BINS)
        if np.array_equal(joined, np.rint(joined)):  # no bin without a whole number in it
            step = max(1.0, np.ceil(step))
        inner = np.arange(np.floor(low / step), np.ceil(high / step) + 1) * step
        edges = np.concatenate([[-np.inf] if joined.min() < inner[0] else [], inner, [np.inf]])
        labels = [_range(one, other) for one, other in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)]
        if joined.max() < inner[-1]:
            edges, labels = edges[:-1], labels[:-1]
    found["bins"] = labels
    for name, part in zip(names, values, strict=True):
        part = np.asarray(part, np.float64)
        part = part[np.isfinite(part)]
        places = np.clip(np.searchsorted(edges, part, side="right") - 1, 0, len(labels) - 1)
        counts = np.bincount(places, minlength=len(labels))
        quartiles = np.percentile(part, [0, 50, 100]).tolist() if len(part) else [0, 0, 0]
        found["series"].append(
            {
                "split": name,
                "counts": counts.tolist(),
                "smallest": quartiles[0],
                "median": quartiles[1],
                "largest": quartiles[2],
            }
        )
    return found


def _round_up(width: float) -> float:
    """The next round number: 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** np.floor(np.log10(max(width, 1e-9)))
    return float(next(nice * power for nice in _NICE if nice * power >= width * 0.999))


def _range(low: float, high: float) -> str:
    if np.isneginf(low):
        return f"under {in_short(high)}"
    if np.isposinf(high):
        return f"{in_short(low)} and more"
    return f"{in_short(low)} to {in_short(high)}"


def in_short(value: float) -> str:
    """A number with three digits, or as a whole one."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == round(value) else f"{value:.3g}"


_SHOWN = 12
_Values = tuple[I64, npt.NDArray[Any]]  # numbers of samples, and what they are ranked by, the smallest first


class _Ranking(NamedTuple):
    """What images are ranked by. what: how it is measured."""

    name: str
    title: str
    what: str
    values: Callable[[Part], _Values]
    text: Callable[[float], str]


def _seen(values: Callable[[Looks], npt.NDArray[Any]]) -> Callable[[Part], _Values]:
    return lambda part: (part.looks.numbers, values(part.looks))


def _stored(values: Callable[[Columns], npt.NDArray[Any]]) -> Callable[[Part], _Values]:
    return lambda part: (part.columns.numbers, values(part.columns))


def pixels_of(table: Columns) -> I64:
    """int64 (N,)."""
    return table.widths.astype(np.int64) * table.heights


def density_of(table: Columns) -> npt.NDArray[Any]:
    """Stored bits per pixel."""
    return 8 * table.bytes / np.maximum(pixels_of(table), 1)


def _less_square(table: Columns) -> npt.NDArray[Any]:
    return -np.abs(np.log(table.widths / np.maximum(table.heights, 1)))


def _in_pixels(count: float) -> str:
    return f"{count / 1e6:.2f} MP" if count >= 1e5 else f"{count:,.0f} px"


_RANKINGS = (
    _Ranking("darkest", "Darkest", "the level that 95 % of the pixels stay below", _seen(lambda f: f.bright_parts),
             lambda v: f"{v:.0%}"),
    _Ranking("brightest", "Brightest", "the level that 95 % of the pixels are above", _seen(lambda f: -f.dark_parts),
             lambda v: f"{-v:.0%}"),
    _Ranking("blurriest", "Most blurred", "deviation of the Laplacian of the small image",
             _seen(lambda f: f.sharpness), lambda v: f"{v:.1f}"),
    _Ranking("least-informative", "Least informative", "entropy of the brightness, at most 6 bits",
             _seen(lambda f: f.entropy), lambda v: f"{abs(v):.2f} bits"),
    _Ranking("aspect", "Oddest in aspect", "longer : shorter side", _stored(_less_square),
             lambda v: f"{np.exp(-v):.2f} : 1"),
    _Ranking("smallest", "Smallest", "in pixels", _stored(pixels_of), _in_pixels),
    _Ranking("largest", "Largest", "in pixels", _stored(lambda t: -pixels_of(t)), lambda v: _in_pixels(-v)),
    _Ranking("lightest", "Fewest bytes for its pixels", "stored bits per pixel", _stored(density_of),
             lambda v: f"{v:.2f} bits/px"),
)  # fmt: skip


def find_extremes(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """For each ranking the images at its end, over all splits, the most extreme first."""
    found = []
    images = sum(len(part.columns.numbers) for part in parts)
    for ranking in _RANKINGS:
        ends: list[tuple[float, int, int]] = []
        for n, part in enumerate(parts):
            numbers, values = ranking.values(part)
            finite = np.flatnonzero(np.isfinite(values))
            count = min(_SHOWN + 1, len(finite))
            if count:
                first = finite[np.argpartition(values[finite], count - 1)[:count]]
                ends += [(float(values[row]), n, int(numbers[row])) for row in first.tolist()]
        ends.sort()
        if len(ends) > _SHOWN and ends[_SHOWN - 1][0] == ends[_SHOWN][0]:  # what many share is not extreme
            ends = [end for end in ends if end[0] < ends[_SHOWN][0]]
        ends = ends[:_SHOWN]
        if not ends or images < 2 or (len(ends) > 1 and ends[0][0] == ends[-1][0]):
            continue
        items = [describe(parts[n].split, number, ranking.text(value)) for value, n, number in ends]
        found.append({"name": ranking.name, "title": ranking.title, "what": ranking.what, "samples": items})
    return found
