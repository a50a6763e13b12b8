"""What a header says of an image."""

from typing import NamedTuple


class Sized(NamedTuple):
    """width, height: in pixels, as stored; 0 where the header is damaged. fault: what is wrong, or "". single: whether
    it is a single frame. upright: whether nothing rotates it."""

    width: int
    height: int
    fault: str
    single: bool = True
    upright: bool = True
