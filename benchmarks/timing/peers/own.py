"""gpuload itself."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from timing.work import Batches, Work


@contextmanager
def open_loader(
    work: Work,
    device: str = "cpu",
    decoder: str = "auto",
    state: dict[str, Any] | None = None,
    steps_per_epoch: int | None = None,
) -> Iterator[Batches]:
    import gpuload

    dataset = gpuload.Dataset(work.folder)
    fields = [name for name in ("image", "label") if name in dataset.fields]
    with gpuload.DaliIterator(
        dataset,
        work.batch_size,
        augment=gpuload.Augment(
            work.size,
            crop="none" if work.whole else "random",
            flip=0.5,
            dtype=work.dtype,
        ),
        fields=fields,
        device=device,
        decoder=decoder,
        num_threads=work.threads,
        steps_per_epoch=steps_per_epoch,
    ) as loader:
        if state is not None:
            loader.load_state_dict(state)
        yield loader if "label" in fields else _Unlabelled(loader)


class _Unlabelled:
    """Batches of a set without labels, each sample with label 0."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for (images,) in self._loader:
            yield images, images.new_zeros(len(images), dtype=int)

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict()
