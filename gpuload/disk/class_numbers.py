"""The class numbers that occur in a set, and notes on those that do not."""

from collections.abc import Iterable, Mapping, Set

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuload.counted import counted
from gpuload.disk.manifest import Manifest
from gpuload.errors import some_of
from gpuload.fields.field import Field
from gpuload.fields.registry import kind_of

_MOST = 1_000_000  # numbers that are looked through for examples
_NAME = 60  # characters of a class name that are shown


def class_numbers(fields: Iterable[Field], rows: Iterable[pa.RecordBatch]) -> dict[str, set[int]]:
    """The distinct class numbers of the samples in these rows of an index, by field; of those that have classes."""
    columns = {field.name: column for field in fields if (column := kind_of(field).class_column(field))}
    numbers: dict[str, set[int]] = {name: set() for name in columns}
    for batch in rows if columns else ():
        for name, column in columns.items():
            values = batch.column(column)
            flat = values.flatten() if pa.types.is_list(values.type) else values
            numbers[name].update(np.asarray(pc.unique(flat)).tolist())
    return numbers


def notes_on_numbers(numbers: Mapping[str, Set[int]], manifest: Manifest) -> list[str]:
    """A sentence for each field that has class numbers without a sample, up to its largest or its last name."""
    notes = []
    for field in manifest.fields:
        if not (found := numbers.get(field.name)):
            continue
        names = kind_of(field).class_names(field, manifest.classes)
        count = max(found) + 1 if names is None else len(names)
        lacking = np.setdiff1d(np.arange(min(count, _MOST)), list(found))
        if number := count - len(found):
            shown = some_of([one if names is None else names[one][:_NAME] for one in lacking[:3].tolist()])
            classes = counted(count, "class", "classes")
            notes.append(f"{field.name}: {number:,} of {classes} have no sample, as {shown}")
    return notes
