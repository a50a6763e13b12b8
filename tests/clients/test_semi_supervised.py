"""Lightning's CombinedLoader of a few labelled and many unlabelled images: the shorter loader goes through its epochs
one after another, however often Lightning says which of its own epochs comes next, and resumes where it was."""

import importlib
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from small import load

import gpuload

LABELLED, UNLABELLED, EPOCHS = (
    24,
    97,
    3,
)  # of 3 and 12 batches, so that the shorter one is gone through 4 times an epoch
STEPS = 12


@pytest.fixture(scope="module")
def pl() -> Any:
    importlib.import_module("torchvision_anywhere")
    return importlib.import_module("pytorch_lightning")


def loaders(packed: Path) -> dict[str, gpuload.DaliIterator]:
    few = gpuload.Dataset(packed).subset(range(LABELLED))
    return {"labelled": load(few, fields=("image", "key")), "unlabelled": load(packed, fields=("image", "key"))}


def described(images: torch.Tensor, keys: list[str]) -> tuple[str, ...]:
    """Each sample's key and a checksum of its crop."""
    return tuple(f"{key} {zlib.crc32(image.numpy())}" for image, key in zip(images, keys, strict=True))


def fit(pl: Any, packed: Path, folder: Path, **options: Any) -> list[dict[str, tuple[str, ...]]]:
    """The keys and crops of each step."""
    steps = []

    class Model(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            step = {}
            for name, (images, keys) in batch.items():
                step[name] = described(images, keys)
            steps.append(step)
            return self.weight * 1

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    combined = importlib.import_module("pytorch_lightning.utilities").CombinedLoader(loaders(packed), "max_size_cycle")
    resume = options.pop("resume", None)
    saves = pl.callbacks.ModelCheckpoint(folder, filename="{step}", every_n_train_steps=STEPS + 5, save_top_k=-1)
    trainer = pl.Trainer(
        accelerator="cpu", callbacks=[saves], logger=False, enable_progress_bar=False, enable_model_summary=False,
        use_distributed_sampler=False, max_epochs=EPOCHS, **options,
    )  # fmt: skip
    trainer.fit(Model(), combined, ckpt_path=resume, weights_only=False)
    return steps


@pytest.mark.filterwarnings("ignore")
def test_the_shorter_of_two_loaders_repeats_nothing_and_resumes(pl: Any, packed: Path, tmp_path: Path) -> None:
    steps = fit(pl, packed, tmp_path)
    assert len(steps) == EPOCHS * STEPS
    for name, loader in loaders(packed).items():
        passes = EPOCHS * STEPS // len(loader)
        alone = [described(images, keys) for _ in range(passes) for images, keys in loader]
        assert [step[name] for step in steps] == alone
        assert len(set(alone)) == EPOCHS * STEPS  # each with crops of its own
    rest = fit(pl, packed, tmp_path / "again", resume=tmp_path / f"step={STEPS + 5}.ckpt")
    assert rest == steps[STEPS + 5 :]
