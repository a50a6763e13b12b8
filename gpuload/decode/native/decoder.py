"""The CPU decoder: a compiled JPEG decoder and resize, in threads, into memory that is used again.

On a CPU it replaces DALI's operators, whose resize takes longer than its decoder: 0.58 ms an image for a random crop of
500×375 to 224×224, while this one resizes and normalises in 0.1 ms, to Pillow's pixels within rounding (2 cores,
2026-11). The threads hold Python's lock only between calls.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gpuload.augment import Form, View
from gpuload.collector import paused_collector
from gpuload.decode.flights import Flight, Flights
from gpuload.decode.interface import NUMPY_DTYPES, Decoded, Fault, Stored
from gpuload.decode.masks import crop_and_resize_mask, decode_mask, reason_of
from gpuload.decode.native.buffers import Allocate, Buffers
from gpuload.decode.native.cuts import Cuts, load_compiled
from gpuload.decode.native.first_warps import FirstWarps, first_warps
from gpuload.decode.native.images import DecodePlan, ImageDecoder, picture_kind
from gpuload.decode.postprocess import Postprocess
from gpuload.fields.pixels import RGB, Pixels
from gpuload.monitor.ranges import annotate, is_listening
from gpuload.read.batch import Batch
from gpuload.transforms.apply import warp_masks
from gpuload.types import I64

# Decoded pixels that a thread takes at a time: they stay in its cache until they are resized, and for small images the
# cost of calling compiled code, and of waiting for Python's lock, is shared by several. With half of it 8 % fewer
# images of 64×64 a second and 7 % fewer of 500×375; with twice as much, the same (2 cores, 2026-11).
_BLOCK_BYTES = 800_000

_ZEROS, _ONES = np.zeros(3, np.float32), np.ones(3, np.float32)  # constants that leave levels as they are


class NativeDecoder:
    """Decodes batches in order, up to `prefetch` of them ahead of the one asked for.

    forms: of those without transforms, the transforms of a batch are left to others. num_threads: threads that decode.
    spare: batches beside those ahead whose memory is kept. allocate: makes that memory.
    """

    def __init__(
        self,
        forms: Sequence[Form],
        stored: Stored,
        *,
        batch_size: int,
        num_threads: int,
        prefetch: int,
        spare: int = 3,
        allocate: Allocate = np.empty,
    ) -> None:
        self._forms, self._fills = tuple(forms), stored.mask_fills
        self._num_threads = num_threads
        self._pixels, self._source = stored.pixels, stored.source
        self._postprocess = [Postprocess(form, "cpu", stored.pixels) for form in forms]
        with paused_collector():
            for form in forms:
                load_compiled(form, stored.pixels)
        self._bands = picture_kind(stored)
        # After the resize, which no batch can do without: numba compiles one function at a time.
        self._images = ImageDecoder(stored)
        kept = prefetch + spare
        self._buffers = [Buffers(batch_size, NUMPY_DTYPES[form.dtype], kept, allocate) for form in forms]
        self._flights: Flights[_BatchInFlight] = Flights(prefetch, num_threads, "decode")

    def decode(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, Decoded]]:
        """As `gpuload.decode.interface.Decoder`: NumPy arrays."""
        self._flights.abandon()
        while (taken := self._flights.next(partial(self._start, batches))) is not None:
            flight, read_wait_s, ready = taken
            del taken
            seconds = flight.ended - flight.started
            images, masks, work_s = tuple(flight.images), tuple(flight.masks), sum(flight.work_s)
            yield flight.batch, Decoded(images, masks, seconds, work_s, read_wait_s, ready, flight.broken)

    def close(self) -> None:
        """Stops the threads; batches handed out stay valid."""
        self._flights.close()

    def _start(self, batches: Iterator[Batch]) -> "_BatchInFlight | None":
        """Hands the next batch to the threads; None where there are no more."""
        with annotate("read"):
            batch = next(batches, None)
        if batch is None:
            return None
        images, masks, cuts, warps = [], [], [], []
        number = len(batch)
        pairs = zip(self._forms, batch.views, strict=True)
        views = [view if form.transforms else view.without_transforms() for form, view in pairs]
        for form, view, buffers in zip(self._forms, views, self._buffers, strict=True):
            height, width = view.size
            channels = self._pixels.channels
            shape = (channels, height, width) if form.layout == "NCHW" else (height, width, channels)
            images.append(buffers.take(number, shape))
            masks.append(tuple(np.empty((number, height, width), np.uint8) for _ in self._fills))
            cuts.append(Cuts(form, view, batch.encoded.heights, batch.encoded.widths))
            warps.append(first_warps(view) if self._bands is None else None)
        flight = _BatchInFlight(batch, views, images, masks, cuts, warps, self._source)
        flight.block = max(1, min(_BLOCK_BYTES // flight.plan.largest_bytes, -(-number // self._num_threads)))
        flight.blocks = count(0, flight.block)
        work = self._decode_in_range if is_listening() else self._decode_blocks
        return self._flights.share(flight, work)

    def _decode_in_range(self, flight: "_BatchInFlight") -> None:
        with annotate("decode"):
            self._decode_blocks(flight)

    @torch.inference_mode()
    def _decode_blocks(self, flight: "_BatchInFlight") -> None:
        """One thread's share of a batch: the next block that no other thread has taken, until none is left."""
        number, begun = len(flight.batch), time.perf_counter()
        for begin in flight.blocks:
            if begin >= number or flight.abandoned:
                flight.ended = time.perf_counter()
                flight.work_s.append(flight.ended - begun)
                return
            flight.started = min(flight.started, time.perf_counter())
            rows = slice(begin, min(begin + flight.block, number))
            _owners, broken = self._images.decode(flight.plan, rows)
            flight.broken.update(broken)
            views = zip(
                self._forms, flight.views, flight.cuts, flight.warps, self._postprocess, flight.images, strict=True
            )
            for view in views:
                _crop_and_resize(flight.plan.pictures[rows], self._bands, rows, *view)
            if self._fills:
                for row in range(rows.start, rows.stop):
                    self._decode_masks(flight, row)

    def _decode_masks(self, flight: "_BatchInFlight", row: int) -> None:
        batch, size = flight.batch, (int(flight.batch.encoded.heights[row]), int(flight.batch.encoded.widths[row]))
        for number, fill in enumerate(self._fills):
            try:
                mask = decode_mask(batch.masks[number][row], size)
            except Exception as error:  # Pillow's decoders raise many kinds
                flight.broken.setdefault(row, Fault(reason_of(error), number))
                continue
            for form, view, masks in zip(self._forms, flight.views, flight.masks, strict=True):
                masks[number][row] = crop_and_resize_mask(mask, view, row, fill, form.padding_mode)
                if view.steps is not None:
                    moved = torch.from_numpy(masks[number][row : row + 1])
                    moved.copy_(warp_masks(moved, view.steps.select(slice(row, row + 1)), fill))


@dataclass
class _BatchInFlight(Flight):
    """A batch that the threads are decoding.

    views: what is done here. images, masks: for each view, what they fill. cuts, warps: of each view.
    block: images that a thread takes at a time. blocks: where each of them begins; its `next` is atomic.
    broken: by row, what of a sample does not decode, and why.
    """

    batch: Batch
    views: list[View]
    images: list[npt.NDArray[Any]]
    masks: list[tuple[npt.NDArray[np.uint8], ...]]
    cuts: list[Cuts]
    warps: list[FirstWarps | None]
    source: Pixels = RGB
    block: int = 1
    blocks: Iterator[int] = field(default_factory=count)
    broken: dict[int, Fault] = field(default_factory=dict)

    def __post_init__(self) -> None:
        windows, factors = self.cuts[0].windows, self.cuts[0].factors
        for cuts in self.cuts[1:]:  # what all views need
            low, high = np.minimum(windows, cuts.windows)[:, :2], np.maximum(windows, cuts.windows)[:, 2:]
            windows, factors = np.concatenate([low, high], axis=1), np.minimum(factors, cuts.factors)
        self.plan = DecodePlan(self.batch.encoded, windows, factors, self.source)


def _crop_and_resize(
    pictures: I64,
    bands: Any,
    rows: slice,
    form: Form,
    view: View,
    cuts: Cuts,
    warps: FirstWarps | None,
    postprocess: Postprocess,
    images: npt.NDArray[Any],
) -> None:
    """Makes a view of these pictures, into these rows of its batch. bands: what they are, where they are not RGB."""
    out = _as_nchw(form, images)[rows]
    if warps is not None:
        view = warps.rest
    if postprocess.is_linear(view):
        _cut_and_warp(pictures, bands, rows, cuts, warps, out, postprocess.mean, postprocess.factor)
        if view.erased is not None:
            postprocess.erase(torch.from_numpy(out), view.select(rows))
        return
    block, channels = np.empty(out.shape, postprocess.level_dtype), out.shape[1]
    _cut_and_warp(
        pictures, bands, rows, cuts, warps, block, np.zeros(channels, np.float32), np.ones(channels, np.float32)
    )
    postprocess(torch.from_numpy(block), torch.from_numpy(out), view.select(rows))


def _cut_and_warp(
    pictures: I64,
    bands: Any,
    rows: slice,
    cuts: Cuts,
    warps: FirstWarps | None,
    out: npt.NDArray[Any],
    mean: npt.NDArray[Any],
    factor: npt.NDArray[Any],
) -> None:
    """Crops and resizes the pictures, then moves those that are to be moved; only RGB is moved here."""
    if warps is None:
        cuts.crop_and_resize(pictures, rows, out, mean, factor, bands)
        return
    moved, (number, channels, height, width) = warps.moved[rows], out.shape
    kept, others = pictures.copy(), pictures.copy()
    kept[moved, 0], others[~moved, 0] = 0, 0  # of those with an address of 0, nothing is made
    cuts.crop_and_resize(kept, rows, out, mean, factor)
    levels = np.empty((number, height, width, channels), np.uint8)
    cuts.crop_and_resize(others, rows, levels.transpose(0, 3, 1, 2), _ZEROS, _ONES)
    warps.warp(levels, rows, out, mean, factor)


def _as_nchw(form: Form, images: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return images if form.layout == "NCHW" else images.transpose(0, 3, 1, 2)
