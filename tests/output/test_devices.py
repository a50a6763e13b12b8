"""What arrays do on a GPU that is not the current one, with stand-ins for torch's and CuPy's devices."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from gpuload import Augment
from gpuload.output.arrays import make_arrays
from gpuload.transforms.apply import on_device


class Copied(NamedTuple):
    """What a copy to a GPU gives."""

    tensor: torch.Tensor
    device: str
    non_blocking: bool

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype


class Current:
    """The current device and stream, as CUDA knows them: 0 and "default", until others are entered."""

    def __init__(self) -> None:
        self.device, self.stream = 0, "default"
        self.seen: list[tuple[str, int]] = []

    def entering(self, name: str, number: int, needs: int | None = None) -> Any:
        current = self

        class Entered:
            def __enter__(self) -> None:
                if needs is not None and needs != current.device:
                    raise RuntimeError("This stream is not associated with the current device")
                self.before = getattr(current, name)
                setattr(current, name, number)

            def __exit__(self, *error: object) -> None:
                setattr(current, name, self.before)

        return Entered()

    def note(self, what: str) -> None:
        self.seen.append((what, self.device))


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> Current:
    """torch and CuPy with 4 GPUs, of which nothing but the current device works."""
    current = Current()
    cupy = SimpleNamespace(
        cuda=SimpleNamespace(
            Device=lambda number: current.entering("device", number),
            ExternalStream=lambda stream, device: current.entering("stream", stream, needs=device),
        ),
        from_dlpack=lambda array: current.note("from_dlpack"),
        asarray=lambda array: current.note("asarray"),
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr("gpuload.output.arrays.fault_of", lambda *_, **__: None)
    monkeypatch.setattr("gpuload.output.arrays.require", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda,
        "device",
        lambda device: current.entering(
            "device", torch.device(device).index if not isinstance(device, int) else device
        ),
    )
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=f"of {device}"))

    def pin(tensor: torch.Tensor) -> Any:
        current.note("pin_memory")
        return SimpleNamespace(to=lambda device, non_blocking: Copied(tensor, str(device), non_blocking))

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    return current


@pytest.mark.parametrize("output", ["torch", "cupy"])
def test_batch_transforms_run_on_the_loaders_device(current: Current, output: Any) -> None:
    arrays = make_arrays(output, 3, Augment(8).form)
    with arrays.stream():
        assert current.device == 3
        assert current.stream == ("of cuda:3" if output == "torch" else "default")
    assert (current.device, current.stream) == (0, "default")


def test_cupys_arrays_are_made_on_their_device(current: Current) -> None:
    arrays = make_arrays("cupy", 2, Augment(8).form)
    arrays.from_decoder(object())
    arrays.from_host(np.zeros(3))
    arrays.from_decoder(np.zeros(3))
    assert current.seen == [("from_dlpack", 2), ("asarray", 2), ("asarray", 2)] and current.device == 0


@pytest.mark.parametrize(
    "copy",
    [
        lambda numbers: make_arrays("torch", 3, Augment(8).form).from_host(numbers),
        lambda numbers: make_arrays("torch", 3, Augment(8, dtype="uint8").form).images(
            numbers
        ),  # of a batch without samples
        lambda numbers: make_arrays("torch", 3, Augment(8).form).from_decoder(numbers),  # the masks of one
        lambda numbers: on_device(torch.device("cuda", 3), numbers),
    ],
)
def test_memory_is_pinned_on_the_loaders_device(current: Current, copy: Callable[[np.ndarray], Any]) -> None:
    """Pinning needs a context, and makes one on the current device: GPU 0 in every rank, unless another is entered."""
    numbers = np.arange(3, dtype=np.uint8)
    tensor, device, non_blocking = copy(numbers)
    assert current.seen == [("pin_memory", 3)] and current.device == 0
    assert tensor.tolist() == [0, 1, 2] and (device, non_blocking) == ("cuda:3", True)
