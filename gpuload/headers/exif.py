"""The orientation in an EXIF segment: which way up an image is to be shown (Exif 2.3, 4.6.4)."""

from typing import Literal

ORIENTATION = 0x0112  # the tag; its value is 1 for upright, and from 5 on width and height change places


def exif_orientation(segment: bytes) -> int:
    """The orientation in an EXIF segment: 1 to 8, 1 where it has none, 0 where readers may differ on it.

    Every entry of the first directory is looked at, none of what they point to.
    """
    order: Literal["big", "little"] = "big" if segment[6:8] == b"MM" else "little"
    mark = b"MM\0*" if order == "big" else b"II*\0"
    if segment[:6] != b"Exif\0\0" or segment[6:10] != mark:
        return 0

    def number(at: int, size: int) -> int:
        return int.from_bytes(segment[at : at + size], order)

    first = 6 + number(10, 4)
    count = number(first, 2)
    if first < 14 or first + 2 + 12 * count > len(segment):
        return 0
    entries = [first + 2 + 12 * i for i in range(count)]
    found = [at for at in entries if number(at, 2) == ORIENTATION]
    if not found:
        return 1
    at = found[0]
    value = number(at + 8, 2)
    # One entry, a SHORT (type 3), a single one.
    sound = len(found) == 1 and number(at + 2, 2) == 3 and number(at + 4, 4) == 1
    return value if sound and 1 <= value <= 8 else 0
