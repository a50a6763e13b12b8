"""Reads the header of a JPEG strictly, to find out whether every decoder decodes the file to the same image.

Pillow decodes many files that other decoders refuse or show differently: bytes between segments, CMYK, RGB without
YCbCr, unusual chroma sampling, arithmetic coding. DALI's parser and nvJPEG are the strict ones. A file that is not
plain by the rules here is re-encoded as a JPEG that is.

`make_check` finds whether a JPEG is sound as far as can be told without decoding it, by libjpeg's rules (ITU-T T.81,
annex B). DALI does not raise on a file that passes: its segments are complete and valid, each table that a scan uses is
defined, and the file does not end early. And it shows what Pillow shows: XMP does not turn the image, which DALI passes
over, and CMYK is marked by an Adobe segment, without which DALI takes no ink for white, and Pillow for black. Damage to
the coded bits is not seen; decoders show it. The functions are
written for Python and for a compiler alike: `make_check` takes what prepares them. `file` is anything that gives bytes
by index.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

ORIENTATION = 0x0112  # the tag of Exif; its value is 1 for upright, and from 5 on width and height change places
START = b"\xff\xd8"
END = b"\xff\xd9"

_BASELINE, _PROGRESSIVE = 0xC0, 0xC2
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOFn; the others are DHT, JPG and DAC
_SCAN, _TABLES, _EXIF, _ADOBE = 0xDA, 0xDB, 0xE1, 0xEE
_SEGMENTS = _FRAMES | {0xC4, 0xCC, _SCAN, _TABLES, 0xDD, 0xFE} | frozenset(range(0xE0, 0xF0))
# Sampling of Y when Cb and Cr have 1x1: 4:4:4, 4:2:2, 4:2:0, 4:4:0, 4:1:1, 4:1:0.
_LUMA_SAMPLING = frozenset({0x11, 0x21, 0x22, 0x12, 0x41, 0x42})

# What a check found.
SOUND, NO_JPEG, BAD_HEADER, NO_END, OTHER_SIZE, TURNED_BY_XMP, UNMARKED_CMYK = range(7)

_VALUE_BYTES = (0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8)  # of Exif's types of values, which count from 1

_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7]")


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
    return JpegHeader(width, height, oddity, abs(orientation), xmp, components == 1, progressive)


def _frame_oddity(marker: int, frame: bytes) -> str:
    precision, components = frame[0], frame[5]
    if precision != 8:
        return f"jpeg-{precision}-bit"
    if marker not in (_BASELINE, _PROGRESSIVE):
        return "jpeg-arithmetic" if marker >= 0xC9 else "jpeg-lossless" if marker == 0xC3 else "jpeg-extended"
    if components == 4:
        return "jpeg-cmyk"
    names, sampling = frame[6::3], frame[7::3]
    if components == 3 and names == b"RGB":
        return "jpeg-rgb"
    if components == 1 and sampling[0] == 0x11:
        return ""
    if components == 3 and sampling[0] in _LUMA_SAMPLING and sampling[1:] == b"\x11\x11":
        return ""
    return "jpeg-odd-sampling"


def upright_size(size: tuple[int, int], exif: Any) -> tuple[int, int]:
    """Width and height of an upright image. size: as it is stored. exif: its tags."""
    return size[::-1] if exif.get(ORIENTATION, 1) in (5, 6, 7, 8) else size


def exif_orientation(segment: bytes) -> int:
    """The orientation in an EXIF segment: 1 to 8, 1 where it has none, 0 where readers may differ on it."""
    found = orientation_at(segment, 6, len(segment)) & 15 if segment.startswith(b"Exif\0\0") else 0
    return found if found <= 8 else 0


def next_marker(file: bytes, address: int, at: int, size: int) -> int:
    """Where the next marker begins in the coded bits, apart from restart markers; `size` where there is none."""
    found = _MARKER.search(file, at)
    return found.start() if found else size


def codes_end(file: Any, at: int, end: int) -> int:
    """The end of one definition of a Huffman table at file[at], in a segment that ends at `end`; 0 if it is invalid."""
    if at + 17 > end or file[at] >> 4 > 1 or file[at] & 15 > 3:
        return 0
    number, code = 0, 0
    for length in range(1, 17):
        codes = file[at + length] + 0
        number += codes
        code += codes
        if codes > 0 and code >= 1 << length:  # also a code of ones alone, which T.81 reserves
            return 0
        code <<= 1
    stop = at + 17 + number
    if number > 256 or stop > end:
        return 0
    if file[at] >> 4 == 0:
        for symbol in range(at + 17, stop):
            if file[symbol] > 15:
                return 0
    return stop


def orientation_at(file: Any, begin: int, end: int) -> int:
    """Of an Exif segment's TIFF header on: the orientation, 1 without one, plus 16 if some readers pass over it, and 31
    if that is not clear. Every entry of the first directory is looked at, none of what they point to."""
    if end - begin < 8 or file[begin] != file[begin + 1] or (file[begin] != 0x49 and file[begin] != 0x4D):
        return 31
    msb = 1 if file[begin] == 0x49 else 0  # of two bytes, the more significant one: the second one for "II"
    lsb = 1 - msb
    if file[begin + 2 + msb] != 0 or file[begin + 2 + lsb] != 42:
        return 31
    first = begin + 4
    offset = 0
    for byte in range(4):
        offset = offset << 8 | file[first + (3 - byte if msb == 1 else byte)]
    at = begin + offset
    if offset < 8 or at + 2 > end:
        return 31
    entries = file[at + msb] << 8 | file[at + lsb]
    if at + 2 + 12 * entries > end:
        return 31
    value, clear, found = 1, True, False
    for entry in range(entries):
        tag = at + 2 + 12 * entry
        kind, count, offset = file[tag + 2 + msb] << 8 | file[tag + 2 + lsb], 0, 0
        for byte in range(4):
            place = tag + 4 + (3 - byte if msb == 1 else byte)
            count, offset = count << 8 | file[place], offset << 8 | file[place + 4]
        # Readers differ on what they do about a value that is not in the segment: some pass over all Exif data.
        size = count * _VALUE_BYTES[kind] if kind >= 1 and kind <= 12 else end
        clear = clear and (size <= 4 or offset + size <= end - begin)
        if (file[tag + msb] << 8 | file[tag + lsb]) == ORIENTATION:
            word = file[tag + 8 + msb] << 8 | file[tag + 8 + lsb]
            if found or kind != 3 or count != 1 or word > 8:
                return 31
            found = True
            for number in range(9):  # signed, whatever the type of the bytes
                value = number if word == number else value
    return value if clear and value > 0 else value + 16


def xmp_turns(file: Any, begin: int, end: int) -> bool:
    """Whether a segment holds `tiff:Orientation="n"` or `<tiff:Orientation>n`, as Pillow looks for it, with n > 1."""
    for at in range(begin + 1, end - 12):
        if file[at] != 79 or file[at - 1] != 58:  # ":O"
            continue
        same = file[at + 1] == 114 and file[at + 2] == 105 and file[at + 3] == 101 and file[at + 4] == 110  # "rien"
        same = same and file[at + 5] == 116 and file[at + 6] == 97 and file[at + 7] == 116  # "tat"
        same = same and file[at + 8] == 105 and file[at + 9] == 111 and file[at + 10] == 110  # "ion"
        number = at + 11
        if file[number] == 61 and file[number + 1] == 34:  # ="
            number += 2
        elif file[number] == 62:  # >
            number += 1
        else:
            same = False
        if same and number < end and file[number] >= 50 and file[number] <= 56:  # 2 to 8
            return True
    return False


def is_adobe(file: Any, begin: int, length: int) -> bool:
    """Whether an APP14 segment with this content marks the colours of the file, as libjpeg sees it."""
    named = length >= 12 and file[begin] == 65 and file[begin + 1] == 100 and file[begin + 2] == 111  # "Ado"
    return named and file[begin + 3] == 98 and file[begin + 4] == 101  # "be"


def frame_fault(file: Any, at: int, length: int) -> bool:
    """Whether a SOF segment's content is none that every decoder takes: 8 bits, 1, 3 or 4 components."""
    if length < 9 or file[at] != 8:
        return True
    components = file[at + 5]
    if (components != 1 and components != 3 and components != 4) or length != 6 + 3 * components:
        return True
    most_across, most_down = 1, 1
    for number in range(components):
        one = at + 6 + 3 * number
        across, down = file[one + 1] >> 4, file[one + 1] & 15
        if across < 1 or across > 4 or down < 1 or down > 4 or file[one + 2] > 3:
            return True
        most_across, most_down = max(most_across, across + 0), max(most_down, down + 0)
        for other in range(number):
            if file[at + 6 + 3 * other] == file[one]:
                return True
    for number in range(components):
        sampling = file[at + 7 + 3 * number]
        if most_across % (sampling >> 4) != 0 or most_down % (sampling & 15) != 0:
            return True
    return False


def scan_fault(file: Any, at: int, length: int, frame: int, progressive: bool, quants: int, codes: int) -> bool:
    """Whether a SOS segment's content has a fault. frame: where the content of the SOF segment is. quants, codes: a bit
    for each table that is defined; of the Huffman tables, four for DC and four for AC."""
    if length < 6:  # before anything is read: the file may end here
        return True
    components = file[at]
    if components < 1 or components > 4 or length != 4 + 2 * components:
        return True
    begin, end, bits = file[at + length - 3], file[at + length - 2], file[at + length - 1]
    needs_dc, needs_ac = True, True
    if progressive:
        before, after = bits >> 4, bits & 15
        if after > 13 or (before != 0 and before != after + 1) or end > 63 or begin > end:
            return True
        if (begin == 0 and end != 0) or (begin > 0 and components != 1):
            return True
        needs_dc, needs_ac = begin == 0 and before == 0, begin > 0
    elif begin != 0 or end != 63 or bits != 0:
        return True
    blocks, last = 0, 0
    for number in range(components):
        name, tables = file[at + 1 + 2 * number], file[at + 2 + 2 * number]
        found = 0
        for one in range(file[frame + 5]):
            if file[frame + 6 + 3 * one] == name:
                found = frame + 6 + 3 * one
        if found <= last or tables >> 4 > 3 or tables & 15 > 3 or not quants >> file[found + 2] & 1:
            return True
        if (needs_dc and not codes >> (tables >> 4) & 1) or (needs_ac and not codes >> (4 + (tables & 15)) & 1):
            return True
        last = found
        blocks += (file[found + 1] >> 4) * (file[found + 1] & 15)
    return components > 1 and blocks > 10


def make_check(prepare: Callable[[Any], Any], next_marker: Callable[..., int]) -> Callable[..., int]:
    """A function (file, address, size in bytes, height, width) that says whether a JPEG is sound and, upright, of that
    size. The address is of a file in memory, for `next_marker`.

    prepare: is applied to the function and to what it calls. next_marker: as the one here.
    """
    find_codes_end, has_frame_fault, has_scan_fault, find_orientation = map(
        prepare, (codes_end, frame_fault, scan_fault, orientation_at)
    )
    is_turned_by_xmp, has_adobe_name = prepare(xmp_turns), prepare(is_adobe)

    def check(file: Any, address: int, size: int, height: int, width: int) -> int:
        if size < 4 or file[0] != 0xFF or file[1] != 0xD8:
            return NO_JPEG
        at, frame, quants, codes, turned, has_exif, scans, progressive = 2, 0, 0, 0, 0, False, 0, False
        turned_by_xmp = False
        is_marked = False
        while at + 4 <= size:
            if file[at] != 0xFF:
                return BAD_HEADER
            marker = file[at + 1]
            if marker == 0xD9:
                return SOUND if scans > 0 else BAD_HEADER
            begin, end = at + 4, at + 2 + (file[at + 2] << 8 | file[at + 3])
            length = end - begin
            if marker < 0xC0 or length < 0:
                return BAD_HEADER
            if end > size:
                return NO_END
            if marker == 0xC4:
                one = begin
                while one < end:
                    table = (file[one] >> 4) * 4 + (file[one] & 15)
                    one = find_codes_end(file, one, end)
                    if one == 0:
                        return BAD_HEADER
                    codes |= 1 << table
            elif marker == 0xDB:
                if length % 65 != 0:
                    return BAD_HEADER
                for one in range(begin, end, 65):
                    if file[one] > 3:
                        return BAD_HEADER
                    quants |= 1 << file[one]
            elif marker == 0xC0 or marker == 0xC1 or marker == 0xC2:
                if frame != 0 or has_frame_fault(file, begin, length):
                    return BAD_HEADER
                frame, progressive = begin, marker == 0xC2
            elif marker == 0xE1:
                if length >= 6 and file[begin] | 32 == 101 and file[begin + 1] | 32 == 120:  # "ex"
                    exact = file[begin] == 69 and file[begin + 1] == 120 and file[begin + 2] == 105
                    exact = exact and file[begin + 3] == 102 and file[begin + 4] == 0 and file[begin + 5] == 0
                    turned = find_orientation(file, begin + 6, end)
                    if turned > 20 or has_exif or not exact:  # from 5 on width and height change places
                        return BAD_HEADER
                    has_exif = True
                elif is_turned_by_xmp(file, begin, end):
                    turned_by_xmp = True
            elif marker == 0xEE:
                if has_adobe_name(file, begin, length):
                    is_marked = True
            elif marker == 0xDD:
                if length != 2:
                    return BAD_HEADER
            elif marker == 0xDA:
                if frame == 0 or has_scan_fault(file, begin, length, frame, progressive, quants, codes):
                    return BAD_HEADER
                if scans == 0:
                    if turned_by_xmp and turned & 15 <= 1:  # else Exif decides
                        return TURNED_BY_XMP
                    if file[frame + 5] == 4 and not is_marked:
                        return UNMARKED_CMYK
                    high, wide = file[frame + 1] << 8 | file[frame + 2], file[frame + 3] << 8 | file[frame + 4]
                    if turned & 15 > 4:
                        high, wide = wide, high
                    if high != height or wide != width:
                        return OTHER_SIZE
                scans += 1
                end = next_marker(file, address, end, size)
                if end + 2 > size:
                    return NO_END
                if file[end + 1] == 0xD9:
                    return SOUND
            elif marker < 0xE0 or (marker > 0xEF and marker != 0xFE):
                return BAD_HEADER
            at = end
        return NO_END

    return prepare(check)
