"""Keras's `fit` and `evaluate`, with torch as its backend."""

import importlib
import os
from pathlib import Path
from typing import Any

import pytest
from small import BATCHES, load

import gpuload


@pytest.fixture
def keras(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    return importlib.import_module("keras")


@pytest.mark.filterwarnings("ignore")
def test_fit_takes_every_batch_once(packed: Path, keras: Any) -> None:
    assert os.environ["KERAS_BACKEND"] == keras.backend.backend()
    net = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(3)])
    net.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    train, val = load(packed), load(packed, shuffle=False, augment=gpuload.Augment(8, crop="center"))
    steps = []
    done = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: steps.append(step))
    batches = (batch for _ in range(2) for batch in train)  # one generator for all epochs
    net.fit(batches, epochs=2, steps_per_epoch=len(train), callbacks=[done], verbose=0)
    assert steps == [*range(BATCHES)] * 2
    assert train.state_dict()["epoch"] in (1, 2)
    found = net.evaluate(iter(val), steps=len(val), return_dict=True, verbose=0)
    right = total = 0
    for images, labels in val:
        right += int((net(images).argmax(1) == labels).sum())
        total += len(labels)
    assert total == 97 and found["accuracy"] == pytest.approx(right / 97)
