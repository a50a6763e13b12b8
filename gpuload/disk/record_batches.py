"""Where the record batches of an Arrow file lie, and whether one is compressed: its bytes tell before Arrow reads it.

Arrow decompresses each buffer to whatever size the file claims: 51 kB of an index took 1.9 GB. It has no option against
that, so the few numbers are read here (Arrow's format/File.fbs and format/Message.fbs, in flatbuffers' encoding).
"""

import struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_BLOCK = np.dtype(
    {
        "names": ["offset", "head", "body"],
        "formats": ["<i8", "<i4", "<i8"],
        "offsets": [0, 8, 16],
    }
)
_END = b"ARROW1"
_SIZE_BYTES = 4
_CONTINUATION = 0xFFFFFFFF
_RECORD_BATCH = 3  # the type of a message


class _FlatTable:
    """A table of flatbuffers at a position of some bytes.

    Raises:
        ValueError: by each method, where it leads out of the bytes.
    """

    def __init__(self, data: memoryview, position: int) -> None:
        self._data = data
        self._position = position

    def field(self, number: int) -> int:
        """The position of a field; 0 where the table lacks it."""
        entries = self._position - self._number("<i", self._position)
        entry = 4 + 2 * number
        if entry + 2 > self._number("<H", entries):
            return 0
        offset = self._number("<H", entries + entry)
        return self._position + offset if offset else 0

    def byte(self, number: int) -> int:
        position = self.field(number)
        return self._number("<B", position) if position else 0

    def table(self, number: int) -> "_FlatTable":
        return _FlatTable(self._data, self._target(number))

    def vector(self, number: int) -> tuple[int, int]:
        """Where the elements of a vector begin, and how many there are; none where the table lacks it."""
        if not self.field(number):
            return 0, 0
        position = self._target(number)
        return position + 4, self._number("<I", position)

    def _target(self, number: int) -> int:
        """The position to which a field refers."""
        position = self.field(number)
        if not position:
            raise ValueError(f"field {number} is missing")
        return position + self._number("<I", position)

    def _number(self, kind: str, position: int) -> int:
        if not 0 <= position <= len(self._data) - struct.calcsize(kind):
            raise ValueError("its numbers lead out of it")
        return int(struct.unpack_from(kind, self._data, position)[0])


def _root(data: memoryview) -> _FlatTable:
    if len(data) < _SIZE_BYTES:
        raise ValueError("it is too short")
    return _FlatTable(data, struct.unpack_from("<I", data)[0])


def find_record_batches(file: pa.Buffer) -> npt.NDArray[np.void]:
    """(N,), offset in bytes, head and body, the sizes of their parts, of the record batches, as the end of a file says.

    Raises:
        ValueError: that is damaged, or there are dictionaries, which an index has none of.
    """
    data = memoryview(file)
    end = len(data) - len(_END) - _SIZE_BYTES
    if end < 0 or bytes(data[-len(_END) :]) != _END:
        raise ValueError("it has no end")
    (size,) = struct.unpack_from("<i", data, end)
    if not 0 < size <= end:
        raise ValueError("its end is damaged")
    footer = data[end - size : end]
    root = _root(footer)
    if root.vector(2)[1]:
        raise ValueError("it has dictionaries")
    begin, number = root.vector(3)
    if begin + number * _BLOCK.itemsize > size:
        raise ValueError("its end is damaged")
    return (
        np.frombuffer(footer, _BLOCK, number, begin) if number else np.empty(0, _BLOCK)
    )


def is_compressed(message: pa.Buffer) -> bool:
    """Whether the buffers of a record batch are compressed, or may be, in the way of Arrow before 1.0.

    Raises:
        ValueError: it is damaged, or no record batch.
    """
    data = memoryview(message)
    if len(data) < 2 * _SIZE_BYTES:
        raise ValueError("it is too short")
    begins, size = struct.unpack_from("<Ii", data)
    if begins != _CONTINUATION or not 0 < size <= len(data) - 2 * _SIZE_BYTES:
        raise ValueError("it does not begin as a record batch")
    table = _root(data[2 * _SIZE_BYTES :][:size])
    if table.byte(1) != _RECORD_BATCH:
        raise ValueError("it is no record batch")
    has_metadata = table.field(4) != 0  # in which older files tell of it
    return has_metadata or table.table(2).field(3) != 0
