"""Samples that are appended to a set: their fields are those of the set, and their class numbers become the set's."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from gpuload.checks import shown
from gpuload.disk import Manifest
from gpuload.errors import SourceError, some_of
from gpuload.fields.field import Field
from gpuload.fields.images import is_raw
from gpuload.fields.picture_lists import PicturesKind
from gpuload.fields.pictures import PictureKind
from gpuload.fields.registry import kind_of
from gpuload.packing.extend_joined import check_extendable, have_one_form, joined_fields
from gpuload.packing.options import Encoding, PackOptions
from gpuload.sources.listing import Listing
from gpuload.sources.numbering import renumbered
from gpuload.types import ClassNames


def match_listing(
    listing: Listing, base: Mapping[str, Manifest], options: PackOptions
) -> Listing:
    """The listing, with the class numbers of the set to which it is appended, and its joined fields apart.

    Args:
        listing: Of the new samples.
        base: Manifest of each split of the set, by name.
        options: Of the run.

    Raises:
        SourceError: its fields differ from those of the set, only one of the two names its classes, or splits number
            them differently.
    """
    names = [name for name, _ in options.shares]
    if listing.splits is not None:
        names = [*listing.splits.names]
    extended = {name: base[name] for name in names if name in base}
    listing = _with_joined_apart(listing, extended)
    for split, manifest in base.items():
        _check_appendable(split, manifest, listing, options)
    for split, manifest in extended.items():
        check_extendable(split, manifest, (*listing.fields, *listing.joined))
    # The classes of splits that get no sample have a part in it unless they contradict those of the others.
    for splits in (base, extended):
        matched = listing
        for manifest in splits.values():
            matched = _merge_fields(matched, manifest)
        if all(_keeps_numbers(matched, manifest) for manifest in extended.values()):
            return matched
    raise SourceError(
        f"--append: {some_of([*extended])} number their classes differently, as after a join to one of them. Append to "
        "each alone, such as OUT/train"
    )


def _with_joined_apart(listing: Listing, extended: Mapping[str, Manifest]) -> Listing:
    """The listing, whose fields that were joined to the set are apart from those in shards.

    Args:
        extended: Manifest of each split that gets samples, by name.

    Raises:
        SourceError: a field was joined to only some of these splits, or has another form there.
    """
    apart = dict[str, Field]()
    for manifest in extended.values():
        packed = {field.name for field in manifest.fields}
        names = joined_fields(manifest).keys() - packed
        apart |= {field.name: field for field in listing.fields if field.name in names}
    for split, manifest in extended.items():
        joined = joined_fields(manifest)
        for name, field in apart.items():
            there = joined.get(name)
            if there is None:
                raise SourceError(
                    f"--append: {name!r} was joined to other splits of the set, and not to {split}. Join it there, "
                    "too, or append to each split alone, such as OUT/train"
                )
            if not have_one_form(field, there):
                raise SourceError(
                    f"--append: the joined field {name!r} of {split} is {_values_of(there)}, and that of the new "
                    f"samples {_values_of(field)}. Give such values, or leave it out and join it afterwards"
                )
    return replace(
        listing,
        fields=tuple(field for field in listing.fields if field.name not in apart),
        joined=(*apart.values(),),
    )


def _values_of(field: Field) -> str:
    """The kind of a field, and how many values it has, for messages."""
    return f"{field.kind} of {field.size}" if field.size else field.kind


def _keeps_numbers(listing: Listing, manifest: Manifest) -> bool:
    """Whether each class has the number that it has in a split."""
    pairs = [(listing.classes, manifest.classes)]
    for field in (*listing.fields, *listing.joined):
        there = _field_in(manifest, field)
        if there is not None:
            pairs.append((field.classes, there.classes))
    return all(
        now is None or now[: len(old or ())] == (old or ()) for now, old in pairs
    )


def _field_in(manifest: Manifest, field: Field) -> Field | None:
    """The field of a split that holds such values: the joined one, if it is of the same form, or the packed one."""
    joined = joined_fields(manifest).get(field.name)
    if joined is not None and have_one_form(field, joined):
        return joined
    packed = {packed.name: packed for packed in manifest.fields[1:]}
    return packed.get(field.name)


def _check_appendable(
    split: str, manifest: Manifest, listing: Listing, encoding: Encoding
) -> None:
    """Raises SourceError if the samples cannot be appended to a split, which has this manifest."""
    if not manifest.upright:
        raise SourceError(
            f"--append: {split} is an index of shards that others packed, whose images a loader turns as Exif "
            "says. Pack the new samples into a folder of their own, and mix the sets"
        )
    if manifest.image.name != listing.image:
        raise SourceError(
            f"--append: the first picture of {split} is {manifest.image.name!r}, that of the new samples "
            f"{listing.image!r}. Append samples with the same fields, or pack them into another folder"
        )
    kind = "raw" if manifest.is_raw else "image"
    before = _described(kind, manifest.pixels.mode, manifest.fields[1:])
    new_kind = "raw" if encoding.encode == "raw" else "image"
    now = _described(new_kind, encoding.pixels.mode, listing.fields)
    if before != now:
        raise SourceError(
            f"--append: {split} has the fields {before}, the new samples have {now}. Append samples with the same "
            "fields, or pack them into another folder"
        )


def _merge_fields(listing: Listing, manifest: Manifest) -> Listing:
    """The listing, with the class numbers of a split to which it is appended.

    Raises:
        SourceError: only one of the two names its classes, or gives them COCO's numbers.
    """
    samples = listing.samples
    classes = listing.classes
    fields = []
    for field in (*listing.fields, *listing.joined):
        old_field = _field_in(manifest, field)
        if old_field is None:
            fields.append(field)
            continue
        if kind_of(field).names_set_classes:
            classes, samples = _merge_classes(samples, field, manifest.classes, classes)
        else:
            names, samples = _merge_classes(
                samples, field, old_field.classes, field.classes
            )
            category_ids = _merge_ids(names, field, old_field)
            field = replace(field, classes=names, category_ids=category_ids)
        fields.append(replace(field, instances_of=old_field.instances_of))
    in_shards = len(listing.fields)
    return replace(
        listing,
        samples=samples,
        fields=tuple(fields[:in_shards]),
        joined=tuple(fields[in_shards:]),
        classes=classes,
    )


def _described(image: str, mode: str, fields: Iterable[Field]) -> str:
    """Fields in a message; the same only for those that can be appended to each other."""
    texts = [f"image ({image} {mode})"]
    texts += [f"{field.name} ({_form_of(field)})" for field in fields]
    return ", ".join(texts)


def _form_of(field: Field) -> str:
    """The kind of a field, and what tells its values from those of others of this kind."""
    parts = (field.kind, _described_member(field), field.size, field.dtype)
    return " ".join(str(part) for part in parts if part)


def _described_member(field: Field) -> str:
    """The extension of its members; of pictures, where it follows from each file, whether they are pixels."""
    if field.kind not in (PictureKind.name, PicturesKind.name):
        return field.member
    return "npy" if is_raw(field) else ""


def _merge_classes(
    samples: pa.Table, field: Field, old: ClassNames, new: ClassNames
) -> tuple[ClassNames, pa.Table]:
    """The names of both, old ones first, and the samples with the field's class numbers changed accordingly."""
    column = kind_of(field).class_column(field)
    if (old is None) != (new is None) or (column is None and old != new):
        raise SourceError(
            f"--append: {field.name!r} has the names {shown(old)} in the set, and {shown(new)} in the new samples. "
            "Give names in both, or numbers in both; points in the same order"
        )
    if old is None or new is None or column is None:
        return old, samples
    merged = old + tuple(name for name in new if name not in set(old))
    number_of = {name: number for number, name in enumerate(merged)}
    mapping = np.array([number_of[name] for name in new], np.int64)
    values = renumbered(pa.concat_arrays(samples.column(column).chunks), mapping)
    position = samples.column_names.index(column)
    return merged, samples.set_column(position, samples.schema.field(position), values)


def _merge_ids(names: ClassNames, field: Field, old: Field) -> tuple[int, ...] | None:
    """COCO's numbers of all classes; None where the set has none.

    Args:
        names: Of the classes of both.
        field: Of the new samples.
        old: Of the set.

    Raises:
        SourceError: a class has no number, or another one than in the set.
    """
    if old.category_ids is None:
        return None
    before = dict(zip(old.classes or (), old.category_ids, strict=True))
    new = dict(zip(field.classes or (), field.category_ids or (), strict=False))
    for name in new.keys() & before.keys():
        if new[name] != before[name]:
            fault = f"has the id {before[name]} in the set, and {new[name]} in the new samples"
            raise SourceError(
                f"--append: the category {name!r} of {field.name!r} {fault}. Correct one of them"
            )
    added = (names or ())[len(old.category_ids) :]
    if lacking := [name for name in added if name not in new]:
        fault = f"has classes without an id ({some_of(lacking)}), those of the set have one of COCO's"
        raise SourceError(
            f"--append: {field.name!r} {fault}. Append from COCO's JSON, or pack into another folder"
        )
    return old.category_ids + tuple(new[name] for name in added)
