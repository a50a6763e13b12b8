"""Further pictures of a sample: their files, their columns of the index, and how they are requested."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from gpuload.errors import ArgumentError
from gpuload.fields.arrow_arrays import array_of
from gpuload.fields.field import Field
from gpuload.fields.images import (
    IMAGE_KIND,
    MOST_SIDE,
    POINTS,
    RAW_KIND,
    ImageKind,
    Pixels,
    is_raw,
    picture_columns,
    wrong_pixels,
)
from gpuload.fields.kind import BadRows, FieldSpec, Kind, Origin, Parsed, StoredMember
from gpuload.fields.maps import SPECS, Picture, PictureSpec
from gpuload.fields.motion import Placement
from gpuload.fields.rows import DatasetView, PixelField, numbers_of
from gpuload.types import ClassNames

# What the files of further pictures are known by, where nothing says that they are pictures.
PICTURE_SUFFIXES = frozenset(
    (
        ".avif",
        ".bmp",
        ".exr",
        ".flo",
        ".jp2",
        ".jpeg",
        ".jpg",
        ".npy",
        ".pfm",
        ".pgm",
        ".png",
        ".ppm",
        ".tif",
        ".tiff",
        ".webp",
    )
)
_SIGNATURES = (
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"II*\0",
    b"MM\0*",
    b"PIEH",
    b"RIFF",
)


class PictureKind(Kind):
    """A further picture of each sample, of a size of its own: an encoded image, or an `.npy` where no encoding fits.

    Values of 8 bits, and gray ones of 16, are stored as files, byte for byte where the file is plain; floats and other
    16-bit channels as pixels. Whether all members are pixels follows from the field's extension, "npy".
    """

    name = "picture"
    specs = tuple(SPECS)
    stays_in_shard = True

    def columns(self, field: Field) -> dict[str, pa.DataType]:
        width, height, points = picture_columns(field.name)
        return {width: pa.int32(), height: pa.int32(), points: pa.large_binary()}

    def field_fault(self, field: Field) -> str:
        return IMAGE_KIND.field_fault(field)

    def hub_feature(
        self, field: Field, classes: ClassNames, dimensions: Set[int]
    ) -> dict[str, Any]:
        return _as_image(field).hub_feature(field, classes, dimensions)

    def claims(self, value: Any) -> bool:
        if isinstance(value, Image.Image):
            return True
        if isinstance(value, os.PathLike):
            return Path(value).suffix.lower() in PICTURE_SUFFIXES
        return isinstance(value, bytes) and value.startswith(_SIGNATURES)

    def with_others(self, name: str, sample: Mapping[str, Any]) -> str:
        """As `Kind.with_others`: a list of pictures is of another kind, a list of numbers an array."""
        value = sample[name]
        is_list = isinstance(value, list | tuple)
        is_of_numbers = is_list and any(
            isinstance(entry, list | int | float) for entry in value
        )
        return "pictures" if is_list and not is_of_numbers else self.name

    def guess(self, member: str, content: Callable[[], bytes]) -> Field | None:
        """Of "right.png" the picture `right`; an image without a name of its own is that of the sample."""
        name, _, extension = member.rpartition(".")
        is_file = f".{extension.lower()}" in PICTURE_SUFFIXES and extension != "npy"
        return Field(name, self.name, member) if name and is_file else None

    def parse(
        self,
        where: Origin,
        name: str,
        values: Sequence[Any],
        classes: ClassNames,
        detail: str,
    ) -> Parsed:
        return Field(name, self.name, "png"), [array_of(values, pa.large_string())]

    def store(self, field: Field, value: Any, placement: Placement) -> StoredMember:
        raise NotImplementedError("gpuload.packing.image stores pictures")

    def bad_rows(self, field: Field, rows: pa.RecordBatch) -> Iterator[BadRows]:
        """Pictures without a size, or whose pixels are not as large as it says."""
        width, height, _ = (rows.column(name) for name in picture_columns(field.name))
        sizes = np.stack([numbers_of(height), numbers_of(width)], axis=1).astype(
            np.int64
        )
        wrong = ((sizes < 1) | (sizes > MOST_SIDE)).any(axis=1)
        yield BadRows(
            np.flatnonzero(wrong),
            lambda row: (
                f"its {field.name!r} as {sizes[row, 1]} × {sizes[row, 0]} pixels"
            ),
        )
        if is_raw(field):
            yield wrong_pixels(field, rows, sizes)

    def find_fault(
        self,
        field: Field,
        row: Mapping[str, Any],
        content: bytes,
        header: int,
        image_size: Any,
    ) -> str:
        return _as_image(field).find_fault(
            field, self._own_row(field, row), content, header, image_size
        )

    def look(
        self, field: Field, row: Mapping[str, Any], read: Callable[[], bytes]
    ) -> dict[str, Any]:
        """As `ImageKind.look`."""
        return _as_image(field).look(field, self._own_row(field, row), read)

    def texts(
        self, field: Field, found: Mapping[str, Any], classes: ClassNames
    ) -> dict[str, str]:
        return _as_image(field).texts(field, found, classes)

    def _own_row(self, field: Field, row: Mapping[str, Any]) -> dict[str, Any]:
        """What an image's row of the index is, of this picture."""
        width, height, points = picture_columns(field.name)
        return {
            "width": row[width],
            "height": row[height],
            POINTS: row[points],
        }

    def meaning(self, field: Field, set_classes: ClassNames) -> dict[str, object]:
        return {"kind": self.name, "mode": Pixels.of_field(field).mode}

    def bind(
        self, spec: FieldSpec | None, field: Field, datasets: Sequence[DatasetView]
    ) -> PixelField:
        pixels = Pixels.of_field(field)
        if spec is None and pixels.dtype != "uint8":
            maps = ", ".join(f"{kind.__name__}({field.name!r})" for kind in SPECS[1:])
            raise ArgumentError(
                f"fields: {field.name!r} holds {pixels.in_words}, which are no colours. Request it by a spec, such as "
                f"{maps}, or Picture({field.name!r}, normalize=…)"
            )
        wanted = spec if isinstance(spec, PictureSpec) else Picture(field.name)
        raw = {is_raw(dataset.require_field(field.name)) for dataset in datasets}
        if len(raw) > 1:
            raise ArgumentError(
                f"fields: {field.name!r} is stored as files in one of the data sets, and as pixels in another. Pack "
                "both in the same way"
            )
        values = None if wanted.values is None else wanted.values(field, wanted)
        return PixelField(
            field.name, self.name, field=field, spec=wanted, values=values
        )


def _as_image(field: Field) -> ImageKind:
    return RAW_KIND if is_raw(field) else IMAGE_KIND
