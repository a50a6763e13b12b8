"""What a decoder is: the interface of `gpuload.decode.dali` and `gpuload.decode.native`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from gpuload.augment import Form
from gpuload.read.batch import Batch


class Decoded(NamedTuple):
    """A decoded batch, as arrays that support DLPack.

    images: for each view, (N, 3, height, width), or with channels_last (N, height, width, 3).
    masks: for each view, for each mask field, uint8 (N, height, width).
    seconds: from the start of its decoding until it was ready, or with DALI until it was taken. Batches are decoded
        concurrently.
    work_s: work of the decoding threads, all together. read_wait_s: how long whoever asked for the batch waited until
        it had been read. queue_depth: batches that were ready when it was asked for. NaN where it is not known.
    """

    images: tuple[Any, ...]
    masks: tuple[tuple[Any, ...], ...]
    seconds: float
    work_s: float = 0.0
    read_wait_s: float = 0.0
    queue_depth: float = 0.0


# NumPy and DALI have no bfloat16: the decoder delivers float32, which is cast when the batch is handed over.
NUMPY_DTYPES = {"float32": "float32", "float16": "float16", "bfloat16": "float32", "uint8": "uint8"}


class Decoder(Protocol):
    """Decodes batches in order, some of them ahead of the one asked for."""

    def decode(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, Decoded]]:
        """Each batch with its pixels.

        Only one call is active at a time; a new one ends the one before.

        Raises:
            BatchDecodeError: images of the next batch do not decode.
        """

    def close(self) -> None:
        """Stops the threads and frees the memory; batches handed out stay valid."""


@dataclass(frozen=True)
class Stored:
    """What is known of all stored images beforehand.

    width, height: of the largest, so that memory can be allocated at the start; 0 is unknown.
    plain: each is upright as it is stored, and if it is a JPEG, gray or RGB.
    raw: they are pixels (height, width, 3) already.
    mask_fills: for each mask field, the class of what lies outside the image.
    """

    width: int = 0
    height: int = 0
    plain: bool = False
    raw: bool = False
    mask_fills: tuple[int, ...] = ()


class BatchDecodeError(Exception):
    """Images of a batch, or masks of them, do not decode.

    batch: the batch. rows: of these samples in it. what: "image" or "mask". reason: why, where there is more to say
    than that it does not decode.
    """

    def __init__(self, batch: Batch, rows: list[int], what: str = "image", reason: str | None = None) -> None:
        super().__init__(f"{len(rows)} of {len(batch)} {what}s do not decode")
        self.batch = batch
        self.rows = rows
        self.what = what
        self.reason = reason


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
        shape = (3, *view.size) if form.layout == "NCHW" else (*view.size, 3)
        images.append(np.empty((0, *shape), NUMPY_DTYPES[form.dtype]))
    no_masks = tuple(tuple(np.empty((0, *view.size), np.uint8) for _ in range(masks)) for view in batch.views)
    return Decoded(tuple(images), no_masks, 0.0)
