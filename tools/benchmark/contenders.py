"""The contenders, each as its own documentation advises to set it up."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from benchmark import dali_by_hand, reading
from benchmark.work import Batches, Contender, Work


@contextmanager
def open_dataloader(work: Work, device: str) -> Iterator[Batches]:
    """torch's DataLoader and Pillow: workers that stay, whole batches collated there; pinned memory for a GPU."""
    import pillow_loader

    loader = pillow_loader.train_loader(
        work.folder, work.batch_size, size=work.size, workers=work.threads, pin_memory=device == "cuda"
    )
    yield loader if device == "cpu" else _Moved(loader, device)
    del loader


class _Moved:
    def __init__(self, batches: Batches, device: str) -> None:
        self._batches, self._device = batches, device

    def __iter__(self):
        for images, labels in self._batches:
            yield images.to(self._device, non_blocking=True), labels.to(self._device, non_blocking=True)


@contextmanager
def open_gpuload(work: Work, device: str, decoder: str = "auto") -> Iterator[Batches]:
    import gpuload

    augment = gpuload.Augment(work.size)
    with gpuload.DaliIterator(
        work.folder, work.batch_size, augment=augment, device=device, decoder=decoder, num_threads=work.threads
    ) as loader:
        yield loader


CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("torch", "DataLoader + Pillow", partial(open_dataloader, device="cpu"), package="torch"),
        Contender("dali", "DALI by hand", partial(dali_by_hand.open_pipeline, device="cpu"), package="nvidia.dali"),
        Contender("gpuload", "gpuload", partial(open_gpuload, device="cpu"), package="simplejpeg"),
        Contender(
            "gpuload-dali",
            "gpuload, decoder='dali'",
            partial(open_gpuload, device="cpu", decoder="dali"),
            package="nvidia.dali",
        ),
        Contender("torch-gpu", "DataLoader + Pillow, to GPU", partial(open_dataloader, device="cuda"), "cuda", "torch"),
        Contender(
            "dali-gpu", "DALI by hand, GPU", partial(dali_by_hand.open_pipeline, device="cuda"), "cuda", "nvidia.dali"
        ),
        Contender("gpuload-gpu", "gpuload, GPU", partial(open_gpuload, device="cuda"), "cuda", "nvidia.dali"),
        Contender("read-dali", "fn.readers.webdataset", reading.open_dali, package="nvidia.dali", reads_only=True),
        Contender("read-gpuload", "gpuload's reader", reading.open_gpuload, reads_only=True),
        Contender(
            "read-gpuload-dali",
            "gpuload's reader, into DALI",
            reading.open_gpuload_into_dali,
            package="nvidia.dali",
            reads_only=True,
        ),
    )
}


def why_not(contender: Contender) -> str | None:
    """Why a contender cannot run here, or None if it can."""
    try:
        found = contender.package is None or importlib.util.find_spec(contender.package)
    except ModuleNotFoundError:
        found = None
    if not found:
        return f"{contender.package} is not installed"
    if contender.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            return "there is no GPU"
    return None
