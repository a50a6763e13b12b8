"""The numbers that a mask's file stores are the classes, whatever they look like; what cannot be told is refused."""

import io
import re
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import encode, photo
from PIL import Image
from reading import rejected_of, rows_of

import gpuload
from gpuload.types import Array

WIDTH = 24
HEIGHT = 16
NUMBERS = np.arange(WIDTH * HEIGHT).reshape(HEIGHT, WIDTH) % 7 % 3
tifffile = pytest.importorskip("tifffile", reason="needs the extra 'codecs'")


def tiff(numbers: Array, **options: Any) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, numbers, **options)
    return file.getvalue()


def palette(numbers: Array, colors: list[tuple[int, int, int]]) -> bytes:
    image = Image.frombytes("P", numbers.shape[::-1], numbers.astype(np.uint8).tobytes())
    image.putpalette([value for color in colors for value in color])
    return encode(image, "PNG")


def turned(image: Image.Image, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[274] = orientation
    return encode(image, "PNG", exif=exif)


def pack(folder: Path, given: Mapping[str, Any], image: bytes | None = None, **options: Any) -> Path:
    samples = [
        {"image": image or encode(photo(1, WIDTH, HEIGHT), "PNG"), "mask": mask, "name": name}
        for name, mask in given.items()
    ]
    gpuload.pack(samples, folder, workers=1, shuffle=False, progress=False, **options)
    return folder / "train"


def numbers_of(folder: Path) -> dict[str, Array]:
    samples = gpuload.Dataset(folder)
    return {row["source"]: np.asarray(samples[number]["mask"]) for number, row in enumerate(rows_of(folder))}


def gray(numbers: Array, bits: int) -> bytes:
    """A gray PNG of 1, 2 or 4 bits that holds these numbers."""
    image = Image.fromarray(numbers.astype(np.uint8))
    return encode(image, "PNG") if bits == 8 else _few_bits(numbers, bits)


def _few_bits(numbers: Array, bits: int) -> bytes:
    each = 8 // bits
    weights = 1 << np.arange(8 - bits, -1, -bits)
    rows = numbers.reshape(HEIGHT, -1, each) @ weights
    pixels = b"".join(b"\0" + row.astype(np.uint8).tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, bits, 0, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(pixels)), (b"IEND", b"")]
    chunks = (struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


COLORS = [(9, 0, 0), (0, 9, 0), (0, 0, 9)]
STORED = {
    "gray": gray(NUMBERS, 8),
    "2 bits": _few_bits(NUMBERS, 2),
    "4 bits": _few_bits(NUMBERS, 4),
    "palette": palette(NUMBERS, COLORS),
    "palette of these grays": palette(NUMBERS, [(n, n, n) for n in range(256)]),
    "16 bits": encode(Image.fromarray(NUMBERS.astype(np.uint16)), "PNG"),
    "white is zero": tiff(NUMBERS.astype(np.uint8), photometric="miniswhite"),
    "white is zero, 16 bits": tiff(NUMBERS.astype(np.uint16), photometric="miniswhite"),
    "PGM of 100": b"P5 24 16 100\n" + NUMBERS.astype(np.uint8).tobytes(),
    "PGM of 1,023": b"P5 24 16 1023\n" + NUMBERS.astype(">u2").tobytes(),
    "int8": tiff(NUMBERS.astype(np.int8), photometric="minisblack"),
    "whole floats": NUMBERS.astype(np.float32),
    "whole floats, TIFF": tiff(NUMBERS.astype(np.float32), photometric="minisblack"),
    "PIL, 16 bits": Image.fromarray(NUMBERS.astype(np.uint16)),
    "PIL, 32 bits": Image.fromarray(NUMBERS.astype(np.int32)),
}


@pytest.mark.parametrize("name", STORED)
def test_stored_numbers_are_the_classes(tmp_path: Path, name: str) -> None:
    classes = numbers_of(pack(tmp_path, {name: STORED[name]}))
    np.testing.assert_array_equal(classes[name], NUMBERS)


@pytest.mark.parametrize("form", ["array", "TIFF", "TIFF of white as zero", "PNG", "PIL"])
def test_true_is_class_1(tmp_path: Path, form: str) -> None:
    """tifffile writes bool with 1 as black."""
    is_thing = NUMBERS == 2
    mask = {
        "array": is_thing,
        "TIFF": tiff(is_thing, photometric="minisblack"),
        "TIFF of white as zero": tiff(is_thing),
        "PNG": encode(Image.fromarray(is_thing), "PNG"),
        "PIL": Image.fromarray(is_thing),
    }[form]
    np.testing.assert_array_equal(numbers_of(pack(tmp_path, {"mask": mask}))["mask"], is_thing)


PHOTO = photo(2, WIDTH, HEIGHT)
REFUSED = {
    "matte": (np.linspace(0, 1, WIDTH * HEIGHT).reshape(HEIGHT, WIDTH), "which are whole; found 0.0026"),
    "NaN": (np.where(NUMBERS == 1, np.nan, 0), "which are whole; found nan among float64"),
    "floats, TIFF": (tiff((NUMBERS / 2).astype(np.float32), photometric="minisblack"), "which are whole; found 0.5"),
    "complex": (NUMBERS.astype(complex), "found values of complex128"),
    "JPEG": (encode(PHOTO.convert("L")), "compressed with losses"),
    "JPEG in a TIFF": (encode(PHOTO.convert("L"), "TIFF", compression="jpeg"), "compressed with losses"),
    "lossy WebP": (encode(PHOTO, "WEBP"), "compressed with losses"),
    "JPEG 2000": (encode(PHOTO.convert("L"), "JPEG2000", irreversible=True), "compressed with losses"),
    "colours": (np.asarray(PHOTO), r"found colours \(an array \(16, 24, 3\)\)"),
    "PIL colours": (PHOTO, "found colours"),
    "below 0": (tiff(-NUMBERS.astype(np.int8), photometric="minisblack"), r"must be in 0\.\.255; found -2\.\.0"),
    "grays of a palette": (
        palette(NUMBERS, [(0, 0, 0), (7, 7, 7), (200, 200, 200)]),
        "number 1 as the gray 7 of a palette.*--masks levels.*--masks stored",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_one_meaning_is_refused(tmp_path: Path, name: str) -> None:
    mask, reason = REFUSED[name]
    folder = pack(tmp_path, {"good": NUMBERS, "bad": mask})
    assert [*numbers_of(folder)] == ["good"]
    (found,) = rejected_of(folder).values()
    assert re.search(reason, found), found


def test_lossless_jpeg_2000_and_webp_are_no_loss(tmp_path: Path) -> None:
    image = Image.fromarray(NUMBERS.astype(np.uint8))
    classes = numbers_of(pack(tmp_path, {"mask": encode(image, "JPEG2000", irreversible=False)}))
    np.testing.assert_array_equal(classes["mask"], NUMBERS)


@pytest.mark.parametrize("reading", ["stored", "levels"])
def test_the_grays_of_a_palette_or_its_numbers(tmp_path: Path, reading: str) -> None:
    levels = np.array([0, 7, 200])
    masks = {
        "palette": palette(NUMBERS, [(n, n, n) for n in levels.tolist()]),
        "colours": palette(NUMBERS, COLORS),
        "gray": gray(levels[NUMBERS], 8),
    }
    classes = numbers_of(pack(tmp_path, masks, masks=reading))
    np.testing.assert_array_equal(classes["palette"], NUMBERS if reading == "stored" else levels[NUMBERS])
    np.testing.assert_array_equal(classes["colours"], NUMBERS)
    np.testing.assert_array_equal(classes["gray"], levels[NUMBERS])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("JPEG", "from a JPEG, which may have been compressed with losses"),
        ("JPEG2000", "from a JPEG2000, which may have been compressed with losses"),
        ("white is zero", "from a TIFF whose numbers it has changed"),
        ("int8", "from a TIFF whose numbers it has changed"),
        ("PGM of 100", "from a PNM, whose numbers it may have scaled"),
        ("two bands", "from a TIFF whose numbers it has changed"),
        ("4 bits", "from a TIFF whose numbers it has changed"),
    ],
)
def test_a_loaded_mask_of_other_numbers_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    files = {
        "JPEG": encode(Image.fromarray(NUMBERS.astype(np.uint8)), "JPEG"),
        "JPEG2000": encode(Image.fromarray(NUMBERS.astype(np.uint8)), "JPEG2000"),
        "white is zero": STORED["white is zero"],
        "PGM of 100": STORED["PGM of 100"],
        "two bands": tiff(np.dstack([NUMBERS] * 2).astype(np.uint8), photometric="minisblack", planarconfig="contig"),
        "int8": STORED["int8"],
        "4 bits": tiff(NUMBERS.astype(np.uint8), photometric="minisblack", bitspersample=4),
    }
    loaded = Image.open(io.BytesIO(files[name]))
    loaded.load()
    folder = pack(tmp_path, {"good": NUMBERS, "bad": loaded})
    (told,) = rejected_of(folder).values()
    assert f"the mask was loaded by Pillow {reason}; give the path or bytes of the file" in told


@pytest.mark.parametrize("bits", [2, 4])
def test_a_loaded_mask_of_few_bits_has_the_numbers_of_its_file(tmp_path: Path, bits: int) -> None:
    """Pillow multiplies them by 85 or 17 when it loads them. Where the file cannot be read again, that is told."""
    data = _few_bits(NUMBERS, bits)
    (tmp_path / "mask.png").write_bytes(data)
    memory = Image.open(io.BytesIO(data))
    memory.load()
    with Image.open(tmp_path / "mask.png") as by_name:
        by_name.load()
    closed = Image.open(file := io.BytesIO(data))
    closed.load()
    file.close()
    assert np.asarray(memory).max() == NUMBERS.max() * 255 // (2**bits - 1)
    folder = pack(tmp_path / "out", {"good": NUMBERS, "memory": memory, "name": by_name, "closed": closed})
    classes = numbers_of(folder)
    assert [*classes] == ["good", "memory", "name"]
    for name in classes:
        np.testing.assert_array_equal(classes[name], NUMBERS)
    (told,) = rejected_of(folder).values()
    assert "the mask was loaded by Pillow from a PNG, of 2 or 4 bits by its numbers" in told


def test_few_bits_beside_eight_are_a_question(tmp_path: Path) -> None:
    is_thing = (NUMBERS == 2).astype(np.uint8)
    masks = {"few": _few_bits(is_thing, 1), "many": gray(is_thing * 255, 8)}
    message = "'mask': 1 masks hold fewer than 8 bits.* and 1 hold 8.*--masks levels.*--masks stored"
    with pytest.raises(gpuload.SourceError, match=message):
        pack(tmp_path / "asked", masks)
    assert not (tmp_path / "asked" / "train").exists()
    for reading, white in (("stored", 1), ("levels", 255)):
        classes = numbers_of(pack(tmp_path / reading, masks, masks=reading))
        np.testing.assert_array_equal(classes["few"], is_thing * white)
        np.testing.assert_array_equal(classes["many"], is_thing * 255)
    alike = {"few": _few_bits(is_thing, 1), "many": gray(is_thing, 8), "none": _few_bits(is_thing * 0, 1)}
    classes = numbers_of(pack(tmp_path / "alike", alike))  # 1 is class 1 in all of them
    np.testing.assert_array_equal(classes["few"], classes["many"])


@pytest.mark.parametrize("orientation", range(2, 9))
def test_a_mask_of_stored_pixels_is_turned_with_its_image(tmp_path: Path, orientation: int) -> None:
    """Where sizes tell, or as asked."""
    image = photo(1, WIDTH, HEIGHT)
    data = turned(image, orientation)
    wanted = np.asarray(_upright(Image.fromarray(NUMBERS.astype(np.uint8)), orientation))
    masks = {"as stored": NUMBERS, "own orientation": turned(Image.fromarray(NUMBERS.astype(np.uint8)), orientation)}
    asked = {"turn_masks": "yes"} if orientation < 5 else {}
    folder = pack(tmp_path / "turned", masks, data, **asked)
    classes = numbers_of(folder)
    np.testing.assert_array_equal(classes["as stored"], wanted)
    np.testing.assert_array_equal(classes["own orientation"], wanted)
    upright = numbers_of(pack(tmp_path / "upright", {"mask": wanted}, data, turn_masks="no"))
    np.testing.assert_array_equal(upright["mask"], wanted)
    if orientation < 5:
        same = np.full_like(NUMBERS, 2)  # looks alike however it lies
        asked_for = pack(tmp_path / "asked", {"mask": NUMBERS, "same": same}, data)
        (reason,) = rejected_of(asked_for).values()
        assert f"Exif orientation {orientation}" in reason and "--turn-masks yes" in reason
        np.testing.assert_array_equal(numbers_of(asked_for)["same"], same)


def _upright(image: Image.Image, orientation: int) -> Image.Image:
    method = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }[orientation]
    return image.transpose(method)
