"""The loader inside the real training frameworks, at the versions that tools/constraints.txt pins."""

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gpuload

EPOCHS, BATCHES = 3, 12  # 97 samples in batches of 8; the last is dropped


def load(packed: Path, batch_size: int = 8, **options: Any) -> gpuload.DaliIterator:
    return gpuload.DaliIterator(packed, batch_size, **{"augment": gpuload.Augment(8), "device": "cpu", **options})


@pytest.fixture(scope="module")
def undisturbed(packed: Path) -> list[list[str]]:
    """The keys of each batch of the run."""
    with load(packed, fields=("key",)) as loader:
        return [keys for _ in range(EPOCHS) for (keys,) in loader]


# Lightning


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
        with load(packed, fields=("image", "label", "key")) as loader, load(packed, shuffle=False) as val_loader:
            trainer.fit(model, loader, val_loader, ckpt_path=checkpoint and folder / checkpoint, weights_only=True)
        return model.seen

    return train


@pytest.fixture(scope="module")
def checkpoints(lightning: Any, undisturbed: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    assert lightning(folder) == undisturbed
    return folder


LIGHTNING_WARNINGS = [
    # Lightning 2.6 is behind torch 2.13 here.
    r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning",
    # On purpose: runs resumed from its checkpoints save beside them.
    "ignore:Checkpoint directory .* exists and is not empty:UserWarning",
]


@pytest.mark.filterwarnings(*LIGHTNING_WARNINGS)
@pytest.mark.parametrize("batches", [1, 5, BATCHES - 1, BATCHES, BATCHES + 1, 3 * BATCHES - 1])
def test_lightning_goes_on_behind_any_batch(lightning: Any, checkpoints: Path, undisturbed: Any, batches: int) -> None:
    assert lightning(checkpoints, f"batch{batches}.ckpt") == undisturbed[batches:]


@pytest.mark.filterwarnings(*LIGHTNING_WARNINGS)
def test_lightning_goes_on_after_an_epoch(lightning: Any, checkpoints: Path, undisturbed: Any) -> None:
    assert lightning(checkpoints, "epoch0.ckpt") == undisturbed[BATCHES:]


# Accelerate


def test_accelerate_passes_the_loader_through(packed: Path) -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState, PartialState

    try:
        accelerator = Accelerator(cpu=True)
        made = load(packed)
        model = nn.Linear(3 * 8 * 8, 3)
        net, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), made)
        assert loader is made
        labels_seen = []
        for images, labels in loader:
            loss = F.cross_entropy(net(images.flatten(1)), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            labels_seen += accelerator.gather_for_metrics(labels).tolist()
        assert len(labels_seen) == BATCHES * 8
    finally:
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()


def test_accelerate_gathers_each_sample_once_over_ranks(packed: Path, tmp_path: Path) -> None:
    script = Path(__file__).with_name("accelerate_script.py")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, str(script), str(packed), str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        told = json.loads((tmp_path / f"accelerate{rank}.json").read_text())
        assert told == {
            "same": True,
            "ranks": [rank, 2],
            "gathered": list(range(97)),
            "reduced": [97, sum(range(97))],
        }


# timm


@pytest.fixture
def timm() -> Any:
    importlib.import_module("torchvision_anywhere")
    for name in ("data", "utils", "scheduler", "loss", "optim"):
        importlib.import_module(f"timm.{name}")
    return importlib.import_module("timm")


def timm_set_epoch(loader: Any, epoch: int) -> None:
    """Where timm's train.py looks, in its order; it reads the three attributes without a guard."""
    for place in (loader.dataset, loader.batch_sampler or loader.sampler):
        if hasattr(place, "set_epoch"):
            place.set_epoch(epoch)


def test_timm_trains_and_validates(packed: Path, timm: Any) -> None:
    config = timm.data.resolve_data_config({"input_size": (3, 32, 32)})
    augment = {"mean": config["mean"], "std": config["std"]}
    train = load(packed, augment=gpuload.Augment(32, **augment), fields=("image", "label", "index"))
    val = load(packed, augment=gpuload.Augment(32, crop="center", **augment), shuffle=False)
    net = timm.create_model("test_resnet", num_classes=3)
    optimizer = timm.optim.create_optimizer_v2(net, opt="sgd", lr=0.05)
    scheduler, epochs = timm.scheduler.create_scheduler_v2(
        optimizer, sched="cosine", num_epochs=2, warmup_epochs=0, updates_per_epoch=len(train), step_on_epochs=False
    )
    mixup, loss_of = timm.data.Mixup(mixup_alpha=0.2, num_classes=3), timm.loss.SoftTargetCrossEntropy()
    orders, losses = [], timm.utils.AverageMeter()
    for epoch in range(epochs):
        timm_set_epoch(train, epoch)
        if train.mixup_enabled:  # as after --mixup-off-epoch
            train.mixup_enabled = False
        order = []
        for number, (images, labels, index) in enumerate(train):
            order += index.tolist()
            images, targets = mixup(images, labels)
            loss = loss_of(net(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.update(loss.item(), len(images))
            scheduler.step_update(epoch * len(train) + number + 1)
        assert number == len(train) - 1
        orders.append(order)
    assert losses.count == epochs * BATCHES * 8
    assert orders[0] != orders[1]
    timm_set_epoch(train, 1)
    assert [int(i) for _, _, index in train for i in index] == orders[1]
    top1 = timm.utils.AverageMeter()
    net.eval()
    with torch.inference_mode():
        for images, labels in val:
            top1.update(timm.utils.accuracy(net(images), labels)[0].item(), len(images))
    assert top1.count == 97


# torchdata


@pytest.mark.parametrize("batches", [0, 5, BATCHES])
def test_a_torchdata_node_saves_and_restores_it(packed: Path, undisturbed: Any, batches: int) -> None:
    nodes = importlib.import_module("torchdata.nodes")

    def make() -> Any:
        return nodes.Loader(nodes.IterableWrapper(load(packed, fields=("key",))))

    loader, fresh = make(), make()
    iterator: Iterator[Any] = iter(loader)
    first = [keys for _, (keys,) in zip(range(batches), iterator, strict=False)]
    fresh.load_state_dict(loader.state_dict())
    end = BATCHES if batches < BATCHES else 2 * BATCHES  # it does not hand out an empty rest
    assert first + [keys for (keys,) in fresh] == undisturbed[:end]
