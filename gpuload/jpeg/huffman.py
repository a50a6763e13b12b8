"""Huffman codes (ITU-T T.81, annexes C and F): a table that tells, of the next bits, all that a symbol stands for."""

import numpy as np
import numpy.typing as npt

from gpuload.compiled import compiled

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
Bools = npt.NDArray[np.bool_]

# 1 code in 200 is longer than this. 4 kB a table.
LOOKUP_BITS = 10

# An entry, from its lowest bits: of a symbol and the bits of the number after it (6 bits), of the symbol alone (5), of
# the number (5); coefficients to leave out before it, or what ends the block (16).
SYMBOLS = 16  # where they begin: after how many there are of each length

END = 128 << 16  # of a block
LONG = 256 << 16  # a longer code, or none


@compiled
def entry_of(length: int, symbol: int, is_first: bool) -> np.uint32:
    """What `symbol` means, in a code of `length` bits."""
    if is_first:
        return np.uint32((length + symbol) | length << 6 | symbol << 11)
    zeros, bits = symbol >> 4, symbol & 15
    if bits == 0 and zeros != 15:
        return np.uint32(length | length << 6 | END)
    return np.uint32((length + bits) | length << 6 | bits << 11 | zeros << 16)


@compiled
def define(
    file: U8, at: int, number: int, is_first: bool, table: int, lookups: U32, all_codes: U8, good: Bools
) -> None:
    """Makes a table of its 16 counts and its symbols in the file, unless it is already what they say."""
    lookup, codes, other = lookups[table], all_codes[table], np.uint8(0)
    for place in range(SYMBOLS + number):
        other |= file[np.uint64(at + place)] ^ codes[place]
    if other == 0:
        return
    for place in range(SYMBOLS + number):
        codes[place] = file[np.uint64(at + place)]
    good[table] = False
    place, code, short = 0, 0, 0  # of the next symbol, its code at the top of 16 bits, and where longer ones begin
    for length in range(1, 17):
        for _ in range(np.int64(codes[length - 1])):
            symbol = np.int64(codes[SYMBOLS + place])
            place += 1
            if code >= 1 << 16 or (is_first and symbol > 11):
                return
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
    good[table] = True
