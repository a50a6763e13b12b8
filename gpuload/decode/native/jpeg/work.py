"""Memory that a thread needs to decode, which compiled code knows by addresses: who holds an array is counted, at every
call that is given it, and that would take longer than most of these calls."""

from typing import NamedTuple

import numpy as np

from gpuload.decode.native.jpeg.blocks import STATES
from gpuload.decode.native.jpeg.huffman import CODES, LOOKUP_BITS


class Addresses(NamedTuple):
    """Of arrays of a `Work`.

    lookups: uint32 (8, 2^k), of each Huffman table, four for the first coefficients of blocks and four for all others,
    as `gpuload.decode.native.jpeg.huffman` makes them of codes: uint8 (8, n). scales: int32 (4, 64), the quantisation tables, in the
    order of the file. components: int64 (3, 6), as `gpuload.decode.native.jpeg.frame` fills it. coefficients: int32 (64,), of one
    block. state: uint64, as `gpuload.decode.native.jpeg.blocks` keeps it. bytes: uint8 (READ_BYTES,), what is read ahead of the file;
    place: int64 (3,), how far, as `gpuload.decode.native.jpeg.scan` keeps it.
    """

    lookups: int
    codes: int
    scales: int
    components: int
    coefficients: int
    state: int
    bytes: int
    place: int


READ_BYTES = 24 << 10


class Work:
    """Of one thread."""

    def __init__(self) -> None:
        self._arrays = (
            np.zeros((8, 1 << LOOKUP_BITS), np.uint32),
            np.zeros((8, CODES), np.uint8),
            np.zeros((4, 64), np.int32),
            np.zeros((3, 6), np.int64),
            np.zeros(64, np.int32),
            np.zeros(STATES, np.uint64),
            np.zeros(READ_BYTES, np.uint8),
            np.zeros(3, np.int64),
        )
        self.addresses = Addresses(*(array.ctypes.data for array in self._arrays))
