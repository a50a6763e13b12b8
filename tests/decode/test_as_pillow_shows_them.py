"""Images of other tools' tars that libraries show differently: turned by XMP or by text, and CMYK without a mark. Both
decoders show them as the packer and `Dataset[i]` do, which is as Pillow does."""

import io
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from images import encode, smooth_image, write_files
from loaders import load
from PIL import Image, ImageOps, PngImagePlugin
from tars import write_tar

import gpuload
from gpuload.cli import main
from gpuload.errors import DecodeError
from gpuload.packing.index import index_shards
from gpuload.packing.output import describe
from gpuload.packing.verify import verify

WIDTH, HEIGHT = 48, 32
PHOTO = smooth_image(np.random.default_rng(0), WIDTH, HEIGHT)
ADOBE_MARK = b"\xff\xee\x00\x0eAdobe"  # the APP14 segment that libjpeg writes


def xmp(orientation: int, as_element: bool = False) -> bytes:
    if as_element:
        return b"<x:xmpmeta><tiff:Orientation>%d</tiff:Orientation></x:xmpmeta>" % orientation
    return b'<x:xmpmeta><rdf:Description tiff:Orientation="%d"/></x:xmpmeta>' % orientation


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def png_with_text(keyword: str, text: str, compressed: bool = False) -> bytes:
    info = PngImagePlugin.PngInfo()
    if keyword.startswith("XML"):
        info.add_itxt(keyword, text, zip=compressed)
    else:
        info.add_text(keyword, text, zip=compressed)
    return encode(PHOTO, "PNG", pnginfo=info)


def without_mark(data: bytes) -> bytes:
    """A CMYK JPEG without its Adobe segment."""
    begin = data.index(ADOBE_MARK)
    return data[:begin] + data[begin + 16 :]


EXIF_TEXT = "\nexif\n      32\n" + (b"Exif\0\0" + exif(6).tobytes()[6:]).hex() + "\n"
CMYK = encode(PHOTO.convert("CMYK"), quality=95)
SHOWN_DIFFERENTLY = {
    **{f"JPEG, XMP {n}": encode(PHOTO, quality=95, xmp=xmp(n)) for n in range(1, 9)},
    "JPEG, XMP as an element": encode(PHOTO, quality=95, xmp=xmp(8, as_element=True)),
    "JPEG, XMP 6 and Exif 1": encode(PHOTO, quality=95, xmp=xmp(6), exif=exif(1)),
    "JPEG, XMP 6 and Exif 3": encode(PHOTO, quality=95, xmp=xmp(6), exif=exif(3)),
    "JPEG, XMP 3, progressive": encode(PHOTO, quality=95, xmp=xmp(3), progressive=True),
    "WebP, XMP 6": encode(PHOTO, "WEBP", lossless=True, xmp=xmp(6)),
    "WebP, Exif 8": encode(PHOTO, "WEBP", lossless=True, exif=exif(8)),
    "PNG, XMP 3": png_with_text("XML:com.adobe.xmp", xmp(3).decode()),
    "PNG, XMP 6, compressed": png_with_text("XML:com.adobe.xmp", xmp(6).decode(), compressed=True),
    "PNG, Exif as text": png_with_text("Raw profile type exif", EXIF_TEXT, compressed=True),
    "TIFF, orientation 6": encode(PHOTO, "TIFF", exif=exif(6)),
    "CMYK": CMYK,
    "CMYK without a mark": without_mark(CMYK),
}


def pixels_of(folder: Path, decoder: str) -> list[np.ndarray]:
    """(height, width, 3) of each image, in the order of the set."""
    augment = gpuload.Augment(None, crop="keep", flip=0, dtype="uint8")
    options = {"augment": augment, "decoder": decoder, "shuffle": False, "drop_last": False, "fields": ("image",)}
    with load(folder, 4, **options) as loader:
        return [np.asarray(image).transpose(1, 2, 0).astype(int) for (images,) in loader for image in images]


def shown_by_pillow(data: bytes) -> np.ndarray:
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")).astype(int)


def name_of(number: int, data: bytes) -> str:
    format = str(Image.open(io.BytesIO(data)).format).lower()
    extension = {"jpeg": "jpg", "tiff": "tif"}.get(format, format)
    return f"{number:02}.{extension}"


def set_of(images: Iterable[bytes], folder: Path) -> Path:
    """Other tools' tar, indexed as it lies."""
    write_tar(folder / "t.tar", {name_of(number, data): data for number, data in enumerate(images)})
    index_shards([str(folder / "t.tar")])
    return folder


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return set_of(SHOWN_DIFFERENTLY.values(), tmp_path_factory.mktemp("indexed"))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("packed")
    files = {f"class/{name_of(number, data)}": data for number, data in enumerate(SHOWN_DIFFERENTLY.values())}
    write_files(root / "in", files)
    assert main(["pack", str(root / "in"), str(root / "out"), "--lossless", "--no-shuffle", "--workers", "1"]) == 0
    return root / "out" / "train"


@pytest.mark.parametrize("decoder", ["native", "dali"])
@pytest.mark.parametrize("way", ["indexed", "packed"])
def test_both_decoders_show_what_pillow_shows(request: pytest.FixtureRequest, way: str, decoder: str) -> None:
    shown = pixels_of(request.getfixturevalue(way), decoder)
    for (kind, data), found in zip(SHOWN_DIFFERENTLY.items(), shown, strict=True):
        expected = shown_by_pillow(data)
        assert found.shape == expected.shape, kind
        assert np.abs(found - expected).max() <= 3, kind


@pytest.mark.parametrize("way", ["indexed", "packed"])
def test_a_sample_is_shown_alike_and_verify_agrees(request: pytest.FixtureRequest, way: str) -> None:
    folder = request.getfixturevalue(way)
    dataset = gpuload.Dataset(folder)
    for number, (kind, data) in enumerate(SHOWN_DIFFERENTLY.items()):
        found = np.asarray(dataset[number]["image"]).astype(int)
        assert np.array_equal(found, shown_by_pillow(data)), kind
    assert verify(folder, 1) == []


def with_size(folder: Path, width: int, height: int) -> None:
    """Gives the image in a set's index this size."""
    dataset = gpuload.Dataset(folder)
    rows = dataset.rows(0)
    for name, value in (("width", width), ("height", height)):
        number = rows.schema.get_field_index(name)
        field = rows.schema.field(number)
        rows = rows.set_column(number, field, pa.array([value], field.type))
    describe(folder, dataset.manifest, [rows])


@pytest.mark.parametrize("decoder", ["native", "dali"])
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (encode(PHOTO), "it is not of the size that the index says"),
        (encode(PHOTO, progressive=True), "it is not of the size that the index says"),
        (encode(PHOTO, "PNG"), "it is not of the size that the index says"),
        (encode(PHOTO, "WEBP"), "it is not of the size that the index says"),
    ],
    ids=["JPEG", "progressive", "PNG", "WebP"],
)
def test_an_image_of_another_size_than_the_index_says_is_refused(
    tmp_path: Path, data: bytes, reason: str, decoder: str
) -> None:
    """Its crops were drawn for that size."""
    folder = set_of([data], tmp_path)
    with_size(folder, WIDTH - 8, HEIGHT - 8)
    with pytest.raises(DecodeError, match=reason):
        pixels_of(folder, decoder)


@pytest.mark.parametrize("decoder", ["native", "dali"])
@pytest.mark.parametrize("kind", ["JPEG, XMP 6", "WebP, XMP 6"])
def test_an_index_that_passed_over_xmp_is_to_be_made_again(tmp_path: Path, kind: str, decoder: str) -> None:
    """As `gpuload index` did until 2026-11-28."""
    folder = set_of([SHOWN_DIFFERENTLY[kind]], tmp_path)
    with_size(folder, WIDTH, HEIGHT)
    message = (
        f"it is turned to {HEIGHT} × {WIDTH} pixels, and the index says {WIDTH} × {HEIGHT}: index its shards again"
    )
    with pytest.raises(DecodeError, match=re.escape(message)):
        pixels_of(folder, decoder)
