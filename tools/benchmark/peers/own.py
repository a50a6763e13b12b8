"""gpuload itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmark.work import Batches, Work


@contextmanager
def open_loader(
    work: Work,
    device: str = "cpu",
    decoder: str = "auto",
    state: dict[str, Any] | None = None,
    steps_per_epoch: int | None = None,
) -> Iterator[Batches]:
    import gpuload

    augment = gpuload.Augment(work.size, dtype=work.dtype)
    with gpuload.DaliIterator(
        work.folder,
        work.batch_size,
        augment=augment,
        device=device,
        decoder=decoder,
        num_threads=work.threads,
        steps_per_epoch=steps_per_epoch,
    ) as loader:
        if state is not None:
            loader.load_state_dict(state)
        yield loader
