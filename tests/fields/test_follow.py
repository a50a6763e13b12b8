"""Masks, boxes and targets follow every change to their images, with both decoders."""

import math
from pathlib import Path
from typing import Any

import loaders
import pytest
import torch
from painted import FIELDS, KEYPOINTS, Moves, check_boxes, check_keypoints, check_masks, pack_painted

import gpuload
from gpuload.transforms import (
    RandAugment,
    RandomAffine,
    RandomApply,
    RandomPerspective,
    RandomRotation,
    TrivialAugmentWide,
)

SIZE = (48, 56)
GEOMETRY: dict[str, dict[str, Any]] = {
    "random": {"crop": gpuload.RandomResizedCrop((0.3, 1.0))},
    "center": {"crop": gpuload.CenterCrop(64), "flip": 0.5},
    "fraction": {"crop": gpuload.CenterCrop(fraction=0.8), "vertical_flip": 0.5},
    "none": {"crop": "none", "flip": 0.5, "vertical_flip": 0.5},
    "bicubic": {"crop": gpuload.RandomResizedCrop((0.3, 1.0)), "interpolation": "bicubic"},
    "cropped": {"crop": "pad_or_crop", "size": (90, 97), "flip": 0.5, "vertical_flip": 0.5},
    "padded": {"crop": "pad_or_crop", "size": (141, 128), "flip": 0.5},
    "padded at random": {"crop": gpuload.RandomCrop((12, 20), pad_if_needed=True), "size": (120, 150)},
    "moved and scaled": {"crop": "none", "size": (90, 100), "transforms": [RandomAffine(0, (0.1, 0.2), (0.7, 1.3))]},
}


@pytest.fixture(scope="module")
def painted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_painted(tmp_path_factory.mktemp("painted"))


def load(data: Any, decoder: str, augment: Any, batch_size: int = 7, **options: Any) -> gpuload.DaliIterator:
    usual = {"fields": FIELDS, "drop_last": False, "shuffle": gpuload.Shuffle(window=2)}
    return loaders.load(data, batch_size, augment=augment, decoder=decoder, **{**usual, **options})


def shown(**options: Any) -> gpuload.Augment:
    return gpuload.Augment(**{"size": SIZE, "dtype": "uint8", **options})


@pytest.mark.parametrize("geometry", GEOMETRY)
def test_masks_boxes_and_keypoints_follow_their_images(painted: Path, decoder: str, geometry: str) -> None:
    with load(painted, decoder, shown(**GEOMETRY[geometry]), fields=(*FIELDS, KEYPOINTS)) as loader:
        bounded = compared = 0
        for _ in range(2):
            for images, masks, boxes, *_, keypoints in loader:
                check_masks(images, masks)
                bounded += check_boxes(images, boxes)
                compared += check_keypoints(images, keypoints, upright=True)
    assert bounded > 60 and compared > 150


@pytest.mark.parametrize(
    ("transform", "tight", "least"),
    [
        (TrivialAugmentWide(), "inside", 10),
        (RandAugment(3, magnitude=12), "never", 30),
        (RandomApply((RandAugment(1, magnitude=3), TrivialAugmentWide()), p=0.8), "never", 30),
        (RandomRotation(8), "inside", 2),
        (
            RandomApply(
                (RandomRotation(10), RandomAffine(10, shear=10), RandomPerspective(0.2, interpolation="nearest")), p=0.8
            ),
            "never",
            30,
        ),
    ],
    ids=["trivial", "rand", "apply", "rotation", "warps"],
)
def test_they_follow_transforms_after_the_resize(
    painted: Path, decoder: str, transform: Any, tight: Any, least: int
) -> None:
    augment = shown(crop=gpuload.RandomResizedCrop(scale=(0.5, 1.0)), vertical_flip=0.5, transforms=[Moves(transform)])
    still = shown(crop=gpuload.RandomResizedCrop(scale=(0.5, 1.0)), vertical_flip=0.5)
    bounded = compared = moved = 0
    fields = (*FIELDS, KEYPOINTS)
    with load(painted, decoder, augment, fields=fields) as loader, load(painted, decoder, still) as before:
        for (images, masks, boxes, *_, keypoints), (_, unmoved, *_) in zip(loader, before, strict=True):
            check_masks(images, masks)
            bounded += check_boxes(images, boxes, tight)
            compared += check_keypoints(images, keypoints, upright=False)
            moved += int((masks != unmoved).any(dim=(1, 2)).sum())
    assert bounded > least and compared > 40 and moved > 1


def test_colour_changes_do_not_affect_how_pixels_move(painted: Path, decoder: str) -> None:
    """A complete policy moves masks exactly as its geometric transforms alone do."""
    masks = []
    for transform in (RandAugment(3), Moves(RandAugment(3))):
        with load(painted, decoder, shown(transforms=[transform]), fields=("mask",)) as loader:
            masks.append(torch.cat([mask for (mask,) in loader]))
    assert torch.equal(*masks)


def test_pixels_outside_the_image_have_the_masks_fill(painted: Path, decoder: str) -> None:
    fields = ("image", gpuload.Mask("mask", fill=255))
    for options in (GEOMETRY["padded"], {"transforms": [Moves(TrivialAugmentWide())]}):
        with load(painted, decoder, shown(**options), fields=fields) as loader:
            seen = 0
            for images, masks in loader:
                outside = masks == 255
                assert (images.permute(0, 2, 3, 1)[outside] == 0).all()
                # The painted classes start at 1, so no pixel of the image has class 0.
                assert not (masks == 0).any()
                seen += int(outside.sum())
        assert seen > 100


@pytest.mark.parametrize(
    ("options", "augment"),
    [
        ({}, {}),
        ({"output": "numpy"}, {}),
        ({"batch_transforms": [lambda batch: None]}, {}),
        ({"on_corrupt": "mark"}, {"transforms": [TrivialAugmentWide()]}),
        ({}, {"size": None, "crop": "keep"}),
    ],
    ids=["torch", "numpy", "batch", "warped", "own sizes"],
)
def test_masks_are_whole_numbers_of_64_bits_on_request(
    painted: Path, decoder: str, options: dict[str, Any], augment: dict[str, Any]
) -> None:
    """The numbers are the same; losses take them as they are."""
    masks: dict[str, list[Any]] = {}
    for dtype in ("uint8", "int64"):
        fields = ("image", gpuload.Mask("mask", fill=255, dtype=dtype))
        with load(painted, decoder, shown(**augment), fields=fields, **options) as loader:
            masks[dtype] = [mask for batch in loader for mask in batch[1]]
    assert len(masks["int64"]) == 18
    for narrow, wide in zip(masks["uint8"], masks["int64"], strict=True):
        assert (str(narrow.dtype).split(".")[-1], str(wide.dtype).split(".")[-1]) == ("uint8", "int64")
        assert (narrow == wide).all() and tuple(narrow.shape) == tuple(wide.shape)
    target = torch.as_tensor(masks["int64"][0])[None]
    loss = torch.nn.functional.cross_entropy(torch.zeros(1, 256, *target.shape[1:]), target, ignore_index=255)
    assert float(loss) == pytest.approx(math.log(256), abs=1e-3)


def test_targets_change_sign_where_their_image_is_mirrored(painted: Path, decoder: str) -> None:
    negative = total = 0
    options: dict[str, Any] = {"crop": gpuload.RandomResizedCrop((0.5, 1.0)), "vertical_flip": 0.5}
    with (
        load(painted, decoder, shown(**options)) as loader,
        load(painted, decoder, shown(**options, flip=0.0)) as straight,
    ):
        for (images, *_, angles, index, _), (unflipped, *_, plain, _, _) in zip(loader, straight, strict=True):
            assert torch.equal(plain, index + 1.0) and torch.equal(angles.abs(), plain)
            mirrored = (images.flip(3) == unflipped).flatten(1).all(dim=1)
            unchanged = (images == unflipped).flatten(1).all(dim=1)
            assert (mirrored ^ unchanged).all()
            assert torch.equal(angles < 0, mirrored)
            negative, total = negative + int(mirrored.sum()), total + len(images)
    assert 3 <= negative <= total - 3 and total == 18


def test_several_views_each_have_their_own(painted: Path, decoder: str) -> None:
    views = [
        shown(crop=gpuload.RandomResizedCrop(scale=(0.4, 1.0))),
        shown(size=40, crop=gpuload.CenterCrop(resize=44), vertical_flip=0.5, flip=0.5),
        shown(crop=gpuload.RandomResizedCrop(scale=(0.5, 1.0)), transforms=[Moves(TrivialAugmentWide())]),
        shown(size=(130, 120), crop="pad_or_crop", flip=0.5),
    ]
    with load(painted, decoder, views, 9) as loader:
        signs = []
        for images, masks, boxes, angles, index, _ in loader:
            for number in range(4):
                assert images[number].shape[-2:] == views[number].output_size
                check_masks(images[number], masks[number])
                assert check_boxes(images[number], boxes[number], "inside" if number == 2 else "always") > 3
                assert torch.equal(angles[number].abs(), index + 1.0)
            signs.append(torch.stack(angles) < 0)
    flipped = torch.cat(signs, dim=1)
    assert all(1 < int(row.sum()) < 17 for row in flipped) and len({tuple(row.tolist()) for row in flipped}) == 4
