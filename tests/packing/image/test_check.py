"""Odd images of every kind: what is kept, what is stored anew, what is rejected, and that DALI decodes all of it."""

import io

import numpy as np
import pytest
from images import encode
from odd_images import BASE, ODD, PHOTO
from PIL import Image, ImageOps

from gpuload.errors import DecodeError
from gpuload.headers import jpeg, png
from gpuload.packing.image.check import KEPT, check_image


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
