"""Memory that a thread needs to decode.

Compiled code gets it by address: for an array, numba counts references at every call, which would take longer than most
of these calls.
"""

from typing import NamedTuple

import numpy as np

from gpuload.decode.native.compiled import inlined
from gpuload.decode.native.jpeg.blocks import CODES, LOOKUP_BITS, STATES
from gpuload.decode.native.pointers import longs_at


class Addresses(NamedTuple):
    """The addresses of the arrays of a `Scratch`.

    lookups: uint32 (8, 2^LOOKUP_BITS), of each Huffman table, four for DC coefficients and four for AC coefficients.
    codes: uint8 (8, CODES), of which the lookups were made (blocks.py).
    quant: int32 (4, 64), the quantisation tables in zigzag order.
    components: int64 (3, 6), see frame.py.
    coefficients: int32 (64,), of one block.
    state: uint64 (STATES,), of the scan, see blocks.py.
    bytes: uint8 (READ_BYTES,), coded bits copied from the file; position: int64 (5,), how far, see scan.py.
    """

    lookups: int
    codes: int
    quant: int
    components: int
    coefficients: int
    state: int
    bytes: int
    position: int


@inlined
def addresses_at(arguments: int) -> Addresses:
    """Those whose fields are the int64 at this address."""
    of = longs_at(arguments)
    return Addresses(of[0], of[1], of[2], of[3], of[4], of[5], of[6], of[7])


READ_BYTES = 24 << 10


class Scratch:
    """The memory of one thread."""

    def __init__(self) -> None:
        self._arrays = (
            np.zeros((8, 1 << LOOKUP_BITS), np.uint32),
            np.zeros((8, CODES), np.uint8),
            np.zeros((4, 64), np.int32),
            np.zeros((3, 6), np.int64),
            np.zeros(64, np.int32),
            np.zeros(STATES, np.uint64),
            np.zeros(READ_BYTES, np.uint8),
            np.zeros(5, np.int64),
        )
        self.addresses = Addresses(*(array.ctypes.data for array in self._arrays))
