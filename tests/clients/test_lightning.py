"""Lightning's Trainer: every batch, in its order, from any checkpoint on."""

import importlib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small import BATCHES, EPOCHS, load
from torch import nn


@pytest.fixture(scope="module")
def pl() -> Any:
    importlib.import_module("torchvision_anywhere")
    return importlib.import_module("pytorch_lightning")


@pytest.fixture(scope="module")
def lightning(pl: Any, packed: Path) -> Any:
    """A function that trains, from a checkpoint or from the start, and gives the keys of each batch that it saw.

    It saves after every batch and every epoch.
    """

    class Tiny(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.seen = nn.Linear(3 * 8 * 8, 3), []

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            images, labels, keys = batch
            self.seen.append(keys)
            assert number == (self.global_step % BATCHES)
            return F.cross_entropy(self.net(images.flatten(1)), labels)

        def validation_step(self, batch: Any, _: int) -> None:
            self.validated = getattr(self, "validated", 0) + len(batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    def train(folder: Path, checkpoint: str | None = None) -> list[list[str]]:
        every: dict[str, Any] = {"dirpath": folder, "save_top_k": -1, "auto_insert_metric_name": False}
        saving = [
            pl.callbacks.ModelCheckpoint(filename="batch{step}", every_n_train_steps=1, **every),
            pl.callbacks.ModelCheckpoint(filename="epoch{epoch}", every_n_epochs=1, **every),
        ]
        trainer = pl.Trainer(
            accelerator="cpu",
            max_epochs=EPOCHS,
            use_distributed_sampler=False,
            callbacks=saving,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        model = Tiny()
        train_loader, val_loader = load(packed, fields=("image", "label", "key")), load(packed, shuffle=False)
        with train_loader as loader, val_loader, warnings.catch_warnings():
            # Lightning 2.6 is behind torch 2.13; and on purpose, runs resumed from its checkpoints save beside them.
            warnings.simplefilter("ignore")
            trainer.fit(model, loader, val_loader, ckpt_path=checkpoint and folder / checkpoint, weights_only=True)
        return model.seen

    return train


@pytest.fixture(scope="module")
def checkpoints(lightning: Any, undisturbed: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    assert lightning(folder) == undisturbed
    return folder


@pytest.mark.parametrize("batches", [1, 5, BATCHES - 1, BATCHES, BATCHES + 1, 3 * BATCHES - 1])
def test_lightning_goes_on_behind_any_batch(lightning: Any, checkpoints: Path, undisturbed: Any, batches: int) -> None:
    assert lightning(checkpoints, f"batch{batches}.ckpt") == undisturbed[batches:]


def test_lightning_goes_on_after_an_epoch(lightning: Any, checkpoints: Path, undisturbed: Any) -> None:
    assert lightning(checkpoints, "epoch0.ckpt") == undisturbed[BATCHES:]
