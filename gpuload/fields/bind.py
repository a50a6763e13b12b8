"""Binds a requested field to data sets, or says why it cannot be bound."""

from collections.abc import Sequence

from gpuload.errors import ArgumentError
from gpuload.fields.captions import BoundText
from gpuload.fields.computed import BoundBucket, BoundOriginalSize, BoundTopLeft
from gpuload.fields.field import Field
from gpuload.fields.integers import BoundIntegers
from gpuload.fields.kind import FieldSpec, describe
from gpuload.fields.registry import kind_of
from gpuload.fields.rows import BoundField, DatasetView, PixelField

# Fields that every sample has without their being packed.
COMPUTED = ("key", "index", "dataset")

# The same, but a packed field of the name takes precedence: there are older sets with such fields.
_UNLESS_PACKED: dict[str, BoundField] = {
    field.name: field for field in (BoundBucket(), BoundOriginalSize(), BoundTopLeft())
}


def bind_field(spec: str | FieldSpec, datasets: Sequence[DatasetView]) -> BoundField | PixelField:
    """The field of one data set, or of several that are mixed.

    spec: a name stands for the default form of the field's kind: int64 (N,) class numbers, a `Target` whose sign never
        changes, `MultiHot`, str, parsed JSON, stacked arrays, or `Boxes`, `Keypoints` and `Mask` with their defaults.
        "key", "index" and "dataset" exist without being packed; so do "bucket", "original_size" and "crop_top_left",
        where nothing was packed under these names.

    Raises:
        ArgumentError: it was not packed (the message lists the packed fields), its kind differs from the spec's, or its
            values mean different things in the data sets.
    """
    name = spec if isinstance(spec, str) else spec.name
    _check_own_name(name, datasets)
    if spec in COMPUTED:
        return BoundText(name) if name == "key" else BoundIntegers(name)
    if isinstance(spec, str) and spec in _UNLESS_PACKED and not any(name in dataset.fields for dataset in datasets):
        return _UNLESS_PACKED[spec]
    field = _common_field(name, datasets)
    if isinstance(spec, str):
        return kind_of(field).bind(None, field, datasets)
    _check_kind(spec, field, datasets)
    return kind_of(field).bind(spec, field, datasets)


def _check_kind(spec: FieldSpec, field: Field, datasets: Sequence[DatasetView]) -> None:
    if field.kind not in (spec.kind, *spec.other_kinds):
        fitting = [repr(other.name) for other in datasets[0].fields.values() if other.kind == spec.kind]
        raise ArgumentError(
            f"{describe(spec)}: expected a field of kind {spec.kind!r}, {field.name!r} in {datasets[0].folder} has "
            f"kind {field.kind!r}. Request {field.name!r} by its name, or a field of kind {spec.kind!r} "
            f"({', '.join(fitting) or 'there is none'})"
        )


def _check_own_name(name: str, datasets: Sequence[DatasetView]) -> None:
    packed = [dataset for dataset in datasets if name in COMPUTED and name in dataset.fields]
    if packed:
        raise ArgumentError(
            f"{packed[0].folder}: has a packed field {name!r}, a name that gpuload reserves for the {name} of each "
            "sample. Pack it under another name"
        )


def _common_field(name: str, datasets: Sequence[DatasetView]) -> Field:
    """The field of this name. All data sets must have it with the same meaning; how it is stored may differ."""
    fields = [dataset.require_field(name) for dataset in datasets]
    kind = kind_of(fields[0])
    meanings = [kind.meaning(field, dataset.classes) for field, dataset in zip(fields, datasets, strict=True)]
    for dataset, meaning in zip(datasets, meanings, strict=True):
        for what, found in meaning.items():
            if found != meanings[0][what]:
                raise ArgumentError(
                    f"{dataset.folder}: its field {name!r} has {what} {found!r}, that of {datasets[0].folder} has "
                    f"{meanings[0][what]!r}. Mix data sets whose fields are alike, or leave {name!r} out"
                )
    return fields[0]
