"""webdataset, as in its README: shards shuffled, samples shuffled in a buffer, Pillow, batches made in the workers."""

from collections.abc import Iterator
from contextlib import contextmanager

from timing.crops import TorchvisionCrop
from timing.peers.dataloader import Moved
from timing.work import Batches, Work

# Samples in the shuffle buffer of a worker, as in the README.
_BUFFER = 1000


@contextmanager
def open_loader(work: Work, device: str = "cpu") -> Iterator[Batches]:
    import webdataset as wds

    urls = [str(path) for path in work.shards]
    workers = min(work.threads, len(urls))  # each worker needs at least one shard
    dataset = (
        wds.WebDataset(urls, shardshuffle=100, empty_check=False)
        .shuffle(_BUFFER)
        .decode("pil")
        .to_tuple("jpg", "cls")
        .map_tuple(TorchvisionCrop(work), int)
        .batched(work.batch_size, partial=False)
    )
    loader = wds.WebLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        persistent_workers=True,
        pin_memory=device == "cuda",
    )
    yield _Tensors(loader) if device == "cpu" else Moved(_Tensors(loader), device)
    del loader


class _Tensors:
    """Its batches, with labels as tensors: webdataset returns NumPy arrays."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __iter__(self):
        import torch

        for images, labels in self._batches:
            yield images, torch.as_tensor(labels)
