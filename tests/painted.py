"""A packed set whose images show their masks and boxes: each class has a colour, each box bounds a painted rectangle.

The background is gray, and black outside the image. The other colours touch only these two, so that blended pixels at
an edge are nearest to one of the two classes that meet there too.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from damaged import damage
from images import encode
from PIL import Image

import gpuload
from gpuload.transforms.ops import Op
from gpuload.transforms.steps import Steps

COLOURS = np.array([[0, 0, 0], [128, 128, 128], [255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 0]], np.uint8)
FIRST_SHAPE = 2  # the mask's class that is number 0 among the boxes' classes
FIELDS = (
    "image",
    "mask",
    gpuload.Boxes("boxes", min_visible=0.0),
    gpuload.Target("angle", negate_on_flip=True),
    "index",
    "key",
)


def paint(number: int, side: int = 100) -> dict[str, Any]:
    """A sample with a rectangle in each of its quarters, or in three of them in every second sample."""
    rng = np.random.default_rng(number)
    width, height = side + number % 5 * 11, side + number % 3 * 17
    mask = np.ones((height, width), np.uint8)
    boxes, names, points = [], [], []
    for quarter in range(3 + number % 2):
        x0, y0 = (int(low) for low in rng.integers(4, 12, 2))
        x1, y1 = width // 2 - int(rng.integers(4, 12)), height // 2 - int(rng.integers(4, 12))
        dx, dy = quarter % 2 * (width // 2), quarter // 2 * (height // 2)
        mask[y0 + dy : y1 + dy, x0 + dx : x1 + dx] = 2 + quarter
        boxes.append([x0 + dx, y0 + dy, x1 + dx, y1 + dy])
        names.append(f"class{2 + quarter}")
        center, left, right = (x0 + x1) / 2 + dx, x0 + 4 + dx, x1 - 4 + dx
        points.append([[x, (y0 + y1) / 2 + dy, 2] for x in (center, left, right)])
    return {
        "image": encode(Image.fromarray(COLOURS[mask]), "PNG"),
        "name": f"{side}-{number:02d}",
        "mask": mask,
        "boxes": boxes,
        "boxes_class": names,
        "keypoints": points,
        "angle": number + 1.0,
        "label": f"class{number % 3}",
        "caption": f"picture {number}",
    }


def pack_painted(folder: Path, count: int = 18, side: int = 100) -> Path:
    gpuload.pack([paint(number, side) for number in range(count)], folder, workers=1, maxcount=5, shuffle=False)
    return folder / "train"


def pack_hostile(folder: Path, text: str, name: str, changed: Mapping[int, Mapping[str, Any]] | None = None) -> Path:
    """A set in which every text is this one, with an image that is damaged and one that was rejected; folder/sound/train
    is the set without damage.

    name: of files, before their numbers. changed: texts of single samples.
    """
    samples = [
        {**sample, "label": f"{text}{n % 3}", "caption": text, "name": f"{name}{n}"}
        | {"boxes_class": [text] * len(sample["boxes"])}
        | dict((changed or {}).get(n, {}))
        for n, sample in enumerate(paint(n, 60) for n in range(12))
    ]
    rejected = {**samples[0], "image": b"no", "name": f"{name}bad"}
    gpuload.pack([*samples, rejected], folder / "sound", workers=1, maxcount=6)
    damage(folder / "sound" / "train", folder / "train", [8])
    with (folder / "train" / "rejected.jsonl").open("a") as lines:
        lines.write(json.dumps({"source": text, "reason": text}) + "\nno JSON\n[]\n")
    return folder / "train"


class Moves:
    """A transform reduced to its geometric part: colours do not change."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def draw(self, draws: Any, height: int, width: int) -> Steps:
        steps = self.transform.draw(draws, height, width)
        return steps._replace(ops=np.where(steps.ops >= Op.AFFINE, steps.ops, np.int8(Op.NOTHING)))


def classes_of(images: torch.Tensor) -> npt.NDArray[np.int64]:
    """int64 (N, height, width): the class with the colour nearest to each pixel of uint8 (N, 3, height, width)."""
    pixels = images.permute(0, 2, 3, 1).numpy().astype(np.int32)[..., None, :]
    return np.asarray(((pixels - COLOURS.astype(np.int32)) ** 2).sum(axis=-1).argmin(axis=-1), np.int64)


def inside(classes: npt.NDArray[Any], reach: int) -> npt.NDArray[np.bool_]:
    """bool (N, height, width): whether all pixels of the image at most `reach` away have the same class."""
    padded = np.pad(classes, [(0, 0), (reach, reach), (reach, reach)], mode="edge")
    height, width = classes.shape[1:]
    same = np.ones(classes.shape, bool)
    for y in range(2 * reach + 1):
        for x in range(2 * reach + 1):
            same &= padded[:, y : y + height, x : x + width] == classes
    return same


def check_masks(images: torch.Tensor, masks: torch.Tensor) -> None:
    """Asserts that pixels away from edges have the colours of their classes, and that there are enough of both."""
    assert images.shape[-2:] == masks.shape[-2:] and masks.dtype == torch.uint8
    found, expected = classes_of(images), masks.numpy()
    away_from_edges = inside(expected, 1)
    assert (found[away_from_edges] == expected[away_from_edges]).all()
    assert away_from_edges.mean() > 0.5 and len(np.unique(expected[away_from_edges])) >= 3


def check_boxes(images: torch.Tensor, boxes: Any, tight: Literal["always", "inside", "never"] = "always") -> int:
    """Asserts that each box bounds its shape to within a pixel; returns the number of boxes compared.

    tight: which boxes must be as small as their shapes. After one rotation, which may move a corner of a shape out of
    the image, only those "inside" the image must be, within two pixels, since a corner can be too thin to contain the
    centre of one; after several rotations "never".
    """
    height, width = images.shape[-2:]
    compared = 0
    for classes, rows, labels, count in zip(classes_of(images), *map(np.asarray, boxes), strict=True):
        for box, label in zip(rows[:count], labels[:count], strict=True):
            assert (box >= 0).all() and (box <= [width, height, width, height]).all() and (box[2:] > box[:2]).all()
            if (box[2:] - box[:2]).min() < 3:
                continue
            is_inside = (box[:2] > 1).all() and (box[2:] < [width - 1, height - 1]).all()
            is_tight = tight == "always" or (tight == "inside" and is_inside)
            ys, xs = np.nonzero(classes == FIRST_SHAPE + label)
            if is_tight or len(xs):
                shape = np.array([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])
                larger = (shape - box) * [1, 1, -1, -1]  # how far the box extends beyond the shape on each side
                assert (larger >= -1).all() and (not is_tight or (larger <= (1 if tight == "always" else 2)).all())
                compared += int(is_tight or tight == "never")
        assert set(np.unique(classes[classes > 1])) <= set(FIRST_SHAPE + labels[:count])  # no shape without a box
    return compared


# Each instance is the middle of a shape, and a point at its left and at its right side, which change places on a flip.
KEYPOINTS = gpuload.Keypoints("keypoints", flip_pairs=((1, 2),), min_visible=0)


def check_keypoints(images: torch.Tensor, keypoints: Any, upright: bool) -> int:
    """Each visible point lies on a pixel of its shape's colour, unless the shape has no pixel there; how many did.

    upright: nothing was turned, so that left is left: of each instance the left point is left of the right one.
    """
    compared = 0
    height, width = images.shape[-2:]
    classes = classes_of(images)
    sure = inside(classes, 1)
    for row, (instances, count) in enumerate(zip(*map(np.asarray, keypoints), strict=True)):
        for instance in instances[:count]:
            visible = instance[:, 2] > 0
            assert (instance[~visible] == 0).all()
            assert ((instance[:, :2] >= 0) & (instance[:, :2] <= [width, height])).all()
            places = np.minimum(np.floor(instance[visible, :2]), [width - 1, height - 1]).astype(int)
            found = {int(classes[row, y, x]) for x, y in places if sure[row, y, x]}
            assert len(found) <= 1 and all(one >= FIRST_SHAPE for one in found)  # all of one shape, none of the ground
            compared += sum(bool(sure[row, y, x]) for x, y in places)
            if upright and visible[1] and visible[2]:
                assert instance[1, 0] < instance[2, 0]
    return compared
