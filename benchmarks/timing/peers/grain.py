"""Grain: ArrayRecord, a shuffled MapDataset, and functions that its threads call: simplejpeg and OpenCV."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from timing.crops import OpenCVCrop, decode_rgb
from timing.peers.dataloader import Moved
from timing.stored import stored_samples
from timing.work import Batches, Work

_LABEL_BYTES = 8


def prepare(work: Work, folder: Path) -> None:
    """A record is a label and the bytes of its image, each in a group of its own, as random access asks for."""
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(folder / "set.array_record"), "group_size:1")
    for encoded, label in stored_samples(work.folder):
        writer.write(label.to_bytes(_LABEL_BYTES, "little") + encoded)
    writer.close()


@contextmanager
def open_loader(work: Work, device: str = "cpu") -> Iterator[Batches]:
    yield _Epochs(work) if device == "cpu" else Moved(_Epochs(work), device)


class _Epochs:
    """Each pass is an epoch, of a seed of its own."""

    def __init__(self, work: Work) -> None:
        import cv2
        import grain
        import torch

        cv2.setNumThreads(0)  # its threads already use all cores
        torch.set_num_threads(1)
        self._work = work
        self._crop = OpenCVCrop(work)
        self._seeds = count()
        self._source = grain.sources.ArrayRecordDataSource(
            str(work.cache / "grain" / "set.array_record")
        )

    def __iter__(self) -> Iterator[Any]:
        import grain

        dataset = (
            grain.MapDataset.source(self._source)
            .seed(next(self._seeds))
            .shuffle()
            .map(self._sample)
        )
        batches = dataset.batch(
            self._work.batch_size, drop_remainder=True, batch_fn=_batch
        )
        # A buffer of batches, not of samples; its default of 500 would keep 20 GB of them.
        yield from batches.to_iter_dataset(
            grain.ReadOptions(num_threads=self._work.threads, prefetch_buffer_size=4)
        )

    def _sample(self, record: bytes) -> tuple[Any, int]:
        label = int.from_bytes(record[:_LABEL_BYTES], "little")
        return self._crop(decode_rgb(record[_LABEL_BYTES:])), label


def _batch(samples: Sequence[tuple[Any, int]]) -> tuple[Any, Any]:
    import torch

    images = torch.stack([image for image, _ in samples])
    return images, torch.tensor([label for _, label in samples])
