"""The image of a sample, encoded or as raw pixels, and the pixels of a set: how many channels of which type. Masks: a
class number for each pixel of the image, stored as a gray PNG.
"""

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Annotated, Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
from PIL import Image

from gpuload.checks import Rule, as_text, member, settings, whole
from gpuload.errors import DecodeError
from gpuload.fields.arrow_arrays import array_of
from gpuload.fields.field import Field
from gpuload.fields.kind import (
    NAME,
    BadRows,
    FieldSpec,
    Kind,
    Origin,
    Parsed,
    StoredMember,
)
from gpuload.fields.motion import Placement
from gpuload.fields.numbers import array_fault, nested_lists
from gpuload.fields.rows import DatasetView, MaskDType, PixelField, numbers_of
from gpuload.formats import Conversion
from gpuload.formats.corrections import turned
from gpuload.formats.masks import Reading, class_numbers, has_indices
from gpuload.pictures import EIGHT_BIT_MODES, decode_image, draw_mask
from gpuload.types import I64, U8, Array, Bools, ClassNames

# 16 bits and floats with several channels have no mode in Pillow.
_MODES = {
    "L": (1, "uint8"),
    "RGB": (3, "uint8"),
    "RGBA": (4, "uint8"),
    "I;16": (1, "uint16"),
    "F": (1, "float32"),
}
_PEAKS = {"uint8": 255, "uint16": 65_535, "float32": 1}
_STORED = {
    "uint8": "|u1",
    "uint16": "<u2",
    "float32": "<f4",
}  # as NumPy writes them, little-endian
MOST_CHANNELS = 256
EXPECTED = "one of L, RGB, RGBA, I;16, F, or for arrays type and channels, such as uint16x4 or float32x7"

MOST_SIDE = 1 << 20  # of a picture, in pixels
# Index column of a set that has it, large_binary: where the image may be decoded from, see packing/image.py.
POINTS = "image_points"


class Pixels(NamedTuple):
    """What a set stores of each pixel.

    Attributes:
        channels: Values of a pixel.
        dtype: Of each: "uint8", "uint16" or "float32".
    """

    channels: int = 3
    dtype: str = "uint8"

    @property
    def is_rgb(self) -> bool:
        return self == RGB

    @property
    def mode(self) -> str:
        """Pillow's mode, or such as "float32x7"."""
        return next(
            (name for name, pixels in _MODES.items() if pixels == self),
            f"{self.dtype}x{self.channels}",
        )

    @property
    def peak(self) -> int:
        """The value that `Augment` takes for 1: the largest whole number; floats are taken as they are."""
        return _PEAKS[self.dtype]

    @property
    def stored(self) -> str:
        """The dtype of raw pixels in a shard, in NumPy's notation."""
        return _STORED[self.dtype]

    @property
    def bytes(self) -> int:
        """Of one pixel."""
        return self.channels * np.dtype(self.dtype).itemsize

    @property
    def conversion(self) -> Conversion:
        """By which a stored file is decoded, as it was packed."""
        return Conversion(self.channels, self.dtype, self.mode, codecs=False)

    @property
    def in_words(self) -> str:
        return f"{self.channels} {'channel' if self.channels == 1 else 'channels'} of {self.dtype}"

    @classmethod
    def of_field(cls, field: Field) -> "Pixels":
        """Those of an image field; a field that says nothing of them holds RGB, as all did before 2026-11-22.

        Raises:
            ValueError: it says what cannot be; the message is the reason.
        """
        if field.dtype is None and not field.size:
            return RGB
        dtype = next(
            (name for name, stored in _STORED.items() if stored == field.dtype), None
        )
        if dtype is None or not 1 <= field.size <= MOST_CHANNELS:
            raise ValueError(f"its pixels cannot be {field.size} × {field.dtype!r}")
        return cls(field.size, dtype)

    @classmethod
    def of_mode(cls, mode: str) -> "Pixels":
        """The pixels of a mode: the inverse of `mode`.

        Args:
            mode: As of `Encoding.mode`, such as "RGB" or "uint16x4".

        Raises:
            ValueError: there is no such mode.
        """
        if mode in _MODES:
            return cls(*_MODES[mode])
        match = re.fullmatch(r"(uint8|uint16|float32)x([1-9][0-9]{0,2})", mode)
        if match is None or int(match[2]) > MOST_CHANNELS:
            raise ValueError(f"there is no mode {mode!r}")
        return cls(int(match[2]), match[1])

    def in_field(self) -> dict[str, Any]:
        """The attributes of a `Field` that tell of them; RGB is told by none, as older versions wrote it."""
        return {} if self == RGB else {"size": self.channels, "dtype": self.stored}


RGB = Pixels()
GRAY = Pixels(1)
MODE = Rule(EXPECTED, lambda value: Pixels.of_mode(as_text(value)).mode)


def has_seek_points(schema: pa.Schema, column: str = POINTS) -> bool:
    """Whether an index of this schema has seek points of a picture in this column."""
    return column in schema.names and pa.types.is_large_binary(
        schema.field(column).type
    )


def picture_columns(name: str) -> tuple[str, str, str]:
    """The index columns of a further picture: its width and height in pixels, and its seek points."""
    return f"{name}_width", f"{name}_height", f"{name}_points"


def is_raw(field: Field) -> bool:
    """Whether a picture is stored as pixels, and not encoded."""
    return field.kind == "raw" or field.member.endswith("npy")


def may_be_missing(field: Field) -> bool:
    """Whether samples may have no picture of a field, which is the image of their set."""
    return field.kind in ("image", "raw") and field.counts is not None


def is_missing(field: Field, row: Mapping[str, Any]) -> bool:
    """Whether a sample has no image.

    Args:
        field: Of the image.
        row: The sample's row of the index.
    """
    return may_be_missing(field) and row[field.bytes_column] == 0


def pixels_in_words(field: Field, pixels: Image.Image | Array) -> str:
    """The size and the mode of a picture, such as "640 × 480 pixels of RGB"."""
    height, width = np.asarray(pixels).shape[:2]
    return f"{width} × {height} pixels of {Pixels.of_field(field).mode}"


def _pixels_fault(field: Field) -> str:
    """Why the pixels that a field tells of cannot be; "" where they can."""
    try:
        Pixels.of_field(field)
    except ValueError as error:
        return str(error)
    return ""


def wrong_pixels(field: Field, rows: pa.RecordBatch, sizes: I64) -> BadRows:
    """Members that are not as large as their pixels, or do not begin where such values can.

    Args:
        field: Of pictures that are stored as pixels.
        rows: Of the index.
        sizes: int64 (N, 2), height and width of each.
    """
    pixels = Pixels.of_field(field)
    value_bytes = np.dtype(pixels.dtype).itemsize
    offset = numbers_of(rows.column(field.offset_column)).astype(np.int64)
    size = numbers_of(rows.column(field.bytes_column)).astype(np.int64)
    needed = pixels.bytes * sizes[:, 0] * sizes[:, 1]
    is_wrong: Bools = (size != needed) | (offset % value_bytes != 0)
    if may_be_missing(field):
        is_wrong &= size != 0
    return BadRows(
        np.flatnonzero(is_wrong),
        lambda row: (
            f"its pixels as {size[row]:,} bytes at byte {offset[row]:,}, expected height x width x {pixels.bytes}, "
            f"{needed[row]:,}, at a multiple of {value_bytes}"
        ),
    )


class ImageKind(Kind):
    """An encoded image. gpuload.packing.image stores it, and gpuload.decode decodes it."""

    name = "image"
    stays_in_shard = True
    usual_names = (
        "image",
        "images",
        "img",
        "imgs",
        "x",
        "input_image",
        "data",
        "pixels",
    )

    def field_fault(self, field: Field) -> str:
        if field.kind in ("image", "raw") and field.counts not in (None, (0, 1)):
            return f"its counts cannot be {list(field.counts or ())}"
        return _pixels_fault(field)

    def hub_feature(
        self, field: Field, classes: ClassNames, dimensions: Set[int]
    ) -> dict[str, Any]:
        return {"dtype": "image"}

    def find_fault(
        self,
        field: Field,
        row: Mapping[str, Any],
        content: bytes,
        header: int,
        image_size: Any,
    ) -> str:
        width, height = image_size(content)
        if (width, height) != (row["width"], row["height"]):
            return f"is {width} x {height}, the index says {row['width']} x {row['height']}"
        return ""

    def look(
        self, field: Field, row: Mapping[str, Any], read: Callable[[], bytes]
    ) -> dict[str, Any]:
        """Its pixels as they are stored, upright; None of a sample that has no image.

        A picture of Pillow where the mode of the set is one of its modes of 8 bits (L, RGB, RGBA); else an array
        (height, width, channels) of uint8, uint16 or float32.
        """
        if is_missing(field, row):
            return {field.name: None}
        return {field.name: self._pixels(field, row, read())}

    def _pixels(
        self, field: Field, row: Mapping[str, Any], content: bytes
    ) -> Image.Image | Array:
        """What `look` gives of an image.

        Args:
            field: A field of this kind.
            row: The sample's row of the index.
            content: The member's data, without its header.
        """
        return decode_image(content, Pixels.of_field(field).conversion)

    def texts(
        self, field: Field, found: Mapping[str, Any], classes: ClassNames
    ) -> dict[str, str]:
        if found[field.name] is None:
            return super().texts(field, found, classes)
        return {field.name: pixels_in_words(field, found[field.name])}

    def meaning(self, field: Field, set_classes: ClassNames) -> dict[str, object]:
        return {
            "mode": Pixels.of_field(field).mode
        }  # how the images are stored makes no difference to batches

    def bind(
        self, spec: FieldSpec | None, field: Field, datasets: Sequence[DatasetView]
    ) -> PixelField:
        return PixelField(field.name, "image", field=field)


class RawKind(ImageKind):
    """An image as pixels (height, width, channels) in a `.npy` member: uint8 RGB, or what the field says."""

    name = "raw"

    def hub_feature(
        self, field: Field, classes: ClassNames, dimensions: Set[int]
    ) -> dict[str, Any]:
        return nested_lists(Pixels.of_field(field).dtype, 3)

    def _pixels(
        self, field: Field, row: Mapping[str, Any], content: bytes
    ) -> Image.Image | Array:
        pixels = Pixels.of_field(field)
        shape = row["height"], row["width"], pixels.channels
        levels = np.frombuffer(content, pixels.stored).reshape(shape)
        if pixels.mode in EIGHT_BIT_MODES:
            is_gray = pixels.channels == 1
            return Image.fromarray(levels[..., 0] if is_gray else levels)
        return levels.astype(pixels.dtype)

    def bad_rows(self, field: Field, rows: pa.RecordBatch) -> Iterator[BadRows]:
        """Members that are not as large as their pixels, or do not begin where such values can."""
        sides = [numbers_of(rows.column(name)) for name in ("height", "width")]
        yield wrong_pixels(field, rows, np.stack(sides, axis=1).astype(np.int64))

    def find_fault(
        self,
        field: Field,
        row: Mapping[str, Any],
        content: bytes,
        header: int,
        image_size: Any,
    ) -> str:
        pixels = Pixels.of_field(field)
        return array_fault(
            content,
            header,
            (row["height"], row["width"], pixels.channels),
            pixels.stored,
        )


IMAGE_KIND = ImageKind()
RAW_KIND = RawKind()


def refuse_other_numbers(content: bytes, mask: Image.Image) -> None:
    """Raises DecodeError unless a stored mask is gray of 8 bits: of others, decoders make levels of class numbers.

    Args:
        content: The bytes of the file.
        mask: The same, opened by Pillow.
    """
    fault = "" if mask.mode == "L" else f"is of mode {mask.mode}"
    if has_indices(content):
        fault = "has a palette, or fewer than 8 bits"
    if fault:
        raise DecodeError(f"{fault}; stored masks are gray PNGs of 8 bits")


_SIDEWAYS = (5, 6, 7, 8)  # Exif orientations by which width and height change places


class MaskRules(NamedTuple):
    """How masks are read.

    Attributes:
        reading: As of `Encoding.masks`.
        turn: As of `Encoding.turn_masks`.
    """

    reading: Reading = "ask"
    turn: Literal["auto", "yes", "no"] = "auto"


@settings
class Mask(FieldSpec):
    """A class number per pixel, (N, height, width), cropped, resized (nearest pixel) and flipped as its image.

    Attributes:
        name: Of the packed field.
        fill: The class number of pixels outside the image, where it is padded or rotated.
        dtype: "uint8", or "int64", which torch's `cross_entropy` and other losses want, of eight times the memory.

    Raises:
        ArgumentError: fill is not in 0..255; another dtype.
    """

    name: Annotated[str, NAME] = "mask"
    fill: Annotated[int, whole(0, 255, "a class number, in 0..255")] = 0
    dtype: Annotated[MaskDType, member(*get_args(MaskDType))] = "uint8"

    kind = "mask"
    other_kinds = ("pictures",)


class MaskKind(Kind):
    """Class numbers 0..255, a gray 8-bit PNG of the image's size; the loader's decoder crops it as it does images."""

    name = "mask"
    specs = (Mask,)
    stays_in_shard = True
    keys = ("mask",)
    usual_names = ("mask", "mask_path")
    members = ("mask.png", "seg.png", "mask")
    in_tables = True
    lies_beneath = True

    def hub_feature(
        self, field: Field, classes: ClassNames, dimensions: Set[int]
    ) -> dict[str, Any]:
        return {"dtype": "image"}

    def parse(
        self,
        where: Origin,
        name: str,
        values: Sequence[Any],
        classes: ClassNames,
        detail: str,
    ) -> Parsed:
        return Field(name, self.name, f"{name}.png"), [
            array_of(values, pa.large_string())
        ]

    def store(
        self,
        field: Field,
        value: Any,
        placement: Placement,
        rules: MaskRules = MaskRules(),  # noqa: B008 -- frozen
    ) -> StoredMember:
        """Turns and resizes it as its image, by nearest neighbour; a plain gray PNG that stays is kept byte for byte.

        Class numbers are the numbers that its file stores: the indices of a palette (as in Pascal VOC), or gray values.

        Raises:
            DecodeError: it cannot be decoded, has a different size from its image, is lossy, or has colours, fractions
            or numbers above 255; or it has two readings, and the rules do not choose.
        """
        source = placement.source
        stored_size = source[::-1] if placement.exif in _SIDEWAYS else source
        sizes = (source,) if rules.turn == "no" else (source, stored_size)
        mask = class_numbers(value, rules.reading, sizes)
        numbers = mask.numbers
        if numbers.size and (numbers.min() < 0 or numbers.max() > 255):
            raise DecodeError(
                f"a mask's class numbers must be in 0..255; found {numbers.min()}..{numbers.max()}"
            )
        numbers = numbers.astype(np.uint8)
        upright = (
            numbers if mask.oriented else _turned_as_image(numbers, placement, rules)
        )
        if mask.plain and upright is numbers and not placement.changes:
            return StoredMember(value, 0, {}, mask.scale)
        moved = placement.resample(Image.fromarray(upright), Image.Resampling.NEAREST)
        file = io.BytesIO()
        moved.save(file, "PNG")
        return StoredMember(file.getvalue(), 0, {}, mask.scale)

    def find_fault(
        self,
        field: Field,
        row: Mapping[str, Any],
        content: bytes,
        header: int,
        image_size: Any,
    ) -> str:
        with Image.open(io.BytesIO(content)) as image:
            refuse_other_numbers(content, image)
            if image.size != (row["width"], row["height"]):
                return f"is {image.width} x {image.height}, its image {row['width']} x {row['height']}"
            image.load()
        return ""

    def look(
        self, field: Field, row: Mapping[str, Any], read: Callable[[], bytes]
    ) -> dict[str, Any]:
        content = read()
        with Image.open(io.BytesIO(content)) as mask:
            refuse_other_numbers(content, mask)
            return {field.name: mask.copy()}

    def look_at_batch(
        self, field: Field, spec: Any, value: Any, row: int
    ) -> dict[str, Any]:
        return {field.name: value[row]}

    def draw(
        self, field: Field, picture: Image.Image, found: Mapping[str, Any]
    ) -> Image.Image:
        numbers = np.asarray(found[field.name], np.uint8)
        return (
            draw_mask(picture, numbers)
            if numbers.shape[::-1] == picture.size
            else picture
        )

    def bind(
        self, spec: FieldSpec | None, field: Field, datasets: Sequence[DatasetView]
    ) -> PixelField:
        wanted = spec if isinstance(spec, Mask) else Mask(field.name)
        return PixelField(wanted.name, "mask", wanted.fill, wanted.dtype, field)


def _turned_as_image(numbers: U8, placement: Placement, rules: MaskRules) -> U8:
    """The numbers turned as the Exif orientation of their image says, where they lie as its file stores it.

    Raises:
        DecodeError: their size does not tell how they lie.
    """
    if placement.exif == 1 or placement.turn != 1 or rules.turn == "no":
        return numbers
    upright: U8 = turned(numbers, placement.exif)
    size = numbers.shape[1], numbers.shape[0]
    is_upright = size == placement.source
    fits_turned = (upright.shape[1], upright.shape[0]) == placement.source
    if not is_upright or (fits_turned and rules.turn == "yes"):
        return upright
    if fits_turned and not np.array_equal(upright, numbers):
        raise DecodeError(
            f"the image is turned by its Exif orientation {placement.exif}, and the mask's size does not say whether "
            "the mask is: --turn-masks yes turns such masks with their images, --turn-masks no leaves them"
        )
    return numbers
