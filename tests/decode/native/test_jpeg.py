"""The JPEG decoder: libjpeg-turbo's pixels, bit for bit, or none."""

import io
import struct
from typing import Any

import numpy as np
import pytest
from decode.native.pictures import Part, decode_all
from images import encode, smooth_image
from PIL import Image

simplejpeg = pytest.importorskip("simplejpeg", reason="simplejpeg, with which pixels are compared, is not installed")

# By kind: options of the encoder.
KINDS: dict[str, dict[str, Any]] = {f"4:{chroma}": {"subsampling": n} for n, chroma in enumerate(("4:4", "2:2", "2:0"))}
KINDS["gray"] = {"mode": "L"}
# On both sides of one and two units of 8 and 16 pixels, and so narrow that libjpeg does not interpolate chroma.
SIZES = [(1, 1), (3, 17), (5, 33), (8, 8), (19, 7), (63, 65), (64, 64), (201, 100), (500, 375)]  # width, height
FACTORS = (1, 2, 4, 8)
SMALL = (40, 30)


def make(size: tuple[int, int] = SMALL, seed: int = 0, mode: str = "RGB", **options: Any) -> bytes:
    return encode(smooth_image(np.random.default_rng(seed), *size).convert(mode), **options)


def decode(data: bytes, *args: Any, **options: Any) -> Part | None:
    (part,) = decode_all([data], *args, **options)
    return part


def reference(data: bytes, size: tuple[int, int], factor: int = 1) -> np.ndarray:
    """Of a gray image in RGB, too."""
    width, height = (-(-side // factor) for side in size)
    smaller = {} if factor == 1 else {"min_width": width, "min_height": height, "min_factor": factor}
    return simplejpeg.decode_jpeg(data, **smaller)


def check(data: bytes, size: tuple[int, int], window: Any = None, factor: int = 1) -> None:
    """The pixels of the window, and perhaps a few around it, are the library's."""
    found = decode(data, size, window, factor)
    assert found is not None
    pixels, (top, left) = found
    bottom, right = top + pixels.shape[0], left + pixels.shape[1]
    whole = reference(data, size, factor)
    np.testing.assert_array_equal(pixels, whole[top:bottom, left:right])
    if window is None:
        assert pixels.shape == whole.shape
    else:
        assert top * factor <= window[0] and left * factor <= window[1]
        assert bottom * factor >= window[2] and right * factor >= window[3]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("kind", KINDS)
def test_whole_images_at_each_scale(size: tuple[int, int], kind: str) -> None:
    for quality in (30, 75, 95, 100):
        data = make(size, quality=quality, **KINDS[kind])
        for factor in FACTORS:
            check(data, size, factor=factor)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("factor", FACTORS)
def test_any_part_of_an_image(kind: str, factor: int) -> None:
    rng = np.random.default_rng(factor)
    for size in SIZES[2:]:
        data = make(size, **KINDS[kind])
        for _ in range(12):
            top, bottom = np.sort(rng.choice(size[1] + 1, 2, replace=False)).tolist()
            left, right = np.sort(rng.choice(size[0] + 1, 2, replace=False)).tolist()
            check(data, size, (top, left, bottom, right), factor)


@pytest.mark.parametrize("window", [(50, 60, 50, 60), (80, 90, 20, 10), (-9, -9, -3, -3), (400, 500, 900, 990)])
def test_a_window_of_nothing_gives_a_pixel_at_least(window: tuple[int, int, int, int]) -> None:
    """Such windows are not asked for; but nothing else may be written over."""
    found = decode(make((100, 120)), (100, 120), window)
    assert found is not None and min(found[0].shape) >= 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [{"optimize": True}, {"restart_marker_blocks": 1}, {"restart_marker_rows": 2}, {"comment": b"x" * 60_000}],
    ids=lambda options: next(iter(options)),
)
def test_codes_of_its_own_restart_markers_and_long_segments(kind: str, options: dict[str, Any]) -> None:
    data = make((500, 375), **KINDS[kind], **options)
    check(data, (500, 375))
    check(data, (500, 375), (100, 50, 300, 410))


def test_noise_whose_codes_are_long_and_whose_bytes_are_stuffed() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (300, 310, 3), np.uint8)
    data = encode(Image.fromarray(noise), quality=100, subsampling=0)
    assert data.count(b"\xff\x00") > 100
    check(data, (310, 300))
    check(data, (310, 300), (31, 5, 290, 290))


def test_many_images_one_after_the_other_with_the_same_tables_and_others() -> None:
    """What a thread keeps of one image must not show in the next."""
    size, rng = (70, 50), np.random.default_rng(0)
    options: list[dict[str, Any]] = [
        {"optimize": True},
        {"quality": 30},
        {"quality": 95, "subsampling": 0},
        {"restart_marker_blocks": 2},
        {"progressive": True},
    ]
    files = [make(size, number, **options[int(rng.integers(len(options)))]) for number in range(60)]
    for data, found in zip(files, decode_all(files, size), strict=True):
        assert (found is None) == (b"\xff\xc2" in data)  # progressive
        if found is not None:
            np.testing.assert_array_equal(found[0], reference(data, size))


def _without(data: bytes, marker: int) -> bytes:
    """The file without its segments of this kind."""
    kept, at = data[:2], 2
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        kept += b"" if data[at + 1] == marker else data[at:end]
        at = end
    return kept + data[at:]


@pytest.mark.parametrize("marker", [0xC4, 0xDB])
def test_tables_of_one_file_are_not_those_of_the_next(marker: int) -> None:
    data = make()
    assert [found is not None for found in decode_all([data, _without(data, marker)], SMALL)] == [True, False]


def _with_adobe(transform: int) -> bytes:
    """With a segment of Adobe's, and without one of JFIF."""
    return (
        make()[:2] + b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00" + bytes([transform]) + _without(make(), 0xE0)[2:]
    )


def test_colours_are_told_as_libjpeg_tells_them() -> None:
    check(_with_adobe(1), SMALL)  # YCbCr
    assert decode(_with_adobe(0), SMALL) is None  # RGB, which is not decoded here
    check(_without(make(), 0xE0), SMALL)  # by its components' names


def _with_wide_scales() -> bytes:
    """The same image, its quantisation tables in numbers of 16 bits."""
    data = make()
    at = data.index(b"\xff\xdb\x00\x43")
    table = data[at + 5 : at + 69]
    segment = bytes([data[at + 4] | 16]) + b"".join(bytes([0, number]) for number in table)
    return data[:at] + b"\xff\xdb" + (len(segment) + 2).to_bytes(2, "big") + segment + data[at + 69 :]


def _with_a_dc_of_12_bits() -> bytes:
    """The same image; a symbol that no pixel uses is of more bits than 8-bit images have."""
    data = bytearray(make())
    at = data.index(b"\xff\xc4\x00\x1f\x00") + 5 + 16 + 11
    assert data[at] == 11
    data[at] = 12
    return bytes(data)


def _with_a_code_of_ones() -> bytes:
    """The same image; its first table of codes has one more, of 9 bits, that no pixel uses."""
    data = bytearray(make())
    at = data.index(b"\xff\xc4\x00\x1f\x00")
    assert data[at + 5 + 8] == 1
    data[at + 3], data[at + 5 + 8] = 0x20, 2
    data[at + 5 + 16 + 12 : at + 5 + 16 + 12] = b"\x0b"
    return bytes(data)


def _without_codes() -> bytes:
    """With tables that have no codes, and no coded pixels."""
    data = _without(make(), 0xC4)
    tables = b"".join(b"\xff\xc4\x00\x13" + bytes([table]) + bytes(16) for table in (0x00, 0x01, 0x10, 0x11))
    scan = data.index(b"\xff\xda")
    return data[:2] + tables + data[2 : scan + 14] + b"\xff\xd9"


def _gray_with_frame(size: tuple[int, int], width: int, sampling: int) -> bytes:
    data = bytearray(encode(Image.new("L", size, 77)))
    at = data.index(b"\xff\xc0")
    data[at + 7 : at + 9], data[at + 11] = width.to_bytes(2, "big"), sampling
    return bytes(data)


REFUSED: dict[str, tuple[bytes, tuple[int, int]]] = {  # by libjpeg, too
    "a code of ones": (_with_a_code_of_ones(), SMALL),
    **{f"sampling {one:#x}": (_gray_with_frame(SMALL, 40, one), SMALL) for one in (0x00, 0x10, 0x15)},
    "too wide": (_gray_with_frame((65_500, 8), 65_501, 0x11), (65_501, 8)),
}
# Other kinds, another size than the index says, and faults.
OTHERS: dict[str, tuple[bytes, tuple[int, int]]] = {
    **REFUSED,
    "progressive": (make(progressive=True), SMALL),
    "wide scales": (_with_wide_scales(), SMALL),
    "wide DC": (_with_a_dc_of_12_bits(), SMALL),
    "no codes": (_without_codes(), SMALL),
    "CMYK": (make(mode="CMYK"), SMALL),
    "4:4:0": (simplejpeg.encode_jpeg(np.zeros((30, 40, 3), np.uint8), colorsubsampling="440"), SMALL),
    "4:1:1": (simplejpeg.encode_jpeg(np.zeros((30, 40, 3), np.uint8), colorsubsampling="411"), SMALL),
    "wider": (make((41, 30)), SMALL),
    "higher": (make((40, 31)), SMALL),
    "no end": (make()[:-2], SMALL),
    "other end": (make()[:-2] + b"\xff\xd8", SMALL),
    "cut": (make()[:-40], SMALL),
    "header": (make()[:300], SMALL),
    "start": (b"\xff\xd8", SMALL),
    "empty": (b"", SMALL),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_left_to_others(name: str) -> None:
    data, size = OTHERS[name]
    assert decode(data, size) is None
    if name in REFUSED:
        with pytest.raises(ValueError, match="Bogus|sampling|too big|dimension"):
            simplejpeg.decode_jpeg(data)


def test_the_largest_side_and_sampling_of_gray_images() -> None:
    check(_gray_with_frame((65_500, 8), 65_500, 0x44), (65_500, 8))


def test_a_part_of_a_file_that_was_cut_is_not_taken_for_one_of_a_whole() -> None:
    data = make((200, 200))
    part = (0, 0, 20, 20)
    assert decode(data, (200, 200), part) is not None
    assert decode(data[: len(data) * 3 // 4], (200, 200), part) is None


def _with_exif(exif: bytes, before: bytes = b"") -> bytes:
    data = make()
    segment = b"Exif\0\0" + exif
    return data[:2] + before + b"\xff\xe1" + (len(segment) + 2).to_bytes(2, "big") + segment + data[2:]


def _exif(order: str, orientation: int, kind: int = 3, tag: int = 0x0112) -> bytes:
    """A TIFF header with two entries, the second of which tells the orientation."""
    start = b"II" if order == "<" else b"MM"
    entries = struct.pack(f"{order}HHII", 0x0100, 4, 1, 40) + struct.pack(f"{order}HHIHH", tag, kind, 1, orientation, 0)
    return start + struct.pack(f"{order}HIH", 42, 8, 2) + entries + bytes(4)


@pytest.mark.parametrize("order", ["<", ">"])
def test_only_what_is_upright_is_decoded_unless_all_are_known_to_be(order: str) -> None:
    for orientation in range(10):
        data = _with_exif(_exif(order, orientation))
        with Image.open(io.BytesIO(data)) as image:
            assert image.getexif()[0x0112] == orientation  # so that the test is about what others read, too
        assert (decode(data, SMALL, upright=False) is not None) == (orientation == 1)
        check(data, SMALL)
    assert decode(make(), SMALL, upright=False) is not None


def test_exif_data_that_do_not_tell_are_left_to_others() -> None:
    whole = _exif("<", 1)
    xmp = b"\xff\xe1\x00\x08xmp:::"
    cut = [whole[:length] for length in range(len(whole) - 4)]
    for data in [*cut, _exif("<", 1, kind=4), b"II" + whole[2:4][::-1] + whole[4:]]:
        assert decode(_with_exif(data), SMALL, upright=False) is None
    for data in [whole, no_orientation := _exif("<", 1, tag=0x0113)]:
        assert decode(_with_exif(data, before=xmp), SMALL, upright=False) is None
    assert decode(_with_exif(no_orientation), SMALL, upright=False) is not None


def _spoil(rng: np.random.Generator, data: bytes) -> bytes:
    spoilt, place = bytearray(data), int(rng.integers(2, len(data) - 2))
    match rng.integers(4):
        case 0:
            spoilt[place] = rng.integers(256)
        case 1:
            spoilt[place] ^= 1 << int(rng.integers(8))
        case 2:
            del spoilt[place : place + int(rng.integers(1, 20))]
        case 3:
            spoilt[place:place] = rng.bytes(int(rng.integers(1, 20)))
    return bytes(spoilt)


def test_spoilt_files_give_the_library_s_pixels_or_none() -> None:
    rng, size = np.random.default_rng(0), (70, 65)
    whole = [
        make(size, quality=quality, **kind, **options)
        for quality in (75, 95)
        for kind in KINDS.values()
        for options in ({}, {"optimize": True}, {"restart_marker_blocks": 3})
    ]
    decoded = refused = others = 0
    for number in range(3000):
        data = _spoil(rng, whole[number % len(whole)])
        decode(data, size, (10, 10, 30, 40))  # reads and writes nothing that is not its own
        found = decode(data, size)
        if found is None:
            refused += 1
            continue
        decoded += 1
        # Coefficients beyond 16 bits, which no image has, are cut off in the library's vectors and not in ours.
        others += not np.array_equal(found[0], reference(data, size))
    assert decoded > 300 and refused > 300
    assert others <= decoded // 100
