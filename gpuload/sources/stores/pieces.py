"""Bytes of untrusted stores: every length, offset and count is compared with what is there before anything is made."""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import pyarrow as pa
from PIL import Image

from gpuload.errors import DecodeError
from gpuload.machine.untrusted import open_regular
from gpuload.types import Array

Codec = Literal["brotli", "bz2", "gzip", "lz4", "snappy", "zstd"]
MOST_BYTES = 1 << 30  # of what is decompressed into memory
_PIECE = 1 << 20
_MOST_OF_SNAPPY = 64  # bytes out of one: its longest copy makes 64 of 3
_MOST_DIMENSIONS = 32  # as NumPy had for long

# Bytes of a pixel in the modes of Pillow whose raw bytes are its pixels in rows.
_PIXEL_BYTES = {
    "L": 1,
    "P": 1,
    "LA": 2,
    "RGB": 3,
    "YCbCr": 3,
    "LAB": 3,
    "HSV": 3,
    "RGBA": 4,
    "CMYK": 4,
    "I": 4,
    "F": 4,
    "I;16": 2,
}


class Pieces:
    """Bytes that are taken one piece after the other.

    Args:
        data: The bytes.
        start: Where the first piece begins.
        name: Of what the bytes are, for messages.
    """

    def __init__(self, data: bytes, start: int = 0, name: str = "a value") -> None:
        self._data = data
        self._start = start
        self._name = name

    @property
    def remaining(self) -> int:
        """The number of bytes that were not taken."""
        return len(self._data) - self._start

    def take(self, count: int) -> bytes:
        """The next bytes.

        Raises:
            ValueError: there are fewer.
        """
        if not 0 <= count <= self.remaining:
            raise ValueError(
                f"{self._name} should go on for {count:,} bytes, and {self.remaining:,} are there"
            )
        end = self._start + count
        piece = self._data[self._start : end]
        self._start = end
        return piece

    def rest(self) -> bytes:
        """All bytes that were not taken."""
        return self.take(self.remaining)

    def number(self, form: str) -> Any:
        """The next number, by a format of `struct`, such as "<I".

        Raises:
            ValueError: there are fewer bytes than it takes.
        """
        (value,) = struct.unpack(form, self.take(struct.calcsize(form)))
        return value

    def numbers(self, count: int, dtype: str) -> list[Any]:
        """The next numbers, of one dtype.

        Raises:
            ValueError: there are fewer.
        """
        return np.frombuffer(
            self.take(count * np.dtype(dtype).itemsize), dtype
        ).tolist()

    def array(self, dtype: Any, shape: tuple[int, ...] | None = None) -> Array:
        """All bytes that were not taken, as an array; without a shape, of one dimension.

        Raises:
            ValueError: there are more bytes than it takes, or fewer.
        """
        kind = np.dtype(dtype)
        if kind.hasobject or not kind.itemsize:
            raise ValueError(f"{self._name} has the dtype {kind}, which no array has")
        if shape is None:
            shape = (self.remaining // kind.itemsize,)
        if len(shape) > _MOST_DIMENSIONS:
            raise ValueError(f"{self._name} has {len(shape)} dimensions")
        needed = kind.itemsize
        for side in shape:
            needed *= side
        if needed != self.remaining:
            raise ValueError(
                f"{self._name} is {self.remaining:,} bytes, and {kind} of {shape} takes {needed:,}"
            )
        return np.frombuffer(self.rest(), kind).reshape(shape)


class StoreFile:
    """A file of a store, of which pieces are read by their places.

    Args:
        path: Of the file.
        file: Opened, see `opened`.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self._file = file
        self.size = os.fstat(file.fileno()).st_size

    def at(self, offset: int, count: int, name: str = "a value") -> bytes:
        """Some bytes.

        Raises:
            ValueError: they do not all lie in the file.
        """
        if offset < 0 or count < 0 or offset + count > self.size:
            raise ValueError(
                f"{name} should take {count:,} bytes from byte {offset:,}, and the file has {self.size:,}"
            )
        data = os.pread(self._file.fileno(), count, offset)
        if len(data) < count:
            raise ValueError(f"{name} ends early: the file was cut meanwhile")
        return data

    def offsets(self, start: int, count: int, dtype: str = "<u4") -> list[int]:
        """Where each of some records begins, and where the last one ends.

        Args:
            start: Of the first of these numbers in the file, in bytes.
            count: Number of records.
            dtype: Of the numbers.

        Raises:
            ValueError: these numbers are not all there, descend, begin within themselves or leave the file.
        """
        item_bytes = np.dtype(dtype).itemsize
        data = self.at(start, (count + 1) * item_bytes, "the table of offsets")
        offsets = np.frombuffer(data, dtype).astype(np.int64)
        is_rising = bool((offsets[1:] >= offsets[:-1]).all())
        if (
            not is_rising
            or offsets[0] < start + len(data)
            or int(offsets[-1]) > self.size
        ):
            raise ValueError(
                f"{self.path.name}: the offsets of its {count:,} records do not rise within its {self.size:,} bytes"
            )
        return offsets.tolist()

    def records(self, expected: int, name: str) -> Iterator[bytes]:
        """The bytes of each record of a file that begins with their number and their offsets.

        Args:
            expected: Their number, as the index says.
            name: Of the file, for messages.

        Raises:
            ValueError: the file holds another number of them, or its offsets are wrong.
        """
        data = self.at(0, 4, f"{name}: the number of its samples")
        count = Pieces(data).number("<I")
        if count != expected:
            raise ValueError(
                f"{name} holds {count:,} samples, and the index says {expected:,}"
            )
        for start, end in pairwise(self.offsets(4, count)):
            yield self.at(start, end - start, f"{name}: a sample")


@contextmanager
def opened(path: Path) -> Iterator[StoreFile]:
    """A file of a store.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    with open_regular(path, buffering=0) as file:
        yield StoreFile(path, file)


def plain_name(name: Any) -> str:
    """The name of a file beside an index.

    Raises:
        ValueError: it is no name, or leads elsewhere.
    """
    if not isinstance(name, str) or Path(name).name != name:
        raise ValueError(f"the index names a file {str(name)[:60]!r}")
    return name


def inflated(
    data: bytes, codec: Codec, size: int | None, most: int = MOST_BYTES
) -> bytes:
    """Decompressed bytes.

    Args:
        data: The compressed bytes.
        codec: What they are compressed by.
        size: How many bytes come out; None where the store does not say.
        most: How many may come out, where it does not say.

    Raises:
        ValueError: another number comes out, or more.
    """
    if size is not None:
        most = size
    if codec == "snappy":
        return _of_snappy(data, most)
    with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
        pieces = []
        count = 0
        while piece := stream.read(min(_PIECE, most + 1 - count)):
            pieces.append(piece)
            count += len(piece)
    if count > most or (size is not None and count != size):
        raise ValueError(_other_size(most))
    return b"".join(pieces)


def inflate_file(source: Path, codec: Codec, size: int | None, target: Path) -> None:
    """Decompresses a file into another one.

    Args:
        source: The compressed file.
        codec: What it is compressed by.
        size: How many bytes come out; None where the store does not say.
        target: The file that is written.

    Raises:
        ValueError: as many bytes do not come out. OSError: it cannot be read or written.
    """
    try:
        if codec == "snappy":
            with open_regular(source) as file:
                target.write_bytes(_of_snappy(file.read(), size or 0))
            return
        count = 0
        with (
            open_regular(source) as file,
            pa.CompressedInputStream(pa.PythonFile(file, "r"), codec) as stream,
            target.open("wb") as out,
        ):
            while piece := stream.read(_PIECE):
                count += out.write(piece)
                if size is not None and count > size:
                    break
        if size is not None and count != size:
            raise ValueError(_other_size(size))
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None):  # not of what Arrow decompresses
            raise
        raise ValueError(f"{source.name}: {error}") from None


def _of_snappy(data: bytes, size: int) -> bytes:
    """Snappy's blocks are decompressed as a whole, so sizes are compared before."""
    stated = varint(Pieces(data, name="the compressed file"))
    if stated != size or size > _MOST_OF_SNAPPY * len(data):
        raise ValueError(_other_size(size))
    return pa.Codec("snappy").decompress(data, size, asbytes=True)


def _other_size(size: int) -> str:
    return f"what it is compressed from is not the {size:,} bytes that the index says"


def varint(pieces: Pieces) -> int:
    """A number of 7 bits a byte, the lowest first, as Protocol Buffers and Snappy write it.

    Raises:
        ValueError: it does not end within 64 bits.
    """
    value = 0
    for shift in range(0, 70, 7):
        (byte,) = pieces.take(1)
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1)
    raise ValueError("a number does not end")


def pillow_image(mode: str, size: tuple[int, int], pixels: bytes) -> Image.Image:
    """An image of the raw bytes that Pillow's `tobytes` gives.

    Raises:
        DecodeError: there is no such mode, or the bytes are not as many as it takes.
    """
    width, height = size
    row_bytes = (width + 7) // 8 if mode == "1" else width * _PIXEL_BYTES.get(mode, 0)
    needed = row_bytes * height
    if not needed or needed != len(pixels):
        raise DecodeError(
            f"{len(pixels):,} bytes are no image of {width} × {height} pixels of mode {mode[:20]!r}"
        )
    return Image.frombytes(mode, size, pixels)


def sized_image(pieces: Pieces) -> Image.Image:
    """An image as MosaicML Streaming and LitData store one: width, height and length of the mode, the mode, pixels.

    Raises:
        DecodeError: see `pillow_image`. ValueError: it ends early, or its mode is no text.
    """
    width, height, mode_bytes = pieces.numbers(3, "<u4")
    mode = pieces.take(mode_bytes).decode("ascii")
    return pillow_image(mode, (width, height), pieces.rest())


def sized_list(pieces: Pieces) -> list[bytes]:
    """A list of byte strings: their count, their lengths, and all of them.

    Raises:
        ValueError: it ends early.
    """
    count = pieces.number("<I")
    return [pieces.take(length) for length in pieces.numbers(count, "<u4")]
