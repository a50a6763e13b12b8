"""GPU memory that DALI's JPEG decoder takes when it is built."""

from gpuload.decode.interface import Stored
from gpuload.headers.limits import MAX_PIXELS

# What the decoder may allocate in advance. With ImageNet's largest sides, 5980 and 6430 pixels, and batches of 256 it
# would be 18 GiB for each loader, because one image is that wide and another that high.
MOST_BYTES = 1 << 30

# DALI's own default, of 2.2 and later. Said here, too, so that an earlier tuning does not pass for it.
DALIS_LOAD = 0.65

_CHANNELS = 3


def preallocated_bytes(width: int, height: int, batch_size: int, hw_decoder_load: float | None) -> int:
    """What DALI allocates for its JPEG engines where it is told the largest width and height, in pixels."""
    images = max(1, round((DALIS_LOAD if hw_decoder_load is None else hw_decoder_load) * batch_size))
    return images * width * height * _CHANNELS


def preallocation(stored: Stored, batch_size: int, hw_decoder_load: float | None) -> dict[str, int]:
    """The decoder's arguments that make it allocate memory for the largest images in advance.

    None where that would be more than MOST_BYTES: then its memory grows with the images that it meets. Nor where the
    manifest tells of images that the loader may refuse.
    """
    if stored.width * stored.height > MAX_PIXELS:
        return {}
    taken = preallocated_bytes(stored.width, stored.height, batch_size, hw_decoder_load)
    if not 0 < taken <= MOST_BYTES:
        return {}
    return {"preallocate_width_hint": stored.width, "preallocate_height_hint": stored.height}
