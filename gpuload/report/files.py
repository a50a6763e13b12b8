"""What the stored files of a split are: formats, and of JPEGs the mode, colours, sampling and quality."""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gpuload.disk.dataset import Dataset
from gpuload.headers import jpeg, png
from gpuload.types import I8, I64

_FIRST_BYTES = 4096  # enough for most headers; where they are longer, by embedded previews or profiles, 64 kB more
_MORE_BYTES = 1 << 16
# The luminance table of Annex K of ITU-T T.81, in zigzag order, which libjpeg scales by its quality.
_STANDARD = np.array(
    [16, 11, 12, 14, 12, 10, 16, 14, 13, 14, 18, 17, 16, 19, 24, 40, 26, 24, 22, 22, 24, 49, 35, 37, 29, 40, 58, 51,
     61, 60, 57, 51, 56, 55, 64, 72, 92, 78, 64, 68, 87, 69, 55, 56, 80, 109, 81, 87, 95, 98, 103, 104, 103, 62, 77,
     113, 121, 112, 100, 120, 92, 101, 103, 99], np.float64
)  # fmt: skip
_MODES = {0xC0: "baseline", 0xC1: "baseline", 0xC2: "progressive"}
_SAMPLINGS = {0x11: "4:4:4", 0x21: "4:2:2", 0x22: "4:2:0", 0x12: "4:4:0", 0x41: "4:1:1", 0x42: "4:1:0"}
_STARTS: dict[str, bytes | tuple[bytes, ...]] = {"PNG": png.START, "JPEG": jpeg.START, "TIFF": (b"II*\0", b"MM\0*")}
_COLORS = {1: "gray", 3: "colour", 4: "CMYK"}


class JpegFacts(NamedTuple):
    """mode: baseline, progressive or other. colors: gray, colour or CMYK. sampling: of colour, such as "4:2:0".

    quality: of libjpeg that gives the same luminance table, 1 to 100; 0 where there is none.
    """

    mode: str
    colors: str
    sampling: str
    quality: int


@dataclass
class FileFacts:
    """Of N stored files: counts by format, and of the JPEGs by mode, colours and sampling.

    numbers: int64 (N,), of the samples in the whole set. qualities: int8 (N,), of libjpeg, 0 where it is not known.
    """

    numbers: I64
    formats: Counter[str] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    colors: Counter[str] = field(default_factory=Counter)
    samplings: Counter[str] = field(default_factory=Counter)
    qualities: I8 = field(default_factory=lambda: np.empty(0, np.int8))


def read_files(dataset: Dataset, numbers: I64) -> FileFacts:
    """Reads the first bytes of these images, given by their numbers in the whole set, ascending."""
    facts = FileFacts(numbers)
    if dataset.fields["image"].kind == "raw":
        facts.formats["raw pixels"] = len(numbers)
        facts.qualities = np.zeros(len(numbers), np.int8)
        return facts
    qualities = []
    tables: dict[bytes, int] = {}
    for head in _heads(dataset, numbers):
        found = _facts_of_jpeg(head, tables) if head.startswith(jpeg.START) else None
        if found is None:
            facts.formats[_format(head)] += 1
            qualities.append(0)
            continue
        facts.formats["JPEG"] += 1
        facts.modes[found.mode] += 1
        facts.colors[found.colors] += 1
        if found.sampling:
            facts.samplings[found.sampling] += 1
        qualities.append(found.quality)
    facts.qualities = np.array(qualities, np.int8)
    return facts


def _format(head: bytes) -> str:
    for name, starts in _STARTS.items():
        if head.startswith(starts):
            return name
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "WebP"
    return "AVIF" if head[4:12] in (b"ftypavif", b"ftypavis") else "other"


def _heads(dataset: Dataset, numbers: I64) -> Iterator[bytes]:
    """The first bytes of each image, of a JPEG those up to its first scan. Empty where they cannot be read."""
    store = dataset.open_store()
    try:
        shards = dataset.shards_of(numbers)
        for shard in np.unique(shards).tolist():
            rows = numbers[shards == shard] - int(dataset.first_samples[shard])
            table = dataset.rows(shard)
            offsets, sizes = (table.column(f"image_{what}").to_numpy()[rows].tolist() for what in ("offset", "bytes"))
            lease = store.open(shard)
            with open(lease.path, "rb", buffering=0) as file:
                for offset, size in zip(offsets, sizes, strict=True):
                    yield _read_head(file.fileno(), offset, size)
    finally:
        store.close()


def _read_head(descriptor: int, offset: int, size: int) -> bytes:
    if offset < 0 or size <= 0:
        return b""
    try:
        head = os.pread(descriptor, min(size, _FIRST_BYTES), offset)
        if head.startswith(jpeg.START) and b"\xff\xda" not in head and size > _FIRST_BYTES:
            head += os.pread(descriptor, min(size - _FIRST_BYTES, _MORE_BYTES), offset + _FIRST_BYTES)
    except OSError:
        return b""
    return head


def _facts_of_jpeg(data: bytes, tables: dict[bytes, int]) -> JpegFacts | None:
    """None where the segments cannot be followed to a frame. tables: qualities of those that were seen before."""
    at, quality, facts = 2, 0, None
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], data[at + 2] << 8 | data[at + 3]
        body, end = at + 4, at + 2 + length
        if marker == 0xDA or length < 2:
            break
        if marker == 0xDB and not quality and body < len(data) and data[body] & 0x0F == 0:
            table = data[body : body + 65]
            if table not in tables:
                tables[table] = _quality(table)
            quality = tables[table]
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC) and end <= len(data) and length >= 11:
            components = data[body + 5]
            sampling = _SAMPLINGS.get(data[body + 7], "other") if components == 3 else ""
            facts = JpegFacts(_MODES.get(marker, "other"), _COLORS.get(components, "other"), sampling, 0)
        at = end
    return None if facts is None else facts._replace(quality=quality)


def _quality(table: bytes) -> int:
    """libjpeg's quality (`jpeg_quality_scaling`): tables are scaled by 5000 / q below 50, else by 200 - 2 q percent."""
    if len(table) != 65 or table[0] >> 4:
        return 0
    entries = np.frombuffer(table, np.uint8, 64, 1)
    scaled = (entries > 1) & (entries < 255)  # the others were limited to this range
    if not scaled.any():
        return 100 if entries[0] == 1 else 1
    scale = 100 * float(np.median(entries[scaled] / _STANDARD[scaled]))
    quality = (200 - scale) / 2 if scale <= 100 else 5000 / scale
    return round(min(100.0, max(1.0, quality)))
