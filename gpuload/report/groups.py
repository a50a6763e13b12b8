"""Groups of alike images as a report tells them."""

from collections.abc import Sequence
from typing import Any

from gpuload.report.duplicates import Found
from gpuload.report.samples import describe
from gpuload.report.splits import Split, training_split
from gpuload.types import I64

MOST_SHOWN, _MOST_MEMBERS = 60, 8  # groups with pictures, and pictures of each
_LISTED_GROUPS, _LISTED_MEMBERS = 2_000, 20  # in the JSON


def tell_groups(splits: Sequence[Split], found: Found) -> dict[str, Any]:
    """The groups, those between splits first, then those whose labels differ."""
    listed: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []
    between = conflicts = extra = 0
    labels = [_labels(split) for split in splits]
    for group in found.groups:
        in_splits = {split for split, _ in group.members}
        known = {int(labels[split][number]) for split, number in group.members if labels[split] is not None}  # type: ignore[index]
        leaks, differs = len(in_splits) > 1, len(known) > 1
        between += leaks
        conflicts += differs
        extra += len(group.members) - 1
        entry: dict[str, Any] = {
            "exact": group.exact,
            "between_splits": leaks,
            "labels_differ": differs,
            "count": len(group.members),
            "members": _of_each_split(group.members, _LISTED_MEMBERS),
        }
        listed.append(entry)
    listed.sort(key=lambda entry: (not entry["between_splits"], not entry["labels_differ"], -entry["count"]))
    for entry in listed[:_LISTED_GROUPS]:
        members = entry["members"]
        if len(shown) < MOST_SHOWN:
            samples = [describe(splits[n], number) for n, number in _of_each_split(members, _MOST_MEMBERS)]
            shown.append({**entry, "members": samples})
        else:
            shown.append({**entry, "members": [{"split": splits[n].name, "index": number} for n, number in members]})
    leaked = _leaked(splits, found)
    return {
        "groups": len(found.groups),
        "exact_groups": sum(group.exact for group in found.groups),
        "between_splits": between,
        "labels_differ": conflicts,
        "images": extra,
        "leaked": leaked,
        "not_compared": found.left_out,
        "shown": shown,
    }


def _of_each_split(members: Sequence[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """At most so many members, some of each split."""
    by_split: dict[int, list[tuple[int, int]]] = {}
    for member in members:
        by_split.setdefault(member[0], []).append(member)
    each = max(1, most // len(by_split))
    return [member for group in by_split.values() for member in group[:each]]


def _labels(split: Split) -> I64 | None:
    if "label" not in split.dataset.fields:
        return None
    return split.dataset.labels


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
