"""The compiled decoders of JPEGs and PNGs, every buffer of which lies between guard pages."""

import ctypes
import zlib
from collections.abc import Sequence
from random import Random

import numpy as np

from fuzzing.guarded import Guarded
from fuzzing.images import with_checksums
from fuzzing.mutate import mutate_bytes
from fuzzing.pictures import JPEG_TOKENS, PNG_TOKENS, small_jpegs, small_pngs
from fuzzing.pngs import KINDS, Recipe, assembled, compressed, stored_values, write_png
from fuzzing.target import Target
from gpuload.decode.pillow import decode_mask, decode_pixels
from gpuload.fields.images import GRAY, Pixels
from gpuload.headers import png
from gpuload.headers.jpeg import read_header
from gpuload.kernels.images import CLASSES, LAYOUTS, EncodedImages
from gpuload.kernels.jpeg import find_points
from gpuload.kernels.loading import kernel
from gpuload.kernels.structs import PICTURE, ImageThread, address
from gpuload.types import Array

_MOST_PIXELS = 300_000


class RefusedFileError(Exception):
    """The decoder leaves this file to others."""


class CompiledTarget(Target):
    """Any part at any scale of any file, whose size is what its header says, as an index would have it."""

    refusals = (RefusedFileError,)

    def __init__(self) -> None:
        self._file = Guarded(1 << 20)
        self._memory = Guarded(24 << 20)
        self._points = Guarded(1 << 20)
        scratch_bytes = kernel("image_scratch_bytes")()
        self._scratch = Guarded(scratch_bytes)
        # Its size is of whole lines of the cache.
        self._scratch_address = self._scratch.place(scratch_bytes)

    def _decode(self, rng: Random, data: bytes, size: tuple[int, int], points: bytes, mode: str) -> Array:
        """A part of a file of (height, width), as its picture. Raises RefusedFileError if it is not decoded."""
        height, width = size
        pixels = _pixels_of(mode)
        windows = np.array([_window(rng, height, width)], np.int64)
        factors = np.array([rng.choice((1, 2, 4, 8))], np.int64)
        at_end = rng.random() < 0.7
        begin = self._file.put(data[: self._file.size], at_end)
        files = np.array([[begin, min(len(data), self._file.size)]], np.int64)
        pictures = np.array([(0, height, width, pixels.bytes * width, 0, 0, 1)], PICTURE)
        places = np.array([[self._points.put(points, at_end), len(points)]], np.int64)
        upright = rng.random() < 0.5
        images = EncodedImages(files, places, windows, factors, pictures, mode, upright)
        room = int(images.room[0])
        memory = self._memory.place(room + images.spare_bytes, at_end)
        thread = ImageThread(memory, self._scratch_address)
        kernel("decode_rows")(images.address, address(thread), 0, 1)
        address_of_pixels, rows, columns, stride, top, left, _ = pictures[0].tolist()
        if address_of_pixels == 0:
            raise RefusedFileError
        assert address_of_pixels == memory and rows >= 0
        assert pixels.bytes * columns <= stride and rows * stride <= room
        assert 0 <= top <= height and 0 <= left <= width
        return pictures[0]


def _by_pillow(file: Array, size: tuple[int, int], mode: str) -> Array:
    if mode == CLASSES:
        return decode_mask(file, size)[..., None]
    return decode_pixels(file, size, _pixels_of(mode))


def _pixels_of(mode: str) -> Pixels:
    return GRAY if mode == CLASSES else Pixels.of_mode(mode)


def _window(rng: Random, height: int, width: int) -> list[int]:
    if rng.random() < 0.5:
        return [0, 0, height, width]
    rows = sorted(rng.choices(range(height + 1), k=2))
    columns = sorted(rng.choices(range(width + 1), k=2))
    return [rows[0], columns[0], rows[1], columns[1]]


class JpegTarget(CompiledTarget):
    """JPEGs, with seek points or without."""

    name = "jpeg"
    tokens = JPEG_TOKENS

    def __init__(self) -> None:
        super().__init__()
        self._known = bytes(16)  # points of a file before

    def seeds(self) -> list[bytes]:
        return small_jpegs()

    def mutate(self, rng: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
        # Only what is coded, which most mutations of a small file would not reach.
        if rng.random() < 0.4:
            begin = data.index(b"\xff\xda") + 8
            return data[:begin] + mutate_bytes(rng, data[begin:], seeds, JPEG_TOKENS)
        return mutate_bytes(rng, data, seeds, JPEG_TOKENS)

    def _seek_points(self, rng: Random, data: bytes, height: int, width: int) -> bytes:
        """None, those of the file or of another one, or spoilt ones."""
        points = find_points(data, height, width, most_share=100) or self._known
        self._known = points
        spoilt = mutate_bytes(rng, points, [points], JPEG_TOKENS)
        given_points = (b"", points, spoilt)[rng.randrange(3)]
        # The checksum would not match any more.
        without_checksum = given_points[:-8] + bytes(8)
        return without_checksum[: self._points.size]

    def run(self, data: bytes) -> None:
        rng = Random(len(data) * 1009 + sum(data[-9:]))
        width = 40
        height = 30
        if data[:2] == b"\xff\xd8":
            header = read_header(data)
            if 0 < header.width * header.height <= _MOST_PIXELS:
                width = header.width
                height = header.height
        points = self._seek_points(rng, data, height, width)
        self._decode(rng, data, (height, width), points, "RGB")


class PngTarget(CompiledTarget):
    """PNGs of every kind, to each mode that is decoded. What is decoded to the last row is compared with Pillow's."""

    name = "png"
    tokens = PNG_TOKENS

    def seeds(self) -> list[bytes]:
        return [*small_pngs(), *_pngs_of_every_kind()]

    def mutate(self, rng: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
        way = rng.random()
        if way < 0.3:  # what is compressed
            return _with_other_rows(rng, data, seeds)
        spoilt = mutate_bytes(rng, data, seeds, PNG_TOKENS)
        return with_checksums(spoilt) if way < 0.9 else spoilt

    def run(self, data: bytes) -> None:
        rng = Random(len(data) * 1009 + zlib.crc32(data))
        size = 40, 30
        if data.startswith(png.START) and len(data) > 32:
            header = png.read_header(data)
            if 0 < header.width * header.height <= _MOST_PIXELS:
                size = header.height, header.width
        mode = rng.choice([*LAYOUTS])
        picture = self._decode(rng, data, size, b"", mode)
        _, rows, columns, stride, top, left, _ = picture.tolist()
        if top + rows < size[0]:
            return
        pixels = _pixels_of(mode)
        memory = ctypes.string_at(int(picture["pixels"]), rows * stride)
        part = np.frombuffer(memory, pixels.dtype).reshape(rows, columns, pixels.channels)
        file = np.frombuffer(data, np.uint8)
        expected = _by_pillow(file, size, mode)
        assert np.array_equal(part, expected[top : top + rows, left : left + columns])


def _pngs_of_every_kind() -> list[bytes]:
    rng = np.random.default_rng(0)
    files = []
    for number, (color, depth) in enumerate(KINDS):
        for interlaced in (False, True):
            recipe = Recipe(color, depth, interlaced, (4, 4, 4, 4, 3, 1, 2, 0))
            recipe.chunk = 200 + 1000 * (number % 2)
            recipe.strategy = (zlib.Z_DEFAULT_STRATEGY, zlib.Z_FIXED, zlib.Z_RLE)[number % 3]
            if color == 3:
                recipe.palette = rng.integers(0, 256, 3 << depth, np.uint8).tobytes()
            values = stored_values(rng, 31, 19, color, depth)
            files.append(write_png(values, recipe))
    return files


def _with_other_rows(rng: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    """A PNG with other numbers of filters, values, and rows, which are compressed without a fault."""
    try:
        header = png.read_header(data)
        stream = b"".join(data[begin + 8 : end - 4] for kind, begin, end in png.chunks(data) if kind == b"IDAT")
        rows = zlib.decompress(stream)
    except (zlib.error, IndexError, ValueError):
        return data
    recipe = Recipe(header.color, header.depth, bool(data[28]), level=rng.randrange(10))
    recipe.palette = bytes(n % 251 for n in range(3 << header.depth)) if header.color == 3 else b""
    spoilt = mutate_bytes(rng, rows, seeds)
    return assembled((header.width, header.height), compressed(spoilt, recipe), recipe)
