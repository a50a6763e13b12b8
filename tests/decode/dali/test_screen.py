"""What reaches DALI: nothing that it does not decode, and everything that Pillow does."""

import io
import itertools
import struct
import zlib
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from images import dali_decodes, encode, smooth_image
from made_batches import make_batch, with_images
from PIL import Image, PngImagePlugin

from gpuload import Augment
from gpuload.decode.dali.screen import Screen
from gpuload.decode.interface import PictureForm, Stored
from gpuload.headers import png as png_header
from gpuload.kernels import jpeg

OTHER_SIZE_THAN_INDEX = "it is not of the size that the index says"
AUGMENT = Augment(8, dtype="uint8")
WIDTH, HEIGHT = 51, 38


def encoded(mode: str = "RGB", **options: Any) -> bytes:
    image = smooth_image(np.random.default_rng(0), WIDTH, HEIGHT).convert(mode)
    return encode(image, **{"quality": 85, **options})


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = orientation, "a maker"
    return encoded(exif=exif)


def with_tables_of_number_3() -> bytes:
    """Those of the colours; and one segment holds all of a kind, which T.81 allows."""
    data = bytearray(encoded())
    for begins, at, number in ((b"\xff\xc4\0\x1f\1", 4, 3), (b"\xff\xc4\0\xb5\x11", 4, 0x13), (b"\xff\xda", 8, 0x33)):
        data[data.index(begins) + at] = number
    data[data.index(b"\xff\xda") + 10] = 0x33
    frame, first, second = data.index(b"\xff\xc0"), data.index(b"\xff\xdb"), data.rindex(b"\xff\xdb\0\x43")
    data[frame + 15] = data[frame + 18] = data[second + 4] = 3
    data[first + 3] = 0x84
    return bytes(data[:second] + data[second + 4 :])


def of_many_blocks(sampling: int = 0x11) -> bytes:
    """Gray, of six times eight blocks of brightness and one, or as many as `sampling` says, of each colour."""
    data = bytearray(encode(Image.new("RGB", (WIDTH, HEIGHT), (128, 128, 128))))
    frame = data.index(b"\xff\xc0")
    data[frame + 11], data[frame + 14] = 0x42, sampling
    return bytes(data[: data.index(b"\xff\xda") + 14]) + b"\x28\xa2\x8a\x28\xa2\x8a\0" * 6 + b"\xff\xd9"


SOUND = {
    "plain": encoded(),
    "4:4:4": encoded(subsampling=0),
    "4:2:2": encoded(subsampling=1),
    "gray": encoded("L"),
    "CMYK": encoded("CMYK"),
    "progressive": encoded(progressive=True),
    "progressive gray": encoded("L", progressive=True),
    "optimised": encoded(optimize=True),
    "restart markers": encoded(restart_marker_blocks=2),
    **{f"turned {orientation}": turned(orientation) for orientation in range(1, 9)},
    "tables of number 3": with_tables_of_number_3(),
    "ten blocks": of_many_blocks(),
    "comment": encoded(comment=b"\xff\xd9 not the end"),
    "colour profile": encoded(icc_profile=bytes(70_000)),
    "trailing bytes": encoded() + b"\0" * 5000,
}


TURNED = [f"turned {orientation}" for orientation in range(5, 9)]


def as_bytes(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def dalis_size(data: bytes) -> tuple[int, ...] | None:
    """(height, width) to which DALI's CPU decoder decodes this image, which passed the check; None if it does not."""
    with suppress(RuntimeError):
        return dali_decodes([data])[0].shape[:2]
    return None


def check(data: bytes, height: int, width: int) -> int:
    array = as_bytes(data).copy()
    spans = np.array([[array.ctypes.data, len(array)]])
    [result] = jpeg.check_jpegs(spans, np.array([height], np.int32), np.array([width], np.int32))
    return int(result)


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_file_passes(name: str) -> None:
    """Width and height change places as EXIF says."""
    data, size = SOUND[name], (WIDTH, HEIGHT) if name in TURNED else (HEIGHT, WIDTH)
    assert (check(data, *size), check(data, *size[::-1])) == (jpeg.SOUND, jpeg.OTHER_SIZE)
    assert dalis_size(data) == size


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    kind = rng.integers(6)
    if kind == 0:
        return data[: int(rng.integers(len(data)))]
    if kind == 1:
        del changed[(at := int(rng.integers(len(data)))) : at + int(rng.integers(1, 9))]
    elif kind == 2:  # a marker where none belongs
        at = int(rng.integers(len(data) - 2))
        changed[at : at + 2] = bytes([0xFF, int(rng.integers(256))])
    else:  # most bytes are in the header
        for at in rng.integers(0, 700 if kind == 3 else len(data), 2).tolist():
            changed[min(at, len(data) - 1)] = int(rng.integers(256))
    return bytes(changed)


def test_what_passes_is_decoded_by_dali() -> None:
    rng, passed, names = np.random.default_rng(11), 0, list(SOUND)
    for number in range(700):
        name = names[number % len(names)]
        data = damaged(SOUND[name], rng)
        size = (WIDTH, HEIGHT) if name in TURNED else (HEIGHT, WIDTH)
        if check(data, *size) == jpeg.SOUND:
            passed += 1
            assert dalis_size(data) == size
    assert passed > 100


def test_what_dali_shows_in_another_way_than_pillow_does_not_pass() -> None:
    cmyk = SOUND["CMYK"]
    mark = cmyk.index(b"\xff\xee\x00\x0eAdobe")
    unmarked = cmyk[:mark] + cmyk[mark + 16 :]
    assert check(unmarked, HEIGHT, WIDTH) == jpeg.UNMARKED_CMYK
    for text in (b'tiff:Orientation="%d"', b"<tiff:Orientation>%d<"):
        for number in range(10):
            data = encoded(xmp=b"<x:xmpmeta>" + text % number + b"/>")
            expected = jpeg.TURNED_BY_XMP if 2 <= number <= 8 else jpeg.SOUND
            assert check(data, HEIGHT, WIDTH) == expected
    # Exif goes first, and text that only looks like it is none.
    exif = Image.Exif()
    exif[0x0112] = 3
    assert check(encoded(xmp=b'tiff:Orientation="6"', exif=exif), HEIGHT, WIDTH) == jpeg.SOUND
    for text in (b"tiff:Orientation", b'tiff:Orientation="', b"tiff:Orientation 6", b'tiff:OrientatioN="6"'):
        assert check(encoded(xmp=text), HEIGHT, WIDTH) == jpeg.SOUND


def test_scans_of_nothing_or_too_much_and_codes_that_overflow_are_seen_in_files_well_formed_otherwise() -> None:
    data = bytearray(SOUND["plain"])
    counts = data.index(b"\xff\xc4") + 5
    data[counts], data[counts + 2] = data[counts] + 2, data[counts + 2] - 2  # as many codes in all
    for bad in (bytes(data), SOUND["plain"][: data.index(b"\xff\xda")] + b"\xff\xda\0\2", of_many_blocks(0x21)):
        assert check(bad, HEIGHT, WIDTH) == jpeg.BAD_HEADER  # DALI, which such files may end, is not asked


def png(mode: str = "RGB", **options: Any) -> bytes:
    return encoded(mode, format="PNG", **options)


def test_a_png_passes_only_whole() -> None:
    data = png()
    size = HEIGHT, WIDTH
    for mode in ("L", "P", "RGBA", "1", "RGB"):
        assert png_header.find_fault(memoryview(png(mode=mode)), size) is None
    assert png_header.find_fault(memoryview(data + b"more"), size) is None
    assert png_header.find_fault(memoryview(data), size[::-1]) == OTHER_SIZE_THAN_INDEX
    for at in range(8, len(data)):
        changed = bytearray(data)
        changed[at] ^= 4
        assert png_header.find_fault(memoryview(changed), size) is not None
        assert png_header.find_fault(memoryview(changed)) is not None
        assert png_header.find_fault(memoryview(data[:at])) == "it is truncated"


def of_chunks(*chunks: tuple[bytes, bytes]) -> memoryview:
    """With right checksums."""
    parts = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    ]
    return memoryview(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


def test_a_png_with_right_checksums_may_be_wrong_all_the_same() -> None:
    rest = (b"IDAT", b"pixels"), (b"IEND", b"")
    depths = {0: {1, 2, 4, 8, 16}, 2: {8, 16}, 3: {1, 2, 4, 8}, 4: {8, 16}, 6: {8, 16}}
    for one in itertools.product((0, 1, 2, 3, 4, 8, 16, 32), range(8), range(2), range(2), range(3)):
        depth, color, compression, filtering, interlacing = one
        header = b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, *one)
        is_right = depth in depths.get(color, ()) and (compression, filtering) == (0, 0) and interlacing < 2
        expected = None if is_right else "its header is damaged"
        assert png_header.find_fault(of_chunks(header, *rest), (HEIGHT, WIDTH)) == expected
    kind, data = b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)
    for wrong in [(kind, data[:-1]), (kind, data + b"\0"), (b"IHDr", data)]:
        assert png_header.find_fault(of_chunks(wrong, *rest)) == "its header is damaged"
    assert png_header.find_fault(of_chunks((kind, data), rest[1])) == "it has no pixels"
    assert png_header.find_fault(of_chunks((kind, data), rest[0])) == "it is truncated"


def test_a_wrong_checksum_of_a_text_matters_to_dali_alone() -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("who", "me")
    data = memoryview(png(pnginfo=info).replace(b"who", b"why"))
    assert png_header.find_fault(data) is None
    assert "checksum of its chunk at byte 33 is wrong" in str(png_header.find_fault(data, (HEIGHT, WIDTH)))


@pytest.fixture
def screen() -> Screen:
    return Screen([PictureForm("image", (AUGMENT.form,), Stored())], 2)


def test_the_screen_names_rows_and_reasons(screen: Screen) -> None:
    """Of images alone: another decoder makes the masks."""
    sound, rows = [as_bytes(SOUND["plain"])] * 9, np.arange(9)
    batch = make_batch(AUGMENT, sound, [(WIDTH, HEIGHT)] * 9, masks={"mask": [np.zeros(500, np.uint8)] * 9})
    assert screen.screened(batch, rows) == (batch, {})
    other = as_bytes(encoded().replace(bytes([HEIGHT, 0, WIDTH]), bytes([HEIGHT - 8, 0, WIDTH]), 1))
    webp, other_webp = encoded(format="WEBP"), encode(Image.new("RGB", (HEIGHT, WIDTH)), "WEBP")
    images = [np.zeros(500, np.uint8), as_bytes(other_webp), sound[0][:-400], np.empty(0, np.uint8), other]
    images += [as_bytes(data) for data in (png(), png()[:-100], webp, webp[:-20])]
    prepared, faults = screen.screened(with_images(batch, images), rows)
    shown = prepared.image.contents
    assert sorted(faults) == [0, 1, 2, 3, 4, 6, 8] and {fault.picture for fault in faults.values()} == {"image"}
    assert faults[0].reason == faults[3].reason == "it is not an image in a format that Pillow reads"
    assert faults[1].reason == faults[4].reason == OTHER_SIZE_THAN_INDEX and faults[6].reason == "it is truncated"
    assert shown[5] is images[5] and dalis_size(shown[7]) == (HEIGHT, WIDTH)
    assert sorted(screen.screened(with_images(batch, images), rows[4:])[1]) == [4, 6, 8]  # of DALI's samples alone


@pytest.mark.parametrize("format", ["BMP", "GIF", "PPM", "TIFF", "WEBP"])
def test_an_odd_but_sound_image_becomes_pixels_for_dali(screen: Screen, format: str) -> None:
    odd = as_bytes(encoded(format=format))
    batch = make_batch(AUGMENT, [odd] * 2, [(WIDTH, HEIGHT)] * 2)
    prepared, faults = screen.screened(batch, np.arange(2))
    shown = prepared.image
    assert faults == {} and dalis_size(shown.contents[1]) == (HEIGHT, WIDTH)
    assert shown.spans[1, 0] == shown.contents[1].ctypes.data  # where native code reads it
    pixels = np.asarray(Image.open(io.BytesIO(odd.tobytes())).convert("RGB"))
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(shown.contents[1].tobytes()))), pixels)
