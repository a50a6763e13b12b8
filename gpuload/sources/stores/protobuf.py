"""Messages of Protocol Buffers, as far as stores use them: fields by their numbers."""

from collections.abc import Iterator
from typing import Any

from gpuload.sources.stores.pieces import Pieces, varint

_VARINT = 0
_EIGHT = 1
_BYTES = 2
_FOUR = 5


def fields_of(message: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field in stored order: an int, or bytes, of which a fixed number takes 4 or 8.

    Raises:
        ValueError: it is no message.
    """
    pieces = Pieces(message, name="a message")
    while pieces.remaining:
        key = varint(pieces)
        kind = key & 7
        if kind == _VARINT:
            value: Any = varint(pieces)
        elif kind == _BYTES:
            value = pieces.take(varint(pieces))
        elif kind in (_EIGHT, _FOUR):
            value = pieces.take(8 if kind == _EIGHT else 4)
        else:
            raise ValueError(f"a message has a field of the unknown form {kind}")
        yield key >> 3, value


def varints_of(value: Any) -> list[int]:
    """The signed numbers of a repeated field: one, or several that are packed into bytes."""
    if isinstance(value, int):
        return [signed(value)]
    pieces = Pieces(value, name="a list of numbers")
    numbers = []
    while pieces.remaining:
        numbers.append(signed(varint(pieces)))
    return numbers


def signed(value: int) -> int:
    """The number of 64 bits that is stored as this one without a sign."""
    return value - 2**64 if value >= 2**63 else value
