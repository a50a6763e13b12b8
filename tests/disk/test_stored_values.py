"""A sample shows the values that were packed, of sets of each mode: as the image, a further picture and in a list, from the
set, its decoded copy and a loader."""

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import encode, photo
from loaders import load
from PIL import Image
from tars import write_tar

import gpuload
from gpuload import Augment, Normalize
from gpuload.cli import main
from gpuload.types import Array

WIDTH, HEIGHT, COUNT = 13, 7, 3
PEAKS = {"uint8": 255, "uint16": 65_535, "float32": 1}
IN_PILLOW = {"uint8x1": "L", "uint8x3": "RGB", "uint8x4": "RGBA", "uint16x1": "I;16", "float32x1": "F"}
# Type, channels, and the format of files that hold them; None: they are packed as arrays.
FURTHER = [
    ("uint8", 1, "PNG"),
    ("uint8", 1, None),
    ("uint8", 3, "PNG"),
    ("uint8", 4, "PNG"),
    ("uint8", 13, None),
    ("uint16", 1, "PNG"),
    ("uint16", 1, None),
    ("uint16", 13, None),
    ("float32", 1, "TIFF"),
    ("float32", 2, None),
]
IMAGES = [
    ("uint8", 1, "PNG"),
    ("uint8", 2, None),
    ("uint8", 4, "WEBP"),
    ("uint16", 1, "TIFF"),
    ("uint16", 3, None),
    ("float32", 1, None),
    ("float32", 13, None),
]


def values(dtype: str, channels: int, number: int) -> Array:
    """(HEIGHT, WIDTH, channels), with the ends of their range."""
    random = np.random.default_rng([number, channels])
    levels = random.random((HEIGHT, WIDTH, channels)) * PEAKS[dtype]
    if dtype == "float32":
        levels = levels * 300 - 100
    stored = levels.astype(dtype)
    stored[0, 0] = 0
    stored[0, 1] = PEAKS[dtype]
    return stored


def given(array: Array, form: str | None) -> Any:
    """What `pack` gets of an array."""
    if form is None:
        return array
    image = Image.fromarray(array[..., 0] if array.shape[2] == 1 else array)
    return encode(image, form, lossless=True, exact=True)


def assert_stored(shown: Any, stored: Array) -> None:
    """Pillow's modes of 8 bits are pictures, all others arrays."""
    mode = IN_PILLOW.get(f"{stored.dtype}x{stored.shape[2]}")
    if stored.dtype == np.uint8 and mode is not None:
        assert isinstance(shown, Image.Image) and shown.mode == mode
        stored = stored[..., 0] if mode == "L" else stored
    else:
        assert isinstance(shown, np.ndarray) and shown.flags.writeable
    array = np.asarray(shown)
    assert array.dtype == stored.dtype
    np.testing.assert_array_equal(array, stored)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> gpuload.Dataset:
    """A set of RGB, whose further pictures and lists are of all modes."""
    samples = [
        {
            "image": values("uint8", 3, number),
            **{f"one{case}": picture_of(case, number) for case in range(len(FURTHER))},
            **{f"list{case}": [picture_of(case, place) for place in range(number)] for case in range(len(FURTHER))},
        }
        for number in range(COUNT)
    ]
    names = [name for name in samples[0] if name != "image"]
    out = tmp_path_factory.mktemp("pictures")
    gpuload.pack(samples, out, encode="raw", pictures=names, workers=1, shuffle=False, progress=False)
    return gpuload.Dataset(out / "train")


def picture_of(case: int, number: int) -> Any:
    dtype, channels, form = FURTHER[case]
    return given(values(dtype, channels, number), form)


@pytest.mark.parametrize("is_copy", [False, True], ids=["set", "copy"])
def test_pictures_of_all_modes(pictures: gpuload.Dataset, tmp_path: Path, is_copy: bool) -> None:
    opened = gpuload.decoded(pictures, folder=tmp_path) if is_copy else pictures
    for number in range(COUNT):
        sample = opened[number]
        assert_stored(sample["image"], values("uint8", 3, number))
        for case, (dtype, channels, _) in enumerate(FURTHER):
            assert_stored(sample[f"one{case}"], values(dtype, channels, number))
            assert len(sample[f"list{case}"]) == number
            for place, picture in enumerate(sample[f"list{case}"]):
                assert_stored(picture, values(dtype, channels, place))


@pytest.mark.parametrize(("dtype", "channels", "form"), IMAGES)
def test_images_of_each_mode(
    tmp_path: Path, dtype: str, channels: int, form: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = [values(dtype, channels, number) for number in range(COUNT)]
    mode = IN_PILLOW.get(f"{dtype}x{channels}", f"{dtype}x{channels}")
    settings: dict[str, Any] = {"keep": ("webp", "tiff")} if form else {"encode": "raw"}
    samples = [{"image": given(array, form)} for array in stored]
    gpuload.pack(samples, tmp_path / "set", mode=mode, workers=1, shuffle=False, progress=False, **settings)
    dataset = gpuload.Dataset(tmp_path / "set" / "train")
    for opened in (dataset, gpuload.decoded(dataset, folder=tmp_path / "copies")):
        for number in range(COUNT):
            assert_stored(opened[number]["image"], stored[number])
        plain = Normalize((0.0,) * channels, (1.0,) * channels)
        augment = Augment((HEIGHT, WIDTH), crop="none", normalize=plain)
        with load(opened, COUNT, augment=augment, fields=["image"], shuffle=False, output="numpy") as loader:
            ((images,),) = loader
        levels = images.transpose(0, 2, 3, 1).astype(np.float64) * PEAKS[dtype]
        np.testing.assert_allclose(levels, np.stack(stored), rtol=1e-6)
    assert main(["show", str(tmp_path / "set" / "train"), "1", "-o", str(tmp_path)]) == 0
    assert f"  image: {WIDTH} × {HEIGHT} pixels of {mode}\n" in capsys.readouterr().out
    with Image.open(next(tmp_path.glob("*.png"))) as picture:
        assert picture.mode == "RGB" and len(picture.getcolors() or ()) > 20


NUMBERS = (np.arange(HEIGHT * WIDTH) % 2).astype(np.uint8).reshape(HEIGHT, WIDTH)


def with_palette(numbers: Array) -> Image.Image:
    image = Image.fromarray(numbers).convert("P")
    image.putdata(numbers.ravel().tolist())
    image.putpalette([0, 0, 0, 128, 64, 0])
    return image


# Files that hold the same class numbers, which a decoder of pictures shows as other levels.
OTHER_MASKS = {
    "palette": encode(with_palette(NUMBERS), "PNG"),
    "one bit": encode(Image.fromarray(NUMBERS > 0), "PNG"),
    "16 bits": encode(Image.fromarray(NUMBERS.astype(np.uint16)), "PNG"),
}


def filled_up(png: bytes) -> bytes:
    """A PNG of 400 bytes, with a text."""
    text = bytes(400 - len(png) - 12)
    chunk = b"tEXt" + text
    return png[:-12] + struct.pack(">I", len(text)) + chunk + struct.pack(">I", zlib.crc32(chunk)) + png[-12:]


@pytest.mark.parametrize("name", OTHER_MASKS)
def test_masks_that_are_not_stored_as_the_format_says_are_refused(tmp_path: Path, name: str) -> None:
    """As of a set that another program has written: in place of other class numbers."""
    image = encode(photo(1, WIDTH, HEIGHT), "PNG")
    mask = filled_up(encode(Image.fromarray(NUMBERS), "PNG"))
    gpuload.pack([{"image": image, "mask": mask}], tmp_path, workers=1, progress=False)
    shard = tmp_path / "train" / "shard-000000.tar"
    dataset = gpuload.Dataset(tmp_path / "train")
    np.testing.assert_array_equal(np.asarray(dataset[0]["mask"]), NUMBERS)
    shard.write_bytes(shard.read_bytes().replace(mask, filled_up(OTHER_MASKS[name])))
    dataset = gpuload.Dataset(tmp_path / "train")
    reason = "is of mode I;16; stored" if name == "16 bits" else "has a palette, or fewer than 8 bits; stored"
    with pytest.raises(gpuload.DecodeError, match=f"its 'mask' does not decode: {reason}"):
        dataset[0]
    for decoder in ("native", "dali"):
        with (
            load(dataset, 1, fields=["mask"], decoder=decoder) as loader,
            pytest.raises(gpuload.DecodeError, match=reason),
        ):
            list(loader)
    assert any(reason in line for line in gpuload.verify(tmp_path / "train", workers=1))


def test_masks_of_lists_in_place_are_not_read_as_levels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`index` leaves out those of palettes and few bits, as `pack` reads them; what it indexes, `verify` finds sound."""
    plain = encode(Image.fromarray(NUMBERS), "PNG")
    transparent = encode(Image.fromarray(np.stack([NUMBERS * 200] * 2, axis=2)), "PNG")
    for name, mask in {**OTHER_MASKS, "plain": plain}.items():
        folder = tmp_path / name
        members = {"0.jpg": encode(photo(1, WIDTH, HEIGHT)), "0.masks.0.png": mask, "0.masks.1.png": mask}
        write_tar(folder / "x.tar", {**members, "0.depth.png": OTHER_MASKS["one bit"], "0.glow.png": transparent})
        assert main(["index", str(folder / "x.tar")]) == 0
        dataset = gpuload.Dataset(folder)
        is_read = name in ("plain", "16 bits")
        assert list(dataset.fields) == ["image", "depth", "glow", *["masks"] * is_read]
        assert ("not indexed: 1 × .masks.0.png" in capsys.readouterr().out) is not is_read
        assert gpuload.verify(folder, workers=1) == []
        sample = dataset[0]
        np.testing.assert_array_equal(np.asarray(sample["depth"]), NUMBERS * 255)
        assert sample["glow"].mode == "RGBA"
        if is_read:
            assert [np.asarray(one).squeeze().tolist() for one in sample["masks"]] == [NUMBERS.tolist()] * 2
