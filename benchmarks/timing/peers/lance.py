"""LanceDB: images in a table, StreamingDataset with a transform, which it calls in threads.

torch's DataLoader collates, as in its documentation: its own one has no drop_last.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from timing.crops import TorchvisionCrop
from timing.peers.dataloader import Moved
from timing.stored import stored_samples
from timing.work import Batches, Work

_TABLE = "images"


def prepare(work: Work, folder: Path) -> None:
    import lancedb
    import pyarrow as pa

    schema = pa.schema({"image": pa.large_binary(), "label": pa.int64()})

    def rows() -> Iterator[Any]:
        for image, label in stored_samples(work.folder):
            yield pa.RecordBatch.from_pylist(
                [{"image": image, "label": label}], schema=schema
            )

    lancedb.connect(folder).create_table(_TABLE, rows(), schema=schema)


@contextmanager
def open_loader(
    work: Work, device: str = "cpu", state: dict[str, Any] | None = None
) -> Iterator[Batches]:
    loader = _Loader(work, device)
    if state is not None:
        loader.load_state_dict(state)
    yield loader if device == "cpu" else Moved(loader, device)


class _Loader:
    """Each pass is the next epoch."""

    def __init__(self, work: Work, device: str) -> None:
        import lancedb
        import torch

        torch.set_num_threads(1)  # the threads of the transform do the work
        self._work = work
        self._pinned = device == "cuda"
        self._crop = TorchvisionCrop(work)
        self._epochs = count()
        self._table = lancedb.connect(work.cache / "lance").open_table(_TABLE)
        self._state: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        import torch
        from lancedb.streaming import StreamingDataset

        threads = self._work.threads
        self._dataset = StreamingDataset(
            self._table,
            epoch=next(self._epochs),
            transform=self._transform,
            transform_parallelism=threads,
        )
        if self._state is not None:
            self._dataset.load_state_dict(self._state)
            self._state = None
        yield from torch.utils.data.DataLoader(
            self._dataset,
            batch_size=self._work.batch_size,
            drop_last=True,
            pin_memory=self._pinned,
        )

    def state_dict(self) -> dict[str, Any]:
        return {"dataset": self._dataset.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state = state["dataset"]

    def _transform(self, batch: Any) -> list[tuple[Any, int]]:
        images = batch.column("image").to_pylist()
        labels = batch.column("label").to_pylist()
        return [
            (self._crop(self._decoded(image)), label)
            for image, label in zip(images, labels, strict=True)
        ]

    def _decoded(self, image: bytes) -> Any:
        import simplejpeg
        import torch

        pixels = (
            np.load(io.BytesIO(image))
            if self._work.raw
            else simplejpeg.decode_jpeg(image)
        )
        return torch.from_numpy(pixels).permute(2, 0, 1)
