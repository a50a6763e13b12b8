"""datago: a folder of files, read and decoded by its threads, which give whole images: it draws no crops.

So a crop is drawn and resized where its images are taken from it, in one thread, as a program with it would.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from timing.crops import TorchvisionCrop
from timing.peers.dataloader import Moved
from timing.work import Batches, Work


@contextmanager
def open_loader(work: Work, device: str = "cpu") -> Iterator[Batches]:
    import torch

    torch.set_num_threads(1)  # its threads decode
    os.environ["DATAGO_MAX_TASKS"] = str(work.threads)
    yield _Loader(work) if device == "cpu" else Moved(_Loader(work), device)


class _Loader:
    """Each pass is an epoch."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._crop = TorchvisionCrop(work)
        source = {"root_path": str(work.cache / "dali-files"), "random_sampling": True}
        config = {"source_type": "file", "source_config": source, "limit": work.samples}
        self._config = json.dumps(
            {**config, "samples_buffer_size": 2 * work.batch_size}
        )

    def __iter__(self) -> Iterator[Any]:
        import datago
        import torch

        client = datago.DatagoClient(self._config)
        client.start()
        try:
            samples = map(self._sample, iter(client.get_sample, None))
            while (
                len(taken := list(islice(samples, self._work.batch_size)))
                == self._work.batch_size
            ):
                yield torch.utils.data.default_collate(taken)
        finally:
            client.stop()

    def _sample(self, sample: Any) -> tuple[Any, int]:
        import torch

        pixels = torch.from_numpy(sample.image.to_numpy_array().copy()).permute(2, 0, 1)
        return self._crop(pixels), int(Path(json.loads(sample.id)).parent.name)
