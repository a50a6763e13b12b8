"""Huffman codes (ITU-T T.81, annexes C and F): tables that give, for the next bits, all that a symbol stands for."""

from typing import Any

import numpy as np

from gpuload.decode.native.compiled import inlined

# One in 200 to 400 codes is longer. A table takes 4 kB.
LOOKUP_BITS = 10

# The codes of a table: the number of codes of each length, their symbols, and whether they are valid.
SYMBOLS, GOOD = 16, 16 + 256
CODES = GOOD + 1

# An entry, from its lowest bits: the number of bits of the symbol and the value after it (6 bits), of the symbol alone
# (5), of the value (5); the number of coefficients that are 0 before it (16), or
END = 128 << 16  # end of block
LONG = 256 << 16  # a longer code, or none


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
def define(told: Any, number: int, is_dc: bool, lookup: Any, codes: Any) -> bool:
    """Makes a table of a definition in the file, 16 counts and `number` symbols. False if these are no valid codes.

    Pointers: told: uint8 (16 + number,), the definition. lookup: uint32 (2^LOOKUP_BITS,), filled. codes: uint8
    (CODES,), the codes that this table was made of last; nearly always they are the same, and nothing is to be done.
    """
    other = np.uint8(0)
    for index in range(SYMBOLS + number):
        other |= told[index] ^ codes[index]
    if other == 0:
        return bool(codes[GOOD] != 0)
    codes[GOOD] = np.uint8(0)
    for index in range(SYMBOLS + number):
        codes[index] = told[index]
    # Of the next symbol; its code, at the top of 16 bits; where codes longer than LOOKUP_BITS begin.
    index, code, short = 0, 0, 0
    for length in range(1, 17):
        for _ in range(np.int64(codes[length - 1])):
            symbol = np.int64(codes[SYMBOLS + index])
            index += 1
            if code >= 1 << 16 or (is_dc and symbol > 11):
                return False
            if length <= LOOKUP_BITS:
                entry = entry_of(length, symbol, is_dc)
                begin = code >> (16 - LOOKUP_BITS)
                for at_entry in range(begin, begin + (1 << (LOOKUP_BITS - length))):
                    lookup[at_entry] = entry
            code += 1 << (16 - length)
        if code >= 1 << 16:  # a code of ones alone, which T.81 reserves and libjpeg refuses
            return False
        if length == LOOKUP_BITS:
            short = code >> (16 - LOOKUP_BITS)
    for at_entry in range(short, 1 << LOOKUP_BITS):
        lookup[at_entry] = np.uint32(LONG)
    codes[GOOD] = np.uint8(1)
    return True
