"""Images in every format that people pack: headers, the packer's check of them, and the loader's other decoders."""

import struct
import zlib
from collections.abc import Sequence
from random import Random

import numpy as np

from fuzzing.mutate import mutate_bytes
from fuzzing.pictures import (
    JPEG_TOKENS,
    PNG_TOKENS,
    SIDE,
    encoded,
    picture,
    small_jpegs,
    small_pngs,
)
from fuzzing.target import Target
from gpuload.decode.interface import Stored
from gpuload.decode.native.images import ImageDecoder
from gpuload.decode.pillow import UndecodableError, decode_mask
from gpuload.errors import DecodeError
from gpuload.headers import jpeg, png
from gpuload.packing.image import prepare_image
from gpuload.packing.options import Encoding
from gpuload.pictures import MAX_PIXELS


def with_checksums(data: bytes) -> bytes:
    """A PNG whose chunks have the right checksums, as far as their lengths can be followed."""
    mended = data[:8]
    offset = 8
    while offset + 12 <= len(data):
        length = int.from_bytes(data[offset : offset + 4], "big")
        body = data[offset + 4 : offset + 8 + length]
        if offset + 12 + length > len(data):
            break
        mended += data[offset : offset + 4] + body + struct.pack(">I", zlib.crc32(body))
        offset += 12 + length
    return mended + data[offset:]


def _mutate_image(rng: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    is_png = data.startswith(png.START)
    mutated = mutate_bytes(rng, data, seeds, PNG_TOKENS if is_png else JPEG_TOKENS)
    return with_checksums(mutated) if is_png and rng.random() < 0.7 else mutated


class HeaderTarget(Target):
    """The readers of the headers of JPEG, PNG and Exif, given any bytes that begin as they do."""

    name = "headers"
    seconds = 2
    memory = 256 << 20

    def seeds(self) -> list[bytes]:
        return [
            *small_jpegs(),
            *small_pngs(),
            *(b"Exif\0\0" + data for data in _exifs()),
        ]

    mutate = staticmethod(_mutate_image)  # type: ignore[assignment]

    def run(self, data: bytes) -> None:
        if data.startswith(png.START):
            header = png.read_header(data)
            assert 0 <= header.width < 1 << 32 and 0 <= header.height < 1 << 32
        elif data.startswith(jpeg.START):
            parsed = jpeg.read_header(data)
            assert 0 <= parsed.width < 1 << 16 and 0 <= parsed.height < 1 << 16 and 0 <= parsed.orientation <= 8
        assert 0 <= jpeg.exif_orientation(data) <= 8


def _exifs() -> list[bytes]:
    inputs = []
    for order in "<>":
        entries = struct.pack(f"{order}HHIHHHHII", 0x0112, 3, 1, 6, 0, 0x0100, 4, 1, 40)
        inputs.append((b"II" if order == "<" else b"MM") + struct.pack(f"{order}HIH", 42, 8, 2) + entries + bytes(4))
    return inputs


class PackedImageTarget(Target):
    """The packer's check of an image, which keeps it, makes a JPEG or pixels of it, or rejects it."""

    name = "packed-image"
    refusals = (DecodeError,)
    seconds = 20

    def __init__(self) -> None:
        self._encodings = [
            Encoding(),
            Encoding(check="header"),
            Encoding(encode="jpeg", size=(16, 16)),
            Encoding(encode="raw"),
            Encoding(keep=("webp", "avif", "tiff")),
            Encoding(mode="RGB", keep=("webp", "avif", "tiff")),
            Encoding(mode="L", encode="raw"),
            Encoding(mode="RGBA", keep=("webp", "avif", "tiff")),
            Encoding(mode="I;16", keep=("tiff",)),
        ]

    def seeds(self) -> list[bytes]:
        image = picture()
        others = [
            "GIF",
            "BMP",
            "TIFF",
            "WEBP",
            "PPM",
            "TGA",
            "ICO",
            "PCX",
            "JPEG2000",
            "SGI",
            "MPO",
            "DDS",
            "AVIF",
        ]
        files = [encoded(image, kind) for kind in others]
        files += [encoded(image, "TIFF", compression=kind) for kind in ("tiff_lzw", "jpeg", "tiff_deflate")]
        return [*small_jpegs(), *small_pngs(), *files]

    mutate = staticmethod(_mutate_image)  # type: ignore[assignment]

    def run(self, data: bytes) -> None:
        encoding = self._encodings[zlib.crc32(data) % len(self._encodings)]
        stored = prepare_image(data, measured=len(data) % 5 == 0, encoding=encoding)
        assert stored.width > 0 and stored.height > 0 and stored.data


class LoadedImageTarget(PackedImageTarget):
    """Stored images as the CPU decoder gets them: its own decoder, libjpeg-turbo and Pillow, one after the other."""

    name = "loaded-image"
    refusals = (UndecodableError,)

    def __init__(self) -> None:
        self._decoders = [ImageDecoder(Stored(plain=plain)) for plain in (True, False)]

    def run(self, data: bytes) -> None:
        from gpuload.decode.native.images import DecodePlan
        from gpuload.read.batch import StoredPictures

        file = np.frombuffer(data, np.uint8)
        height, width = _told_size(data)
        heights = np.array([height], np.int32)
        widths = np.array([width], np.int32)
        spans = np.array([[file.ctypes.data, len(file)]], np.int64)
        no_points = np.zeros((1, 2), np.int64)
        stored = StoredPictures([file], spans, np.zeros(1, bool), widths, heights, no_points)
        windows = np.array([[0, 0, height, width]], np.int64)
        plan = DecodePlan(stored, windows, np.ones(1, np.int64))
        owners, broken = self._decoders[len(data) % 2].decode(plan, 0)
        if broken:
            raise UndecodableError
        address, rows, columns, stride, *_ = plan.pictures[0].tolist()
        assert address and stride >= 3 * columns and rows * columns <= MAX_PIXELS and len(owners) <= 1


def _told_size(data: bytes) -> tuple[int, int]:
    """As an index may tell it: what the header says, where that is small."""
    readers = {png.START[:2]: png.read_header, jpeg.START: jpeg.read_header}
    header = readers[data[:2]](data) if data[:2] in readers and len(data) > 32 else None
    if header is None or not 0 < header.width * header.height < 100_000:
        return SIDE, SIDE
    return header.height, header.width


class MaskTarget(Target):
    """Stored masks, as the CPU decoder reads them."""

    name = "mask"
    refusals = (Exception,)  # Pillow's, whatever they are

    def seeds(self) -> list[bytes]:
        return small_pngs()

    mutate = staticmethod(_mutate_image)  # type: ignore[assignment]

    def run(self, data: bytes) -> None:
        mask = decode_mask(np.frombuffer(data, np.uint8), (SIDE, SIDE))
        assert mask.shape == (SIDE, SIDE) and mask.dtype == np.uint8
