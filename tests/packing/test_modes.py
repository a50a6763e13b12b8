"""Images in another mode than RGB: what is kept, what is converted, and what is rejected."""

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from images import encode, photo
from PIL import Image

from gpuload import DecodeError
from gpuload.packing.image import prepare_image
from gpuload.packing.options import Encoding

PHOTO = photo(3, 40, 30)
GRAY = PHOTO.convert("L")
ALPHA = PHOTO.copy()
ALPHA.putalpha(GRAY)
SIXTEEN = Image.fromarray(np.random.default_rng(0).integers(0, 65_536, (30, 40)).astype(np.uint16))
FLOATS = Image.fromarray(np.random.default_rng(0).normal(0, 9, (30, 40)).astype(np.float32))


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
        (PHOTO, "WEBP", "RGB", ("webp",)),
        (PHOTO, "AVIF", "RGB", ("avif",)),
        (PHOTO, "TIFF", "RGB", ("tiff",)),
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
    ("image", "mode"), [(GRAY, "L"), (PHOTO, "RGB"), (ALPHA, "RGBA"), (SIXTEEN, "I;16"), (FLOATS, "F")]
)
def test_pixels_are_stored_without_a_loss(image: Image.Image, mode: str) -> None:
    stored = prepare_image(encode(image, "TIFF"), encoding=Encoding(mode=mode, encode="raw"))
    np.testing.assert_array_equal(decoded(stored.data, "npy").squeeze(), np.asarray(image))
    assert decoded(stored.data, "npy").ndim == 3
    if mode != "F":
        stored = prepare_image(encode(image, "TIFF"), encoding=Encoding(mode=mode, lossless=True))
        np.testing.assert_array_equal(decoded(stored.data, stored.member), np.asarray(image))


@pytest.mark.parametrize("mode", ["L", "RGBA"])
def test_others_are_converted_as_pillow_does(mode: str) -> None:
    for image in (PHOTO, GRAY, PHOTO.quantize(16)):
        stored = prepare_image(encode(image, "PNG"), encoding=Encoding(mode=mode, encode="raw"))
        expected = np.asarray((image if mode == "RGBA" else image.convert("RGB")).convert(mode))
        np.testing.assert_array_equal(decoded(stored.data, "npy").squeeze(), expected)


@pytest.mark.parametrize(
    ("image", "mode", "reason"),
    [
        (PHOTO, "I;16", "is of mode RGB, which is not converted to I;16"),
        (GRAY, "I;16", "is of mode L, which is not converted to I;16"),
        (SIXTEEN, "RGBA", "is of mode I;16, which is not converted to RGBA"),
        (PHOTO, "uint16x4", "is of mode RGB, which is not converted to uint16x4"),
    ],
)
def test_what_would_lose_something_is_rejected(image: Image.Image, mode: str, reason: str) -> None:
    encode_as: Any = "raw" if "x" in mode else "keep"
    with pytest.raises(DecodeError, match=reason):
        prepare_image(encode(image, "PNG"), encoding=Encoding(mode=mode, encode=encode_as))


def test_rotated_animated_and_truncated_files_are_not_kept() -> None:
    for format, name in (("WEBP", "webp"), ("AVIF", "avif"), ("TIFF", "tiff")):
        exif = Image.Exif()
        exif[274] = 6
        stored = prepare_image(encode(PHOTO, format, exif=exif), encoding=Encoding(keep=(name,), lossless=True))
        assert (stored.kind, stored.member, stored.width, stored.height) == (name, "png", 30, 40)
        several = encode(PHOTO, format, save_all=True, append_images=[GRAY.convert("RGB")])
        assert prepare_image(several, encoding=Encoding(keep=(name,))).member == "jpg"

        with pytest.raises(DecodeError):
            prepare_image(encode(PHOTO, format)[:-200], encoding=Encoding(keep=(name,)))


def test_a_large_webp_is_rejected_before_pillow_opens_it(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(PHOTO, "WEBP")
    monkeypatch.setattr(Image, "open", lambda *_: pytest.fail("it was opened"))
    with pytest.raises(DecodeError, match="40 x 30 pixels, more than --max-pixels 1000"):
        prepare_image(data, encoding=Encoding(keep=("webp",), max_pixels=1000))


@settings(max_examples=60)
@given(
    channels=st.integers(1, 9),
    dtype=st.sampled_from(["uint8", "uint16", "float32"]),
    height=st.integers(1, 20),
    width=st.integers(1, 20),
    seed=st.integers(0, 99),
    as_file=st.booleans(),
)
def test_arrays_come_back_as_they_were(
    channels: int, dtype: str, height: int, width: int, seed: int, as_file: bool
) -> None:
    array = (np.random.default_rng(seed).normal(0, 1e4, (height, width, channels))).astype(dtype)
    names = {("uint8", 1): "L", ("uint8", 3): "RGB", ("uint8", 4): "RGBA", ("uint16", 1): "I;16", ("float32", 1): "F"}
    mode = names.get((dtype, channels), f"{dtype}x{channels}")
    file = io.BytesIO()
    np.save(file, array)
    stored = prepare_image(file.getvalue() if as_file else array, encoding=Encoding(mode=mode, encode="raw"))
    found = np.load(io.BytesIO(stored.data))
    assert found.dtype == np.dtype(dtype) and (stored.width, stored.height) == (width, height)
    np.testing.assert_array_equal(found, array)
    assert stored.data[stored.header :] == array.tobytes()


@pytest.mark.parametrize(
    ("array", "mode"),
    [
        (np.zeros((4, 5, 3), np.float64), "float32x3"),
        (np.zeros((4, 5, 3), np.uint8), "uint8x4"),
        (np.zeros((4, 5), np.int16), "I;16"),
        (np.zeros((4, 5, 6, 7), np.uint8), "uint8x7"),
        (np.zeros((4, 0, 3), np.uint8), "uint8x3"),
    ],
)
def test_arrays_that_do_not_fit_are_rejected(array: np.ndarray, mode: str) -> None:
    with pytest.raises(DecodeError, match="is an array"):
        prepare_image(array, encoding=Encoding(mode=mode, encode="raw"))
    if array.dtype != np.int16:
        assert prepare_image(np.zeros((4, 5, 2), np.float16), encoding=Encoding(mode="float32x2", encode="raw"))


def test_the_histogram_has_each_channel() -> None:
    for image, mode, count in ((GRAY, "L", 1), (ALPHA, "RGBA", 4), (PHOTO, "RGB", 3)):
        for encode_as in ("keep", "raw"):
            stored = prepare_image(encode(image, "PNG"), True, Encoding(mode=mode, encode=encode_as))  # type: ignore[arg-type]
            assert stored.histogram == image.histogram() and len(stored.histogram) == 256 * count
    assert prepare_image(encode(SIXTEEN, "PNG"), True, Encoding(mode="I;16")).histogram is None
