"""A loader of small images, as all clients here get it."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import gpuload

EPOCHS, BATCHES = 3, 12  # 97 samples in batches of 8; the last is dropped


def load(data: Path | gpuload.Dataset, batch_size: int = 8, **options: Any) -> gpuload.DaliIterator:
    return gpuload.DaliIterator(data, batch_size, **{"augment": gpuload.Augment(8), "device": "cpu", **options})


def lightning_model(pl: Any) -> Any:
    """Notes the keys of what it is trained with, and counts what it is validated with."""

    class Tiny(pl.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.net, self.seen, self.validated = torch.nn.Linear(3 * 8 * 8, 3), [], 0

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            images, labels, keys = batch
            self.seen.append(keys)
            return F.cross_entropy(self.net(images.flatten(1)), labels)

        def validation_step(self, batch: Any, number: int) -> None:
            self.validated += len(batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    return Tiny()


def lightning_trainer(pl: Any, folder: Path, *saving: dict[str, Any], **options: Any) -> Any:
    """On CPUs. saving: names of checkpoints in `folder`, and when they are saved; all are kept."""
    kept = {"dirpath": folder, "save_top_k": -1, "auto_insert_metric_name": False}
    callbacks = [pl.callbacks.ModelCheckpoint(**kept, **one) for one in saving]
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    return pl.Trainer(accelerator="cpu", use_distributed_sampler=False, callbacks=callbacks, **quiet, **options)
