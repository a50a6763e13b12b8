"""Appends to a set: the classes of new samples get the numbers that they have in the set, new classes the next ones."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from gpuload.disk import Manifest
from gpuload.errors import SourceError
from gpuload.fields.field import Field
from gpuload.fields.registry import kind_of
from gpuload.packing.options import Encoding
from gpuload.sources import Listing
from gpuload.types import ClassNames


def match_listing(listing: Listing, base: Iterable[tuple[str, Manifest]], encoding: Encoding) -> Listing:
    """The listing, with the class numbers of the set to which it is appended.

    base: name and manifest of each split of the set.

    Raises:
        SourceError: its fields differ from those of the set, or only one of the two names its classes.
    """
    samples, fields, classes = listing.samples, listing.fields, listing.classes
    for split, manifest in base:
        image, *old = manifest.fields
        old_fields, new_fields = ([(f.name, f.kind, f.member, f.size, f.dtype) for f in fs] for fs in (old, fields))
        if manifest.pixels != encoding.pixels:
            raise SourceError(
                f"--append: {split} holds images of mode {manifest.pixels.mode}, and --mode is {encoding.pixels.mode}. "
                f"Give --mode {manifest.pixels.mode}, or pack them into another folder"
            )
        if old_fields != new_fields or (image.kind == "raw") != (encoding.encode == "raw"):
            raise SourceError(
                f"--append: {split} has the fields {_names((image, *old))}, the new samples have "
                f"{_names((Field('image', 'raw' if encoding.encode == 'raw' else 'image', ''), *fields))}. "
                "Append samples with the same fields, or pack them into another folder"
            )
        merged = []
        for field, old_field in zip(fields, old, strict=True):
            kind = kind_of(field)
            column = kind.class_column(field)
            if column is None:
                _require_same_names(split, field, old_field)
                merged.append(field)
            elif kind.names_set_classes:
                classes, samples = _merge_classes(samples, column, manifest.classes, classes)
                merged.append(field)
            else:
                names, samples = _merge_classes(samples, column, old_field.classes, field.classes)
                merged.append(replace(field, classes=names))
        fields = tuple(merged)
    return Listing(samples, fields, classes, listing.rejected, listing.notes, listing.splits)


def _require_same_names(split: str, field: Field, old: Field) -> None:
    if field.classes != old.classes:
        raise SourceError(
            f"--append: {field.name!r} has the names {old.classes} in {split}, and {field.classes} in the new "
            "samples. Append samples with the same names in the same order"
        )


def _merge_classes(samples: pa.Table, column: str, old: ClassNames, new: ClassNames) -> tuple[ClassNames, pa.Table]:
    """The names of both, old ones first, and the samples with the numbers of `column` changed accordingly."""
    if (old is None) != (new is None):
        named = "the set" if new is None else "the new samples"
        raise SourceError(
            f"--append: the classes of {column!r} have names only in {named}. Give names in both, or numbers in both"
        )
    if old is None or new is None:
        return None, samples
    merged = old + tuple(name for name in new if name not in set(old))
    number_of = {name: number for number, name in enumerate(merged)}
    mapping = np.array([number_of[name] for name in new], np.int64)
    values = samples.column(column).combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        values = values.chunk(0) if values.num_chunks else pa.array([], values.type)
    if pa.types.is_list(values.type):
        renumbered = pa.ListArray.from_arrays(values.offsets, pa.array(mapping[values.values.to_numpy()]))
    else:
        renumbered = pa.array(mapping[values.to_numpy()])
    position = samples.column_names.index(column)
    return merged, samples.set_column(position, samples.schema.field(position), renumbered)


def _names(fields: Iterable[Field]) -> str:
    return ", ".join(f"{field.name} ({field.kind})" for field in fields)
