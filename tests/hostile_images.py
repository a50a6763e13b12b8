"""Unusual images of all sorts, and the `StoredImage.kind` that the packer reports: kept, or why it was re-encoded."""

import struct

import numpy as np
from images import encode, photo
from PIL import Image


def exif(orientation: int, tag_type: int = 3, order: str = "<") -> bytes:
    """An EXIF segment with only an orientation."""
    mark = b"II*\0" if order == "<" else b"MM\0*"
    entry = struct.pack(order + "HHIHH", 0x0112, tag_type, 1, orientation, 0)
    return b"Exif\0\0" + mark + struct.pack(order + "IH", 8, 1) + entry + bytes(4)


def after_start(data: bytes, extra: bytes) -> bytes:
    """A JPEG with extra bytes after its SOI marker."""
    return data[:2] + extra + data[2:]


def segment(content: bytes) -> bytes:
    """An APP1 segment."""
    return b"\xff\xe1" + struct.pack(">H", len(content) + 2) + content


PHOTO = photo()
GRAY = PHOTO.convert("L")
ALPHA = PHOTO.copy()
ALPHA.putalpha(Image.linear_gradient("L").resize(PHOTO.size))
RAMP_16 = Image.fromarray(np.linspace(0, 65_535, 48 * 32).reshape(32, 48).astype(np.uint16))
BASE = encode(PHOTO)
XMP_ROTATED = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'

# Without the sizes of its strips, and followed by a page that there is not.
TIFF = encode(PHOTO, "TIFF").replace(b"\x17\1\4\0", b"\0\xfe\4\0", 1)
TIFF_END = 10 + 12 * TIFF[8]

ODD = {
    "baseline": (BASE, "kept"),
    "gray": (encode(GRAY), "kept"),
    "progressive": (encode(PHOTO, progressive=True), "kept"),
    "4:4:4": (encode(PHOTO, subsampling="4:4:4"), "kept"),
    "restart markers": (encode(PHOTO, restart_marker_blocks=1), "kept"),
    "one pixel": (encode(photo(width=1, height=1)), "kept"),
    "orientation 1": (encode(PHOTO, exif=exif(1)), "kept"),
    "big-endian orientation 1": (encode(PHOTO, exif=exif(1, order=">")), "kept"),
    **{f"orientation {n}": (encode(PHOTO, exif=exif(n)), "exif-rotated") for n in range(2, 9)},
    "big-endian orientation 6": (encode(PHOTO, exif=exif(6, order=">")), "exif-rotated"),
    "orientation 9": (encode(PHOTO, exif=exif(9)), "jpeg-odd-exif"),
    "orientation of a wrong type": (encode(PHOTO, exif=exif(6, tag_type=4)), "jpeg-odd-exif"),
    "two EXIF segments": (after_start(encode(PHOTO, exif=exif(1)), segment(exif(6))), "jpeg-odd-exif"),
    "rotated by XMP": (encode(PHOTO, xmp=XMP_ROTATED), "exif-rotated"),
    "CMYK": (encode(PHOTO.convert("CMYK")), "jpeg-cmyk"),
    "RGB in JPEG": (encode(PHOTO, keep_rgb=True), "jpeg-rgb"),
    "bytes between segments": (BASE[:20] + bytes(3) + BASE[20:], "jpeg-odd-header"),
    "fill bytes": (after_start(BASE, b"\xff\xff"), "jpeg-odd-header"),
    "zeros for an end marker": (BASE[:-2] + bytes(64), "jpeg-no-end"),
    "bytes after the end": (BASE + b"trailer", "kept"),
    "MPO": (encode(PHOTO, "MPO", save_all=True, append_images=[photo(1)]), "kept"),
    "PNG": (encode(PHOTO, "PNG"), "kept"),
    "PNG, gray": (encode(GRAY, "PNG"), "kept"),
    "PNG with bytes after its end": (encode(PHOTO, "PNG") + b"more", "png"),
    "PNG, alpha": (encode(ALPHA, "PNG"), "png"),
    "PNG, palette": (encode(PHOTO.quantize(16), "PNG"), "png"),
    "PNG, palette with a hole": (encode(PHOTO.quantize(16), "PNG", transparency=0), "png"),
    "PNG, gray alpha": (encode(ALPHA.convert("LA"), "PNG"), "png"),
    "PNG, one bit": (encode(PHOTO.convert("1"), "PNG"), "png"),
    "PNG, 16 bits": (encode(RAMP_16, "PNG"), "png"),
    "PNG with EXIF": (encode(PHOTO, "PNG", exif=exif(6)), "png"),
    "WebP": (encode(PHOTO, "WEBP"), "webp"),
    "GIF": (encode(PHOTO, "GIF"), "gif"),
    "GIF, animated": (encode(PHOTO, "GIF", save_all=True, append_images=[photo(1)]), "gif"),
    "BMP": (encode(PHOTO, "BMP"), "bmp"),
    "TIFF": (encode(PHOTO, "TIFF"), "tiff"),
    "TIFF, 16 bits": (encode(RAMP_16, "TIFF"), "tiff"),
    "TIFF, odd": (TIFF[:TIFF_END] + b"\3\0\0\0" + TIFF[TIFF_END + 4 :], "tiff"),
    "TIFF, LAB": (encode(PHOTO.convert("YCbCr"), "TIFF"), "tiff"),
    "JPEG 2000": (encode(PHOTO, "JPEG2000"), "jpeg2000"),
}  # fmt: skip
