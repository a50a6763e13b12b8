"""Hugging Face's Trainer: it resumes in mid-epoch with the batches that follow, and evaluates each sample once."""

import importlib
from pathlib import Path
from typing import Any

import pytest
from small import BATCHES, load
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import gpuload

FIELDS = {"pixel_values": "image", "labels": "label"}


class Net(nn.Module):
    """Notes the keys of what it is trained with."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.seen = nn.Linear(3 * 8 * 8, 3), []

    def forward(self, pixel_values: Any, labels: Any, key: Any = ()) -> dict[str, Any]:
        if self.training:
            self.seen.append(list(key))
        logits = self.net(pixel_values.flatten(1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Batches(IterableDataset):
    """A loader as the data set of a DataLoader, of which Trainer skips the first batches where it resumes."""

    def __init__(self, loader: gpuload.DaliIterator) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)


def make_trainer(train: gpuload.DaliIterator, val: gpuload.DaliIterator, folder: Path, **options: Any) -> Any:
    importlib.import_module("torchvision_anywhere")
    transformers = importlib.import_module("transformers")

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            return DataLoader(Batches(train), batch_size=None)

        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            return val

    class SetEpoch(transformers.TrainerCallback):
        def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            train.set_epoch(int(state.epoch))

    fixed = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "logging_strategy": "no"}
    saving = {"save_strategy": "steps", "save_steps": 7}
    arguments = transformers.TrainingArguments(str(folder), num_train_epochs=2, **fixed, **saving, **options)
    return Trainer(
        Net(),
        arguments,
        callbacks=[SetEpoch()],
        compute_metrics=lambda found: {"labels": found.label_ids.tolist()},
    )


@pytest.mark.filterwarnings("ignore")
def test_trainer_resumes_in_mid_epoch_and_evaluates(packed: Path, undisturbed: list[list[str]], tmp_path: Path) -> None:
    seen = []
    for checkpoint in (None, tmp_path / "checkpoint-14"):
        train = load(packed, fields={**FIELDS, "key": "key"})
        val = load(packed, shuffle=False, drop_last="even", fields=FIELDS)
        trainer = make_trainer(train, val, tmp_path)
        trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
        assert trainer.state.global_step == 2 * BATCHES
        seen.append(trainer.model.seen)
    assert seen == [undisturbed[: 2 * BATCHES], undisturbed[14 : 2 * BATCHES]]
    labels = [label.item() for _, label in load(packed, 1, shuffle=False, drop_last=False)]
    assert trainer.evaluate()["eval_labels"] == labels
