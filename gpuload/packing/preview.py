"""What a run of the packer would pack, without packing it: `pack --dry-run`."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from gpuload.errors import DecodeError
from gpuload.fields.field import Field
from gpuload.fields.picture_lists import PicturesKind
from gpuload.fields.pictures import PictureKind
from gpuload.fields.registry import draw_fields, kind_of
from gpuload.fields.rows import numbers_of
from gpuload.formats import Conversion, Raster, converted, open_file
from gpuload.headers import jpeg, npy
from gpuload.packing.following import mode_of_set, with_mode
from gpuload.packing.options import AUTO, PackOptions
from gpuload.packing.plan import check_names
from gpuload.packing.split_plan import make_plan
from gpuload.packing.workers import prepare_source
from gpuload.pictures import (
    EIGHT_BIT_MODES,
    Cell,
    decode_image,
    draw_sheet,
    for_eyes,
    thumbnail,
)
from gpuload.sources.listing import NAME, NO_IMAGE, Listing, addresses
from gpuload.sources.registry import sources
from gpuload.sources.source import FilesSource, Source
from gpuload.types import Array, ClassNames

_SHOWN = 10  # samples in the picture
_CELL_PX = 256


@dataclass(frozen=True)
class Preview:
    """What would be packed.

    Args:
        source: The name of the source, and what it sees.
        splits: Samples of each split, before copies are dropped.
        classes: For each field with classes, how many samples or objects each class number has, and its name.
        listing: The samples, fields, rejections and notes.
        sheet: Ten samples with their fields drawn on them.
    """

    source: str
    splits: Mapping[str, int]
    classes: Mapping[str, list[tuple[int, str, int]]]
    listing: Listing
    sheet: Image.Image


def preview(source: Source, options: PackOptions) -> Preview:
    """Lists a source, plans its splits, and draws samples from equal distances in the listing; nothing is written.

    Raises:
        SourceError: as a run does.
    """
    with TemporaryDirectory(prefix="gpuload-preview-") as scratch:
        source = source.with_options(
            as_stored=options.keeps_arrays,
            conversion=options.conversion,
            follows=options.mode == AUTO,
        )
        source = prepare_source(source, Path(scratch))
        listing = source.list_samples()
        check_names(listing.fields, listing.classes)
        mode, notes = mode_of_set(source, listing, options, {})
        listing = replace(listing, notes=(*notes, *listing.notes))
        known = with_mode(options, mode)
        source = source.with_options(conversion=known.conversion, follows=False)
        splits = make_plan(listing, options)
        sheet = _sheet(source, listing)
    return Preview(
        source=_described(source),
        splits={split.name: len(split.rows) for split in splits},
        classes=_counts(listing),
        listing=listing,
        sheet=sheet,
    )


def _described(source: Source) -> str:
    entry = f"{type(source).__module__}:{type(source).__name__}"
    names = [
        source_type.name
        for source_type in sources().values()
        if source_type.entry.value == entry
    ]
    sight = None
    if isinstance(source, FilesSource) and not source.files.fault():
        sight = source.recognise(source.files)
    reason = f": {sight.reason}" if sight else ""
    return f"{names[0] if names else type(source).__name__}{reason}"


def _counts(listing: Listing) -> dict[str, list[tuple[int, str, int]]]:
    """For each field with classes the numbers, names and counts of these."""
    counts = dict[str, list[tuple[int, str, int]]]()
    for field in listing.fields:
        column = kind_of(field).class_column(field)
        if column is None or column not in listing.samples.column_names:
            continue
        values = pa.chunked_array(listing.samples.column(column)).combine_chunks()
        flat = values.flatten() if pa.types.is_list(values.type) else values
        numbers = Counter(numbers_of(flat).tolist())
        names: ClassNames = kind_of(field).class_names(field, listing.classes)
        classes = range(len(names)) if names else sorted(numbers)
        counts[field.name] = [
            (number, names[number] if names else "", numbers[number])
            for number in classes
        ]
    return counts


def _sheet(source: Source, listing: Listing) -> Image.Image:
    count = min(_SHOWN, len(listing))
    numbers = np.unique(np.linspace(0, len(listing) - 1, count).astype(int)).tolist()
    rows = listing.samples.take(numbers)
    places = addresses(rows).to_pylist()
    source.expect([place for place in places if place != NO_IMAGE])
    cells = list[Cell]()
    for row, place in zip(rows.to_pylist(), places, strict=True):
        try:
            if place == NO_IMAGE:
                raise DecodeError("has no picture")
            source.wait(place)
            picture = _drawn(source, listing.fields, row, place)
        except Exception as error:  # Pillow's many parsers may raise anything
            picture = Image.new("RGB", (_CELL_PX, _CELL_PX // 2), "white")
            row[NAME] = f"{row[NAME]}: {error}"
        cells.append(Cell(thumbnail(picture, _CELL_PX, _CELL_PX), row[NAME]))
    return draw_sheet(cells)


def _picture_of(data: bytes | Array, conversion: Conversion) -> Image.Image:
    """RGB, of the values that will be packed."""
    if isinstance(data, bytes) and data.startswith(npy.START):
        data = npy.read_array(data)
    values: Image.Image | Array
    if isinstance(data, bytes):
        if data.startswith(jpeg.START) and conversion == Conversion():
            return for_eyes(decode_image(data, conversion))
        values = converted(open_file(data, conversion).load(), conversion)
    elif conversion.changes_values:
        values = converted(Raster(values=data), conversion)
    else:
        values = data
    if isinstance(values, Image.Image) and values.mode in EIGHT_BIT_MODES:
        return for_eyes(values)
    pixels = np.asarray(values)
    return for_eyes(pixels if pixels.ndim == 3 else pixels[..., None])


def _drawn(
    source: Source, fields: tuple[Field, ...], row: dict[str, Any], place: str
) -> Image.Image:
    """An image with its fields, as far as these are drawn."""
    picture = _picture_of(source.read(place), source.options.conversion)
    size = {"width": picture.width, "height": picture.height}

    def look(field: Field) -> Mapping[str, Any]:
        def read() -> bytes:
            content = source.read(row[field.name])
            if isinstance(content, bytes):
                return content
            raise DecodeError("an array is not shown")

        return kind_of(field).look(field, {**row, **size}, read)

    # Further pictures are not drawn on the image.
    further = (PictureKind.name, PicturesKind.name)
    drawn = [field for field in fields if field.kind not in further]
    return draw_fields(picture, drawn, look)
