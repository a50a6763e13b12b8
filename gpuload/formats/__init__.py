"""Image files and Pillow's images: what their values mean, and their conversion to the values of a set.

Every door of the packer and both decoders come through here, so an image has one meaning whichever way it takes.
"""

from gpuload.formats.conversion import Conversion, Raster, as_levels, converted
from gpuload.formats.files import open_file
from gpuload.formats.opened import (
    OpenedFile,
    raster_of_image,
    refuse_lost_meaning,
    refuse_lost_numbers,
)
from gpuload.formats.profiles import in_color_space, is_srgb

__all__ = [
    "Conversion",
    "OpenedFile",
    "Raster",
    "as_levels",
    "converted",
    "in_color_space",
    "is_srgb",
    "open_file",
    "raster_of_image",
    "refuse_lost_meaning",
    "refuse_lost_numbers",
]
