"""Which part of an image is decoded, its layout in memory, and its colors."""

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir

from gpuload.decode.native.compiled import inlined
from gpuload.decode.native.intrinsics import INT8, INT16, INT32, Lanes, bytes_at, emitted
from gpuload.decode.native.jpeg.frame import Frame
from gpuload.types import I64

PIXELS = 32  # at a time
_STORED = 16  # of these at a time, since only AVX-512 shuffles longer vectors of bytes at once

_BITS = 16
_RED_OF_RED, _GREEN_OF_BLUE, _GREEN_OF_RED, _BLUE_OF_BLUE = (
    round(part * (1 << _BITS)) for part in (1.402, -0.34414, -0.71414, 1.772)
)
_TWICE = [number // 2 for number in range(PIXELS)]
_BY_TURNS = [number // 2 + number % 2 * (PIXELS // 2) for number in range(PIXELS)]

_Chroma = Callable[[ir.IRBuilder, Any, Any], Lanes]

_PAD = 32  # bytes before and after each row of a plane
_KEPT_MCUS = 2  # rows of MCUs in a plane: chroma is interpolated between the current one and the one before

SPARE_PIXELS = PIXELS  # that may be written after the last one


def _half(builder: ir.IRBuilder, address: Any, after: int = 0) -> Lanes:
    """The chroma of `PIXELS` pixels, where it has half the width."""
    return Lanes.load(builder, address, INT8, PIXELS // 2, after).wide(INT16)


def _same(builder: ir.IRBuilder, near: Any, far: Any) -> Lanes:
    return Lanes.load(builder, near, INT8, PIXELS).wide(INT16)


def _repeated(builder: ir.IRBuilder, near: Any, far: Any) -> Lanes:
    half = _half(builder, near)
    return half.shuffled(half, _TWICE)


def _between_two(builder: ir.IRBuilder, near: Any, far: Any) -> Lanes:
    before, here, after = (_half(builder, near, x) for x in (-1, 0, 1))
    left, right = (here * 3 + before + 1) >> 2, (here * 3 + after + 2) >> 2
    return left.shuffled(right, _BY_TURNS)


def _between_four(builder: ir.IRBuilder, near: Any, far: Any) -> Lanes:
    before, here, after = (_half(builder, near, x) * 3 + _half(builder, far, x) for x in (-1, 0, 1))
    left, right = (here * 3 + before + 8) >> 4, (here * 3 + after + 7) >> 4
    return left.shuffled(right, _BY_TURNS)


def _times(chroma: Lanes, factor: int) -> Lanes:
    """Chroma, int16 from -128 to 127, times factor / 2^_BITS, rounded to the nearest.

    The high half of a product is one instruction, without vectors of int32. For the rounding, chroma is doubled before,
    and the product halved after it.
    """
    whole = round(factor / (1 << _BITS))
    doubled = (chroma * 2).signed(INT32) * (factor - (whole << _BITS)) >> _BITS
    return chroma * whole + ((doubled.narrow(INT16) + 1) >> 1)


def _store_rgb(red: Lanes, green: Lanes, blue: Lanes, address: Any) -> None:
    parts = [part.narrow(INT8) for part in (red, green, blue)]
    order = [pixel + _STORED * channel for pixel in range(_STORED) for channel in range(3)]
    for begin in range(0, PIXELS, _STORED):
        red, green, blue = (part.shuffled(part, range(begin, begin + _STORED)) for part in parts)
        # Shuffled vectors must have equally many lanes; the second half of `blue` is never taken.
        two, one = red.shuffled(green, range(2 * _STORED)), blue.shuffled(blue, range(2 * _STORED))
        two.shuffled(one, order).store(address, 3 * begin)


def _make(chroma: _Chroma) -> Any:
    """A function of addresses: luma of the first pixel; Cb and Cr of its row, and of the next nearest row; RGB."""

    @emitted()
    def convert(builder: ir.IRBuilder, luma: Any, near: Any, far: Any, rgb: Any) -> None:
        level = Lanes.load(builder, luma, INT8, PIXELS).wide(INT16)
        b, r = (
            chroma(builder, builder.extract_value(near, of), builder.extract_value(far, of)) - 128 for of in range(2)
        )
        red, blue = level + _times(r, _RED_OF_RED), level + _times(b, _BLUE_OF_BLUE)
        both = b.signed(INT32) * _GREEN_OF_BLUE + r.signed(INT32) * _GREEN_OF_RED
        green = level + both.rounded(_BITS).narrow(INT16)
        _store_rgb(red.level(), green.level(), blue.level(), rgb)

    return convert


@emitted()
def gray(builder: ir.IRBuilder, luma: Any, rgb: Any) -> None:
    level = Lanes.load(builder, luma, INT8, PIXELS)
    _store_rgb(level, level, level, rgb)


same: Any = _make(_same)
repeated: Any = _make(_repeated)
between_two: Any = _make(_between_two)
between_four: Any = _make(_between_four)


class Plane(NamedTuple):
    """Samples of a component, as many rows as are needed at a time: row y is in slot y % rows.

    address: of the first sample of slot 0. stride: bytes from slot to slot. rows: number of slots, 2^k. size: side of a
    block, 8, 4, 2 or 1. top, left: position of the first sample in the component. height, width: of the component.
    """

    address: int
    stride: int
    rows: int
    size: int
    top: int
    left: int
    height: int
    width: int


class Part(NamedTuple):
    """A part of an image at 1/factor of its size.

    first_row..end_row-1 and first_column..end_column-1: the MCUs that are decoded. top, left, height, width: the
    pixels that are made of them. across, down: luma samples for each chroma sample.
    """

    first_row: int
    first_column: int
    end_row: int
    end_column: int
    top: int
    left: int
    height: int
    width: int
    across: int
    down: int
    luma: Plane
    blue: Plane
    red: Plane


@inlined
def _plane(frame: Frame, address: int, size: int, across: int, down: int, mcus: tuple[int, int, int]) -> Plane:
    """Of a component with across × down blocks of `size` in an MCU. mcus: first row, first column, columns."""
    first_row, first_column, columns = mcus
    tall, wide = 8 * frame.down, 8 * frame.across
    return Plane(
        address + _PAD,
        columns * across * size + 2 * _PAD,
        _KEPT_MCUS * down * size,
        size,
        first_row * down * size,
        first_column * across * size,
        -(-frame.height * down * size // tall),
        -(-frame.width * across * size // wide),
    )


@inlined
def make_part(frame: Frame, window: I64, factor: int, address: int) -> Part:
    """The part that a window needs. window: top, left, bottom, right. address: of memory for its planes."""
    tall, wide = 8 * frame.down, 8 * frame.across
    # At least one pixel, beginning where chroma of half the width has a sample.
    top = min(max(window[0], 0), frame.height - 1) // factor
    left = min(max(window[1], 0), frame.width - 1) // factor & ~1
    bottom = max(-(-min(window[2], frame.height) // factor), top + 1)
    right = max(-(-min(window[3], frame.width) // factor), left + 1)
    edge = 2 * factor  # one chroma sample
    first_row, first_column = max(top * factor - edge, 0) // tall, max(left * factor - edge, 0) // wide
    end_row = min(-(-(bottom * factor + edge) // tall), frame.rows)
    end_column = min(-(-(right * factor + edge) // wide), frame.columns)
    size = 8 // factor
    # Chroma is decoded at twice the size where that saves its interpolation.
    other = 2 * size if frame.across == 2 and frame.down == 2 and size < 8 else size
    place = first_row, first_column, end_column - first_column
    luma = _plane(frame, address, size, frame.across, frame.down, place)
    blue = _plane(frame, address + luma.rows * luma.stride, other, 1, 1, place)
    red = _plane(frame, blue.address - _PAD + blue.rows * blue.stride, other, 1, 1, place)
    across, down = frame.across * size // other, frame.down * size // other
    height, width = bottom - top, right - left
    return Part(first_row, first_column, end_row, end_column, top, left, height, width, across, down, luma, blue, red)


def plane_bytes(widths: I64) -> int:
    """The most bytes for the planes of parts of these widths in pixels: whole MCUs of 16×16, and two pixels around."""
    widest = int(widths.max(initial=0)) + 40 + 2 * _PAD
    return 3 * (_KEPT_MCUS * 16 + 1) * widest


@inlined
def ready_rows(frame: Frame, part: Part, row: int) -> int:
    """How many rows of pixels are complete once the planes hold this row of MCUs."""
    if row == part.end_row - 1:
        return part.height
    # The last row needs the chroma below it.
    rows = (row + 1) * frame.down * part.luma.size - (1 if part.down == 2 else 0)
    return min(max(rows - part.top, 0), part.height)


@inlined
def convert_rows(frame: Frame, part: Part, begin: int, end: int, address: int) -> None:
    """Rows begin..end-1 of the part to RGB. address: of the pixels of the part."""
    luma, blue, red = part.luma, part.blue, part.red
    smooth = blue.width > 2 and luma.size > 1  # as libjpeg does it
    for y in range(begin, end):
        luma_at = _row(luma, part.top + y) + part.left - luma.left
        rgb = address + 3 * part.width * y
        if frame.components == 1:
            for x in range(0, part.width, PIXELS):
                gray(luma_at + x, rgb + 3 * x)
            continue
        near = (part.top + y) // part.down
        far = near if part.down == 1 else min(max(near - 1 + 2 * ((part.top + y) & 1), 0), blue.height - 1)
        skip = part.left // part.across - blue.left
        blue_near, blue_far = _row(blue, near) + skip, _row(blue, far) + skip
        red_near, red_far = _row(red, near) + skip, _row(red, far) + skip
        for x in range(0, part.width, PIXELS):
            c, to = x // part.across, rgb + 3 * x
            these, others = (blue_near + c, red_near + c), (blue_far + c, red_far + c)
            if part.across == 1:
                same(luma_at + x, these, others, to)
            elif not smooth:
                repeated(luma_at + x, these, others, to)
            elif part.down == 1:
                between_two(luma_at + x, these, others, to)
            else:
                between_four(luma_at + x, these, others, to)


@inlined
def _row(plane: Plane, y: int) -> int:
    """The address of a row of the component."""
    return plane.address + ((y - plane.top) & (plane.rows - 1)) * plane.stride


@inlined
def repeat_edges(frame: Frame, part: Part, row: int) -> None:
    """Repeats the first and the last chroma sample of each line in a row of MCUs, where it is at the image's edge."""
    if part.across == 1:
        return
    for plane in (part.blue, part.red):
        for y in range(row * plane.size, (row + 1) * plane.size):
            levels = bytes_at(_row(plane, y) - 1)
            if part.first_column == 0:
                levels[0] = levels[1]
            if part.end_column == frame.columns:
                end = plane.width - plane.left
                levels[end + 1] = levels[end]
