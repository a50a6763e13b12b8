"""Rotations, affine maps and perspectives: pixels, masks, boxes and keypoints are torchvision's."""

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_transforms_pixels import draw, picture

from gpuload.augment.crops import whole_images
from gpuload.decode.postprocess import transform, warp_masks
from gpuload.draws import make_key
from gpuload.fields.boxes import move_boxes
from gpuload.fields.motion import Motion
from gpuload.transforms import RandAugment, RandomAffine, RandomApply, RandomInvert, RandomPerspective, RandomRotation
from gpuload.transforms.steps import sample_draws
from gpuload.transforms.warps import affine_of

HEIGHT, WIDTH = 61, 47
CORNERS = [[0, 0], [WIDTH - 1, 0], [WIDTH - 1, HEIGHT - 1], [0, HEIGHT - 1]]


def fixed(*numbers: float) -> Any:
    """Random numbers of one sample; 0 beyond those given."""
    return lambda number: np.full(1, numbers[number] if number < len(numbers) else 0.0)


def theirs(name: str, *arguments: Any, **options: Any) -> Callable[[ModuleType, Any, str], Any]:
    """torchvision's function, for an image, a mask, boxes or keypoints."""

    def run(functional: ModuleType, value: Any, mode: str) -> Any:
        found = importlib.import_module("torchvision.transforms").InterpolationMode(mode)
        return getattr(functional, name)(value, *arguments, interpolation=found, **options)

    return run


def perspective_case(share: float, seed: int) -> tuple[Any, Any, Any]:
    """The corners as torchvision's `make_params` places them, by the same random numbers."""
    drawn = np.random.default_rng(seed).random(8)
    room = [int(share * (side // 2)) + 1 for side in (WIDTH, HEIGHT)]
    moved = np.floor(drawn.reshape(4, 2) * room).astype(int)
    far = np.array([WIDTH, HEIGHT]) - room
    ends = moved + far * np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
    transform = {"distortion_scale": share, "p": 1.0}
    return (RandomPerspective, transform), fixed(0, *drawn), theirs("perspective", CORNERS, ends.tolist())


CASES: dict[str, tuple[Any, Any, Any]] = {
    "rotation": ((RandomRotation, {"degrees": 30}), fixed(0.9), theirs("rotate", 24.0)),
    "about a point": (
        (RandomRotation, {"degrees": (-40, 10), "center": (3, 7)}),
        fixed(0.2),
        theirs("rotate", -30.0, center=[3, 7]),
    ),
    "affine": (
        (
            RandomAffine,
            {"degrees": 30, "translate": (0.1, 0.2), "scale": (0.5, 1.5), "shear": (-10, 10, -20, 20)},
        ),
        fixed(0.9, 0.8, 0.3, 0.2, 0.6, 0.95),
        theirs("affine", 24.0, [round(0.6 * 0.1 * WIDTH), round(-0.4 * 0.2 * HEIGHT)], 0.7, [2.0, 18.0]),
    ),
    "affine about a point": (
        (RandomAffine, {"degrees": 0, "shear": 20, "scale": (0.8, 0.8), "center": (20, 13)}),
        fixed(0.5, 0.5, 0.5, 0.5, 0.25),
        theirs("affine", 0.0, [0, 0], 0.8, [-10.0, 0.0], center=[20, 13]),
    ),
    **{f"perspective {seed}": perspective_case(0.5, seed) for seed in range(3)},
}


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("case", CASES)
def test_pixels_masks_boxes_and_keypoints_are_torchvisions(transforms: ModuleType, case: str, mode: str) -> None:
    (made, arguments), draws, their = CASES[case]
    functional, tv = transforms.functional, importlib.import_module("torchvision.tv_tensors")
    steps = made(**arguments, interpolation=mode).draw(draws, HEIGHT, WIDTH)
    image = picture(HEIGHT, WIDTH)
    found, expected = transform(image[None], steps)[0], their(functional, tv.Image(image), mode)
    assert float(((found.int() - expected.int()).abs() > 1).float().mean()) < 0.002  # ties between two nearest pixels

    filled = made(**arguments, interpolation=mode, fill=(9, 200, 77)).draw(draws, HEIGHT, WIDTH)
    outside = their(functional, tv.Image(torch.full_like(image, 255)), mode) == 0
    levels = transform(image[None], filled)[0].permute(1, 2, 0)
    assert (levels[outside.all(dim=0)] == torch.tensor([9, 200, 77], dtype=torch.uint8)).all() and outside.any()

    mask = picture(HEIGHT, WIDTH, 1)[0]
    moved = warp_masks(mask[None], steps, 5)[0]
    reference = their(functional, tv.Mask(torch.stack([mask, torch.ones_like(mask)])), mode)
    reference = torch.where(reference[1] == 1, reference[0], torch.tensor(5, dtype=torch.uint8))
    assert float((moved != reference).float().mean()) < 0.002

    matrix = affine_of(steps, HEIGHT, WIDTH)
    assert matrix is not None and matrix.shape == ((1, 3, 3) if "perspective" in case else (1, 2, 3))
    points = np.random.default_rng(2).uniform(5, 40, (20, 2))
    ours = np.c_[points, np.ones(20)] @ matrix[0].T
    ours = ours[:, :2] / ours[:, 2:] if "perspective" in case else ours
    keypoints = tv.KeyPoints(torch.from_numpy(points), canvas_size=(HEIGHT, WIDTH))
    kept = ((ours >= 1) & (ours <= [WIDTH - 1, HEIGHT - 1])).all(axis=1)  # torchvision moves the others to the edge
    assert kept.sum() > 3
    np.testing.assert_allclose(ours[kept], their(functional, keypoints, mode).numpy()[kept], atol=1e-3)

    boxes = np.sort(np.random.default_rng(3).uniform(0, 47, (30, 2, 2)), axis=1).reshape(-1, 4)
    size = np.array([WIDTH], np.float64), np.array([HEIGHT], np.float64)
    placed, _ = move_boxes(boxes, np.zeros(30, np.int64), Motion(whole_images(*size), (HEIGHT, WIDTH), matrix))
    form = {"format": "XYXY", "canvas_size": (HEIGHT, WIDTH)}
    np.testing.assert_allclose(
        placed, their(functional, tv.BoundingBoxes(torch.from_numpy(boxes), **form), mode).numpy(), atol=1e-3
    )


@pytest.mark.parametrize(
    ("parts", "steps"),
    [
        (
            [
                RandomRotation(20, "bilinear"),
                RandomAffine(0, (0.05, 0.05), interpolation="bilinear"),
                RandomApply((RandomPerspective(0.2, 0.5),), p=0.5),
            ],
            1,
        ),
        ([RandomRotation(20, "bilinear"), RandomRotation(20, "nearest")], 2),
        ([RandomRotation(20, fill=3), RandomRotation(20, fill=4)], 2),
        ([RandomRotation(20), RandomInvert(0.5), RandomRotation(20)], 3),
        ([RandAugment(1, 20), RandAugment(1, 20), RandAugment(1, 20)], 3),
    ],
)
def test_warps_in_a_row_become_one_where_they_are_alike(parts: list[Any], steps: int) -> None:
    """In any case, each point of an image goes where one after the other would move it."""
    merged = draw(*parts, count=40, height=HEIGHT, width=WIDTH)
    assert merged.ops.shape == (40, steps)
    alone = [part.draw(sample_draws(make_key(0, i), np.arange(40)), HEIGHT, WIDTH) for i, part in enumerate(parts)]
    expected = np.tile([20.0, 30.0, 1.0], (40, 1))
    for matrix in [affine_of(one, HEIGHT, WIDTH) for one in alone]:
        if matrix is not None:
            moved = np.einsum("nij,nj->ni", matrix, expected)
            expected = moved / moved[:, 2:] if matrix.shape[1] == 3 else np.c_[moved, np.ones(40)]
    found = np.einsum("nij,j->ni", affine_of(merged, HEIGHT, WIDTH), [20.0, 30.0, 1.0])
    found = found[:, :2] / found[:, 2:] if found.shape[1] == 3 else found
    np.testing.assert_allclose(found, expected[:, :2], atol=1e-3)


@given(share=st.floats(0, 1), seed=st.integers(0, 1000), height=st.integers(1, 40), width=st.integers(1, 40))
@settings(max_examples=60)
def test_a_perspective_never_folds_the_image(share: float, seed: int, height: int, width: int) -> None:
    """Each point of the image has one place in the output, in front of the camera."""
    samples = np.arange(8)
    steps = RandomPerspective(share, 1.0).draw(sample_draws(make_key(seed), samples), height, width)
    assert np.isfinite(steps.args).all()
    matrices = affine_of(steps, height, width)
    if matrices is not None and matrices.shape[1] == 3:
        corners = np.array([(0, 0, 1), (width - 1, 0, 1), (0, height - 1, 1), (width - 1, height - 1, 1)])
        moved = np.einsum("nij,pj->npi", matrices, corners)
        assert (moved[..., 2] * moved[:, :1, 2] > 0).all()
        places = moved[..., :2] / moved[..., 2:]
        assert (places > -0.01).all() and (places < [width, height]).all()
