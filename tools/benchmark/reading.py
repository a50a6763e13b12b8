"""Reading alone: encoded samples into a DALI pipeline that decodes nothing."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from benchmark.work import Batches, Work


@contextmanager
def open_dali(work: Work) -> Iterator[Batches]:
    """DALI's reader of WebDataset shards, which shuffles in a buffer of 1,024 samples."""
    from nvidia.dali import fn, pipeline_def

    shards = sorted(work.folder.glob("*.tar"))

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
    """gpuload's order and reader: views of memory-mapped shards, handed to DALI as `gpuload.pipeline` does.

    Labels come from the index and never enter DALI, as in `DaliIterator`.
    """
    from nvidia.dali import fn, pipeline_def, tensors

    import gpuload
    from gpuload.order import EpochOrder
    from gpuload.reader import Reader

    dataset = gpuload.Dataset(work.folder)
    reader = Reader(dataset, ["label"])
    labels: deque[Any] = deque()

    def feed():
        for epoch in count():
            order = EpochOrder(dataset.shard_sizes, seed=0, epoch=epoch, window=8)
            for start in range(0, len(order) - work.batch_size + 1, work.batch_size):
                batch = reader.read(order, start, start + work.batch_size)
                labels.append(batch.columns["label"])
                yield [tensors.TensorCPU(image) for image in batch.images]

    @pipeline_def(batch_size=work.batch_size, num_threads=work.threads, device_id=None, prefetch_queue_depth=2)
    def graph():
        return fn.external_source(feed(), no_copy=True)

    yield ((images, labels.popleft()) for (images,) in _Outputs(graph()))
    reader.close()


class _Outputs:
    """A pipeline's outputs, batch by batch, without end."""

    def __init__(self, pipeline: Any) -> None:
        pipeline.build()
        self._pipeline = pipeline

    def __iter__(self):
        while True:
            yield self._pipeline.run()
