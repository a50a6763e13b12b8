"""The samples of a packed folder, read as any WebDataset reader does, so that peers can be measured without gpuload."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np


def stored_samples(folder: Path) -> Iterator[tuple[bytes, int]]:
    """(encoded image, or .npy file with uint8 (height, width, 3), and its label) in stored order."""
    for shard in sorted(folder.glob("*.tar")):
        with tarfile.open(shard) as tar:
            image = label = None
            for member in tar:
                file = tar.extractfile(member)
                if file is None:
                    continue
                if member.name.endswith((".jpg", ".png", ".npy")):
                    image = file.read()
                elif member.name.endswith(".cls"):
                    label = int(file.read())
                if image is not None and label is not None:
                    yield image, label
                    image = label = None


def stored_arrays(folder: Path) -> Iterator[tuple[np.ndarray, int]]:
    """The same for a set of raw pixels: uint8 (height, width, 3) and its label."""
    for file, label in stored_samples(folder):
        yield np.load(io.BytesIO(file)), label
