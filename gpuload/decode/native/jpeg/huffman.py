"""Huffman codes (ITU-T T.81, annexes C and F): a table that tells, of the next bits, all that a symbol stands for."""

from typing import Any

import numpy as np

from gpuload.decode.native.compiled import compiled

# Of 200 to 400 codes one is longer than this. 4 kB a table.
LOOKUP_BITS = 10

# The codes of a table: how many there are of each length, their symbols, and whether that can be.
SYMBOLS, GOOD = 16, 16 + 256
CODES = GOOD + 1

# An entry, from its lowest bits: how many bits a symbol and the number after it have (6 bits), the symbol alone (5),
# the number (5); coefficients to leave out before it (16), or
END = 128 << 16  # of a block
LONG = 256 << 16  # a longer code, or none


@compiled
def entry_of(length: int, symbol: int, is_first: bool) -> Any:
    """uint32: what `symbol` means, in a code of `length` bits."""
    if is_first:
        return np.uint32((length + symbol) | length << 6 | symbol << 11)
    zeros, bits = symbol >> 4, symbol & 15
    if bits == 0 and zeros != 15:
        return np.uint32(length | length << 6 | END)
    return np.uint32((length + bits) | length << 6 | bits << 11 | zeros << 16)


@compiled
def define(told: Any, number: int, is_first: bool, lookup: Any, codes: Any) -> bool:
    """Makes a table of what the file tells: 16 counts, and symbols. False if these are no codes.

    All of them pointers: told: uint8 (16 + number,). lookup: uint32 (2^LOOKUP_BITS,). codes: uint8 (CODES,), what this
    table was made of last, which nearly always is the same.
    """
    other = np.uint8(0)
    for place in range(SYMBOLS + number):
        other |= told[place] ^ codes[place]
    if other == 0:
        return bool(codes[GOOD] != 0)
    codes[GOOD] = np.uint8(0)
    for place in range(SYMBOLS + number):
        codes[place] = told[place]
    place, code, short = 0, 0, 0  # of the next symbol, its code at the top of 16 bits, and where longer ones begin
    for length in range(1, 17):
        for _ in range(np.int64(codes[length - 1])):
            symbol = np.int64(codes[SYMBOLS + place])
            place += 1
            if code >= 1 << 16 or (is_first and symbol > 11):
                return False
            if length <= LOOKUP_BITS:
                entry = entry_of(length, symbol, is_first)
                begin = code >> (16 - LOOKUP_BITS)
                for at_entry in range(begin, begin + (1 << (LOOKUP_BITS - length))):
                    lookup[at_entry] = entry
            code += 1 << (16 - length)
        if length == LOOKUP_BITS:
            short = code >> (16 - LOOKUP_BITS)
    for at_entry in range(short, 1 << LOOKUP_BITS):
        lookup[at_entry] = np.uint32(LONG)
    codes[GOOD] = np.uint8(1)
    return True
