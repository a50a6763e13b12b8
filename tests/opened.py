"""Decoders without a data set."""

from collections.abc import Sequence
from typing import Any

import pytest

from gpuload.decode.device import Device
from gpuload.decode.faults import FaultHandler
from gpuload.decode.interface import Resources, Stored
from gpuload.decode.open import open_decoder
from gpuload.decode.runner import Runner


def open_guard(
    name: Any, forms: Sequence[Any], stored: Stored, batch_size: int = 8, on_corrupt: Any = "raise", **options: Any
) -> FaultHandler:
    """options: of `Resources`, by default two threads and one batch ahead."""
    resources = {"num_threads": 2, "prefetch": 1, "cpu_share": 0.5, **options}
    return open_decoder(name, None, forms, stored, Resources(batch_size, **resources), None, on_corrupt)


def open_runner(name: Any, forms: Sequence[Any], stored: Stored, batch_size: int = 8, **options: Any) -> Runner:
    """The same, unguarded: DALI meets itself what does not decode."""
    runner = open_guard(name, forms, stored, batch_size, **options).decoder
    assert isinstance(runner, Runner)
    return runner


def pretend_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is opened from now on goes the way of a GPU, on the CPU."""
    monkeypatch.setattr("gpuload.decode.open.open_device", lambda _: Device(None))
