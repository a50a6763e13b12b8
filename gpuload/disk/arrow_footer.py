"""Where the record batches of an Arrow file lie, read from its footer: pyarrow does not tell.

    "ARROW1\\0\\0"  schema  batch 0  batch 1 …  end of stream  footer  length of the footer: int32  "ARROW1"

The footer is a flatbuffer, a table whose fourth field is the vector of the batches' blocks (Arrow's File.fbs). A block
is a struct of 24 bytes: offset int64, length of the metadata int32, 4 bytes of padding, length of the body int64.
"""

import struct

import numpy as np

from gpuload.types import I64

_MAGIC = b"ARROW1"
_END_BYTES = 4 + len(_MAGIC)  # the length of the footer, and the magic
_DICTIONARIES, _BATCHES = 2, 3  # fields of the footer's table
_BLOCK = np.dtype({"names": ["offset", "head", "body"], "formats": ["<i8", "<i4", "<i8"], "offsets": [0, 8, 16]})


def footer_bytes(tail: bytes) -> int | None:
    """How many bytes at the end of an Arrow file its footer takes, by the last bytes of the file; None: it is none."""
    if len(tail) < _END_BYTES or not tail.endswith(_MAGIC):
        return None
    (length,) = struct.unpack_from("<i", tail, len(tail) - _END_BYTES)
    return length + _END_BYTES if length > 0 else None


def batch_bounds(tail: bytes, size: int) -> I64 | None:
    """int64 (batches + 1,): where each record batch of an Arrow file begins, and where the last one ends.

    tail: the last bytes of the file, with the whole footer. size: of the file.

    None where it is no such file, where its batches do not follow one another without gaps, or where it has
    dictionaries, which lie between them: gpuload writes no such file.
    """
    length = footer_bytes(tail)
    if length is None or length > min(len(tail), size):
        return None
    footer = tail[len(tail) - length : len(tail) - _END_BYTES]
    try:
        if len(_blocks(footer, _DICTIONARIES)):
            return None
        blocks = _blocks(footer, _BATCHES)
    except (struct.error, ValueError):  # outside of the footer
        return None
    begins, heads, bodies = blocks["offset"], blocks["head"].astype(np.int64), blocks["body"]
    last = size - length
    if not len(blocks) or min(begins.min(), heads.min() - 1, bodies.min()) < 0:
        return None
    if max(begins.max(), heads.max(), bodies.max()) > last:  # so that no sum overflows
        return None
    ends = begins + heads + bodies
    if ends[-1] > last or (ends[:-1] != begins[1:]).any():
        return None
    return np.append(begins, ends[-1])


def _blocks(footer: bytes, field: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """The blocks of a field of the footer's table.

    Raises:
        struct.error, ValueError: they do not lie in the footer.
    """
    (table,) = struct.unpack_from("<I", footer, 0)
    (back,) = struct.unpack_from("<i", footer, table)
    known = table - back  # the table of where its fields lie
    if known < 0:
        raise ValueError
    (size,) = struct.unpack_from("<H", footer, known)
    place = 4 + 2 * field
    (offset,) = struct.unpack_from("<H", footer, known + place) if place + 2 <= size else (0,)
    if not offset:
        return np.empty(0, _BLOCK)
    (distance,) = struct.unpack_from("<I", footer, table + offset)
    vector = table + offset + distance
    (count,) = struct.unpack_from("<I", footer, vector)
    return np.frombuffer(footer, _BLOCK, count, vector + 4)
