"""Functions of a sample, in a module that other processes can import: quickly, so without torch."""

import os
import time
from typing import Any

import numpy as np


def swap_sides(sample: Any, rng: np.random.Generator) -> Any:
    """Left and right swapped in two of three samples, with all that lies in them; then noise that can be compared."""
    image = sample["image"]
    width = image.shape[1]
    if rng.integers(3) == 0:
        return image
    found = {"image": np.ascontiguousarray(image[:, ::-1])}
    if "boxes" in sample:
        x0, y0, x1, y1 = sample["boxes"].T
        found["boxes"] = np.stack([width - x1, y0, width - x0, y1], 1)
    if "mask" in sample:
        found["mask"] = np.ascontiguousarray(sample["mask"][:, ::-1])
    if "keypoints" in sample:
        x, y, visible = np.moveaxis(sample["keypoints"], -1, 0)
        found["keypoints"] = np.stack([np.where(visible > 0, width - x, 0), y, visible], -1)[:, [0, 2, 1]]
    return found


def turn(sample: Any, rng: np.random.Generator) -> Any:
    """Two of three samples turned by 90 degrees, with all that lies in them: height and width change places."""
    image = sample["image"]
    width = image.shape[1]
    if rng.integers(3) == 0:
        return sample
    found = {"image": np.rot90(image)}
    if "boxes" in sample:
        x0, y0, x1, y1 = sample["boxes"].T
        found["boxes"] = np.stack([y0, width - x1, y1, width - x0], 1)
    if "mask" in sample:
        found["mask"] = np.rot90(sample["mask"])
    if "keypoints" in sample:
        x, y, visible = np.moveaxis(sample["keypoints"], -1, 0)
        found["keypoints"] = np.stack([np.where(visible > 0, y, 0), np.where(visible > 0, width - x, 0), visible], -1)
    return found


def speckle(sample: Any, rng: np.random.Generator) -> Any:
    """Every level exclusive or a random one: whoever has other random numbers has other pixels."""
    return sample["image"] ^ rng.integers(0, 256, sample["image"].shape, np.uint8)


def slow_speckle(sample: Any, rng: np.random.Generator) -> Any:
    time.sleep(0.002)
    return speckle(sample, rng)


def refuse_seven(sample: Any, rng: np.random.Generator) -> Any:
    if sample["index"] == 7:
        raise ValueError("seven is refused")
    return sample["image"]


def end_at_seven(sample: Any, rng: np.random.Generator) -> Any:
    if sample["index"] == 7:
        os._exit(3)
    return sample["image"]


class OwnError(Exception):
    """Cannot be unpickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def raise_own(sample: Any, rng: np.random.Generator) -> Any:
    raise OwnError(1, 2)


class NotThere:
    """Can be pickled, and not unpickled."""

    def __call__(self, sample: Any, rng: np.random.Generator) -> Any:
        return sample["image"]

    def __reduce__(self) -> Any:
        return (_refuse, ())


def _refuse() -> None:
    raise ModuleNotFoundError("No module named 'not_there'")
