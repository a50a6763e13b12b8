"""Hugging Face datasets: the shards as a stream of webdataset, decoded by Pillow in the workers of a DataLoader."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from timing.crops import TorchvisionCrop
from timing.peers.dataloader import Moved, seed_worker
from timing.work import Batches, Work

_BUFFER = 1000  # samples of the shuffle buffer of a worker, its default


@contextmanager
def open_loader(work: Work, device: str = "cpu") -> Iterator[Batches]:
    import torch
    from datasets import load_dataset

    files = [str(path) for path in work.shards]
    stream = load_dataset("webdataset", data_files=files, split="train", streaming=True)
    loader = torch.utils.data.DataLoader(
        stream.shuffle(seed=0, buffer_size=_BUFFER),
        work.batch_size,
        num_workers=work.threads,
        drop_last=True,
        persistent_workers=True,
        pin_memory=device == "cuda",
        collate_fn=partial(_collate, TorchvisionCrop(work)),
        worker_init_fn=seed_worker,
    )
    yield loader if device == "cpu" else Moved(loader, device)
    del loader


def _collate(
    crop: TorchvisionCrop, samples: Sequence[dict[str, Any]]
) -> tuple[Any, Any]:
    import torch

    images = torch.stack([crop(sample["jpg"]) for sample in samples])
    return images, torch.tensor([sample["cls"] for sample in samples])
