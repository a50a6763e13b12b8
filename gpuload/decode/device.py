"""The GPU of a decoder's stages: pixels are copied there and turned into values there, on a separate stream.

    pinned memory ─► copy ─► transforms, normalisation, layout ─► event; the stream of the training waits for it

A thread launches this work as soon as a batch is decoded, while the next ones are being decoded; no thread waits for
the GPU. Pixels cross the bus as uint8, half the size of float16 and a quarter of float32. Pinned memory costs a system
call and some ms to allocate, so it is reused.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gpuload.augment import Form, View
from gpuload.augment.placed import places_in_windows
from gpuload.decode.interface import Decoded, Stored, capture_fault
from gpuload.decode.postprocess import Postprocess, warp_masks
from gpuload.decode.runner import Job, Stage
from gpuload.transforms.apply import on_device
from gpuload.types import I64

# NumPy and DALI have no bfloat16: float32 until the batch is returned.
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.float32, "uint8": torch.uint8}


class Device:
    """A GPU and its stream. number: of the GPU; None: one simulated on the CPU, synchronous, nothing pinned."""

    def __init__(self, number: int | None) -> None:
        self.name = "cpu" if number is None else f"cuda:{number}"
        self._number, self._torch = number, torch.device(self.name)
        self._stream: Any = None if number is None else torch.cuda.Stream(self._torch)  # type: ignore[no-untyped-call]
        self._under_way: deque[tuple[Any, list[Any]]] = deque()  # events, and the memory that is read until then

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
            with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
                yield
        except RuntimeError as error:
            if "stream is capturing" in str(error):
                raise capture_fault(self.name) from error
            raise

    def upload(self, array: Any) -> torch.Tensor:
        """Copies a NumPy or DALI array to the GPU on the current stream; the caller holds it until that is done."""
        if isinstance(array, torch.Tensor):
            return array
        tensor = as_tensor(array)
        return tensor.clone() if tensor.device == self._torch else tensor.to(self._torch, non_blocking=True)

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """A pinned array on the host, from which copies to the GPU are asynchronous."""
        if self._number is None:
            return np.empty(shape, dtype)
        with torch.cuda.device(self._number):  # otherwise the context would be created on GPU 0
            tensor = torch.empty(shape, dtype=getattr(torch, dtype.name), pin_memory=True)
        pinned: npt.NDArray[Any] = tensor.numpy()
        return pinned

    def leave(self, held: list[Any]) -> Any:
        """Records an event after the work launched so far, and keeps `held` alive until then."""
        if self._stream is None:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
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
        for tensor in (*decoded.images, *(mask for view in decoded.masks for mask in view)):
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
    tensor: torch.Tensor = (torch.from_numpy if isinstance(array, np.ndarray) else torch.utils.dlpack.from_dlpack)(
        array
    )
    return tensor


class Finish(Stage):
    """Copies batches to the device, and computes the values of views that a decoder delivers as levels
    (N, C, height, width).

    levels: whether the decoder delivers all views as levels. Otherwise it is DALI, which delivers levels for forms that
    are not plain, and windows (`gpuload.augment.placed`) for padding that is not constant. device: None for the CPU.
    """

    name = "finish"

    def __init__(self, forms: Sequence[Form], stored: Stored, device: Device | None, *, levels: bool) -> None:
        self._forms, self._device, self._fills = tuple(forms), device, stored.mask_fills
        self._levels = levels
        place = "cpu" if device is None else device.name
        self._postprocess = [
            None if form.is_plain and not levels else Postprocess(form, place, stored.pixels) for form in forms
        ]

    @torch.no_grad()  # not inference_mode, whose tensors a training step cannot save for its backward pass
    def begin(self, job: Job) -> None:
        """As `Stage.begin`: torch's tensors on the device."""
        decoded, views = job.decoded, job.batch.views
        if self._device is not None:
            job.held.append(decoded)
            decoded = decoded.map(self._device.upload)
        pixels = [(images, *masks) for images, masks in zip(decoded.images, decoded.masks, strict=True)]
        if not self._levels:
            for number, (form, view) in enumerate(zip(self._forms, views, strict=True)):
                if form.padding_mode != "constant":
                    y, x = places_in_windows(view.crops, view.size, job.batch.encoded.sizes, form.padding_mode)
                    pixels[number] = tuple(_gather(array, y, x) for array in pixels[number])
        job.decoded = decoded._replace(
            images=tuple(map(self._values, self._postprocess, self._forms, [images for images, *_ in pixels], views)),
            masks=tuple(self._warp(masks, view) for (_, *masks), view in zip(pixels, views, strict=True)),
        )

    def _values(self, postprocess: Postprocess | None, form: Form, pixels: Any, view: View) -> Any:
        if postprocess is None:
            return pixels
        images = as_tensor(pixels)
        count, channels, height, width = images.shape
        is_planar = form.layout == "NCHW"
        shape = (count, channels, height, width) if is_planar else (count, height, width, channels)
        out = torch.empty(shape, dtype=DTYPES[form.dtype], device=images.device)
        postprocess(images, out if is_planar else out.permute(0, 3, 1, 2), view)
        return out

    def _warp(self, masks: Sequence[Any], view: View) -> tuple[Any, ...]:
        if view.steps is None:
            return tuple(masks)
        return tuple(
            warp_masks(as_tensor(mask), view.steps, fill) for mask, fill in zip(masks, self._fills, strict=True)
        )


def _gather(pixels: Any, y: I64, x: I64) -> torch.Tensor:
    """The pixels at y (N, height) and x (N, width) of each image (N, ..., H, W)."""
    windows = as_tensor(pixels)
    between = (1,) * (windows.ndim - 3)
    rows, columns = (on_device(windows.device, places) for places in (y, x))
    rows = rows.view(len(rows), *between, -1, 1).expand(*windows.shape[:-2], -1, windows.shape[-1])
    taken = windows.gather(-2, rows)
    columns = columns.view(len(columns), *between, 1, -1).expand(*taken.shape[:-1], -1)
    return taken.gather(-1, columns)
