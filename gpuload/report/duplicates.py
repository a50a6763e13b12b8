"""Exact and near duplicates, within a split and between splits."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpuload.disk.sample import stored_image
from gpuload.errors import GpuloadError
from gpuload.report.phash import close_pairs, join_groups
from gpuload.report.pixels import SIGNATURE
from gpuload.report.samples import Split, describe, training_split
from gpuload.report.statistics import Part
from gpuload.types import I64, U64, Bools

_MOST_HASHED = 50_000  # images whose bytes are compared
# Below these, hashes reflect noise.
_LEAST_ENTROPY, _LEAST_CONTRAST = 1.5, 0.02
_PAIRS_AT_A_TIME = 100_000  # 80 MB of colours
_MOST_DIFFERENCE = 12.0  # mean difference of the colours in 8×8 pixels, in levels, of near duplicates


class Group(NamedTuple):
    """Images that are alike. members: (split, number in its whole set) of each. exact: all have the same bytes."""

    members: tuple[tuple[int, int], ...]
    exact: bool


class Found(NamedTuple):
    """groups: the largest first. left_out: images with too little detail to be compared."""

    groups: list[Group]
    left_out: int


def find_groups(parts: Sequence[Part]) -> Found:
    """Groups of alike images over all splits."""
    looks = [part.looks for part in parts]
    split = np.concatenate([np.full(len(found.numbers), n) for n, found in enumerate(looks)])
    numbers = np.concatenate([found.numbers for found in looks])
    hashes = np.concatenate([found.hashes for found in looks])
    colors = np.concatenate([found.signatures.reshape(-1, 3 * SIGNATURE**2) for found in looks]).astype(np.int16)
    detailed = np.concatenate(
        [(found.entropy >= _LEAST_ENTROPY) & (found.contrast >= _LEAST_CONTRAST) for found in looks]
    )
    digests = _same_bytes(parts, split, numbers, hashes)
    root = join_groups(np.arange(len(numbers)), _equal_pairs(digests, digests > 0))
    one_of_each, place = np.unique(hashes[detailed], return_index=True)
    rows = np.flatnonzero(detailed)[place]
    alike = (rows[pairs] for pairs in close_pairs(one_of_each))
    for pairs in _batches(chain([_equal_pairs(hashes, detailed)], alike)):
        apart = pairs[root[pairs[:, 0]] != root[pairs[:, 1]]]
        root = join_groups(root, apart[_have_close_colors(colors, apart)])
    order = np.argsort(root, kind="stable")
    starts = np.flatnonzero(np.diff(root[order], prepend=-1))
    groups = []
    for members in np.split(order, starts[1:]):
        if len(members) > 1:
            exact = bool(digests[members[0]]) and len(set(digests[members].tolist())) == 1
            named = tuple(zip(split[members].tolist(), numbers[members].tolist(), strict=True))
            groups.append(Group(named, exact))
    groups.sort(key=lambda group: -len(group.members))
    return Found(groups, int((~detailed).sum()))


def _batches(parts: Iterable[I64]) -> Iterator[I64]:
    """Parts of pairs, joined to fewer and larger ones."""
    waiting: list[I64] = []
    for part in parts:
        waiting.append(part)
        if sum(map(len, waiting)) >= _PAIRS_AT_A_TIME:
            yield np.concatenate(waiting)
            waiting = []
    if waiting:
        yield np.concatenate(waiting)


def _have_close_colors(colors: npt.NDArray[np.int16], pairs: I64) -> Bools:
    """bool (pairs,). colors: (N, 192)."""
    close = np.empty(len(pairs), bool)
    for begin in range(0, len(pairs), _PAIRS_AT_A_TIME):
        one, other = pairs[begin : begin + _PAIRS_AT_A_TIME].T
        difference = np.abs(colors[one] - colors[other]).mean(axis=1)
        close[begin : begin + _PAIRS_AT_A_TIME] = difference <= _MOST_DIFFERENCE
    return close


def _equal_pairs(values: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]", chosen: Bools) -> I64:
    """int64 (pairs, 2): of the chosen rows with equal values each with the next one."""
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(values[rows], kind="stable")]
    equal = values[rows[1:]] == values[rows[:-1]]
    return np.stack([rows[:-1][equal], rows[1:][equal]], axis=1)


def _same_bytes(parts: Sequence[Part], split: I64, numbers: I64, hashes: U64) -> I64:
    """int64 (N,): the same number above 0 for images with the same bytes; 0 for one that is alone.

    Equal files have the same size in bytes and pixels, and the same perceptual hash: only of those that agree in all of
    these are the bytes compared, by SHA-256.
    """
    sizes = np.zeros((len(numbers), 3), np.int64)
    for n, part in enumerate(parts):
        table, mine = part.columns, split == n
        place = np.searchsorted(table.numbers, numbers[mine])
        known = np.minimum(place, max(0, len(table.numbers) - 1))
        if len(table.numbers):
            sizes[mine] = np.stack([table.bytes[known], table.widths[known], table.heights[known]], axis=1)
    keys = np.concatenate([sizes, hashes.view(np.int64)[:, None]], axis=1)
    _, which, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    candidates = np.flatnonzero(counts[which.reshape(-1)] > 1)[:_MOST_HASHED]
    found: dict[bytes, list[int]] = {}
    for row in candidates.tolist():
        try:
            content = stored_image(parts[int(split[row])].split.dataset, int(numbers[row]))
        except GpuloadError:  # it is told among those that do not decode
            continue
        found.setdefault(hashlib.sha256(content).digest(), []).append(row)
    digests = np.zeros(len(numbers), np.int64)
    for number, rows in enumerate(found.values(), start=1):
        if len(rows) > 1:
            digests[rows] = number
    return digests


MOST_SHOWN, _MOST_MEMBERS = 60, 8  # groups with pictures, and pictures of each
_LISTED_GROUPS, _LISTED_MEMBERS = 2_000, 20  # in the JSON


def tell_groups(splits: Sequence[Split], found: Found) -> dict[str, Any]:
    """The groups, those between splits first, then those whose labels differ."""
    labels = [split.dataset.labels if "label" in split.dataset.fields else None for split in splits]
    told = [_tell(group, labels) for group in found.groups]
    told.sort(key=lambda entry: (not entry["between_splits"], not entry["labels_differ"], -entry["count"]))
    for place, entry in enumerate(told[:_LISTED_GROUPS]):
        if place < MOST_SHOWN:
            shown = _of_each_split(entry["members"], _MOST_MEMBERS)
            entry["members"] = [describe(splits[n], number) for n, number in shown]
        else:
            entry["members"] = [{"split": splits[n].name, "index": number} for n, number in entry["members"]]
    return {
        "groups": len(told),
        "exact_groups": sum(entry["exact"] for entry in told),
        "between_splits": sum(entry["between_splits"] for entry in told),
        "labels_differ": sum(entry["labels_differ"] for entry in told),
        "images": sum(entry["count"] - 1 for entry in told),
        "leaked": _leaked(splits, found),
        "not_compared": found.left_out,
        "shown": told[:_LISTED_GROUPS],
    }


def _tell(group: Group, labels: Sequence[I64 | None]) -> dict[str, Any]:
    known = {int(of_split[number]) for n, number in group.members if (of_split := labels[n]) is not None}
    return {
        "exact": group.exact,
        "between_splits": len({n for n, _ in group.members}) > 1,
        "labels_differ": len(known) > 1,
        "count": len(group.members),
        "members": _of_each_split(group.members, _LISTED_MEMBERS),
    }


def _of_each_split(members: Sequence[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """At most so many members, some of each split."""
    by_split: dict[int, list[tuple[int, int]]] = {}
    for member in members:
        by_split.setdefault(member[0], []).append(member)
    each = max(1, most // len(by_split))
    return [member for group in by_split.values() for member in group[:each]]


def _leaked(splits: Sequence[Split], found: Found) -> list[dict[str, Any]]:
    """Of each split the number of images that come in the training split, too."""
    trained = training_split(splits).name
    counts = dict.fromkeys((split.name for split in splits if split.name != trained), 0)
    for group in found.groups:
        names = [splits[n].name for n, _ in group.members]
        if trained in names:
            for name in names:
                if name in counts:
                    counts[name] += 1
    return [{"split": name, "images": count} for name, count in counts.items()]
