"""How large an image is, as its header says, and how large it may be."""

from typing import NamedTuple

MAX_PIXELS = 178_956_970  # Pillow's: 0.5 GB as RGB


class Sized(NamedTuple):
    """width, height: in pixels, as stored; 0 where the header is damaged. fault: what is wrong, or "". single: whether
    it is a single frame. upright: whether nothing rotates it."""

    width: int
    height: int
    fault: str
    single: bool = True
    upright: bool = True
