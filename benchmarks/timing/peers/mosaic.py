"""MosaicML Streaming: MDS shards on the local disk, StreamingDataset and StreamingDataLoader."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from timing.crops import TorchvisionCrop
from timing.peers.dataloader import Moved
from timing.stored import stored_arrays, stored_samples
from timing.work import Batches, Work


def prepare(work: Work, folder: Path) -> None:
    from PIL import Image
    from streaming import MDSWriter

    columns = {"image": "ndarray" if work.raw else "jpeg", "label": "int"}
    with MDSWriter(out=str(folder), columns=columns, progress_bar=False) as writer:
        if work.raw:
            for pixels, label in stored_arrays(work.folder):
                writer.write({"image": pixels, "label": label})
            return
        with tempfile.NamedTemporaryFile(suffix=".jpg") as file:
            for encoded, label in stored_samples(work.folder):
                Path(file.name).write_bytes(encoded)
                # An image with a file name is stored as that file; others would be encoded again.
                with Image.open(file.name) as image:
                    writer.write({"image": image, "label": label})


@contextmanager
def open_loader(
    work: Work, device: str = "cpu", state: dict[str, Any] | None = None
) -> Iterator[Batches]:
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()  # left by a process that was killed
    transform = TorchvisionCrop(work)

    class Images(StreamingDataset):
        def __getitem__(self, at: Any) -> Any:
            sample = super().__getitem__(at)
            image = sample["image"]
            if work.raw:
                import torch

                image = torch.from_numpy(image).permute(2, 0, 1)
            return transform(image), sample["label"]

    # It expects forked workers: they share what the parent process has set up.
    dataset = Images(
        local=str(work.cache / "mosaic"),
        shuffle=True,
        batch_size=work.batch_size,
        shuffle_seed=0,
        predownload=None,
    )
    loader = StreamingDataLoader(
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
