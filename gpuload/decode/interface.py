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
from gpuload.fields.maps import MapValues
from gpuload.fields.rows import Ragged
from gpuload.read.batch import Batch
from gpuload.types import U8, HeightWidth


class Fault(NamedTuple):
    """Why a sample does not decode.

    Attributes:
        reason: In words, such as "it is truncated".
        picture: The name of the faulty one; "" for the image.
    """

    reason: str
    picture: str = ""


class Changed(NamedTuple):
    """What a user function made of the N samples of a view.

    Attributes:
        columns: Replace those that were read from the index.
        crops: Of the images that they describe.
    """

    columns: Mapping[str, Any]
    crops: Crops


@dataclass
class Decoded:
    """A decoded batch, as arrays that support DLPack.

    Attributes:
        batch: What its pixels show. Where samples that do not decode are replaced, others stand in for them.
        asked: The batch as it was requested.
        pictures: By name, for each view: (N, C, height, width), or of an image with channels_last (N, height, width,
            C).
        work_s: Total work of the decoding threads.
        read_wait_s: How long the consumer waited for the batch to be read.
        queue_depth: Batches that were ready when it was requested. NaN if unknown.
        faults: The samples that do not decode, by row of `asked`. Unless they are replaced, their pixels are undefined;
            arrays are then NumPy arrays or torch tensors, whose rows can be replaced.
        changed: For each view, what a user function made of its samples, or None; empty without functions.
        function_s: Total work of these functions in all threads and processes.
    """

    batch: Batch
    asked: Batch
    pictures: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    work_s: float = 0.0
    read_wait_s: float = 0.0
    queue_depth: float = 0.0
    faults: Mapping[int, Fault] = field(default_factory=dict)
    changed: tuple[Changed | None, ...] = ()
    function_s: float = 0.0

    def map(self, make: Callable[[Any], Any]) -> "Decoded":
        """The same batch with a function applied to each of its arrays.

        Args:
            make: Gets an array of pictures, and returns the one that takes its place.
        """
        pictures = {
            name: tuple(map(make, views)) for name, views in self.pictures.items()
        }
        return replace(self, pictures=pictures)


# NumPy and DALI have no bfloat16: the decoder delivers float32, which is cast when the batch is handed over.
NUMPY_DTYPES = {
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "float32",
    "uint8": "uint8",
}


@dataclass(frozen=True)
class Stored:
    """What the manifests say about all stored pictures of a name.

    Attributes:
        width: Of the largest in pixels, so that memory can be allocated at the start; 0 if unknown.
        height: The same.
        plain: Each is upright as it is stored, and if it is a JPEG, gray or RGB.
        raw: All are stored as pixels (height, width, channels).
        mixes_raw: Only some are.
        pixels: Of the batch.
        source: What they decode to.
        is_mask: Whether each pixel is the number of a class.
    """

    width: int = 0
    height: int = 0
    plain: bool = False
    raw: bool = False
    mixes_raw: bool = False
    pixels: Pixels = RGB
    source: Pixels = RGB
    is_mask: bool = False


class PictureForm(NamedTuple):
    """What a decoder makes of one picture of each sample.

    Attributes:
        name: Of the picture.
        forms: Of its views.
        stored: What is known of all of them.
        values: What becomes of the values of a map, such as depth; None for images and masks.
        is_list: Whether a sample has any number of them.
        most: Of a list, the most that a sample has in a batch; 0 if that is unknown.
        is_further: Whether it is none of the images, so that it may differ in size from the picture that it moves with.
    """

    name: str
    forms: tuple[Form, ...]
    stored: Stored
    values: MapValues | None = None
    is_list: bool = False
    most: int = 1
    is_further: bool = False

    @property
    def is_image(self) -> bool:
        """Whether its values are levels of colours."""
        return self.values is None and not self.stored.is_mask

    def shape(self, form: Form, size: HeightWidth) -> tuple[int, ...]:
        """The shape of one of its pictures in a batch.

        Args:
            form: Of the view.
            size: (height, width) in pixels.
        """
        if self.values is not None:
            return (self.values.channels, *size)
        channels = self.stored.pixels.channels
        return (channels, *size) if form.layout == "NCHW" else (*size, channels)

    def dtype(self, form: Form) -> str:
        """Of its arrays, as NumPy names it."""
        return NUMPY_DTYPES[form.dtype] if self.values is None else self.values.dtype


class Resources(NamedTuple):
    """The resources of a decoder.

    Attributes:
        batch_size: Maximum samples in a batch.
        num_threads: That decode.
        prefetch: Batches ahead of the current one.
        hw_decoder_load: Share of the images for a GPU's JPEG engines; None: DALI decides.
        cpu_share: Share of the CPU decoder in "both".
    """

    batch_size: int
    num_threads: int
    prefetch: int
    hw_decoder_load: float | None = None
    cpu_share: float = 0.0


class BatchDecodeError(Exception):
    """Samples of a batch do not decode.

    Args:
        batch: As it was requested.
        faults: What is wrong with each of these samples, by row of the batch.
    """

    def __init__(self, batch: Batch, faults: Mapping[int, Fault]) -> None:
        super().__init__(f"{len(faults)} of {len(batch)} samples do not decode")
        self.batch = batch
        self.faults = dict(sorted(faults.items()))


def capture_fault(device: str) -> DeviceError:
    """The error for a user who captures a CUDA graph while a decoder launches its work."""
    return DeviceError(
        f"{device}: a CUDA graph was captured in mode 'global' while batches were decoded, which forbids that to all "
        "threads. Capture before the first batch, or use torch.cuda.graph(..., capture_error_mode='thread_local')"
    )


def faults_by_sample(
    batch: Batch, name: str, reasons: Mapping[int, str]
) -> dict[int, Fault]:
    """Why samples do not decode, by row; of a list of pictures the first that does not.

    Args:
        batch: With the samples.
        name: Of the pictures.
        reasons: Why a picture does not decode, by its row among all of this name.
    """
    pictures = batch.pictures[name]
    if not isinstance(pictures, Ragged):
        return {row: Fault(why, name) for row, why in reasons.items()}
    faults: dict[int, Fault] = {}
    for picture, reason in sorted(reasons.items()):
        row = int(pictures.samples[picture])
        number = int(pictures.positions[picture])
        faults.setdefault(row, Fault(f"picture {number}: {reason}", name))
    return faults


Place = tuple[int, str]  # a row of the stored pictures of a name, and this name


def with_stored(batch: Batch, contents: Mapping[Place, U8]) -> Batch:
    """The batch with other bytes at these places."""
    pictures = dict(batch.pictures)
    for name in dict.fromkeys(name for _, name in contents):
        stored = batch.stored(name)
        files = list(stored.contents)
        spans = stored.spans.copy()
        for (row, of_picture), data in contents.items():
            if of_picture == name:
                files[row] = data
                spans[row] = (data.ctypes.data, data.nbytes)
        written = replace(stored, contents=files, spans=spans)
        before = pictures[name]
        pictures[name] = written
        if isinstance(before, Ragged):
            pictures[name] = Ragged(before.counts, written)
    return replace(batch, pictures=pictures)


def no_pixels(batch: Batch, pictures: Sequence[PictureForm]) -> Decoded:
    """The decoded form of a batch without samples."""
    arrays = {}
    for picture in pictures:
        views = zip(picture.forms, batch.views_of(picture.name), strict=True)
        arrays[picture.name] = tuple(
            np.empty((0, *picture.shape(form, view.size)), picture.dtype(form))
            for form, view in views
        )
    # There is nothing else to wait for.
    return Decoded(batch, batch, arrays, read_wait_s=math.inf)


Allocate = Callable[[tuple[int, ...], np.dtype[Any]], npt.NDArray[Any]]


class Buffers:
    """A pool of arrays: page faults in fresh memory would take as long as filling it.

    Each array handed out has a `_Lease` as its base. Its views, tensors and DLPack capsules all keep the base alive;
    when the last of them is freed, in whichever thread, the memory returns to the pool.

    Args:
        rows: Rows that an array mostly has; one of more gets memory of its own size.
        dtype: Of the arrays.
        kept: Unused arrays to keep.
        allocate: Makes an array of a shape and dtype. An array serves any shape that takes at least half of it, so that
            batches of several sizes share the same few.
    """

    def __init__(
        self, rows: int, dtype: str, kept: int, allocate: Allocate = np.empty
    ) -> None:
        self._rows = rows
        self._dtype = np.dtype(dtype)
        self._allocate = allocate
        # No lock: the garbage collector may return memory at any point of any thread. Each access is atomic.
        self._free: deque[npt.NDArray[Any]] = deque(maxlen=kept)

    def take(self, count: int, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """An array (count, *shape) with undefined contents, in use nowhere else."""
        memory = self._find_free(max(self._rows, count) * math.prod(shape))
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
