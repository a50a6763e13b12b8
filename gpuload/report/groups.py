"""What the images of several splits have in common: classes, and exact and near duplicates."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.pictures import name_of
from gpuload.report.facts import SplitFacts
from gpuload.report.pixels import SIGNATURE, close_pairs, join_groups
from gpuload.report.samples import ReportSplit, describe, training_split
from gpuload.types import I64, Array, Bools, ClassNames

_EXAMPLES = 900  # of all classes of a table; at most six of each
_EACH = 6
_MOST_CLASSES = 25_000  # in a table: those that come most often
# Below these, hashes reflect noise.
_LEAST_ENTROPY = 1.5
_LEAST_CONTRAST = 0.02
_PAIRS_AT_A_TIME = 100_000  # 80 MB of colours
_MOST_DIFFERENCE = (
    12.0  # mean difference of the colours in 8×8 pixels, in levels, of near duplicates
)
MOST_SHOWN = 60  # groups with pictures
_LISTED = 1_000  # groups in the JSON
_MEMBERS = 8  # of each

Member = tuple[int, int]  # split, and number in its whole set


def class_tables(parts: Sequence[SplitFacts]) -> list[dict[str, Any]]:
    """A table for each field with classes, "label" first; fields of one name are one table."""
    fields = dict.fromkeys(name for part in parts for name in part.classes)
    return [_table(field, parts) for field in fields]


def _table(field: str, parts: Sequence[SplitFacts]) -> dict[str, Any]:
    table = _ClassTable(field, parts)
    in_training = table.training_counts() or [0]
    of_samples = all(part.classes[field].of_samples for part in table.parts)
    return {
        "field": field,
        "what": "samples" if of_samples else "boxes",
        "classes": len(table.order),
        "smallest": in_training[0],
        "median": in_training[len(in_training) // 2],
        "largest": in_training[-1],
        "missing": list(table.missing()),
        "rows": table.rows(),
    }


class _ClassTable:
    """The classes of a field in all splits.

    Attributes:
        parts: The splits that have the field.
        counts: By number of the class, how many each of all splits has.
        order: The numbers of the classes, the most frequent first.
    """

    def __init__(self, field: str, parts: Sequence[SplitFacts]) -> None:
        self._field = field
        self._all_parts = parts
        self.parts = [part for part in parts if field in part.classes]
        self._class_names = self._find_names()
        numbers = range(len(self._class_names or ()))
        self.counts = {number: [0] * len(parts) for number in numbers}
        for n, part in enumerate(parts):
            if field in part.classes:
                for number, count in part.classes[field].counts.items():
                    self.counts.setdefault(number, [0] * len(parts))[n] = count
        self.order = sorted(self.counts, key=lambda n: (-sum(self.counts[n]), n))

    def _find_names(self) -> ClassNames:
        for part in self.parts:
            names = part.classes[self._field].names
            if names is not None:
                return names
        return None

    def name(self, number: int) -> str:
        """The name of a class, as it is shown."""
        if number == -1:
            return "no class"
        return name_of(number, self._class_names)[:200]

    def rows(self) -> list[dict[str, Any]]:
        """A row for each class, the first ones with examples."""
        each = max(1, min(_EACH, _EXAMPLES // max(1, len(self.order))))
        rows = []
        for place, number in enumerate(self.order[:_MOST_CLASSES]):
            examples = list[dict[str, Any]]()
            if place * each < _EXAMPLES:
                examples = _examples(self._field, number, self.parts, each)
            row = {
                "number": number,
                "name": self.name(number),
                "counts": self.counts[number],
                "examples": examples,
            }
            rows.append(row)
        return rows

    def missing(self) -> Iterator[dict[str, Any]]:
        """The classes that each split lacks, if it has the field."""
        for n, part in enumerate(self._all_parts):
            if self._field not in part.classes:
                continue
            absent = [number for number in self.order if not self.counts[number][n]]
            if absent:
                names = [self.name(number) for number in absent[:200]]
                yield {
                    "split": part.split.name,
                    "count": len(absent),
                    "classes": names,
                }

    def training_counts(self) -> list[int]:
        """How many the split for training has of each class that it has, ascending."""
        splits = [part.split for part in self._all_parts]
        trained = splits.index(training_split(splits))
        return sorted(
            count[trained] for count in self.counts.values() if count[trained]
        )


def _examples(
    field: str, number: int, parts: Sequence[SplitFacts], each: int
) -> list[dict[str, Any]]:
    """Some samples of a class, of the first split that has any."""
    for part in parts:
        numbers = part.classes[field].examples.get(number)
        if numbers:
            step = max(1, len(numbers) // each)
            return [describe(part.split, sample) for sample in numbers[::step][:each]]
    return []


def find_duplicates(parts: Sequence[SplitFacts]) -> dict[str, Any]:
    """The groups of alike images over all splits: those between splits first, then those whose labels differ."""
    splits = [part.split for part in parts]
    groups, not_compared = _find_groups(parts)
    described = [_describe_group(splits, members, exact) for members, exact in groups]
    described.sort(
        key=lambda group: (
            not group["between_splits"],
            not group["labels_differ"],
            -group["count"],
        )
    )
    return {
        "groups": len(described),
        "exact_groups": sum(group["exact"] for group in described),
        "between_splits": sum(group["between_splits"] for group in described),
        "labels_differ": sum(group["labels_differ"] for group in described),
        "images": sum(group["count"] - 1 for group in described),
        "leaked": _leaked(splits, [members for members, _ in groups]),
        "not_compared": not_compared,
        "shown": [_with_samples(group, splits) for group in described[:_LISTED]],
    }


def _describe_group(
    splits: Sequence[ReportSplit], members: list[Member], exact: bool
) -> dict[str, Any]:
    """A group of alike images.

    Args:
        exact: Whether their files are identical.
    """
    labels = set()
    for n, number in members:
        dataset = splits[n].dataset
        if "label" in dataset.fields:
            labels.add(int(dataset.labels[number]))
    return {
        "exact": exact,
        "between_splits": len({n for n, _ in members}) > 1,
        "labels_differ": len(labels) > 1,
        "count": len(members),
        "members": members,
    }


def _leaked(
    splits: Sequence[ReportSplit], groups: Sequence[list[Member]]
) -> list[dict[str, Any]]:
    """How many images of each other split are like one of the split for training."""
    trained = splits.index(training_split(splits))
    leaked = Counter[int]()
    for members in groups:
        numbers = [n for n, _ in members]
        if trained in numbers:
            leaked.update(numbers)
    return [
        {"split": split.name, "images": leaked[n]}
        for n, split in enumerate(splits)
        if n != trained
    ]


def _with_samples(
    group: dict[str, Any], splits: Sequence[ReportSplit]
) -> dict[str, Any]:
    """The group with the descriptions of some of its members."""
    members = _of_each_split(group["members"])
    samples = [describe(splits[n], number) for n, number in members]
    return {**group, "members": samples}


def _of_each_split(members: Sequence[Member]) -> list[Member]:
    """Some members, some of each split."""
    by_split: dict[int, list[Member]] = {}
    for member in members:
        by_split.setdefault(member[0], []).append(member)
    each = max(1, _MEMBERS // len(by_split))
    return [member for group in by_split.values() for member in group[:each]]


def _find_groups(
    parts: Sequence[SplitFacts],
) -> tuple[list[tuple[list[Member], bool]], int]:
    """The members of each group and whether all are identical; the number of images with too little detail to be
    compared."""
    split = np.repeat(np.arange(len(parts)), [len(part.looks) for part in parts])
    looks = np.concatenate([part.looks for part in parts])
    detailed = _is_detailed(looks)
    identical = _identical(parts)
    pairs = _equal_pairs(identical, identical >= 0)
    root = join_groups(np.arange(len(looks)), pairs)
    root = _join_alike(root, looks, detailed)
    groups = []
    for rows in _rows_of_groups(root):
        exact = len(np.unique(identical[rows])) == 1
        numbers = looks["number"][rows].tolist()
        members = list(zip(split[rows].tolist(), numbers, strict=True))
        groups.append((members, exact))
    return groups, int((~detailed).sum())


def _is_detailed(looks: Array) -> Bools:
    """bool (N,): which images have enough detail to be compared."""
    has_entropy = looks["entropy"] >= _LEAST_ENTROPY
    has_contrast = looks["contrast"] >= _LEAST_CONTRAST
    detailed: Bools = has_entropy & has_contrast
    return detailed


def _rows_of_groups(root: I64) -> Iterator[I64]:
    """The rows of each group of several images.

    Args:
        root: int64 (N,), as `join_groups` returns it.
    """
    order = np.argsort(root, kind="stable")
    starts = np.flatnonzero(np.diff(root[order], prepend=-1))
    for rows in np.split(order, starts[1:]):
        if len(rows) > 1:
            yield rows


def _join_alike(root: I64, looks: Array, detailed: Bools) -> I64:
    """As `join_groups`, with the images that look alike.

    Args:
        root: int64 (N,), as `join_groups` has returned it.
        looks: `LOOKS` (N,).
        detailed: bool (N,), which images have enough detail to be compared.
    """
    hashes = looks["hash"]
    colors = looks["signature"].reshape(-1, 3 * SIGNATURE**2).astype(np.int16)
    distinct, place = np.unique(hashes[detailed], return_index=True)
    rows = np.flatnonzero(detailed)[place]
    close = (rows[pairs] for pairs in close_pairs(distinct))
    for pairs in _batches(chain([_equal_pairs(hashes, detailed)], close)):
        apart = pairs[root[pairs[:, 0]] != root[pairs[:, 1]]]
        difference = np.abs(colors[apart[:, 0]] - colors[apart[:, 1]]).mean(axis=1)
        root = join_groups(root, apart[difference <= _MOST_DIFFERENCE])
    return root


def _batches(parts: Iterable[I64]) -> Iterator[I64]:
    """Parts of pairs, joined to fewer and larger ones, and cut where they are too large."""
    waiting: list[I64] = []
    for part in chain(parts, [None]):
        if part is not None:
            waiting.append(part)
        if waiting and (part is None or sum(map(len, waiting)) >= _PAIRS_AT_A_TIME):
            joined = np.concatenate(waiting)
            yield from np.array_split(joined, 1 + len(joined) // _PAIRS_AT_A_TIME)
            waiting = []


def _equal_pairs(values: npt.NDArray[Any], chosen: Bools) -> I64:
    """int64 (pairs, 2): of the chosen rows with equal values each with the next one."""
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(values[rows], kind="stable")]
    equal = values[rows[1:]] == values[rows[:-1]]
    return np.stack([rows[:-1][equal], rows[1:][equal]], axis=1)


def _identical(parts: Sequence[SplitFacts]) -> I64:
    """int64 (N,): the same number for images of the same sides, bytes, hash and colours."""
    rows = []
    for part in parts:
        sizes = part.sizes[np.searchsorted(part.sizes["number"], part.looks["number"])]
        about = (
            sizes["width"],
            sizes["height"],
            sizes["image_bytes"],
            part.looks["hash"].view(np.int64),
        )
        colors = (
            part.looks["signature"].reshape(len(sizes), 3 * SIGNATURE**2).view(np.int64)
        )
        rows.append(np.column_stack([*about, colors]))
    _, numbers = np.unique(np.concatenate(rows), axis=0, return_inverse=True)
    return numbers.reshape(-1)
