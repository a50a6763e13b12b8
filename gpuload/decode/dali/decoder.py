"""DALI as a decoder: runs the graph of `gpuload.decode.dali.graph`, and explains its failures.

    batches ─► Feed: DALI's inputs ─► DaliDecoder: up to `prefetch` batches in DALI ─► dense tensors

DALI asks for its inputs on the thread that schedules a batch; making them beforehand saves 1.1 ms a batch there (256
samples, 2 cores, 2026-11). A batch goes through `DaliDecoder.screen` before it is fed (`gpuload.decode.dali.screen`).
"""

import atexit
import math
import os
import re
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.augment import View
from gpuload.counted import counted
from gpuload.decode.dali.graph import (
    backend,
    build_graph,
    input_names,
    open_pipeline,
    tensors,
)
from gpuload.decode.dali.screen import Screen
from gpuload.decode.interface import (
    PictureForm,
    Resources,
    Stored,
    capture_fault,
    no_pixels,
)
from gpuload.decode.runner import Job, Stage
from gpuload.errors import DecodeError, DeviceError
from gpuload.read.batch import Batch, StoredPictures
from gpuload.types import I64, Array

if TYPE_CHECKING:  # not needed where nothing is computed by torch
    from gpuload.decode.device import Device


def count_gpus() -> int:
    """GPUs that DALI can use here; 0 without a driver."""
    try:
        return int(backend.GetCUDADeviceCount())
    except RuntimeError:
        return 0


class DaliDecoder(Stage):
    """Decodes batches whose inputs `feed`, the previous stage, has made.

    Args:
        pictures: What is made of them. All have as many rows in a batch: one for each sample, or those of one list.
        resources: On a GPU, `num_threads` parse and Huffman-decode; what its JPEG engines do not decode, its CUDA cores
            do.
        device_id: Number of a GPU, or None for the CPU.
        device: The same for torch, whose stream waits for a batch. None: the thread of this stage waits.

    Raises:
        DeviceError: there is no such GPU.
    """

    name = "dali"

    def __init__(
        self,
        pictures: Sequence[PictureForm],
        resources: Resources,
        device_id: int | None,
        device: "Device | None",
    ) -> None:
        if device_id is not None and device_id >= count_gpus():
            raise DeviceError(
                f"device 'cuda:{device_id}' was requested, but DALI finds {count_gpus()} GPUs here. "
                "Check `nvidia-smi`, or use device='cpu'"
            )
        self._pictures = tuple(map(_as_drawn, pictures))
        self._device = device
        self._device_id = device_id
        self._prefetch = resources.prefetch
        self._load = resources.hw_decoder_load
        self.settings = {
            "batch_size": resources.batch_size * max(1, pictures[0].most),
            "num_threads": resources.num_threads,
            "device_id": device_id,
            "prefetch_queue_depth": resources.prefetch,
            "exec_dynamic": True,  # its outputs are safe to keep, and DLPack hands them over without a copy
        }
        self.feed = Feed(self._pictures)
        self.screen = Screen(self._pictures, resources.num_threads)
        self._scheduled: deque[Job] = deque()
        self._pipeline: Any = None
        self._postponed: tuple[Exception, list[Job]] | None = (
            None  # a failure of batches after the one returned
        )
        self._at_work = threading.Lock()
        _decoders.add(self)

    def restart(self) -> None:
        """Drains the batches in DALI, so that the pipeline can be reused."""
        pipeline = self._pipeline
        try:
            while self._scheduled and pipeline is not None:
                self._scheduled.popleft()
                pipeline.outputs()
        except (RuntimeError, StopIteration):
            # An image of a cancelled batch; or one was never begun. No later restart may find this pipeline, even if
            # what follows is interrupted.
            pipeline = None
            self._discard()
        except BaseException:  # Ctrl-C
            self._discard()
            raise
        self._scheduled.clear()
        self._postponed = None
        if pipeline is None:
            # Weak: the garbage collector does not see what DALI holds.
            take = weakref.WeakMethod(self._take)

            def source() -> tuple[Any, ...]:
                take_inputs = take()
                if take_inputs is None:
                    raise StopIteration
                return take_inputs()

            pipeline = open_pipeline(
                build_graph,
                self._pictures,
                source,
                self._load,
                **self.settings,
            )
        self._pipeline = pipeline

    def begin(self, job: Job) -> None:
        """As `Stage.begin`: DALI's dense tensors, on the device."""
        if self.feed.rows_of(job.batch):
            with self._at_work:
                outputs = self._next_outputs(job)
        else:
            outputs = self._no_outputs(job.batch)
        arrays = iter(outputs)
        pictures = {
            picture.name: tuple(islice(arrays, len(picture.forms)))
            for picture in self._pictures
        }
        job.decoded = replace(
            job.decoded,
            pictures={**job.decoded.pictures, **pictures},
            work_s=math.nan,
            queue_depth=math.nan,
        )

    def close(self) -> None:
        """Frees the pipeline and stops the threads; batches handed out stay valid."""
        with self._at_work:
            self._discard()
        self.screen.close()

    def _no_outputs(self, batch: Batch) -> list[Any]:
        """The arrays of a batch whose lists are all empty, which DALI does not take."""
        decoded = no_pixels(batch, [_as_decoded(one) for one in self._pictures])
        arrays = [array for views in decoded.pictures.values() for array in views]
        if self._device is None:
            return arrays
        return [self._device.upload(array) for array in arrays]

    def _next_outputs(self, job: Job) -> list[Any]:
        if self._postponed is not None:
            error, in_dali = self._postponed
            self._postponed = None
            raise self._explain(error, in_dali or [job]) from error
        pipeline = self._pipeline
        if pipeline is None:  # an earlier batch failed, or the interpreter exits
            raise CancelledError
        try:
            self._schedule(pipeline)
            taken = pipeline.outputs(
                None if self._device is None else self._device.stream_number
            )
            outputs = [output.as_tensor() for output in taken]
            # Before DALI begins another batch, for which the stream would wait, too.
            if self._device is not None:
                job.held.append(taken)
                outputs = [self._device.upload(output) for output in outputs]
        # StopIteration: DALI has begun none.
        except (RuntimeError, StopIteration) as error:
            in_dali = list(self._scheduled)
            # The pipeline cannot be used again ("Current pipeline object is no longer valid").
            self._discard()
            raise self._explain(error, in_dali) from error
        self._scheduled.popleft()
        try:
            self._schedule(pipeline)
        except RuntimeError as error:
            # Of a later batch, which will raise it; this one is complete.
            self._postponed = error, list(self._scheduled)
            self._discard()
        return outputs

    def _discard(self) -> None:
        self._pipeline = None
        self._scheduled.clear()

    def _schedule(self, pipeline: Any) -> None:
        """Schedules up to `prefetch` of the batches fed: DALI calls `_take` until it stops."""
        pipeline.reset()
        pipeline.schedule_run()

    def _take(self) -> tuple[Any, ...]:
        if len(self._scheduled) >= self._prefetch or not self.feed.fed:
            raise StopIteration
        job, inputs = self.feed.fed.popleft()
        self._scheduled.append(job)
        return inputs

    def _explain(self, error: Exception, in_dali: Sequence[Job]) -> Exception:
        cause: Exception | None = find_device_fault(error, self._device_id)
        if cause is None:
            cause = self.screen.explain_failure(in_dali)
        if cause is not None:
            return cause
        lines = str(error).strip().splitlines() or [type(error).__name__]
        batches = counted(len(in_dali), "batch", "batches")
        return DecodeError(
            f"DALI failed ({lines[0]}), while Pillow decodes each image of the {batches} that it was at "
            "work on. Use decoder='native', or another version of DALI"
        )


class Feed(Stage):
    """Makes DALI's inputs for each batch.

    Args:
        pictures: As of `DaliDecoder`.

    Attributes:
        fed: Batches that DALI has not begun, with their inputs.
    """

    name = "feed"

    def __init__(self, pictures: Sequence[PictureForm]) -> None:
        self._pictures = pictures
        self.fed: deque[tuple[Job, tuple[Any, ...]]] = deque()

    def restart(self) -> None:
        """As `Stage.restart`."""
        self.fed.clear()

    def rows_of(self, batch: Batch) -> int:
        """How many of each picture a batch has; without any, it is not fed."""
        return len(batch.stored(self._pictures[0].name))

    def begin(self, job: Job) -> None:
        """As `Stage.begin`."""
        if not self.rows_of(job.batch):
            return
        inputs: list[Any] = []
        for picture in self._pictures:
            inputs += self._inputs(picture, job.batch)
        self.fed.append((job, tuple(inputs)))

    def close(self) -> None:
        """As `Stage.close`."""
        self.fed.clear()

    def _inputs(self, picture: PictureForm, batch: Batch) -> list[Any]:
        """DALI's own list types, which it takes as they are; arrays would cost some µs per image."""
        stored = batch.stored(picture.name)
        is_raw = picture.stored.raw
        files = _raw_images(stored, picture.stored) if is_raw else stored.contents
        fed = [_as_list(files, "HWC" if is_raw else None)]
        views = batch.views_of(picture.name)
        for form, view in zip(picture.forms, views, strict=True):
            inputs = view.crops._asdict()
            inputs["cubic"] = (
                None if view.cubic is None else view.cubic.astype(np.int32)
            )
            inputs["size"] = np.full((len(stored), 2), view.size, np.float32)
            if form.places:
                inputs |= _parts(view, stored.sizes)
            fed += [tensors.TensorListCPU(inputs[name]) for name in input_names(form)]
        return fed


def _raw_images(pictures: StoredPictures, stored: Stored) -> Iterator[Array]:
    """Each picture, (height, width, channels), of pixels stored as they are."""
    pixels = stored.source
    dtype = np.dtype(pixels.stored)
    sizes = zip(pictures.heights.tolist(), pictures.widths.tolist(), strict=True)
    for content, size in zip(pictures.contents, sizes, strict=True):
        yield content.view(dtype).reshape(*size, pixels.channels)


def _as_drawn(picture: PictureForm) -> PictureForm:
    """As the graph makes it: a further picture that may be padded is placed, since one of another size than its
    image's is scaled as well."""
    if not picture.is_further:
        return picture
    forms = tuple(
        form._replace(places=form.places or form.pads) for form in picture.forms
    )
    return picture._replace(forms=forms)


def _as_decoded(picture: PictureForm) -> PictureForm:
    """As DALI delivers it: levels, if more is to be done than the graph does."""
    pixels = picture.stored.pixels
    forms = tuple(
        form if form.is_plain else form.levels(pixels) for form in picture.forms
    )
    return picture._replace(forms=forms)


def _parts(view: View, sources: I64) -> dict[str, Array]:
    """The inputs of images that are scaled and padded: the region that is shown of each, and where it lies.

    Args:
        sources: int64 (N, 2), height and width of the images.
    """
    crops = view.crops
    shown = crops.covered(view.size, sources)
    roi_start = np.maximum(crops.roi_start, -crops.start)
    roi_end = np.minimum(crops.roi_end, sources - crops.start)
    sizes = shown[:, 2:] - shown[:, :2]
    corners = -shown[:, :2]
    # Of a crop that lies in the padding, the frame is beside what DALI makes of it, which cannot be nothing.
    is_beside = (sizes == 0).any(axis=1)
    roi_start[is_beside] = 0
    roi_end[is_beside] = 1
    sizes[is_beside] = 1
    corners[is_beside] = 1
    return {
        "roi_start": roi_start.astype(np.float32),
        "roi_end": roi_end.astype(np.float32),
        "size": sizes.astype(np.float32),
        "corner": corners.astype(np.int32),
        "frame": np.full((len(sources), 2), view.size, np.int32),
    }


def _as_list(arrays: Iterable[Array], layout: str | None = None) -> Any:
    """DALI's list of these arrays, not copied. An operator with a layout argument would wrap each of them again."""
    return tensors.TensorListCPU(
        [tensors.TensorCPU(data) for data in arrays], layout=layout, contiguous=False
    )


# Of CUDA's runtime and driver ("CUDA runtime API error cudaErrorMemoryAllocation (2): out of memory"), of nvJPEG's and
# nvImageCodec's allocators, and of the host's.
_MEMORY = re.compile(
    "out of memory|MemoryAllocation|OUT_OF_MEMORY|ALLOCATOR_FAILURE|bad_alloc|[Ff]ailed to allocate"
)
_DEVICE = re.compile("CUDA (runtime|driver) API error|CUDA error|cudaError|CUDA_ERROR")
_CAPTURE = re.compile("StreamCapture|STREAM_CAPTURE|stream is capturing")


def find_device_fault(error: Exception, device_id: int | None) -> DeviceError | None:
    """The user's error if memory or the device failed; None if an image may be the cause."""
    device = "the CPU" if device_id is None else f"cuda:{device_id}"
    if device_id is not None and _CAPTURE.search(str(error)):
        return capture_fault(device)
    for line in map(str.strip, str(error).splitlines()):
        if _MEMORY.search(line) or (device_id is not None and _DEVICE.search(line)):
            return DeviceError(
                f"{device}: DALI failed ({line}). If memory ran out, use a smaller batch_size or prefetch, or free "
                "memory that other processes hold; otherwise an earlier kernel of this process may have failed, which "
                "CUDA_LAUNCH_BLOCKING=1 shows"
            )
    return None


_decoders: "weakref.WeakSet[DaliDecoder]" = weakref.WeakSet()


def _end_all() -> None:
    """Frees all pipelines before DALI, which was imported first, shuts down at the interpreter's exit."""
    for decoder in list(_decoders):
        decoder.close()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_decoders.clear)
