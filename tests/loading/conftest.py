"""A packed set of small photo-like images, made with the real packer."""

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from images import smooth_image

from gpuload.cli import main

CLASSES = ("ant", "bee", "cat")
SAMPLES = 97  # a prime: no batch size or world size divides it


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for number in range(SAMPLES):
        path = folder / CLASSES[number % len(CLASSES)] / f"{number:03d}.jpg"
        path.parent.mkdir(exist_ok=True)
        width, height = (int(side) for side in rng.integers(40, 130, 2))
        smooth_image(rng, width, height).save(path, quality=90)
    return folder


@pytest.fixture(scope="session")
def packed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """97 samples in ten shards, of 10 and one of 7."""
    out = tmp_path_factory.mktemp("packed")
    assert main(["pack", str(photos), str(out), "--maxcount", "10", "--workers", "2"]) == 0
    return out / "train"


@pytest.fixture(scope="session")
def transforms() -> ModuleType:
    """torchvision.transforms.v2, also beside a CPU-only torch."""
    importlib.import_module("torchvision_anywhere")
    return importlib.import_module("torchvision.transforms.v2")
