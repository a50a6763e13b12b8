"""Opens a TIFF: which page is the image, which bands are colours, and who reads its values right.

Pillow 13 reads planar 16 bits as noise, 12 bits as 16, signed 8 bits and unsigned 32 bits as the other, 16 bits with
white as zero inverted, and refuses most files of several bands (2026-11).
"""

import io
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from PIL import Image

from gpuload.errors import DecodeError
from gpuload.formats import corrections, tiff_values
from gpuload.formats.codec import Codec, OpenedFile, fault, require
from gpuload.formats.opened import as_numbers, is_swapped, raster_of_image
from gpuload.formats.raster import BANDS, PAGES, Conversion, Raster
from gpuload.headers import tiff
from gpuload.headers.tiff import (
    BLACK_IS_ZERO,
    FLOAT,
    IS_RGB,
    SIGNED,
    UNSIGNED,
    WHITE_IS_ZERO,
    TiffPage,
)

_NUMBERS = (WHITE_IS_ZERO, BLACK_IS_ZERO, IS_RGB)
_GRAY_TYPES = {UNSIGNED: (1, 2, 4, 8, 12, 16, 32), SIGNED: (8, 16, 32), FLOAT: (32,)}
_ALPHA = (1, 2)
# What Pillow's libtiff decompresses: nothing, fax, LZW, JPEG, deflate, PackBits, ThunderScan, SGI's, LZMA, Zstandard.
_COMPRESSIONS = frozenset(
    {1, 2, 3, 4, 5, 6, 7, 8, 32_771, 32_773, 32_809, 32_946}
    | {34_676, 34_677, 34_925, 50_000}
)
_COLOR_BITS = 8
_MOST_COLORS = 4  # with transparency
_OPAQUE = {8: 255, 16: 65_535}  # by bits, where Pillow or tifffile gives them all


_PACKAGES = ("tifffile", "imagecodecs")


class TiffCodec(Codec):
    """The first page that is no thumbnail; channels that are pages of their own, if the set has as many."""

    title = "a TIFF"
    suffixes = (".tif", ".tiff")
    needs = _PACKAGES
    reads_with = (
        "Pillow; many bands, planes of 16 bits, 12 bits and rare compressions tifffile"
    )
    pillow = (
        "reads planar 16 bits as noise, 12 bits as 16, signed 8 bits as unsigned, inverts 16 bits whose white is zero, "
        "and refuses most files of several bands"
    )

    @classmethod
    def recognise(cls, data: bytes) -> bool:
        return data.startswith(tiff.STARTS) and bool(tiff.read_pages(data))

    def open(self, data: bytes, conversion: Conversion) -> OpenedFile:
        return open_tiff(data, tiff.read_pages(data), conversion)


def open_tiff(
    data: bytes, pages: Sequence[TiffPage], conversion: Conversion
) -> OpenedFile:
    """Opens a page of a TIFF with a library that reads it right.

    Args:
        data: Content of the file.
        pages: Its tags, of at least one page.
        conversion: What every image becomes.

    Raises:
        DecodeError: it is a camera's raw file; it has no such page; or no installed library reads it right.
    """
    _refuse_raw(data, pages)
    page = _chosen(pages, conversion)
    if page is pages[0] and len(pages) > 1:
        opened = _by_channels(data, page, conversion)
        if opened is not None:
            return opened
    bands = _Bands(page, conversion)
    is_for_pillow = _pillow_reads(page, conversion, bands)
    opened = (
        _by_pillow(data, page, conversion)
        if is_for_pillow
        else _by_tifffile(data, page, conversion)
    )
    full = [
        other
        for other in pages
        if other.number is not None and not other.reduced and not other.is_mask
    ]
    opened.pages = None  # `_chosen` has looked
    if conversion.page is None and len(full) > 1:
        opened.remarks[PAGES] = 1
    read = opened.load
    opened.load = lambda: bands.picked(read())
    opened.exact = opened.exact and not bands.are_extra and page is pages[0]
    return opened


def count_bands(data: bytes, conversion: Conversion) -> int:
    """How many bands of a TIFF hold values: all, if they have more than 8 bits or are more than those of colours with
    transparency; else 0, for files whose further bands may be transparency.

    Args:
        data: Content of the file.
        conversion: Says which page is meant.
    """
    pages = tiff.read_pages(data)
    page = _chosen(pages, conversion)
    is_numbers = page.photometric in _NUMBERS
    is_deep = page.bits > _COLOR_BITS and is_numbers
    channels = 0
    is_first_of_several = page is pages[0] and len(pages) > 1
    if is_first_of_several and page.samples == 1 and conversion.page is None:
        channels = 0 if fault(*_PACKAGES) else tiff_values.count_channels(data)
    bands = max(channels, page.samples)
    return bands if is_deep or (bands > _MOST_COLORS and is_numbers) else 0


def _refuse_raw(data: bytes, pages: Sequence[TiffPage]) -> None:
    is_canon = data[8:10] == b"CR"
    if is_canon or any(page.is_raw or page.dng for page in pages):
        make = next((page.make for page in pages if page.make), "")
        kind = "CR2" if is_canon else "raw file"
        if any(page.dng for page in pages):
            kind = "DNG"
        camera = f" of {make}" if make else ""
        raise DecodeError(
            f"is a {kind}{camera}, the values of a camera's sensor; develop it to TIFF, PNG or JPEG"
        )


def _chosen(pages: Sequence[TiffPage], conversion: Conversion) -> TiffPage:
    """The page that is asked for, else the first one if it is no thumbnail, else the largest that is none."""
    if conversion.page is not None:
        page = next((page for page in pages if page.number == conversion.page), None)
        if page is None:
            count = sum(page.number is not None for page in pages)
            raise DecodeError(
                f"has {count} pages or frames, and --page {conversion.page} counts from 0"
            )
        return page
    full = [page for page in pages if not page.reduced and not page.is_mask]
    if not full or full[0] is pages[0]:
        return pages[0]
    return max(full, key=lambda page: page.width * page.height)


class _Bands:
    """Which bands of a page become channels.

    are_extra: whether it has bands beside its colours that the set has no channel for. all: whether all are channels.
    """

    def __init__(self, page: TiffPage, conversion: Conversion) -> None:
        self._page = page
        self._conversion = conversion
        self.count = page.samples
        self.colors = (
            page.colors
            if page.photometric in _NUMBERS
            else page.samples - len(page.extra)
        )
        self.all = page.samples == conversion.channels or conversion.bands is not None
        self.are_extra = page.samples > self.colors and not self.all

    @property
    def drops(self) -> bool:
        """Whether the colours alone are taken, whatever the others are."""
        return self.are_extra and self._conversion.alpha == "drop"

    @property
    def first_is_alpha(self) -> bool:
        return self._page.extra[:1] in ((1,), (2,))

    def picked(self, raster: Raster) -> Raster:
        """The bands of a decoded page that the set has channels for, and its transparency.

        Raises:
            DecodeError: there are others, and it is not said what becomes of them.
        """
        if not self.are_extra:
            return raster
        colors = _with_bands(raster, self.colors)
        if self._conversion.alpha == "drop":
            colors.remarks[BANDS] = 1
            return colors
        opaque = _OPAQUE.get(self._page.bits)
        if self.first_is_alpha and self._conversion.is_plain and opaque is not None:
            is_single = self.count == self.colors + 1
            both = _with_bands(raster, self.colors + 1)
            values = both.values if both.image is None else np.asarray(both.image)
            assert values is not None
            if is_single and int(values[..., -1].min()) == opaque:
                return colors
            if self._conversion.alpha == "white":
                if not is_single:
                    both.remarks[BANDS] = 1
                return replace(both, has_alpha=True)
        raise DecodeError(self._question())

    def _question(self) -> str:
        page = self._page
        kind = {UNSIGNED: "uint", FLOAT: "float"}.get(page.form, "int")
        mode = (
            "RGBA"
            if (page.samples, kind, page.bits) == (4, "uint", 8)
            else f"{kind}{page.bits}x{page.samples}"
        )
        raw = "" if mode == "RGBA" else " --encode raw"
        white = (
            ", --alpha white takes the next one for transparency"
            if self.first_is_alpha
            else ""
        )
        return (
            f"is a TIFF of {page.in_words}, of which {self.colors} {'is gray' if self.colors == 1 else 'are colours'}; "
            f"the others may be transparency, or data such as near infrared: --mode {mode}{raw} keeps all, --alpha "
            f"drop leaves them out{white}, and --bands 3,2,1 picks some, counted from 1"
        )


def _with_bands(raster: Raster, count: int) -> Raster:
    """The first bands of a raster."""
    if raster.image is None:
        assert raster.values is not None
        return replace(raster, values=raster.values[..., :count])
    values = np.asarray(raster.image)
    if values.ndim == 2 or values.shape[2] == count:
        return raster
    kept = np.ascontiguousarray(values[..., :count])
    return replace(
        raster, image=Image.fromarray(kept.squeeze(2) if count == 1 else kept)
    )


def _pillow_reads(page: TiffPage, conversion: Conversion, bands: _Bands) -> bool:
    """Whether Pillow gives the values of a page, perhaps after a correction."""
    if page.number is None or page.compression not in _COMPRESSIONS:
        return False
    if page.photometric not in _NUMBERS:
        return page.bits <= 8 and page.form == UNSIGNED
    if conversion.bands is not None and page.samples > page.colors:
        return False
    if page.samples == 1:
        if page.big_endian and is_swapped(page.bits, page.form, page.compression):
            return False
        return page.bits in _GRAY_TYPES.get(page.form, ())
    if page.bits == 16 and conversion.needs_every_bit:
        return False
    return _pillow_reads_bands(page, bands)


def _pillow_reads_bands(page: TiffPage, bands: _Bands) -> bool:
    """Whether Pillow gives the values of a page with several bands."""
    if page.form != UNSIGNED or page.bits not in (8, 16):
        return False
    if page.bits == 16 and (page.planar or not page.is_rgb):
        return False
    extra = page.samples - page.colors
    if extra == 0:
        return page.is_rgb
    is_alpha = extra == 1 and page.extra[:1] in ((1,), (2,))
    if is_alpha and (page.is_rgb or not page.planar):
        return True
    can_drop = bands.drops and not page.planar
    return can_drop and (page.is_rgb or extra == 1) and page.samples <= 4


def _by_pillow(data: bytes, page: TiffPage, conversion: Conversion) -> OpenedFile:
    image = Image.open(io.BytesIO(data))
    assert page.number is not None
    if page.number:
        image.seek(page.number)
    has_few_bits = page.samples == 1 and page.bits < 8

    def load() -> Raster:
        raster = raster_of_image(image)
        if has_few_bits and page.photometric in _NUMBERS and not conversion.is_levels:
            return as_numbers(raster, page.bits)
        if raster.image is not None:
            is_signed = page.form == SIGNED and page.samples == 1
            if is_signed:
                values = np.asarray(raster.image).view(np.int8)[..., None]
                return replace(raster, image=None, values=values)
            return replace(raster, deep=page.bits == 16)
        return _gray(raster, page)

    is_usual = page.bits == 8 or (page.bits == 16 and page.photometric == BLACK_IS_ZERO)
    exact = is_usual and page.form == UNSIGNED
    return OpenedFile("tiff", image.size, load, image, exact)


def _gray(raster: Raster, page: TiffPage) -> Raster:
    """Gray of more than 8 bits, as the page states its type and which value is white."""
    assert raster.values is not None
    values = raster.values
    if page.form == SIGNED:
        return replace(
            raster,
            values=values.astype(np.int16 if page.bits == 16 else np.int32),
            peak=0,
        )
    if page.form == UNSIGNED and page.bits == 32:
        return replace(raster, values=values.astype(np.int32).view(np.uint32), peak=0)
    if page.form != UNSIGNED:
        return raster
    peak = (1 << page.bits) - 1
    if page.photometric == WHITE_IS_ZERO:
        values = peak - values
    return replace(raster, values=values, peak=peak)


def _by_channels(
    data: bytes, page: TiffPage, conversion: Conversion
) -> OpenedFile | None:
    """An image whose channels are pages, with all of them as bands, if that is asked for; else None."""
    is_asked = conversion.bands is not None or (
        conversion.channels > 1 and not conversion.is_plain
    )
    is_single = page.samples == 1 and conversion.page is None
    if not is_asked or not is_single or not conversion.codecs or fault(*_PACKAGES):
        return None
    channels = tiff_values.count_channels(data)
    is_fitting = conversion.bands is not None or channels == conversion.channels
    if not channels or not is_fitting:
        return None
    peak = _peak(page)

    def load() -> Raster:
        return Raster(values=tiff_values.decode_channels(data), peak=peak)

    return OpenedFile("tiff", (page.width, page.height), load)


def _peak(page: TiffPage) -> int:
    """The value of white; 0 where it is not known."""
    return (1 << page.bits) - 1 if page.form == UNSIGNED and page.bits <= 16 else 0


def _by_tifffile(data: bytes, page: TiffPage, conversion: Conversion) -> OpenedFile:
    kind = f"is a {'planar ' if page.planar else ''}TIFF of {page.in_words}"
    if page.photometric not in _NUMBERS:
        raise DecodeError(
            f"{kind} in a colour space that is not read; convert it to RGB or gray"
        )
    require(kind, conversion, *_PACKAGES)
    size = page.width, page.height
    turn, profile = tiff_values.read_tags(data, page.number)

    def load() -> Raster:
        values = tiff_values.decode_page(data, page.number, size)
        peak = _peak(page)
        if page.photometric == WHITE_IS_ZERO and peak:
            values = (peak - values.astype(np.int64)).astype(values.dtype)
        return Raster(
            values=corrections.turned(values, turn),
            peak=peak,
            profile=profile,
            turned=turn,
        )

    return OpenedFile("tiff", size, load)
