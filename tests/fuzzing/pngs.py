"""PNGs of every kind, written from stored values: any colour type, depth, filters, interlacing and chunks."""

import struct
import zlib
from dataclasses import dataclass, field
from itertools import cycle

import numpy as np

SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # of a pixel, by colour type
DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
KINDS = [(color, depth) for color, depths in DEPTHS.items() for depth in depths]
FILTERS = range(5)

# Top, left, and the distances down and across, of the images that make an interlaced one.
ADAM7 = [
    (0, 0, 8, 8),
    (0, 4, 8, 8),
    (4, 0, 8, 4),
    (0, 2, 4, 4),
    (2, 0, 4, 2),
    (0, 1, 2, 2),
    (1, 0, 2, 1),
]


@dataclass
class Recipe:
    """How a PNG is written.

    filters: of the rows, in turn. chunk: bytes of an IDAT. level, strategy: of zlib. palette, transparency: contents of
    PLTE and tRNS. others: further chunks before the pixels.
    """

    color: int
    depth: int
    interlaced: bool = False
    filters: tuple[int, ...] = (0,)
    chunk: int = 1 << 20
    level: int = 6
    strategy: int = zlib.Z_DEFAULT_STRATEGY
    palette: bytes = b""
    transparency: bytes = b""
    others: list[tuple[bytes, bytes]] = field(default_factory=list)


def chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def packed(values: np.ndarray, depth: int) -> np.ndarray:
    """uint8 (height, bytes of a row): values (height, width, samples) as they are stored."""
    height = len(values)
    if depth == 16:
        return values.astype(">u2").view(np.uint8).reshape(height, -1)
    if depth == 8:
        return values.astype(np.uint8).reshape(height, -1)
    bits = values.astype(np.uint8).reshape(height, -1, 1) >> np.arange(depth - 1, -1, -1, dtype=np.uint8) & 1
    return np.packbits(bits.reshape(height, -1), axis=1)


def filtered(rows: np.ndarray, pixel_bytes: int, filters: "cycle[int]") -> bytes:
    """Rows with their filters."""
    height, size = rows.shape
    current = np.zeros((height + 1, size + pixel_bytes), np.int16)
    current[1:, pixel_bytes:] = rows
    left = current[1:, :size]
    above = current[:-1, pixel_bytes:]
    corner = current[:-1, :size]
    nearness = [abs(above - corner), abs(left - corner), abs(left + above - 2 * corner)]
    is_left = (nearness[0] <= nearness[1]) & (nearness[0] <= nearness[2])
    paeth = np.where(is_left, left, np.where(nearness[1] <= nearness[2], above, corner))
    predicted = [np.zeros_like(left), left, above, (left + above) // 2, paeth]
    lines = []
    for row in range(height):
        number = next(filters)
        line = (rows[row] - predicted[number][row]) & 255
        lines.append(bytes([number]) + line.astype(np.uint8).tobytes())
    return b"".join(lines)


def stream_of(values: np.ndarray, recipe: Recipe) -> bytes:
    """What is compressed: the filtered rows of all passes."""
    pixel_bytes = max(1, SAMPLES[recipe.color] * recipe.depth // 8)
    filters = cycle(recipe.filters)
    passes = ADAM7 if recipe.interlaced else [(0, 0, 1, 1)]
    parts = [values[top::down, left::across] for top, left, down, across in passes]
    return b"".join(filtered(packed(part, recipe.depth), pixel_bytes, filters) for part in parts if part.size)


def compressed(data: bytes, recipe: Recipe) -> bytes:
    compressor = zlib.compressobj(recipe.level, zlib.DEFLATED, 15, 9, recipe.strategy)
    return compressor.compress(data) + compressor.flush()


def assembled(size: tuple[int, int], stream: bytes, recipe: Recipe) -> bytes:
    """A file of (width, height) with a compressed stream."""
    header = struct.pack(">IIBBBBB", *size, recipe.depth, recipe.color, 0, 0, recipe.interlaced)
    chunks = [chunk(b"IHDR", header), *(chunk(*other) for other in recipe.others)]
    if recipe.palette:
        chunks.append(chunk(b"PLTE", recipe.palette))
    if recipe.transparency:
        chunks.append(chunk(b"tRNS", recipe.transparency))
    chunks += [chunk(b"IDAT", stream[offset : offset + recipe.chunk]) for offset in range(0, len(stream), recipe.chunk)]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + chunk(b"IEND", b"")


def write_png(values: np.ndarray, recipe: Recipe) -> bytes:
    """values: (height, width, samples), as they are stored."""
    height, width, _ = values.shape
    return assembled((width, height), compressed(stream_of(values, recipe), recipe), recipe)


def stored_values(rng: np.random.Generator, width: int, height: int, color: int, depth: int) -> np.ndarray:
    """Smooth values with noise, and rows that repeat."""
    samples = SAMPLES[color]
    coarse = rng.integers(0, 1 << depth, (height // 9 + 2, width // 9 + 2, samples))
    smooth = coarse.repeat(9, axis=0).repeat(9, axis=1)[:height, :width]
    noise = rng.integers(0, 4, smooth.shape) * (rng.random((height, 1, 1)) < 0.7)
    return np.clip(smooth + noise, 0, (1 << depth) - 1)
