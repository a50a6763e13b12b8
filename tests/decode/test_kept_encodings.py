"""Sets of mixed encodings: WebP, AVIF and TIFF beside JPEG and PNG, by both decoders to Pillow's pixels."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged import damage
from images import encode, photo
from loaders import load
from PIL import Image, ImageOps
from tars import members, write_tar

import gpuload
from gpuload import Augment
from gpuload.cli import main
from gpuload.decode.pillow import UndecodableError, decode_pixels
from gpuload.packing.image import prepare_image
from gpuload.packing.options import Encoding
from gpuload.packing.verify import verify

SIDE = 40
FORMATS = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp", "AVIF": "avif", "TIFF": "tif"}
OTHERS = ["WEBP", "AVIF", "TIFF"]
CUT: dict[str, tuple[str, dict[str, Any]]] = {
    "WebP": ("WEBP", {}),
    "WebP, lossless": ("WEBP", {"lossless": True}),
    "AVIF": ("AVIF", {}),
    "TIFF": ("TIFF", {}),
    "TIFF, LZW": ("TIFF", {"compression": "tiff_lzw"}),
    "TIFF, JPEG": ("TIFF", {"compression": "jpeg"}),
}
WHOLE = Augment(SIDE, crop="pad_or_crop", dtype="uint8")


@pytest.fixture(scope="module")
def files() -> list[tuple[str, bytes]]:
    """Two of each encoding, by the extension of its member."""
    return [
        (extension, encode(photo(number, SIDE, 30 + number), format))
        for number, (format, extension) in enumerate([*FORMATS.items()] * 2)
    ]


@pytest.fixture(scope="module")
def mixed(files: list[tuple[str, bytes]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = [{"image": data, "label": number % 2} for number, (_, data) in enumerate(files)]
    options: dict[str, Any] = {"keep": ("webp", "avif", "tiff"), "shuffle": False, "maxcount": 4, "workers": 1}
    gpuload.pack(samples, folder := tmp_path_factory.mktemp("mixed"), progress=False, **options)
    return folder / "train"


def by_key(folder: Path, decoder: str, **options: Any) -> dict[str, np.ndarray]:
    options = {"augment": WHOLE, "fields": ("image", "key"), "shuffle": False, "drop_last": False, **options}
    with load(folder, 4, decoder=decoder, **options) as loader:
        return {key: image.numpy() for images, keys, *_ in loader for key, image in zip(keys, images, strict=True)}


def pillows(data: bytes) -> np.ndarray:
    """As WHOLE makes it."""
    pixels = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    whole, (height, width) = np.zeros((SIDE, SIDE, 3), np.uint8), pixels.shape[:2]
    top, left = (SIDE - height) // 2, (SIDE - width) // 2
    whole[top : top + height, left : left + width] = pixels
    return whole.transpose(2, 0, 1)


def test_members_are_the_files_under_their_own_names(mixed: Path, files: list[tuple[str, bytes]]) -> None:
    found = {name: data for name, data in members(mixed).items() if not name.endswith(".cls")}
    assert sorted((name.rpartition(".")[2], data) for name, data in found.items()) == sorted(files)
    manifest = gpuload.Dataset(mixed).manifest
    assert manifest.fields[0].member == "avif;jpg;png;tif;webp" and manifest.version == 2
    assert manifest.pixels.is_rgb and manifest.packing["kept"] == len(files) and verify(mixed, workers=1) == []


@pytest.mark.parametrize("decoder", ["native", "dali", "both"])
def test_pixels_are_pillows_in_each_epoch(mixed: Path, decoder: str) -> None:
    """Also after one that was left: what Pillow decodes for DALI is made anew."""
    expected = {name.rpartition(".")[0]: pillows(data) for name, data in members(mixed).items() if name[-3:] != "cls"}
    with load(mixed, 4, decoder=decoder, augment=WHOLE, fields=("image", "key"), drop_last=False) as loader:
        next(iter(loader))
        for _ in range(2):
            found = {key: image for images, keys in loader for key, image in zip(keys, images, strict=True)}
            assert found.keys() == expected.keys()
            for key, image in found.items():
                np.testing.assert_array_equal(image, expected[key])


@pytest.mark.parametrize("extension", ["webp", "avif", "tif"])
def test_damaged_files_are_found_replaced_and_quarantined(
    mixed: Path, tmp_path: Path, extension: str, decoder: str
) -> None:
    data, at = gpuload.Dataset(mixed), 12 if extension == "webp" else 4
    names = [name for name in members(mixed) if not name.endswith(".cls")]
    row = next(n for n, name in enumerate(names) if name.endswith(extension))
    (key,) = data.keys([row])
    spoil = lambda data: data[:at] + bytes(24) + data[at + 24 :]  # noqa: E731
    folder, intact = damage(mixed, tmp_path / "damaged", [row], spoil), by_key(mixed, decoder)
    with pytest.raises(gpuload.DecodeError, match=rf"{key}.*\.tar|\.tar.*{key}"):
        by_key(folder, decoder)
    marked = by_key(folder, decoder, on_corrupt=gpuload.OnCorrupt("mark", most=10))
    assert marked.keys() == intact.keys() and not marked[key].any()
    skipped = by_key(folder, decoder, on_corrupt=gpuload.OnCorrupt("skip", most=10))
    assert skipped.keys() == intact.keys() - {key}
    for found in (marked, skipped):
        assert all(np.array_equal(found[other], intact[other]) for other in found if other != key)
    if decoder == "native":
        lines = verify(folder, workers=1, quarantine=tmp_path / "bad.jsonl")
        assert len(lines) == 2 and key in lines[1]  # and the checksum of the shard
        assert by_key(gpuload.Dataset(folder, exclude=tmp_path / "bad.jsonl"), decoder).keys() == skipped.keys()


@pytest.mark.parametrize("format", OTHERS)
def test_an_image_with_many_more_pixels_than_the_index_says_is_not_decoded(format: str) -> None:
    data = np.frombuffer(encode(photo(1, 60, 50), format), np.uint8)
    assert decode_pixels(data, (50, 60)).shape == (50, 60, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpuload.decode.pillow.MAX_PIXELS", 100)
        patch.setattr(type(Image.open(io.BytesIO(data))), "load", lambda _: pytest.fail("it is decoded"))
        with pytest.raises(UndecodableError, match="60 × 50 pixels, and the index says 5 × 5"):
            decode_pixels(data, (5, 5))


@pytest.mark.parametrize("name", CUT)
def test_a_file_that_is_cut_anywhere_is_neither_packed_nor_decoded(name: str) -> None:
    format, options = CUT[name]
    data = encode(photo(1, 47, 31), format, **options)
    for end in range(1, len(data), max(1, len(data) // 150)):
        with pytest.raises(gpuload.DecodeError):
            prepare_image(data[:end], encoding=Encoding(keep=("webp", "avif", "tiff")))
        with pytest.raises(UndecodableError):
            decode_pixels(np.frombuffer(data[:end], np.uint8), (31, 47))


def turned(image: Image.Image, format: str = "JPEG", orientation: int = 6, **options: Any) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(image, format, exif=exif, **options)


def behind_other_segments(data: bytes) -> bytes:
    """Where the orientation is said, however much comes before."""
    return data[:2] + 2 * (b"\xff\xe5" + (60_002).to_bytes(2, "big") + bytes(60_000)) + data[2:]


def test_shards_of_others_are_indexed_and_shown_upright(tmp_path: Path, decoder: str) -> None:
    """Also rotated and odd files, which our packer does not keep."""
    picture = photo(1, SIDE, 30)
    images = [(extension, encode(picture, format)) for format, extension in FORMATS.items()]
    images += [(extension, turned(picture, format, n)) for n in (3, 6) for format, extension in FORMATS.items()]
    images += [("jpeg", turned(picture, orientation=orientation)) for orientation in range(1, 9)]
    images += [
        ("jpg", behind_other_segments(turned(picture, progressive=progressive))) for progressive in (False, True)
    ]
    images += [("jpg", encode(picture.convert(mode), progressive=True)) for mode in ("L", "CMYK")]
    images += [("tiff", encode(picture.convert("L"), "TIFF")), ("png", encode(picture.quantize(16), "PNG"))]
    files = [(f"{n}.{extension}", data) for n, (extension, data) in enumerate(images)]
    write_tar(
        tmp_path / "x.tar",
        [file for name, data in files for file in ((name, data), (f"{name.split('.')[0]}.cls", b"0"))],
    )
    assert main(["index", str(tmp_path / "x.tar")]) == 0
    found = by_key(tmp_path, decoder)
    for number, (extension, data) in enumerate(images):
        gap = np.abs(found[f"{number}"].astype(int) - pillows(data)).max()
        assert gap <= (0 if decoder == "native" else 2), (number, extension)
