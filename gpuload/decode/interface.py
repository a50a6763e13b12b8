"""What a decoder is: the interface of `gpuload.decode.dali` and `gpuload.decode.native`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from gpuload.augment import Form
from gpuload.augment.crops import Crops
from gpuload.fields.pixels import RGB, Pixels
from gpuload.read.batch import Batch, take_rows
from gpuload.types import I64


class Fault(NamedTuple):
    """Why a sample does not decode.

    reason: in words, such as "it is truncated". mask: of which of its masks, counted as `Batch.masks` is; None of its
    image.
    """

    reason: str
    mask: int | None = None


NO_FAULTS: Mapping[int, Fault] = MappingProxyType({})


class Changed(NamedTuple):
    """What a function of the user's made of the N samples of a view.

    columns: of the index, in place of those that were read. crops: of the images that these are about.
    """

    columns: Mapping[str, Any]
    crops: Crops

    def take(self, rows: I64) -> "Changed":
        """The samples at these rows."""
        columns = {name: take_rows(values, rows) for name, values in self.columns.items()}
        return Changed(columns, self.crops.select(rows))


class Decoded(NamedTuple):
    """A decoded batch, as arrays that support DLPack.

    images: for each view, (N, C, height, width), or with channels_last (N, height, width, C).
    masks: for each view, for each mask field, uint8 (N, height, width).
    seconds: from the start of its decoding until it was ready, or with DALI until it was taken. Batches are decoded
        concurrently.
    work_s: work of the decoding threads, all together. read_wait_s: how long whoever asked for the batch waited until
        it had been read. queue_depth: batches that were ready when it was asked for. NaN where it is not known.
    broken: the samples that do not decode, by their rows. Their pixels may be anything; arrays are then NumPy arrays or
        torch's tensors, whose rows can be replaced.
    changed: for each view what a function of the user's made of its samples, None where there is none; or no views.
    function_s: work of these functions, in all threads and processes together.
    """

    images: tuple[Any, ...]
    masks: tuple[tuple[Any, ...], ...]
    seconds: float
    work_s: float = 0.0
    read_wait_s: float = 0.0
    queue_depth: float = 0.0
    broken: Mapping[int, Fault] = NO_FAULTS
    changed: tuple[Changed | None, ...] = ()
    function_s: float = 0.0


# NumPy and DALI have no bfloat16: the decoder delivers float32, which is cast when the batch is handed over.
NUMPY_DTYPES = {"float32": "float32", "float16": "float16", "bfloat16": "float32", "uint8": "uint8"}


class Decoder(Protocol):
    """Decodes batches in order, some of them ahead of the one asked for."""

    def decode(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, Decoded]]:
        """Each batch with its pixels.

        Only one call is active at a time; a new one ends the one before. Samples that do not decode are told in
        `Decoded.broken` by a decoder that can go on.

        Raises:
            BatchDecodeError: by a decoder that cannot: samples of the next batch do not decode. A new call may follow.
        """

    def close(self) -> None:
        """Stops the threads and frees the memory; batches handed out stay valid."""


@dataclass(frozen=True)
class Stored:
    """What is known of all stored images beforehand.

    width, height: of the largest, so that memory can be allocated at the start; 0 is unknown.
    plain: each is upright as it is stored, and if it is a JPEG, gray or RGB.
    raw: they are pixels (height, width, channels) already.
    pixels: of the batch. source: what the images decode to.
    others: some may be of other encodings than JPEG and PNG.
    mask_fills: for each mask field, the class of what lies outside the image.
    """

    width: int = 0
    height: int = 0
    plain: bool = False
    raw: bool = False
    mask_fills: tuple[int, ...] = ()
    pixels: Pixels = RGB
    source: Pixels = RGB
    others: bool = False


class BatchDecodeError(Exception):
    """Samples of a batch do not decode. faults: by their rows in the batch."""

    def __init__(self, batch: Batch, faults: Mapping[int, Fault]) -> None:
        super().__init__(f"{len(faults)} of {len(batch)} samples do not decode")
        self.batch, self.faults = batch, dict(sorted(faults.items()))


class NoDecoder:
    """Decodes nothing, where neither images nor masks are asked for."""

    def decode(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, Decoded]]:
        """As `Decoder`."""
        for batch in batches:
            yield batch, Decoded((), (), 0.0, read_wait_s=batch.read_s)

    def close(self) -> None:
        """Nothing to stop."""


def no_pixels(batch: Batch, forms: Sequence[Form], masks: int) -> Decoded:
    """What decoding a batch without samples gives. masks: number of mask fields."""
    images = []
    for form, view in zip(forms, batch.views, strict=True):
        shape = (form.channels, *view.size) if form.layout == "NCHW" else (*view.size, form.channels)
        images.append(np.empty((0, *shape), NUMPY_DTYPES[form.dtype]))
    no_masks = tuple(tuple(np.empty((0, *view.size), np.uint8) for _ in range(masks)) for view in batch.views)
    return Decoded(tuple(images), no_masks, 0.0)
