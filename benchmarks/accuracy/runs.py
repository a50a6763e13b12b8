"""One run: a net trained with a loader, and its accuracy."""

import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.loaders import (
    BATCH_SIZE,
    REFERENCE,
    training_batches,
    validation_images,
)
from accuracy.net import small_resnet18
from accuracy.sets import LabelledSet, files

_PEAK_RATE = 0.1


class Trainer:
    """Trains nets on a set; keeps the images of its validations between the runs."""

    def __init__(self, labelled: LabelledSet) -> None:
        self._labelled = labelled
        self._classes = 1 + max(label for _, label in files(labelled.train_images))
        self._samples = sum(1 for _ in files(labelled.train_images))
        self._validations: dict[str, tuple[Tensor, Tensor]] = {}

    def run(self, loader: str, seed: int) -> dict[str, Any]:
        """Trains a net whose weights at the start depend on the seed alone; the figures of the run as a record.

        Its accuracies are shares of the images of val: as torchvision resizes them, and as the loader itself does.
        """
        start = time.process_time()
        torch.manual_seed(seed)
        net = small_resnet18(self._classes)
        loss = self._train(net, loader, seed)
        return {
            "set": self._labelled.name,
            "loader": loader,
            "seed": seed,
            "accuracy": self._accuracy(net, REFERENCE),
            "own_accuracy": self._accuracy(net, loader),
            "last_loss": loss,
            "cpu_s": round(time.process_time() - start, 1),
        }

    def _train(self, net: nn.Module, loader: str, seed: int) -> float:
        optimizer = torch.optim.SGD(
            net.parameters(), _PEAK_RATE, momentum=0.9, nesterov=True, weight_decay=5e-4
        )
        steps = self._samples // BATCH_SIZE * self._labelled.epochs
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, _PEAK_RATE, total_steps=steps
        )
        total = 0.0
        count = 0
        for images, labels in training_batches(loader, self._labelled, seed):
            images = images.contiguous(memory_format=torch.channels_last)
            loss = F.cross_entropy(net(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            count += 1
            if count > 0.9 * steps:
                total += loss.item()
        assert count == steps, f"{loader}: {count} batches, expected {steps}"
        return round(total / (0.1 * steps), 4)

    @torch.inference_mode()
    def _accuracy(self, net: nn.Module, loader: str) -> float:
        if loader not in self._validations:
            self._validations[loader] = validation_images(loader, self._labelled)
        images, labels = self._validations[loader]
        net.eval()
        correct = 0
        for part, expected in zip(images.split(256), labels.split(256), strict=True):
            correct += int((net(part).argmax(1) == expected).sum())
        return correct / len(labels)
