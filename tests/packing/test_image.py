"""What becomes of an image: it is kept, re-encoded, resized or rejected, and DALI decodes everything that is stored."""

import io
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hostile_images import BASE, ODD, PHOTO, XMP_ROTATED
from hypothesis import given, settings
from hypothesis import strategies as st
from images import dali_decodes, encode, photo
from PIL import Image, ImageOps

from gpuload import DecodeError
from gpuload.fields.field import Field
from gpuload.fields.motion import place
from gpuload.fields.registry import KINDS
from gpuload.packing.image import prepare_image
from gpuload.packing.options import Encoding

WIDE = photo(1, 500, 375)
PNG = encode(photo(), "PNG")
COLOR = photo(3, 40, 30)
GRAY = COLOR.convert("L")
ALPHA = COLOR.copy()
ALPHA.putalpha(GRAY)
SIXTEEN = Image.fromarray(np.random.default_rng(0).integers(0, 65_536, (30, 40)).astype(np.uint16))
FLOATS = Image.fromarray(np.random.default_rng(0).normal(0, 9, (30, 40)).astype(np.float32))
GAMMA = PNG[:33] + b"\0\0\0\4gAMA\1\0\x27\x10" + b"\xe8\xf9\xad\x83" + PNG[33:]  # a wrong checksum


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
    (decoded,) = dali_decodes([stored.data])
    assert decoded.shape == wanted.shape
    assert np.abs(decoded.astype(int) - np.asarray(image.convert("RGB"))).max() <= 2
    counts = np.array(prepare_image(data, measured=True).histogram).reshape(3, 256)
    mean = np.asarray(image.convert("RGB")).mean(axis=(0, 1))
    np.testing.assert_allclose(counts @ np.arange(256) / (stored.width * stored.height), mean, atol=1)


@pytest.mark.parametrize(
    ("data", "mode", "reason"),
    [
        (b"", "RGB", "the file is empty"),
        (b"garbage" * 100, "RGB", "cannot be decoded: it is not an image in a format that Pillow reads"),
        (BASE[:-2], "RGB", "cannot be decoded: image file is truncated"),
        (BASE[:-200], "RGB", "cannot be decoded: image file is truncated"),
        (encode(PHOTO, "PNG")[:-300], "RGB", "it is truncated"),
        (encode(PHOTO, "PNG")[:-2000] + bytes(2000), "RGB", "it is truncated|checksum of its chunk at byte \\d+ is wrong"),
        (BASE[:100], "RGB", "cannot be decoded: |not an image"),
        (encode(Image.new("I", (3, 3)), "TIFF"), "RGB", "32-bit integers of unknown range; --scale LOW:HIGH says"),
        (encode(Image.new("F", (3, 3), 7), "TIFF"), "RGB", "floating-point numbers of unknown range; --scale LOW:HIGH says"),
        (b"P6 50000 50000 255\n" + bytes(99), "RGB", "50000 x 50000 pixels, more than --max-pixels"),
        (b"BM" + bytes(60), "RGB", "cannot be decoded: "),
        (GAMMA, "RGB", "cannot be decoded: "),
        # What would lose something.
        (encode(COLOR, "PNG"), "I;16", "is of mode RGB, which is not converted to I;16"),
        (encode(GRAY, "PNG"), "I;16", "is of mode L, which is not converted to I;16"),
        (encode(SIXTEEN, "PNG"), "RGBA", "has 1 band of uint16, which are not converted to RGBA"),
        (encode(COLOR, "PNG"), "uint16x4", "is of mode RGB, which is not converted to uint16x4"),
        (np.zeros((4, 5, 3), np.int32), "float32x3", r"is an array \(4, 5, 3\) of int32; .* must be \(height, width, 3\) of float32"),
        (np.zeros((4, 5, 3), np.uint8), "uint8x4", "is an array"),
        (np.zeros((4, 5, 3), np.uint8), "uint8x2", "is an array"),
        (np.zeros((4, 5), np.int16), "I;16", "is an array"),
        (np.zeros((4, 5, 6, 7), np.uint8), "uint8x7", "is an array"),
        (np.zeros((4, 0, 3), np.uint8), "uint8x3", "is an array"),
    ],
)  # fmt: skip
def test_rejected(data: Any, mode: str, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason) as caught:
        prepare_image(data, encoding=Encoding("raw" if "x" in mode else "keep", mode=mode))
    assert "0x" not in str(caught.value)  # addresses in memory


@pytest.mark.parametrize("cut", range(200, len(BASE) - 2, 37))
def test_quick_check_notices_truncation_as_a_full_decode_does(cut: int) -> None:
    """Kept images are decoded at an eighth of their size; truncation must be noticed at any length."""
    for measured in (False, True):
        with pytest.raises(DecodeError):
            prepare_image(BASE[:cut], measured)


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


@pytest.mark.parametrize("measured", [False, True])
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
    # Decoded at half their size, measured or not.
    half = Image.open(io.BytesIO(encode(WIDE)))
    half.draft("RGB", (2 * placement.resized[0], 2 * placement.resized[1]))
    assert half.size == (250, 188)
    file = io.BytesIO()
    placement.resample(half, Image.Resampling.HAMMING).save(file, "JPEG", quality=92)
    assert stored[0].data == file.getvalue()


def test_jpeg_keeps_images_that_are_small_enough() -> None:
    data = encode(photo())
    assert prepare_image(data, encoding=Encoding(lossless=True)).kind == "kept"
    assert prepare_image(encode(photo(), "PNG", compress_level=0)).kind == "kept"
    assert prepare_image(data, encoding=Encoding("jpeg", (64, 64))).data == data
    converted = prepare_image(encode(photo(), "PNG"), encoding=Encoding("jpeg"))
    assert (converted.member, converted.kind) == ("jpg", "png")
    low, high = (
        len(prepare_image(encode(WIDE), encoding=Encoding("jpeg", (64, 64), quality=q)).data) for q in (30, 95)
    )
    assert low < high / 1.5


def test_huge() -> None:
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
    palette = Image.frombytes("P", (48, 32), numbers.tobytes())
    palette.putpalette([value for n in range(256) for value in (255 - n, n, 7)])
    sixteen = Image.fromarray(numbers.astype(np.uint16))
    for mask in (numbers, numbers[..., None], encode(palette, "PNG"), encode(sixteen, "PNG")):
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(store_mask(mask, unchanged)))), numbers)
    moved = np.asarray(Image.open(io.BytesIO(store_mask(plain, half))))
    wanted = np.asarray(Image.fromarray(numbers).resize((24, 16), Image.Resampling.NEAREST))[:, 4:20]
    np.testing.assert_array_equal(moved, wanted)


@pytest.mark.parametrize(("mode", "subsampling"), [("RGB", 0), ("RGB", 1), ("RGB", 2), ("L", 0)])
def test_progressive_jpegs_are_kept_with_a_remark_or_become_baseline_without_a_loss(
    mode: str, subsampling: int
) -> None:
    """The same pixels and metadata."""
    pytest.importorskip("jpeglib", reason="needs the extra 'sources'")
    exif = Image.Exif()
    exif[0x010E] = "a description"
    about = {"exif": exif, "icc_profile": bytes(200), "comment": b"a comment"}
    data = encode(photo(3).convert(mode), progressive=True, subsampling=subsampling, **about)
    kept, made = (prepare_image(data, encoding=Encoding(jpeg=how)) for how in ("keep", "baseline"))
    assert kept.data == data and made.kind == "jpeg-progressive"
    ((remark, count),) = kept.remarks.items()
    assert "JPEGs are progressive, and crops of these load at half the rate" in remark and count == 1
    was, now = (Image.open(io.BytesIO(one.data)).info for one in (kept, made))
    assert "progressive" in was and "progressive" not in now
    assert [now[name] for name in about] == [was[name] for name in about]
    np.testing.assert_array_equal(simplejpeg.decode_jpeg(made.data), simplejpeg.decode_jpeg(data))
    assert prepare_image(made.data, encoding=Encoding(jpeg="baseline")).data == made.data


def decoded(data: bytes, member: str) -> np.ndarray:
    return np.load(io.BytesIO(data)) if member == "npy" else np.asarray(Image.open(io.BytesIO(data)))


@pytest.mark.parametrize(
    ("image", "format", "mode", "keep"),
    [
        (GRAY, "JPEG", "L", ()),
        (GRAY, "PNG", "L", ()),
        (GRAY, "TIFF", "L", ("tiff",)),
        (ALPHA, "PNG", "RGBA", ()),
        (ALPHA, "WEBP", "RGBA", ("webp",)),
        (ALPHA, "AVIF", "RGBA", ("webp", "avif")),
        (SIXTEEN, "PNG", "I;16", ()),
        (SIXTEEN, "TIFF", "I;16", ("tiff",)),
        (COLOR, "WEBP", "RGB", ("webp",)),
        (COLOR, "AVIF", "RGB", ("avif",)),
        (COLOR, "TIFF", "RGB", ("tiff",)),
    ],
)
def test_files_of_the_mode_are_kept_byte_for_byte(
    image: Image.Image, format: str, mode: str, keep: tuple[str, ...]
) -> None:
    data = encode(image, format)
    stored = prepare_image(data, encoding=Encoding(mode=mode, keep=keep))
    assert (stored.data, stored.kind) == (data, "kept")
    assert stored.member == {"JPEG": "jpg", "TIFF": "tif"}.get(format, format.lower())
    if keep:
        assert prepare_image(data, encoding=Encoding(mode=mode)).kind == format.lower()  # encoded anew


@pytest.mark.parametrize(
    ("image", "mode"), [(GRAY, "L"), (COLOR, "RGB"), (ALPHA, "RGBA"), (SIXTEEN, "I;16"), (FLOATS, "F")]
)
def test_pixels_are_stored_without_a_loss(image: Image.Image, mode: str) -> None:
    stored = prepare_image(encode(image, "TIFF"), encoding=Encoding(mode=mode, encode="raw"))
    np.testing.assert_array_equal(decoded(stored.data, "npy").squeeze(), np.asarray(image))
    assert decoded(stored.data, "npy").ndim == 3
    if mode != "F":
        stored = prepare_image(encode(image, "TIFF"), encoding=Encoding(mode=mode, lossless=True))
        np.testing.assert_array_equal(decoded(stored.data, stored.member), np.asarray(image))


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_others_are_converted_as_pillow_does(mode: str) -> None:
    for image in (COLOR, GRAY, COLOR.quantize(16)):
        stored = prepare_image(encode(image, "PNG"), encoding=Encoding(mode=mode, encode="raw"))
        expected = np.asarray((image if mode == "RGBA" else image.convert("RGB")).convert(mode))
        np.testing.assert_array_equal(decoded(stored.data, "npy").squeeze(), expected)


def test_rotated_and_animated_files_are_not_kept() -> None:
    for format, name in (("WEBP", "webp"), ("AVIF", "avif"), ("TIFF", "tiff")):
        exif = Image.Exif()
        exif[274] = 6
        for turned in ({"exif": exif}, {"xmp": XMP_ROTATED})[: 1 if format == "TIFF" else 2]:
            stored = prepare_image(encode(COLOR, format, **turned), encoding=Encoding(keep=(name,), lossless=True))
            assert (stored.kind, stored.member, stored.width, stored.height) == (name, "png", 30, 40)
        several = encode(COLOR, format, save_all=True, append_images=[GRAY.convert("RGB")])
        assert prepare_image(several, encoding=Encoding(keep=(name,))).member == "jpg"
    assert prepare_image(ODD["TIFF, odd"][0], encoding=Encoding(keep=("tiff",))).member == "jpg"  # a page is missing


@settings(max_examples=60)
@given(
    st.tuples(st.integers(1, 20), st.integers(1, 20), st.integers(1, 9)),
    st.sampled_from(["uint8", "uint16", "float16", "float32"]), st.integers(0, 99), st.booleans(),
)  # fmt: skip
def test_arrays_come_back_as_they_were(shape: tuple[int, int, int], dtype: str, seed: int, as_file: bool) -> None:
    array = np.random.default_rng(seed).normal(0, 1e4, shape).astype(dtype)
    wanted = array.astype("float32" if dtype == "float16" else dtype)
    names = {("uint8", 1): "L", ("uint8", 3): "RGB", ("uint8", 4): "RGBA", ("uint16", 1): "I;16", ("float32", 1): "F"}
    mode = names.get((wanted.dtype.name, shape[2]), f"{wanted.dtype}x{shape[2]}")
    file = io.BytesIO()
    np.save(file, array)
    stored = prepare_image(file.getvalue() if as_file else array, encoding=Encoding(mode=mode, encode="raw"))
    found = np.load(io.BytesIO(stored.data))
    assert found.dtype == wanted.dtype and (stored.height, stored.width) == shape[:2]
    np.testing.assert_array_equal(found, wanted)
    assert stored.data[stored.header :] == wanted.tobytes()


def test_the_histogram_has_each_channel() -> None:
    for image, mode, count in ((GRAY, "L", 1), (ALPHA, "RGBA", 4), (COLOR, "RGB", 3)):
        for encode_as in ("keep", "raw"):
            stored = prepare_image(encode(image, "PNG"), True, Encoding(mode=mode, encode=encode_as))  # type: ignore[arg-type]
            assert stored.histogram == image.histogram() and len(stored.histogram) == 256 * count
    assert prepare_image(encode(SIXTEEN, "PNG"), True, Encoding(mode="I;16")).histogram is None
