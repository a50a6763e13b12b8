"""The compiled JPEG decoder, every buffer of which lies between guard pages."""

from collections.abc import Sequence
from random import Random

import numpy as np

from fuzzing.guarded import Guarded
from fuzzing.mutate import mutate_bytes
from fuzzing.pictures import JPEG_TOKENS, small_jpegs
from fuzzing.target import Target
from gpuload.headers.jpeg import read_header
from gpuload.kernels.jpeg import find_points, room_for
from gpuload.kernels.loading import kernel
from gpuload.kernels.structs import PICTURE, JpegBatch, JpegThread, address

_MOST_PIXELS = 300_000


class JpegRefusedError(Exception):
    """The decoder leaves this file to others."""


class JpegTarget(Target):
    """Any part at any scale of any JPEG, whose size is what its header says, as an index would have it."""

    name = "jpeg"
    refusals = (JpegRefusedError,)
    tokens = JPEG_TOKENS

    def __init__(self) -> None:
        self._file, self._pixels, self._points = (
            Guarded(1 << 20),
            Guarded(8 << 20),
            Guarded(1 << 20),
        )
        self._known = bytes(16)  # points of a file before
        scratch_bytes = kernel("jpeg_scratch_bytes")()
        self._scratch = Guarded(scratch_bytes)
        self._scratch_address = self._scratch.place(
            scratch_bytes
        )  # whose size is of whole lines of the cache

    def seeds(self) -> list[bytes]:
        return small_jpegs()

    def mutate(self, rng: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
        if (
            rng.random() < 0.4
        ):  # only what is coded, which most mutations of a small file would not reach
            begin = data.index(b"\xff\xda") + 8
            return data[:begin] + mutate_bytes(rng, data[begin:], seeds, JPEG_TOKENS)
        return mutate_bytes(rng, data, seeds, JPEG_TOKENS)

    def _seek_points(self, rng: Random, data: bytes, height: int, width: int) -> bytes:
        """None, those of the file or of another one, or spoilt ones."""
        self._known = known = (
            find_points(data, height, width, most_share=100) or self._known
        )
        made = (b"", known, mutate_bytes(rng, known, [known], JPEG_TOKENS))[
            rng.randrange(3)
        ]
        without_checksum = made[:-8] + bytes(8)  # which would not match any more
        return without_checksum[: self._points.size]

    def run(self, data: bytes) -> None:
        rng = Random(len(data) * 1009 + sum(data[-9:]))
        width, height = 40, 30
        if data[:2] == b"\xff\xd8":
            found = read_header(data)
            if 0 < found.width * found.height <= _MOST_PIXELS:
                width, height = found.width, found.height
        sides = (
            sorted(rng.choices(range(height + 1), k=2)),
            sorted(rng.choices(range(width + 1), k=2)),
        )
        window = (
            [0, 0, height, width]
            if rng.random() < 0.5
            else [side[end] for end in (0, 1) for side in sides]
        )
        windows, factors = (
            np.array([window], np.int64),
            np.array([rng.choice((1, 2, 4, 8))], np.int64),
        )
        rooms, spare_bytes = room_for(windows, factors)
        room = int(rooms.sum()) + spare_bytes
        at_end = rng.random() < 0.7
        begin = self._file.put(data[: self._file.size], at_end)
        spans = np.array([[begin, min(len(data), self._file.size)]], np.int64)
        pictures = np.array([(0, height, width, 3 * width, 0, 0, 1)], PICTURE)
        memory = self._pixels.place(room, at_end)
        upright = rng.random() < 0.5
        found_points = self._seek_points(rng, data, height, width)
        points = np.array(
            [[self._points.put(found_points, at_end), len(found_points)]], np.int64
        )
        arrays = (spans, points, windows, factors, rooms, pictures)
        batch = JpegBatch(*(array.ctypes.data for array in arrays), upright)
        thread = JpegThread(memory, self._scratch_address)
        kernel("decode_rows")(address(batch), address(thread), 0, 1)
        begin, rows, columns, stride, top, left, _ = pictures[0].tolist()
        if begin == 0:
            raise JpegRefusedError
        assert (
            begin == memory
            and rows > 0
            and 3 * columns <= stride
            and rows * stride <= int(rooms[0])
        )
        assert 0 <= top <= height and 0 <= left <= width
