"""The class numbers of a mask: the numbers that its file stores, whatever they look like.

White may be zero, a gray of few bits be shown brighter, and a palette show any colour; the numbers are the same.
Where a program that makes files smaller may have changed them, or a lossy one, that is told or refused.
"""

import io
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image

from gpuload.errors import DecodeError
from gpuload.formats.corrections import stored_numbers, turned
from gpuload.headers import jpeg, jpeg2000, npy, png, tiff
from gpuload.headers.jpeg import ORIENTATION
from gpuload.types import Array, WidthHeight

Reading = Literal["ask", "stored", "levels"]

# Of a mask of gray with fewer than 8 bits that has another class than 0, and of one of 8 bits with a class above 1.
FEW_BITS = "few bits"
MANY_BITS = "8 bits"

_MODES = (
    "L",
    "P",
    "1",
    "I",
    "I;16",
    "I;16B",
    "F",
)  # Pillow's modes with one number per pixel
_GRAY = 0  # PNG colour type
_EIGHT_BITS = 255


@dataclass(frozen=True)
class ClassNumbers:
    """A mask, read.

    Attributes:
        numbers: (height, width), as stored or, by Exif, upright.
        plain: Whether the file is a gray PNG of 8 bits that holds them.
        scale: `FEW_BITS`, `MANY_BITS` or "".
        oriented: Whether an Exif orientation of its own turned it.
    """

    numbers: Array
    plain: bool = False
    scale: str = ""
    oriented: bool = False


def class_numbers(
    value: bytes | Array, reading: Reading, sizes: tuple[WidthHeight, ...] = ()
) -> ClassNumbers:
    """The class numbers that a mask holds.

    Args:
        value: Content of its file, or its pixels.
        reading: As of `Encoding.masks`.
        sizes: Sizes (width, height) that it may have, that of its image first; () for any.

    Raises:
        DecodeError: it has another size, is lossy, holds fractions or colours, cannot be decoded, or has two readings
            between which nobody chose.
    """
    if isinstance(value, bytes) and value.startswith(npy.START):
        value = npy.read_array(value)
    if isinstance(value, np.ndarray):
        numbers = value[..., 0] if value.ndim == 3 and value.shape[-1] == 1 else value
        _check_shape(numbers.shape, sizes)
        return _whole(ClassNumbers(numbers))
    try:
        _refuse_lossy(value)
        return _whole(_of_file(value, reading, sizes))
    except DecodeError:
        raise
    except Exception as error:  # Pillow's parsers raise many kinds
        raise DecodeError(
            f"the mask cannot be decoded: {str(error).split(' <')[0] or type(error).__name__}"
        ) from None


def has_indices(data: bytes | Array) -> bool:
    """Whether a file stores indices of a palette, or gray of fewer than 8 bits, which others show as other numbers."""
    if not isinstance(data, bytes):
        return False
    if data.startswith(png.START):
        return png.has_indices(data)
    try:
        with Image.open(io.BytesIO(data)) as image:
            return image.mode in ("P", "1")
    except Exception:  # no image, or a damaged one, which is told where it is stored
        return False


def _check_shape(shape: tuple[int, ...], sizes: tuple[WidthHeight, ...]) -> None:
    if len(shape) != 2:
        raise DecodeError(
            f"a mask must hold one class number per pixel; found colours (an array {shape})"
        )
    if sizes and (shape[1], shape[0]) not in sizes:
        size = " x ".join(map(str, shape[::-1]))
        raise DecodeError(
            f"the mask has {size} pixels, its image {sizes[0][0]} x {sizes[0][1]}"
        )


def _refuse_lossy(data: bytes) -> None:
    header = jpeg2000.read_header(data)
    pages = tiff.read_pages(data)
    is_lossy = (
        data.startswith(jpeg.START)
        or data[12:16] == b"VP8 "
        or (header is not None and not header.lossless)
        or (bool(pages) and pages[0].compression in tiff.JPEG_COMPRESSIONS)
    )
    if is_lossy:
        raise DecodeError(
            "the mask is compressed with losses, which change class numbers at edges; give a PNG"
        )


def _of_file(
    data: bytes, reading: Reading, sizes: tuple[WidthHeight, ...]
) -> ClassNumbers:
    image = Image.open(io.BytesIO(data))
    if image.mode not in _MODES:
        raise DecodeError(
            f"a mask must hold one class number per pixel; found colours (mode {image.mode})"
        )
    turn = image.getexif().get(ORIENTATION, 1)
    size = image.size[::-1] if turn in (5, 6, 7, 8) else image.size
    _check_shape(size[::-1], sizes)
    layout = _layout(data, image)
    numbers = stored_numbers(data, np.asarray(image))
    numbers = _numbers_in(image, numbers, layout, reading)
    is_turned = turn in range(2, 9)
    if is_turned:
        numbers = turned(numbers, turn)
    is_gray_png = data.startswith(png.START) and data[25] == _GRAY
    plain = is_gray_png and png.read_header(data).plain
    scale = ""
    if image.mode != "P" and layout.bits >= 8:
        scale = MANY_BITS
    elif image.mode != "P" and reading == "ask":
        scale = FEW_BITS
    return ClassNumbers(numbers, plain and not is_turned, scale, is_turned)


class _NumberLayout(NamedTuple):
    """How a file stores the numbers of a mask.

    Attributes:
        bits: Of a number.
        white_is_zero: Whether Pillow shows 0 as white.
        signed: Whether numbers have a sign.
    """

    bits: int
    white_is_zero: bool
    signed: bool


def _numbers_in(
    image: Image.Image, numbers: Array, layout: _NumberLayout, reading: Reading
) -> Array:
    """The numbers of a mask as they are read.

    Args:
        numbers: As Pillow gives them.
    """
    if image.mode == "P":
        return _of_palette(image, numbers, reading)
    if layout.bits < 8:
        levels = numbers.astype(np.uint8) * (_EIGHT_BITS if image.mode == "1" else 1)
        if reading == "levels":
            return levels
        stored = _EIGHT_BITS - levels if layout.white_is_zero else levels
        of_bits: Array = stored // (_EIGHT_BITS // ((1 << layout.bits) - 1))
        return of_bits
    if layout.bits == 8 and layout.white_is_zero:
        inverted: Array = _EIGHT_BITS - numbers  # as stored: Pillow has inverted it
        return inverted
    if layout.bits == 8 and layout.signed:
        return numbers.view(np.int8)
    return numbers


def _layout(data: bytes, image: Image.Image) -> _NumberLayout:
    if data.startswith(png.START):
        return _NumberLayout(png.read_header(data).depth, False, False)
    pages = tiff.read_pages(data)
    if not pages:
        return _NumberLayout(1 if image.mode == "1" else 8, False, False)
    page = pages[0]
    forms = (tiff.WHITE_IS_ZERO, tiff.BLACK_IS_ZERO, tiff.IS_PALETTE)
    if page.photometric not in forms or page.samples != 1:
        raise DecodeError(
            f"a mask must hold one class number per pixel; found a TIFF of {page.in_words}"
        )
    is_inverted = page.photometric == tiff.WHITE_IS_ZERO
    return _NumberLayout(page.bits, is_inverted, page.form == tiff.SIGNED)


def _of_palette(image: Image.Image, indices: Array, reading: Reading) -> Array:
    """The indices of a palette; where it is one of grays other than these, the grays, if they are asked for."""
    palette = np.array(image.getpalette("RGB") or [], np.uint8).reshape(-1, 3)
    is_gray = len(palette) > 0 and bool((palette == palette[:, :1]).all())
    if not is_gray or reading == "stored":
        return indices
    levels = np.zeros(256, np.uint8)
    levels[: len(palette)] = palette[:, 0]
    shown: Array = levels[indices]
    if reading == "ask" and not np.array_equal(shown, indices):
        number = int(indices[shown != indices][0])
        raise DecodeError(
            f"the mask shows its number {number} as the gray {levels[number]} of a palette, and either may be the "
            "class: --masks levels takes the grays, as tools that make PNGs smaller need it, --masks stored the numbers"
        )
    return shown if reading == "levels" else indices


def _whole(mask: ClassNumbers) -> ClassNumbers:
    """With whole numbers of a type for them, and what is told of their scale.

    Raises:
        DecodeError: there are fractions.
    """
    numbers = mask.numbers
    if numbers.dtype.kind == "f":
        odd = numbers[~np.isfinite(numbers) | (numbers != np.floor(numbers))]
        if odd.size:
            raise DecodeError(
                f"a mask holds class numbers, which are whole; found {odd[0]:g} among {numbers.dtype}"
            )
    elif numbers.dtype.kind not in "biu":
        raise DecodeError(
            f"a mask holds class numbers; found values of {numbers.dtype}"
        )
    if numbers.dtype == bool:
        numbers = numbers.astype(np.uint8)
    scale = mask.scale
    largest = numbers.max(initial=0)
    if largest <= (0 if scale == FEW_BITS else 1):
        scale = ""
    return ClassNumbers(numbers, mask.plain, scale, mask.oriented)
