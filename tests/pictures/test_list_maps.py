"""Lists of masks and maps: each moves as the frame of its number does, and its values stay what they are.

The red and green levels of a frame are the coordinates of its pixels, as are the values of its two maps; so colours and
values of a batch tell whether they show the same part.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import encode
from loaders import load, skip_without_dali
from PIL import Image

import gpuload
from gpuload import (
    ArgumentError,
    Augment,
    Depth,
    Disparity,
    Flow,
    Letterbox,
    Mask,
    Picture,
    Pictures,
    RandomCrop,
)
from gpuload.transforms import RandomRotation

OUT = (40, 44)
COUNTS = [2, 3, 1, 4, 0, 2, 3, 1]
LEVELS: dict[str, Any] = {"normalize": None, "dtype": "uint8"}
AUGMENTS = {
    "crops": Augment(OUT, flip=0.5, vertical_flip=0.5, **LEVELS),
    "letterbox": Augment(OUT, crop=Letterbox(), flip=0.5, **LEVELS),
    "padded": Augment(OUT, crop=RandomCrop(padding=5, pad_if_needed=True), flip=0.5, **LEVELS),
    "rotated": Augment(OUT, crop="none", flip=0.5, transforms=[RandomRotation(20)], **LEVELS),
}


def frame_of(width: int, height: int) -> np.ndarray:
    """uint8 (height, width, 3): of each pixel its column, its row and 200."""
    columns, rows = np.meshgrid(np.arange(width), np.arange(height))
    return np.stack([columns, rows, np.full_like(rows, 200)], axis=2).astype(np.uint8)


def sample_of(number: int, count: int) -> dict[str, Any]:
    sizes = [(60 + 7 * number + 5 * position, 50 + 9 * position) for position in range(count)]
    frames = [frame_of(width, height) for width, height in sizes]
    maps = {"columns": 0, "rows": 1}
    return {
        "image": encode(Image.fromarray(frame_of(70, 56)), "PNG"),
        "frames": [encode(Image.fromarray(frame), "PNG") for frame in frames],
        # Twice as many pixels along each side.
        **{
            name: [(frame[:, :, channel] + 1.0).repeat(2, 0).repeat(2, 1).astype(np.float32) for frame in frames]
            for name, channel in maps.items()
        },
        "masks": [np.full(frame.shape[:2], 10 * number + place, np.uint8) for place, frame in enumerate(frames)],
        "label": number,
    }


def pack(folder: Path, samples: Any, **options: Any) -> Path:
    lists = ["frames", "columns", "rows", "masks"]
    gpuload.pack(samples, folder, workers=1, progress=False, pictures=lists, **options)
    return folder / "train"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = [sample_of(number, count) for number, count in enumerate(COUNTS)]
    return pack(tmp_path_factory.mktemp("maps") / "set", samples)


FRAMES = {
    "shared": Pictures("frames"),
    "own": Pictures("frames", geometry="own"),
    "even": Pictures("frames", count=2, more="even", fewer="pad", geometry="own"),
}


CASES = [(name, frames, "native") for name in AUGMENTS for frames in FRAMES]


@pytest.mark.parametrize(
    ("name", "frames", "decoder"), [*CASES, ("rotated", "own", "dali"), ("padded", "even", "dali")]
)
def test_each_map_shows_what_the_frame_of_its_number_shows(packed: Path, name: str, frames: str, decoder: str) -> None:
    skip_without_dali(decoder)
    fields = (
        "label",
        FRAMES[frames],
        Depth("columns", like="frames", scale=1.0),
        Pictures("rows", like="columns", each=Depth(interpolation="bilinear")),
        Pictures("masks", like="frames", each=Mask(fill=255, dtype="int64")),
    )
    compared = 0
    with load(packed, 4, augment=AUGMENTS[name], fields=fields, decoder=decoder) as loader:
        for batch in loader:
            counts = batch.frames.counts.tolist()
            for lists in (batch.columns, batch.rows, batch.masks):
                assert type(lists) is type(batch.frames)
                assert lists.counts.tolist() == counts
            for row, number in enumerate(batch.label.tolist()):
                for place in range(counts[row]):
                    colours, columns, rows, ids = (picture_at(batch, name, row, place) for name in batch._fields[1:])
                    assert columns.shape == rows.shape == (1, *OUT)
                    inside = (columns[0] > 0) & (rows[0] > 0) & (colours[2] == 200)
                    assert np.abs(colours[0] - (columns[0] - 1))[inside].max() < 2
                    assert np.abs(colours[1] - (rows[0] - 1))[inside].max() < 2
                    assert inside.mean() > 0.3
                    shown = set(np.unique(ids[inside]).tolist())
                    assert shown == {10 * number + chosen_place(frames, number, place)}
                    assert set(np.unique(ids).tolist()) <= shown | {255}
                    compared += 1
    assert compared == sum(min(count, 2) if frames == "even" else count for count in COUNTS)


def picture_at(batch: Any, name: str, row: int, place: int) -> np.ndarray:
    lists = getattr(batch, name)
    of_sample = lists.split()[row] if hasattr(lists, "split") else lists.pixels[row]
    return np.asarray(of_sample[place])


def chosen_place(frames: str, number: int, place: int) -> int:
    count = COUNTS[number]
    return (2 * place + 1) * count // 4 if frames == "even" and count > 2 else place


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_what_is_missing_is_padded_with_the_missing_value(packed: Path, output: Any) -> None:
    fields = (
        "label",
        Pictures("columns", count=4, fewer="pad", each=Depth(missing=-1.0)),
        Pictures("masks", count=4, fewer="pad", each=Mask(fill=255)),
    )
    with load(packed, 4, augment=AUGMENTS["crops"], fields=fields, output=output) as loader:
        for label, columns, masks in loader:
            assert columns.pixels.shape == (4, 4, 1, *OUT)
            assert masks.pixels.shape == (4, 4, *OUT)
            assert str(masks.pixels.dtype).endswith("uint8")
            for row, number in enumerate(label.tolist()):
                count = COUNTS[number]
                assert (np.asarray(columns.pixels[row, :count]) >= 0).all()
                assert (np.asarray(columns.pixels[row, count:]) == -1).all()
                assert (np.asarray(masks.pixels[row, count:]) == 255).all()


def test_a_list_of_masks_by_its_name_alone_moves_as_the_image(packed: Path) -> None:
    with load(packed, 4, augment=AUGMENTS["crops"], fields=("label", Mask("masks"))) as loader:
        for label, masks in loader:
            assert masks.counts.tolist() == [COUNTS[number] for number in label.tolist()]
            assert masks.pixels.shape == (int(masks.counts.sum()), *OUT)


def test_one_size_of_each_comes_as_lists(packed: Path) -> None:
    augment = Augment(None, crop="keep", **LEVELS)
    fields = ("image", Pictures("frames", geometry="own"), Depth("columns", like="frames"))
    with load(packed, 4, augment=augment, fields=fields) as loader:
        for _, frames, columns in loader:
            for of_sample, maps in zip(frames, columns, strict=True):
                assert [one.shape[1:] for one in of_sample] == [one.shape[1:] for one in maps]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((Pictures("columns"),), r"Request it as Pictures\('columns', each=…\) of maps, such as each=Depth\(\)"),
        ((Flow("columns"),), "expected u, v as floats, or KITTI's PNG"),
        ((Depth("frames"),), "expected one channel"),
        ((Mask("frames"),), "expected whole numbers"),
        ((Picture("frames"),), "expected a field of kind 'picture'"),
        ((Depth("columns", like="frames"),), "'columns' moves as 'frames', which is no requested picture"),
        (
            (FRAMES["even"], Pictures("columns", 2, "even", "pad", like="frames", each=Depth())),
            "Give count to 'frames' alone",
        ),
        ((Depth("columns", like="rows"), Depth("rows", like="columns")), "which is no requested picture"),
    ],
)
def test_what_does_not_fit_is_an_error_at_construction(packed: Path, fields: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        load(packed, 4, augment=AUGMENTS["crops"], fields=("image", *fields))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"each": Picture("frames")}, r"a spec of masks or maps, such as Mask\(\) or Depth"),
        ({"each": Depth(like="image")}, "Give like, scale and swapped of the list"),
        ({"each": Disparity(swapped=True)}, "Give like, scale and swapped of the list"),
        ({"each": Depth(), "colors": "own"}, "but those of each"),
        ({"each": Depth(), "geometry": "own"}, "move with another picture"),
    ],
)
def test_settings_that_contradict_each_other(options: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Pictures("frames", **options)


def test_lists_that_go_together_have_as_many_pictures(tmp_path: Path) -> None:
    samples = [sample_of(number, count) for number, count in enumerate((2, 3))]
    for sample, masks in zip(samples, (3, 2), strict=True):
        sample["masks"] = sample["rows"][:1] * 0 + [np.zeros((9, 9), np.uint8)] * masks
    folder = pack(tmp_path / "unlike", samples)
    spec = Pictures("masks", like="frames", each=Mask())
    with (
        load(folder, 2, augment=AUGMENTS["crops"], fields=("frames", spec)) as loader,
        pytest.raises(
            ArgumentError, match=r"'masks' moves like 'frames', picture by picture, and sample .* Pack as many"
        ),
    ):
        list(loader)
    few = pack(tmp_path / "few", [{**sample, "masks": sample["masks"][:1]} for sample in samples])
    with pytest.raises(ArgumentError, match="have 1 pictures in 'masks', 2 to 3 in 'frames'. Pack as many of each"):
        load(few, 2, augment=AUGMENTS["crops"], fields=("frames", spec))


def test_disparities_of_a_list_grow_with_their_width(packed: Path) -> None:
    """A stored pixel of twice the frame's width is half a pixel of a frame that is not scaled."""
    augment = Augment(None, crop="keep", flip=0, **LEVELS)
    fields = ("image", Pictures("frames", geometry="own"), Disparity("columns", like="frames", unit=2.0))
    with load(packed, 4, augment=augment, fields=fields) as loader:
        for _, frames, columns in loader:
            for of_sample, maps in zip(frames, columns, strict=True):
                for frame, disparities in zip(of_sample, maps, strict=True):
                    assert np.allclose(disparities[0].numpy(), frame[0].numpy() + 1.0)


def test_a_preview_shows_them(packed: Path) -> None:
    fields = ("image", "frames", Depth("columns", like="frames"), Pictures("masks", count=2, more="first", fewer="pad"))
    with load(packed, 4, augment=AUGMENTS["crops"], fields=fields) as loader:
        assert loader.preview(3).width > 2 * OUT[1]
