"""The coefficients of a block, decoded from its bits (ITU-T T.81, F.2.2), and their inverse DCT."""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import add, or_
from typing import Any

import numpy as np
from llvmlite import ir

from gpuload.decode.native.compiled import compiled, inlined
from gpuload.decode.native.intrinsics import INT32, Lanes, emitted, load_word

# One in 200 to 400 codes is longer. A table takes 4 kB.
LOOKUP_BITS = 10

# The codes of a table: the number of codes of each length, and their symbols.
SYMBOLS = 16
CODES = SYMBOLS + 256

# An entry, from its lowest bits: the number of bits of the symbol and the value after it (6 bits), of the symbol alone
# (5), of the value (5); the number of coefficients that are 0 before it (16), or
END = 128 << 16  # end of block
LONG = 256 << 16  # a longer code, or none

# The state of a scan, uint64: the address of the next byte, how many bits before it are unused, these bits from the top
# of a word, and for each component the DC coefficient of the block before.
AT, LEFT, BITS, BEFORE = range(4)
STATES = BEFORE + 3

_MOST, _FULL, _FIVE_BITS = np.uint64(63), np.uint64(56), np.uint64(31)
_END, _LONG = np.uint64(END >> 16), np.uint64(LONG >> 16)

FAULT, ONLY_DC, MORE = -1, 0, 1

_BITS, _KEPT_BITS = 13, 2


@inlined
def entry_of(length: int, symbol: int, is_dc: bool) -> Any:
    """uint32: the entry of `symbol`, whose code has `length` bits."""
    if is_dc:
        return np.uint32((length + symbol) | length << 6 | symbol << 11)
    zeros, bits = symbol >> 4, symbol & 15
    if bits == 0 and zeros != 15:
        return np.uint32(length | length << 6 | END)
    return np.uint32((length + bits) | length << 6 | bits << 11 | zeros << 16)


@inlined
def define(told: Any, number: int, is_dc: bool, lookup: Any, codes: Any) -> None:
    """Makes a table of a definition in the file, 16 counts and `number` symbols, which are valid codes.

    Pointers: told: uint8 (16 + number,), the definition. lookup: uint32 (2^LOOKUP_BITS,), filled. codes: uint8
    (CODES,), the codes that this table was made of last; nearly always they are the same, and nothing is to be done.
    """
    other = np.uint8(0)
    for index in range(SYMBOLS + number):
        other |= told[index] ^ codes[index]
    if other == 0:
        return
    for index in range(SYMBOLS + number):
        codes[index] = told[index]
    index, begin = 0, 0  # the next symbol, and its first entry
    for length in range(1, LOOKUP_BITS + 1):
        for _ in range(np.int64(codes[length - 1])):
            entry, after = (
                entry_of(length, np.int64(codes[SYMBOLS + index]), is_dc),
                begin + (1 << (LOOKUP_BITS - length)),
            )
            for at_entry in range(begin, after):
                lookup[at_entry] = entry
            index, begin = index + 1, after
    for at_entry in range(begin, 1 << LOOKUP_BITS):
        lookup[at_entry] = np.uint32(LONG)


# The index (row * 8 + column) of each coefficient, in zigzag order, which is that of the file.
_zigzag = sorted(range(64), key=lambda index: (sum(divmod(index, 8)), divmod(index, 8)[sum(divmod(index, 8)) % 2 == 0]))
_ORDER = np.array(_zigzag, np.uint8)


_SHIFT, _ONE, _THREE, _SIX, _ELEVEN, _SIXTEEN = (np.uint64(bits) for bits in (64 - LOOKUP_BITS, 1, 3, 6, 11, 16))


@inlined
def _number(bits: np.uint64, size: np.uint64) -> Any:
    """int32: the value in the first `size` bits; negative where they begin with 0 (T.81, table F.1)."""
    value = np.int64((bits >> _ONE) >> (_MOST - size))
    below = ~(np.int64(bits) >> np.int64(63))
    return np.int32(value - (((np.int64(1) << np.int64(size)) - np.int64(1)) & below))


@compiled
def _find_long(bits: np.uint64, codes: Any, is_dc: bool) -> Any:
    """uint64: the entry of the code that `bits` begin with, of any length; LONG if there is none."""
    code, first, index = 0, 0, 0
    for length in range(1, 17):
        code |= np.int64((bits >> np.uint64(64 - length)) & _ONE)
        number = np.int64(codes[length - 1])
        if code - first < number:
            return np.uint64(entry_of(length, np.int64(codes[SYMBOLS + index + code - first]), is_dc))
        index += number
        first = (first + number) << 1
        code <<= 1
    return np.uint64(LONG)


@inlined
def _read_first(state: Any, component: int, lookup: Any, codes: Any) -> Any:
    """The DC coefficient. Returns it, whether it could be read, and the state after it."""
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


@compiled
def read_block(
    state: Any, component: int, dc: Any, dc_codes: Any, ac: Any, ac_codes: Any, quant: Any, coefficients: Any
) -> int:
    """Reads a block. Returns FAULT if it cannot be read, ONLY_DC if all AC coefficients are 0, else MORE.

    All parameters but `component` are pointers. dc, ac: uint32, lookup tables. dc_codes, ac_codes: uint8, their codes.
    quant: int32 (64,), the quantisation table in zigzag order. coefficients: int32 (64,), by row, filled with the
    dequantised coefficients.
    """
    value, is_good, at, left, bits = _read_first(state, component, dc, dc_codes)
    if not is_good:
        return FAULT
    for index in range(64):
        coefficients[index] = np.int32(0)
    coefficients[0] = value * quant[0]
    found, index = ONLY_DC, _ONE
    while index <= _MOST:
        entry = np.uint64(ac[bits >> _SHIFT])
        bits |= load_word(np.int64(at)) >> left
        at += (_MOST - left) >> _THREE
        left |= _FULL
        index += entry >> _SIXTEEN
        if index > _MOST:
            if index >= _LONG:
                entry = _find_long(bits, ac_codes, False)
                index += (entry >> _SIXTEEN) - _LONG
            if index > _MOST:
                if index < _END or index >= _LONG:
                    return FAULT
                left -= entry & _MOST
                bits <<= entry & _MOST
                break
        value = _number(bits << ((entry >> _SIX) & _FIVE_BITS), (entry >> _ELEVEN) & _FIVE_BITS)
        coefficients[np.int64(_ORDER[index])] = value * quant[index]
        left -= entry & _MOST
        bits <<= entry & _MOST
        index += _ONE
        found = MORE
    state[AT], state[LEFT], state[BITS] = at, left, bits
    return found


@compiled
def skip_block(state: Any, component: int, dc: Any, dc_codes: Any, ac: Any, ac_codes: Any) -> int:
    """Reads past a block that is not needed. Returns FAULT if it cannot be read, else ONLY_DC."""
    _, is_good, at, left, bits = _read_first(state, component, dc, dc_codes)
    if not is_good:
        return FAULT
    index = _ONE
    while index <= _MOST:
        entry = np.uint64(ac[bits >> _SHIFT])
        bits |= load_word(np.int64(at)) >> left
        at += (_MOST - left) >> _THREE
        left |= _FULL
        index += (entry >> _SIXTEEN) + _ONE
        if index > _LONG:
            entry = _find_long(bits, ac_codes, False)
            index += (entry >> _SIXTEEN) - _LONG
        left -= entry & _MOST
        bits <<= entry & _MOST
    if index > _MOST + _ONE and (index <= _END or index > _LONG):
        return FAULT
    state[AT], state[LEFT], state[BITS] = at, left, bits
    return ONLY_DC


def _fix(number: float) -> int:
    return round(number * (1 << _BITS))


def _transform_8(rows: Sequence[Lanes]) -> list[Lanes]:
    a, b, c, d, e, f, g, h = rows
    turned = (c + g) * _fix(0.541196100)
    low, high = turned - g * _fix(1.847759065), turned + c * _fix(0.765366865)
    first, second = (a + e) << _BITS, (a - e) << _BITS
    even = first + high, second + low, second - low, first - high
    both = (h + d + f + b) * _fix(1.175875602)
    outer, inner = (h + b) * _fix(-0.899976223), (f + d) * _fix(-2.562915447)
    left, right = (h + d) * _fix(-1.961570560) + both, (f + b) * _fix(-0.390180644) + both
    odd = (
        b * _fix(1.501321110) + outer + right,
        d * _fix(3.072711026) + inner + left,
        f * _fix(2.053119869) + inner + right,
        h * _fix(0.298631336) + outer + left,
    )
    return [x + y for x, y in zip(even, odd, strict=True)] + [
        x - y for x, y in zip(reversed(even), reversed(odd), strict=True)
    ]


# Gives the sum of rows, or of columns, times these factors. The smaller transforms need four such sums, or two.
_Weigh = Callable[[dict[int, float]], Lanes]


def _transform_4(weigh: _Weigh) -> list[Lanes]:
    mean, turned = weigh({0: 2.0}), weigh({2: 1.847759065, 6: -0.765366865})
    inner = weigh({1: 1.061594337, 3: -2.172734803, 5: 1.451774981, 7: -0.211164243})
    outer = weigh({1: 2.562915447, 3: 0.899976223, 5: -0.601344887, 7: -0.509795579})
    return [mean + turned + outer, mean - turned + inner, mean - turned - inner, mean + turned - outer]


def _transform_2(weigh: _Weigh) -> list[Lanes]:
    mean, odd = weigh({0: 4.0}), weigh({1: 3.624509785, 3: -1.272758580, 5: 0.850430095, 7: -0.720959822})
    return [mean + odd, mean - odd]


def _weigh_rows(rows: Sequence[Lanes], factors: dict[int, float]) -> Lanes:
    return reduce(add, (rows[row] * _fix(factor) for row, factor in factors.items()))


def _weigh_columns(rows: Sequence[Lanes], factors: dict[int, float]) -> Lanes:
    """The same of the columns of four rows, with one product for two columns."""
    products = [
        pair * [_fix(factors.get(column + lane // 4 * 4, 0)) for lane in range(8)]
        for column, pair in enumerate(_pair_columns(rows))
        if factors.keys() & {column, column + 4}
    ]
    both = reduce(add, products)
    return both.shuffled(both, range(4)) + both.shuffled(both, range(4, 8))


def _pair_columns(rows: Sequence[Lanes]) -> list[Lanes]:
    """The columns of four rows, each with the fourth after it."""
    low, high = (0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15)
    ones = [rows[i].shuffled(rows[i + 1], order) for i in (0, 2) for order in (low, high)]
    low, high = (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15)
    return [ones[i].shuffled(ones[i + 2], order) for i in (0, 1) for order in (low, high)]


def _transpose(rows: Sequence[Lanes]) -> list[Lanes]:
    upper, lower = _pair_columns(rows[:4]), _pair_columns(rows[4:])
    low, high = (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)
    return [one.shuffled(other, order) for order in (low, high) for one, other in zip(upper, lower, strict=True)]


def _make(transform: Callable[[Any], list[Lanes]], size: int) -> Any:
    """A function of the address of int32 (8, 8), coefficients by row, and of samples, and their bytes per row."""
    less = {8: 0, 4: 1, 2: 2}[size]

    @emitted()
    def inverse_dct(builder: ir.IRBuilder, coefficients: Any, pixels: Any, stride: Any) -> None:
        rows = [Lanes.load(builder, coefficients, INT32, 8, 32 * row) for row in range(8)]
        kept = [
            row.rounded(_BITS - _KEPT_BITS + less)
            for row in transform(rows if size == 8 else partial(_weigh_rows, rows))
        ]
        kept += [kept[0].all(0)] * (4 - size)
        columns = transform(_transpose(kept) if size == 8 else partial(_weigh_columns, kept))
        levels = [(column.rounded(_BITS + _KEPT_BITS + 3 + less) + 128).level() for column in columns]
        # A lane is a row now: up to four columns, side by side, make one word of it.
        step = min(size, 4)
        words = [
            reduce(or_, (levels[first + column] << 8 * column for column in range(step)))
            for first in range(0, size, step)
        ]
        for row in range(size):
            for number, word in enumerate(words):
                word.store_lane(row, ir.IntType(8 * step), pixels, step * number)
            pixels = builder.add(pixels, stride)

    return inverse_dct


inverse_dct_8: Any = _make(_transform_8, 8)
inverse_dct_4: Any = _make(_transform_4, 4)
inverse_dct_2: Any = _make(_transform_2, 2)
