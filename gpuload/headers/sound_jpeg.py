"""Whether a JPEG is sound as far as can be told without decoding it, by libjpeg's rules (ITU-T T.81, annex B).

DALI does not raise on a file that passes: its segments are complete and valid, each table that a scan uses is defined,
and the file does not end early. Damage to the coded bits is not seen; decoders show it.

The functions are written for Python and for a compiler alike: `make_check` takes what prepares them. `file` is anything
that gives bytes by index.
"""

import re
from collections.abc import Callable
from typing import Any

from gpuload.headers.jpeg import ORIENTATION

# What a check found.
SOUND, NO_JPEG, BAD_HEADER, NO_END, OTHER_SIZE = range(5)

_VALUE_BYTES = (0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8)  # of Exif's types of values, which count from 1

_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7]")


def next_marker(file: bytes, address: int, at: int, size: int) -> int:
    """Where the next marker begins in the coded bits, apart from restart markers; `size` where there is none."""
    found = _MARKER.search(file, at)
    return found.start() if found else size


def _codes_end(file: Any, at: int, end: int) -> int:
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


def _turns(file: Any, begin: int, end: int) -> int:
    """Of an Exif segment's TIFF header on: 1 if width and height change places, 0 if not, -1 if that is not clear."""
    if end - begin < 8 or file[begin] != file[begin + 1] or (file[begin] != 0x49 and file[begin] != 0x4D):
        return -1
    msb = 1 if file[begin] == 0x49 else 0  # of two bytes, the more significant one: the second one for "II"
    lsb = 1 - msb
    if file[begin + 2 + msb] != 0 or file[begin + 2 + lsb] != 42:
        return -1
    first = begin + 4
    offset = 0
    for byte in range(4):
        offset = offset << 8 | file[first + (3 - byte if msb == 1 else byte)]
    at = begin + offset
    if offset < 8 or at + 2 > end:
        return -1
    entries = file[at + msb] << 8 | file[at + lsb]
    if at + 2 + 12 * entries > end:
        return -1
    value, clear = 1, True
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
            if value != 1 or kind != 3 or count != 1:
                return -1
            value = file[tag + 8 + msb] << 8 | file[tag + 8 + lsb]
            clear = clear and value >= 1 and value <= 8
    return 0 if value < 5 else 1 if clear else -1


def _frame_fault(file: Any, at: int, length: int) -> bool:
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


def _scan_fault(file: Any, at: int, length: int, frame: int, progressive: bool, quants: int, codes: int) -> bool:
    """Whether a SOS segment's content has a fault. frame: where the content of the SOF segment is. quants, codes: a bit
    for each table that is defined; of the Huffman tables, four for DC and four for AC."""
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
    codes_end, turns, frame_fault, scan_fault = map(prepare, (_codes_end, _turns, _frame_fault, _scan_fault))

    def check(file: Any, address: int, size: int, height: int, width: int) -> int:
        if size < 4 or file[0] != 0xFF or file[1] != 0xD8:
            return NO_JPEG
        at, frame, quants, codes, turned, has_exif, scans, progressive = 2, 0, 0, 0, 0, False, 0, False
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
                    one = codes_end(file, one, end)
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
                if frame != 0 or frame_fault(file, begin, length):
                    return BAD_HEADER
                frame, progressive = begin, marker == 0xC2
            elif marker == 0xE1:
                if length >= 6 and file[begin] | 32 == 101 and file[begin + 1] | 32 == 120:  # "ex"
                    exact = file[begin] == 69 and file[begin + 1] == 120 and file[begin + 2] == 105
                    exact = exact and file[begin + 3] == 102 and file[begin + 4] == 0 and file[begin + 5] == 0
                    turned = turns(file, begin + 6, end)
                    if turned < 0 or has_exif or not exact:
                        return BAD_HEADER
                    has_exif = True
            elif marker == 0xDD:
                if length != 2:
                    return BAD_HEADER
            elif marker == 0xDA:
                if frame == 0 or scan_fault(file, begin, length, frame, progressive, quants, codes):
                    return BAD_HEADER
                if scans == 0:
                    high, wide = file[frame + 1] << 8 | file[frame + 2], file[frame + 3] << 8 | file[frame + 4]
                    if turned == 1:
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

    prepared: Callable[..., int] = prepare(check)
    return prepared
