"""Inputs and outputs of decoders, and the memory of batches."""

import math
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpuload.augment import Form
from gpuload.augment.crops import Crops
from gpuload.errors import DeviceError
from gpuload.fields.images import RGB, Pixels
from gpuload.read.batch import Batch
from gpuload.types import U8


class Fault(NamedTuple):
    """Why a sample does not decode.

    reason: in words, such as "it is truncated". mask: index of the faulty mask in `Batch.masks`; None for the image.
    """

    reason: str
    mask: int | None = None


class Changed(NamedTuple):
    """What a user function made of the N samples of a view.

    columns: replace those that were read from the index. crops: of the images that they describe.
    """

    columns: Mapping[str, Any]
    crops: Crops


@dataclass
class Decoded:
    """A decoded batch, as arrays that support DLPack.

    images: for each view, (N, C, height, width), or with channels_last (N, height, width, C).
    masks: for each view, for each mask field, uint8 (N, height, width).
    work_s: total work of the decoding threads. read_wait_s: how long the consumer waited for the batch to be read.
        queue_depth: batches that were ready when it was requested. NaN if unknown.
    broken: the samples that do not decode, by row. Their pixels are undefined; arrays are then NumPy arrays or torch
        tensors, whose rows can be replaced.
    changed: for each view, what a user function made of its samples, or None; empty without functions.
    function_s: total work of these functions in all threads and processes.
    """

    images: tuple[Any, ...]
    masks: tuple[tuple[Any, ...], ...]
    work_s: float = 0.0
    read_wait_s: float = 0.0
    queue_depth: float = 0.0
    broken: Mapping[int, Fault] = field(default_factory=dict)
    changed: tuple[Changed | None, ...] = ()
    function_s: float = 0.0

    def map(self, make: Callable[[Any], Any]) -> "Decoded":
        """The same with `make` applied to each array."""
        masks = tuple(tuple(make(mask) for mask in view) for view in self.masks)
        return replace(
            self, images=tuple(make(images) for images in self.images), masks=masks
        )


# NumPy and DALI have no bfloat16: the decoder delivers float32, which is cast when the batch is handed over.
NUMPY_DTYPES = {
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "float32",
    "uint8": "uint8",
}


@dataclass(frozen=True)
class Stored:
    """What the manifests say about all stored images.

    width, height: of the largest, so that memory can be allocated at the start; 0 if unknown.
    plain: each is upright as it is stored, and if it is a JPEG, gray or RGB.
    raw: all are stored as pixels (height, width, channels). mixes_raw: only some are.
    pixels: of the batch. source: what the images decode to.
    mask_fills: for each mask field, the class outside the image.
    """

    width: int = 0
    height: int = 0
    plain: bool = False
    raw: bool = False
    mixes_raw: bool = False
    mask_fills: tuple[int, ...] = ()
    pixels: Pixels = RGB
    source: Pixels = RGB


class Resources(NamedTuple):
    """The resources of a decoder.

    batch_size: maximum samples in a batch. num_threads: that decode. prefetch: batches ahead of the current one.
    hw_decoder_load: share of the images for a GPU's JPEG engines; None: DALI decides. cpu_share: share of the CPU
    decoder in "both".
    """

    batch_size: int
    num_threads: int
    prefetch: int
    hw_decoder_load: float | None = None
    cpu_share: float = 0.0


class BatchDecodeError(Exception):
    """Samples of a batch do not decode. faults: by row of the batch."""

    def __init__(self, batch: Batch, faults: Mapping[int, Fault]) -> None:
        super().__init__(f"{len(faults)} of {len(batch)} samples do not decode")
        self.batch, self.faults = batch, dict(sorted(faults.items()))


def capture_fault(device: str) -> DeviceError:
    """The error for a user who captures a CUDA graph while a decoder launches its work."""
    return DeviceError(
        f"{device}: a CUDA graph was captured in mode 'global' while batches were decoded, which forbids that to all "
        "threads. Capture before the first batch, or use torch.cuda.graph(..., capture_error_mode='thread_local')"
    )


# The row of an image in a batch, or of the mask with this number.
Place = tuple[int, int | None]


def with_stored(batch: Batch, found: Mapping[Place, U8]) -> Batch:
    """The batch with other bytes at these places."""
    encoded = batch.encoded
    images, spans, masks = (
        list(encoded.images),
        encoded.spans.copy(),
        [list(field) for field in batch.masks],
    )
    for (row, mask), data in found.items():
        (images if mask is None else masks[mask])[row] = data
        if mask is None:  # nothing else in the batch keeps the bytes
            spans[row] = (data.ctypes.data, data.nbytes)
    return replace(
        batch, encoded=replace(encoded, images=images, spans=spans), masks=tuple(masks)
    )


def no_pixels(batch: Batch, forms: Sequence[Form], masks: int) -> Decoded:
    """The decoded form of a batch without samples. masks: number of mask fields."""
    images = []
    for form, view in zip(forms, batch.views, strict=True):
        shape = (
            (form.channels, *view.size)
            if form.layout == "NCHW"
            else (*view.size, form.channels)
        )
        images.append(np.empty((0, *shape), NUMPY_DTYPES[form.dtype]))
    no_masks = tuple(
        tuple(np.empty((0, *view.size), np.uint8) for _ in range(masks))
        for view in batch.views
    )
    return Decoded(
        tuple(images), no_masks, read_wait_s=math.inf
    )  # there is nothing else to wait for


Allocate = Callable[[tuple[int, ...], np.dtype[Any]], npt.NDArray[Any]]


class Buffers:
    """A pool of arrays: page faults in fresh memory would take as long as filling it.

    Each array handed out has a `_Lease` as its base. Its views, tensors and DLPack capsules all keep the base alive;
    when the last of them is freed, in whichever thread, the memory returns to the pool.

    rows: of each array, at most. kept: unused arrays to keep. allocate: makes an array of a shape and dtype. An array
    serves any shape that takes at least half of it, so that batches of several sizes share the same few.
    """

    def __init__(
        self, rows: int, dtype: str, kept: int, allocate: Allocate = np.empty
    ) -> None:
        self._rows = rows
        self._dtype, self._allocate = np.dtype(dtype), allocate
        # No lock: the garbage collector may return memory at any point of any thread. Each access is atomic.
        self._free: deque[npt.NDArray[Any]] = deque(maxlen=kept)

    def take(self, count: int, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """An array (count, *shape) with undefined contents, in use nowhere else."""
        memory = self._find_free(self._rows * math.prod(shape))
        lease = _Lease(memory, (count, *shape))
        weakref.finalize(lease, self._free.append, memory).atexit = False
        return np.asarray(lease)

    def _find_free(self, needed: int) -> npt.NDArray[Any]:
        for _ in range(len(self._free)):
            try:
                memory = self._free.pop()
            except IndexError:
                break
            if needed <= memory.size <= 2 * needed:
                return memory
            self._free.appendleft(memory)
        return self._allocate((needed,), self._dtype)


class _Lease:
    """The right to use an array's memory, as an array of another shape, while this object lives."""

    def __init__(self, memory: npt.NDArray[Any], shape: tuple[int, ...]) -> None:
        self.__array_interface__ = {
            **memory.__array_interface__,
            "shape": shape,
            "strides": None,
        }
