"""The GPU of a decoder's stages, and its stream: pixels are copied there, and turned into values by `Finish`.

    pinned memory ─► copy ─► transforms, normalisation, layout ─► event; the stream of the training waits for it

A thread launches this work as soon as a batch is decoded, while the next ones are being decoded; no thread waits for
the GPU. Pixels cross the bus as uint8, half the size of float16 and a quarter of float32. Pinned memory costs a system
call and some ms to allocate, so it is reused.
"""

import ctypes
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gpuload.decode.interface import Decoded, capture_fault


class Device:
    """A GPU and its stream.

    Args:
        number: Of the GPU; None: one simulated on the CPU, synchronous, nothing pinned.
    """

    def __init__(self, number: int | None) -> None:
        self.name = "cpu" if number is None else f"cuda:{number}"
        self._number = number
        self._torch = torch.device(self.name)
        self._stream: Any = None
        if number is not None:
            self._stream = torch.cuda.Stream(self._torch)  # type: ignore[no-untyped-call]  # torch's types have none
        # events, and the memory that is read until then.
        self._under_way: deque[tuple[Any, list[Any]]] = deque()

    @property
    def stream_number(self) -> int | None:
        """CUDA's handle of the stream; None without a GPU."""
        return None if self._stream is None else int(self._stream.cuda_stream)

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Makes torch compute on this GPU and stream.

        Raises:
            DeviceError: a CUDA graph is being captured.
        """
        try:
            with ExitStack() as entered:
                if self._number is not None:
                    # Of the stream alone, leaving would choose a stream of the thread's own device, which is GPU 0 in
                    # the threads of every rank, and make a context there.
                    entered.enter_context(torch.cuda.device(self._number))
                    entered.enter_context(torch.cuda.stream(self._stream))
                yield
        except RuntimeError as error:
            if "stream is capturing" in str(error):
                raise capture_fault(self.name) from error
            raise

    def upload(self, array: Any) -> torch.Tensor:
        """Copies a NumPy or DALI array to the GPU on the current stream; the caller holds it until that is done."""
        if isinstance(array, torch.Tensor):
            return array
        # DALI's, on the GPU.
        if self._stream is not None and hasattr(array, "copy_to_external"):
            return self._copy_of_dalis(array)
        tensor = as_tensor(array)
        return (
            tensor.clone()
            if tensor.device == self._torch
            else tensor.to(self._torch, non_blocking=True)
        )

    def _copy_of_dalis(self, array: Any) -> torch.Tensor:
        """A copy in torch's memory, for which no thread waits.

        Through DLPack DALI would give its memory back in a thread that synchronises the device for each batch.
        """
        described = array.__cuda_array_interface__
        dtype = getattr(torch, np.dtype(described["typestr"]).name)
        copy = torch.empty(tuple(described["shape"]), dtype=dtype, device=self._torch)
        # The stream is entered, so that torch's memory belongs to it, too.
        stream = ctypes.c_void_p(self.stream_number)
        array.copy_to_external(
            ctypes.c_void_p(copy.data_ptr()), stream, non_blocking=True
        )
        return copy

    def allocate(
        self, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> npt.NDArray[Any]:
        """A pinned array on the host, from which copies to the GPU are asynchronous."""
        if self._number is None:
            return np.empty(shape, dtype)
        # Otherwise the context would be created on GPU 0.
        with torch.cuda.device(self._number):
            tensor = torch.empty(
                shape, dtype=getattr(torch, dtype.name), pin_memory=True
            )
        pinned: npt.NDArray[Any] = tensor.numpy()
        return pinned

    def leave(self, held: list[Any]) -> Any:
        """Records an event after the work launched so far.

        Args:
            held: Objects whose memory that work uses: the event keeps them alive until the work is done.
        """
        if self._stream is None:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # as above
        event.record(self._stream)
        while self._under_way and self._under_way[0][0].query():
            self._under_way.popleft()
        self._under_way.append((event, held))
        return event

    def hand_over(self, decoded: Decoded, ready: Any) -> None:
        """Makes the current stream wait for that event; the memory is reused only after that stream is done with it."""
        if ready is None:
            return
        current = torch.cuda.current_stream(self._torch)
        current.wait_event(ready)
        for views in decoded.pictures.values():
            for tensor in views:
                tensor.record_stream(current)

    def close(self) -> None:
        """Waits until the GPU has read all host memory."""
        if self._stream is not None:
            self._stream.synchronize()
        self._under_way.clear()


def as_tensor(array: Any) -> torch.Tensor:
    """A decoder's array as a tensor, without a copy.

    A tensor is returned as it is: torch exports a GPU's tensors only while that GPU is the current one.
    """
    if isinstance(array, torch.Tensor):
        return array
    if isinstance(array, np.ndarray):
        return torch.from_numpy(array)
    tensor: torch.Tensor = torch.utils.dlpack.from_dlpack(array)
    return tensor
