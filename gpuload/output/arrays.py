"""Hands batches over as arrays of the user's library.

The decoder's batch is handed over through DLPack: no copy, and on a GPU in the order of the library's current stream.
It belongs to whoever holds it: the decoder uses its memory again when the last reference is gone.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol, get_args

import numpy as np

from gpuload.augment import Form
from gpuload.errors import ArgumentError, DeviceError, MissingPackageError

Output = Literal["torch", "numpy", "cupy"]


class Arrays(Protocol):
    """Makes a library's arrays, on one device."""

    device: str

    def images(self, pixels: Any) -> Any:
        """A batch (N, 3, height, width) of the batch's dtype, out of the decoder's."""

    def numbers(self, values: Any) -> Any:
        """An array of the same shape and dtype as `values`, a NumPy array or one that speaks DLPack."""

    def staging(self) -> "Arrays":
        """What makes the NumPy or CuPy arrays, on the same device, that batch transforms work on."""

    def adopt(self, staged: Any, *, is_image: bool) -> Any:
        """The array out of one that `staging` made, without a copy; an image gets the batch's dtype."""

    def stream(self) -> AbstractContextManager[Any]:
        """Makes the library's current stream that of staged arrays."""


def make_arrays(output: str, device_id: int | None, form: Form) -> Arrays:
    """The maker for "torch", "numpy" or "cupy".

    Raises:
        ArgumentError: an unknown library, or one that lacks the batch's dtype.
        DeviceError: the library cannot use the device.
        MissingPackageError: the library is not installed.
    """
    if output not in get_args(Output):
        raise ArgumentError(f"output={output!r}: expected one of {', '.join(map(repr, get_args(Output)))}")
    if form.dtype == "bfloat16" and output != "torch":
        raise ArgumentError(f"output={output!r}: has no bfloat16; use float16 or float32, or output='torch'")
    channels_last = form.layout == "channels_last"
    if output == "torch":
        return _TorchArrays(device_id, form.dtype, channels_last)
    if output == "cupy":
        return _CupyArrays(device_id, channels_last)
    return _NumpyArrays(channels_last)


class _TorchArrays:
    def __init__(self, device_id: int | None, dtype: str, channels_last: bool) -> None:
        try:
            import torch
        except ImportError:
            raise MissingPackageError(
                "output='torch': torch is not installed. `pip install 'gpuload[cuda13]'` brings it. "
                "Or use output='numpy'"
            ) from None
        if device_id is not None and not torch.cuda.is_available():
            raise DeviceError(
                f"output='torch': torch {torch.__version__} cannot use the GPU that DALI found. Install a CUDA "
                "build of torch, or use device='cpu' or output='cupy'"
            )
        self.device = "cpu" if device_id is None else f"cuda:{device_id}"
        self._torch: Any = torch
        self._device_id, self._dtype, self._channels_last = device_id, getattr(torch, dtype), channels_last

    def images(self, pixels: Any) -> Any:
        batch = (self._torch.from_numpy if isinstance(pixels, np.ndarray) else self._torch.from_dlpack)(pixels)
        if batch.dtype != self._dtype:  # bfloat16. `to` would wait for Python's lock also where there is nothing to do
            batch = batch.to(self._dtype)
        return batch.permute(0, 3, 1, 2) if self._channels_last else batch

    def numbers(self, values: Any) -> Any:
        if not isinstance(values, np.ndarray):
            return self._torch.from_dlpack(values)
        tensor = self._torch.from_numpy(values)
        if self.device == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def staging(self) -> Arrays:
        if self._device_id is None:
            return _NumpyArrays(self._channels_last)
        return _CupyArrays(self._device_id, self._channels_last)

    def adopt(self, staged: Any, *, is_image: bool) -> Any:
        tensor = self._torch.from_dlpack(staged)
        return tensor.to(self._dtype) if is_image else tensor

    def stream(self) -> AbstractContextManager[Any]:
        if self._device_id is None:
            return nullcontext()
        import cupy

        return cupy.cuda.ExternalStream(self._torch.cuda.current_stream(self.device).cuda_stream, self._device_id)  # type: ignore[no-any-return]


class _NumpyArrays:
    """NumPy arrays in host memory; from a GPU they are copied there."""

    device = "cpu"

    def __init__(self, channels_last: bool) -> None:
        self._channels_last = channels_last

    def images(self, pixels: Any) -> Any:
        batch = _in_host_memory(pixels)
        return batch.transpose(0, 3, 1, 2) if self._channels_last else batch

    def numbers(self, values: Any) -> Any:
        return _in_host_memory(values)

    def staging(self) -> Arrays:
        return self

    def adopt(self, staged: Any, *, is_image: bool) -> Any:
        return staged

    def stream(self) -> AbstractContextManager[Any]:
        return nullcontext()


class _CupyArrays:
    def __init__(self, device_id: int | None, channels_last: bool) -> None:
        if device_id is None:
            raise DeviceError("output='cupy': CuPy arrays live on a GPU, and the device is the CPU. Use output='numpy'")
        try:
            import cupy
        except ImportError:
            raise MissingPackageError(
                "output='cupy', or batch_transforms on a GPU: CuPy is not installed. `pip install 'gpuload[cuda13]'` "
                "brings it, or `[cuda12]`"
            ) from None
        self.device = f"cuda:{device_id}"
        self._cupy, self._device_id, self._channels_last = cupy, device_id, channels_last

    def images(self, pixels: Any) -> Any:
        batch = self.numbers(pixels)
        return batch.transpose(0, 3, 1, 2) if self._channels_last else batch

    def numbers(self, values: Any) -> Any:
        if not isinstance(values, np.ndarray):
            return self._cupy.from_dlpack(values)
        with self._cupy.cuda.Device(self._device_id):
            return self._cupy.asarray(values)

    def staging(self) -> Arrays:
        return self

    def adopt(self, staged: Any, *, is_image: bool) -> Any:
        return staged

    def stream(self) -> AbstractContextManager[Any]:
        return nullcontext()


def _in_host_memory(array: Any) -> Any:
    """A NumPy array that may be written to, out of DALI's tensor, torch's or NumPy's."""
    if isinstance(array, np.ndarray):
        return array
    for move in ("as_cpu", "cpu"):  # DALI's from a GPU, and torch's
        if hasattr(array, move):
            array = getattr(array, move)()
            break
    found = np.asarray(array)
    return found if found.flags.writeable else np.from_dlpack(array)
