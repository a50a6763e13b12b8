"""Further pictures where the packer resizes images: maps of coordinates tell which pixel became which."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coordinate_sets import COUNT, SIZES, coordinates
from images import encode, smooth_image
from PIL import Image
from tars import members

import gpuload
from gpuload import ArgumentError
from gpuload.fields.motion import place
from gpuload.packing.verify import verify

SIZE = (40, 30)
NUMBERS = {"x": "nearest", "y": "nearest", "disparity": "width", "flow": "flow"}
FLOW = (3.0, -2.0)


def sample_of(number: int) -> dict[str, Any]:
    width, height = SIZES[number % len(SIZES)]
    x, y = coordinates((height, width))
    image = smooth_image(np.random.default_rng(number), width, height)
    return {
        "image": encode(image, "PNG"),
        "x": x,
        "y": y,
        "disparity": np.full((height, width), 1024, np.uint16),
        "flow": np.broadcast_to(np.array(FLOW, np.float32), (height, width, 2)).copy(),
        "twice": image.resize((2 * width, 2 * height)),
        "frames": [image, image.resize((2 * width, 2 * height)), image],
    }


def pack(folder: Path, samples: Any, **settings: Any) -> gpuload.Dataset:
    usual = {"encode": "jpeg", "size": SIZE, "workers": 1, "progress": False, "shuffle": False}
    report = gpuload.pack(samples, folder, **{**usual, **settings})
    assert report.rejected == ()
    assert verify(folder) == []
    return gpuload.Dataset(folder / "train")


@pytest.mark.parametrize("fit", ["shortest", "longest", "center-crop", "pad", "stretch"])
def test_values_are_those_of_the_nearest_pixel(tmp_path: Path, fit: Any) -> None:
    data = pack(
        tmp_path,
        map(sample_of, range(COUNT)),
        fit=fit,
        pictures=("x", "y", "disparity", "flow"),
        resize=NUMBERS,
    )
    for number in range(COUNT):
        size = SIZES[number % len(SIZES)]
        placement = place(size, SIZE, fit, enlarge=False)
        sample = data[number]
        wide, high = placement.canvas
        assert sample["image"].size == placement.canvas
        ratio = np.array(placement.resized) / size
        at_x = (np.arange(wide) - placement.corner[0] + 0.5) / ratio[0]
        at_y = (np.arange(high) - placement.corner[1] + 0.5) / ratio[1]
        inside = ((at_y >= 0) & (at_y < size[1]))[:, None] & ((at_x >= 0) & (at_x < size[0]))
        for name, at in (("x", at_x[None]), ("y", at_y[:, None])):
            found = sample[name][..., 0]
            assert np.abs(found - at)[inside].max() < 0.5 + 1e-5
            assert not found[~inside].any()
        assert set(np.unique(sample["disparity"][inside])) == {round(1024 * ratio[0])}
        assert np.allclose(sample["flow"][inside], ratio * FLOW, rtol=1e-6)
        assert np.isnan(sample["flow"][~inside]).all() and not sample["disparity"][~inside].any()
        assert sample["twice"].size == (2 * wide, 2 * high)
        assert [frame.size for frame in sample["frames"]] == [(wide, high), (2 * wide, 2 * high), (wide, high)]
    # Where nothing is resized, pictures are kept as they are.
    assert set(data.fields["twice"].member.split(";")) <= {"twice.jpg", "twice.png"}


def test_pictures_of_one_size_stay_alike(tmp_path: Path) -> None:
    """The image and its copies are the same after the resize, and the first of a list is stored once."""
    samples = [{"frames": sample_of(number)["frames"]} for number in range(4)]
    data = pack(tmp_path, samples)
    for number in range(4):
        frames = [np.asarray(frame) for frame in data[number]["frames"]]
        assert np.array_equal(np.asarray(data[number]["image"]), frames[0])
        assert np.array_equal(frames[0], frames[2])
    assert len(members(data.folder)) == 4 * 3


def test_each_by_its_own_size_or_not_at_all(tmp_path: Path) -> None:
    gray = [Image.fromarray(np.full((70, 90 + number), 100, np.uint8)) for number in range(COUNT)]
    samples = [
        {**{name: sample_of(number)[name] for name in ("image", "twice")}, "gray": gray[number], "kept": gray[number]}
        for number in range(COUNT)
    ]
    data = pack(tmp_path, samples, resize="twice=own,gray=own,kept=keep")
    for number in range(COUNT):
        sample = data[number]
        twice = tuple(2 * side for side in SIZES[number % len(SIZES)])
        assert sample["twice"].size == place(twice, SIZE, "shortest", enlarge=False).canvas
        assert sample["gray"].size == place(gray[number].size, SIZE, "shortest", enlarge=False).canvas
        assert sample["kept"].size == gray[number].size
    assert data.fields["kept"].member == "kept.png" and data.fields["gray"].member == "gray.jpg"


def test_raw_images_have_pictures_without_loss(tmp_path: Path) -> None:
    samples = [{name: sample_of(number)[name] for name in ("image", "twice")} for number in range(3)]
    assert pack(tmp_path, samples, encode="raw").fields["twice"].member == "twice.png"


@pytest.mark.parametrize(
    ("resize", "message"),
    [
        ({}, "'x' holds 1 channel of float32, which may be numbers. Give --resize x=nearest where they stay"),
        ({**NUMBERS, "flow": "width"}, "--resize flow=width: disparities have one channel, and 'flow' holds 2"),
        ({**NUMBERS, "disparity": "flow"}, "--resize disparity=flow: expected u and v as float32"),
        ({**NUMBERS, "z": "keep"}, "--resize z: is no further picture; there are 'x', 'y', 'disparity'"),
        ({"x": "bicubic"}, "a list such as depth=nearest,flow=flow"),
    ],
)
def test_numbers_are_not_resized_unasked(tmp_path: Path, resize: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        pack(tmp_path, [sample_of(0)], pictures=("x", "y", "disparity", "flow"), resize=resize)


def test_it_needs_a_size(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="--resize needs --size"):
        gpuload.pack([sample_of(0)], tmp_path, resize=NUMBERS, progress=False)


def test_other_proportions_than_those_of_the_image_are_refused(tmp_path: Path) -> None:
    samples = [{"image": sample_of(number)["image"], "other": sample_of(number + 1)["twice"]} for number in range(2)]
    report = [one.reason for one in rejections(tmp_path, samples)]
    assert len(report) == 1 and report[0].startswith(
        "its 'other' is 80 x 160, of other proportions than its image, 60 x 45"
    )


def rejections(folder: Path, samples: Any) -> Any:
    samples = [*samples[:1], {"image": sample_of(2)["image"], "other": sample_of(2)["twice"]}]
    return gpuload.pack(samples, folder, encode="jpeg", size=SIZE, workers=1, progress=False).rejected
