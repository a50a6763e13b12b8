"""Tables of classes: how often each comes in each split, and examples of it."""

from collections.abc import Sequence
from typing import Any

from gpuload.pictures.marks import name_of
from gpuload.report.columns import Columns, class_fields
from gpuload.report.samples import describe
from gpuload.report.splits import Split, training_split

_EXAMPLES = 900  # of all classes of a table; at most six of each
_EACH = 6
_MOST_ROWS = 25_000  # classes in a table: those that come most often


def class_tables(splits: Sequence[Split], columns: Sequence[Columns]) -> list[dict[str, Any]]:
    """A table for each field with classes, "label" first; fields of one name are one table."""
    names = dict.fromkeys(field.name for split in splits for field in class_fields(split.dataset))
    return [_table(name, splits, columns) for name in names]


def _table(field: str, splits: Sequence[Split], columns: Sequence[Columns]) -> dict[str, Any]:
    known = [next((f for f in class_fields(split.dataset) if f.name == field), None) for split in splits]
    here = [n for n, found in enumerate(known) if found is not None]
    names = next((found.names for found in known if found is not None and found.names is not None), None)
    numbers = set(range(len(names or ())))
    for n in here:
        numbers |= set(columns[n].counts[field])
    counts = {
        number: [columns[n].counts[field][number] if n in here else 0 for n in range(len(splits))] for number in numbers
    }
    order = sorted(numbers, key=lambda number: (-sum(counts[number]), number))
    each = max(1, min(_EACH, _EXAMPLES // max(1, len(order))))
    rows = []
    for place, number in enumerate(order[:_MOST_ROWS]):
        examples = _examples(field, number, splits, columns, here, each) if place * each < _EXAMPLES else []
        rows.append(
            {
                "number": number,
                "name": name_of(number, names)[:200] if number != -1 else "no class",
                "counts": counts[number],
                "examples": examples,
            }
        )
    trained = splits.index(training_split(splits))
    in_training = sorted(counts[number][trained] for number in numbers if counts[number][trained])
    missing = [
        {
            "split": splits[n].name,
            "count": sum(1 for number in numbers if not counts[number][n]),
            "classes": [name_of(number, names)[:200] for number in order if not counts[number][n]][:200],
        }
        for n in here
    ]
    return {
        "field": field,
        "what": "boxes" if any(f is not None and f.column != field for f in known) else "samples",
        "classes": len(order),
        "left_out": max(0, len(order) - _MOST_ROWS),
        "smallest": in_training[0] if in_training else 0,
        "median": in_training[len(in_training) // 2] if in_training else 0,
        "largest": in_training[-1] if in_training else 0,
        "missing": [entry for entry in missing if entry["count"]],
        "curve": _curve([sum(counts[number]) for number in order]),
        "rows": rows,
    }


def _curve(counts: list[int]) -> list[int]:
    """At most 150 of the counts, evenly spaced, the first and the last among them."""
    step = max(1.0, (len(counts) - 1) / 149)
    return [counts[min(len(counts) - 1, round(place * step))] for place in range(min(len(counts), 150))]


def _examples(
    field: str, number: int, splits: Sequence[Split], columns: Sequence[Columns], here: Sequence[int], each: int
) -> list[dict[str, Any]]:
    """Some samples of a class, evenly over those that are remembered, of the first split that has any."""
    for n in here:
        if found := columns[n].examples[field].get(number):
            step = max(1, len(found) // each)
            return [describe(splits[n], sample) for sample in found[::step][:each]]
    return []
