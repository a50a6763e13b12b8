"""PNGs with seek points: packed, indexed, verified, and loaded to the same crops."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import encode, photo
from loaders import load
from PIL import Image
from tars import members

import gpuload
from gpuload import Augment, RandomCrop
from gpuload.cli import main
from gpuload.packing.image import prepare_image
from gpuload.packing.options import Encoding
from gpuload.packing.png_points import find_points
from gpuload.packing.verify import verify

WIDTH, HEIGHT = 400, 260
OPTIONS: dict[str, Any] = {"workers": 1, "shuffle": False, "progress": False}
POINTS = Encoding(png="points")


def png(number: int = 0, mode: str = "RGB", size: tuple[int, int] = (WIDTH, HEIGHT)) -> bytes:
    return encode(photo(number, *size).convert(mode), "PNG")


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


def points_in(folder: Path) -> list[bytes]:
    dataset = gpuload.Dataset(folder)
    if "image_points" not in dataset.schema.names:
        return []
    return dataset.rows(0).column("image_points").to_pylist()


@pytest.fixture(scope="module")
def files() -> list[bytes]:
    return [png(0), png(1, "L"), png(2), png(3, size=(60, 50))]


@pytest.fixture(scope="module")
def packed(files: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("points")
    gpuload.pack([{"image": data, "label": 0} for data in files], folder / "kept", **OPTIONS)
    gpuload.pack([{"image": data, "label": 0} for data in files], folder / "points", png="points", **OPTIONS)
    return folder


def images_of(folder: Path) -> list[bytes]:
    return [data for name, data in sorted(members(folder).items()) if name.endswith("png")]


def test_the_same_pixels_are_packed_with_points(packed: Path, files: list[bytes]) -> None:
    stored = images_of(packed / "points" / "train")
    points = points_in(packed / "points" / "train")
    assert [bool(one) for one in points] == [True, True, True, False]
    assert stored[3] == files[3]  # it is small
    for data, file, of_file in zip(stored, files, points, strict=True):
        np.testing.assert_array_equal(pixels(data), pixels(file))
        assert find_points(data) == of_file
    assert not any(points_in(packed / "kept" / "train"))
    assert images_of(packed / "kept" / "train") == files


def test_the_set_is_sound(packed: Path) -> None:
    assert verify(packed / "points" / "train", workers=1) == []


def test_the_summary_counts_them(
    packed: Path, files: list[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, data in enumerate(files):
        path = tmp_path / "source" / "a" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    assert main(["pack", str(tmp_path / "source"), str(tmp_path / "out"), "--png", "points", "--workers", "1"]) == 0
    assert "3 × png-without-points" in capsys.readouterr().out


def test_packing_again_keeps_the_bytes(packed: Path, tmp_path: Path) -> None:
    stored = images_of(packed / "points" / "train")
    gpuload.pack([{"image": data, "label": 0} for data in stored], tmp_path, png="points", **OPTIONS)
    assert images_of(tmp_path / "train") == stored
    assert points_in(tmp_path / "train") == points_in(packed / "points" / "train")


def test_crops_are_the_same_by_each_decoder(packed: Path, decoder: str) -> None:
    augment = Augment(48, crop=RandomCrop(), dtype="uint8")
    batches = {}
    for name in ("kept", "points"):
        options: dict[str, Any] = {"decoder": decoder, "augment": augment, "fields": ("image",), "drop_last": False}
        with load(packed / name / "train", 4, **options) as loader:
            batches[name] = np.concatenate([images.numpy() for (images,) in loader])
    np.testing.assert_array_equal(batches["kept"], batches["points"])


def test_points_of_others_are_added_to_an_index(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = images_of(packed / "points" / "train")
    gpuload.pack([{"image": data, "label": 0} for data in stored], tmp_path, points="no", **OPTIONS)
    assert points_in(tmp_path / "train") == []
    assert main(["index", str(tmp_path / "train"), "--points"]) == 0
    assert "3 of 4 images with seek points" in capsys.readouterr().out
    assert points_in(tmp_path / "train") == points_in(packed / "points" / "train")


@pytest.mark.parametrize(
    ("mode", "kind"), [("RGB", "TIFF"), ("L", "TIFF"), ("RGBA", "PNG"), ("I;16", "PNG")], ids=lambda value: str(value)
)
def test_what_is_stored_as_png_has_points(mode: str, kind: str) -> None:
    image = photo(1, WIDTH, HEIGHT)
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 250)
    else:
        image = image.convert(mode)
    stored = prepare_image(
        encode(image, kind), encoding=Encoding(mode=mode, lossless=mode in ("RGB", "L"), png="points")
    )
    assert stored.points and find_points(stored.data) == stored.points
    np.testing.assert_array_equal(pixels(stored.data), np.asarray(image))


def test_measured_images_and_those_of_another_size_have_points() -> None:
    measured = prepare_image(png(), measured=True, encoding=POINTS)
    assert measured.points and measured.histogram is not None
    assert measured.data == prepare_image(png(), encoding=POINTS).data


@pytest.mark.parametrize("mode", ["RGB", "L", "P"])
def test_measured_images_are_counted_as_without_points(mode: str) -> None:
    """By kernels, where Pillow counts those without."""
    data = encode(photo(2, WIDTH, HEIGHT).convert(mode), "PNG")
    assert prepare_image(data, True, POINTS).histogram == prepare_image(data, True).histogram


def test_a_png_with_a_fault_is_rejected() -> None:
    data = png()
    with pytest.raises(gpuload.DecodeError):
        prepare_image(data[:-40], encoding=POINTS)


def test_options_that_contradict_it() -> None:
    for options in ({"points": "no"}, {"check": "header"}):
        with pytest.raises(gpuload.ArgumentError, match="--png points needs --points auto and --check full"):
            Encoding(png="points", **options)
    with pytest.raises(gpuload.ArgumentError, match="--png points needs --encode keep or jpeg"):
        Encoding(png="points", encode="raw")
