"""Functions of a sample, in a module that other processes can import: quickly, so without torch."""

import os
import time
from typing import Any

import numpy as np


def swap_sides(sample: Any, rng: np.random.Generator) -> Any:
    """Left and right swapped in two of three samples, with all that lies in them."""
    if rng.integers(3) == 0:
        return sample["image"]
    return _moved(sample, lambda image: image[:, ::-1], lambda x, y, width: (width - x, y), [0, 2, 1])


def turn(sample: Any, rng: np.random.Generator) -> Any:
    """Two of three samples turned by 90 degrees, with all that lies in them: height and width change places."""
    if rng.integers(3) == 0:
        return sample
    return _moved(sample, np.rot90, lambda x, y, width: (y, width - x), [0, 1, 2])


def _moved(sample: Any, move: Any, place: Any, order: list[int]) -> dict[str, Any]:
    """move: of pixels. place: where a point comes to lie. order: of the points of an instance."""
    width = sample["image"].shape[1]
    found = {name: move(sample[name]) for name in ("image", "mask") if name in sample}
    if "boxes" in sample:
        corners = np.stack(place(*np.moveaxis(sample["boxes"].reshape(-1, 2, 2), -1, 0), width), -1)
        found["boxes"] = np.concatenate([corners.min(1), corners.max(1)], 1)
    if "keypoints" in sample:
        x, y, visible = np.moveaxis(sample["keypoints"][:, order], -1, 0)
        found["keypoints"] = np.stack([*place(x, y, width), visible], -1) * (visible > 0)[..., None]
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
