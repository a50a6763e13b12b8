"""The CPU decoder: kernels that decode JPEGs and resize, in threads, into reused memory.

On a CPU it replaces DALI's operators, whose resize takes longer than its decoder: 0.58 ms an image for a random crop of
500×375 to 224×224. This one resizes and normalises in 0.1 ms, to Pillow's pixels within rounding (2 cores, 2026-11).
The threads hold the GIL only between calls.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from gpuload.augment import Form, View
from gpuload.decode.interface import NUMPY_DTYPES, Buffers, Decoded, Fault, Stored
from gpuload.decode.native.cuts import Cuts
from gpuload.decode.native.images import DecodePlan, ImageDecoder, picture_kind
from gpuload.decode.native.steps import SharedBlocks, Step
from gpuload.decode.native.values import Target
from gpuload.decode.pillow import UndecodableError, crop_and_resize_mask, decode_mask
from gpuload.decode.postprocess import Postprocess, warp_masks
from gpuload.decode.runner import Job, Stage, Work
from gpuload.fields.rows import take
from gpuload.read.batch import Batch
from gpuload.types import I64, U8, Array

# Decoded pixels per block of a thread, which stay in its cache until they are resized. Half of it gives 8 % fewer
# images/s at 64×64 and 7 % fewer at 500×375; twice as much gives the same (2 cores, 2026-11).
_BLOCK_BYTES = 800_000


class _ViewWork(NamedTuple):
    """What makes one view of a batch.

    images, masks: of the view. target: the images, for kernels. step: what makes the view of all pictures, in one
    kernel; None where Python has a part in it.
    """

    cuts: Cuts
    images: Array
    target: Target
    postprocess: Postprocess
    masks: tuple[U8, ...]
    step: Step | None


class NativeDecoder(Stage):
    """Decodes batches into NumPy arrays.

    forms: if one has no transforms, a later stage applies the batch's. threads: number that decode. make_buffers: makes
    the memory for a dtype.
    """

    name = "decode"

    def __init__(
        self,
        forms: Sequence[Form],
        stored: Stored,
        threads: int,
        make_buffers: Callable[[str], Buffers],
    ) -> None:
        self.threads = threads
        self._forms = tuple(forms)
        self._fills = stored.mask_fills
        self._pixels = stored.pixels
        self._source = stored.source
        self._plain = stored.plain
        self._postprocess = [Postprocess(form, "cpu", stored.pixels) for form in forms]
        self._bands = picture_kind(stored)
        self._images = ImageDecoder(stored)
        self._buffers = [make_buffers(NUMPY_DTYPES[form.dtype]) for form in forms]
        self._mask_buffers = [
            [make_buffers("uint8") for _ in self._fills] for _ in forms
        ]

    def begin(self, job: Job) -> Work:
        """As `Stage.begin`: the pixels are complete after all threads have done their share."""
        batch = job.batch
        cuts = [
            self._cuts_of(number, view, batch)
            for number, view in enumerate(batch.views)
        ]
        plan = DecodePlan(batch.encoded, *_needed(cuts), self._source, self._plain)
        views = [
            self._view_work(number, of_view, batch, plan)
            for number, of_view in enumerate(cuts)
        ]
        broken: dict[int, Fault] = {}
        job.decoded = Decoded(
            tuple(view.images for view in views),
            tuple(view.masks for view in views),
            broken=broken,
        )
        share = -(-len(batch) // self.threads)
        rows_at_once = max(1, min(_BLOCK_BYTES // plan.largest_bytes, share))
        steps = [view.step for view in views if view.step is not None]
        in_python = bool(self._fills) or len(steps) < len(views)
        blocks = SharedBlocks(
            rows_at_once, plan.pictures, self._images.step(plan), steps, in_python
        )

        def work() -> None:
            """One thread's share: blocks that no other thread has taken, until none is left."""
            for begin in blocks.remaining(
                job.taken, self._images.thread_memory(plan, rows_at_once)
            ):
                rows = range(begin, min(begin + rows_at_once, len(batch)))
                _owners, faults = self._images.decode_others(plan, rows)
                broken.update(faults)
                for view in views:
                    _make_view(view, plan, rows)
                if self._fills:
                    for row in rows:
                        self._decode_masks(batch, row, views, broken)

        return work

    def _cuts_of(self, number: int, view: View, batch: Batch) -> Cuts:
        form = self._forms[number]
        planned = view if form.transforms else view.without_transforms()
        return Cuts(form, planned, batch.encoded.heights, batch.encoded.widths)

    def _view_work(
        self, number: int, cuts: Cuts, batch: Batch, plan: DecodePlan
    ) -> _ViewWork:
        size = cuts.view.size
        channels = self._pixels.channels
        is_planar = self._forms[number].layout == "NCHW"
        shape = (channels, *size) if is_planar else (*size, channels)
        images = self._buffers[number].take(len(batch), shape)
        planes = images if is_planar else images.transpose(0, 3, 1, 2)
        values = self._postprocess[number]
        target = Target(planes, values.mean, values.factor, self._bands)
        masks = tuple(
            buffers.take(len(batch), size) for buffers in self._mask_buffers[number]
        )
        return _ViewWork(
            cuts,
            images,
            target,
            values,
            masks,
            cuts.step_of(plan.pictures, target, values),
        )

    def _decode_masks(
        self,
        batch: Batch,
        row: int,
        views: Sequence[_ViewWork],
        broken: dict[int, Fault],
    ) -> None:
        size = batch.encoded.size(row)
        for number, fill in enumerate(self._fills):
            try:
                mask = decode_mask(batch.masks[number][row], size)
            except UndecodableError as error:
                broken.setdefault(row, Fault(str(error), number))
                continue
            for work in views:
                view = work.cuts.view
                masks = work.masks[number]
                masks[row] = crop_and_resize_mask(mask, view, row, fill, work.cuts.form)
                if view.steps is not None:
                    moved = masks[row : row + 1]
                    moved[:] = warp_masks(
                        moved, take(view.steps, slice(row, row + 1)), fill
                    )


def _make_view(view: _ViewWork, plan: DecodePlan, rows: range) -> None:
    """Makes these rows of a view, whose pictures are decoded."""
    if view.step is not None:
        view.step(rows.start, rows.stop)
        return
    part = slice(rows.start, rows.stop)
    view.cuts.fill(plan.pictures[part], part, view.target, view.postprocess)


def _needed(views: Sequence[Cuts]) -> tuple[I64, I64]:
    """The part of each image that all views need: as `Cuts.windows` and `Cuts.factors`."""
    windows = views[0].windows
    factors = views[0].factors
    for view in views[1:]:
        low = np.minimum(windows, view.windows)
        high = np.maximum(windows, view.windows)
        windows = np.concatenate([low[:, :2], high[:, 2:]], axis=1)
        factors = np.minimum(factors, view.factors)
    return windows, factors
