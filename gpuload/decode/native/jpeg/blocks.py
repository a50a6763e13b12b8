"""The coefficients of a block, out of the coded bits (ITU-T T.81, F.2.2).

Nearly all the time goes into a chain of which each link waits for the one before: the next bits, the entry for them,
how many bits that takes, the bits after those; 3.2 ns a symbol, 11 cycles with the ends of blocks (AMD EPYC, 2026-11).
All that is no link (the number, its place, its scale) is done beside it; bits are added without a branch, and while the
entry is looked up with those that are there: adding them before that made the whole decoder 8 % slower.
"""

from typing import Any

import numpy as np

from gpuload.decode.native.compiled import called, compiled
from gpuload.decode.native.jpeg.huffman import END, LONG, LOOKUP_BITS, SYMBOLS, entry_of
from gpuload.decode.native.pointers import load_word

# The places (row * 8 + column) of the coefficients in the order of the file.
_zigzag = sorted(range(64), key=lambda place: (sum(divmod(place, 8)), divmod(place, 8)[sum(divmod(place, 8)) % 2 == 0]))
_ORDER = np.array(_zigzag, np.uint8)

# The state of a scan, uint64: the address of the next byte, how many bits before it are not used yet, these bits from
# the top of a word, and for each component the first coefficient of the block before.
AT, LEFT, BITS, BEFORE = range(4)
STATES = BEFORE + 3

_SHIFT, _ONE, _THREE, _SIX, _ELEVEN, _SIXTEEN = (np.uint64(bits) for bits in (64 - LOOKUP_BITS, 1, 3, 6, 11, 16))
_MOST, _FULL, _FIVE_BITS = np.uint64(63), np.uint64(56), np.uint64(31)
_END, _LONG = np.uint64(END >> 16), np.uint64(LONG >> 16)

FAULT, ONLY_FIRST, MORE = -1, 0, 1


@compiled
def _number(bits: np.uint64, size: np.uint64) -> Any:
    """int32: the number in the first `size` bits: one that begins with 0 is below 0."""
    value = np.int64((bits >> _ONE) >> (_MOST - size))
    below = ~(np.int64(bits) >> np.int64(63))
    return np.int32(value - (((np.int64(1) << np.int64(size)) - np.int64(1)) & below))


@called
def _find_long(bits: np.uint64, codes: Any, is_first: bool) -> Any:
    """uint64: the entry of the code that `bits` begin with, of whatever length; LONG if there is none."""
    code, first, place = 0, 0, 0
    for length in range(1, 17):
        code |= np.int64((bits >> np.uint64(64 - length)) & _ONE)
        number = np.int64(codes[length - 1])
        if code - first < number:
            return np.uint64(entry_of(length, np.int64(codes[SYMBOLS + place + code - first]), is_first))
        place += number
        first = (first + number) << 1
        code <<= 1
    return np.uint64(LONG)


@compiled
def _read_first(state: Any, component: int, lookup: Any, codes: Any) -> Any:
    """The first coefficient. Returns it, whether it could be read, and the state after it."""
    at, left, bits = state[AT], state[LEFT], state[BITS]
    entry = np.uint64(lookup[bits >> _SHIFT])
    bits |= load_word(np.int64(at)) >> left
    at += (_MOST - left) >> _THREE
    left |= _FULL
    if entry >> _SIXTEEN != 0:
        entry = _find_long(bits, codes, True)
    value = _number(bits << ((entry >> _SIX) & _FIVE_BITS), (entry >> _ELEVEN) & _FIVE_BITS)
    value += np.int32(np.int64(state[BEFORE + component]))
    state[BEFORE + component] = np.uint64(np.int64(value))
    return value, entry >> _SIXTEEN == 0, at, left - (entry & _MOST), bits << (entry & _MOST)


@called
def read_block(
    state: Any, component: int, dc: Any, dc_codes: Any, ac: Any, ac_codes: Any, scales: Any, coefficients: Any
) -> int:
    """Reads a block. FAULT, if it cannot be; ONLY_FIRST, if all coefficients but the first are 0; MORE.

    All of them pointers: dc, ac: uint32, tables; dc_codes, ac_codes: uint8, their codes. scales: int32 (64,), in the
    order of the file. coefficients: int32 (64,), by row; they get multiplied by the scales.
    """
    value, is_good, at, left, bits = _read_first(state, component, dc, dc_codes)
    if not is_good:
        return FAULT
    for place in range(64):
        coefficients[place] = np.int32(0)
    coefficients[0] = value * scales[0]
    found, place = ONLY_FIRST, _ONE
    while place <= _MOST:
        entry = np.uint64(ac[bits >> _SHIFT])
        bits |= load_word(np.int64(at)) >> left
        at += (_MOST - left) >> _THREE
        left |= _FULL
        place += entry >> _SIXTEEN
        if place > _MOST:
            if place >= _LONG:
                entry = _find_long(bits, ac_codes, False)
                place += (entry >> _SIXTEEN) - _LONG
            if place > _MOST:
                if place < _END or place >= _LONG:
                    return FAULT
                left -= entry & _MOST
                bits <<= entry & _MOST
                break
        value = _number(bits << ((entry >> _SIX) & _FIVE_BITS), (entry >> _ELEVEN) & _FIVE_BITS)
        coefficients[np.int64(_ORDER[place])] = value * scales[place]
        left -= entry & _MOST
        bits <<= entry & _MOST
        place += _ONE
        found = MORE
    state[AT], state[LEFT], state[BITS] = at, left, bits
    return found


@called
def skip_block(state: Any, component: int, dc: Any, dc_codes: Any, ac: Any, ac_codes: Any) -> int:
    """The same of a block that is not wanted."""
    _, is_good, at, left, bits = _read_first(state, component, dc, dc_codes)
    if not is_good:
        return FAULT
    place = _ONE
    while place <= _MOST:
        entry = np.uint64(ac[bits >> _SHIFT])
        bits |= load_word(np.int64(at)) >> left
        at += (_MOST - left) >> _THREE
        left |= _FULL
        place += (entry >> _SIXTEEN) + _ONE
        if place > _LONG:
            entry = _find_long(bits, ac_codes, False)
            place += (entry >> _SIXTEEN) - _LONG
        left -= entry & _MOST
        bits <<= entry & _MOST
    if place > _MOST + _ONE and (place <= _END or place > _LONG):
        return FAULT
    state[AT], state[LEFT], state[BITS] = at, left, bits
    return ONLY_FIRST
