"""Odd images of every kind: what is kept, what is stored anew, what is rejected, and that DALI decodes all of it."""

import io
import struct

import numpy as np
import pytest
from images import encode, photo
from PIL import Image, ImageOps

from gpuload.errors import DecodeError
from gpuload.packing import jpeg, png
from gpuload.packing.image import KEPT, check_image


def exif(orientation: int, tag_type: int = 3, order: str = "<") -> bytes:
    """An EXIF segment with nothing but an orientation."""
    mark = b"II*\0" if order == "<" else b"MM\0*"
    entry = struct.pack(order + "HHIHH", 0x0112, tag_type, 1, orientation, 0)
    return b"Exif\0\0" + mark + struct.pack(order + "IH", 8, 1) + entry + bytes(4)


def after_start(data: bytes, extra: bytes) -> bytes:
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

ODD = {
    "baseline": (BASE, KEPT),
    "gray": (encode(GRAY), KEPT),
    "progressive": (encode(PHOTO, progressive=True), KEPT),
    "4:4:4": (encode(PHOTO, subsampling="4:4:4"), KEPT),
    "restart markers": (encode(PHOTO, restart_marker_blocks=1), KEPT),
    "one pixel": (encode(photo(width=1, height=1)), KEPT),
    "orientation 1": (encode(PHOTO, exif=exif(1)), KEPT),
    "big-endian orientation 1": (encode(PHOTO, exif=exif(1, order=">")), KEPT),
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
    "bytes after the end": (BASE + b"trailer", KEPT),
    "MPO": (encode(PHOTO, "MPO", save_all=True, append_images=[photo(1)]), KEPT),
    "PNG": (encode(PHOTO, "PNG"), KEPT),
    "PNG, gray": (encode(GRAY, "PNG"), KEPT),
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
    "TIFF, LAB": (encode(PHOTO.convert("YCbCr"), "TIFF"), "tiff"),
    "JPEG 2000": (encode(PHOTO, "JPEG2000"), "jpeg2000"),
}  # fmt: skip


def shown(data: bytes) -> np.ndarray:
    """RGB as Pillow shows it, by the plainest means: upright, over white, 16 bits scaled to 8."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if image.mode.startswith("I;16"):
        return np.repeat(np.asarray(image)[..., None] / 257, 3, axis=2)
    if image.has_transparency_data:
        rgba = np.asarray(image.convert("RGBA")).astype(float)
        alpha = rgba[..., 3:] / 255
        return rgba[..., :3] * alpha + 255 * (1 - alpha)
    return np.asarray(image.convert("RGB")).astype(float)


@pytest.mark.parametrize("name", ODD)
def test_what_becomes_of_it(name: str) -> None:
    data, kind = ODD[name]
    stored = check_image(data)
    assert stored.kind == kind
    assert (stored.data == data) == (kind == KEPT)
    if stored.member == "jpg":
        header = jpeg.read_header(stored.data)
        assert (header.oddity, header.orientation) == ("", 1)
    else:
        assert stored.member == "png" and png.read_header(stored.data).plain
    image = Image.open(io.BytesIO(stored.data))
    assert (stored.width, stored.height) == image.size
    wanted = shown(data)
    assert wanted.shape == (stored.height, stored.width, 3)
    assert np.abs(np.asarray(image.convert("RGB")) - wanted).mean() < 3


def test_dali_decodes_everything_stored() -> None:
    fn = pytest.importorskip("nvidia.dali.fn")
    from nvidia.dali import pipeline_def

    stored = [check_image(data) for data, _ in ODD.values()]

    @pipeline_def(batch_size=len(stored), num_threads=2, device_id=None)
    def decode():
        encoded = fn.external_source(lambda: [np.frombuffer(image.data, np.uint8) for image in stored])
        return fn.decoders.image(encoded, device="cpu")

    pipeline = decode()
    pipeline.build()
    (decoded,) = pipeline.run()
    assert len(decoded) == len(ODD) > 30
    for name, image, pixels in zip(ODD, stored, decoded, strict=True):
        wanted = np.asarray(Image.open(io.BytesIO(image.data)).convert("RGB")).astype(int)
        found = np.asarray(pixels).astype(int)
        assert found.shape == (image.height, image.width, 3), name
        assert np.abs(found - wanted).max() <= 2, name


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"garbage" * 100, "not an image in a format that Pillow reads"),
        (BASE[:-2], "does not decode: image file is truncated"),
        (BASE[:-200], "does not decode: image file is truncated"),
        (encode(PHOTO, "PNG")[:-300], "does not decode: "),
        (BASE[:100], "does not decode: |not an image"),
        (encode(Image.new("I", (3, 3)), "TIFF"), "32-bit whole numbers, whose range nobody says; convert it to 8"),
        (encode(Image.new("F", (3, 3)), "TIFF"), "floating-point numbers, whose range nobody says; convert"),
        (b"P6 50000 50000 255\n" + bytes(99), "too many pixels: .* exceeds limit"),
    ],
)  # fmt: skip
def test_rejected(data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        check_image(data)


def test_reasons_name_no_addresses() -> None:
    with pytest.raises(DecodeError) as caught:
        check_image(b"BM" + bytes(60))
    assert "0x" not in str(caught.value)


@pytest.mark.parametrize("cut", range(200, len(BASE) - 2, 37))
def test_the_quick_check_finds_what_a_whole_decode_finds(cut: int) -> None:
    """Kept images are decoded at an eighth of their size; a cut must show there wherever it is."""
    with pytest.raises(DecodeError):
        check_image(BASE[:cut])
    with pytest.raises(DecodeError):
        check_image(BASE[:cut], measured=True)


@pytest.mark.parametrize("name", ["baseline", "gray", "PNG, alpha"])
def test_histogram_counts_the_pixels(name: str) -> None:
    stored = check_image(ODD[name][0], measured=True)
    assert stored.histogram is not None
    counts = np.array(stored.histogram).reshape(3, 256)
    assert counts.sum(axis=1).tolist() == [stored.width * stored.height] * 3
    mean = counts @ np.arange(256) / counts.sum(axis=1)
    pixels = np.asarray(Image.open(io.BytesIO(stored.data)).convert("RGB"))
    np.testing.assert_allclose(mean, pixels.mean(axis=(0, 1)), atol=1)
