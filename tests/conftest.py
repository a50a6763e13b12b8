"""Images and folders of images for the tests of the packer."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Folder = Callable[[Mapping[str, bytes]], Path]


def photo(seed: int = 0, width: int = 48, height: int = 32) -> Image.Image:
    """Smooth colours with a bright upper left corner, so that a rotation or a mirror shows."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 200, (4, 4, 3), np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    image.paste((255, 255, 255), (0, 0, width // 4, height // 4))
    return image


def encode(image: Image.Image, format: str = "JPEG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


@pytest.fixture
def make_folder(tmp_path: Path) -> Folder:
    """Writes files, by their relative paths, into a new folder."""
    count = 0

    def make(files: Mapping[str, bytes]) -> Path:
        nonlocal count
        folder = tmp_path / f"source{count}"
        count += 1
        folder.mkdir()
        for name, data in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return folder

    return make


@pytest.fixture(scope="session")
def photo_files() -> dict[str, bytes]:
    """60 JPEGs of three classes: 30 of "ant", 20 of "bee", 10 of "cat"."""
    classes = ["ant"] * 30 + ["bee"] * 20 + ["cat"] * 10
    return {
        f"{name}/{number:02d}.jpg": encode(photo(number, 24 + number, 20 + number % 7))
        for number, name in enumerate(classes)
    }
