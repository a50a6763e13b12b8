"""How images are stored: sizes, fits, gray and huge images, boxes and masks, and that DALI decodes the images."""

import io
from typing import Any

import numpy as np
import pytest
from images import dali_decodes, encode, photo
from PIL import Image

from gpuload import DecodeError
from gpuload.fields.field import Field
from gpuload.fields.motion import place
from gpuload.fields.registry import KINDS
from gpuload.packing.image import prepare_image
from gpuload.packing.options import Encoding

WIDE = photo(1, 500, 375)


@pytest.mark.parametrize(
    ("source", "fit", "enlarge", "resized", "corner", "canvas"),
    [
        ((500, 375), "shortest", False, (341, 256), (0, 0), (341, 256)),
        ((500, 375), "longest", False, (256, 192), (0, 0), (256, 192)),
        ((500, 375), "center-crop", False, (341, 256), (-43, 0), (256, 256)),
        ((500, 375), "stretch", False, (256, 256), (0, 0), (256, 256)),
        ((500, 375), "pad", False, (256, 192), (0, 32), (256, 256)),
        ((100, 50), "shortest", False, (100, 50), (0, 0), (100, 50)),  # enlarged only on request
        ((100, 50), "shortest", True, (512, 256), (0, 0), (512, 256)),
        ((100, 50), "pad", False, (100, 50), (78, 103), (256, 256)),
        ((100, 50), "center-crop", False, (100, 50), (0, 0), (100, 50)),
        ((100, 50), "center-crop", True, (512, 256), (-128, 0), (256, 256)),
        ((100, 300), "stretch", False, (100, 256), (0, 0), (100, 256)),
        ((9999, 1), "longest", False, (256, 1), (0, 0), (256, 1)),
    ],
)
def test_place(source, fit, enlarge, resized, corner, canvas) -> None:
    found = place(source, (256, 256), fit, enlarge)
    assert (found.resized, found.corner, found.canvas) == (resized, corner, canvas)


@pytest.mark.parametrize("measured", [False, True])  # images that are not measured are decoded at a reduced size
@pytest.mark.parametrize("fit", ["shortest", "longest", "center-crop", "stretch", "pad"])
def test_jpeg_with_a_size(fit: str, measured: bool) -> None:
    encoding = Encoding("jpeg", (64, 64), fit)
    stored = [prepare_image(encode(image), measured, encoding) for image in (WIDE, WIDE.convert("L"))]
    placement = place(WIDE.size, (64, 64), fit, False)
    wanted = Image.new("RGB", placement.canvas)
    resized = Image.open(io.BytesIO(encode(WIDE))).resize(placement.resized, Image.Resampling.BICUBIC)
    wanted.paste(resized, placement.corner)
    decoded = dali_decodes([image.data for image in stored])
    assert [image.kind for image in stored] == ["resized", "resized"]
    for image, pixels in zip(stored, decoded, strict=True):
        assert pixels.shape == (image.height, image.width, 3) == (*placement.canvas[::-1], 3)
    assert np.abs(decoded[0].astype(int) - np.asarray(wanted)).mean() < 4
    assert (stored[0].histogram is not None) == measured


def test_jpeg_keeps_images_that_are_small_enough() -> None:
    data = encode(photo())
    assert prepare_image(data, encoding=Encoding("jpeg", (64, 64))).data == data
    converted = prepare_image(encode(photo(), "PNG"), encoding=Encoding("jpeg"))
    assert (converted.member, converted.kind) == ("jpg", "png")
    low, high = (
        len(prepare_image(encode(WIDE), encoding=Encoding("jpeg", (64, 64), quality=q)).data) for q in (30, 95)
    )
    assert low < high / 1.5


def test_raw_is_an_npy_of_pixels() -> None:
    for data in (encode(photo(0, 30, 20)), encode(photo(0, 30, 20), "PNG"), np.asarray(photo(0, 30, 20))):
        stored = prepare_image(data, encoding=Encoding("raw"))
        array = np.load(io.BytesIO(stored.data))
        assert (array.shape, array.dtype, stored.member) == ((20, 30, 3), np.uint8, "npy")
        assert stored.data[stored.header :] == array.tobytes()
        assert np.abs(array.astype(int) - np.asarray(photo(0, 30, 20))).mean() < 8
    gray = prepare_image(encode(photo().convert("L"), "PNG"), encoding=Encoding("raw", (8, 8), "stretch"))
    assert np.load(io.BytesIO(gray.data)).shape == (8, 8, 3)


def test_lossless() -> None:
    stored = prepare_image(encode(photo(), "BMP"), encoding=Encoding(lossless=True))
    assert (stored.member, stored.kind) == ("png", "bmp")
    (decoded,) = dali_decodes([stored.data])
    np.testing.assert_array_equal(decoded, np.asarray(photo()))
    assert prepare_image(encode(photo()), encoding=Encoding(lossless=True)).kind == "kept"


def test_damaged_pngs_are_rejected() -> None:
    plain = encode(photo(), "PNG")
    gamma = plain[:33] + b"\0\0\0\4gAMA\1\0\x27\x10" + b"\xe8\xf9\xad\x83" + plain[33:]  # a wrong checksum
    for data in (gamma, plain[:-30]):
        with pytest.raises(DecodeError):
            prepare_image(data)
    assert prepare_image(encode(photo(), "PNG", compress_level=0)).kind == "kept"


def test_gray_small_and_huge() -> None:
    gray = Encoding(drop_gray=True)
    gray_photo = photo().convert("L")
    # A difference as small as JPEG's errors is not a colour, a tint is.
    for image in (gray_photo, gray_photo.convert("RGB"), Image.new("RGB", (64, 64), (100, 100, 106))):
        for format in ("JPEG", "PNG"):
            with pytest.raises(Exception, match="has no colour, and --drop-gray was given"):
                prepare_image(encode(image, format), encoding=gray)
    tint = encode(Image.new("RGB", (64, 64), (100, 100, 112)), "PNG")
    assert prepare_image(encode(photo()), encoding=gray).kind == prepare_image(tint, encoding=gray).kind == "kept"
    with pytest.raises(Exception, match="48 x 32 pixels, smaller than --min-size 33"):
        prepare_image(encode(photo()), encoding=Encoding(min_size=33))
    with pytest.raises(DecodeError, match=r"48 x 32 pixels, more than --max-pixels 100$"):
        prepare_image(encode(photo()), encoding=Encoding(max_pixels=100))


def test_header_checks() -> None:
    header = Encoding(check="header")
    damaged = encode(photo())[:-40] + bytes(38) + b"\xff\xd9"
    assert prepare_image(damaged, True, header).data == damaged  # its pixels are not decoded
    with pytest.raises(DecodeError):
        prepare_image(damaged[:-2])
    for data in (encode(photo()), encode(photo(), "PNG")):
        stored = prepare_image(data, encoding=header)
        assert (stored.data, stored.width, stored.height, stored.histogram) == (data, 48, 32, None)
    assert prepare_image(encode(photo(), "BMP"), encoding=header).kind == "bmp"
    assert prepare_image(encode(photo().convert("CMYK")), encoding=header).kind == "jpeg-cmyk"


def store_mask(mask: Any, placement: Any) -> bytes:
    return KINDS["mask"].store(Field("mask", "mask", "mask.png"), mask, placement).content


def test_masks() -> None:
    numbers = np.arange(32 * 48, dtype=np.uint8).reshape(32, 48)
    unchanged, half = place((48, 32), None, "shortest", False), place((48, 32), (16, 16), "center-crop", False)
    plain = encode(Image.fromarray(numbers), "PNG")
    assert store_mask(plain, unchanged) == plain
    palette = Image.fromarray(numbers, "L").copy()
    palette = Image.frombytes("P", (48, 32), numbers.tobytes())
    palette.putpalette([value for n in range(256) for value in (255 - n, n, 7)])
    sixteen = Image.fromarray(numbers.astype(np.uint16))
    for mask in (numbers, numbers[..., None], encode(palette, "PNG"), encode(sixteen, "PNG")):
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(store_mask(mask, unchanged)))), numbers)
    moved = np.asarray(Image.open(io.BytesIO(store_mask(plain, half))))
    wanted = np.asarray(Image.fromarray(numbers).resize((24, 16), Image.Resampling.NEAREST))[:, 4:20]
    np.testing.assert_array_equal(moved, wanted)
