"""The compiled PNG decoder: Pillow's pixels, of every kind of file, in every mode, whole and in part."""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decode.native.pictures import decode_all
from fuzzing.pngs import KINDS, Recipe, assembled, chunk, compressed, stored_values, stream_of, write_png
from hypothesis import given, settings
from hypothesis import strategies as st
from images import encode, photo
from loaders import load
from PIL import Image

import gpuload
from gpuload import Augment
from gpuload.decode.pillow import UndecodableError, decode_mask, decode_pixels
from gpuload.fields.images import Pixels
from gpuload.headers import png
from gpuload.kernels.images import CLASSES

MODES = ["RGB", "RGBA", "I;16"]


def expected(data: bytes, size: tuple[int, int], mode: str) -> np.ndarray | None:
    """What Pillow gives for a mode; None where it is refused."""
    try:
        return decode_pixels(np.frombuffer(data, np.uint8), size[::-1], Pixels.of_mode(mode))
    except UndecodableError:
        return None


def compare(
    data: bytes, size: tuple[int, int], mode: str = "RGB", window: tuple[int, int, int, int] | None = None
) -> bool:
    """Compares a part with Pillow's, and returns whether it is decoded."""
    (part,) = decode_all([data], size, window, mode=mode)
    whole = expected(data, size, mode)
    if part is None:
        return False
    assert whole is not None
    top, left, bottom, right = window or (0, 0, size[1], size[0])
    assert part.place == (top, left)
    np.testing.assert_array_equal(part.pixels, whole[top:bottom, left:right])
    return True


@st.composite
def recipes(draw: st.DrawFn) -> tuple[Recipe, int]:
    color, depth = draw(st.sampled_from(KINDS))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    recipe = Recipe(color, depth)
    recipe.interlaced = draw(st.booleans())
    recipe.filters = tuple(draw(st.lists(st.integers(0, 4), min_size=1, max_size=9)))
    recipe.chunk = draw(st.sampled_from([1, 7, 100, 8192, 1 << 20]))
    recipe.level = draw(st.sampled_from([0, 1, 6, 9]))
    recipe.strategy = draw(st.sampled_from([zlib.Z_DEFAULT_STRATEGY, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED]))
    if color == 3:
        colors = draw(st.integers(1, 1 << depth))
        recipe.palette = rng.integers(0, 256, 3 * colors, np.uint8).tobytes()
        recipe.transparency = rng.integers(0, 256, draw(st.integers(0, colors)), np.uint8).tobytes()
    elif color in (0, 2) and draw(st.booleans()):
        recipe.transparency = b"\0" * (2 if color == 0 else 6)
    return recipe, draw(st.integers(0, 1 << 30))


@settings(max_examples=400, deadline=None)
@given(
    recipes(),
    st.integers(1, 70),
    st.integers(1, 40),
    st.sampled_from(MODES),
    st.lists(st.floats(0, 1), min_size=4, max_size=4),
)
def test_parts_of_every_kind_are_pillows(
    made: tuple[Recipe, int], width: int, height: int, mode: str, places: list[float]
) -> None:
    recipe, seed = made
    values = stored_values(np.random.default_rng(seed), width, height, recipe.color, recipe.depth)
    if recipe.color == 3:
        values %= len(recipe.palette) // 3
    if recipe.transparency and recipe.color in (0, 2):  # a colour that the image has
        recipe.transparency = values[height // 2, width // 2].astype(">u2").tobytes()
    data = write_png(values, recipe)
    rows = sorted(int(place * height) for place in places[:2])
    columns = sorted(int(place * width) for place in places[2:])
    size = (width, height)
    is_decoded = compare(data, size, mode)
    window = (rows[0], columns[0], rows[1] + 1, columns[1] + 1)
    if rows[1] < height and columns[1] < width:
        assert compare(data, size, mode, window) == is_decoded
    is_left_to_pillow = mode == "I;16" and recipe.depth < 16
    assert is_decoded == (not is_left_to_pillow and expected(data, size, mode) is not None)


@pytest.mark.parametrize(("color", "depth"), KINDS)
@pytest.mark.parametrize("interlaced", [False, True])
def test_class_numbers_are_those_of_gray_masks(color: int, depth: int, interlaced: bool) -> None:
    """Other masks are refused: decoders show levels in place of their numbers."""
    size = (61, 37)
    recipe = Recipe(color, depth, interlaced, (4, 1, 2, 3, 0), palette=bytes(3 << depth) if color == 3 else b"")
    data = write_png(stored_values(np.random.default_rng(3), *size, color, depth), recipe)
    for window in (None, (5, 6, 30, 41)):
        (part,) = decode_all([data], size, window, mode=CLASSES)
        assert (part is not None) == (color == 0 and depth == 8)
        if part is None:
            with pytest.raises(UndecodableError, match="stored masks are gray PNGs of 8 bits"):
                decode_mask(np.frombuffer(data, np.uint8), size[::-1])
        else:
            top, left, bottom, right = window or (0, 0, 37, 61)
            mask = decode_mask(np.frombuffer(data, np.uint8), size[::-1])
            np.testing.assert_array_equal(part.pixels[..., 0], mask[top:bottom, left:right])


SIZE = (40, 30)


def made(color: int = 2, depth: int = 8, others: list[tuple[bytes, bytes]] | None = None, **options: Any) -> bytes:
    recipe = Recipe(color, depth, filters=(4, 1, 2, 3, 0), others=others or [], **options)
    if color == 3 and not recipe.palette:
        recipe.palette = bytes(range(3 << depth))
    return write_png(stored_values(np.random.default_rng(3), *SIZE, color, depth), recipe)


def stream(change: Callable[[bytes], bytes] = bytes, close: Callable[[bytes], bytes] = bytes, level: int = 6) -> bytes:
    """A PNG whose rows are changed before they are compressed, and whose stream is afterwards."""
    recipe = Recipe(2, 8, filters=(4, 1, 2, 3, 0), level=level)
    rows = stream_of(stored_values(np.random.default_rng(3), *SIZE, 2, 8), recipe)
    return assembled(SIZE, close(compressed(change(rows), recipe)), recipe)


def stored(content: bytes, kept: int) -> bytes:
    """A deflate stream of which only the first bytes are given as a stored block."""
    size = len(content).to_bytes(2, "little")
    complement = (len(content) ^ 0xFFFF).to_bytes(2, "little")
    return b"\x78\x01\x01" + size + complement + content[:kept] + zlib.adler32(content).to_bytes(4, "big")


def chunks_of(data: bytes) -> list[bytes]:
    return [data[begin:end] for _, begin, end in png.chunks(data)]


def with_chunks(*parts: bytes) -> bytes:
    return png.START + b"".join(parts)


HEAD, PIXELS, END = chunks_of(made())
_, *MANY, _ = chunks_of(made(chunk=100))
EXIF = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
ROW = 1 + 3 * SIZE[0]
DYNAMIC = b"\x78\x01\x05"  # of a last block with codes of its own

# What is not decoded here, for the reason that its name says.
REFUSED: dict[str, bytes] = {
    "empty": b"",
    "signature alone": png.START,
    "checksum of pixels": made()[:-20] + b"\0\0\0\0" + made()[-16:],
    "checksum of the header": made()[:29] + b"\0\0\0\0" + made()[33:],
    "checksum of a time": with_chunks(HEAD, chunk(b"tIME", bytes(7))[:-1] + b"?", PIXELS, END),
    "checksum of the palette": made(3, 4).replace(zlib.crc32(b"PLTE" + bytes(range(48))).to_bytes(4, "big"), b"abcd"),
    "no end": made()[:-12],
    "cut": made()[:-60],
    "no pixels": with_chunks(HEAD, END),
    "pixels divided": with_chunks(HEAD, MANY[0], chunk(b"tEXt", b"a\0b"), *MANY[1:], END),
    "an unknown chunk that is needed": with_chunks(HEAD, chunk(b"ABCD", b""), PIXELS, END),
    "two palettes": made(3, 4, [(b"PLTE", bytes(48))]),
    "palette missing": with_chunks(chunks_of(made(3, 4))[0], *chunks_of(made(3, 4))[2:]),
    "palette too long": made(3, 4, palette=bytes(51)),
    "palette of two thirds": made(3, 4, palette=bytes(47)),
    "index outside of the palette": made(3, 4, palette=bytes(9)),
    "transparency longer than the palette": made(3, 4, palette=bytes(48), transparency=bytes(17)),
    "transparent colour of another type": made(2, 8, transparency=bytes(2)),
    "transparent colour beside alpha": made(6, 8, transparency=bytes(6)),
    "transparent colour beyond the depth": made(0, 4, transparency=b"\0\x10"),
    "turned by Exif": made(others=[(b"eXIf", EXIF)]),
    "turned by a text": made(others=[(b"tEXt", b"orientation\0006")]),
    "turned by Exif in a text": with_chunks(HEAD, PIXELS, chunk(b"zTXt", b"Raw profile type exif\0\0x"), END),
    "turned by XMP": made(others=[(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0x")]),
    "animated": made(others=[(b"acTL", bytes(8))]),
    "filter 5": stream(lambda rows: b"\x05" + rows[1:]),
    "filter 255": stream(lambda rows: rows[: 7 * ROW] + b"\xff" + rows[7 * ROW + 1 :]),
    "a byte too few": stream(lambda rows: rows[:-1]),
    "a byte too many": stream(lambda rows: rows + b"\0"),
    "a row too many": stream(lambda rows: rows + bytes(ROW)),
    "checksum of the stream": stream(close=lambda data: data[:-4] + b"\0\0\0\0"),
    "checksum of the stream missing": stream(close=lambda data: data[:-4]),
    "checksum of the stream cut": stream(close=lambda data: data[:-1]),
    "method": stream(close=lambda data: b"\x77\xe6" + data[2:]),
    "window too large": stream(close=lambda data: b"\x88\x1c" + data[2:]),
    "dictionary": stream(close=lambda data: b"\x78\xbb" + data[2:]),
    "check of the stream's header": stream(close=lambda data: b"\x78\x00" + data[2:]),
    "block of the fourth kind": stream(close=lambda data: b"\x78\x01\x07" + data[3:]),
    "stored block cut": stream(close=lambda data: stored(bytes(30 * ROW), 29 * ROW)),
    "length of a stored block": stream(close=lambda data: data[:3] + b"\0\0" + data[5:], level=0),
    "a distance before the beginning": stream(close=lambda data: b"\x78\x01\x03\x02\0\0"),
    "287 literals": stream(close=lambda data: DYNAMIC[:2] + b"\xfd" + bytes(80)),
    "31 distances": stream(close=lambda data: DYNAMIC + b"\x1e" + bytes(80)),
    "lengths without a code": stream(close=lambda data: DYNAMIC + bytes(80)),
    "codes of ones": stream(close=lambda data: DYNAMIC + b"\xff" * 80),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_what_is_not_decoded(name: str, mode: str) -> None:
    assert decode_all([REFUSED[name]], SIZE, mode=mode) == [None]


def test_files_of_another_size_are_not_decoded() -> None:
    assert decode_all([made()], (41, 30)) == [None]
    assert decode_all([made()], (40, 31)) == [None]
    assert compare(made(), SIZE)


def test_what_lies_about_the_pixels_does_not_matter() -> None:
    """Other chunks, empty ones with pixels, and what follows the end."""
    about = [chunk(b"gAMA", bytes(4)), chunk(b"tIME", bytes(7))]
    exif = chunk(b"eXIf", EXIF.replace(b"\x06", b"\x01"))
    pixels = [part for piece in MANY for part in (piece, chunk(b"IDAT", b""))]
    data = with_chunks(HEAD, *about, *pixels, exif, chunk(b"tEXt", b"title\0none"), END) + b"more"
    assert compare(data, SIZE)


def test_rows_below_a_part_are_not_decoded() -> None:
    """A fault in them is found where the image is decoded to its end."""
    data = stream(lambda rows: rows[: 28 * ROW] + b"\x09" + rows[28 * ROW + 1 :])
    assert decode_all([data], SIZE) == [None]
    assert decode_all([data], SIZE, (3, 4, 20, 30))[0] is not None


@pytest.mark.parametrize("color", [0, 2, 6])
@pytest.mark.parametrize("interlaced", [False, True])
def test_lines_longer_than_what_is_kept(color: int, interlaced: bool) -> None:
    size = (60_000, 9)
    recipe = Recipe(color, 8, interlaced, (4, 3, 2, 1, 4, 4, 4, 4), 1 << 14)
    data = write_png(stored_values(np.random.default_rng(3), *size, color, 8), recipe)
    assert compare(data, size)
    assert compare(data, size, window=(2, 59_000, 7, 59_999))


def test_the_widest_image_that_is_decoded() -> None:
    for width, is_decoded in ((1 << 17, True), ((1 << 17) + 1, False)):
        recipe = Recipe(0, 8, filters=(2,))
        data = write_png(np.full((3, width, 1), 200), recipe)
        assert compare(data, (width, 3)) == is_decoded


def test_a_set_of_pngs_needs_nothing_but_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Crops of them are those of the same pixels, stored as they are."""
    arrays = [np.asarray(photo(number, 90, 70)) for number in range(6)]
    options: dict[str, Any] = {"workers": 1, "shuffle": False, "progress": False}
    gpuload.pack([{"image": array} for array in arrays], tmp_path / "raw", encode="raw", **options)
    files = [{"image": encode(Image.fromarray(array), "PNG")} for array in arrays]
    gpuload.pack(files, tmp_path / "png", **options)
    monkeypatch.setattr("gpuload.decode.native.images.decode_pixels", lambda *_: pytest.fail("by Pillow"))
    batches = []
    for name in ("raw", "png"):
        with load(tmp_path / name / "train", 3, decoder="native", augment=Augment(48), fields=("image",)) as loader:
            batches.append(np.concatenate([images.numpy() for (images,) in loader]))
    np.testing.assert_array_equal(*batches)
