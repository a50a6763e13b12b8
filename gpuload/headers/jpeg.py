"""Reads the header of a JPEG strictly, to find out whether every decoder decodes the file to the same image.

Pillow decodes many files that other decoders refuse or show differently: bytes between segments, CMYK, RGB without
YCbCr, unusual chroma sampling, arithmetic coding. DALI's parser and nvJPEG are the strict ones. A file that is not
plain by the rules here is re-encoded as a JPEG that is.

Whether a file is sound, `gpuload.kernels.jpeg.check_jpegs` tells.
"""

from typing import Any, NamedTuple

from gpuload.kernels.jpeg import exif_orientation

ORIENTATION = 0x0112  # the tag of Exif; its value is 1 for upright, and from 5 on width and height change places
START = b"\xff\xd8"
END = b"\xff\xd9"
LOSSLESS_FRAME = b"\xff\xc3"  # the marker; no entropy-coded data holds it

NO_END = "jpeg-no-end"  # the oddity of a file that was cut short
_ODD_HEADER = "jpeg-odd-header"
_BASELINE = 0xC0
_PROGRESSIVE = 0xC2
# SOFn; the others are DHT, JPG and DAC.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {
    0xC4,
    0xC8,
    0xCC,
}
_SCAN = 0xDA
_TABLES = 0xDB
_EXIF = 0xE1
_ADOBE = 0xEE
_SEGMENTS = (
    _FRAMES | {0xC4, 0xCC, _SCAN, _TABLES, 0xDD, 0xFE} | frozenset(range(0xE0, 0xF0))
)
# Sampling of Y when Cb and Cr have 1x1: 4:4:4, 4:2:2, 4:2:0, 4:4:0, 4:1:1, 4:1:0.
_LUMA_SAMPLING = frozenset({0x11, 0x21, 0x22, 0x12, 0x41, 0x42})


class JpegHeader(NamedTuple):
    """What the segments before the entropy-coded data say.

    Attributes:
        width: In pixels, as stored.
        height: In pixels, as stored.
        oddity: "" if the file is plain, else a short name of the reason why it is not.
        orientation: The EXIF orientation, 1 to 8; 1 without one; 0 if decoders may disagree on it.
        xmp_orientation: Whether XMP mentions an orientation too, which Pillow applies and DALI does not.
        gray: Whether the image has a single component.
        progressive: Whether it is coded in several scans.
    """

    width: int
    height: int
    oddity: str
    orientation: int = 1
    xmp_orientation: bool = False
    gray: bool = False
    progressive: bool = False

    @property
    def plain(self) -> bool:
        """Whether all decoders decode it alike, upright as it is stored."""
        return not self.oddity and self.orientation == 1 and not self.xmp_orientation


def read_header(data: bytes) -> JpegHeader:
    """Reads the segments up to the first scan.

    A file is plain if it is baseline or progressive, has 8 bits, is gray or YCbCr with a common sampling, and has no
    byte out of place.

    Args:
        data: Begins with `START`, and holds at least these segments.
    """
    segments = _Segments(data)
    begin = len(START)
    size = len(data)
    while not segments.scan:
        is_marker = begin + 4 <= size and data[begin] == 0xFF
        marker = data[begin + 1] if is_marker else 0
        length = data[begin + 2] << 8 | data[begin + 3] if is_marker else 0
        end = begin + 2 + length
        is_sound = marker in _SEGMENTS and length >= 2 and end <= size
        if not is_sound or not segments.read(marker, begin + 4, end):
            return JpegHeader(segments.width, segments.height, _ODD_HEADER)
        begin = end
    return segments.header()


class _Segments:
    """What the segments of a JPEG say, as far as they were read.

    Attributes:
        width, height: in pixels, as stored; 0 before the frame.
        scan: Where the entropy-coded data begins; 0 before the scan.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.width = 0
        self.height = 0
        self.scan = 0
        self._components = 0
        self._adobe_transform = 1
        self._oddity = ""
        self._progressive = False
        self._orientation = -1  # no Exif yet
        self._xmp = False

    def read(self, marker: int, begin: int, end: int) -> bool:
        """Reads the content of a segment, bytes begin..end-1; False where it is odd."""
        data = self._data
        if marker in _FRAMES:
            return self._read_frame(marker, data[begin:end])
        if marker == _EXIF:
            self._read_exif(begin, end)
        elif marker == _ADOBE:
            if end - begin >= 12 and data.startswith(b"Adobe", begin):
                self._adobe_transform = data[begin + 11]
        elif marker == _TABLES:
            if end > begin and data[begin] >> 4:
                self._oddity = self._oddity or "jpeg-16-bit-tables"
        elif marker == _SCAN:
            self.scan = end
        return True

    def _read_frame(self, marker: int, frame: bytes) -> bool:
        if len(frame) < 6 or len(frame) != 6 + 3 * frame[5] or self.width:
            return False
        self.height = frame[1] << 8 | frame[2]
        self.width = frame[3] << 8 | frame[4]
        self._components = frame[5]
        self._progressive = marker == _PROGRESSIVE
        self._oddity = self._oddity or _frame_oddity(marker, frame)
        return True

    def _read_exif(self, begin: int, end: int) -> None:
        data = self._data
        if data[begin : begin + 4].lower() != b"exif":
            self._xmp = self._xmp or data.find(b"Orientation", begin, end) > 0
        elif self._orientation < 0:
            self._orientation = exif_orientation(data[begin:end])
        else:
            # With two EXIF segments, decoders differ in which one they use.
            self._orientation = 0

    def header(self) -> JpegHeader:
        """What was read, once the scan was."""
        return JpegHeader(
            self.width,
            self.height,
            self._whole_oddity(),
            abs(self._orientation),
            self._xmp,
            self._components == 1,
            self._progressive,
        )

    def _whole_oddity(self) -> str:
        """The oddity of the file, of which that of its frame may be hidden by others."""
        if not self.width or not self.height:
            return _ODD_HEADER
        if self._oddity:
            return self._oddity
        if self._components == 3 and self._adobe_transform != 1:
            return "jpeg-rgb"
        return "" if self._has_end() else NO_END

    def _has_end(self) -> bool:
        """Whether an end marker follows the scan: it is looked for at the end of the file first."""
        near_end = max(self.scan, len(self._data) - 4096)
        return (
            self._data.find(END, near_end) >= 0 or self._data.find(END, self.scan) >= 0
        )


def _frame_oddity(marker: int, frame: bytes) -> str:
    precision = frame[0]
    components = frame[5]
    if precision != 8:
        return f"jpeg-{precision}-bit"
    if marker >= 0xC9:
        return "jpeg-arithmetic"
    if marker == 0xC3:
        return "jpeg-lossless"
    if marker not in (_BASELINE, _PROGRESSIVE):
        return "jpeg-extended"
    if components == 4:
        return "jpeg-cmyk"
    names = frame[6::3]
    sampling = frame[7::3]
    if components == 3 and names == b"RGB":
        return "jpeg-rgb"
    if components == 1 and sampling[0] == 0x11:
        return ""
    if (
        components == 3
        and sampling[0] in _LUMA_SAMPLING
        and sampling[1:] == b"\x11\x11"
    ):
        return ""
    return "jpeg-odd-sampling"


def upright_size(size: tuple[int, int], exif: Any) -> tuple[int, int]:
    """The width and height of an image after its Exif orientation.

    Args:
        size: (width, height) as stored.
        exif: Pillow's tags, or a dict of tags.
    """
    return size[::-1] if exif.get(ORIENTATION, 1) in (5, 6, 7, 8) else size
