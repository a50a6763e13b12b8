"""A function of a sample that draws as no function should, in a module that other processes can import."""

import random
from typing import Any

import numpy as np
import torch


def speckle(sample: Any, rng: np.random.Generator) -> Any:
    level = (np.random.rand() + random.random() + float(torch.rand(1))) / 3  # noqa: NPY002 - the one that is meant
    return (sample["image"] * level).astype(np.uint8)
