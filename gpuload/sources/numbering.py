"""Numbers of classes that the user gives: `--classes FILE`, a name in each line, that of class 0 first."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from gpuload.errors import SourceError, some_of
from gpuload.fields.arrow_arrays import array_of
from gpuload.fields.field import Field
from gpuload.fields.registry import kind_of
from gpuload.fields.rows import numbers_of
from gpuload.sources.files import decode_text, read_file, readable
from gpuload.sources.listing import Listing
from gpuload.types import I64, ClassNames


def read_classes(path: str | Path) -> tuple[str, ...]:
    """The names in a file, one a line, that of class 0 first.

    Raises:
        SourceError: it cannot be read, a line is empty, or a name comes twice.
    """
    with readable(path, "names of classes, one a line", UnicodeDecodeError, ValueError):
        lines = decode_text(read_file(path)).rstrip().splitlines()
        names = tuple(line.strip() for line in lines)
        if not names or not all(names):
            raise ValueError("a line is empty")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{some_of(twice)} comes twice")
    return names


def renumber(listing: Listing, names: tuple[str, ...], title: str) -> Listing:
    """The listing with the classes of all fields numbered anew.

    Classes that no sample has may be missing among the names of the source, or in the file.

    Args:
        listing: Of a source that numbers its classes otherwise.
        names: Of the classes, by their new numbers.
        title: Of the source, for messages.

    Raises:
        SourceError: the source has numbers without names, or a class that samples have is not in the file.
    """
    samples = listing.samples
    classes = listing.classes
    fields = list[Field]()
    for field in listing.fields:
        kind = kind_of(field)
        column = kind.class_column(field)
        before = kind.class_names(field, listing.classes)
        if column is None or (before is None and kind.names_set_classes is False):
            fields.append(field)
            continue
        if before is None:
            raise SourceError(
                f"{title}: the classes of {field.name!r} are numbers without names, which --classes cannot order. "
                "Leave it out"
            )
        place = samples.column_names.index(column)
        values = pa.chunked_array(samples.column(column)).combine_chunks()
        new_values = renumbered(values, _numbers(values, before, names, title))
        samples = samples.set_column(place, samples.schema.field(place), new_values)
        if kind.names_set_classes:
            classes = names
        ids = _ids(field, before, names)
        names_of_field: ClassNames = None if kind.names_set_classes else names
        fields.append(replace(field, classes=names_of_field, category_ids=ids))
    return replace(listing, samples=samples, fields=tuple(fields), classes=classes)


def _numbers(
    values: pa.Array, before: tuple[str, ...], names: tuple[str, ...], title: str
) -> I64:
    """int64 (classes,): the new number of each class; -1 for those that no sample has."""
    number_of = {name: number for number, name in enumerate(names)}
    numbers = np.array([number_of.get(name, -1) for name in before], np.int64)
    flat = _flat(values)
    used = np.unique(flat)
    lacking = [before[number] for number in used.tolist() if numbers[number] < 0]
    if lacking:
        raise SourceError(
            f"{title}: has the classes {some_of(lacking)}, which --classes does not name. Add them to the file"
        )
    return numbers


def _flat(values: pa.Array) -> I64:
    flat = values.flatten() if pa.types.is_list(values.type) else values
    return numbers_of(flat).astype(np.int64)


def renumbered(values: pa.Array, numbers: I64) -> pa.Array:
    """Class numbers, or lists of them, replaced by others.

    Args:
        values: Of the samples.
        numbers: int64 (classes,), the new number of each.
    """
    flat = numbers[_flat(values)] if len(_flat(values)) else np.zeros(0, np.int64)
    if pa.types.is_list(values.type):
        inner = array_of(flat, values.type.value_type)
        return pa.ListArray.from_arrays(values.offsets, inner, type=values.type)
    return array_of(flat, values.type)


def _ids(
    field: Field, before: tuple[str, ...], names: tuple[str, ...]
) -> tuple[int, ...]:
    """The number that each class has in the source: COCO's, or else its place there; -1 for one that it lacks."""
    numbers = field.category_ids or range(len(before))
    of_name: Mapping[str, int] = dict(zip(before, numbers, strict=True))
    return tuple(of_name.get(name, -1) for name in names)
