"""PyTorch Lightning with packed images: no adapter is needed, and checkpoints resume in mid-epoch, at the next batch.

    python examples/lightning.py shards --epochs 5
    torchrun --standalone --nproc-per-node 8 examples/lightning.py shards --epochs 5     # 8 GPUs
    python examples/lightning.py shards --epochs 5 --resume runs/last.ckpt

The loader is made in `train_dataloader`, after Lightning has set up the process group, so that it finds its rank. The
Trainer saves the loader's state_dict in its checkpoints and loads it again. `use_distributed_sampler=False`, since each
rank's loader already returns that rank's part. Start several GPUs with torchrun, so that each rank knows its share of
the CPU cores.

Lightning counts the batches of an epoch itself. So resume a run that was stopped in mid-epoch with the same number of
processes and the same batch size. With others the images are still the right ones, but Lightning ends that epoch by its
own count, or skips its validation. Between epochs, resume with any.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from training import make_net  # your own model

import gpuload


class Images(pl.LightningDataModule):
    def __init__(self, folder: Path, batch_size: int, size: int) -> None:
        super().__init__()
        self.folder = folder
        self.batch_size = batch_size
        self.size = size

    def _loader(
        self, split: str, augment: gpuload.Augment, shuffle: bool
    ) -> gpuload.DaliIterator:
        assert self.trainer is not None
        device = str(self.trainer.strategy.root_device)
        return gpuload.DaliIterator(
            self.folder / split,
            self.batch_size,
            augment=augment,
            device=device,
            shuffle=shuffle,
        )

    def train_dataloader(self) -> gpuload.DaliIterator:
        return self._loader("train", gpuload.Augment(self.size), shuffle=True)

    def val_dataloader(self) -> gpuload.DaliIterator:
        return self._loader(
            "val", gpuload.Augment(self.size, crop="center"), shuffle=False
        )


class Classifier(pl.LightningModule):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.net = make_net(classes)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        images, labels = batch
        return F.cross_entropy(self.net(images), labels)

    def on_validation_epoch_start(self) -> None:
        self.counts = torch.zeros(2, dtype=torch.int64, device=self.device)

    def validation_step(self, batch: Any, _: int) -> None:
        images, labels = batch
        right = (self.net(images).argmax(1) == labels).sum()
        self.counts += torch.stack(
            [right, torch.tensor(len(labels), device=self.device)]
        )

    def on_validation_epoch_end(self) -> None:
        # Summed, not averaged over batches or ranks: a rank's last batch may be smaller, or empty.
        right, images = self.trainer.strategy.reduce(
            self.counts, reduce_op="sum"
        ).tolist()
        if not self.trainer.sanity_checking:
            self.print(
                f"epoch {self.current_epoch + 1}: validation accuracy {right / images:.1%} ({right} of {images})"
            )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3, weight_decay=0.05)


def main(argv: list[str] | None = None, callbacks: list[Callback] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="packed folder with train/ and val/")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument(
        "--size", type=int, default=96, help="side of the crops in pixels"
    )
    parser.add_argument("--accelerator", default="auto", help="auto, cpu or gpu")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), help="folder for checkpoints"
    )
    parser.add_argument("--save-every", type=int, default=100, metavar="BATCHES")
    parser.add_argument("--resume", type=Path, help="checkpoint to continue from")
    args = parser.parse_args(argv)

    pl.seed_everything(0)
    saving = ModelCheckpoint(
        args.runs, save_last=True, every_n_train_steps=args.save_every
    )
    trainer = pl.Trainer(
        accelerator=args.accelerator,
        # Under torchrun the processes that it started; otherwise every GPU, or one process.
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "0")) or "auto",
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        max_epochs=args.epochs,
        use_distributed_sampler=False,
        callbacks=[saving, *(callbacks or [])],
        logger=False,
    )
    classes = gpuload.Dataset(args.data / "train").classes or ()
    trainer.fit(
        Classifier(len(classes)),
        datamodule=Images(args.data, args.batch_size, args.size),
        ckpt_path=args.resume,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
