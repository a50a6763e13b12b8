"""What a decoder is: the seam between `gpuload.decode.dali.decoder` (DALI) and `gpuload.decode.native.decoder` (our own, for a CPU)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from gpuload.augment import Form, View
from gpuload.disk.dataset import Dataset
from gpuload.errors import DecodeError
from gpuload.types import I64, U8


class Request(Protocol):
    """What a decoder needs to know of a batch of N samples.

    images: the bytes of N encoded images, or their pixels (height, width, 3). spans: int64 (N, 2), where in memory
    these begin, and how many bytes they are. raw: bool (N,), which are pixels. widths, heights: int32 (N,).
    masks: for each field of masks, N of them, encoded. views: what to make of each image, and of its masks.
    """

    @property
    def images(self) -> Sequence[U8]: ...

    @property
    def spans(self) -> I64: ...

    @property
    def raw(self) -> npt.NDArray[np.bool_]: ...

    @property
    def widths(self) -> npt.NDArray[np.int32]: ...

    @property
    def heights(self) -> npt.NDArray[np.int32]: ...

    @property
    def masks(self) -> Sequence[Sequence[U8]]: ...

    @property
    def views(self) -> Sequence[View]: ...

    def draws(self, number: int) -> npt.NDArray[np.float64]:
        """A random number in [0, 1) for each sample: a pure function of seed, epoch, sample and `number`."""


class Decoded(NamedTuple):
    """A batch, as arrays that speak DLPack.

    images: for each view, (N, 3, height, width), or for channels_last (N, height, width, 3).
    masks: for each view, for each field of masks, uint8 (N, height, width).
    seconds: from the beginning of its decoding until it was there, or with DALI until it was taken. Batches are decoded
        side by side.
    """

    images: tuple[Any, ...]
    masks: tuple[tuple[Any, ...], ...]
    seconds: float


# NumPy and DALI have no bfloat16: float32 leaves the decoder, and is cast when the batch is handed over.
NUMPY_DTYPES = {"float32": "float32", "float16": "float16", "bfloat16": "float32", "uint8": "uint8"}

R = TypeVar("R", bound=Request)


class Decoder(Protocol, Generic[R]):
    """Decodes batches in order, some of them ahead of the one asked for."""

    def decode(self, requests: Iterator[R]) -> Iterator[tuple[R, Decoded]]:
        """Pairs of a request and its batch.

        Only one call is under way at a time; a new one ends the one before.

        Raises:
            BatchDecodeError: images of the next batch do not decode.
        """

    def close(self) -> None:
        """Stops the threads and frees the memory; batches handed out stay valid."""


@dataclass(frozen=True)
class Stored:
    """What is known of all stored images beforehand.

    width, height, bytes: of the largest, so that memory can be had at the start; 0 is unknown.
    plain: each is upright as it is stored, and if it is a JPEG, gray or RGB.
    raw: they are pixels (height, width, 3) already.
    mask_fills: for each field of masks, the class of what lies outside the image.
    """

    width: int = 0
    height: int = 0
    bytes: int = 0
    plain: bool = False
    raw: bool = False
    mask_fills: tuple[int, ...] = ()


class BatchDecodeError(Exception):
    """Images at these places of a request, or masks of them, do not decode."""

    def __init__(self, request: Request, places: list[int], what: str = "image", reason: str | None = None) -> None:
        super().__init__(f"{len(places)} of {len(request.images)} {what}s do not decode")
        self.request = request
        self.places = places
        self.what = what
        self.reason = reason


class NoDecoder(Generic[R]):
    """Where neither images nor masks are asked for: nothing is decoded."""

    def decode(self, requests: Iterator[R]) -> Iterator[tuple[R, Decoded]]:
        """As `Decoder`."""
        for request in requests:
            yield request, Decoded((), (), 0.0)

    def close(self) -> None:
        """Nothing to stop."""


def no_pixels(request: Request, forms: Sequence[Form], masks: int) -> Decoded:
    """What decoding a request of no images gives."""
    images = []
    for form, view in zip(forms, request.views, strict=True):
        shape = (3, *view.size) if form.layout == "NCHW" else (*view.size, 3)
        images.append(np.empty((0, *shape), NUMPY_DTYPES[form.dtype]))
    shown = tuple(tuple(np.empty((0, *view.size), np.uint8) for _ in range(masks)) for view in request.views)
    return Decoded(tuple(images), shown, 0.0)


def explain(error: BatchDecodeError, datasets: Sequence[Dataset], samples: I64, sources: I64) -> DecodeError:
    """The same with the names of shard and sample. samples, sources: int64 (N,), of the batch."""
    place = error.places[0]
    dataset, sample = datasets[int(sources[place])], int(samples[place])
    shard = dataset.shard_paths[int(np.searchsorted(dataset.first_samples, sample, side="right")) - 1]
    others = f", nor do {len(error.places) - 1} others of its batch" if len(error.places) > 1 else ""
    if error.reason is not None:
        return DecodeError(
            f"{shard}: the {error.what} of sample {dataset.keys([sample])[0]!r} cannot be used: {error.reason}. Pack "
            "it again: `python -m gpuload pack` leaves out what does not fit, and says so"
        )
    what = "sample" if error.what == "image" else f"the {error.what} of sample"
    return DecodeError(
        f"{shard}: {what} {dataset.keys([sample])[0]!r} does not decode{others}. Pack its images again: "
        "`python -m gpuload pack` leaves out what does not decode, and says so"
    )
