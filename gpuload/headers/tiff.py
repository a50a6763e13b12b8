"""Reads the directories of a TIFF: what each page says of its pixels. TIFF 6.0, BigTIFF and the tags of DNG.

Directories are read leniently, since it is the decoder that decides whether a page can be shown: a damaged chain ends
where the damage is.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")

# Tags.
_SUBFILE = 254
_OLD_SUBFILE = 255
_WIDTH = 256
_HEIGHT = 257
_BITS = 258
_COMPRESSION = 259
_PHOTOMETRIC = 262
_MAKE = 271
_SAMPLES = 277
_PLANAR = 284
_SUB_DIRECTORIES = 330
_EXTRA = 338
_FORMAT = 339
_DNG = 50_706
_WANTED = frozenset(
    {
        _SUBFILE,
        _OLD_SUBFILE,
        _WIDTH,
        _HEIGHT,
        _BITS,
        _COMPRESSION,
        _PHOTOMETRIC,
        _MAKE,
        _SAMPLES,
        _PLANAR,
    }
    | {_SUB_DIRECTORIES, _EXTRA, _FORMAT, _DNG}
)

# Values of tags.
WHITE_IS_ZERO = 0
BLACK_IS_ZERO = 1
IS_RGB = 2
IS_PALETTE = 3
IS_INKS = 5
_RAW_PIXELS = (32_803, 34_892)  # a colour filter array, and linear raw
JPEG_COMPRESSIONS = (6, 7, 34_892)
UNSIGNED = 1
SIGNED = 2
FLOAT = 3
PLANES = 2
_REDUCED = 1  # a bit of the kind of page
_TRANSPARENCY = 4  # another
_OLD_REDUCED = 2

_TYPES = {
    1: "B",
    2: "B",
    3: "H",
    4: "I",
    6: "b",
    7: "B",
    8: "h",
    9: "i",
    13: "I",
    16: "Q",
    17: "q",
    18: "Q",
}
_MOST_PAGES = 100_000
_MOST_VALUES = 4_096
_MOST_ENTRIES = 2_000_000  # of all directories: those of a hostile file may overlap


@dataclass(frozen=True)
class TiffPage:
    """The tags of one page, by TIFF 6.0.

    Attributes:
        number: Its place in the chain of pages; None for one below another page, which Pillow cannot reach.
        width: In pixels.
        height: In pixels.
        bits: Of a sample, the largest.
        samples: Values of a pixel, of colours and others.
        form: How a sample is to be understood, as `UNSIGNED`.
        photometric: How values become colours: PhotometricInterpretation.
        compression: Of the values: Compression.
        planar: Whether each channel is stored apart.
        extra: What each sample beyond the colours is: 0 not said, 1 alpha by which the colours are multiplied, 2 alpha.
        reduced: Whether it is a smaller copy of another page.
        is_mask: Whether it is the mask of another page.
        make: The maker of the camera; "" without.
        dng: Whether it has the tags of Adobe's raw format.
        big_endian: Whether the first byte of a number is the highest.
    """

    number: int | None
    width: int
    height: int
    bits: int
    samples: int
    form: int
    photometric: int
    compression: int
    planar: bool
    extra: tuple[int, ...]
    reduced: bool
    is_mask: bool
    make: str
    dng: bool
    big_endian: bool

    @property
    def colors(self) -> int:
        """The number of samples that are colours."""
        if self.photometric > IS_PALETTE:
            return self.samples - len(self.extra)
        return 3 if self.is_rgb else 1

    @property
    def is_rgb(self) -> bool:
        return self.photometric == IS_RGB

    @property
    def is_raw(self) -> bool:
        """Whether these are the values of a camera's sensor."""
        return self.photometric in _RAW_PIXELS

    @property
    def in_words(self) -> str:
        kinds = {UNSIGNED: "uint", SIGNED: "int", FLOAT: "float"}
        bands = "1 band" if self.samples == 1 else f"{self.samples} bands"
        return f"{bands} of {kinds.get(self.form, 'unknown type, ')}{self.bits}"


def read_pages(data: bytes) -> list[TiffPage]:
    """All pages, and those below others after them; [] where the first directory cannot be read."""
    if data[:4] not in STARTS:
        return []
    order = "<" if data[:2] == b"II" else ">"
    layout = _PixelLayout(data, order, data[2:4] in (b"+\0", b"\0+"))
    pages: list[TiffPage] = []
    below: list[int] = []
    for number, tags in enumerate(layout.chain()):
        if page := _page(number, tags, order):
            pages.append(page)
        offsets = tags.get(_SUB_DIRECTORIES, ())
        below += [offset for offset in offsets if isinstance(offset, int)]
    for offset in below[:_MOST_VALUES]:
        tags, _ = layout.directory(offset)
        if page := _page(None, tags, order):
            pages.append(page)
    return pages


class _PixelLayout:
    """Where directories are.

    Args:
        is_big: BigTIFF, whose offsets have 8 bytes.
    """

    def __init__(self, data: bytes, order: str, is_big: bool) -> None:
        self._data = data
        self._order = order
        self._is_big = is_big
        self._entries = 0

    def chain(self) -> Iterator[dict[int, tuple[int, ...]]]:
        """The directory of each page."""
        offset = self._number("Q", 8) if self._is_big else self._number("I", 4)
        seen: set[int] = set()
        while offset and offset not in seen and len(seen) < _MOST_PAGES:
            seen.add(offset)
            tags, offset = self.directory(offset)
            if not tags:
                return
            yield tags

    def directory(self, offset: int) -> tuple[dict[int, tuple[int, ...]], int]:
        """The tags at this byte, and where the next directory is; {} and 0 where there is none."""
        head = 8 if self._is_big else 2
        step = 20 if self._is_big else 12
        count = self._number("Q" if self._is_big else "H", offset)
        entries = offset + head
        self._entries += count
        is_sound = 1 <= count <= _MOST_VALUES and entries + count * step <= len(
            self._data
        )
        if not is_sound or self._entries > _MOST_ENTRIES:
            return {}, 0
        tags: dict[int, tuple[int, ...]] = {}
        for entry in range(entries, entries + count * step, step):
            tag = self._number("H", entry)
            if tag in _WANTED and tag not in tags:
                tags[tag] = self._values(entry)
        return tags, self._number("Q" if self._is_big else "I", entries + count * step)

    def _values(self, entry: int) -> tuple[int, ...]:
        """The values of an entry; () for types that hold no whole numbers."""
        code = _TYPES.get(self._number("H", entry + 2))
        count = self._number("Q" if self._is_big else "I", entry + 4)
        if code is None or count > _MOST_VALUES:
            return ()
        room = 8 if self._is_big else 4
        begin = entry + 4 + room
        size = count * struct.calcsize("=" + code)
        if size > room:
            begin = self._number("Q" if self._is_big else "I", begin)
        if begin + size > len(self._data):
            return ()
        return struct.unpack_from(f"{self._order}{count}{code}", self._data, begin)

    def _number(self, code: str, offset: int) -> int:
        """A number at this byte; 0 beyond the end."""
        if offset + struct.calcsize("=" + code) > len(self._data):
            return 0
        number: int = struct.unpack_from(self._order + code, self._data, offset)[0]
        return number


def _page(
    number: int | None, tags: dict[int, tuple[int, ...]], order: str
) -> TiffPage | None:
    """A page of these tags; None if it has no pixels.

    Args:
        order: Of bytes, as `struct` has it.
    """

    def value(tag: int, usual: int) -> int:
        return next(iter(tags.get(tag, ())), usual)

    width = value(_WIDTH, 0)
    height = value(_HEIGHT, 0)
    if width < 1 or height < 1:
        return None
    subfile = value(_SUBFILE, 0)
    make = (
        bytes(letter for letter in tags.get(_MAKE, ()) if 0 < letter < 128)
        .decode("ascii")
        .strip()
    )
    return TiffPage(
        number=number,
        width=width,
        height=height,
        bits=max(tags.get(_BITS, ()), default=1),
        samples=value(_SAMPLES, 1),
        form=value(_FORMAT, UNSIGNED),
        photometric=value(_PHOTOMETRIC, BLACK_IS_ZERO),
        compression=value(_COMPRESSION, 1),
        planar=value(_PLANAR, 1) == PLANES,
        extra=tags.get(_EXTRA, ()),
        reduced=bool(subfile & _REDUCED) or value(_OLD_SUBFILE, 0) == _OLD_REDUCED,
        is_mask=bool(subfile & _TRANSPARENCY),
        make=make,
        dng=_DNG in tags,
        big_endian=order == ">",
    )
