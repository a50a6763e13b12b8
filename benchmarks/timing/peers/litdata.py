"""LitData: chunks written by `optimize`, StreamingDataset and StreamingDataLoader, JPEGs decoded by libjpeg-turbo.

Its `Image` field needs torchvision's libjpeg-turbo, which does not load beside every torch. So bytes are stored, and
decoded by simplejpeg's libjpeg-turbo, which is as fast.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from timing.crops import TorchvisionCrop
from timing.peers.dataloader import Moved
from timing.stored import stored_arrays, stored_samples
from timing.work import Batches, Work


def prepare(work: Work, folder: Path, chunk_bytes: int | str = "64MB") -> None:
    """Writes chunks of 64 MB, as in its README."""
    import litdata

    litdata.optimize(
        fn=partial(_samples, work),
        inputs=[0],
        output_dir=str(folder),
        chunk_bytes=chunk_bytes,
        num_workers=1,
        start_method="fork",
    )


def _samples(work: Work, _: int) -> Iterator[dict[str, Any]]:
    if work.raw:
        import torch

        for pixels, label in stored_arrays(work.folder):
            yield {
                "image": torch.from_numpy(pixels).permute(2, 0, 1).contiguous(),
                "label": label,
            }
    else:
        for encoded, label in stored_samples(work.folder):
            yield {"image": encoded, "label": label}


@contextmanager
def open_loader(
    work: Work, device: str = "cpu", state: dict[str, Any] | None = None, **source: Any
) -> Iterator[Batches]:
    """source: arguments of its dataset where that is not in the cache."""
    import litdata
    import simplejpeg
    import torch

    transform = TorchvisionCrop(work)

    class Images(litdata.StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            sample = super().__getitem__(index)
            image = sample["image"]
            if not work.raw:
                image = torch.from_numpy(simplejpeg.decode_jpeg(image)).permute(2, 0, 1)
            return transform(image), sample["label"]

    source = source or {"input_dir": str(work.cache / "litdata")}
    dataset = Images(**source, shuffle=True, drop_last=True, seed=0)
    loader = litdata.StreamingDataLoader(
        dataset,
        batch_size=work.batch_size,
        num_workers=work.threads,
        drop_last=True,
        persistent_workers=True,
        pin_memory=device == "cuda",
    )
    if state is not None:
        loader.load_state_dict(state)
    yield loader if device == "cpu" else Moved(loader, device)
    del loader, dataset
