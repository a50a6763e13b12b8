"""timm's train.py: its mixup, its average of weights, its scheduler and its `validate`."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small import BATCHES, load

import gpuload


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
    augment: Any = {"normalize": gpuload.Normalize(config["mean"], config["std"])}
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


def test_mixup_ends_where_timm_says_so(packed: Path) -> None:
    """timm's train.py: `if loader.mixup_enabled: loader.mixup_enabled = False` from --mixup-off-epoch on."""
    mixers = [gpuload.batchwise.RandomChoice([gpuload.batchwise.MixUp(), gpuload.batchwise.CutMix()])]
    plain, train = load(packed), load(packed, batch_transforms=mixers)
    assert train.mixup_enabled and not plain.mixup_enabled
    mixed = next(iter(train))
    assert (mixed[1].max(dim=1).values < 1).any()
    train.mixup_enabled = False
    assert not train.mixup_enabled
    expected = next(iter(plain)), next(iter(plain))
    images, labels = next(iter(train))
    assert torch.equal(images, expected[1][0])
    assert torch.equal(labels, F.one_hot(expected[1][1], 3).float())
    train.mixup_enabled = True
    train.set_epoch(0)
    assert all(map(torch.equal, next(iter(train)), mixed))
    with pytest.raises(gpuload.ArgumentError, match=r"mixup_enabled='off'\): expected True or False"):
        train.mixup_enabled = "off"  # type: ignore[assignment]
