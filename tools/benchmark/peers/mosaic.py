"""MosaicML Streaming: MDS shards, read from the local disk, StreamingDataset and StreamingDataLoader."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmark.crops import TorchvisionCrop
from benchmark.peers.dataloader import Moved
from benchmark.stored import stored_arrays, stored_samples
from benchmark.work import Batches, Work


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
                # Of an image that has a file name, it stores the file as it is; others it would encode again.
                with Image.open(file.name) as image:
                    writer.write({"image": image, "label": label})


@contextmanager
def open_loader(work: Work, device: str = "cpu", state: dict[str, Any] | None = None) -> Iterator[Batches]:
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()  # what a process that was ended has left
    transform = TorchvisionCrop(work)

    class Images(StreamingDataset):
        def __getitem__(self, at: Any) -> Any:
            sample = super().__getitem__(at)
            image = sample["image"]
            if work.raw:
                import torch

                image = torch.from_numpy(image).permute(2, 0, 1)
            return transform(image), sample["label"]

    # Workers share nothing but what its own processes set up: forked, as it expects.
    dataset = Images(
        local=str(work.cache / "mosaic"), shuffle=True, batch_size=work.batch_size, shuffle_seed=0, predownload=None
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
