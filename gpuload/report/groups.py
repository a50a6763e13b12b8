"""What the images of several splits have in common: classes, and exact and near duplicates."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.pictures import name_of
from gpuload.report.facts import Part
from gpuload.report.pixels import SIGNATURE, close_pairs, join_groups
from gpuload.report.samples import describe, training_split
from gpuload.types import I64, Bools

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
MOST_SHOWN, _LISTED, _MEMBERS = (
    60,
    1_000,
    8,
)  # groups with pictures, groups in the JSON, and members of each

Member = tuple[int, int]  # split, and number in its whole set


def class_tables(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """A table for each field with classes, "label" first; fields of one name are one table."""
    return [
        _table(name, parts)
        for name in dict.fromkeys(name for part in parts for name in part.classes)
    ]


def _table(field: str, parts: Sequence[Part]) -> dict[str, Any]:
    here = {
        n: part.classes[field] for n, part in enumerate(parts) if field in part.classes
    }
    names = next(
        (found.names for found in here.values() if found.names is not None), None
    )
    counts = {number: [0] * len(parts) for number in range(len(names or ()))}
    for n, found in here.items():
        for number, count in found.counts.items():
            counts.setdefault(number, [0] * len(parts))[n] = count
    order = sorted(counts, key=lambda number: (-sum(counts[number]), number))
    told = {
        number: name_of(number, names)[:200] if number != -1 else "no class"
        for number in order
    }
    each = max(1, min(_EACH, _EXAMPLES // max(1, len(order))))
    rows = [
        {
            "number": number,
            "name": told[number],
            "counts": counts[number],
            "examples": _examples(field, number, [parts[n] for n in here], each)
            if place * each < _EXAMPLES
            else [],
        }
        for place, number in enumerate(order[:_MOST_CLASSES])
    ]
    lacking = {
        parts[n].split.name: [told[number] for number in order if not counts[number][n]]
        for n in here
    }
    splits = [part.split for part in parts]
    trained = splits.index(training_split(splits))
    in_training = sorted(
        found[trained] for found in counts.values() if found[trained]
    ) or [0]
    return {
        "field": field,
        "what": "samples"
        if all(found.of_samples for found in here.values())
        else "boxes",
        "classes": len(order),
        "smallest": in_training[0],
        "median": in_training[len(in_training) // 2],
        "largest": in_training[-1],
        "missing": [
            {"split": name, "count": len(n), "classes": n[:200]}
            for name, n in lacking.items()
            if n
        ],
        "rows": rows,
    }


def _examples(
    field: str, number: int, parts: Sequence[Part], each: int
) -> list[dict[str, Any]]:
    """Some samples of a class, of the first split that has any."""
    for part in parts:
        if found := part.classes[field].examples.get(number):
            return [
                describe(part.split, sample)
                for sample in found[:: max(1, len(found) // each)][:each]
            ]
    return []


def find_duplicates(parts: Sequence[Part]) -> dict[str, Any]:
    """The groups of alike images over all splits: those between splits first, then those whose labels differ."""
    splits = [part.split for part in parts]
    labels = [
        split.dataset.labels if "label" in split.dataset.fields else None
        for split in splits
    ]
    trained = splits.index(training_split(splits))
    leaked = Counter[int]()
    groups, not_compared = _find_groups(parts)
    told: list[dict[str, Any]] = []
    for members, exact in groups:
        of_splits = [n for n, _ in members]
        known = {
            int(of_split[number])
            for n, number in members
            if (of_split := labels[n]) is not None
        }
        leaked.update(of_splits if trained in of_splits else ())
        between = len(set(of_splits)) > 1
        about = {
            "exact": exact,
            "between_splits": between,
            "labels_differ": len(known) > 1,
        }
        told.append({**about, "count": len(members), "members": members})
    told.sort(
        key=lambda group: (
            not group["between_splits"],
            not group["labels_differ"],
            -group["count"],
        )
    )
    shown = [
        {
            **group,
            "members": [
                describe(splits[n], number)
                for n, number in _of_each_split(group["members"])
            ],
        }
        for group in told[:_LISTED]
    ]
    return {
        "groups": len(told),
        "exact_groups": sum(group["exact"] for group in told),
        "between_splits": sum(group["between_splits"] for group in told),
        "labels_differ": sum(group["labels_differ"] for group in told),
        "images": sum(group["count"] - 1 for group in told),
        "leaked": [
            {"split": split.name, "images": leaked[n]}
            for n, split in enumerate(splits)
            if n != trained
        ],
        "not_compared": not_compared,
        "shown": shown,
    }


def _of_each_split(members: Sequence[Member]) -> list[Member]:
    """Some members, some of each split."""
    by_split: dict[int, list[Member]] = {}
    for member in members:
        by_split.setdefault(member[0], []).append(member)
    each = max(1, _MEMBERS // len(by_split))
    return [member for group in by_split.values() for member in group[:each]]


def _find_groups(parts: Sequence[Part]) -> tuple[list[tuple[list[Member], bool]], int]:
    """The members of each group and whether all are identical; the number of images with too little detail to be
    compared."""
    split = np.repeat(np.arange(len(parts)), [len(part.looks) for part in parts])
    looks = np.concatenate([part.looks for part in parts])
    numbers = looks["number"]
    hashes = looks["hash"]
    colors = looks["signature"].reshape(-1, 3 * SIGNATURE**2).astype(np.int16)
    detailed = (looks["entropy"] >= _LEAST_ENTROPY) & (
        looks["contrast"] >= _LEAST_CONTRAST
    )
    identical = _identical(parts)
    root = join_groups(np.arange(len(numbers)), _equal_pairs(identical, identical >= 0))
    one_of_each, place = np.unique(hashes[detailed], return_index=True)
    rows = np.flatnonzero(detailed)[place]
    alike = (rows[pairs] for pairs in close_pairs(one_of_each))
    for pairs in _batches(chain([_equal_pairs(hashes, detailed)], alike)):
        apart = pairs[root[pairs[:, 0]] != root[pairs[:, 1]]]
        difference = np.abs(colors[apart[:, 0]] - colors[apart[:, 1]]).mean(axis=1)
        root = join_groups(root, apart[difference <= _MOST_DIFFERENCE])
    order = np.argsort(root, kind="stable")
    groups = []
    for rows in np.split(order, np.flatnonzero(np.diff(root[order], prepend=-1))[1:]):
        if len(rows) > 1:
            exact = len(np.unique(identical[rows])) == 1
            groups.append(
                (
                    list(
                        zip(split[rows].tolist(), numbers[rows].tolist(), strict=True)
                    ),
                    exact,
                )
            )
    return groups, int((~detailed).sum())


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


def _identical(parts: Sequence[Part]) -> I64:
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
