"""Image sizes and class counts of a split, from the index alone."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.disk.dataset import Dataset
from gpuload.fields.registry import kind_of
from gpuload.fields.rows import flat, lengths_of, rows_of
from gpuload.pictures import name_of
from gpuload.report.samples import Split, describe, training_split
from gpuload.types import I32, I64, ClassNames

# Rows whose sizes are kept, 24 bytes each. Larger splits are sampled by evenly spaced shards.
MOST_ROWS = 5_000_000
_EXAMPLES = 24  # kept for each class and split


@dataclass(frozen=True)
class ClassField:
    """A field with classes. column: of the index. names: by number, where they are known."""

    name: str
    column: str
    names: ClassNames


@dataclass(frozen=True)
class Columns:
    """Of the samples at `numbers`, int64 (N,), in stored order: int32 widths and heights in pixels, and int64 bytes of
    the stored image.

    counts: of each class number how often it comes, and examples: some numbers of samples with it; both for each field
    with classes, over all samples.
    """

    numbers: I64
    widths: I32
    heights: I32
    bytes: I64
    counts: dict[str, Counter[int]]
    examples: dict[str, dict[int, list[int]]]


def class_fields(dataset: Dataset) -> list[ClassField]:
    """The fields that have classes, "label" first."""
    found = []
    for field in dataset.fields.values():
        kind = kind_of(field)
        if (column := kind.class_column(field)) is not None:
            found.append(ClassField(field.name, column, kind.class_names(field, dataset.classes)))
    return sorted(found, key=lambda field: field.name != "label")


def read_columns(dataset: Dataset) -> Columns:
    """One pass over the index, shard by shard."""
    dataset.fetch_rows()
    fields = class_fields(dataset)
    parts: list[tuple[I64, I32, I32, I64]] = []
    counts = {field.name: Counter[int]() for field in fields}
    examples: dict[str, dict[int, list[int]]] = {field.name: {} for field in fields}
    kept = set(_shards_kept(dataset))
    selected = dataset.stored_samples(np.arange(len(dataset)))
    for shard, (first, end) in enumerate(zip(dataset.first_samples[:-1], dataset.first_samples[1:], strict=True)):
        low, high = np.searchsorted(selected, [first, end])
        numbers = selected[low:high]
        if not len(numbers):
            continue
        rows = dataset.rows(shard).take(numbers - first)
        for field in fields:
            column = rows.column(field.column)
            if hasattr(column, "value_lengths"):
                values, owners = flat(column), rows_of(lengths_of(column))
            else:
                values, owners = column.fill_null(-1).to_numpy(zero_copy_only=False), np.arange(len(numbers))
            _count(values, numbers[owners], counts[field.name], examples[field.name])
        if shard in kept:
            width, height, size = (rows.column(name).to_numpy() for name in ("width", "height", "image_bytes"))
            parts.append((numbers, width, height, size))
    if not parts:
        empty = np.empty(0, np.int64)
        parts = [(empty, empty.astype(np.int32), empty.astype(np.int32), empty)]
    numbers, widths, heights, sizes = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Columns(numbers, widths, heights, sizes, counts, examples)


def _count(values: I64, numbers: I64, counts: Counter[int], examples: dict[int, list[int]]) -> None:
    """Adds the classes of one shard. values: class numbers; numbers: the sample of each."""
    order = np.argsort(values, kind="stable")
    classes, starts = np.unique(values[order], return_index=True)
    ends = [*starts[1:].tolist(), len(order)]
    for number, start, end in zip(classes.tolist(), starts.tolist(), ends, strict=True):
        counts[number] += end - start
        known = examples.setdefault(number, [])
        if len(known) < _EXAMPLES:
            samples = np.unique(numbers[order[start:end]])
            known += samples[np.linspace(0, len(samples) - 1, min(4, len(samples))).astype(int)].tolist()


def _shards_kept(dataset: Dataset) -> list[int]:
    shards, samples = len(dataset.shard_paths), int(dataset.first_samples[-1])
    if samples <= MOST_ROWS:
        return list(range(shards))
    spaced: list[int] = np.unique(
        np.linspace(0, shards - 1, max(1, shards * MOST_ROWS // samples)).astype(int)
    ).tolist()
    return spaced


_SHOWN = 900  # of all classes of a table; at most six of each
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
    each = max(1, min(_EACH, _SHOWN // max(1, len(order))))
    rows = []
    for place, number in enumerate(order[:_MOST_ROWS]):
        examples = _examples(field, number, splits, columns, here, each) if place * each < _SHOWN else []
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
