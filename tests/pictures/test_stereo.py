"""Frames of stereo cameras change places in flipped pairs; what belongs to one of the views is refused with flips."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaders import load, skip_without_dali
from PIL import Image

import gpuload
from gpuload import ArgumentError, Augment, Depth, Disparity, Mask, Picture, Pictures

SIZE = (20, 30)
COUNTS = [2, 0, 3, 1, 2, 2, 1, 3]
FLIPPED = Augment(SIZE, crop="none", flip=0.5, normalize=None, dtype="uint8")


def pair(rng: np.random.Generator, offset: int) -> dict[str, Any]:
    """Views and the disparities of each: left[x] is right[x - offset], where that is in the picture."""
    left = rng.integers(0, 256, (*SIZE, 3), dtype=np.uint8)
    of_left = np.full(SIZE, 256 * offset, np.uint16)
    of_right = of_left.copy()
    of_left[:, :offset] = 0
    of_right[:, -offset:] = 0
    views = {"left": left, "right": np.roll(left, -offset, axis=1)}
    return {**views, "disparity": Image.fromarray(of_left), "disparity_right": Image.fromarray(of_right)}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(8)
    samples = []
    for number, count in enumerate(COUNTS):
        pairs = [pair(rng, 1 + (number + place) % 4) for place in range(count)]
        samples.append({name: [views[name] for views in pairs] for name in pair(rng, 1)} | {"label": number})
    folder = tmp_path_factory.mktemp("stereo") / "set"
    names = ("left", "right", "disparity", "disparity_right")
    gpuload.pack(samples, folder, workers=1, progress=False, pictures=names, lossless=True)
    return folder / "train"


def check_pairs(lefts: Any, rights: Any, disparities: Any, others: Any) -> None:
    for left, right, disparity, other in zip(lefts, rights, disparities, others, strict=True):
        offset = int(disparity.max())
        assert offset > 0
        assert (disparity[..., :offset] == 0).all() and (disparity[..., offset:] == offset).all()
        assert (other[..., -offset:] == 0).all() and (other[..., :-offset] == offset).all()
        assert np.array_equal(left[..., offset:], right[..., :-offset])


@pytest.mark.parametrize("decoder", ["native", "dali", "both"])
@pytest.mark.parametrize("geometry", ["shared", "own"])
def test_frames_change_places_by_number(packed: Path, geometry: Any, decoder: str) -> None:
    skip_without_dali(decoder)
    fields = (
        Pictures("left", geometry=geometry),
        Pictures("right", like="left", swapped=True),
        Disparity("disparity", like="left", unit=1 / 256),
        Disparity("disparity_right", like="disparity", unit=1 / 256, swapped=True),
    )
    with load(packed, 8, augment=FLIPPED, fields=fields, decoder=decoder, seed=3) as loader:
        batch = next(iter(loader))
    check_pairs(*(field.pixels.numpy() for field in batch))
    assert sorted(batch[0].counts.tolist()) == sorted(COUNTS)
    # Of some pairs the views were exchanged, else nothing was tested.
    with load(
        packed, 8, augment=FLIPPED, fields=(fields[0], Pictures("right", like="left")), decoder=decoder, seed=3
    ) as loader:
        left = next(iter(loader))[0]
    is_same = [
        np.array_equal(one, other) for one, other in zip(left.pixels.numpy(), batch[0].pixels.numpy(), strict=True)
    ]
    assert 0 < sum(is_same) < len(is_same)


def test_chosen_frames_change_places(packed: Path) -> None:
    fields = (
        Pictures("left", count=2, more="even", fewer="pad"),
        Pictures("right", like="left", swapped=True),
        Pictures("disparity", like="left", each=Disparity(unit=1 / 256)),
        Pictures("disparity_right", like="disparity", swapped=True, each=Disparity(unit=1 / 256)),
    )
    with load(packed, 8, augment=FLIPPED, fields=fields, seed=3) as loader:
        batch = next(iter(loader))
    is_there = np.arange(2) < batch[0].counts.numpy()[:, None]
    check_pairs(*(field.pixels.numpy()[is_there] for field in batch))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((Pictures("left"), Pictures("right", like="label", swapped=True)), "moves as 'label'"),
        ((Pictures("left"), Pictures("right", like="left"), Disparity("disparity", like="left"),
          Disparity("disparity_right", like="disparity", swapped=True)),
         "and the views that they belong to do not. Request the other view, too, with swapped=True"),
        ((Pictures("left"), Pictures("right", like="left", swapped=True), Disparity("disparity", like="left")),
         "whose disparity is then that of the other view. Give it, too, as Disparity"),
        ((Pictures("left"), Pictures("right", like="left", swapped=True), Depth("disparity", like="left")),
         "'disparity' is that of 'left' alone. Use Augment\\(flip=0\\)"),
    ],
)  # fmt: skip
def test_what_belongs_to_one_list_is_refused(packed: Path, fields: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        load(packed, 4, augment=FLIPPED, fields=fields)
    plain = Augment(SIZE, crop="none", flip=0, vertical_flip=0.5, normalize=None)
    if "label" not in message:
        assert len(list(load(packed, 4, augment=plain, fields=fields))) == 2


def test_swapped_needs_another_list() -> None:
    with pytest.raises(ArgumentError, match="changes places with another list. Name it: like='left'"):
        Pictures("right", swapped=True)


def test_maps_masks_and_boxes_of_one_view_are_not_flipped_with_both(tmp_path: Path) -> None:
    """They would lie on the other view, off by the disparity."""
    rng = np.random.default_rng(1)
    samples = [
        {
            **{name: view for name, view in pair(rng, 2).items() if name in ("left", "right")},
            "depth": np.full(SIZE, 700, np.uint16),
            "mask": np.ones(SIZE, np.uint8),
            "boxes": [[1, 2, 9, 9]],
            "label": 0,
        }
        for _ in range(4)
    ]
    gpuload.pack(samples, tmp_path, workers=1, progress=False, pictures=("left", "right", "depth"))
    views: tuple[Any, ...] = ("left", Picture("right", swapped=True), "label")
    for spec in (Depth("depth"), Depth("depth", like="right"), Mask(), "boxes"):
        with pytest.raises(
            ArgumentError, match="change places in flipped images, and .* is that of '(left|right)' alone"
        ):
            load(tmp_path / "train", 2, augment=FLIPPED, fields=(*views, spec))
        plain = Augment(SIZE, crop="none", flip=0, vertical_flip=0.5, normalize=None)
        load(tmp_path / "train", 2, augment=plain, fields=(*views, spec)).close()
        # Of one view alone flips are as ever.
        if spec != Depth("depth", like="right"):
            load(tmp_path / "train", 2, augment=FLIPPED, fields=("left", spec)).close()
