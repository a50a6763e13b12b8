"""TurboLoader: one tar, random resized crop and flip in its own threads. It gives no labels, but indices of samples."""

import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from timing.peers.dataloader import Moved
from timing.stored import stored_samples
from timing.work import Batches, Work


def prepare(work: Work, folder: Path) -> None:
    """A tar of all images, and one .npy of all labels."""
    labels = []
    with tarfile.open(folder / "set.tar", "w") as tar:
        for encoded, label in stored_samples(work.folder):
            member = tarfile.TarInfo(f"{len(labels):08d}.jpg")
            member.size = len(encoded)
            tar.addfile(member, io.BytesIO(encoded))
            labels.append(label)
    np.save(folder / "labels.npy", np.array(labels))


@contextmanager
def open_loader(
    work: Work, device: str = "cpu", state: dict[str, Any] | None = None
) -> Iterator[Batches]:
    loader = _Loader(work)
    if state is not None:
        loader.load_state_dict(state)
    yield loader if device == "cpu" else Moved(loader, device)


class _Loader:
    """Each pass is the next epoch; the first after `load_state_dict` is the rest of that one."""

    def __init__(self, work: Work) -> None:
        import turboloader

        folder = work.cache / "turbo"
        self._dtype = work.dtype
        self._labels = np.load(folder / "labels.npy")
        self._epochs = count()
        self._resumed = False
        self._loader = turboloader.DataLoader(
            str(folder / "set.tar"),
            batch_size=work.batch_size,
            num_workers=work.threads,
            shuffle=True,
            image_size=work.size,
            output_format="pytorch",
            transform=turboloader.ImageNetNormalize(),
            train_aug=not work.whole,
            antialias=True,  # as the others resize whole images
            drop_last=True,
        )

    def __iter__(self) -> Iterator[Any]:
        import torch

        if not self._resumed:
            self._loader.set_epoch(next(self._epochs))
        self._resumed = False
        for images, facts in self._loader:
            labels = torch.from_numpy(self._labels[facts["indices"]])
            yield torch.as_tensor(images).to(getattr(torch, self._dtype)), labels

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state)
        self._resumed = True
