"""Packed sets whose maps hold their own coordinates, so that a batch tells where each of its pixels comes from."""

from pathlib import Path
from typing import Any

import numpy as np
from images import encode, smooth_image

import gpuload

SIZES = [(60, 45), (40, 80), (64, 64), (33, 47), (90, 30), (71, 53)]  # (width, height), of one sample after another
COUNT = 18
GRID = 9  # keypoints along each side


def pack_coordinates(folder: Path, *, ratio: float = 1.0, **fields: Any) -> Path:
    """A set of images, each with the coordinates x and y of the centres of its pixels as maps, and a grid of keypoints.

    Args:
        folder: To write to.
        ratio: Sides of the maps, as a share of those of the image.
        fields: Further ones: functions of the size (height, width) of the image.
    """
    samples = [sample_of(number, ratio) for number in range(COUNT)]
    for number, sample in enumerate(samples):
        width, height = SIZES[number % len(SIZES)]
        sample.update({name: make((height, width)) for name, make in fields.items()})
    gpuload.pack(samples, folder, workers=1, progress=False, pictures=tuple(fields))
    return folder / "train"


def sample_of(number: int, ratio: float) -> dict[str, Any]:
    width, height = SIZES[number % len(SIZES)]
    x, y = coordinates((round(height * ratio), round(width * ratio)), 1 / ratio)
    across, down = np.meshgrid(np.linspace(0.5, width - 0.5, GRID), np.linspace(0.5, height - 0.5, GRID))
    points = np.stack([across, down, np.full_like(across, 2)], axis=2).reshape(1, -1, 3)
    return {
        "image": encode(smooth_image(np.random.default_rng(number), width, height), "PNG"),
        "x": _map(x),
        "y": _map(y),
        "keypoints": points.tolist(),
        "label": number,
    }


def coordinates(size: tuple[int, int], step: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """float32 (height, width): x and y of the centre of each pixel, in pixels of the image, `step` of which make one."""
    height, width = size
    x, y = np.meshgrid((np.arange(width) + 0.5) * step, (np.arange(height) + 0.5) * step)
    return x.astype(np.float32), y.astype(np.float32)


def _map(values: np.ndarray) -> bytes:
    """A TIFF of floats, as depth maps often are."""
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(values).save(file, "TIFF")
    return file.getvalue()


def maps_to_output(moved: np.ndarray, number: int) -> np.ndarray | None:
    """float64 (3, 3): the projection from stored to output pixels of a sample, fitted to its keypoints; None where too
    few of them are in the batch.

    Args:
        moved: (K, 3), x, y and visibility of its keypoints.
        number: Of the sample.
    """
    stored = np.array(sample_of(number, 1.0)["keypoints"])[0, :, :2]
    seen = moved[:, 2] > 0
    if seen.sum() < 8:
        return None
    rows = []
    for (x, y), (u, v, _) in zip(stored[seen], moved[seen], strict=True):
        rows.append([x, y, 1, 0, 0, 0, -u * x, -u * y, -u])
        rows.append([0, 0, 0, x, y, 1, -v * x, -v * y, -v])
    *_, right = np.linalg.svd(np.array(rows, np.float64) / 100, full_matrices=False)
    return right[-1].reshape(3, 3) / right[-1, -1]


def origins(projection: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """float64 (2, height, width): where the centres of output pixels lie in the stored image, x and y."""
    height, width = size
    x, y = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    points = np.stack([x, y, np.ones_like(x)]).reshape(3, -1)
    back = np.linalg.inv(projection) @ points
    return (back[:2] / back[2]).reshape(2, height, width)
