"""Lightning's Trainer: every batch, in its order, from any checkpoint on."""

import importlib
import warnings
from pathlib import Path
from typing import Any

import pytest
from small import BATCHES, EPOCHS, lightning_model, lightning_trainer, load


@pytest.fixture(scope="module")
def pl() -> Any:
    importlib.import_module("torchvision_anywhere")
    return importlib.import_module("pytorch_lightning")


@pytest.fixture(scope="module")
def lightning(pl: Any, packed: Path) -> Any:
    """A function that trains, from a checkpoint or from the start, and gives the keys of each batch that it saw.

    It saves after every batch and every epoch.
    """

    def train(folder: Path, checkpoint: str | None = None) -> list[list[str]]:
        saving = (
            {"filename": "batch{step}", "every_n_train_steps": 1},
            {"filename": "epoch{epoch}", "every_n_epochs": 1},
        )
        trainer = lightning_trainer(pl, folder, *saving, max_epochs=EPOCHS)
        model = lightning_model(pl)
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


@pytest.mark.parametrize("batches", [5, BATCHES - 1, BATCHES, 3 * BATCHES - 1])
def test_lightning_goes_on_behind_any_batch(lightning: Any, checkpoints: Path, undisturbed: Any, batches: int) -> None:
    assert lightning(checkpoints, f"batch{batches}.ckpt") == undisturbed[batches:]


def test_lightning_goes_on_after_an_epoch(lightning: Any, checkpoints: Path, undisturbed: Any) -> None:
    assert lightning(checkpoints, "epoch0.ckpt") == undisturbed[BATCHES:]
