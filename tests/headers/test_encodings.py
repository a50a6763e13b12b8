"""Headers of WebP, AVIF and TIFF: sizes that Pillow agrees with, what is cut is noticed, and no bytes raise."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from images import encode, photo
from PIL import Image

from gpuload.headers import encodings

FILES: dict[str, bytes] = {
    "webp": encode(photo(1, 47, 31), "WEBP"),
    "webp, lossless": encode(photo(1, 47, 31), "WEBP", lossless=True),
    "webp, alpha": encode(photo(1, 47, 31).convert("L").convert("LA"), "WEBP", exact=True),
    "webp, exif": encode(photo(1, 47, 31), "WEBP", exif=Image.Exif()),
    "avif": encode(photo(1, 47, 31), "AVIF"),
    "avif, gray": encode(photo(1, 47, 31).convert("L"), "AVIF"),
    "tiff": encode(photo(1, 47, 31), "TIFF"),
    "tiff, lzw": encode(photo(1, 47, 31), "TIFF", compression="tiff_lzw"),
    "tiff, 16 bits": encode(Image.fromarray(np.arange(47 * 31, dtype=np.uint16).reshape(31, 47)), "TIFF"),
}


@pytest.mark.parametrize("name", FILES)
def test_the_size_is_pillows(name: str) -> None:
    extension, header = encodings.read_header(memoryview(FILES[name])) or ("", None)
    assert extension == {"tiff": "tif"}.get(name.partition(",")[0], name.partition(",")[0])
    assert header == (47, 31, "", True, True)
    assert Image.open(io.BytesIO(FILES[name])).size == (47, 31)
    assert encodings.find_fault(memoryview(FILES[name]), (31, 47)) is None
    assert "not of the size" in str(encodings.find_fault(memoryview(FILES[name]), (47, 31)))


@pytest.mark.parametrize("name", FILES)
def test_what_is_cut_is_noticed(name: str) -> None:
    ends = range(12, len(FILES[name]) - 2)  # TIFF and WebP may have a byte of padding at their end
    headers = [encodings.read_header(memoryview(FILES[name][:end])) for end in ends]
    assert [end for end, found in zip(ends, headers, strict=True) if found is not None and not found[1].fault] == []


@pytest.mark.parametrize("format", ["WEBP", "AVIF", "TIFF"])
def test_several_frames_and_rotation_are_told(format: str) -> None:
    frames = [photo(number, 47, 31) for number in range(2)]
    several = encode(frames[0], format, save_all=True, append_images=frames[1:])
    exif = Image.Exif()
    exif[274] = 6
    for data, single, upright in ((several, False, True), (encode(frames[0], format, exif=exif), True, False)):
        _, header = encodings.read_header(memoryview(data)) or ("", None)
        assert header is not None and (header.single, header.upright, header.fault) == (single, upright, "")


def test_other_files_are_none_of_them() -> None:
    for format in ("JPEG", "PNG", "GIF", "BMP"):
        data = memoryview(encode(photo(), format))
        assert encodings.read_header(data) is None
        assert encodings.find_fault(data, (1, 1)) is None


@settings(max_examples=150)
@given(name=st.sampled_from(sorted(FILES)), seed=st.integers(0, 2**32 - 1))
def test_no_bytes_make_a_reader_raise(name: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(10):
        changed = np.frombuffer(FILES[name], np.uint8).copy()
        places = random.integers(4, min(len(changed), 400), random.integers(1, 7))
        changed[places] = random.choice([0, 1, 2, 127, 128, 255, *range(3, 9)], len(places))
        for end in (len(changed), random.integers(0, len(changed))):
            found = encodings.read_header(changed[:end].data)
            assert found is None or found[1].fault or found[1].width * found[1].height > 0
