"""examples/raw_kernel.py on a GPU: the kernel, in the loader and alone, against its NumPy twin."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import raw_kernel
import torch
from gpu_decoders import DECODERS, Load

from gpuload.batchwise import FieldBatch

pytestmark = pytest.mark.gpu


def test_the_kernel_does_what_numpy_does() -> None:
    cupy: Any = importlib.import_module("cupy")
    rng = np.random.default_rng(0)
    for shape in [(5, 3, 12, 17), (1, 3, 1, 1), (64, 3, 224, 224)]:
        images, strength = rng.normal(size=shape).astype(np.float32), rng.random(shape[0])
        on_gpu = cupy.asarray(images)
        for batch in (images, on_gpu):
            raw_kernel.Fade()(FieldBatch({"image": batch}, None, lambda number, strength=strength: strength))
        np.testing.assert_allclose(on_gpu.get(), images, rtol=1e-5, atol=1e-6)


def test_the_kernel_in_a_loader_is_in_the_order_of_torchs_stream(mixed: Path, load: Load) -> None:
    def losses(**options: Any) -> list[float]:
        # Sums at once, without waiting for the GPU: a kernel that came late would be missing in them.
        return torch.stack([images.sum() for images, _ in load(mixed, 8, DECODERS["default"], **options)]).tolist()

    plain, faded = losses(), losses(batch_transforms=[raw_kernel.Fade()])
    with torch.cuda.stream(torch.cuda.Stream()):
        np.testing.assert_allclose(losses(batch_transforms=[raw_kernel.Fade()]), faded, rtol=1e-5)
    assert not np.allclose(plain, faded)
