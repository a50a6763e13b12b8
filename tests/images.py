"""Creates images for the tests."""

import importlib
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

Folder = Callable[[Mapping[str, bytes]], Path]


def photo(seed: int = 0, width: int = 48, height: int = 32) -> Image.Image:
    """Smooth colours with a bright upper left corner, so that rotations and flips are visible."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 200, (4, 4, 3), np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    image.paste((255, 255, 255), (0, 0, width // 4, height // 4))
    return image


def encode(image: Image.Image, format: str = "JPEG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def smooth_image(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Colour gradients with some texture: it compresses like a photo, so decoders agree on it as they do on photos."""
    coarse = rng.integers(0, 256, (5, 5, 3), np.uint8)
    image = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    return Image.fromarray(np.clip(image + rng.normal(0, 4, (height, width, 1)), 0, 255).astype(np.uint8))


def run_dali(graph: Callable[[Any], Any], count: int) -> list[list[np.ndarray]]:
    """The outputs of DALI's operators for the CPU. graph: makes them, of `nvidia.dali.fn`."""
    fn = pytest.importorskip("nvidia.dali.fn")
    decorate = importlib.import_module("nvidia.dali").pipeline_def(batch_size=count, num_threads=2, device_id=None)
    pipeline = decorate(lambda: graph(fn))()
    pipeline.build()
    return [[np.asarray(one) for one in found] for found in pipeline.run()]


def dali_decodes(images: Sequence[bytes]) -> list[np.ndarray]:
    """What DALI's decoder for the CPU makes of these files."""
    files = [np.frombuffer(data, np.uint8) for data in images]
    return run_dali(lambda fn: fn.decoders.image(fn.external_source(lambda: files), device="cpu"), len(files))[0]


def write_files(root: Path, files: Mapping[str, bytes]) -> None:
    """Writes files, given by their paths relative to `root`."""
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
