"""Converts batches to arrays of the user's library.

The decoder's batch is passed through DLPack without a copy, and on a GPU in the order of the library's current stream.
It belongs to the user: the decoder reuses its memory after the last reference is released.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gpuload.augment import Form
from gpuload.errors import ArgumentError, DeviceError, MissingPackageError
from gpuload.machine.installed import fault_of, require

Output = Literal["torch", "numpy", "cupy"]


class Arrays:
    """Makes a library's arrays on one device. This class makes NumPy arrays and copies arrays from a GPU.

    Args:
        channels_last: Whether images are (N, height, width, C) in memory; their shape is (N, C, height, width) in any
            case.

    Attributes:
        device: As torch names it, "cpu" or "cuda:0".
    """

    device = "cpu"

    def __init__(self, channels_last: bool) -> None:
        self._channels_last = channels_last

    def images(self, pixels: Any) -> Any:
        """A batch (N, 3, height, width) of the batch's dtype, from the decoder's images."""
        batch = self.from_decoder(pixels)
        return batch.transpose(0, 3, 1, 2) if self._channels_last else batch

    def patches(self, patches: Any) -> Any:
        """A batch (N, L, values of a patch) of the batch's dtype, from the decoder's patches."""
        return self.from_decoder(patches)

    def from_decoder(self, array: Any) -> Any:
        """An array of the same shape and dtype as the decoder's, a NumPy array or one that supports DLPack."""
        return _in_host_memory(array)

    def from_host(self, array: npt.NDArray[Any]) -> Any:
        """An array of the same shape and dtype as a NumPy array."""
        return array

    def zeros(self, like: Any, shape: tuple[int, ...]) -> Any:
        """Zeros of another array's type, where it is."""
        return np.zeros(shape, like.dtype)

    def cast(self, array: Any, dtype: str) -> Any:
        """An array of this class with this dtype; itself, if it has it already."""
        return array if str(array.dtype) == dtype else array.astype(dtype)

    def staging(self) -> "Arrays":
        """The maker of NumPy or CuPy arrays for batch transforms, on the same device."""
        return self

    def adopt(self, staged: Any, *, is_image: bool) -> Any:
        """Converts an array of `staging` to the library's, without a copy; an image gets the batch's dtype."""
        return staged

    def stream(self) -> AbstractContextManager[Any]:
        """A context that computes staged arrays on their device, on the library's current stream."""
        return nullcontext()


def make_arrays(output: str, device_id: int | None, form: Form) -> Arrays:
    """The maker of arrays of "torch", "numpy" or "cupy".

    Raises:
        ArgumentError: the library lacks the batch's dtype.
        DeviceError: the library cannot use the device.
        MissingPackageError: the library is not installed.
    """
    if form.dtype == "bfloat16" and output != "torch":
        raise ArgumentError(
            f"output={output!r}: has no bfloat16; use float16 or float32, or output='torch'"
        )
    channels_last = form.layout == "channels_last"
    if output == "torch":
        return _TorchArrays(device_id, form.dtype, channels_last)
    if output == "cupy":
        return _CupyArrays(device_id, channels_last)
    return Arrays(channels_last)


class _TorchArrays(Arrays):
    def __init__(self, device_id: int | None, dtype: str, channels_last: bool) -> None:
        if (fault := fault_of("torch")) is not None:
            raise MissingPackageError(
                f"output='torch': {fault.reason}. {fault.remedy}. Or use output='numpy'"
            )
        import torch

        if device_id is not None and not torch.cuda.is_available():
            raise DeviceError(
                f"output='torch': torch {torch.__version__} cannot use the GPU that DALI found. Install a CUDA "
                "build of torch, or use device='cpu' or output='cupy'"
            )
        super().__init__(channels_last)
        self.device = "cpu" if device_id is None else f"cuda:{device_id}"
        self._torch: Any = torch
        self._device_id = device_id
        self._dtype = getattr(torch, dtype)

    def images(self, pixels: Any) -> Any:
        batch = self.patches(pixels)
        return batch.permute(0, 3, 1, 2) if self._channels_last else batch

    def patches(self, patches: Any) -> Any:
        batch = self.from_decoder(patches)
        # bfloat16. `to` would wait for the GIL even with nothing to do.
        if batch.dtype != self._dtype:
            batch = batch.to(self._dtype)
        return batch

    def from_decoder(self, array: Any) -> Any:
        if isinstance(array, np.ndarray):
            return self.from_host(array)
        # torch exports a GPU's tensors only while that GPU is current.
        if isinstance(array, self._torch.Tensor):
            return array
        return self._torch.from_dlpack(array)

    def from_host(self, array: npt.NDArray[Any]) -> Any:
        tensor = self._torch.from_numpy(array)
        if self.device == "cpu":
            return tensor
        # Otherwise pinning creates a context on GPU 0, in every rank.
        with self._torch.cuda.device(self._device_id):
            return tensor.pin_memory().to(self.device, non_blocking=True)

    def zeros(self, like: Any, shape: tuple[int, ...]) -> Any:
        return like.new_zeros(shape)

    def cast(self, array: Any, dtype: str) -> Any:
        wanted = getattr(self._torch, dtype)
        return array if array.dtype == wanted else array.to(wanted)

    def staging(self) -> Arrays:
        if self._device_id is None:
            return Arrays(self._channels_last)
        return _CupyArrays(self._device_id, self._channels_last)

    def adopt(self, staged: Any, *, is_image: bool) -> Any:
        tensor = self._torch.from_dlpack(staged)
        return tensor.to(self._dtype) if is_image else tensor

    @contextmanager
    def stream(self) -> Iterator[None]:
        if self._device_id is None:
            yield
            return
        import cupy

        number = self._torch.cuda.current_stream(self.device).cuda_stream
        # CuPy uses a stream and launches kernels only if the stream's device is current.
        with (
            cupy.cuda.Device(self._device_id),
            cupy.cuda.ExternalStream(number, self._device_id),
        ):
            yield


class _CupyArrays(Arrays):
    def __init__(self, device_id: int | None, channels_last: bool) -> None:
        if device_id is None:
            raise DeviceError(
                "output='cupy': CuPy arrays are on a GPU, and the device is the CPU. Use output='numpy'"
            )
        require("output='cupy', or batch_transforms on a GPU", "cupy")
        import cupy

        super().__init__(channels_last)
        self.device = f"cuda:{device_id}"
        self._cupy = cupy
        self._device_id = device_id

    def from_decoder(self, array: Any) -> Any:
        if isinstance(array, np.ndarray):
            return self.from_host(array)
        with self._on_device():
            if hasattr(array, "record_stream"):
                self._keep_for_current_stream(array)
            return self._cupy.from_dlpack(array)

    def _keep_for_current_stream(self, tensor: Any) -> None:
        """Keeps a tensor's memory from being used again before CuPy's current stream has passed this batch.

        The runner does so for torch's current stream, which need not be CuPy's.
        """
        cuda = import_module("torch").cuda
        number = self._cupy.cuda.get_current_stream().ptr
        tensor.record_stream(cuda.ExternalStream(number, device=self._device_id))

    def from_host(self, array: npt.NDArray[Any]) -> Any:
        with self._on_device():
            return self._cupy.asarray(array)

    def zeros(self, like: Any, shape: tuple[int, ...]) -> Any:
        with self._on_device():
            return self._cupy.zeros(shape, like.dtype)

    def cast(self, array: Any, dtype: str) -> Any:
        with self._on_device():
            return super().cast(array, dtype)

    def stream(self) -> AbstractContextManager[Any]:
        return self._on_device()

    def _on_device(self) -> AbstractContextManager[Any]:
        return self._cupy.cuda.Device(self._device_id)


def _in_host_memory(array: Any) -> Any:
    """A writable NumPy array of a tensor of DALI or torch, or of a NumPy array."""
    if isinstance(array, np.ndarray):
        return array
    for move in ("as_cpu", "cpu"):  # of DALI's tensors on a GPU, and of torch's
        if hasattr(array, move):
            array = getattr(array, move)()
            break
    in_host = np.asarray(array)
    return in_host if in_host.flags.writeable else np.from_dlpack(array)
