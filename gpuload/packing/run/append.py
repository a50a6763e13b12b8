"""Adding to a set: the classes of new samples get the numbers that they have there, new classes the next ones."""

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


def fit_listing(listing: Listing, base: Iterable[tuple[str, Manifest]], encoding: Encoding) -> Listing:
    """The listing, with the class numbers of the set that it is added to.

    Raises:
        SourceError: its fields are others than those of the set, or classes have names in one of them only.
    """
    samples, fields, classes = listing.samples, listing.fields, listing.classes
    for split, manifest in base:
        image, *old = manifest.fields
        described = [[(f.name, f.kind, f.member, f.size, f.dtype) for f in some] for some in (old, fields)]
        if described[0] != described[1] or (image.kind == "raw") != (encoding.encode == "raw"):
            raise SourceError(
                f"--append: {split} has the fields {_named((image, *old))}, the new samples have "
                f"{_named((Field('image', 'raw' if encoding.encode == 'raw' else 'image', ''), *fields))}. "
                "Add samples of the same kind, or pack them into another folder"
            )
        merged = []
        for field, before in zip(fields, old, strict=True):
            kind = kind_of(field)
            column = kind.class_column(field)
            if column is None:
                _refuse_other_names(split, field, before)
                merged.append(field)
            elif kind.names_set_classes:
                classes, samples = _merge(samples, column, manifest.classes, classes)
                merged.append(field)
            else:
                names, samples = _merge(samples, column, before.classes, field.classes)
                merged.append(replace(field, classes=names))
        fields = tuple(merged)
    return Listing(samples, fields, classes, listing.rejected, listing.notes, listing.splits)


def _refuse_other_names(split: str, field: Field, before: Field) -> None:
    if field.classes != before.classes:
        raise SourceError(
            f"--append: {field.name!r} has the names {before.classes} in {split}, and {field.classes} in the new samples. "
            "Add samples whose names are the same, in the same order"
        )


def _merge(samples: pa.Table, column: str, old: ClassNames, new: ClassNames) -> tuple[ClassNames, pa.Table]:
    if (old is None) != (new is None):
        named = "the set" if new is None else "the new samples"
        raise SourceError(
            f"--append: the classes of {column!r} have names in {named} only. Give names, or numbers, in both"
        )
    if old is None or new is None:
        return None, samples
    merged = old + tuple(name for name in new if name not in set(old))
    place = {name: number for number, name in enumerate(merged)}
    mapping = np.array([place[name] for name in new], np.int64)
    values = samples.column(column).combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        values = values.chunk(0) if values.num_chunks else pa.array([], values.type)
    if pa.types.is_list(values.type):
        moved = pa.ListArray.from_arrays(values.offsets, pa.array(mapping[values.values.to_numpy()]))
    else:
        moved = pa.array(mapping[values.to_numpy()])
    number = samples.column_names.index(column)
    return merged, samples.set_column(number, samples.schema.field(number), moved)


def _named(fields: Iterable[Field]) -> str:
    return ", ".join(f"{field.name} ({field.kind})" for field in fields)
