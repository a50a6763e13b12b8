"""All kinds of fields, and what binds a requested field to data sets; fields that are computed instead of packed."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from gpuload.errors import ArgumentError, FormatError, MissingPackageError
from gpuload.fields.boxes import BoxesKind
from gpuload.fields.captions import CaptionKind, JsonKind
from gpuload.fields.field import Field
from gpuload.fields.images import IMAGE_KIND, RAW_KIND, MaskKind
from gpuload.fields.instances import InstancesKind
from gpuload.fields.keypoints import KeypointsKind
from gpuload.fields.kind import FieldSpec, Kind
from gpuload.fields.motion import Motion
from gpuload.fields.numbers import ArrayKind, ClassKind, LabelsKind
from gpuload.fields.picture_lists import PICTURES_KIND
from gpuload.fields.pictures import PictureKind
from gpuload.fields.rows import BoundField, DatasetView, PixelField, Rows, Value
from gpuload.fields.targets import IntegersKind, TargetKind
from gpuload.machine.plugins import plugins
from gpuload.types import I64, Bools

# In the order in which a table's fields are stored, and in which they are asked whether they claim a value
# (`Kind.claims`): JSON, which takes any value, is last.
KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        IMAGE_KIND,
        RAW_KIND,
        ClassKind(),
        TargetKind(),
        IntegersKind(),
        LabelsKind(),
        CaptionKind(),
        BoxesKind(),
        InstancesKind(),
        KeypointsKind(),
        MaskKind(),
        PictureKind(),
        PICTURES_KIND,
        ArrayKind(),
        JsonKind(),
    )
}


@cache
def all_kinds() -> Mapping[str, Kind]:
    """`KINDS` with those that other packages add by the entry point `gpuload.kinds`, which are asked first.

    One that cannot be imported is left out with a warning.
    """
    added: dict[str, Kind] = {}
    for name, plugin in plugins("gpuload.kinds").items():
        try:
            added[name] = plugin.load()()
        except MissingPackageError as error:
            warnings.warn(str(error), stacklevel=2)
    return {**added, **KINDS}


def kind_of(field: Field) -> Kind:
    """The kind of a field.

    Raises:
        FormatError: the kind is unknown to this version of gpuload, and no package adds it.
    """
    if field.kind not in KINDS:
        if field.kind in all_kinds():
            return all_kinds()[field.kind]
        raise FormatError(
            f"field {field.name!r} has kind {field.kind!r}; this gpuload knows {', '.join(KINDS)}. "
            "Was the set packed by a newer gpuload? Upgrade gpuload"
        )
    return KINDS[field.kind]


def draw_fields(
    picture: Image.Image,
    fields: Iterable[Field],
    look: Callable[[Field], Mapping[str, Any]],
) -> Image.Image:
    """A picture with fields drawn on it.

    Args:
        picture: RGB; it may be drawn on in place.
        fields: Those of kinds that are drawn.
        look: Gives what `Kind.draw` takes.
    """
    for field in sorted(fields, key=lambda field: not kind_of(field).lies_beneath):
        picture = kind_of(field).draw(field, picture, look(field))
    return picture


def index_schema(fields: tuple[Field, ...]) -> pa.Schema:
    """The columns of `index.arrow`: key, source, width, height, then those of each field.

    Args:
        fields: Of the set, in order.
    """
    text = pa.large_string()
    side = pa.int32()
    columns = [("key", text), ("source", text), ("width", side), ("height", side)]
    for field in fields:
        columns += [(field.offset_column, pa.int64()), (field.bytes_column, pa.int64())]
        columns += kind_of(field).columns(field).items()
    return pa.schema(columns)


class Computed(BoundField):
    """A field that is not packed: its values are what the spec, a function, makes of the rows."""

    def values(self, rows: Rows) -> Value:
        return self.spec(rows)


def _bucket(rows: Rows) -> I64:
    """int64 (N,): the number of the batch's bucket."""
    assert rows.bucket is not None  # checked when the loader was constructed
    return np.full(len(rows), rows.bucket)


def _top_left(rows: Rows) -> Value:
    """int64 (N, 2): where the output begins, y and x, in the whole image, scaled and flipped as the output is.

    So it is counted in pixels of the output; negative where the image is padded.
    """

    def of(motion: Motion) -> I64:
        begin, end = motion.crops.edges
        before = np.where(motion.crops.flipped, rows.sizes - end, begin)
        return np.rint(
            before * motion.crops.own_sizes(motion.size) / np.maximum(end - begin, 1e-6)
        ).astype(np.int64)

    return rows.per_view(of)


def _pixel_mask(rows: Rows) -> Value:
    """bool (N, height, width): True where the image is, False where it is padded. Transforms do not move it."""
    sources = rows.sizes

    def shown_part(motion: Motion) -> Bools:
        shown = np.zeros((len(sources), *motion.size), np.bool_)
        for row, (top, first_column, bottom, end_column) in enumerate(
            motion.crops.covered(motion.size, sources).tolist()
        ):
            shown[row, top:bottom, first_column:end_column] = True
        return shown

    return rows.per_view(shown_part)


_SIZES = ("height", "width")
# Fields that every sample has without their being packed, and the columns that they need.
COMPUTED: dict[str, tuple[Callable[[Rows], Value], tuple[str, ...]]] = {
    "key": (lambda rows: rows.columns["key"].to_pylist(), ("key",)),
    "index": (lambda rows: np.array(rows.columns["index"], np.int64), ("index",)),
    "dataset": (lambda rows: np.array(rows.columns["dataset"], np.int64), ("dataset",)),
}
# The same, but a packed field of the name takes precedence: there are older sets with such fields.
_UNLESS_PACKED: dict[str, tuple[Callable[[Rows], Value], tuple[str, ...]]] = {
    "bucket": (_bucket, ()),
    "original_size": (lambda rows: rows.sizes, _SIZES),
    "crop_top_left": (_top_left, _SIZES),
    "pixel_mask": (_pixel_mask, _SIZES),
}


def bind_field(
    spec: str | FieldSpec, datasets: Sequence[DatasetView]
) -> BoundField | PixelField:
    """Binds a requested field to one data set, or to several that are mixed.

    Args:
        spec: A name stands for the default form of the field's kind: int64 (N,) class numbers, a `Target` whose sign
            never changes, int64 whole numbers, `MultiHot`, str, parsed JSON, stacked arrays, or `Boxes`, `Keypoints`
            and `Mask` with their defaults. "key", "index" and "dataset" exist without being packed; so do "bucket",
            "original_size", "crop_top_left" and "pixel_mask", where nothing was packed under these names.
        datasets: Those of the loader.

    Raises:
        ArgumentError: it was not packed (the message lists the packed fields), its kind differs from the spec's, or its
            values mean different things in the data sets.
    """
    name = spec if isinstance(spec, str) else spec.name
    packed = [dataset for dataset in datasets if name in dataset.fields]
    if packed and name in COMPUTED:
        raise ArgumentError(
            f"{packed[0].folder}: has a packed field {name!r}, a name that gpuload reserves for the {name} of each "
            "sample. Pack it under another name"
        )
    if isinstance(spec, str) and (
        computed := (COMPUTED if packed else COMPUTED | _UNLESS_PACKED).get(spec)
    ):
        make, columns = computed
        return Computed(Field(name, "computed", ""), columns, make)
    field = _common_field(name, datasets)
    if not isinstance(spec, str):
        _check_kind(spec, field, datasets)
    return kind_of(field).bind(None if isinstance(spec, str) else spec, field, datasets)


def _check_kind(spec: FieldSpec, field: Field, datasets: Sequence[DatasetView]) -> None:
    if field.kind not in (spec.kind, *spec.other_kinds):
        fitting = [
            repr(other.name)
            for other in datasets[0].fields.values()
            if other.kind == spec.kind
        ]
        raise ArgumentError(
            f"{spec}: expected a field of kind {spec.kind!r}, {field.name!r} in {datasets[0].folder} has "
            f"kind {field.kind!r}. Request {field.name!r} by its name, or a field of kind {spec.kind!r} "
            f"({', '.join(fitting) or 'there is none'})"
        )


def _common_field(name: str, datasets: Sequence[DatasetView]) -> Field:
    """The field of this name. All data sets must have it with the same meaning; how it is stored may differ."""
    fields = [dataset.require_field(name) for dataset in datasets]
    kind = kind_of(fields[0])
    meanings = [
        kind.meaning(field, dataset.classes)
        for field, dataset in zip(fields, datasets, strict=True)
    ]
    for dataset, meaning in zip(datasets, meanings, strict=True):
        for quality, meant in meaning.items():
            if meant != meanings[0][quality]:
                raise ArgumentError(
                    f"{dataset.folder}: its field {name!r} has {quality} {meant!r}, that of {datasets[0].folder} has "
                    f"{meanings[0][quality]!r}. Mix data sets whose fields are alike, or leave {name!r} out"
                )
    return fields[0]
