"""The facts about the images of each split: sizes, classes, looks, and outliers."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpuload.disk.dataset import Dataset
from gpuload.fields.registry import kind_of
from gpuload.fields.rows import flat, numbers_of, rows_of
from gpuload.loader.pipeline import Report
from gpuload.report.pixels import choose, look_at, shares, side_for
from gpuload.report.samples import ReportSplit, describe
from gpuload.types import I64, Array, ClassNames

_EXAMPLES = 24  # kept for each class and split
_SHOWN = 12  # of a ranking


# What the index says of an image. number: in the whole set.
SIZES = np.dtype(
    [(name, np.int64) for name in ("number", "width", "height", "image_bytes")]
)


@dataclass(frozen=True)
class Classes:
    """The classes of a field over all samples.

    Attributes:
        names: By number, where they are known.
        of_samples: Whether a sample has one of them.
        counts: How often each class number comes.
        examples: Some numbers of samples with each class.
    """

    names: ClassNames
    of_samples: bool
    counts: Counter[int]
    examples: dict[int, list[int]]

    def add(self, column: Any, numbers: I64) -> None:
        """Counts the classes of some samples.

        Args:
            column: Of the index.
            numbers: int64 (N,), which samples these are.
        """
        if hasattr(column, "value_lengths"):
            values = flat(column)
            numbers = numbers[rows_of(column)]
        else:
            values = numbers_of(column.fill_null(-1))
        order = np.argsort(values)
        classes, starts = np.unique(values[order], return_index=True)
        for number, samples in zip(
            classes.tolist(), np.split(numbers[order], starts[1:]), strict=True
        ):
            self.counts[number] += len(samples)
            examples = self.examples.setdefault(number, [])
            if len(examples) < _EXAMPLES:
                examples += np.unique(samples)[:4].tolist()


@dataclass(frozen=True)
class SplitFacts:
    """What is known of a split.

    Attributes:
        split: The packed set.
        sizes: `SIZES` of the samples that have an image, in stored order.
        classes: Those of each field that has some, "label" first.
        looks: What was measured of the images that decode.
        undecodable: Those that were looked at and do not decode.
    """

    split: ReportSplit
    sizes: Array
    classes: dict[str, Classes]
    looks: Array
    undecodable: Report


def look_at_all(
    splits: Sequence[ReportSplit],
    most_images: int,
    progress: Callable[[int, int, int], None],
) -> list[SplitFacts]:
    """Reads the index of each split, and the pixels of some images.

    Args:
        splits: What the report is about.
        most_images: How many images are decoded, over all splits.
        progress: As of `build`.
    """
    indexes = [read_index(split.dataset) for split in splits]
    counts = list(shares([len(split.dataset) for split in splits], most_images))
    side = side_for(
        np.concatenate(
            [np.minimum(sizes["width"], sizes["height"]) for sizes, _ in indexes]
        )
    )
    parts = []
    done = 0

    def more(images: int) -> None:
        nonlocal done
        done += images
        progress(done, sum(counts), 0)

    for split, (sizes, classes), count in zip(splits, indexes, counts, strict=True):
        looks, undecodable = look_at(
            split.dataset, _choose(split.dataset, count), side, more
        )
        parts.append(SplitFacts(split, sizes, classes, looks, undecodable))
    return parts


def _choose(dataset: Dataset, most: int) -> I64:
    """As `choose`, without samples that have no image."""
    numbers = choose(dataset, most)
    without = dataset.samples_without_image()
    return numbers[~np.isin(dataset.stored_samples(numbers), without)]


def read_index(dataset: Dataset) -> tuple[Array, dict[str, Classes]]:
    """Sizes and classes, by one pass over the index, shard by shard."""
    columns = {
        field: name
        for field in dataset.fields.values()
        if (name := kind_of(field).class_column(field))
    }
    classes = {
        field.name: Classes(
            kind_of(field).class_names(field, dataset.classes),
            name == field.name,
            Counter(),
            {},
        )
        for field, name in sorted(
            columns.items(), key=lambda item: item[0].name != "label"
        )
    }
    columns_of_sizes = {
        "width": "width",
        "height": "height",
        "image_bytes": dataset.manifest.image.bytes_column,
    }
    sizes = np.empty(len(dataset), SIZES)
    sizes["number"] = dataset.stored_samples(np.arange(len(dataset)))
    for first, rows in dataset.all_rows():
        here = sizes[
            slice(*np.searchsorted(sizes["number"], [first, first + len(rows)]))
        ]
        places = here["number"] - first
        for field, name in columns.items():
            classes[field.name].add(rows.column(name).take(places), here["number"])
        for size in columns_of_sizes:
            here[size] = rows.column(columns_of_sizes[size]).to_numpy()[places]
    has_image = ~np.isin(sizes["number"], dataset.samples_without_image())
    return sizes[has_image], classes


class _Ranking(NamedTuple):
    """What images are ranked by.

    Attributes:
        table: "looks" or "sizes", of which `values` makes numbers, the smallest first.
        measure: What is measured.
    """

    table: str
    name: str
    title: str
    measure: str
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
    return (
        f"{abs(count) / 1e6:.2f} MP" if abs(count) >= 1e5 else f"{abs(count):,.0f} px"
    )


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


def find_extremes(parts: Sequence[SplitFacts]) -> list[dict[str, Any]]:
    """For each ranking the images at its end, over all splits, the most extreme first."""
    extremes = list[dict[str, Any]]()
    images = sum(len(part.sizes) for part in parts)
    if images < 2:
        return extremes
    for ranking in _RANKINGS:
        ends = _ends_of(ranking, parts)
        if len(ends) > _SHOWN:  # what many share is not extreme
            ends = [end for end in ends[:_SHOWN] if end[0] < ends[_SHOWN][0]]
        if len(ends) == 1 or (ends and ends[0][0] < ends[-1][0]):
            samples = [
                describe(parts[n].split, number, ranking.text(value))
                for value, n, number in ends
            ]
            table = {
                "name": ranking.name,
                "title": ranking.title,
                "what": ranking.measure,
                "samples": samples,
            }
            extremes.append(table)
    return extremes


def _ends_of(
    ranking: _Ranking, parts: Sequence[SplitFacts]
) -> list[tuple[float, int, int]]:
    """The lowest values of all splits, each with the number of its split and of its sample, and some more."""
    ends = list[tuple[float, int, int]]()
    for n, part in enumerate(parts):
        table = getattr(part, ranking.table)
        values = ranking.values(table)
        rows = np.flatnonzero(np.isfinite(values))
        rows = rows[np.argsort(values[rows], kind="stable")[: _SHOWN + 1]]
        ends += [
            (float(values[row]), n, int(table["number"][row])) for row in rows.tolist()
        ]
    return sorted(ends)
