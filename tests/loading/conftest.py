"""A packed set of small photo-like images, made with the real packer."""

import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
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
    """torchvision.transforms.v2, also beside a CPU-only torch.

    There is no CPU wheel of torchvision: the one for CUDA fails to import because its compiled operators cannot be
    loaded. Its transforms do not need them, only their names.
    """
    package = Path(importlib.util.find_spec("torchvision").origin).parent  # type: ignore[union-attr, arg-type]
    if torch.version.cuda is None:
        names = set(
            re.findall(r'(?:register_meta\(|torchvision::)"?(\w+)"', (package / "_meta_registrations.py").read_text())
        )
        library = torch.library.Library("torchvision", "DEF")
        for name in names:
            library.define(f"{name}() -> ()")
        _KEPT.append(library)
    return importlib.import_module("torchvision.transforms.v2")


_KEPT: list[torch.library.Library] = []  # the names are gone when the library is
