"""The coded pixels of a JPEG to planes of samples, a row of MCUs at a time: Huffman decoding and the inverse DCT."""

import numpy as np

from gpuload.decode.native.compiled import compiled, inlined
from gpuload.decode.native.intrinsics import bytes_at, load_word, longs_at, numbers_at, store_word, swapped, words_at
from gpuload.decode.native.jpeg.blocks import (
    AT,
    BITS,
    FAULT,
    LEFT,
    MORE,
    STATES,
    inverse_dct_2,
    inverse_dct_4,
    inverse_dct_8,
    read_block,
    skip_block,
)
from gpuload.decode.native.jpeg.frame import (
    AC,
    DC,
    QUANT,
    READ_BYTES,
    Addresses,
    File,
    Frame,
    codes_of,
    component_of,
    lookup_of,
    quantization_of,
)
from gpuload.decode.native.jpeg.part import Part

_MCU_BYTES = 1536  # an MCU takes no more: 6 blocks of 64 symbols of up to 31 bits
_SPARE_BYTES = _MCU_BYTES + 64
_ROOM = READ_BYTES - _SPARE_BYTES
_END_OF_IMAGE, _RESTART = 0xD9, 0xD0

# `Addresses.position`: the next byte of the file to copy; bytes in `Addresses.bytes`; whether a marker follows them.
# And where copying ends before that; bytes of the scan, without stuffed ones, before `Addresses.bytes`.
FILE, READ, ENDED, LIMIT, BEHIND = range(5)


@inlined
def begin_scan(file: File, frame: Frame, scratch: Addresses) -> None:
    """Prepares for the first row."""
    position = longs_at(scratch.position)
    position[LIMIT], position[BEHIND] = file.size, 0
    _begin(file, scratch, frame.at)


@inlined
def seek(file: File, scratch: Addresses, bit: int, end: int) -> None:
    """Prepares for the MCU that begins at this bit of the file, and to read no bits from `end` on. The DC coefficients
    before it are the caller's."""
    position, state = longs_at(scratch.position), words_at(scratch.state)
    position[LIMIT] = min((end + 7) >> 3, file.size)
    _begin(file, scratch, bit >> 3)
    state[LEFT] -= np.uint64(bit & 7)
    state[BITS] <<= np.uint64(bit & 7)


@inlined
def has_read_up_to(scratch: Addresses, end: int, at_marker: bool) -> bool:
    """Whether exactly the bits before this bit of the file were read, to which `seek` set the end. at_marker: a restart
    marker begins there, before which some bits of a byte may be left."""
    position = longs_at(scratch.position)
    unread = ((end + 7) >> 3) * 8 - end
    return bool(position[FILE] >= position[LIMIT] and used_bits(scratch, at_marker) == position[READ] * 8 - unread)


@inlined
def _begin(file: File, scratch: Addresses, at: int) -> None:
    """Starts at this byte of the file, with the state of a scan that begins."""
    position, state = longs_at(scratch.position), words_at(scratch.state)
    position[FILE], position[READ] = at, 0
    _copy(file, scratch)
    for number in range(STATES):
        state[number] = np.uint64(0)
    state[AT], state[LEFT], state[BITS] = np.uint64(scratch.bytes + 7), np.uint64(56), load_word(scratch.bytes)


@inlined
def any_ff(word: np.uint64) -> bool:
    """Whether a byte is 0xFF: whether one of the inverted ones is 0."""
    return bool((~word - np.uint64(0x0101010101010101)) & word & np.uint64(0x8080808080808080) != 0)


@inlined
def _copy(file: File, scratch: Addresses) -> None:
    """Fills `scratch.bytes` with the next bytes of the file, without stuffed ones, up to a marker or the end."""
    position, read, data = longs_at(scratch.position), bytes_at(scratch.bytes), bytes_at(file.address)
    at, number, ended, limit = position[FILE], position[READ], 0, position[LIMIT]
    while number < _ROOM:
        if at + 8 <= limit and number + 8 <= _ROOM:
            word = load_word(file.address + at)
            if not any_ff(word):
                store_word(scratch.bytes + number, swapped(word))
                at, number = at + 8, number + 8
                continue
        if at >= limit:
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
    position[FILE], position[READ], position[ENDED] = at, number, ended


@inlined
def used_bits(scratch: Addresses, whole: bool = False) -> int:
    """Bits used of those in `scratch.bytes`. whole: with the rest of the last byte."""
    state = words_at(scratch.state)
    used = (np.int64(state[AT]) - scratch.bytes) * 8 - np.int64(state[LEFT])
    return int((used + 7) & -8 if whole else used)


@inlined
def _is_at(file: File, scratch: Addresses, marker: int) -> bool:
    """Whether this marker follows, and no unused whole byte is before it."""
    position = longs_at(scratch.position)
    at = position[FILE]
    if position[ENDED] == 0 or used_bits(scratch, True) != position[READ] * 8 or at + 1 >= file.size:
        return False
    return bool(bytes_at(file.address)[at + 1] == marker)


@inlined
def ends_well(file: File, scratch: Addresses, whole: bool) -> bool:
    """Whether no more bits were used than there are, and, after the whole scan, the end of the image follows."""
    position = longs_at(scratch.position)
    if whole:
        return _is_at(file, scratch, _END_OF_IMAGE)
    return bool(position[ENDED] == 0 or used_bits(scratch) <= position[READ] * 8)


@compiled
def supply(file: File, frame: Frame, scratch: Addresses, mcu: int) -> bool:
    """Copies bits for this MCU, where needed. False if the file ended before, or a restart marker is missing."""
    position, state = longs_at(scratch.position), words_at(scratch.state)
    if is_after_marker(frame, mcu):
        turn = mcu // frame.restart - 1
        if not _is_at(file, scratch, _RESTART + (turn & 7)):
            return False
        position[BEHIND] += position[READ]
        _begin(file, scratch, position[FILE] + 2)
    begin = np.int64(state[AT]) - scratch.bytes
    if begin + _MCU_BYTES <= position[READ]:
        return True
    if position[ENDED] != 0:
        return bool(used_bits(scratch) <= position[READ] * 8)
    read, kept = bytes_at(scratch.bytes), position[READ] - begin
    for number in range(kept):
        read[number] = read[begin + number]
    position[READ] = kept
    position[BEHIND] += begin
    _copy(file, scratch)
    state[AT] = np.uint64(scratch.bytes)
    return True


@inlined
def is_after_marker(frame: Frame, mcu: int) -> bool:
    """Whether a restart marker is before this MCU."""
    return bool(frame.restart != 0 and mcu != 0 and mcu % frame.restart == 0)


@inlined
def is_low(frame: Frame, scratch: Addresses) -> bool:
    """Whether the next MCU needs `supply`."""
    at = np.int64(words_at(scratch.state)[AT])
    return bool(frame.restart != 0 or at - scratch.bytes + _MCU_BYTES > longs_at(scratch.position)[READ])


@inlined
def read_row(file: File, frame: Frame, scratch: Addresses, part: Part, row: int, columns: tuple[int, int]) -> bool:
    """Decodes what the part needs of a row of MCUs into its planes. False if the row has a fault.

    columns: the first one to read, and the end.
    """
    state, coefficients = words_at(scratch.state), numbers_at(scratch.coefficients)
    luma = frame.across * frame.down
    blocks = luma if frame.components == 1 else luma + 2
    row_is_wanted = part.first_row <= row and row < part.end_row
    for column in range(columns[0], columns[1]):
        if is_low(frame, scratch) and not supply(file, frame, scratch, row * frame.columns + column):
            return False
        wanted = row_is_wanted and part.first_column <= column and column < part.end_column
        for block in range(blocks):
            number = max(block - luma + 1, 0)
            component = component_of(scratch, number)
            dc, ac = component[DC], component[AC]
            first, more, first_codes, more_codes = (
                lookup_of(scratch, dc),
                lookup_of(scratch, ac),
                codes_of(scratch, dc),
                codes_of(scratch, ac),
            )
            if not wanted:
                if skip_block(state, number, first, first_codes, more, more_codes) == FAULT:
                    return False
                continue
            quant = quantization_of(scratch, component[QUANT])
            found = read_block(state, number, first, first_codes, more, more_codes, quant, coefficients)
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
            _transform(scratch.coefficients, target, plane.stride, plane.size, found == MORE)
    return True


@inlined
def skip_mcu(frame: Frame, scratch: Addresses) -> bool:
    """Reads past an MCU. False if it has a fault."""
    luma, good = frame.across * frame.down, True
    for block in range(luma if frame.components == 1 else luma + 2):
        number = max(block - luma + 1, 0)
        component = component_of(scratch, number)
        dc, ac = component[DC], component[AC]
        lookups = lookup_of(scratch, dc), lookup_of(scratch, ac)
        codes = codes_of(scratch, dc), codes_of(scratch, ac)
        found = skip_block(words_at(scratch.state), number, lookups[0], codes[0], lookups[1], codes[1])
        good = good and found != FAULT
    return good


@inlined
def _transform(block_at: int, target: int, stride: int, size: int, any_ac: bool) -> None:
    """The coefficients that were read, to samples. any_ac: there are other coefficients than DC."""
    if size == 8 and any_ac:
        inverse_dct_8(block_at, target, stride)
    elif size == 4 and any_ac:
        inverse_dct_4(block_at, target, stride)
    elif size == 2 and any_ac:
        inverse_dct_2(block_at, target, stride)
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
