"""Reading alone: encoded samples, every byte copied once into a batch's memory, nothing decoded.

DALI's reader copies when a batch leaves its pipeline. gpuload's reader returns views of the page cache; they are copied
by as many threads as DALI has or, for "into DALI", by a pipeline that is fed as `gpuload.decode.dali.decoder` feeds one
for a GPU.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count, cycle, islice
from typing import Any

import numpy as np

from benchmark.work import Batches, Work


@contextmanager
def open_dali(work: Work) -> Iterator[Batches]:
    """DALI's reader of WebDataset shards, which shuffles in a buffer of 1,024 samples."""
    from nvidia.dali import fn, pipeline_def

    shards = work.shards

    @pipeline_def(batch_size=work.batch_size, num_threads=work.threads, device_id=None, prefetch_queue_depth=2)
    def graph():
        return tuple(
            fn.readers.webdataset(
                paths=[str(path) for path in shards],
                index_paths=[str(path.with_suffix(".idx")) for path in shards],
                ext=["jpg", "cls"],
                random_shuffle=True,
            )
        )

    yield _Outputs(graph())


@contextmanager
def open_gpuload(work: Work) -> Iterator[Batches]:
    """gpuload's order and reader; threads copy the images of a batch into one buffer."""
    ahead = work.threads + 1
    with _open_reader(work) as encoded, ThreadPoolExecutor(work.threads) as pool:
        largest = max(sum(map(len, batch.images)) for batch in islice(encoded, 64))
        buffers = cycle([np.empty(2 * largest, np.uint8) for _ in range(ahead + 1)])

        def batches():
            pending: deque[Any] = deque()
            for batch in encoded:
                pending.append((pool.submit(_copy, batch.images, next(buffers)), batch.columns["label"]))
                if len(pending) > ahead:
                    copied, labels = pending.popleft()
                    yield copied.result(), labels

        yield batches()


def _copy(images: list[np.ndarray], buffer: np.ndarray) -> list[np.ndarray]:
    """The same images in one buffer. NumPy releases the GIL while it copies."""
    ends = np.cumsum([len(image) for image in images])
    np.concatenate(images, out=buffer[: ends[-1]])
    return [buffer[end - len(image) : end] for image, end in zip(images, ends.tolist(), strict=True)]


@contextmanager
def _open_reader(work: Work) -> Iterator[Iterator[Any]]:
    """Encoded batches, epoch after epoch."""
    import gpuload
    from gpuload.order.epoch import EpochOrder
    from gpuload.read.reader import Reader

    dataset = gpuload.Dataset(work.folder)
    reader = Reader(dataset, ["label"])

    def batches():
        for epoch in count():
            order = EpochOrder(dataset.shard_sizes, seed=0, epoch=epoch, window=8)
            for start in range(0, len(order) - work.batch_size + 1, work.batch_size):
                yield reader.read(order, start, start + work.batch_size)

    yield batches()
    reader.close()


@contextmanager
def open_gpuload_into_dali(work: Work) -> Iterator[Batches]:
    """The same, passed to DALI. Labels come from the index and bypass DALI, as in `DaliIterator`."""
    from nvidia.dali import fn, pipeline_def, tensors

    labels: deque[Any] = deque()

    def feed():
        for batch in encoded:
            labels.append(batch.columns["label"])
            yield [tensors.TensorCPU(image) for image in batch.images]

    @pipeline_def(batch_size=work.batch_size, num_threads=work.threads, device_id=None, prefetch_queue_depth=2)
    def graph():
        return fn.external_source(feed(), no_copy=True)

    with _open_reader(work) as encoded:
        yield ((images, labels.popleft()) for (images,) in _Outputs(graph()))


class _Outputs:
    """A pipeline's outputs, batch by batch, endlessly."""

    def __init__(self, pipeline: Any) -> None:
        pipeline.build()
        self._pipeline = pipeline

    def __iter__(self):
        while True:
            yield self._pipeline.run()
