"""The stage that divides images into patches: of tensors, as a GPU has them, and of arrays, by several threads."""

from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuload import Augment, Patches
from gpuload.decode.interface import Buffers, Decoded
from gpuload.decode.patches import MakePatches, patch_places, patch_shapes

SIZES = [(8, 12), (16, 4), (4, 4), (12, 12), (8, 8), (4, 20), (12, 8)]  # (height, width) in pixels


def job_of(images: Any) -> Any:
    """A batch whose images were decoded, with the view that they were decoded for."""
    heights, widths = np.array(SIZES, np.int32).T
    view = Augment(None, Patches(4, 100)).draw(0, 0, np.arange(len(SIZES)), widths, heights)
    batch = SimpleNamespace(views_of=lambda name: (view,))
    return SimpleNamespace(batch=batch, decoded=Decoded(batch, batch, {"image": (images,)}))


def expected() -> tuple[np.ndarray, np.ndarray]:
    """The padded images, and their patches, made one by one. Pixels of padding are 99."""
    images = np.full((len(SIZES), 16, 20, 3), 99, np.uint8)
    patches = np.zeros((len(SIZES), 9, 48), np.uint8)
    rng = np.random.default_rng(0)
    for row, (height, width) in enumerate(SIZES):
        image = rng.integers(0, 90, (height, width, 3), np.uint8)
        images[row, :height, :width] = image
        places = [(y, x) for y in range(0, height, 4) for x in range(0, width, 4)]
        for number, (y, x) in enumerate(places):
            patches[row, number] = image[y : y + 4, x : x + 4].reshape(-1)
    return images, patches


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_divide_arrays(threads: int) -> None:
    images, patches = expected()
    memory = Buffers(len(SIZES), "uint8", 1, lambda shape, dtype: np.full(shape, 77, dtype))
    job = job_of(images)
    work = MakePatches("image", 4, threads, memory).begin(job)
    assert work is not None
    workers = [Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    (made,) = job.decoded.pictures["image"]
    assert np.array_equal(made, patches)


def test_tensors_are_divided_at_once() -> None:
    torch = pytest.importorskip("torch")
    images, patches = expected()
    job = job_of(torch.from_numpy(images))
    assert MakePatches("image", 4, 2, Buffers(1, "uint8", 1)).begin(job) is None
    (made,) = job.decoded.pictures["image"]
    assert isinstance(made, torch.Tensor) and np.array_equal(made.numpy(), patches)


def test_places() -> None:
    (view,) = job_of(None).batch.views_of("image")
    shapes = patch_shapes(view, 4)
    assert shapes.tolist() == [[height // 4, width // 4] for height, width in SIZES]
    places, is_valid = patch_places(shapes, 9)
    assert is_valid.sum(axis=1).tolist() == [6, 4, 1, 9, 4, 5, 6]
    assert places[0].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], *[[0, 0]] * 3]
    assert places[1, :4].tolist() == [[0, 0], [1, 0], [2, 0], [3, 0]]
