"""From a field as it is asked for to one that can be taken out of batches, or to a message why it cannot."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

from gpuload.errors import ArgumentError
from gpuload.fields.arrays import BoundArray, BoundTokens
from gpuload.fields.boxes import BoundBoxes
from gpuload.fields.classes import BoundMultiHot, BoundOneHot
from gpuload.fields.field import Field
from gpuload.fields.numbers import BoundNumbers, BoundTarget
from gpuload.fields.rows import BoundField, PixelField
from gpuload.fields.spec import Boxes, FieldSpec, Mask, MultiHot, OneHot, Target, Tokens, describe
from gpuload.fields.texts import BoundJson, BoundText

if TYPE_CHECKING:
    from gpuload.disk.dataset import Dataset

# What every sample has besides its packed fields.
COMPUTED = ("key", "index", "dataset")


def bind_field(spec: str | FieldSpec, datasets: "Sequence[Dataset]") -> BoundField | PixelField:
    """The field of one data set, or of several that are mixed.

    spec: a name stands for the plain form of the field's kind: class numbers int64 (N,), a `Target` that does not turn,
    `MultiHot`, str, parsed JSON, arrays stacked, `Boxes` and `Mask` with their defaults. "key", "index" and "dataset"
    are there without being packed.

    Raises:
        ArgumentError: it was not packed (names those that were), is of another kind than the spec, or differs between
            the data sets in what its values mean.
    """
    if not isinstance(spec, (str, *get_args(FieldSpec))):
        known = ", ".join(f"{kind.__name__}(…)" for kind in get_args(FieldSpec))
        raise ArgumentError(f"fields: expected names and {known}, found {spec!r}")
    name = spec if isinstance(spec, str) else spec.name
    _check_own_name(name, datasets)
    if spec in COMPUTED:
        return BoundText(name) if name == "key" else BoundNumbers(name)
    field = _common_field(name, datasets)
    if not isinstance(spec, str):
        _check_kind(spec, field, datasets)
        return _bind(spec, field, datasets)
    if field.kind in ("image", "raw"):
        return PixelField(name, "image")
    if field.kind == "class":
        return BoundNumbers(name)
    if field.kind == "caption":
        return BoundText(name)
    if field.kind == "json":
        return BoundJson(name, tuple(datasets))
    if field.kind == "array":
        return BoundArray(field, datasets)
    plain = {"target": Target, "labels": MultiHot, "boxes": Boxes, "mask": Mask}[field.kind]
    return _bind(plain(name), field, datasets)


def _bind(spec: FieldSpec, field: Field, datasets: "Sequence[Dataset]") -> BoundField | PixelField:
    if isinstance(spec, OneHot):
        return BoundOneHot(spec, datasets[0].classes, datasets)
    if isinstance(spec, MultiHot):
        return BoundMultiHot(spec, field.classes, datasets)
    if isinstance(spec, Target):
        return BoundTarget(spec, field)
    if isinstance(spec, Tokens):
        return BoundTokens(spec, field, datasets)
    if isinstance(spec, Boxes):
        return BoundBoxes(spec, field)
    return PixelField(spec.name, "mask", spec.fill)


def _check_kind(spec: FieldSpec, field: Field, datasets: "Sequence[Dataset]") -> None:
    if field.kind != spec.kind:
        fitting = [repr(other.name) for other in datasets[0].fields.values() if other.kind == spec.kind]
        raise ArgumentError(
            f"{describe(spec)}: {datasets[0].folder} has {field.name!r} as a field of kind {field.kind!r}, expected "
            f"{spec.kind!r} (there {', '.join(fitting) or 'is none'}). Ask for {field.name!r} as it is"
        )


def _check_own_name(name: str, datasets: "Sequence[Dataset]") -> None:
    packed = [dataset for dataset in datasets if name in COMPUTED and name in dataset.fields]
    if packed:
        raise ArgumentError(
            f"{packed[0].folder}: has a packed field {name!r}, which is also what gpuload calls a sample's own {name}. "
            "Pack it under another name"
        )


def _common_field(name: str, datasets: "Sequence[Dataset]") -> Field:
    """The field of this name, which all data sets must have with the same meaning; how it is stored may differ."""
    fields = [dataset.require_field(name) for dataset in datasets]
    if fields[0].kind in ("image", "raw"):
        return fields[0]
    meanings = [_meaning(field, dataset) for field, dataset in zip(fields, datasets, strict=True)]
    for dataset, meaning in zip(datasets, meanings, strict=True):
        for what, found in meaning.items():
            if found != meanings[0][what]:
                raise ArgumentError(
                    f"{dataset.folder}: its field {name!r} has {what} {found!r}, that of {datasets[0].folder} "
                    f"{meanings[0][what]!r}. Mix data sets whose fields are alike, or leave {name!r} out"
                )
    return fields[0]


def _meaning(field: Field, dataset: "Dataset") -> dict[str, object]:
    return {
        "kind": field.kind,
        "size": field.size,
        "dtype": field.dtype,
        "classes": dataset.classes if field.kind == "class" else field.classes,
    }
