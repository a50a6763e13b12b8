"""Arrays of the user's library: without a copy, of the batch's dtype and layout; and with stand-ins for the devices of torch
and CuPy, on a GPU that is not the current one."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gpuload import Augment
from gpuload.output.arrays import make_arrays
from gpuload.transforms.apply import on_device


def pixels_of(layout: str, dtype: str = "float32") -> np.ndarray:
    """What a decoder delivers for two images of 4 × 5 pixels."""
    shape = (2, 4, 5, 3) if layout == "channels_last" else (2, 3, 4, 5)
    return np.arange(120).reshape(shape).astype(dtype)


@pytest.mark.parametrize("layout", ["NCHW", "channels_last"])
@pytest.mark.parametrize("output", ["torch", "numpy"])
@pytest.mark.parametrize("made_by", ["numpy", "dlpack"])
def test_images_are_views_of_the_decoders_memory(output: str, layout: Any, made_by: str) -> None:
    pixels = pixels_of(layout)
    arrays = make_arrays(output, None, Augment(8, layout=layout).form)
    images = arrays.images(pixels if made_by == "numpy" else torch.from_numpy(pixels))
    assert isinstance(images, torch.Tensor if output == "torch" else np.ndarray) and images.shape == (2, 3, 4, 5)
    expected = pixels.transpose(0, 3, 1, 2) if layout == "channels_last" else pixels
    np.testing.assert_array_equal(np.asarray(images), expected)
    images[1, 2, 3, 4] = -1
    assert pixels[1, 3, 4, 2] == -1 if layout == "channels_last" else pixels[1, 2, 3, 4] == -1


def test_bfloat16_is_cast_when_a_batch_is_handed_over() -> None:
    arrays = make_arrays("torch", None, Augment(8, dtype="bfloat16").form)
    assert arrays.images(pixels_of("NCHW")).dtype == torch.bfloat16
    assert arrays.images(pixels_of("NCHW")[:0]).dtype == torch.bfloat16  # of a batch without samples
    assert arrays.adopt(pixels_of("NCHW"), is_image=True).dtype == torch.bfloat16
    assert arrays.adopt(pixels_of("NCHW"), is_image=False).dtype == torch.float32


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_other_fields_keep_their_dtype_and_memory(output: str) -> None:
    arrays = make_arrays(output, None, Augment(8, dtype="float16").form)
    for dtype in ("int64", "uint8", "float32"):
        numbers = np.arange(6, dtype=dtype)
        for found in (arrays.from_host(numbers), arrays.from_decoder(numbers), arrays.staging().from_host(numbers)):
            found[0] = 9
            assert numbers[0] == 9 and str(found.dtype).endswith(dtype)
            numbers[0] = 0


# On a GPU that is not the current one


class Current:
    """The current device and stream, as CUDA knows them: 0 and "default", until others are entered."""

    def __init__(self) -> None:
        self.device, self.stream = 0, "default"
        self.seen: list[tuple[str, int]] = []

    @contextmanager
    def entering(self, name: str, value: Any, needs: int | None = None) -> Iterator[None]:
        if needs not in (None, self.device):
            raise RuntimeError("This stream is not associated with the current device")
        before = getattr(self, name)
        setattr(self, name, value)
        try:
            yield
        finally:
            setattr(self, name, before)

    def note(self, what: str) -> None:
        self.seen.append((what, self.device))

    def pin(self, tensor: torch.Tensor) -> Any:
        """Pinned memory, of which a copy to a GPU tells how it was made."""
        self.note("pin_memory")
        made = {"tensor": tensor, "dtype": tensor.dtype}
        return SimpleNamespace(to=lambda device, **how: SimpleNamespace(**made, device=str(device), **how))


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> Current:
    """torch and CuPy with 4 GPUs, of which nothing but the current device works."""
    current = Current()
    cuda = SimpleNamespace(
        Device=lambda number: current.entering("device", number),
        ExternalStream=lambda stream, device: current.entering("stream", stream, needs=device),
    )
    makers = {name: lambda array, name=name: current.note(name) for name in ("from_dlpack", "asarray")}
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda, **makers))
    monkeypatch.setattr("gpuload.output.arrays.fault_of", lambda *_, **__: None)
    monkeypatch.setattr("gpuload.output.arrays.require", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    index_of = {3: 3, torch.device("cuda", 3): 3}
    monkeypatch.setattr(torch.cuda, "device", lambda device: current.entering("device", index_of[device]))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=f"of {device}"))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: current.pin(tensor))
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


def test_torchs_memory_waits_for_cupys_stream(current: Current, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner has it wait for torch's current stream; CuPy may compute on one of its own."""
    cuda: Any = sys.modules["cupy"].cuda
    cuda.get_current_stream = lambda: SimpleNamespace(ptr=77)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda number, device: f"stream {number} of GPU {device}")
    tensor = SimpleNamespace(record_stream=current.note)
    make_arrays("cupy", 2, Augment(8).form).from_decoder(tensor)
    assert current.seen == [("stream 77 of GPU 2", 2), ("from_dlpack", 2)]


@pytest.mark.parametrize(
    "copy",
    [
        lambda numbers: make_arrays("torch", 3, Augment(8).form).from_decoder(numbers),  # masks of an empty batch
        lambda numbers: make_arrays("torch", 3, Augment(8, dtype="uint8").form).images(numbers),  # its images
        lambda numbers: on_device(torch.device("cuda", 3), numbers),
    ],
)
def test_memory_is_pinned_on_the_loaders_device(current: Current, copy: Callable[[np.ndarray], Any]) -> None:
    """Pinning needs a context, and makes one on the current device: GPU 0 in every rank, unless another is entered."""
    copied = copy(np.arange(3, dtype=np.uint8))
    assert current.seen == [("pin_memory", 3)] and current.device == 0
    assert copied.tensor.tolist() == [0, 1, 2] and (copied.device, copied.non_blocking) == ("cuda:3", True)
