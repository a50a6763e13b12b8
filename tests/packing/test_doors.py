"""An image means the same whichever way it comes: as a path, bytes or PIL image, packed or read in place, in each mode and
by both decoders. What it means is computed here from the numbers that were written."""

import io
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import encode, photo
from loaders import load
from PIL import Image
from reading import rejected_of, rows_of
from tars import write_tar

import gpuload
from gpuload import Augment
from gpuload.cli import main
from gpuload.types import Array

SIDE = 24
WIDE = np.asarray(photo(3, SIDE, SIDE))
GRAY = np.asarray(photo(4, SIDE, SIDE).convert("L"))
ALPHA = np.asarray(Image.linear_gradient("L").resize((SIDE, SIDE)))
DEEP = GRAY.astype(np.uint16) * 250 + 77
FLOATS = (GRAY / 255).astype(np.float32)
ORIENTED = Image.Exif()
ORIENTED[274] = 6
MODES = ("RGB", "L", "RGBA", "I;16", "F")
DOORS = ("path", "bytes", "opened", "loaded")


def png(depth: int, color: int, rows: Array, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG of these rows of bytes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    pixels = b"".join(b"\0" + row.tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", SIDE, SIDE, depth, color, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(pixels)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def over_white(colors: Array, alpha: Array) -> Array:
    share = alpha[..., None] / 255
    bands = colors if colors.ndim == 3 else colors[..., None]
    return np.broadcast_to(bands * share + 255 * (1 - share), (SIDE, SIDE, 3))


def as_rgb(levels: Array) -> Array:
    return np.repeat(levels[..., None], 3, axis=2)


TWO_BITS = GRAY >> 6
PACKED_TWO = TWO_BITS.reshape(SIDE, -1, 4) @ np.array([64, 16, 4, 1])
FOUR_BITS = GRAY >> 4
PACKED_FOUR = FOUR_BITS.reshape(SIDE, -1, 2) @ np.array([16, 1])
WIDE_KEY = WIDE[9, 9].astype(np.uint16)
ONE_BIT = GRAY > 100
PALETTE = Image.fromarray(WIDE).quantize(16)
SHOWN = np.asarray(PALETTE.convert("RGB"))
HOLE = np.where(np.asarray(PALETTE) == 2, 0, 255)

# The file, its extension in a tar, and the RGB that it means.
FILES: dict[str, tuple[bytes, str, Array]] = {
    "gray": (encode(Image.fromarray(GRAY), "PNG"), "png", as_rgb(GRAY)),
    "colours": (encode(Image.fromarray(WIDE), "PNG"), "png", WIDE),
    "colours, alpha": (
        encode(Image.fromarray(np.dstack([WIDE, ALPHA])), "PNG"), "png", over_white(WIDE, ALPHA),
    ),
    "colours, alpha, WebP": (
        encode(Image.fromarray(np.dstack([WIDE, ALPHA])), "WEBP", lossless=True, exact=True), "webp",
        over_white(WIDE, ALPHA),
    ),
    "gray, alpha": (encode(Image.fromarray(np.dstack([GRAY, ALPHA])), "PNG"), "png", over_white(GRAY, ALPHA)),
    "palette": (encode(PALETTE, "PNG"), "png", SHOWN),
    "palette with a hole": (encode(PALETTE, "PNG", transparency=2), "png", over_white(SHOWN, HOLE)),
    "one bit": (encode(Image.fromarray(ONE_BIT), "PNG"), "png", as_rgb(ONE_BIT * 255)),
    "one bit, white transparent": (
        png(1, 0, np.packbits(ONE_BIT, axis=1), (b"tRNS", b"\0\0")), "png", np.full((SIDE, SIDE, 3), 255),
    ),
    "two bits, one transparent": (
        png(2, 0, PACKED_TWO.astype(np.uint8), (b"tRNS", b"\0\1")), "png",
        as_rgb(np.where(TWO_BITS == 1, 255, TWO_BITS * 85)),
    ),
    "four bits, one transparent": (
        png(4, 0, PACKED_FOUR.astype(np.uint8), (b"tRNS", struct.pack(">H", FOUR_BITS[9, 9]))), "png",
        as_rgb(np.where(FOUR_BITS[9, 9] == FOUR_BITS, 255, FOUR_BITS * 17)),
    ),
    "colours of 16 bits, one transparent": (
        png(16, 2, (WIDE.astype(">u2") * 257).astype(">u2"), (b"tRNS", struct.pack(">3H", *WIDE_KEY * 257))), "png",
        np.where((WIDE == WIDE_KEY).all(axis=2, keepdims=True), 255, WIDE),
    ),
    "gray of 16 bits": (encode(Image.fromarray(DEEP), "PNG"), "png", as_rgb(DEEP / 257)),
    "gray of 16 bits, one transparent": (
        png(16, 0, DEEP.astype(">u2"), (b"tRNS", struct.pack(">H", DEEP[20, 20]))), "png",
        as_rgb(np.where(DEEP[20, 20] == DEEP, 255, DEEP / 257)),
    ),
    "colours of 16 bits": (png(16, 2, (WIDE.astype(">u2") * 257).astype(">u2")), "png", WIDE),
    "gray of 16 bits, TIFF": (encode(Image.fromarray(DEEP), "TIFF"), "tif", as_rgb(DEEP / 257)),
    "floats, TIFF": (encode(Image.fromarray(FLOATS), "TIFF"), "tif", as_rgb(GRAY)),
    "CMYK, TIFF": (
        encode(Image.fromarray(np.dstack([255 - WIDE, 0 * GRAY]), "CMYK"), "TIFF"), "tif", WIDE,
    ),
    "turned": (encode(Image.fromarray(WIDE), "PNG", exif=ORIENTED), "png", np.rot90(WIDE, -1)),
    "turned TIFF": (encode(Image.fromarray(WIDE), "TIFF", exif=ORIENTED), "tif", np.rot90(WIDE, -1)),
}  # fmt: skip


def is_lost(name: str, mode: str) -> bool:
    """Whether Pillow does not tell any more, once the file is loaded, what its values mean in the mode."""
    _, extension, _ = FILES.get(name, (b"", "", None))
    if name in ("two bits, one transparent", "four bits, one transparent", "colours of 16 bits, one transparent"):
        return True
    return mode in ("I;16", "F") and extension == "png" and name != "one bit" and "of 16" not in name


# Loaded floats decide together whether they are levels, so that those beyond 1 are a set of their own.
SETS = {
    "each kind": {name: data for name, (data, *_) in FILES.items()},
    "floats of a range": {
        "colours, alpha": FILES["colours, alpha"][0],
        "gray of 16 bits": FILES["gray of 16 bits"][0],
        "floats of a range": encode(Image.fromarray(FLOATS * 9), "TIFF"),
    },
}


def through(door: str, data: bytes, path: Path) -> Any:
    """An image as it comes through a door. path: where a file may be written."""
    if door == "bytes":
        return data
    if door == "path":
        path.write_bytes(data)
        return str(path)
    image = Image.open(io.BytesIO(data))
    if door == "loaded":
        image.load()
    return image


def pack(folder: Path, images: Mapping[str, Any], mode: str) -> Path:
    samples = [{"image": image, "name": name} for name, image in images.items()]
    encode_as = "raw" if mode == "F" else "keep"
    options: dict[str, Any] = {"mode": mode, "lossless": mode != "F", "encode": encode_as, "shuffle": False}
    gpuload.pack(samples, folder, workers=1, progress=False, **options)
    return folder / "train"


def pixels_of(folder: Path, decoder: str) -> dict[str, Array]:
    """The pixels of each sample as a loader gives them, (height, width, channels), by name."""
    mode = gpuload.Dataset(folder).manifest.pixels.mode
    constants: dict[str, Any] = {"dtype": "uint8"} if mode in ("RGB", "L", "RGBA") else {"normalize": None}
    augment = Augment(SIDE, crop="none", flip=0, **constants)
    options: dict[str, Any] = {"fields": ("image", "index"), "shuffle": False, "drop_last": False}
    with load(folder, 4, augment=augment, decoder=decoder, **options) as loader:
        rows = [(int(row), image) for images, rows, *_ in loader for row, image in zip(rows, images, strict=True)]
    sources = sources_of(folder)
    return {sources[row]: image.numpy().transpose(1, 2, 0) for row, image in rows}


def sources_of(folder: Path) -> list[str]:
    return [row["source"] for row in rows_of(folder)]


def outcome(folder: Path, decoder: str) -> dict[str, Any]:
    """The pixels of each image, or the reason why there are none."""
    return pixels_of(folder, decoder) | rejected_of(folder)


@pytest.mark.parametrize("images", SETS.values(), ids=SETS)
@pytest.mark.parametrize("mode", MODES)
def test_every_door_gives_the_same_pixels(tmp_path: Path, mode: str, images: Mapping[str, bytes]) -> None:
    """Or the same reason; and the same by both decoders."""
    outcomes = {}
    for door in DOORS:
        (tmp_path / door).mkdir()
        inputs = {name: through(door, data, tmp_path / door / f"{n}") for n, (name, data) in enumerate(images.items())}
        folder = pack(tmp_path / f"{door}-packed", inputs, mode)
        outcomes[door] = outcome(folder, "native")
        dali = outcome(folder, "dali")
        for name, pixels in outcomes[door].items():
            np.testing.assert_array_equal(dali[name], pixels, err_msg=f"{door} {name}")
    expected = outcomes.pop("bytes")
    assert expected.keys() == images.keys()
    for door, found in outcomes.items():
        assert found.keys() == expected.keys(), door
        for name, pixels in found.items():
            if door == "loaded" and is_lost(name, mode):
                assert isinstance(pixels, str), name
            elif isinstance(expected[name], str):
                assert isinstance(pixels, str), (door, name)
            else:
                np.testing.assert_array_equal(pixels, expected[name], err_msg=f"{door} {name}")


def test_rgb_is_what_the_numbers_say(tmp_path: Path) -> None:
    folder = pack(tmp_path / "packed", {name: data for name, (data, *_) in FILES.items()}, "RGB")
    decoded = pixels_of(folder, "native")
    samples = gpuload.Dataset(folder)
    assert sources_of(folder) == [*FILES]
    for row, (name, (_, _, wanted)) in enumerate(FILES.items()):
        assert np.abs(decoded[name] - wanted).max() <= 1.01, name
        assert np.abs(np.asarray(samples[row]["image"].convert("RGB")) - wanted).max() <= 1.01, name


def test_shards_read_in_place_mean_the_same(tmp_path: Path) -> None:
    """By both decoders, and as a single sample."""
    in_place = {name: file for name, file in FILES.items() if name != "colours of 16 bits, one transparent"}
    members = {}
    for number, (data, extension, _) in enumerate(in_place.values()):
        members[f"{number:02d}.{extension}"] = data
    write_tar(tmp_path / "x.tar", members)
    assert main(["index", str(tmp_path / "x.tar")]) == 0
    samples = gpuload.Dataset(tmp_path)
    by_decoder = {decoder: pixels_of(tmp_path, decoder) for decoder in ("native", "dali")}
    for row, (name, (_, extension, wanted)) in enumerate(in_place.items()):
        source = f"x.tar/{row:02d}.{extension}"
        for decoder, found in by_decoder.items():
            assert np.abs(found[source] - wanted).max() <= 1.01, (decoder, name)
        np.testing.assert_array_equal(by_decoder["native"][source], by_decoder["dali"][source], err_msg=name)
        np.testing.assert_array_equal(np.asarray(samples[row]["image"].convert("RGB")), by_decoder["native"][source])


def test_an_opened_file_is_stored_as_it_is(tmp_path: Path) -> None:
    """As torchvision's and Hugging Face's data sets give it; a copy, which may have been changed, is not."""
    data = encode(photo(1, 64, 48))
    opened = Image.open(io.BytesIO(data))
    loaded = Image.open(io.BytesIO(data))
    loaded.load()
    turned = Image.open(io.BytesIO(data)).rotate(90)
    report = gpuload.pack(
        ({"image": image} for image in (opened, loaded, turned)), tmp_path, workers=1, progress=False, shuffle=False
    )
    assert report.kinds == {"kept": 1, "ppm": 2}
    assert opened.fp is not None  # the caller's file is not closed


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("form", ["PNG", "WEBP"])
def test_a_damaged_exif_rejects_that_image_alone(tmp_path: Path, form: str, door: str) -> None:
    """Whatever Pillow raises, and wherever it does: here while the rows of a program are read."""
    file = io.BytesIO()
    Image.fromarray(GRAY).convert("RGB").save(file, form, exif=b"Exif\0\0no TIFF at all")
    bad = through(door, file.getvalue(), tmp_path / f"bad.{form.lower()}")
    folder = pack(tmp_path / "packed", {"good": Image.fromarray(GRAY), "bad": bad}, "RGB")
    (reason,) = rejected_of(folder).values()
    assert reason.startswith("cannot be decoded: not a TIFF file")


@pytest.mark.parametrize(
    ("numbers", "options"),
    [
        (GRAY.astype(np.int8), {}),
        (DEEP, {"photometric": "miniswhite"}),
        (DEEP >> 4, {"bitspersample": 12}),
        (DEEP.astype(np.uint32) << 16, {}),
        (np.stack([DEEP] * 3), {"photometric": "rgb", "planarconfig": "separate"}),
    ],
)
def test_what_pillow_has_read_wrong_is_refused(tmp_path: Path, numbers: Array, options: dict[str, Any]) -> None:
    """Once it is loaded: of these the file alone tells what they are."""
    tifffile = pytest.importorskip("tifffile", reason="needs the extra 'codecs'")
    file = io.BytesIO()
    tifffile.imwrite(file, numbers, **{"photometric": "minisblack", **options})
    loaded = Image.open(file)
    loaded.load()
    folder = pack(tmp_path / "packed", {"good": Image.fromarray(GRAY), "bad": loaded}, "RGB")
    (reason,) = rejected_of(folder).values()
    assert "was loaded by Pillow from a TIFF that it reads wrong; give the path or bytes" in reason


@pytest.mark.parametrize("mode", ["RGB", "I;16"])
def test_a_loaded_jpeg_2000_is_refused_unless_it_is_gray_of_8_bits(tmp_path: Path, mode: str) -> None:
    """Pillow turns the white of more than 8 bits into black, and keeps no word of the bits."""
    imagecodecs = pytest.importorskip("imagecodecs", reason="needs the extra 'codecs'")
    numbers = DEEP if mode == "I;16" else (WIDE.astype(np.uint16) * 257)
    pictures = {"gray": encode(Image.fromarray(GRAY), "JPEG2000"), "deep": imagecodecs.jpeg2k_encode(numbers, level=0)}
    loaded = {name: through("loaded", data, tmp_path / name) for name, data in pictures.items()}
    assert loaded["deep"].mode == mode
    folder = pack(tmp_path / "packed", loaded, "RGB")
    assert sources_of(folder) == ["gray"]
    (reason,) = rejected_of(folder).values()
    assert "was loaded by Pillow from a JPEG 2000, of which it keeps no depth" in reason
    by_bytes = pixels_of(pack(tmp_path / "bytes", pictures, "RGB"), "native")
    wanted = as_rgb(DEEP / 257) if mode == "I;16" else WIDE
    assert np.abs(by_bytes["deep"] - wanted).max() <= 1.01


@pytest.mark.parametrize(
    ("kind", "mode", "reason"),
    [
        ("unknown band", "RGB", "TIFF with bands of unknown meaning, or a page that is not its image"),
        ("thumbnail", "RGB", "TIFF with bands of unknown meaning, or a page that is not its image"),
        ("inks of 16 bits", "RGB", "from a TIFF that it reads wrong"),
        ("big-endian floats", "F", "from a TIFF that it reads wrong"),
        ("gray of 4 bits", "F", "from a TIFF that it reads wrong"),
        ("two colours", "RGB", "from a BMP that it reads wrong"),
        ("peak of 1,023", "I;16", "with no word of how many bits its values had"),
        ("colours of 16 bits", "float32x3", "with no word of how many bits its values had"),
    ],
)
def test_a_loaded_file_that_says_more_is_refused(tmp_path: Path, kind: str, mode: str, reason: str) -> None:
    """Where Pillow has not kept what the path or the bytes would tell."""
    tifffile = pytest.importorskip("tifffile", reason="needs the extra 'codecs'")

    def tiff(*pages: tuple[Array, dict[str, Any]], byteorder: str = "<") -> bytes:
        file = io.BytesIO()
        with tifffile.TiffWriter(file, byteorder=byteorder) as writer:
            for numbers, options in pages:
                writer.write(numbers, **options)
        return file.getvalue()

    inks = np.dstack([255 - WIDE, 0 * GRAY]).astype(np.uint16) * 257
    pages: dict[str, list[tuple[Array, dict[str, Any]]]] = {
        "unknown band": [(np.dstack([WIDE, ALPHA]), {"photometric": "rgb", "extrasamples": ["unspecified"]})],
        "thumbnail": [
            (WIDE[::3, ::3].copy(), {"photometric": "rgb", "subfiletype": 1}),
            (WIDE, {"photometric": "rgb"}),
        ],
        "inks of 16 bits": [(inks, {"photometric": "separated"})],
        "gray of 4 bits": [(FOUR_BITS, {"photometric": "minisblack", "bitspersample": 4})],
    }
    if kind in pages:
        data = tiff(*pages[kind])
    elif kind == "big-endian floats":
        data = tiff((FLOATS, {"photometric": "minisblack", "compression": "zlib"}), byteorder=">")
    elif kind == "two colours":
        data = encode(Image.fromarray(ONE_BIT), "BMP")
    elif kind == "peak of 1,023":
        data = b"P5 24 24 1023\n" + (DEEP >> 6).astype(">u2").tobytes()
    else:
        data = FILES[kind][0]
    loaded = through("loaded", data, tmp_path)
    size = 3 if mode == "float32x3" else 1
    good = np.zeros((SIDE, SIDE, size), np.float32) if mode in ("F", "float32x3") else Image.fromarray(GRAY)
    if mode == "I;16":
        good = Image.fromarray(DEEP)
    options: dict[str, Any] = {"mode": mode, "encode": "keep" if mode in ("RGB", "I;16") else "raw"}
    gpuload.pack([{"image": good}, {"image": loaded}], tmp_path / "out", workers=1, progress=False, **options)
    (told,) = rejected_of(tmp_path / "out" / "train").values()
    assert reason in told and "give the path or bytes of the file" in told


def test_an_empty_alpha_of_a_loaded_bmp_is_none(tmp_path: Path) -> None:
    head = b"BM" + struct.pack("<IHHI", 138 + SIDE * SIDE * 4, 0, 0, 138)
    about = struct.pack("<IiiHHIIiiII", 124, SIDE, SIDE, 1, 32, 3, SIDE * SIDE * 4, 0, 0, 0, 0)
    masks = struct.pack("<IIII", 0xFF0000, 0xFF00, 0xFF, 0xFF000000) + bytes(68)
    rows = np.dstack([WIDE[..., ::-1], 0 * GRAY])[::-1].tobytes()
    loaded = through("loaded", head + about + masks + rows, tmp_path)
    assert loaded.mode == "RGBA"
    pixels = pixels_of(pack(tmp_path / "packed", {"red": loaded}, "RGB"), "native")
    np.testing.assert_array_equal(pixels["red"], WIDE)


def test_a_level_that_no_pixel_has_decides_nothing(tmp_path: Path) -> None:
    """Gray of multiples of 17 with a transparent level of 8 bits, as of a mask, is taken as it is."""
    levels = np.where(ONE_BIT, 255, 0).astype(np.uint8)
    loaded = through("loaded", encode(Image.fromarray(levels), "PNG", transparency=7), tmp_path)
    pixels = pixels_of(pack(tmp_path / "packed", {"plain": loaded}, "RGB"), "native")
    np.testing.assert_array_equal(pixels["plain"], as_rgb(levels))


def test_arrays_in_files_are_as_in_programs(tmp_path: Path) -> None:
    """Floats in 0..1, and channels first."""
    arrays = {"floats": WIDE / 255, "first": WIDE.transpose(2, 0, 1), "plain": WIDE}
    paths = {}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
        paths[name] = str(tmp_path / f"{name}.npy")
    for door, images in (("arrays", arrays), ("paths", paths)):
        decoded = pixels_of(pack(tmp_path / door, images, "RGB"), "native")
        for name in arrays:
            np.testing.assert_array_equal(decoded[name], WIDE, err_msg=f"{door} {name}")


def test_pil_images_are_counted_and_keep_their_profiles(tmp_path: Path) -> None:
    """Loaded, so that there is no file to store."""
    profile = b"\0" * 16 + b"RGB " + bytes(200)
    colors = Image.fromarray(WIDE)
    colors.info["icc_profile"] = profile
    deep = Image.fromarray(DEEP)
    images = [{"image": colors}, {"image": deep}]
    report = gpuload.pack(images, tmp_path, mode="RGB", workers=1, progress=False, shuffle=False, lossless=True)
    assert any(note.startswith("16 bits → 8: 1;") for note in report.notes)
    first, second = (Image.open(io.BytesIO(row["image"])) for row in rows_of(tmp_path / "train"))
    assert first.info["icc_profile"] == profile and "icc_profile" not in second.info
    np.testing.assert_array_equal(np.asarray(first), WIDE)
