"""Functions of samples with further pictures, at the top level of a module, as processes need them."""

from typing import Any

import numpy as np


def same(sample: Any, rng: np.random.Generator) -> Any:
    return sample


def change_all(sample: Any, rng: np.random.Generator) -> Any:
    """Colours become their opposites, numbers one more, and a list of pictures is turned around."""
    return {
        "image": 255 - sample["image"],
        "half": 255 - sample["half"],
        "depth": sample["depth"] + 1,
        "frames": np.ascontiguousarray(sample["frames"][::-1]),
    }
