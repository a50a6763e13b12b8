"""The coded pixels of a JPEG to planes of levels, a row of units at a time: Huffman decoding and the inverse DCT."""

import numpy as np

from gpuload.decode.native.compiled import called, compiled
from gpuload.decode.native.jpeg import inverse_dct
from gpuload.decode.native.jpeg.blocks import AT, BITS, FAULT, LEFT, MORE, STATES, read_block, skip_block
from gpuload.decode.native.jpeg.frame import AC, DC, SCALES, File, Frame, codes_of, component_of, lookup_of, scales_of
from gpuload.decode.native.jpeg.part import Part
from gpuload.decode.native.jpeg.work import READ_BYTES, Addresses
from gpuload.decode.native.pointers import bytes_at, load_word, longs_at, numbers_at, store_word, swapped, words_at

_UNIT_BYTES = 1536  # no more are read for a unit: 6 blocks of 64 symbols of up to 31 bits
_SPARE_BYTES = _UNIT_BYTES + 64
_ROOM = READ_BYTES - _SPARE_BYTES
_END_OF_IMAGE, _RESTART = 0xD9, 0xD0

# `Addresses.place`: where the file is read on; how many bytes are in `Addresses.bytes`; whether a marker follows.
FILE, READ, ENDED = range(3)


@compiled
def begin_scan(file: File, frame: Frame, work: Addresses) -> None:
    """Before the first row."""
    _begin(file, work, frame.at)


@compiled
def _begin(file: File, work: Addresses, at: int) -> None:
    """Goes on at this byte of the file, with nothing known of what came before."""
    place, state = longs_at(work.place), words_at(work.state)
    place[FILE], place[READ] = at, 0
    _copy(file, work)
    for number in range(STATES):
        state[number] = np.uint64(0)
    state[AT], state[LEFT], state[BITS] = np.uint64(work.bytes + 7), np.uint64(56), load_word(work.bytes)


@compiled
def _copy(file: File, work: Addresses) -> None:
    """Fills `work.bytes` with what follows in the file, without what is stuffed, up to a marker or the end."""
    place, read, data = longs_at(work.place), bytes_at(work.bytes), bytes_at(file.address)
    at, number, ended = place[FILE], place[READ], 0
    while number < _ROOM:
        if at + 8 <= file.size and number + 8 <= _ROOM:
            # No byte is 0xFF: none of the inverted ones is 0.
            word = load_word(file.address + at)
            if (~word - np.uint64(0x0101010101010101)) & word & np.uint64(0x8080808080808080) == 0:
                store_word(work.bytes + number, swapped(word))
                at, number = at + 8, number + 8
                continue
        if at >= file.size:
            ended = 1
            break
        byte = data[at]
        if byte == 0xFF:
            if at + 1 >= file.size or data[at + 1] != 0:
                ended = 1
                break
            at += 1
        read[number] = byte
        at, number = at + 1, number + 1
    if ended != 0:
        for spare in range(number, number + _SPARE_BYTES):
            read[spare] = np.uint8(0)
    place[FILE], place[READ], place[ENDED] = at, number, ended


@compiled
def _used_bits(work: Addresses) -> int:
    """Of those in `work.bytes`."""
    state = words_at(work.state)
    return int((np.int64(state[AT]) - work.bytes) * 8 - np.int64(state[LEFT]))


@compiled
def _is_at(file: File, work: Addresses, marker: int) -> bool:
    """Whether this marker follows, with no whole byte before it."""
    place = longs_at(work.place)
    at = place[FILE]
    if place[ENDED] == 0 or (_used_bits(work) + 7) // 8 != place[READ] or at + 1 >= file.size:
        return False
    return bool(bytes_at(file.address)[at + 1] == marker)


@compiled
def ends_well(file: File, work: Addresses, whole: bool) -> bool:
    """Whether no more bits were used than there were, and after a whole scan its end follows."""
    place = longs_at(work.place)
    if whole:
        return _is_at(file, work, _END_OF_IMAGE)
    return bool(place[ENDED] == 0 or _used_bits(work) <= place[READ] * 8)


@called
def _supply(file: File, frame: Frame, work: Addresses, unit: int) -> bool:
    """Sees to it that there are bits for this unit. False if the file ended before, or a restart marker is missing."""
    place, state = longs_at(work.place), words_at(work.state)
    if frame.restart != 0 and unit != 0 and unit % frame.restart == 0:
        turn = unit // frame.restart - 1
        if not _is_at(file, work, _RESTART + (turn & 7)):
            return False
        _begin(file, work, place[FILE] + 2)
    begin = np.int64(state[AT]) - work.bytes
    if begin + _UNIT_BYTES <= place[READ]:
        return True
    if place[ENDED] != 0:
        return bool(_used_bits(work) <= place[READ] * 8)
    read, kept = bytes_at(work.bytes), place[READ] - begin
    for number in range(kept):
        read[number] = read[begin + number]
    place[READ] = kept
    _copy(file, work)
    state[AT] = np.uint64(work.bytes)
    return True


@compiled
def read_row(file: File, frame: Frame, work: Addresses, part: Part, row: int) -> bool:
    """Decodes what the part wants of a row of units into its planes. False if there is anything wrong with it."""
    place, state, coefficients = longs_at(work.place), words_at(work.state), numbers_at(work.coefficients)
    luma = frame.across * frame.down
    blocks = luma if frame.components == 1 else luma + 2
    row_is_wanted = part.first_row <= row and row < part.end_row
    for column in range(frame.columns):
        is_low = frame.restart != 0 or np.int64(state[AT]) - work.bytes + _UNIT_BYTES > place[READ]
        if is_low and not _supply(file, frame, work, row * frame.columns + column):
            return False
        wanted = row_is_wanted and part.first_column <= column and column < part.end_column
        for block in range(blocks):
            number = max(block - luma + 1, 0)
            component = component_of(work, number)
            dc, ac = component[DC], component[AC]
            first, more, first_codes, more_codes = (
                lookup_of(work, dc),
                lookup_of(work, ac),
                codes_of(work, dc),
                codes_of(work, ac),
            )
            if not wanted:
                if skip_block(state, number, first, first_codes, more, more_codes) == FAULT:
                    return False
                continue
            scales = scales_of(work, component[SCALES])
            found = read_block(state, number, first, first_codes, more, more_codes, scales, coefficients)
            if found == FAULT:
                return False
            y, x = row - part.first_row, column - part.first_column
            if number == 0:
                plane = part.luma
                y, x = y * frame.down + block // frame.across, x * frame.across + block % frame.across
            else:
                plane = part.blue if number == 1 else part.red
            slot = (y * plane.size) & (plane.rows - 1)
            target = plane.address + slot * plane.stride + x * plane.size
            _transform(work.coefficients, target, plane.stride, plane.size, found == MORE)
    return True


@compiled
def _transform(block_at: int, target: int, stride: int, size: int, any_other: bool) -> None:
    """The coefficients that were read, to levels. any_other: there are others than the first."""
    if size == 8 and any_other:
        inverse_dct.to_8(block_at, target, stride)
    elif size == 4 and any_other:
        inverse_dct.to_4(block_at, target, stride)
    elif size == 2 and any_other:
        inverse_dct.to_2(block_at, target, stride)
    else:
        level = ((numbers_at(block_at)[0] + np.int32(4)) >> np.int32(3)) + np.int32(128)
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
