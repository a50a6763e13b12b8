"""The coded pixels of a JPEG to planes of levels: Huffman decoding and the inverse DCT, of what is wanted of it."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpuload.compiled import compiled
from gpuload.jpeg import inverse_dct
from gpuload.jpeg.blocks import AT, BITS, FAULT, LEFT, MORE, STATES, read_block, skip_block
from gpuload.jpeg.frame import AC, ACROSS, DC, DOWN, SCALES, Frame, Work
from gpuload.pointers import bytes_at, entries_at, load_word, numbers_at, store_word, words_at

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]

_UNIT_BYTES = 1536  # no more are read for a unit: 6 blocks of 64 symbols of up to 31 bits
_SPARE_BYTES = _UNIT_BYTES + 64


class Part(NamedTuple):
    """What of an image is decoded, in units: rows top..bottom-1, columns left..right-1, at 1/factor of its size."""

    top: int
    left: int
    bottom: int
    right: int


class Plane(NamedTuple):
    """Where the levels of a component go.

    address: of the first one of the part. stride: bytes from row to row. size: of a block's side, 8, 4, 2 or 1.
    """

    address: int
    stride: int
    size: int


@compiled
def _copy(file: U8, at: int, read: U8, number: int) -> tuple[int, int, bool]:
    """Fills `read`, of which there are `number` bytes, without what is stuffed.

    Returns where it stands in the file then, how many there are, and whether a marker or the end of the file came.
    """
    size, room = len(file), len(read) - _SPARE_BYTES
    ended = False
    while number < room:
        if at + 8 <= size and number + 8 <= room:
            # No byte is 0xFF: none of the inverted ones is 0.
            word = ~load_word(file.ctypes.data + at)
            if (word - np.uint64(0x0101010101010101)) & ~word & np.uint64(0x8080808080808080) == 0:
                for place in range(8):
                    read[number + place] = file[at + place]
                at, number = at + 8, number + 8
                continue
        if at >= size:
            ended = True
            break
        byte = file[at]
        if byte == 0xFF:
            if at + 1 >= size or file[at + 1] != 0:
                ended = True
                break
            at += 1
        read[number] = byte
        at, number = at + 1, number + 1
    if ended:
        for place in range(number, number + _SPARE_BYTES):
            read[place] = 0
    return at, number, ended


@compiled
def read_scan(file: U8, frame: Frame, work: Work, part: Part, planes: tuple[Plane, Plane, Plane], whole: bool) -> bool:
    """Decodes the part into its planes. False if there is anything wrong with what has been read.

    whole: read it to the end, and expect the end of the image there.
    """
    components, read = work.components, work.bytes
    start, block_at = read.ctypes.data, work.coefficients.ctypes.data
    state, coefficients = words_at(work.state.ctypes.data), numbers_at(block_at)
    across, down = components[0, ACROSS], components[0, DOWN]
    columns, rows = -(-frame.width // (8 * across)), -(-frame.height // (8 * down))
    luma = across * down
    blocks = luma if frame.components == 1 else luma + 2
    at_file, number, ended = _copy(file, frame.at, read, 0)
    _begin(work)
    left_to_restart = frame.restart
    for row in range(rows if whole else part.bottom):
        for column in range(columns):
            if frame.restart != 0:
                if left_to_restart == 0:
                    # The next marker, with no whole byte before it, and in its turn.
                    turn = (row * columns + column) // frame.restart - 1
                    if not ended or (_done(work) + 7) // 8 != number or at_file + 1 >= len(file):
                        return False
                    if np.int64(file[at_file + 1]) != 0xD0 + (turn & 7):
                        return False
                    at_file, number, ended = _copy(file, at_file + 2, read, 0)
                    _begin(work)
                    left_to_restart = frame.restart
                left_to_restart -= 1
            begin = np.int64(state[AT]) - start
            if begin + _UNIT_BYTES > number:
                if not ended:
                    kept = number - begin
                    for place in range(kept):
                        read[place] = read[begin + place]
                    at_file, number, ended = _copy(file, at_file, read, kept)
                    state[AT] = np.uint64(start)
                elif _done(work) > number * 8:
                    return False
            wanted = part.top <= row and row < part.bottom and part.left <= column and column < part.right
            for block in range(blocks):
                component = max(block - luma + 1, 0)
                dc, ac = components[component, DC], components[component, AC]
                first, more = entries_at(work.lookups[dc].ctypes.data), entries_at(work.lookups[ac].ctypes.data)
                first_codes, more_codes = bytes_at(work.codes[dc].ctypes.data), bytes_at(work.codes[ac].ctypes.data)
                if not wanted:
                    if skip_block(state, component, first, first_codes, more, more_codes) == FAULT:
                        return False
                    continue
                scales = numbers_at(work.scales[components[component, SCALES]].ctypes.data)
                found = read_block(state, component, first, first_codes, more, more_codes, scales, coefficients)
                if found == FAULT:
                    return False
                plane = planes[0] if component == 0 else (planes[1] if component == 1 else planes[2])
                if component == 0:
                    y = (row - part.top) * down + block // across
                    x = (column - part.left) * across + block % across
                else:
                    y, x = row - part.top, column - part.left
                target = plane.address + (y * plane.stride + x) * plane.size
                _show(work, block_at, target, plane.stride, plane.size, found == MORE)
    if whole:
        return ended and (_done(work) + 7) // 8 == number and at_file + 1 < len(file) and file[at_file + 1] == 0xD9
    return not ended or _done(work) <= number * 8


@compiled
def _begin(work: Work) -> None:
    for place in range(STATES):
        work.state[place] = 0
    start = work.bytes.ctypes.data
    work.state[AT], work.state[LEFT], work.state[BITS] = start + 7, 56, load_word(start)


@compiled
def _done(work: Work) -> int:
    """Bits that have been used of those in `work.bytes`."""
    return (np.int64(work.state[AT]) - work.bytes.ctypes.data) * 8 - np.int64(work.state[LEFT])


@compiled
def _show(work: Work, block_at: int, target: int, stride: int, size: int, any_other: bool) -> None:
    if size == 8 and any_other:
        inverse_dct.to_8(block_at, target, stride)
    elif size == 4 and any_other:
        inverse_dct.to_4(block_at, target, stride)
    elif size == 2 and any_other:
        inverse_dct.to_2(block_at, target, stride)
    else:
        level = ((work.coefficients[0] + np.int32(4)) >> np.int32(3)) + np.int32(128)
        level = min(max(level, np.int32(0)), np.int32(255))
        if size == 8:
            word = np.uint64(level) * np.uint64(0x0101010101010101)
            for row in range(8):
                store_word(target + row * stride, word)
        else:
            pixels = bytes_at(target)
            for row in range(size):
                for x in range(size):
                    pixels[row * stride + x] = np.uint8(level)
