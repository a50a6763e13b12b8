"""Decodes the images of a batch, or the parts needed of them, into memory of the caller."""

import numpy as np

from gpuload.decode.native.compiled import address_of, inlined
from gpuload.decode.native.intrinsics import array_at, bytes_at, longs_at
from gpuload.decode.native.jpeg.frame import UPRIGHT, Addresses, File, Frame, Scratch, addresses_at, read_frame
from gpuload.decode.native.jpeg.part import (
    SPARE_PIXELS,
    Part,
    convert_rows,
    make_part,
    plane_bytes,
    ready_rows,
    repeat_edges,
)
from gpuload.decode.native.jpeg.points import (
    NO_POINTS,
    Points,
    agrees,
    read_points,
    row_begin,
    row_bits,
    seek_row,
)
from gpuload.decode.native.jpeg.scan import begin_scan, ends_well, read_row
from gpuload.decode.native.steps import Step, step
from gpuload.types import I64

PICTURES = 5  # which of the arguments of `_decode` they are


def room_for(windows: I64, factors: I64) -> tuple[I64, int]:
    """Bytes for the pixels of each image, int64 (N,), and for the planes of the one that is being decoded."""
    heights = np.maximum(windows[:, 2] - windows[:, 0], 0) // factors + 2
    widths = np.maximum(windows[:, 3] - windows[:, 1], 0) // factors + 3
    return 3 * (heights * widths + SPARE_PIXELS), plane_bytes(widths)


def load_compiled() -> None:
    """Loads, or compiles, `decode`; otherwise the first image would."""
    address_of(_decode)


def decode(spans: I64, points: I64, windows: I64, factors: I64, upright: bool, rooms: I64, pictures: I64) -> Step:
    """What decodes JPEGs to RGB, those of a call one behind the other. A thread calls it with `own_arguments`.

    spans: int64 (N, 2), address and size in bytes of each file. points: the same of what points.py tells of each.
    windows: int64 (N, 4), top, left, bottom, right of the part needed, in pixels of the stored image.
    factors: int64 (N,), 1, 2, 4 or 8: decoded at 1/factor of its size.
    upright: all are known to be upright, whatever their Exif data say.
    rooms: as `room_for` says.
    pictures: int64 (N, 7), as `gpuload.decode.native.resample.resample` takes them, with the height and width that the
        index gives. Rows with an address of 0 are decoded and completed. A row stays as it is where the image is not
        decoded here, is of another size, or has any fault.
    """
    return Step(_decode, spans, points, windows, factors, rooms, pictures, upright)


def own_arguments(memory: int, scratch: Scratch) -> I64:
    """int64 (16,): the arguments of `_decode`, of which the first 7 are those of a `decode`.

    memory: address of as many bytes as `room_for` says for the images of a call, and for planes.
    """
    return np.array([*[0] * 7, memory, *scratch.addresses], np.int64)


@step
def _decode(arguments: int, begin: int, end: int) -> int:
    of, scratch = longs_at(arguments), addresses_at(arguments + 8 * 8)
    spans, all_points = array_at(longs_at(of[0]), (end, 2)), array_at(longs_at(of[1]), (end, 2))
    windows, factors, rooms = array_at(longs_at(of[2]), (end, 4)), longs_at(of[3]), longs_at(of[4])
    pictures, upright, target, planes = array_at(longs_at(of[PICTURES]), (end, 7)), of[6] != 0, of[7], of[7]
    for image in range(begin, end):
        planes += rooms[image]
    for image in range(begin, end):
        picture, factor, room = pictures[image], factors[image], target
        target += rooms[image]
        if picture[0] != 0:
            continue
        file = File(spans[image, 0], spans[image, 1])
        frame = read_frame(file, scratch)
        if frame.at == 0 or frame.height != picture[1] or frame.width != picture[2]:
            continue
        if frame.orientation != UPRIGHT and not upright:
            continue
        part = make_part(frame, windows[image], factor, planes)
        points, done = read_points(all_points[image, 0], all_points[image, 1], file, frame), False
        while not done:
            done = _decode_part(file, frame, scratch, part, room, points)
            if done:
                picture[0], picture[1], picture[2], picture[3] = room, part.height, part.width, 3 * part.width
                picture[4], picture[5], picture[6] = part.top * factor, part.left * factor, factor
            elif points.apart == 0:
                break
            points = NO_POINTS  # again, since the points may not be those of this file
    return 1


@inlined
def _decode_part(file: File, frame: Frame, scratch: Addresses, part: Part, target: int, points: Points) -> bool:
    """Decodes a part. False if the file has a fault, or its points have."""
    # Of a file that does not end as one should, all rows are read, to find the fault.
    end = bytes_at(file.address + file.size - 2)
    is_odd = end[0] != 0xFF or end[1] != 0xD9
    seeks = points.apart != 0 and not is_odd
    whole = part.end_row == frame.rows or is_odd
    done, row_at, columns = 0, row_begin(points, frame, part.first_row) if seeks else 0, (0, frame.columns)
    if not seeks:
        begin_scan(file, frame, scratch)
    for row in range(part.first_row if seeks else 0, frame.rows if whole else part.end_row):
        if seeks:
            columns = seek_row(file, frame, scratch, part, points, row, row_at)
            if columns[1] < 0:
                return False
        if not read_row(file, frame, scratch, part, row, columns):
            return False
        if seeks:
            if not agrees(file, frame, scratch, points, row, row_at, columns[1]):
                return False
            row_at += row_bits(points, row)
        if part.first_row <= row and row < part.end_row:
            repeat_edges(frame, part, row)
            ready = ready_rows(frame, part, row)
            convert_rows(frame, part, done, ready, target)
            done = ready
    return seeks or ends_well(file, scratch, whole)
