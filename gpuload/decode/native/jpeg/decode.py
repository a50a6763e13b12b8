"""Decodes the images of a batch, or the parts needed of them, into memory of the caller."""

import numpy as np

from gpuload.decode.native.compiled import cached, inlined
from gpuload.decode.native.jpeg.exif import UPRIGHT
from gpuload.decode.native.jpeg.frame import File, Frame, read_frame
from gpuload.decode.native.jpeg.part import Part, make_part, plane_bytes
from gpuload.decode.native.jpeg.rows import SPARE_PIXELS, convert_rows, ready_rows, repeat_edges
from gpuload.decode.native.jpeg.scan import begin_scan, ends_well, read_row
from gpuload.decode.native.jpeg.scratch import Addresses, Scratch
from gpuload.decode.native.pointers import bytes_at
from gpuload.types import I64


def room_for(windows: I64, factors: I64) -> tuple[I64, int]:
    """Bytes for the pixels of each image, int64 (N,), and for the planes of the one that is being decoded."""
    heights = np.maximum(windows[:, 2] - windows[:, 0], 0) // factors + 2
    widths = np.maximum(windows[:, 3] - windows[:, 1], 0) // factors + 3
    return 3 * (heights * widths + SPARE_PIXELS), plane_bytes(widths)


def load_compiled() -> None:
    """Loads, or compiles, `decode`; otherwise the first image would."""
    numbers, sides = np.zeros(0, np.int64), np.zeros((0, 4), np.int64)
    decode(np.zeros((0, 2), np.int64), sides, numbers, True, 0, numbers, Scratch(), np.zeros((0, 7), np.int64))


def decode(
    spans: I64, windows: I64, factors: I64, upright: bool, memory: int, rooms: I64, scratch: Scratch, pictures: I64
) -> None:
    """JPEGs to RGB, each into its part of the memory.

    spans: int64 (N, 2), address and size in bytes of each file.
    windows: int64 (N, 4), top, left, bottom, right of the part needed, in pixels of the stored image.
    factors: int64 (N,), 1, 2, 4 or 8: decoded at 1/factor of its size.
    upright: all are known to be upright, whatever their Exif data say.
    memory: address of as many bytes as `room_for` says: `rooms`, int64 (N,), for the pixels of each image, then those
        for the planes.
    pictures: int64 (N, 7), as `gpuload.decode.native.resample.resample` takes them, with the height and width that the
        index gives. Rows with an address of 0 are decoded and completed. A row stays as it is where the image is not
        decoded here, is of another size, or has any fault.
    """
    _decode(spans, windows, factors, upright, memory, rooms, scratch.addresses, pictures)


@cached
def _decode(
    spans: I64, windows: I64, factors: I64, upright: bool, memory: int, rooms: I64, scratch: Addresses, pictures: I64
) -> None:
    planes = memory
    for image in range(len(spans)):
        planes += rooms[image]
    for image in range(len(spans)):
        target, picture, factor = memory, pictures[image], factors[image]
        memory += rooms[image]
        if picture[0] != 0:
            continue
        file = File(spans[image, 0], spans[image, 1])
        frame = read_frame(file, scratch)
        if frame.at == 0 or frame.height != picture[1] or frame.width != picture[2]:
            continue
        if frame.orientation != UPRIGHT and not upright:
            continue
        part = make_part(frame, windows[image], factor, planes)
        if _decode_part(file, frame, scratch, part, target):
            picture[0], picture[1], picture[2], picture[3] = target, part.height, part.width, 3 * part.width
            picture[4], picture[5], picture[6] = part.top * factor, part.left * factor, factor


@inlined
def _decode_part(file: File, frame: Frame, scratch: Addresses, part: Part, target: int) -> bool:
    """Decodes a part. False if the file has a fault."""
    # Of a file that does not end as one should, all rows are read, to find the fault.
    end = bytes_at(file.address + file.size - 2)
    whole = part.end_row == frame.rows or end[0] != 0xFF or end[1] != 0xD9
    done = 0
    begin_scan(file, frame, scratch)
    for row in range(frame.rows if whole else part.end_row):
        if not read_row(file, frame, scratch, part, row):
            return False
        if part.first_row <= row and row < part.end_row:
            repeat_edges(frame, part, row)
            ready = ready_rows(frame, part, row)
            convert_rows(frame, part, done, ready, target)
            done = ready
    return ends_well(file, scratch, whole)
