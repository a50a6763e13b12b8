"""Unusual images: which are kept, re-encoded or rejected, and that DALI decodes everything that is stored."""

import io

import numpy as np
import pytest
from hostile_images import BASE, ODD, PHOTO
from images import dali_decodes, encode
from PIL import Image, ImageOps

from gpuload import DecodeError
from gpuload.packing.image import prepare_image


def shown(data: bytes) -> np.ndarray:
    """RGB as Pillow decodes it, computed in the simplest way: upright, over white, 16 bits scaled to 8."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if image.mode.startswith("I;16"):
        return np.repeat(np.asarray(image)[..., None] / 257, 3, axis=2)
    if image.has_transparency_data:
        rgba = np.asarray(image.convert("RGBA")).astype(float)
        alpha = rgba[..., 3:] / 255
        return rgba[..., :3] * alpha + 255 * (1 - alpha)
    return np.asarray(image.convert("RGB")).astype(float)


@pytest.mark.parametrize("name", ODD)
def test_image_is_kept_or_re_encoded(name: str) -> None:
    data, kind = ODD[name]
    stored = prepare_image(data)
    assert stored.kind == kind
    assert (stored.data == data) == (kind == "kept")
    image = Image.open(io.BytesIO(stored.data))
    assert (stored.width, stored.height) == image.size and image.getexif().get(274, 1) == 1
    assert (stored.member == "png") == (image.format == "PNG") and stored.member in ("jpg", "png")
    wanted = shown(data)
    assert wanted.shape == (stored.height, stored.width, 3)
    assert np.abs(np.asarray(image.convert("RGB")) - wanted).mean() < 3


def test_dali_decodes_everything_stored() -> None:
    stored = [prepare_image(data) for data, _ in ODD.values()]
    decoded = dali_decodes([image.data for image in stored])
    assert len(decoded) == len(ODD) > 30
    for name, image, pixels in zip(ODD, stored, decoded, strict=True):
        wanted = np.asarray(Image.open(io.BytesIO(image.data)).convert("RGB")).astype(int)
        found = pixels.astype(int)
        assert found.shape == (image.height, image.width, 3), name
        assert np.abs(found - wanted).max() <= 2, name


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"garbage" * 100, "not an image in a format that Pillow reads"),
        (BASE[:-2], "cannot be decoded: image file is truncated"),
        (BASE[:-200], "cannot be decoded: image file is truncated"),
        (encode(PHOTO, "PNG")[:-300], "it is truncated"),
        (encode(PHOTO, "PNG")[:-2000] + bytes(2000), "it is truncated|the checksum of its chunk at byte \\d+ is wrong"),
        (BASE[:100], "cannot be decoded: |not an image"),
        (encode(Image.new("I", (3, 3)), "TIFF"), "32-bit integers of unknown range; convert it to 8"),
        (encode(Image.new("F", (3, 3)), "TIFF"), "floating-point numbers of unknown range; convert"),
        (b"P6 50000 50000 255\n" + bytes(99), "50000 x 50000 pixels, more than --max-pixels"),
    ],
)  # fmt: skip
def test_rejected(data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        prepare_image(data)


def test_reasons_contain_no_memory_addresses() -> None:
    with pytest.raises(DecodeError) as caught:
        prepare_image(b"BM" + bytes(60))
    assert "0x" not in str(caught.value)


@pytest.mark.parametrize("cut", range(200, len(BASE) - 2, 37))
def test_quick_check_notices_truncation_as_a_full_decode_does(cut: int) -> None:
    """Kept images are decoded at an eighth of their size; truncation must be noticed at any length."""
    for measured in (False, True):
        with pytest.raises(DecodeError):
            prepare_image(BASE[:cut], measured)
