"""The DALI graph, once, for CPU and GPU; the only file that imports DALI.

    external_source ─► decode ─► crop ─► resize ─► flip, normalise, transpose ─► batch

The CPU decodes just the crop (`decoders.image_slice`). The GPU decodes whole images, which is what its hardware
engines do, and slices: cropped GPU decode crashes in nvImageCodec 0.9 (github NVIDIA/nvImageCodec#55), which DALI 2.4
requires. From there on the operators are the same, so the two differ by their JPEG decoder alone.
"""

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic

from gpuload.augment import Augment
from gpuload.decoder import BatchDecodeError, Largest, R
from gpuload.errors import DeviceError, MissingPackageError
from gpuload.reader import Bytes

try:
    from nvidia.dali import Pipeline, backend, fn, pipeline_def, tensors, types
except ImportError as error:
    raise MissingPackageError(
        f"NVIDIA DALI is not installed ({error}). Install it with `pip install 'gpuload[cuda13]'`, or `[cuda12]` where "
        "the driver is for CUDA 12; it also runs on machines without a GPU"
    ) from None


# DALI has no bfloat16: float32 leaves the graph, and the iterator casts.
_DTYPES = {"float32": types.FLOAT, "float16": types.FLOAT16, "bfloat16": types.FLOAT, "uint8": types.UINT8}


def count_gpus() -> int:
    """GPUs that DALI can use here; 0 without a driver."""
    try:
        return int(backend.GetCUDADeviceCount())
    except RuntimeError:
        return 0


class DaliDecoder(Generic[R]):
    """Decodes batches in order, up to `prefetch` of them ahead of the one asked for.

    device_id: number of a GPU, or None for the CPU.
    num_threads: CPU threads that decode (CPU), or that parse and Huffman-decode (GPU).
    raw: the images are pixels (height, width, 3) already.
    """

    def __init__(
        self,
        augment: Augment,
        *,
        batch_size: int,
        device_id: int | None,
        num_threads: int,
        prefetch: int,
        largest: Largest,
        raw: bool = False,
    ) -> None:
        if device_id is not None and device_id >= count_gpus():
            raise DeviceError(
                f"device 'cuda:{device_id}' was asked for, but DALI finds {count_gpus()} GPUs here. "
                "Check `nvidia-smi`, or use device='cpu'"
            )
        self._augment, self._device_id, self._largest, self._raw = augment, device_id, largest, raw
        self._settings = {
            "batch_size": batch_size,
            "device_id": device_id,
            "num_threads": num_threads,
            "prefetch_queue_depth": prefetch,
            # Its outputs are safe to keep, and DLPack hands them over without a copy.
            "exec_dynamic": True,
        }
        self._source: Iterator[R] = iter(())
        self._in_flight: deque[R] = deque()
        self._pipeline: Any = None

    def decode(self, requests: Iterator[R]) -> Iterator[tuple[R, Any]]:
        """As `gpuload.decoder.Decoder`: DALI's dense tensors, on the device."""
        self._finish()
        if self._pipeline is None:
            self._pipeline = pipeline_def(operators)(
                self._augment, self._largest, self._raw, self._feed, **self._settings
            )
            self._pipeline.build()
            _pipelines.add(self._pipeline)
        self._source = requests
        while True:
            try:
                (pixels,) = self._pipeline.run()
            except StopIteration:
                self._pipeline.reset()
                return
            except RuntimeError as error:
                raise self._explain(error) from None
            except BaseException:  # raised by `requests` itself: batches in flight are lost with the pipeline
                self._discard()
                raise
            yield self._in_flight.popleft(), pixels.as_tensor()

    def close(self) -> None:
        """Stops the threads and frees the memory; batches handed out stay valid."""
        self._source = iter(())
        self._discard()

    def _feed(self) -> tuple[Any, ...]:
        request = next(self._source)
        self._in_flight.append(request)
        crops = request.crops
        # DALI's own conversion of a list of arrays takes 2.4 µs an image, this and what is left of it 1.2 (2026-11).
        images = [tensors.TensorCPU(image) for image in request.images]
        return images, crops.start, crops.shape, crops.roi_start, crops.roi_end, crops.mirror

    def _finish(self) -> None:
        """Runs out a call that was not followed to its end, so that the pipeline can start anew."""
        self._source = iter(())
        if self._in_flight and self._pipeline is not None:
            try:
                while True:
                    self._pipeline.run()
            except StopIteration:
                self._pipeline.reset()
            except RuntimeError:  # an image of the batches that nobody waits for any more
                self._discard()
        elif self._pipeline is not None:
            self._pipeline.reset()  # every batch was taken, but whoever counted them did not ask for one more
        self._in_flight.clear()

    def _discard(self) -> None:
        self._pipeline = None
        self._in_flight.clear()

    def _explain(self, error: RuntimeError) -> Exception:
        """Finds the images that do not decode: DALI names a place only for some faults, and never the sample.

        The pipeline is of no use after an error ("Current pipeline object is no longer valid"), so it goes.
        """
        requests = list(self._in_flight)
        self._discard()
        for request in requests:
            if places := [place for place, data in enumerate(request.images) if not _decodes(data)]:
                return BatchDecodeError(request, places)
        return error


_pipelines: weakref.WeakSet[Any] = weakref.WeakSet()
_kept: list[Any] = []


def _keep_pipelines() -> None:
    """Keeps DALI's destructor, which waits for its threads, out of forked children, which have not got them.

    Else a worker of a DataLoader hangs or crashes in its garbage collector, over a pipeline dropped before the fork.
    """
    _kept.extend(_pipelines)


os.register_at_fork(after_in_child=_keep_pipelines)


def _decodes(data: Bytes) -> bool:
    """Whether DALI's CPU decoder takes this image."""

    @pipeline_def(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1)
    def graph() -> Any:
        return fn.decoders.image(fn.external_source(source=lambda: [data], batch=True), device="cpu")

    try:
        graph().run()
    except RuntimeError:
        return False
    return True


def operators(augment: Augment, largest: Largest, raw: bool, feed: Callable[[], tuple[Any, ...]]) -> Any:
    """The graph, for the device of the pipeline that is being defined.

    feed: gives the encoded images of a batch, then the parts of its `Crops`, in their order.
    """
    on_gpu = Pipeline.current().device_id is not None
    encoded, start, shape, roi_start, roi_end, mirror = fn.external_source(
        feed,
        num_outputs=6,
        batch=True,
        no_copy=True,
        layout=["HWC" if raw else "", "", "", "", "", ""],
        dtype=[types.UINT8, types.INT32, types.INT32, types.FLOAT, types.FLOAT, types.INT32],
        ndim=[3 if raw else 1, 1, 1, 1, 1, 0],
    )
    if raw:
        whole = encoded.gpu() if on_gpu else encoded
        window = fn.slice(whole, start, shape, axes=[0, 1], normalized_anchor=False, normalized_shape=False)
    elif on_gpu:
        whole = fn.decoders.image(
            encoded,
            device="mixed",
            preallocate_width_hint=largest.width,
            preallocate_height_hint=largest.height,
            # As libjpeg upsamples chroma on the CPU: without it, coloured edges differ between the devices.
            jpeg_fancy_upsampling=True,
        )
        window = fn.slice(whole, start, shape, axes=[0, 1], normalized_anchor=False, normalized_shape=False)
    else:
        window = fn.decoders.image_slice(
            encoded, start, shape, axes=[0, 1], normalized_anchor=False, normalized_shape=False, device="cpu"
        )
    resized = fn.resize(
        window,
        size=list(augment.output_size),
        roi_start=roi_start,
        roi_end=roi_end,
        interp_type=types.INTERP_LINEAR,
        antialias=True,
    )
    as_is = augment.dtype == "uint8"
    return fn.crop_mirror_normalize(
        resized,
        mirror=mirror,
        mean=[0.0] if as_is else [255 * value for value in augment.mean],
        std=[1.0] if as_is else [255 * value for value in augment.std],
        dtype=_DTYPES[augment.dtype],
        output_layout="CHW" if augment.layout == "NCHW" else "HWC",
    )
