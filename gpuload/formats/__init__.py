"""Image files and Pillow's images: what their values mean, and their conversion to the values of a set.

Every door of the packer and both decoders come through here, so an image has one meaning whichever way it takes.
"""

from gpuload.formats.codec import Codec, OpenedFile, check_page
from gpuload.formats.conversion import (
    as_levels,
    channels_last,
    converted,
    unknown_range,
)
from gpuload.formats.files import open_file
from gpuload.formats.floats import FloatRange
from gpuload.formats.opened import (
    raster_of_image,
    refuse_lost_meaning,
    refuse_lost_numbers,
)
from gpuload.formats.profiles import in_color_space, is_srgb
from gpuload.formats.raster import Conversion, Raster
from gpuload.formats.registry import codecs, image_extensions

__all__ = [
    "Codec",
    "Conversion",
    "FloatRange",
    "OpenedFile",
    "Raster",
    "as_levels",
    "channels_last",
    "check_page",
    "codecs",
    "converted",
    "image_extensions",
    "in_color_space",
    "is_srgb",
    "open_file",
    "raster_of_image",
    "refuse_lost_meaning",
    "refuse_lost_numbers",
    "unknown_range",
]
