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

_BASELINE, _PROGRESSIVE = 0xC0, 0xC2
_FRAMES = frozenset(range(0xC0, 0xD0)) - {
    0xC4,
    0xC8,
    0xCC,
}  # SOFn; the others are DHT, JPG and DAC
_SCAN, _TABLES, _EXIF, _ADOBE = 0xDA, 0xDB, 0xE1, 0xEE
_SEGMENTS = (
    _FRAMES | {0xC4, 0xCC, _SCAN, _TABLES, 0xDD, 0xFE} | frozenset(range(0xE0, 0xF0))
)
# Sampling of Y when Cb and Cr have 1x1: 4:4:4, 4:2:2, 4:2:0, 4:4:0, 4:1:1, 4:1:0.
_LUMA_SAMPLING = frozenset({0x11, 0x21, 0x22, 0x12, 0x41, 0x42})


class JpegHeader(NamedTuple):
    """What the segments before the entropy-coded data say.

    width, height: in pixels, as stored.
    oddity: "" if the file is plain, else a short name of the reason why it is not.
    orientation: the EXIF orientation, 1 to 8; 1 without one; 0 if decoders may disagree on it.
    xmp_orientation: whether XMP mentions an orientation too, which Pillow applies and DALI does not.
    gray: whether the image has a single component. progressive: whether it is coded in several scans.
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
    """Reads the segments up to the first scan; `data` must start with `START`.

    A file is plain if it is baseline or progressive, has 8 bits, is gray or YCbCr with a common sampling, and has no
    byte out of place.
    """
    width = height = components = scan = 0
    adobe_transform = 1
    oddity, progressive = "", False
    orientation, xmp = -1, False
    at, size = 2, len(data)
    while not scan:
        marker = data[at + 1] if at + 4 <= size and data[at] == 0xFF else 0
        length = data[at + 2] << 8 | data[at + 3] if marker else 0
        body, end = at + 4, at + 2 + length
        if marker not in _SEGMENTS or length < 2 or end > size:
            return JpegHeader(width, height, "jpeg-odd-header")
        if marker in _FRAMES:
            frame = data[body:end]
            if len(frame) < 6 or len(frame) != 6 + 3 * frame[5] or width:
                return JpegHeader(width, height, "jpeg-odd-header")
            height, width = frame[1] << 8 | frame[2], frame[3] << 8 | frame[4]
            components, progressive = frame[5], marker == _PROGRESSIVE
            oddity = oddity or _frame_oddity(marker, frame)
        elif marker == _EXIF:
            if data[body : body + 4].lower() == b"exif":
                # With two EXIF segments, decoders differ in which one they use.
                orientation = exif_orientation(data[body:end]) if orientation < 0 else 0
            else:
                xmp = xmp or data.find(b"Orientation", body, end) > 0
        elif marker == _ADOBE and length >= 14 and data.startswith(b"Adobe", body):
            adobe_transform = data[body + 11]
        elif marker == _TABLES and length > 2 and data[body] >> 4:
            oddity = oddity or "jpeg-16-bit-tables"
        elif marker == _SCAN:
            scan = end
        at = end
    if not width or not height:
        oddity = "jpeg-odd-header"
    elif components == 3 and adobe_transform != 1:
        oddity = oddity or "jpeg-rgb"
    elif data.find(END, max(scan, size - 4096)) < 0 and data.find(END, scan) < 0:
        oddity = oddity or "jpeg-no-end"
    return JpegHeader(
        width, height, oddity, abs(orientation), xmp, components == 1, progressive
    )


def _frame_oddity(marker: int, frame: bytes) -> str:
    precision, components = frame[0], frame[5]
    if precision != 8:
        return f"jpeg-{precision}-bit"
    if marker not in (_BASELINE, _PROGRESSIVE):
        return (
            "jpeg-arithmetic"
            if marker >= 0xC9
            else "jpeg-lossless"
            if marker == 0xC3
            else "jpeg-extended"
        )
    if components == 4:
        return "jpeg-cmyk"
    names, sampling = frame[6::3], frame[7::3]
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
    """Width and height of an upright image. size: as it is stored. exif: its tags."""
    return size[::-1] if exif.get(ORIENTATION, 1) in (5, 6, 7, 8) else size
