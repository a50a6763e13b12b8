"""Hands batches over as arrays of the user's library.

The decoder's batch is handed over through DLPack: no copy, and on a GPU in the order of the library's current stream.
It belongs to whoever holds it: the decoder uses its memory again when the last reference is gone.
"""

from typing import Any, Literal, Protocol, get_args

import numpy as np

from gpuload.augment import Augment
from gpuload.errors import ArgumentError, DeviceError, MissingPackageError

Output = Literal["torch", "numpy", "cupy"]


class Arrays(Protocol):
    """Makes a library's arrays, on one device."""

    device: str

    def images(self, pixels: Any) -> Any:
        """A batch (N, 3, height, width) out of the decoder's."""

    def no_images(self) -> Any:
        """A batch of no images: (0, 3, height, width)."""

    def numbers(self, values: np.ndarray[Any, Any]) -> Any:
        """An array of the same shape and dtype as `values`."""


def make_arrays(output: str, device_id: int | None, augment: Augment) -> Arrays:
    """The maker for "torch", "numpy" or "cupy".

    Raises:
        ArgumentError: an unknown library, or one that lacks the batch's dtype.
        DeviceError: the library cannot use the device.
        MissingPackageError: the library is not installed.
    """
    if output not in get_args(Output):
        raise ArgumentError(f"output={output!r}: expected one of {', '.join(map(repr, get_args(Output)))}")
    if augment.dtype == "bfloat16" and output != "torch":
        raise ArgumentError(f"output={output!r}: has no bfloat16; use float16 or float32, or output='torch'")
    if output == "torch":
        return _TorchArrays(device_id, augment)
    if output == "cupy":
        return _CupyArrays(device_id, augment)
    return _NumpyArrays(augment)


class _TorchArrays:
    def __init__(self, device_id: int | None, augment: Augment) -> None:
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
        self._dtype = getattr(torch, augment.dtype)
        self._shape = (0, 3, *augment.output_size)
        self._channels_last = augment.layout == "channels_last"

    def images(self, pixels: Any) -> Any:
        batch = self._torch.from_dlpack(pixels).to(self._dtype)  # casts to bfloat16 only; else no copy
        return batch.permute(0, 3, 1, 2) if self._channels_last else batch

    def no_images(self) -> Any:
        return self._torch.empty(self._shape, dtype=self._dtype, device=self.device)

    def numbers(self, values: np.ndarray[Any, Any]) -> Any:
        tensor = self._torch.from_numpy(values)
        if self.device == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)


class _NumpyArrays:
    """NumPy arrays in host memory; from a GPU they are copied there."""

    device = "cpu"

    def __init__(self, augment: Augment) -> None:
        self._channels_last = augment.layout == "channels_last"
        self._empty = np.empty((0, 3, *augment.output_size), augment.dtype)

    def images(self, pixels: Any) -> Any:
        batch = np.asarray(pixels.as_cpu() if hasattr(pixels, "as_cpu") else pixels)
        return batch.transpose(0, 3, 1, 2) if self._channels_last else batch

    def no_images(self) -> Any:
        return self._empty

    def numbers(self, values: np.ndarray[Any, Any]) -> Any:
        return values


class _CupyArrays:
    def __init__(self, device_id: int | None, augment: Augment) -> None:
        if device_id is None:
            raise DeviceError("output='cupy': CuPy arrays live on a GPU, and the device is the CPU. Use output='numpy'")
        try:
            import cupy
        except ImportError:
            raise MissingPackageError(
                "output='cupy': CuPy is not installed. `pip install 'gpuload[cuda13]'` brings it, or `[cuda12]`"
            ) from None
        self.device = f"cuda:{device_id}"
        self._cupy, self._device_id = cupy, device_id
        self._channels_last = augment.layout == "channels_last"
        self._empty = np.empty((0, 3, *augment.output_size), augment.dtype)

    def images(self, pixels: Any) -> Any:
        batch = self._cupy.from_dlpack(pixels)
        return batch.transpose(0, 3, 1, 2) if self._channels_last else batch

    def no_images(self) -> Any:
        return self.numbers(self._empty)

    def numbers(self, values: np.ndarray[Any, Any]) -> Any:
        with self._cupy.cuda.Device(self._device_id):
            return self._cupy.asarray(values)
