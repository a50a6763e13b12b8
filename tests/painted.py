"""A packed set whose images show their masks and boxes: each class is a colour, each box bounds a painted rectangle.

Gray ground, black outside; the other colours touch nothing but these two, so that also half-mixed pixels of an edge are
nearest to one of the two classes that meet there.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from images import encode
from PIL import Image

import gpuload
from gpuload.transforms.steps import Op, Steps, Transform

COLOURS = np.array([[0, 0, 0], [128, 128, 128], [255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 0]], np.uint8)
FIRST_SHAPE = 2  # the class of which is number 0 of the boxes' classes
FIELDS = (
    "image",
    "mask",
    gpuload.Boxes("boxes", min_visible=0.0),
    gpuload.Target("angle", negate_on_flip=True),
    "index",
    "key",
)


def paint(number: int, side: int = 100) -> dict[str, Any]:
    """A sample with a rectangle in each of its quarters, but for one of them in every second sample."""
    rng = np.random.default_rng(number)
    width, height = side + number % 5 * 11, side + number % 3 * 17
    mask = np.ones((height, width), np.uint8)
    boxes, names = [], []
    for quarter in range(3 + number % 2):
        x0, y0 = (int(low) for low in rng.integers(4, 12, 2))
        x1, y1 = width // 2 - int(rng.integers(4, 12)), height // 2 - int(rng.integers(4, 12))
        dx, dy = quarter % 2 * (width // 2), quarter // 2 * (height // 2)
        mask[y0 + dy : y1 + dy, x0 + dx : x1 + dx] = 2 + quarter
        boxes.append([x0 + dx, y0 + dy, x1 + dx, y1 + dy])
        names.append(f"class{2 + quarter}")
    return {
        "image": encode(Image.fromarray(COLOURS[mask]), "PNG"),
        "name": f"{side}-{number:02d}",
        "mask": mask,
        "boxes": boxes,
        "boxes_class": names,
        "angle": number + 1.0,
        "label": f"class{number % 3}",
        "caption": f"picture {number}",
    }


def pack_painted(folder: Path, count: int = 18, side: int = 100) -> Path:
    gpuload.pack([paint(number, side) for number in range(count)], folder, workers=1, maxcount=5, shuffle=False)
    return folder / "train"


class Moves:
    """A transform reduced to what moves pixels: the colours stay."""

    def __init__(self, transform: Transform) -> None:
        self.transform = transform

    def draw(self, draws: Any, height: int, width: int) -> Steps:
        steps = self.transform.draw(draws, height, width)
        return steps._replace(ops=np.where(steps.ops == Op.AFFINE, steps.ops, np.int8(Op.NOTHING)))


def classes_of(images: torch.Tensor) -> npt.NDArray[np.int64]:
    """int64 (N, height, width): the class of the colour nearest to each pixel of uint8 (N, 3, height, width)."""
    pixels = images.permute(0, 2, 3, 1).numpy().astype(np.int32)[..., None, :]
    return np.asarray(((pixels - COLOURS.astype(np.int32)) ** 2).sum(axis=-1).argmin(axis=-1), np.int64)


def inside(classes: npt.NDArray[Any], reach: int) -> npt.NDArray[np.bool_]:
    """Where all of the pixels at most `reach` away, of those that are in the image, are of the same class."""
    padded = np.pad(classes, [(0, 0), (reach, reach), (reach, reach)], mode="edge")
    height, width = classes.shape[1:]
    same = np.ones(classes.shape, bool)
    for y in range(2 * reach + 1):
        for x in range(2 * reach + 1):
            same &= padded[:, y : y + height, x : x + width] == classes
    return same


def check_masks(images: torch.Tensor, masks: torch.Tensor) -> None:
    """Away from edges each pixel is of its class's colour, and there are enough of both to say so."""
    assert images.shape[-2:] == masks.shape[-2:] and masks.dtype == torch.uint8
    found, expected = classes_of(images), masks.numpy()
    sure = inside(expected, 1)
    assert (found[sure] == expected[sure]).all()
    assert sure.mean() > 0.5 and len(np.unique(expected[sure])) >= 3


def check_boxes(images: torch.Tensor, boxes: Any, tight: Literal["always", "inside", "never"] = "always") -> int:
    """Each shape is bounded by its box to within a pixel; how many were.

    tight: whether boxes must be as small as their shapes. One turn may move a corner of a shape out of the image, so
    that those "inside" of it must, within two pixels, since corners can be too thin to hold one; after several turns
    none needs to be.
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
                larger = (shape - box) * [1, 1, -1, -1]  # by how much the box is the larger one, at each side
                assert (larger >= -1).all() and (not is_tight or (larger <= (1 if tight == "always" else 2)).all())
                compared += int(is_tight or tight == "never")
        assert set(np.unique(classes[classes > 1])) <= set(FIRST_SHAPE + labels[:count])  # no shape without a box
    return compared
