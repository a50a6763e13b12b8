"""Images of a batch, or what is wanted of them, into memory that is there."""

import numpy as np
import numpy.typing as npt
from numba import carray

from gpuload.compiled import compiled, kept
from gpuload.jpeg.colors import PIXELS, between_four, between_two, gray, repeated, same
from gpuload.jpeg.exif import UPRIGHT
from gpuload.jpeg.frame import ACROSS, DOWN, Frame, Work, make_work, read_frame
from gpuload.jpeg.scan import Part, Plane, read_scan
from gpuload.pointers import bytes_at

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_PAD = 32  # bytes before and after each row of a plane


def room_for(windows: I64, factors: I64) -> tuple[I64, int]:
    """Bytes for the pixels of each image, and for what is needed while one of them is decoded."""
    heights = (windows[:, 2] - windows[:, 0]) // factors + 2
    widths = (windows[:, 3] - windows[:, 1]) // factors + 3
    # Whole units of 16×16 and two pixels around them.
    planes = 3 * (heights + 40) * (widths + 40 + 2 * _PAD)
    return 3 * (heights * widths + PIXELS), int(planes.max(initial=0))


def load_compiled() -> None:
    """Loads, or compiles, `decode`; else the first image would."""
    numbers, sides = np.zeros(0, np.int64), np.zeros((0, 4), np.int64)
    decode(np.zeros((0, 2), np.int64), sides, numbers, True, 0, numbers, make_work(), np.zeros((0, 7), np.int64))


@kept
def decode(
    spans: I64, windows: I64, factors: I64, upright: bool, memory: int, rooms: I64, work: Work, pictures: I64
) -> None:
    """JPEGs to RGB, each into its part of the memory.

    spans: int64 (N, 2), address and number of bytes of each. windows: int64 (N, 4), top, left, bottom, right: what is
    wanted, in pixels of the stored image. factors: int64 (N,), 1, 2, 4 or 8: decoded at 1/factor of its size.
    upright: all are known to be, whatever their EXIF data say. memory: address of what `room_for` asks for: `rooms`,
    int64 (N,), bytes for each image, then those for planes. pictures: int64 (N, 7), with the height and width that the index says; those of an address of 0
    are decoded, and get their row as `gpuload.resampling.resample` takes it. It stays as it is for what is not to be
    decoded here, is of another size, or has any fault.
    """
    scratch = memory
    for image in range(len(spans)):
        scratch += rooms[image]
    for image in range(len(spans)):
        target = memory
        memory += rooms[image]
        if pictures[image, 0] != 0:
            continue
        file = carray(bytes_at(spans[image, 0]), (spans[image, 1],))
        frame = read_frame(file, work)
        if frame.at == 0 or frame.height != pictures[image, 1] or frame.width != pictures[image, 2]:
            continue
        if frame.orientation != UPRIGHT and not upright:
            continue
        _decode_one(file, frame, work, windows[image], factors[image], scratch, target, pictures[image])


@compiled
def _decode_one(
    file: U8,
    frame: Frame,
    work: Work,
    window: I64,
    factor: int,
    scratch: int,
    target: int,
    picture: I64,
) -> None:
    across, down = work.components[0, ACROSS], work.components[0, DOWN]
    tall, wide = 8 * down, 8 * across
    rows, columns = -(-frame.height // tall), -(-frame.width // wide)
    # In pixels of 1/factor, at least one of them, and where chroma that is half as wide has a level.
    top = min(max(window[0], 0), frame.height - 1) // factor
    left = min(max(window[1], 0), frame.width - 1) // factor & ~1
    bottom = max(-(-min(window[2], frame.height) // factor), top + 1)
    right = max(-(-min(window[3], frame.width) // factor), left + 1)
    edge = 2 * factor
    part = Part(
        max(top * factor - edge, 0) // tall,
        max(left * factor - edge, 0) // wide,
        min(-(-(bottom * factor + edge) // tall), rows),
        min(-(-(right * factor + edge) // wide), columns),
    )
    size = 8 // factor
    # Chroma is decoded at twice the size, where that takes the place of widening it.
    other = 2 * size if across == 2 and down == 2 and size < 8 else size
    wider, higher = across * size // other, down * size // other
    stride = (part.right - part.left) * across * size + 2 * _PAD
    other_stride = (part.right - part.left) * other + 2 * _PAD
    blue_at = scratch + (part.bottom - part.top) * down * size * stride
    red_at = blue_at + (part.bottom - part.top) * other * other_stride
    planes = (
        Plane(scratch + _PAD, stride, size),
        Plane(blue_at + _PAD, other_stride, other),
        Plane(red_at + _PAD, other_stride, other),
    )
    end = len(file)
    whole = part.bottom == rows or file[end - 2] != 0xFF or file[end - 1] != 0xD9
    if not read_scan(file, frame, work, part, planes, whole):
        return
    height, width = bottom - top, right - left
    luma_at = planes[0].address + (top - part.top * down * size) * stride + left - part.left * across * size
    if frame.components == 1:
        for y in range(height):
            for x in range(0, width, PIXELS):
                gray(luma_at + y * stride + x, target + 3 * (width * y + x))
    else:
        # The component's own size, and where the part begins in it.
        own_width, own_height = -(-frame.width * other // wide), -(-frame.height * other // tall)
        first_y, first_x = part.top * other, part.left * other
        smooth = own_width > 2 and size > 1  # as libjpeg
        if wider == 2 and smooth:
            _repeat_edges(planes[1], part, columns, own_width - first_x)
            _repeat_edges(planes[2], part, columns, own_width - first_x)
        for y in range(height):
            near = (top + y) // higher
            far = min(max(near - 1 + 2 * ((top + y) % higher), 0), own_height - 1)
            near, far = (near - first_y) * other_stride, (far - first_y) * other_stride
            for x in range(0, width, PIXELS):
                luma, rgb = luma_at + y * stride + x, target + 3 * (width * y + x)
                skip = (left + x) // wider - first_x
                blue, red = planes[1].address + skip, planes[2].address + skip
                if wider == 1:
                    same(luma, blue + near, blue + near, red + near, red + near, rgb)
                elif not smooth:
                    repeated(luma, blue + near, blue + near, red + near, red + near, rgb)
                elif higher == 1:
                    between_two(luma, blue + near, blue + near, red + near, red + near, rgb)
                else:
                    between_four(luma, blue + near, blue + far, red + near, red + far, rgb)
    picture[0], picture[1], picture[2], picture[3] = target, height, width, 3 * width
    picture[4], picture[5], picture[6] = top * factor, left * factor, factor


@compiled
def _repeat_edges(plane: Plane, part: Part, columns: int, width: int) -> None:
    """Before the first and after the last level of each row the same ones, if these are the image's."""
    for row in range((part.bottom - part.top) * plane.size):
        levels = bytes_at(plane.address + row * plane.stride - 1)
        if part.left == 0:
            levels[0] = levels[1]
        if part.right == columns:
            levels[width + 1] = levels[width]
