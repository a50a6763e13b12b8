"""A loader of small images, as all clients here get it."""

from pathlib import Path
from typing import Any

import gpuload

EPOCHS, BATCHES = 3, 12  # 97 samples in batches of 8; the last is dropped


def load(data: Path | gpuload.Dataset, batch_size: int = 8, **options: Any) -> gpuload.DaliIterator:
    return gpuload.DaliIterator(data, batch_size, **{"augment": gpuload.Augment(8), "device": "cpu", **options})
