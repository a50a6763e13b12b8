"""What a decoded image holds, and what its values become."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from PIL import Image

from gpuload.types import Array

Alpha = Literal["ask", "white", "drop"]
Icc = Literal["keep", "srgb"]

# Remarks: counts of images by a sentence for the user.
TO_8_BITS = "16 bits → 8: {}; --mode 'I;16', or --mode uint16x3 --encode raw for colours, keeps all 16"
NARROW = "16 bits → 8: {} of them use no value above {}, and come out dark: give --depth {} if that is their white"
TO_FLOAT32 = "64-bit floats → 32: {}, each rounded to 24 bits"
PAGES = "pages or frames after the first are not packed: {} have some, and --page packs another one"
BANDS = "bands dropped, as --alpha asks: of {}"
OVER_WHITE = "transparency laid over white: in {}; --mode RGBA keeps it, --alpha drop takes the colours alone"
CLIPPED = "values beyond {}: {} have some, which became the nearest end of the range"

EIGHT_BITS = 255  # the largest value
SIXTEEN_BITS = 65_535  # the largest value


@dataclass(frozen=True)
class Conversion:
    """What every image becomes.

    Attributes:
        channels: As of `fields.images.Pixels`.
        dtype: As of `fields.images.Pixels`.
        mode: As of `fields.images.Pixels`.
        page: Which page of a file with several; None: the first that is no thumbnail.
        depth: The number of bits that values of 16 bits use, where they become 8 bits; None: all that their file
            states.
        alpha: What becomes of transparency that the mode has no channel for: "white" lays the image over white, "drop"
            takes the colours as they are. "ask" is "white", but for TIFFs with further bands, which are refused since
            these need not be transparency.
        icc: "srgb" converts images with another colour profile to sRGB.
        codecs: Whether other libraries than Pillow may be used, and codecs of other packages, if they are installed.
        bands: Which bands become the channels, counted from 1, in this order; None: all, or the colours.
        scale: The values that become the smallest and the largest of the mode; those between in proportion.
        window: (center, width), as DICOM has it, instead of `scale`; "file": the one that each file states.
    """

    channels: int = 3
    dtype: str = "uint8"
    mode: str = "RGB"
    page: int | None = None
    depth: int | None = None
    alpha: Alpha = "ask"
    icc: Icc = "keep"
    codecs: bool = True
    bands: tuple[int, ...] | None = None
    scale: tuple[float, float] | None = None
    window: tuple[float, float] | Literal["file"] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the result is RGB or gray of 8 bits, which is what files are mostly meant for."""
        return self.dtype == "uint8" and self.channels in (1, 3)

    @property
    def is_levels(self) -> bool:
        """Whether values are levels of 8 bits, to which those of fewer bits are stretched."""
        return self.dtype == "uint8" and not self.scales

    @property
    def needs_every_bit(self) -> bool:
        """Whether 8 bits of a value are not enough."""
        return self.dtype != "uint8" or self.depth is not None or self.scales

    @property
    def scales(self) -> bool:
        """Whether values become others in proportion."""
        return self.scale is not None or self.window is not None

    @property
    def changes_values(self) -> bool:
        """Whether also a plain file has other values or bands in the set."""
        return self.scales or self.bands is not None


@dataclass(frozen=True)
class Raster:
    """A decoded image, upright: either `image` or `values`.

    Args:
        image: Pillow's, of 8 bits or fewer for each value.
        values: (height, width) or (height, width, bands) of any integers or floats, as stored, in any byte order; then
            (height, width, bands) in that of the machine.
        peak: The value of white; 0 where the file does not state it.
        has_alpha: Whether the last band is transparency, of which `peak` is opaque.
        deep: Whether `image` had 16 bits, of which 8 are left.
        profile: The ICC profile, or b"".
        turned: The Exif orientation by which it was turned.
        window: The (center, width) of the values that the file wants to be shown.
        is_inverted: Whether small values are bright. They become dark levels; numbers stay as they are.
        remarks: Counts of images by a sentence for the user, in which {} stands for the count.
    """

    image: Image.Image | None = None
    values: Array | None = None
    peak: int = 0
    has_alpha: bool = False
    deep: bool = False
    profile: bytes = b""
    turned: int = 1
    window: tuple[float, float] | None = None
    is_inverted: bool = False
    remarks: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.values is not None:
            stored = np.asarray(self.values)
            native = stored.astype(stored.dtype.newbyteorder("="), copy=False)
            bands = native[..., None] if native.ndim == 2 else native
            object.__setattr__(self, "values", bands)
