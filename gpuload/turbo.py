"""The CPU decoder: libjpeg-turbo (simplejpeg) and torch's resize, in threads, into memory that is used again.

On a CPU it replaces DALI's operators, whose resize takes longer than its decoder: 0.58 ms an image for a random crop of
500×375 to 224×224, torch's uint8 antialiasing 0.22 ms, the same pixels within rounding (2 cores, 2026-11). The threads
hold Python's lock only between calls. Images that are no JPEG are left to Pillow.
"""

import io
import sys
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Generic

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageOps

from gpuload.augment import Augment, Crops
from gpuload.decoder import BatchDecodeError, Largest, R
from gpuload.errors import MissingPackageError
from gpuload.reader import Bytes

try:
    import simplejpeg
    import torch
    from torch.nn import functional
except ImportError as error:
    raise MissingPackageError(
        f"decoder='turbo': {error.name} is not installed. `pip install 'gpuload[cpu]'` brings it, or use decoder='dali'"
    ) from None

Pixels = npt.NDArray[np.uint8]

# Where a crop is so large that the image can be decoded at 1/2, 1/4 or 1/8 of its size, it is, as long as the crop
# keeps this many pixels, along each side, for one of the output's: what Pillow calls a reducing gap, and 3 is where it
# finds no difference to be seen. On 12-megapixel photos to 224 pixels (2026-11): 42.5 ms an image for 47.5, 0.14 levels
# of 255 apart on average, 1 at the 99.9th percentile; a gap of 2 took 37 ms and was 0.22 and 2 levels apart.
REDUCING_GAP = 3.0


class TurboDecoder(Generic[R]):
    """Decodes batches in order, up to `prefetch` of them ahead of the one asked for.

    num_threads: that decode. largest: the largest image, for the memory of each thread. upright: no image has to be
    rotated by its EXIF data; the packer stores them so.
    """

    def __init__(
        self,
        augment: Augment,
        *,
        batch_size: int,
        num_threads: int,
        prefetch: int,
        largest: Largest,
        upright: bool,
    ) -> None:
        self._channels_last = augment.layout == "channels_last"
        self._num_threads, self._prefetch = num_threads, prefetch
        self._images = _Images(augment.output_size, largest, upright)
        self._normalise = _Normalise(augment)
        self._outputs = _Outputs(augment, batch_size, kept=prefetch + 3)
        self._in_flight: deque[_Work[R]] = deque()
        self._pool = ThreadPoolExecutor(num_threads, "gpuload-decode", initializer=_compute_alone)
        # torch keeps the number of threads that compute for each thread that asks, but for threads still to come, and
        # for MKL, in the whole process: so, when all of ours have begun, the number is the user's again.
        torch_threads = torch.get_num_threads()
        begun = threading.Barrier(num_threads + 1)
        for _ in range(num_threads):
            self._pool.submit(begun.wait)
        begun.wait()
        torch.set_num_threads(torch_threads)

    def decode(self, requests: Iterator[R]) -> Iterator[tuple[R, npt.NDArray[Any]]]:
        """As `gpuload.decoder.Decoder`."""
        self._abandon()
        while True:
            while len(self._in_flight) <= self._prefetch and (request := next(requests, None)) is not None:
                self._begin(request)
            if not self._in_flight:
                return
            work = self._in_flight.popleft()
            for future in work.futures:
                future.result()
            if work.broken:
                self._abandon()
                raise BatchDecodeError(work.request, sorted(work.broken))
            yield work.request, work.output

    def close(self) -> None:
        """Stops the threads; batches handed out stay valid."""
        self._abandon()
        self._pool.shutdown()

    def _begin(self, request: R) -> None:
        work = _Work(request, self._outputs.take(len(request.images)))
        work.futures = [self._pool.submit(self._share, work) for _ in range(self._num_threads)]
        self._in_flight.append(work)

    def _abandon(self) -> None:
        """Ends work that nobody waits for any more."""
        for work in self._in_flight:
            work.abandoned = True
        for work in self._in_flight:
            wait(work.futures)
        self._in_flight.clear()

    @torch.inference_mode()
    def _share(self, work: "_Work[R]") -> None:
        """What one thread does of a batch: the next image that no other has begun, until none is left."""
        batch = torch.from_numpy(work.output.transpose(0, 3, 1, 2) if self._channels_last else work.output)
        images, crops = work.request.images, work.request.crops
        for place in work.places:
            if place >= len(images) or work.abandoned:
                return
            try:
                image = self._images.read(images[place], crops, place)
            except UndecodableError:
                work.broken.append(place)
            else:
                self._normalise(image.flip(2) if crops.mirror[place] else image, batch[place])


@dataclass
class _Work(Generic[R]):
    """A batch in the hands of the threads."""

    request: R
    output: npt.NDArray[Any]
    places: "count[int]" = field(default_factory=count)  # whose `next` is atomic
    futures: "list[Future[None]]" = field(default_factory=list)
    broken: list[int] = field(default_factory=list)
    abandoned: bool = False


class UndecodableError(Exception):
    """Neither libjpeg-turbo nor Pillow makes an image of these bytes."""


class _Images:
    """Decodes, crops and resizes one image at a time, in memory of the calling thread."""

    def __init__(self, size: tuple[int, int], largest: Largest, upright: bool) -> None:
        self._size, self._upright = size, upright
        self._scratch_bytes = 3 * largest.width * largest.height
        self._thread = threading.local()

    def read(self, data: Bytes, crops: Crops, place: int) -> torch.Tensor:
        """uint8 (3, height, width), of the size of the output."""
        start, shape = crops.start[place], crops.shape[place]
        roi = crops.roi_end[place] - crops.roi_start[place]
        image, scale = self._decode(data, float((roi / self._size).min()) / REDUCING_GAP)
        if (scale < 1).any():
            top, left = (start + crops.roi_start[place]) * scale
            bottom, right = (start + crops.roi_end[place]) * scale
            cut = start * scale, (start + shape) * scale
            return _resize_region(image, cut, (top, left, bottom, right), self._size)
        if (roi == shape).all():
            (top, left), (height, width) = start.tolist(), shape.tolist()
            return _resize(image[top : top + height, left : left + width], self._size)
        # A region whose edges fall between pixels is a crop of the resized image (torchvision's CenterCrop).
        step = roi / self._size
        height, width = np.rint(image.shape[:2] / step).astype(int).tolist()
        top, left = np.rint((start + crops.roi_start[place]) / step).astype(int).tolist()
        return _resize(image, (height, width))[:, top : top + self._size[0], left : left + self._size[1]]

    def _decode(self, data: Bytes, reduce: float) -> tuple[Pixels, npt.NDArray[np.float64]]:
        """uint8 (height, width, 3), at up to 1/`reduce` of its size, and its scale in y and x."""
        if data.ndim == 3:  # pixels already; a copy, as torch takes no memory that is not to be written to
            return data.copy(), np.ones(2)
        try:
            height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data, strict=False)
            if colorspace in ("CMYK", "YCCK") or not (self._upright or _is_upright(data)):
                return self._decode_other(data)
            factor = 8 if reduce >= 8 else 4 if reduce >= 4 else 2 if reduce >= 2 else 1
            image = simplejpeg.decode_jpeg(
                data,
                min_height=-(-height // factor),
                min_width=-(-width // factor),
                min_factor=factor,
                buffer=self._scratch(3 * height * width),
            )
        except ValueError:  # no JPEG, or one with faults: some of them Pillow forgives, as DALI does
            return self._decode_other(data)
        # A pixel of a reduced image is one of factor² pixels, also where the last are not whole.
        return image, np.full(2, 1 / factor)

    def _decode_other(self, data: Bytes) -> tuple[Pixels, npt.NDArray[np.float64]]:
        try:
            with Image.open(io.BytesIO(data.tobytes())) as image:
                return np.array(ImageOps.exif_transpose(image).convert("RGB")), np.ones(2)
        except Exception as error:  # Pillow's decoders raise many kinds
            raise UndecodableError(str(error)) from None

    def _scratch(self, size: int) -> Pixels:
        """At least `size` bytes, the same memory for each image: fresh pages would cost more than the copying."""
        found: Pixels | None = getattr(self._thread, "scratch", None)
        if found is None or len(found) < size:
            found = self._thread.scratch = np.empty(max(size, self._scratch_bytes), np.uint8)
        return found


def _compute_alone() -> None:
    """The calling thread's computations are not shared out to others: it is one of many already."""
    torch.set_num_threads(1)
    torch.get_num_threads()  # a thread takes the number over at its first use of it, which must not come later


def _is_upright(data: Bytes) -> bool:
    """Whether a JPEG is to be shown as it is stored. EXIF data stands among the first segments."""
    if b"Exif\0\0" not in data[:65536].tobytes():
        return True
    with Image.open(io.BytesIO(data.tobytes())) as image:
        return bool(image.getexif().get(ExifTags.Base.Orientation, 1) == 1)


def _resize(image: Pixels, size: tuple[int, int]) -> torch.Tensor:
    """uint8 (3, *size) out of (height, width, 3), bilinear with antialiasing."""
    batch = torch.from_numpy(image).permute(2, 0, 1).unsqueeze(0)
    return functional.interpolate(batch, size=size, mode="bilinear", antialias=True)[0]


def _resize_region(image: Pixels, cut: Any, region: tuple[float, ...], size: tuple[int, int]) -> torch.Tensor:
    """The same for a region (top, left, bottom, right) between pixels; pixels outside `cut` do not count."""
    low = np.floor(cut[0]).astype(int)
    high = np.minimum(np.ceil(cut[1]).astype(int), image.shape[:2])
    top, left, bottom, right = region - np.tile(low, 2)
    height, width = high - low
    box = (left, top, min(right, width), min(bottom, height))
    window = Image.fromarray(np.ascontiguousarray(image[low[0] : high[0], low[1] : high[1]]))
    resized = window.resize(size[::-1], Image.Resampling.BILINEAR, box=box)
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1)


class _Normalise:
    """Writes uint8 (3, height, width) as (pixel / 255 - mean) / std, or as it is where uint8 is asked for."""

    def __init__(self, augment: Augment) -> None:
        self._raw = augment.dtype == "uint8"
        self._half = augment.dtype == "float16"
        self._mean = torch.tensor(augment.mean).view(3, 1, 1) * 255
        self._factor = 1 / (torch.tensor(augment.std).view(3, 1, 1) * 255)

    def __call__(self, image: torch.Tensor, out: torch.Tensor) -> None:
        if self._raw:
            out.copy_(image)
        elif self._half:
            out.copy_(image.float().sub_(self._mean).mul_(self._factor))
        else:
            out.copy_(image).sub_(self._mean).mul_(self._factor)


class _Outputs:
    """Memory for batches, used again once nobody holds the batch.

    Page faults in fresh memory would take as long as filling it. A tensor made of an array, and every view of it,
    holds a reference to the array: so its reference count tells.
    """

    def __init__(self, augment: Augment, batch_size: int, kept: int) -> None:
        height, width = augment.output_size
        shape = (3, height, width) if augment.layout == "NCHW" else (height, width, 3)
        self._shape = (batch_size, *shape)
        # NumPy has no bfloat16: float32 leaves here, and the iterator casts.
        self._dtype = np.dtype("float32" if augment.dtype == "bfloat16" else augment.dtype)
        self._arrays: deque[npt.NDArray[Any]] = deque(maxlen=kept)

    def take(self, count: int) -> npt.NDArray[Any]:
        """An array for `count` images, which nobody else holds."""
        for array in self._arrays:
            if sys.getrefcount(array) == 3:  # in the deque, in `array`, and as getrefcount's argument
                return array[:count]
        fresh = np.empty(self._shape, self._dtype)
        self._arrays.append(fresh)
        return fresh[:count]
