"""Pictures as text: data URIs, which a page holds without other files."""

import base64
import io

from PIL import Image


def thumbnail(image: Image.Image, width: int, height: int) -> Image.Image:
    """A copy that fits into so many pixels, RGB; a smaller image stays as it is."""
    copy = image.convert("RGB")
    copy.thumbnail((width, height), Image.Resampling.LANCZOS, reducing_gap=3.0)
    return copy


def jpeg_uri(image: Image.Image, quality: int = 72) -> str:
    """A photo, as `data:image/jpeg;base64,…`."""
    file = io.BytesIO()
    image.convert("RGB").save(file, "JPEG", quality=quality, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def png_uri(image: Image.Image) -> str:
    """A drawing, or a picture with transparent parts, as `data:image/png;base64,…`."""
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
