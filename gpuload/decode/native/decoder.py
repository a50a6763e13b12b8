"""The CPU decoder: a compiled JPEG decoder and resize, in threads, into reused memory.

On a CPU it replaces DALI's operators, whose resize takes longer than its decoder: 0.58 ms an image for a random crop of
500×375 to 224×224. This one resizes and normalises in 0.1 ms, to Pillow's pixels within rounding (2 cores, 2026-11).
The threads hold the GIL only between calls.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpuload.augment import Augment, Form
from gpuload.augment.crops import CROPS
from gpuload.decode.interface import NUMPY_DTYPES, Buffers, Decoded, Fault, Stored
from gpuload.decode.native import jpeg
from gpuload.decode.native.compiled import cache_folders, count_compiled
from gpuload.decode.native.cuts import Cuts, load_compiled
from gpuload.decode.native.images import DecodePlan, ImageDecoder, picture_kind
from gpuload.decode.native.steps import Blocks
from gpuload.decode.native.values import Target
from gpuload.decode.pillow import UndecodableError, crop_and_resize_mask, decode_mask
from gpuload.decode.postprocess import Postprocess, warp_masks
from gpuload.decode.runner import Job, Stage, Work
from gpuload.fields.rows import take
from gpuload.machine.installed import paused_collector
from gpuload.read.batch import Batch
from gpuload.transforms.ops import Op
from gpuload.types import I64, U8

# Decoded pixels per block of a thread, which stay in its cache until they are resized. Half of it gives 8 % fewer
# images/s at 64×64 and 7 % fewer at 500×375; twice as much gives the same (2 cores, 2026-11).
_BLOCK_BYTES = 800_000


class NativeDecoder(Stage):
    """Decodes batches into NumPy arrays.

    forms: if one has no transforms, a later stage applies the batch's. threads: number that decode. make_buffers: makes
    the memory for a dtype.
    """

    name = "decode"

    def __init__(
        self, forms: Sequence[Form], stored: Stored, threads: int, make_buffers: Callable[[str], Buffers]
    ) -> None:
        self.threads = threads
        self._forms, self._fills = tuple(forms), stored.mask_fills
        self._pixels, self._source = stored.pixels, stored.source
        self._postprocess = [Postprocess(form, "cpu", stored.pixels) for form in forms]
        load_compiled(forms, stored.pixels)
        self._bands = picture_kind(stored)
        self._images = ImageDecoder(stored)
        self._buffers = [make_buffers(NUMPY_DTYPES[form.dtype]) for form in forms]
        self._mask_buffers = [[make_buffers("uint8") for _ in self._fills] for _ in forms]

    def begin(self, job: Job) -> Work:
        """As `Stage.begin`: the pixels are complete after all threads have done their share."""
        batch, channels = job.batch, self._pixels.channels
        views, targets, images, masks = [], [], [], []
        settings = zip(self._forms, self._buffers, self._mask_buffers, self._postprocess, strict=True)
        for (form, buffers, of_masks, values), view in zip(settings, batch.views, strict=True):
            view = view if form.transforms else view.without_transforms()
            is_planar = form.layout == "NCHW"
            out = buffers.take(len(batch), (channels, *view.size) if is_planar else (*view.size, channels))
            images.append(out)
            targets.append(
                Target(out if is_planar else out.transpose(0, 3, 1, 2), values.mean, values.factor, self._bands)
            )
            masks.append(tuple(one.take(len(batch), view.size) for one in of_masks))
            views.append(Cuts(form, view, batch.encoded.heights, batch.encoded.widths))
        plan = DecodePlan(batch.encoded, *_needed(views), self._source)
        broken: dict[int, Fault] = {}
        job.decoded = Decoded(tuple(images), tuple(masks), broken=broken)
        block = max(1, min(_BLOCK_BYTES // plan.largest_bytes, -(-len(batch) // self.threads)))
        made = list(zip(views, targets, self._postprocess, strict=True))
        fills = [view.step_of(plan.pictures, target, values) for view, target, values in made]
        in_python = bool(self._fills) or None in fills
        decode = self._images.step(plan)  # after what the views need
        blocks = Blocks(block, plan.pictures, decode, [fill for fill in fills if fill is not None], in_python)

        def work() -> None:
            """One thread's share: blocks that no other thread has taken, until none is left."""
            for begin in blocks.remaining(job.taken, self._images.own(plan, block)):
                rows = slice(begin, min(begin + block, len(batch)))
                _owners, found = self._images.decode_others(plan, range(rows.start, rows.stop))
                broken.update(found)
                for fill, (view, target, values) in zip(fills, made, strict=True):
                    if fill is None:
                        view.fill(plan.pictures[rows], rows, target, values)
                    else:
                        fill(rows.start, rows.stop)
                for row in range(rows.start, rows.stop) if self._fills else ():
                    self._decode_masks(batch, row, views, masks, broken)

        return work

    def _decode_masks(
        self, batch: Batch, row: int, views: list[Cuts], masks: list[tuple[U8, ...]], broken: dict[int, Fault]
    ) -> None:
        size = batch.encoded.size(row)
        for number, fill in enumerate(self._fills):
            try:
                mask = decode_mask(batch.masks[number][row], size)
            except UndecodableError as error:
                broken.setdefault(row, Fault(str(error), number))
                continue
            for one, of_view in zip(views, masks, strict=True):
                of_view[number][row] = crop_and_resize_mask(mask, one.view, row, fill, one.form)
                if one.view.steps is not None:
                    moved = of_view[number][row : row + 1]
                    moved[:] = warp_masks(moved, take(one.view.steps, slice(row, row + 1)), fill)


def _needed(views: Sequence[Cuts]) -> tuple[I64, I64]:
    """The part of each image that all views need: as `Cuts.windows` and `Cuts.factors`."""
    windows, factors = views[0].windows, views[0].factors
    for one in views[1:]:
        low = np.minimum(windows, one.windows)[:, :2]
        high = np.maximum(windows, one.windows)[:, 2:]
        windows, factors = np.concatenate([low, high], axis=1), np.minimum(factors, one.factors)
    return windows, factors


@dataclass(frozen=True)
class WarmUp:
    """The result of a warm-up.

    folders: of the machine code; none if no folder is writable, so the code is lost again.
    seconds: its duration. compiled: number of function versions compiled; the others existed already.
    """

    folders: tuple[Path, ...]
    seconds: float
    compiled: int


def warm_up() -> WarmUp:
    """Compiles or loads the native decoder's code for RGB, for every kind of crop.

    Compiling takes about 8 s of one core's time. It is for this kind of processor, this Python and this version of
    numba; elsewhere the first loader compiles again.
    """
    started = time.perf_counter()
    forms = [Augment(None if crop.own_sizes else 1, crop=crop).form for crop in CROPS.values()]
    load_compiled([form._replace(ops=tuple(Op)) for form in forms])
    with paused_collector():
        jpeg.load_compiled()
    return WarmUp(tuple(cache_folders()), time.perf_counter() - started, count_compiled())
