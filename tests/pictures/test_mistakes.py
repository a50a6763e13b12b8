"""What newcomers do with several pictures: each mistake is named, and none changes values in silence."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import encode, photo
from loaders import load
from PIL import Image

import gpuload
from gpuload import ArgumentError, Augment, Mask, Picture, Pictures, RandomCrop, SourceError
from gpuload.packing.run import PackReport
from gpuload.packing.verify import verify

SIZE = (24, 30)
RNG = np.random.default_rng(5)


def pack(samples: Any, out: Path, **options: Any) -> PackReport:
    report = gpuload.pack(samples, out, workers=1, progress=False, shuffle=False, **options)
    assert verify(out) == []
    return report


def png(channels: int = 3, dtype: Any = np.uint8) -> bytes:
    shape = SIZE if channels == 1 else (*SIZE, channels)
    values = RNG.integers(0, np.iinfo(dtype).max, shape).astype(dtype)
    if channels == 4:
        values[..., 3] = 0
    return encode(Image.fromarray(values), "PNG")


GRAY, DEEP, RGB, RGBA = png(1), png(1, np.uint16), png(3), png(4)


def opened(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


LATE = 2  # of 100 samples one whose mode is not looked at


@pytest.mark.parametrize(
    ("usual", "late", "reason"),
    [
        (GRAY, DEEP, "its 'x' is of mode I;16, and its field of mode L, which does not hold its values"),
        (GRAY, RGB, "its 'x' is of mode RGB, and its field of mode L"),
        (GRAY, RGBA, "its 'x' is of mode RGBA, and its field of mode L"),
        (RGB, DEEP, "its 'x' is of mode I;16, and its field of mode RGB"),
        (DEEP, GRAY, "its 'x' is of mode L, which is not converted to I;16"),
        (RGB, GRAY, ""),
        (RGBA, RGB, ""),
    ],
)
def test_a_picture_of_another_mode_loses_nothing(tmp_path: Path, usual: bytes, late: bytes, reason: str) -> None:
    samples = [{"image": RGB, "x": late if number == LATE else usual} for number in range(60)]
    report = pack(samples, tmp_path)
    assert [rejection.reason[: len(reason)] for rejection in report.rejected] == ([reason] if reason else [])


@pytest.mark.parametrize("name", ["x", "images"])
@pytest.mark.parametrize("form", ["files", "PIL"])
def test_transparency_beside_colours_is_told(tmp_path: Path, name: str, form: str) -> None:
    make = (lambda data: data) if form == "files" else opened
    samples = []
    for number in range(60):
        picture = make(RGBA) if number in (0, LATE) else photo(number, 30, 24)
        samples.append({"image": RGB, name: picture if name == "x" else [picture, RGB]})
    report = pack(samples, tmp_path)
    assert report.rejected == ()
    note = f"pictures in {name!r} with transparency: 2, laid over white, as others have none"
    assert note in report.notes
    shown = gpuload.Dataset(tmp_path / "train")[LATE][name]
    assert (np.asarray(shown if name == "x" else shown[0]) == 255).all()
    # A field in which all have it keeps it.
    same = pack([{"image": RGB, "x": RGBA} for _ in range(3)], tmp_path / "same")
    assert same.manifests["train"].fields[1].size == 4


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_that_come_first_are_no_rows(tmp_path: Path, channels: int) -> None:
    values = np.zeros((channels, 40, 60), np.float32)
    with pytest.raises(
        SourceError, match="whose channels come first: give \\(height, width, channels\\), as array.trans"
    ):
        pack([{"image": RGB, "depth": values}] * 2, tmp_path, pictures=["depth"])
    report = pack([{"image": RGB, "depth": values.transpose(1, 2, 0)}] * 2, tmp_path / "right", pictures=["depth"])
    assert report.manifests["train"].fields[1].size == channels


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        ([{"image": RGB, "disparity": np.zeros(SIZE, np.float32)}], {"pictures": ["disparty"]},
         "sample 0 has no 'disparty', which is named as a picture; its entries are 'disparity', 'image'"),
        ([{"image": [RGB, RGB]}], {}, "sample 0 has a list of pictures as its image. Call the list 'images'"),
        ([{"image": RGB}, {"image": []}], {}, "sample 1 has a list of pictures as its image. Call the list 'images'"),
        ([{"text": "x"}, {"images": [RGB], "text": "x"}], {}, 'and {"images": \\[\\]} where there is no picture'),
    ],
)  # fmt: skip
def test_entries_that_are_not_there(tmp_path: Path, samples: Any, options: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        gpuload.pack(samples, tmp_path, progress=False, **options)


def test_none_is_an_empty_list(tmp_path: Path) -> None:
    samples = [{"images": [RGB] * number or None, "text": "x"} for number in (0, 2, 0, 1)]
    assert pack(samples, tmp_path).rejected == ()
    assert gpuload.Dataset(tmp_path / "train").fields["images"].counts == (0, 2)


def test_a_list_of_masks_is_not_resized_as_colours_are(tmp_path: Path) -> None:
    samples = [{"frames": [RGB, RGB], "masks": [GRAY, GRAY]}] * 4
    pack(samples, tmp_path)
    augment = Augment(16, normalize=None)
    with pytest.raises(
        ArgumentError, match="'masks' is a list of masks, which are not resized as colours are. Request it"
    ):
        load(tmp_path / "train", 2, augment=augment, fields=("frames", "masks"))
    classes = Pictures("masks", like="frames", each=Mask())
    for spec, dtype in ((classes, "torch.uint8"), (Pictures("masks"), "torch.float32")):
        with load(tmp_path / "train", 2, augment=augment, fields=("frames", spec)) as loader:
            assert str(next(iter(loader)).masks.pixels.dtype) == dtype


@pytest.mark.parametrize("high", [(91, 120), (60, 80), (120, 90)])
def test_a_target_of_another_scale_is_not_resized_in_silence(tmp_path: Path, high: tuple[int, int]) -> None:
    pack([{"low": photo(n, 30, 23), "high": photo(n, high[1], high[0])} for n in range(4)], tmp_path)
    fields = ("low", Picture("high", scale=4))
    cropped = Augment(16, crop=RandomCrop(), flip=0.5, normalize=None)
    message = f"'high' of sample . is {high[1]} × {high[0]}, and 'low' 30 × 23, which scale=4 does not tell"
    with (
        load(tmp_path / "train", 2, augment=cropped, fields=fields) as loader,
        pytest.raises(ArgumentError, match=message),
    ):
        list(loader)
    # Crops that resize show the same part of both, whatever their sizes.
    with load(tmp_path / "train", 2, augment=Augment(16, normalize=None), fields=fields) as loader:
        assert next(iter(loader)).high.shape == (2, 3, 64, 64)
