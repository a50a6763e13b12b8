"""Colour profiles (ICC): which of them a stored image may carry, and conversion to sRGB."""

import io

from PIL import Image, ImageCms

from gpuload.errors import DecodeError

_SPACES = {b"RGB ": ("RGB", "RGBA"), b"GRAY": ("L", "I;16")}
_NAME_BYTES = 4_096  # in which a profile's description lies


def is_srgb(profile: bytes) -> bool:
    """Whether a profile is that of sRGB, which all programs assume; so it is if there is none (b"")."""
    head = profile[:_NAME_BYTES]
    return not profile or b"sRGB" in head or "sRGB".encode("utf-16-be") in head


def in_color_space(
    image: Image.Image, profile: bytes, icc: str
) -> tuple[Image.Image, bytes]:
    """The image and the profile to store with it; b"" where the profile is for other colours than the image now has.

    Args:
        image: Loaded, in any mode.
        profile: ICC's, from its file; b"" without.
        icc: "srgb" converts an RGB image to sRGB, as its profile says. A profile for CMYK was not applied when Pillow
            made RGB of it, and says nothing about the result.

    Raises:
        DecodeError: the profile is damaged.
    """
    if image.mode not in _SPACES.get(profile[16:20], ()):
        return image, b""
    if icc != "srgb" or is_srgb(profile) or image.mode not in ("RGB", "RGBA"):
        return image, profile
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        target = ImageCms.createProfile("sRGB")
        turned = ImageCms.profileToProfile(image, source, target, outputMode=image.mode)
    except (ImageCms.PyCMSError, OSError) as error:
        raise DecodeError(
            f"its colour profile cannot be applied ({error}); leave out --icc srgb"
        ) from None
    assert turned is not None
    return turned, b""
