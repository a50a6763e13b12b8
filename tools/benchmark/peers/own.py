"""gpuload itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmark.work import Batches, Work


@contextmanager
def open_loader(
    work: Work, device: str = "cpu", decoder: str = "auto", state: dict[str, Any] | None = None
) -> Iterator[Batches]:
    import gpuload

    augment = gpuload.Augment(work.size, dtype=work.dtype)
    with gpuload.DaliIterator(
        work.folder, work.batch_size, augment=augment, device=device, decoder=decoder, num_threads=work.threads
    ) as loader:
        if state is not None:
            loader.load_state_dict(state)
        yield loader
