"""Files that Pillow reads wrong, or only in part: their pixels are the numbers that were written, or they are refused by
name. tifffile, imagecodecs and OpenCV wrote or read them as second opinions."""

import io
import re
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import encode, photo, write_files
from PIL import Image, ImageCms
from reading import rejected_of, rows_of
from tars import write_tar

import gpuload
from gpuload import cli
from gpuload.formats import Conversion
from gpuload.packing.image import prepare_image
from gpuload.packing.index import index_shards
from gpuload.packing.options import Encoding
from gpuload.pictures import decode_image
from gpuload.types import Array

tifffile = pytest.importorskip("tifffile", reason="needs the extra 'codecs'")
imagecodecs = pytest.importorskip("imagecodecs", reason="needs the extra 'codecs'")

WIDTH = 48
HEIGHT = 32
RAMP = np.linspace(0, 65_535, WIDTH * HEIGHT).reshape(HEIGHT, WIDTH).astype(np.uint16)
COLORS = np.stack([RAMP, RAMP[::-1], RAMP[:, ::-1]], axis=2)
COLORS8 = (COLORS >> 8).astype(np.uint8)
LEVELS = (RAMP >> 8).astype(np.uint8)
BANDS = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 13)).astype(np.uint8)


def tiff(numbers: Array, **options: Any) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, numbers, **options)
    return file.getvalue()


def pages(*parts: tuple[Array, dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    with tifffile.TiffWriter(file) as writer:
        for numbers, options in parts:
            writer.write(numbers, **options)
    return file.getvalue()


def pixels(data: bytes, mode: str, **options: Any) -> Array:
    stored = prepare_image(data, encoding=Encoding("raw", mode=mode, **options))
    found: Array = np.load(io.BytesIO(stored.data))
    return found


def as_levels(numbers: Array, peak: int) -> Array:
    levels = numbers.astype(np.float64) * 255 / peak
    return np.repeat(levels[..., None], 3, axis=2) if levels.ndim == 2 else levels


def jpeg2000(numbers: Array, bits: int) -> bytes:
    data: bytes = imagecodecs.jpeg2k_encode(numbers, bitspersample=bits, reversible=True, level=0)
    return data


def bmp(indices: Array, bits: int, palette: list[tuple[int, int, int]]) -> bytes:
    colors = b"".join(bytes([blue, green, red, 0]) for red, green, blue in palette)
    packed = indices if bits == 8 else indices[:, ::2] << 4 | indices[:, 1::2]
    rows = packed.astype(np.uint8)[::-1].tobytes()
    begin = 54 + len(colors)
    head = struct.pack("<IHHI", begin + len(rows), 0, 0, begin)
    about = struct.pack("<IiiHHIIiiII", 40, WIDTH, HEIGHT, 1, bits, 0, len(rows), 0, 0, len(palette), 0)
    return b"BM" + head + about + colors + rows


def png_of_2_bits(numbers: Array) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    packed = (numbers.reshape(HEIGHT, -1, 4) @ np.array([64, 16, 4, 1])).astype(np.uint8)
    rows = b"".join(b"\0" + row.tobytes() for row in packed)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, 2, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


BLACK_OR_WHITE = (RAMP > 30_000).astype(np.uint8)
TWO = [(0, 0, 0), (255, 255, 255)]
SIXTEEN_GRAYS = [(n, n, n) for n in range(16)]

# What is read: the file, its mode, and the numbers in it.
RIGHT: dict[str, tuple[bytes, str, Array]] = {
    "planar TIFF of 16 bits": (
        tiff(COLORS.transpose(2, 0, 1), photometric="rgb", planarconfig="separate"), "uint16x3", COLORS,
    ),
    "planar TIFF of 16 bits as RGB": (
        tiff(COLORS.transpose(2, 0, 1), photometric="rgb", planarconfig="separate"), "RGB", as_levels(COLORS, 65_535),
    ),
    "TIFF of 16-bit colours": (tiff(COLORS, photometric="rgb", compression="zlib"), "uint16x3", COLORS),
    "PNG of 16-bit colours": (imagecodecs.png_encode(COLORS), "uint16x3", COLORS),
    "PNG of 16-bit colours and alpha": (
        imagecodecs.png_encode(np.dstack([COLORS, RAMP])), "uint16x4", np.dstack([COLORS, RAMP]),
    ),
    "TIFF of 12 bits": (
        tiff(RAMP >> 4, bitspersample=12, photometric="minisblack"), "RGB", as_levels(RAMP >> 4, 4095),
    ),
    "TIFF of 12 bits, I;16": (tiff(RAMP >> 4, bitspersample=12, photometric="minisblack"), "I;16", RAMP >> 4),
    "white is zero, 16 bits": (tiff(RAMP, photometric="miniswhite"), "RGB", as_levels(65_535 - RAMP, 65_535)),
    "white is zero, 8 bits": (tiff(LEVELS, photometric="miniswhite"), "RGB", as_levels(255 - LEVELS, 255)),
    "int8": (tiff((LEVELS.astype(int) - 128).astype(np.int8)), "F", LEVELS.astype(float) - 128),
    "int16": (tiff((RAMP.astype(int) - 9_000).clip(-9_000, 9_000).astype(np.int16)), "F",
              (RAMP.astype(int) - 9_000).clip(-9_000, 9_000)),
    "int16, big-endian, deflated": (
        tiff((RAMP >> 2).astype(np.int16), byteorder=">", compression="zlib"), "F", RAMP >> 2,
    ),
    "float32, big-endian, LZW": (
        tiff((RAMP / 7).astype(np.float32), byteorder=">", compression="lzw"), "F", (RAMP / 7).astype(np.float32),
    ),
    "uint32, big-endian": (tiff(RAMP.astype(np.uint32), byteorder=">"), "F", RAMP),
    "TIFF of 4 bits, F": (tiff((RAMP >> 12).astype(np.uint8), bitspersample=4, photometric="minisblack"), "F", RAMP >> 12),
    "PNG of 2 bits, I;16": (png_of_2_bits(RAMP >> 14), "I;16", RAMP >> 14),
    "PGM of 100, F": (b"P5 48 32 100\n" + (RAMP // 660).astype(np.uint8).tobytes(), "F", RAMP // 660),
    "JPEG 2000 of 16-bit colours": (jpeg2000(COLORS, 16), "RGB", as_levels(COLORS, 65_535)),
    "JPEG 2000 of 12-bit colours": (jpeg2000(COLORS >> 4, 12), "uint16x3", COLORS >> 4),
    "JPEG 2000 of 12 bits": (jpeg2000(RAMP >> 4, 12), "I;16", RAMP >> 4),
    "JPEG 2000 with a sign": (
        imagecodecs.jpeg2k_encode((RAMP.astype(int) - 32_768).astype(np.int16), reversible=True, level=0), "F",
        RAMP.astype(float) - 32_768,
    ),
    "JPEG of 12 bits": (
        imagecodecs.jpeg_encode(RAMP >> 4, bitspersample=12, level=100), "RGB", as_levels(RAMP >> 4, 4095),
    ),
    "JPEG of 16 bits, lossless": (imagecodecs.jpeg_encode(RAMP, lossless=True, bitspersample=16), "I;16", RAMP),
    "PGM of 1,023": (
        b"P5\n# a comment\n48 32\n1023\n" + (RAMP >> 6).astype(">u2").tobytes(), "I;16", RAMP >> 6,
    ),
    "PGM of 1,023 as RGB": (
        b"P5 48 32 1023\n" + (RAMP >> 6).astype(">u2").tobytes(), "RGB", as_levels(RAMP >> 6, 1023),
    ),
    "BMP of 8 bits, black and white": (bmp(BLACK_OR_WHITE, 8, TWO), "RGB", as_levels(BLACK_OR_WHITE, 1)),
    "BMP of 4 bits, black and white": (bmp(BLACK_OR_WHITE, 4, TWO), "RGB", as_levels(BLACK_OR_WHITE, 1)),
    "BMP of 4 bits, grays": (bmp(RAMP >> 12, 4, SIXTEEN_GRAYS), "L", RAMP >> 12),
    "13 bands": (tiff(BANDS, photometric="minisblack", planarconfig="contig"), "uint8x13", BANDS),
    "13 planes": (
        tiff(BANDS.transpose(2, 0, 1), photometric="minisblack", planarconfig="separate"), "uint8x13", BANDS,
    ),
    **{
        f"TIFF compressed by {codec}": (
            tiff(COLORS, photometric="rgb", compression=codec, compressionargs=exactly), "RGB",
            as_levels(COLORS, 65_535),
        )
        for codec, exactly in (("lerc", {"level": 0}), ("jpegxl", {"lossless": True}), ("jpeg2000", {"reversible": True}))
    },
    "TIFF compressed by WebP": (
        tiff(COLORS8, photometric="rgb", compression="webp", compressionargs={"lossless": True}), "RGB", COLORS8,
    ),
    "3 bands that are called gray and two more": (
        tiff(COLORS, photometric="minisblack", planarconfig="contig"), "RGB", as_levels(COLORS, 65_535),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_pixels_are_the_numbers_that_were_written(name: str) -> None:
    data, mode, wanted = RIGHT[name]
    read = pixels(data, mode).astype(float)
    bands = wanted if wanted.ndim == 3 else wanted[..., None]
    assert read.shape == bands.shape
    assert np.abs(read - bands).max() <= (1.01 if mode == "RGB" else 0)


@pytest.mark.parametrize("name", ["BMP of 8 bits, black and white", "BMP of 4 bits, grays"])
def test_opencv_agrees_on_bmp(name: str) -> None:
    cv2 = pytest.importorskip("cv2", reason="needs OpenCV")
    seen = cv2.imdecode(np.frombuffer(RIGHT[name][0], np.uint8), cv2.IMREAD_GRAYSCALE)
    np.testing.assert_array_equal(pixels(RIGHT[name][0], "L")[..., 0], seen)


THUMBNAIL = {"subfiletype": 1, "photometric": "minisblack"}
FULL = {"photometric": "minisblack"}
RAW = {"photometric": "cfa"}
DNG = [(50_706, "B", 4, (1, 4, 0, 0), True)]
AVIF = encode(photo(), "AVIF")
FITS = b"".join(
    f"{card:80}".encode()
    for card in ("SIMPLE  =                    T", "BITPIX  =                   16", "NAXIS   =                    2",
                 "NAXIS1  =                    3", "NAXIS2  =                    2", "END")
).ljust(2880) + bytes(2880)  # fmt: skip

REFUSED: dict[str, tuple[bytes, str, str]] = {
    "DNG": (
        pages((LEVELS[:8, :8], {**THUMBNAIL, "extratags": DNG, "subifds": 1}), (RAMP, RAW)), "RGB",
        "is a DNG, the values of a camera's sensor; develop it to TIFF",
    ),
    "NEF": (
        pages((LEVELS[:8, :8], {**THUMBNAIL, "extratags": [(271, "s", 0, "NIKON", True)], "subifds": 1}), (RAMP, RAW)),
        "RGB", "is a raw file of NIKON, the values of a camera's sensor",
    ),
    "FITS": (FITS, "RGB", "is a FITS file, and astropy is not installed|16-bit integers of unknown range"),
    "AVIF with a crop box": (
        AVIF.replace(b"\0\0\0\x14ispe", b"\0\0\0\x28clap" + bytes(32) + b"\0\0\0\x14ispe", 1), "RGB", "crop box",
    ),
    "int16 in RGB": (tiff(RAMP.astype(np.int16)), "RGB", "16-bit integers of unknown range"),
    "floats above 1": (tiff(RAMP.astype(np.float32)), "RGB", "floating-point numbers of unknown range"),
    "13 bands in RGB": (
        tiff(BANDS, photometric="minisblack", planarconfig="contig"), "RGB",
        "a TIFF of 13 bands of uint8, .* --mode uint8x13 --encode raw keeps all, --alpha drop leaves them out",
    ),
    "4 bands as GDAL writes them": (
        tiff(BANDS[..., :4], photometric="rgb", extrasamples=["unassalpha"]), "RGB",
        "near infrared: --mode RGBA keeps all, --alpha drop leaves them out, --alpha white",
    ),
    "4 bands, unspecified": (
        tiff(BANDS[..., :4], photometric="rgb", extrasamples=["unspecified"]), "RGB", "--mode RGBA keeps all",
    ),
    "2 bands": (
        tiff(BANDS[..., :2], photometric="minisblack", planarconfig="contig", extrasamples=["unspecified"]), "RGB",
        "--mode uint8x2 --encode raw keeps all",
    ),
    "no such page": (tiff(LEVELS), "RGB page", "has 1 pages or frames, and --page 3 counts from 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_called_by_its_name(name: str) -> None:
    data, mode, reason = REFUSED[name]
    options = {"page": 3} if mode.endswith("page") else {}
    with pytest.raises(gpuload.DecodeError, match=reason):
        pixels(data, mode.removesuffix(" page"), **options)


@pytest.mark.parametrize("package", ["imagecodecs", "tifffile"])
def test_without_the_codecs_the_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        gpuload.DecodeError, match=rf"is a planar TIFF of 3 bands of uint16.*{package} is not installed"
    ):
        pixels(RIGHT["planar TIFF of 16 bits"][0], "RGB")


def test_a_tiff_of_four_bands_has_the_meaning_that_is_asked_for() -> None:
    for extra in ("unassalpha", "unspecified"):
        data = tiff(BANDS[..., :4], photometric="rgb", extrasamples=[extra])
        np.testing.assert_array_equal(pixels(data, "RGBA"), BANDS[..., :4])
        np.testing.assert_array_equal(pixels(data, "RGB", alpha="drop"), BANDS[..., :3])
    alpha = BANDS[..., 3:4] / 255
    white = BANDS[..., :3] * alpha + 255 * (1 - alpha)
    data = tiff(BANDS[..., :4], photometric="rgb", extrasamples=["unassalpha"])
    assert np.abs(pixels(data, "RGB", alpha="white") - white).max() <= 1
    opaque = np.dstack([BANDS[..., :3], np.full_like(LEVELS, 255)])  # here all meanings agree
    data = tiff(opaque, photometric="rgb", extrasamples=["unassalpha"])
    np.testing.assert_array_equal(pixels(data, "RGB"), BANDS[..., :3])


@pytest.mark.parametrize("below", [False, True])
def test_the_full_image_is_packed_not_its_thumbnail(below: bool) -> None:
    first = {**THUMBNAIL, "subifds": 1} if below else THUMBNAIL
    data = pages((LEVELS[:8, :8], first), (LEVELS[:16, :16], THUMBNAIL if not below else FULL), (LEVELS, FULL))
    np.testing.assert_array_equal(pixels(data, "L")[..., 0], LEVELS)


def test_pages_and_frames() -> None:
    frames = [Image.fromarray(LEVELS), Image.fromarray(LEVELS[::-1].copy())]
    for name in ("TIFF", "GIF", "WEBP", "PNG"):
        options: dict[str, Any] = {"lossless": True} if name == "WEBP" else {}
        data = encode(frames[0].convert("RGB") if name == "WEBP" else frames[0], name, save_all=True,
                      append_images=[frames[1]], **options)  # fmt: skip
        np.testing.assert_array_equal(pixels(data, "L", page=1)[..., 0], LEVELS[::-1], err_msg=name)
        np.testing.assert_array_equal(pixels(data, "L", page=0)[..., 0], LEVELS)


def test_depth_says_which_value_is_white() -> None:
    data = imagecodecs.png_encode(RAMP >> 4)
    assert np.abs(pixels(data, "RGB", depth=12) - as_levels(RAMP >> 4, 4095)).max() <= 1
    colors = imagecodecs.png_encode(COLORS >> 4)
    assert np.abs(pixels(colors, "RGB", depth=12) - as_levels(COLORS >> 4, 4095)).max() <= 1
    with pytest.raises(gpuload.DecodeError, match=r"holds the value 65535, above 4095, the largest of --depth 12"):
        pixels(imagecodecs.png_encode(RAMP), "RGB", depth=12)


def test_the_summary_counts_what_was_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        "a/deep.png": imagecodecs.png_encode(RAMP),
        "a/dark.png": imagecodecs.png_encode(RAMP >> 4),
        "a/dark colours.png": imagecodecs.png_encode(COLORS >> 4),
        "b/pages.tif": pages((LEVELS, FULL), (LEVELS, FULL)),
        "b/bands.tif": tiff(BANDS[..., :4], photometric="rgb", extrasamples=["unspecified"]),
    }
    write_files(tmp_path / "in", files)
    words = ["pack", str(tmp_path / "in"), str(tmp_path / "out"), "--alpha", "drop", "--mode", "RGB", "--workers", "1"]
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    for note in (
        "16 bits → 8: 3;", "16 bits → 8: 2 of them use no value above 4,095", "give --depth 12",
        "pages or frames after the first are not packed: 1 have some, and --page packs another one",
        "bands dropped, as --alpha asks: of 1",
    ):  # fmt: skip
        assert note in said


def profile() -> bytes:
    """A colour profile other than sRGB: that with red and blue exchanged, by another name."""
    standard = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    red = standard.index(b"rXYZ")
    blue = standard.index(b"bXYZ")
    swapped = bytearray(standard)
    swapped[red : red + 4] = b"bXYZ"
    swapped[blue : blue + 4] = b"rXYZ"
    return bytes(swapped).replace("sRGB".encode("utf-16-be"), "BRGs".encode("utf-16-be")).replace(b"sRGB", b"BRGs")


def test_profiles_are_kept_or_applied() -> None:
    """With red and blue exchanged by the profile."""
    picture = photo(3)
    other = profile()
    for name in ("WEBP", "TIFF", "PNG"):
        options = {"exif": Image.Exif()} if name != "PNG" else {}
        data = encode(picture, name, icc_profile=other, **options)
        for encoding in (Encoding("jpeg"), Encoding("jpeg", lossless=True)):
            stored = prepare_image(data, encoding=encoding)
            assert Image.open(io.BytesIO(stored.data)).info["icc_profile"] == other, (name, encoding)
        raw = prepare_image(data, encoding=Encoding("raw"))
        assert any("colour profile" in remark and "--icc srgb" in remark for remark in raw.remarks)
        lossless = encode(picture, name, icc_profile=other, **({"lossless": True} if name == "WEBP" else {}))
        applied = pixels(lossless, "RGB", icc="srgb")
        assert np.abs(applied.astype(int) - np.asarray(picture)[..., ::-1]).max() <= 3
    kept = encode(picture, icc_profile=other)
    assert prepare_image(kept).data == kept
    changed = prepare_image(kept, encoding=Encoding(icc="srgb"))
    assert changed.kind == "jpeg-to-srgb" and "icc_profile" not in Image.open(io.BytesIO(changed.data)).info
    plain = encode(picture)
    assert prepare_image(plain, encoding=Encoding(icc="srgb")).data == plain


def test_a_profile_for_inks_is_not_stored_with_rgb() -> None:
    inks = b"\0" * 16 + b"CMYK" + bytes(200)
    stored = prepare_image(encode(photo().convert("CMYK"), "TIFF", icc_profile=inks))
    assert "icc_profile" not in Image.open(io.BytesIO(stored.data)).info


def halved(data: bytes) -> bytes:
    """A JPEG with half of its coded data, and an end."""
    begin = data.index(b"\xff\xda")
    return data[: begin + (len(data) - begin) // 2] + b"\xff\xd9"


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("form", ["baseline", "gray", "progressive", "4:4:4", "turned"])
def test_a_jpeg_with_half_its_data_is_rejected(form: str, measured: bool) -> None:
    image = photo(1, 400, 300)
    turn = Image.Exif()
    turn[274] = 6
    data = {
        "baseline": encode(image, quality=95),
        "gray": encode(image.convert("L"), quality=95),
        "progressive": encode(image, quality=95, progressive=True),
        "4:4:4": encode(image, quality=95, subsampling=0),
        "turned": encode(image, quality=95, exif=turn),
    }[form]
    prepare_image(data, measured)
    with pytest.raises(gpuload.DecodeError, match=r"is damaged \(.*\); --damaged keep packs it as it can be shown"):
        prepare_image(halved(data), measured)
    stored = prepare_image(halved(data), measured, Encoding(damaged="keep"))
    assert stored.kind == "jpeg-damaged" and any("--damaged keep" in remark for remark in stored.remarks)


def test_a_lossless_jpeg_is_not_read_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    """libjpeg-turbo reduces none, and simplejpeg, which looks for damage, writes beyond its memory if it is asked to."""
    simplejpeg = pytest.importorskip("simplejpeg", reason="needs the extra 'cpu'")
    asked: list[dict[str, Any]] = []

    def decode(data: bytes, colorspace: str, **options: Any) -> Array:
        asked.append(options)
        return simplejpeg_decode(data, colorspace, **options)

    simplejpeg_decode = simplejpeg.decode_jpeg
    monkeypatch.setattr(simplejpeg, "decode_jpeg", decode)
    lossless = imagecodecs.jpeg_encode(LEVELS, lossless=True)
    np.testing.assert_array_equal(pixels(lossless, "L"), LEVELS[..., None])
    prepare_image(encode(photo(1).convert("CMYK"), "JPEG"))
    assert asked[0] == {} and any(options.get("min_factor") == 8 for options in asked[1:])
    assert decode_image(lossless, Conversion(), 8).size == (WIDTH, HEIGHT)


def test_a_jpeg_that_ends_in_zeros_is_rejected() -> None:
    """As downloads leave it that reserve their space."""
    data = encode(photo(1, 400, 300), quality=95)
    with pytest.raises(gpuload.DecodeError, match=r"its last [\d,]+ bytes are zeros"):
        prepare_image(data[: len(data) // 2] + bytes(len(data) // 2 + 5_000))
    prepare_image(data + bytes(9_000))  # behind its end


def test_an_index_asks_the_same_question(tmp_path: Path) -> None:
    data = tiff(BANDS[..., :4], photometric="rgb", extrasamples=["unassalpha"])
    write_tar(tmp_path / "x.tar", {"1.tif": data})
    with pytest.raises(gpuload.ShardError, match=r"x\.tar: '1\.tif' is a TIFF of 4 bands.*pack --from tar"):
        index_shards([str(tmp_path / "x.tar")])


def test_a_table_and_paths_give_no_thumbnails(tmp_path: Path) -> None:
    """By a raw file's path, or under another name."""
    raw = REFUSED["NEF"][0]
    write_files(
        tmp_path,
        {
            "1.nef": raw,
            "2.tif": raw,
            "3.png": encode(photo(), "PNG"),
            "t.csv": b"file,label\n1.nef,a\n2.tif,a\n3.png,b\n",
        },
    )
    code = cli.main(
        ["pack", str(tmp_path), str(tmp_path / "out"), "--labels", str(tmp_path / "t.csv"), "--workers", "1"]
    )
    assert code == cli.REJECTED
    folder = tmp_path / "out" / "train"
    assert [row["source"] for row in rows_of(folder)] == ["3.png"]
    assert all(re.search("raw file of NIKON", reason) for reason in rejected_of(folder).values())
