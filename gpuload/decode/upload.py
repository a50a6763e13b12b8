"""Decoding on the CPU for a GPU: pixels are copied there as uint8, and become values there.

    native decoder ─► uint8 in pinned memory ─► copy, on a stream of its own ─► transforms, normalisation, layout, on
                                                                                the training's stream

uint8 is half of float16 and a quarter of float32, over the bus and in the cores' caches. A thread starts a copy as soon
as a batch is decoded, while the next one is being decoded; the training's stream waits for it on the GPU, and no thread
waits for the GPU. Pinned memory costs a system call and some ms to allocate, so it is used again.
"""

from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from gpuload.augment import Form
from gpuload.decode.interface import Decoded, Decoder, Stored
from gpuload.decode.native.decoder import NativeDecoder
from gpuload.decode.native.threads import Task, Threads
from gpuload.decode.postprocess import PostprocessingDecoder
from gpuload.read.batch import Batch

_AHEAD = 2  # batches that are copied, or about to be, beside the one in use


def open_uploading(forms: tuple[Form, ...], stored: Stored, device_id: int | None, **options: Any) -> Decoder:
    """A decoder on the CPU whose batches are on a GPU. options: of `NativeDecoder`.

    device_id: None stands for a GPU on the CPU: everything is done in the same way, but nothing is pinned.
    """
    levels = [form.levels(stored.pixels) for form in forms]
    native = NativeDecoder(levels, stored, spare=3 + _AHEAD, allocate=allocator(device_id), **options)
    uploading = UploadingDecoder(native, device_id)
    return PostprocessingDecoder(uploading, forms, stored, device_id, levels=True)


class UploadingDecoder:
    """The batches of a decoder that makes NumPy arrays, as tensors on a GPU."""

    def __init__(self, decoder: Decoder, device_id: int | None) -> None:
        self._decoder, self._copies = decoder, Copies(device_id)
        self._ahead: deque[Task[_Uploaded | None]] = deque()
        self._thread = Threads(1, "gpuload-upload")

    def decode(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, Decoded]]:
        """As `gpuload.decode.interface.Decoder`: torch's tensors."""
        self._abandon()
        decoding = self._decoder.decode(batches)
        while True:
            while len(self._ahead) < _AHEAD:
                self._ahead.append(self._thread.submit(partial(self._upload_next, decoding)))
            uploaded = self._ahead[0].result()
            if uploaded is None:
                return
            self._ahead.popleft()  # not before: where waiting is interrupted, `_abandon` ends it
            self._copies.wait(uploaded)
            yield uploaded.batch, uploaded.decoded

    def close(self) -> None:
        """Stops the threads; batches handed out stay valid."""
        self._abandon()
        self._decoder.close()
        self._thread.close()
        self._copies.finish()

    def _upload_next(self, decoding: Iterator[tuple[Batch, Decoded]]) -> "_Uploaded | None":
        found = next(decoding, None)
        return None if found is None else self._copies.start(*found)

    def _abandon(self) -> None:
        """Ends the batches that nobody waits for any more."""
        ahead, self._ahead = self._ahead, deque()  # `close` may be called by another thread
        for task in list(ahead):
            task.cancelled = True
        for task in list(ahead):
            task.wait()


class _Uploaded(NamedTuple):
    """copied: the event after its copies; None without a GPU."""

    batch: Batch
    decoded: Decoded
    copied: Any


class Copies:
    """Copies arrays to a device, on a stream of its own, and keeps them from being written to until they are there."""

    def __init__(self, device_id: int | None) -> None:
        self._device = torch.device("cpu") if device_id is None else torch.device("cuda", device_id)
        self._stream: Any = None if device_id is None else torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._under_way: deque[tuple[Any, Decoded]] = deque()  # event, and the arrays that are read until then

    @torch.no_grad()
    def start(self, batch: Batch, decoded: Decoded) -> _Uploaded:
        """The batch on the device; its pixels may be read once `wait` was called."""
        if self._stream is None:
            return _Uploaded(batch, _each(decoded, lambda array: torch.from_numpy(array).clone()), None)
        with torch.cuda.stream(self._stream):  # enters the device, too
            there = _each(decoded, lambda array: torch.from_numpy(array).to(self._device, non_blocking=True))
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(self._stream)
        while self._under_way and self._under_way[0][0].query():
            self._under_way.popleft()
        self._under_way.append((copied, decoded))
        return _Uploaded(batch, there, copied)

    def wait(self, uploaded: _Uploaded) -> None:
        """Makes the current stream wait for it; this thread goes on."""
        if uploaded.copied is None:
            return
        current = torch.cuda.current_stream(self._device)
        current.wait_event(uploaded.copied)
        _each(uploaded.decoded, lambda tensor: tensor.record_stream(current))  # memory is used again after this stream

    def finish(self) -> None:
        """Waits until nothing is read from the host's memory any more."""
        if self._stream is not None:
            self._stream.synchronize()
        self._under_way.clear()


def _each(decoded: Decoded, make: Any) -> Decoded:
    """The same structure with `make` applied to each array."""
    masks = tuple(tuple(make(mask) for mask in view) for view in decoded.masks)
    return decoded._replace(images=tuple(make(images) for images in decoded.images), masks=masks)


def allocator(device_id: int | None) -> Any:
    """What makes the memory of arrays that are copied to a GPU: pinned."""
    if device_id is None:
        return np.empty

    def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        with torch.cuda.device(device_id):  # the context is made there, and not on GPU 0
            tensor = torch.empty(shape, dtype=getattr(torch, dtype.name), pin_memory=True)
        pinned: npt.NDArray[Any] = tensor.numpy()
        return pinned

    return allocate
