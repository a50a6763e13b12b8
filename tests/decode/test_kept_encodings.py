"""Sets of mixed encodings: WebP, AVIF and TIFF beside JPEG and PNG, by both decoders to Pillow's pixels."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset.tariterators
from damaged import damage
from images import encode, photo
from loaders import load
from PIL import Image, ImageOps
from tars import members, write_tar

import gpuload
from gpuload import Augment
from gpuload.cli import main
from gpuload.packing.verify import verify

SIDE = 40
FORMATS = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp", "AVIF": "avif", "TIFF": "tif"}
OTHERS = ["WEBP", "AVIF", "TIFF"]
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
    folder = tmp_path_factory.mktemp("source")
    for number, (extension, data) in enumerate(files):
        (folder / "photos" / f"{number % 2}").mkdir(parents=True, exist_ok=True)
        (folder / "photos" / f"{number % 2}" / f"{number}.{extension}").write_bytes(data)
    options = ["--keep", "webp,avif,tiff", "--no-shuffle", "--maxcount", "4", "--workers", "1"]
    assert main(["pack", str(folder / "photos"), str(folder / "out"), *options]) == 0
    return folder / "out" / "train"


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
    # As WebDataset's own reader finds them.
    read = dict[str, bytes]()
    for path in sorted(mixed.glob("*.tar")):
        with path.open("rb") as file:
            read |= {one["fname"]: one["data"] for one in webdataset.tariterators.tar_file_iterator(file)}
    assert {name: data for name, data in read.items() if not name.endswith(".cls")} == found


@pytest.mark.parametrize("decoder", ["native", "dali", "both"])
def test_pixels_are_pillows(mixed: Path, decoder: str) -> None:
    expected = {name.rpartition(".")[0]: pillows(data) for name, data in members(mixed).items() if name[-3:] != "cls"}
    found = by_key(mixed, decoder)
    assert found.keys() == expected.keys()
    for key, image in found.items():
        np.testing.assert_array_equal(image, expected[key])


def test_epochs_follow_each_other_with_dali(mixed: Path) -> None:
    """What Pillow decodes for DALI is made anew for each epoch, also after one that was left."""
    augment = Augment(16, dtype="uint8")
    with (
        load(mixed, 4, augment=augment, decoder="dali") as loader,
        load(mixed, 4, augment=augment, decoder="dali") as other,
    ):
        next(iter(loader))
        list(other)
        for _ in range(2):
            pairs = list(zip(loader, other, strict=True))
            assert len(pairs) == 2 and all((one[1] == two[1]).all() for one, two in pairs)


@pytest.mark.parametrize("extension", ["webp", "avif", "tif"])
def test_damaged_files_are_found_replaced_and_quarantined(
    mixed: Path, tmp_path: Path, extension: str, decoder: str
) -> None:
    data, at = gpuload.Dataset(mixed), 4 if extension == "tif" else 12
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


@pytest.mark.parametrize("format", ["AVIF", "TIFF"])
def test_a_file_that_was_swapped_for_one_of_another_size_is_found_before_dali_gets_it(
    tmp_path: Path, format: str
) -> None:
    samples = [{"image": encode(photo(number, SIDE, 30), format), "label": 0} for number in range(4)]
    gpuload.pack(samples, tmp_path / "out", workers=1, shuffle=False, keep=("avif", "tiff"), progress=False)
    small = encode(Image.new("RGB", (30, SIDE)), format)
    swapped = damage(tmp_path / "out" / "train", tmp_path / "swapped", [2], lambda _: small)
    with load(swapped, 4, decoder="dali", on_corrupt=gpuload.OnCorrupt("skip", most=1.0)) as loader:
        list(loader)
        (told,) = loader.report().samples
    assert told.index == 2 and "size" in told.reason


@pytest.mark.parametrize("format", OTHERS)
def test_an_image_with_many_more_pixels_than_the_index_says_is_not_decoded(format: str) -> None:
    from gpuload.decode.pillow import decode_pixels

    data = np.frombuffer(encode(photo(1, 60, 50), format), np.uint8)
    assert decode_pixels(data, (50, 60)).shape == (50, 60, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpuload.decode.pillow.MAX_PIXELS", 100)
        patch.setattr(Image, "open", lambda *_: pytest.fail("it was opened"))
        with pytest.raises(Exception, match="60 × 50 pixels, and the index says 5 × 5"):
            decode_pixels(data, (5, 5))


def test_shards_of_others_are_indexed_and_shown_upright(tmp_path: Path, decoder: str) -> None:
    """Also rotated files, which our packer does not keep."""
    images: dict[str, bytes] = {}
    files: list[tuple[str, bytes]] = []
    for number, format in enumerate([*FORMATS, *FORMATS]):
        exif = Image.Exif()
        exif[274] = 6 if number >= len(FORMATS) else 1
        extension = {"TIFF": "tiff", "JPEG": "jpeg"}.get(format, FORMATS[format])
        images[f"{number}"] = data = encode(photo(number, SIDE, 30), format, exif=exif)
        files += [(f"{number}.{extension}", data), (f"{number}.cls", b"0")]
    write_tar(tmp_path / "x.tar", files)
    assert main(["index", str(tmp_path / "x.tar")]) == 0
    found = by_key(tmp_path, decoder)
    for key, data in images.items():
        assert np.abs(found[key].astype(int) - pillows(data)).max() <= (0 if decoder == "native" else 2), key


def test_one_mode_for_a_set_that_is_appended_to(tmp_path: Path) -> None:
    gray = [{"image": encode(photo(n).convert("L"), "PNG"), "label": 0} for n in range(3)]
    gpuload.pack(gray, tmp_path, workers=1, mode="L", progress=False)
    with pytest.raises(gpuload.GpuloadError, match=r"train has the fields image \(image L\).*image \(image RGB\)"):
        gpuload.pack(gray, tmp_path, workers=1, append=True, progress=False)
    report = gpuload.pack(gray, tmp_path, workers=1, append=True, mode="L", keep="avif", progress=False)
    assert report.images == 6
    assert gpuload.Dataset(tmp_path / "train").manifest.pixels.mode == "L"
