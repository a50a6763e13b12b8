"""The CPU decoder: kernels that decode JPEGs and resize, in threads, into reused memory.

On a CPU it replaces DALI's operators, whose resize takes longer than its decoder: 0.58 ms an image for a random crop of
500×375 to 224×224. This one resizes and normalises in 0.1 ms, to Pillow's pixels within rounding (2 cores, 2026-11).
The threads hold the GIL only between calls.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from gpuload.augment import Form, View
from gpuload.decode.interface import Buffers, PictureForm, faults_by_sample
from gpuload.decode.native.cuts import Cuts
from gpuload.decode.native.images import DecodePlan, ImageDecoder, picture_kind
from gpuload.decode.native.maps import MapView, MaskView, ValueTable
from gpuload.decode.native.steps import SharedBlocks, Step
from gpuload.decode.native.values import PixelTarget
from gpuload.decode.postprocess import Postprocess
from gpuload.decode.runner import Job, Stage, Work
from gpuload.kernels.structs import Bands
from gpuload.read.batch import Batch, StoredPictures
from gpuload.types import I64, Array

# Decoded pixels per block of a thread, which stay in its cache until they are resized. Half of it gives 8 % fewer
# images/s at 64×64 and 7 % fewer at 500×375; twice as much gives the same (2 cores, 2026-11).
_BLOCK_BYTES = 800_000


class _ImageView:
    """A view of images.

    Args:
        form: Of the view.
        view: Of the batch.
        stored: The images.
        out: (N, C, height, width), or (N, height, width, C).
        postprocess: Makes values of levels.
        bands: Of the pixels; None for RGB.
    """

    def __init__(
        self,
        form: Form,
        view: View,
        stored: StoredPictures,
        out: Array,
        postprocess: Postprocess,
        bands: Bands | None,
    ) -> None:
        planned = view if form.transforms else view.without_transforms()
        self.cuts = Cuts(form, planned, stored.heights, stored.widths)
        self.out = out
        planes = out if form.layout == "NCHW" else out.transpose(0, 3, 1, 2)
        self._postprocess = postprocess
        self._target = PixelTarget(planes, postprocess.mean, postprocess.factor, bands)

    def open(self, pictures: Array) -> Step | None:
        """The step that makes the view of all pictures; None where Python has a part in it."""
        return self.cuts.step_of(pictures, self._target, self._postprocess)

    def make(self, pictures: Array, rows: slice) -> None:
        """Makes the view of these pictures."""
        self.cuts.fill(pictures, rows, self._target, self._postprocess)


class _PictureWork(NamedTuple):
    """What threads do for one picture of each sample of a batch.

    Attributes:
        name: Of the picture.
        plan: Of its decoding.
        images: Decodes it.
        views: Its views, each with the step that makes it of all pictures, or None.
        blocks: Rows that are taken by one thread at a time.
        rows_at_once: In a block.
        reasons: Why pictures do not decode, by row.
    """

    name: str
    plan: DecodePlan
    images: ImageDecoder
    views: Sequence[tuple[Any, Step | None]]
    blocks: SharedBlocks
    rows_at_once: int
    reasons: dict[int, str]

    def do_share(self, taken: I64) -> None:
        """One thread's share: blocks that no other thread has taken, until none is left.

        Args:
            taken: int64 (1,), how many rows threads have taken.
        """
        plan = self.plan
        memory = self.images.thread_memory(plan, self.rows_at_once)
        for begin in self.blocks.remaining(taken, memory):
            end = min(begin + self.rows_at_once, len(plan.pictures))
            _owners, reasons = self.images.decode_others(plan, range(begin, end))
            self.reasons.update(reasons)
            rows = slice(begin, end)
            for view, step in self.views:
                if step is not None:
                    step(begin, end)
                else:
                    view.make(plan.pictures[rows], rows)


class _PictureDecoder:
    """Decodes one picture of each sample.

    Args:
        picture: What is made of it.
        make_buffers: Makes the memory for a dtype.
    """

    def __init__(
        self, picture: PictureForm, make_buffers: Callable[[str], Buffers]
    ) -> None:
        self.name = picture.name
        self._picture = picture
        stored = picture.stored
        self._images = ImageDecoder(stored)
        self._bands = picture_kind(stored)
        self._buffers = [make_buffers(picture.dtype(form)) for form in picture.forms]
        self._table = None
        if picture.values is not None:
            self._table = ValueTable.of(picture.values)
        self._postprocess = [
            Postprocess(form, "cpu", stored.pixels) if picture.is_image else None
            for form in picture.forms
        ]

    def begin(
        self, batch: Batch, threads: int
    ) -> tuple[tuple[Array, ...], _PictureWork]:
        """The arrays of the views, and the work after which they are complete."""
        stored = batch.stored(self.name)
        views = [
            self._view(number, view, stored)
            for number, view in enumerate(batch.views_of(self.name))
        ]
        plan = self._plan(batch, stored, views)
        rows_of_thread = -(-len(stored) // threads)
        rows_at_once = max(1, min(_BLOCK_BYTES // plan.largest_bytes, rows_of_thread))
        opened = [view.open(plan.pictures) for view in views]
        steps = [step for step in opened if step is not None]
        blocks = SharedBlocks(
            rows_at_once,
            plan.pictures,
            self._images.step(plan),
            steps,
            leaves_all=len(steps) < len(views),
        )
        work = _PictureWork(
            self.name,
            plan,
            self._images,
            list(zip(views, opened, strict=True)),
            blocks,
            rows_at_once,
            {},
        )
        return tuple(view.out for view in views), work

    def _plan(
        self, batch: Batch, stored: StoredPictures, views: Sequence[Any]
    ) -> DecodePlan:
        """What is decoded of each picture: all that its views need."""
        windows, factors = _needed([view.cuts for view in views])
        if not self._picture.is_image:
            factors = np.ones_like(factors)
            # By rounding, nearest pixels may lie beside the windows.
            if any(view.cuts.places_images for view in views):
                windows = np.zeros_like(windows)
                windows[:, 2:] = stored.sizes
        source = self._picture.stored
        return DecodePlan(
            stored, windows, factors, source.source, source.plain, source.is_mask
        )

    def _view(self, number: int, view: View, stored: StoredPictures) -> Any:
        picture = self._picture
        form = picture.forms[number]
        shape = picture.shape(form, view.size)
        out = self._buffers[number].take(len(stored), shape)
        postprocess = self._postprocess[number]
        if postprocess is not None:
            return _ImageView(form, view, stored, out, postprocess, self._bands)
        if picture.values is None:
            return MaskView(form, view, stored, out)
        return MapView(picture, form, view, stored, out, self._table)


class NativeDecoder(Stage):
    """Decodes pictures of batches into NumPy arrays, beside those that earlier stages have decoded.

    Args:
        pictures: What to decode. If a form has no transforms, a later stage applies the batch's.
        threads: Number that decode.
        make_buffers: Makes the memory for a dtype.
    """

    name = "decode"

    def __init__(
        self,
        pictures: Sequence[PictureForm],
        threads: int,
        make_buffers: Callable[[str], Buffers],
    ) -> None:
        self.threads = threads
        self._pictures = [
            _PictureDecoder(picture, make_buffers) for picture in pictures
        ]

    def begin(self, job: Job) -> Work:
        """As `Stage.begin`: the pixels are complete after all threads have done their share."""
        arrays = dict(job.decoded.pictures)
        works: list[_PictureWork] = []
        for picture in self._pictures:
            arrays[picture.name], work = picture.begin(job.batch, self.threads)
            works.append(work)
        job.decoded = replace(job.decoded, pictures=arrays)
        job.state = works
        taken = job.share_out(len(works))

        def do_share() -> None:
            for number, work in enumerate(works):
                work.do_share(taken[number : number + 1])

        return do_share

    def end(self, job: Job) -> None:
        """As `Stage.end`. The fault of a sample is that of its first picture that does not decode."""
        works: list[_PictureWork] = job.state
        job.state = None
        faults = dict(job.decoded.faults)
        for work in works:
            of_picture = faults_by_sample(job.batch, work.name, work.reasons)
            faults = {**of_picture, **faults}
        if faults:
            # The arrays of an earlier stage are written to, too.
            job.decoded = replace(job.decoded.map(_writable), faults=faults)


def _writable(array: Any) -> Any:
    """An array whose rows can be replaced; of DALI's tensors in host memory a copy."""
    is_writable = isinstance(array, np.ndarray) or hasattr(array, "index_copy_")
    return array if is_writable else np.array(np.asarray(array))


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
