"""Calls user functions for the batches of a decoder.

    after the crop    decoder ─► levels, cropped, not flipped ─► function ─► flips ─► transforms, normalisation
    before the crop   stored bytes ─► whole image ─► function ─► crop, resize, flips ─► transforms, normalisation

Both run in separate threads, some batches ahead of training; one thread processes a sample from beginning to end, so
its pixels stay in the cache. The function's boxes and keypoints travel with the batch (`Decoded.changed`). The function
is not called for samples that do not decode.
"""

import ctypes
import os
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from gpuload.augment import Form, View
from gpuload.augment.crops import Crops, whole_images
from gpuload.augment.pictures import Views
from gpuload.augment.schedule import Schedule
from gpuload.augment.views import PlannedFunction
from gpuload.decode.beside import FurtherPictures, PictureBeside
from gpuload.decode.interface import (
    NUMPY_DTYPES,
    Buffers,
    Changed,
    Decoded,
    Fault,
    PictureForm,
    Stored,
)
from gpuload.decode.native.cuts import Cuts, crop_or_pad
from gpuload.decode.native.images import (
    DecodePlan,
    ImageDecoder,
    bands_of,
    picture_kind,
)
from gpuload.decode.native.values import PixelTarget, as_levels
from gpuload.decode.pillow import UndecodableError, crop_and_resize_mask, decode_mask
from gpuload.decode.postprocess import Postprocess, level_dtype, warp_masks
from gpuload.decode.runner import Job, Stage, Work
from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError, FunctionError
from gpuload.fields.motion import Motion
from gpuload.fields.rows import MovingField, Ragged, take
from gpuload.functions.function import (
    Albumentations,
    Caller,
    Entries,
    FailedCallError,
    Sample,
    Torchvision,
    name_of,
)
from gpuload.kernels.structs import PICTURE
from gpuload.machine.apart import Flag
from gpuload.read.batch import Batch
from gpuload.types import U8, Array

# Writes the levels of one image, or its values if nothing else remains to be done, to a `native.values.PixelTarget`.
MakeLevels = Callable[[Any], None]


class Functions(NamedTuple):
    """A loader's functions, and properties of their samples.

    Attributes:
        all: Of all epochs and views.
        processes: Their number; 0 calls functions in threads.
        moving: The moving fields.
        entries: Of their samples.
        datasets: Of which samples are.
    """

    all: Sequence[Any]
    processes: int
    moving: Sequence[MovingField]
    entries: Entries
    datasets: Sequence[Dataset]

    def name_of_sample(self, batch: Batch, row: int) -> str:
        """For messages."""
        dataset = self.datasets[int(batch.sources[row])]
        sample = int(batch.samples[row])
        shard = dataset.shard_paths[int(dataset.shards_of(sample))]
        return f"{shard}: sample {batch.columns['key'][row].as_py()!r}"


def find_functions(
    schedule: Schedule,
    masks: Sequence[str],
    moving: Sequence[MovingField],
    datasets: Sequence[Dataset],
    further: Sequence[str] = (),
) -> Functions | None:
    """The functions of all views and epochs; None if there are none.

    Args:
        schedule: Of the image.
        masks: Names of the mask fields that are requested.
        moving: The requested fields that move with the image.
        datasets: Of which samples are.
        further: Names of pictures besides image and masks.

    Raises:
        ArgumentError: a function of whole images with tiles as samples, or a field that it cannot move.
    """
    if not schedule.functions:
        return None
    if stays := [field for field in moving if field.stays]:
        name = stays[0].name
        option = stays[0].stays
        raise ArgumentError(
            f"Boxes({name!r}, {option}=True): functions of samples do not move {option}. Use a crop"
        )
    if further:
        _check_further(further[0], schedule)
    if any(dataset.tiling for dataset in datasets) and any(
        form.function == "before_crop" for form in schedule.forms
    ):
        raise ArgumentError(
            "Function(before_crop=True): gets whole images, and the samples are tiles"
        )
    boxes = tuple(field.name for field in moving if not field.points)
    keypoints = tuple((field.name, field.points) for field in moving if field.points)
    entries = Entries(boxes, tuple(masks), keypoints, tuple(further))
    return Functions(schedule.functions, schedule.processes, moving, entries, datasets)


def _check_further(name: str, schedule: Schedule) -> None:
    """Raises ArgumentError if a function of the schedule cannot have a further picture of this name."""
    if any(form.function == "before_crop" for form in schedule.forms):
        raise ArgumentError(
            f"Function(before_crop=True): gets whole images, and not {name!r}, a further picture. Use a function after "
            "the crop, or leave the picture out"
        )
    for function in schedule.functions:
        if isinstance(function, Albumentations | Torchvision):
            raise ArgumentError(
                f"Function({function}): a transform of another library gets the image, and would leave {name!r}, a "
                "further picture, where it is. Write a function of sample and rng that calls it for all pictures"
            )


class CallFunctions(Stage):
    """Calls the functions for each batch, whose single part, from `inner`, has the decoded views. Results are NumPy
    arrays; without a function, those of the decoder.

    Args:
        pictures: The image, then the others.
        functions: Of the loader.
        caller: Calls the functions by number.
        make_buffers: Makes the memory for batches of a dtype.
        finishes: Whether the batch's values are computed here; otherwise a later stage does it, and views with a
            function are levels (N, C, height, width).
    """

    name = "function"

    def __init__(
        self,
        pictures: Sequence[PictureForm],
        functions: Functions,
        caller: Caller,
        make_buffers: Callable[[str], Buffers],
        *,
        finishes: bool,
    ) -> None:
        image, *others = pictures
        masks = [picture for picture in others if picture.stored.is_mask]
        further = [picture for picture in others if not picture.stored.is_mask]
        forms = image.forms
        stored = image.stored
        self.threads = caller.threads
        self.image = image.name
        self.forms = forms
        self.pixels = stored.pixels
        # Of each mask, the class outside of it.
        self.fills = {mask.name: mask.forms[0].fills(1)[0] for mask in masks}
        self.functions = functions
        self.caller = caller
        self.numbers = {
            id(function): number for number, function in enumerate(functions.all)
        }
        self.values: dict[int, Postprocess | None] = {}
        self._buffers: dict[int, Buffers] = {}
        self.further = FurtherPictures(further, make_buffers, finishes=finishes)
        for number, form in enumerate(forms):
            if form.function:
                self.values[number] = (
                    Postprocess(form, "cpu", stored.pixels) if finishes else None
                )
                self._buffers[number] = make_buffers(
                    NUMPY_DTYPES[form.dtype] if finishes else level_dtype(stored.pixels)
                )
        befores = [
            form.levels(stored.pixels)
            for form in forms
            if form.function == "before_crop"
        ]
        self.whole = WholeImages(stored) if befores else None
        self._is_ended = Flag()
        # Made last, so it runs first at the interpreter's exit.
        weakref.finalize(self, _end, self._is_ended, caller.close, os.getpid())

    def inner(self, job: Job) -> tuple[Job]:
        """The decoder's part: the views without a function before the crop. For a function after the crop, the views
        are cropped only."""
        names = (self.image, *self.fills, *self.further.names)
        inner: Views = {}
        for name in names:
            views = tuple(
                _unflipped(view) if form.function else view
                for form, view in zip(self.forms, job.batch.views_of(name), strict=True)
                if form.function != "before_crop"
            )
            stored = job.batch.pictures[name]
            inner[name] = views
            if isinstance(stored, Ragged):
                inner[name] = Ragged(stored.counts, views)
        return (Job(replace(job.batch, views=inner), job),)

    def begin(self, job: Job) -> Work:
        """As `Stage.begin`."""
        batch = job.batch
        decoded = job.parts[0].decoded
        calls = _Calls(dict(decoded.faults), [], {}, [])
        job.state = calls
        inner = count()
        for number, form in enumerate(self.forms):
            cropped: Any = None
            if form.function != "before_crop":
                cropped = self._cropped(decoded, next(inner))
            calls.views.append(
                _View(self, calls, number, batch, cropped) if form.function else cropped
            )
        plan = None if self.whole is None else self.whole.plan(batch)
        rows = count()  # its `next` is atomic

        def work() -> None:
            """One thread's share: takes the next free row until none is left."""
            for row in rows:
                is_over = row >= len(batch) or row > min(calls.failed, default=row)
                if is_over or job.is_abandoned or self._is_ended.is_set:
                    return
                if row not in calls.broken and row not in batch.placeholders:
                    self._make(calls, batch, row, plan)

        return work

    def _cropped(self, decoded: Decoded, number: int) -> "_Pictures":
        """What the decoder made of one of its views, in memory."""
        images = _in_memory(decoded.pictures[self.image][number])
        masks = [
            _in_memory(decoded.pictures[name][number])[:, 0] for name in self.fills
        ]
        further = [
            _in_memory(decoded.pictures[name][number]) for name in self.further.names
        ]
        return _Pictures(images, masks, further)

    def end(self, job: Job) -> None:
        """As `Stage.end`.

        Raises:
            FunctionError: a function raised an exception or returned an invalid result.
        """
        calls = job.state
        job.state = None
        inner = job.parts[0].decoded
        if calls.failed:
            raise calls.failed[min(calls.failed)]
        views = [
            view.finished() if isinstance(view, _View) else _Finished(view, None)
            for view in calls.views
        ]
        pictures = {self.image: tuple(view.pictures.images for view in views)}
        for number, name in enumerate(self.further.names):
            pictures[name] = tuple(view.pictures.further[number] for view in views)
        for number, name in enumerate(self.fills):
            masks = (view.pictures.masks[number] for view in views)
            pictures[name] = tuple(of_view[:, None] for of_view in masks)
        seconds = sum(calls.seconds)
        job.decoded = replace(
            inner,
            pictures=pictures,
            work_s=inner.work_s - seconds,
            faults=calls.broken,
            changed=tuple(view.changed for view in views),
            function_s=seconds,
        )

    def close(self) -> None:
        """Stops the processes and the threads."""
        self._is_ended.is_set = True
        self.caller.close()

    def room(self, number: int, batch: Batch) -> Any:
        """Memory for the images of a view."""
        form = self.forms[number]
        height, width = batch.image_views[number].size
        is_planar = self.values[number] is None or form.layout == "NCHW"
        channels = self.pixels.channels
        shape = (channels, height, width) if is_planar else (height, width, channels)
        return self._buffers[number].take(len(batch), shape)

    def _make(self, calls: "_Calls", batch: Batch, row: int, plan: Any) -> None:
        whole_picture: Any = None
        if self.whole is not None:
            whole_picture = self.whole.decode(plan, batch, row, self.fills)
            if isinstance(whole_picture, Fault):
                calls.broken[row] = whole_picture
                return
        try:
            for view in calls.views:
                if isinstance(view, _View):
                    view.make(row, whole_picture)
        except FunctionError as failed:  # not another: errors of gpuload's own code reach the loop unchanged
            calls.failed[row] = failed


def _end(is_ended: Flag, close: Callable[[], None], process: int) -> None:
    """At the interpreter's exit, or if the stage is garbage collected: threads take no further samples."""
    # Not in a forked child, which has none of the threads and processes.
    if os.getpid() == process:
        is_ended.is_set = True
        close()


def _in_memory(array: Any) -> Any:
    """A NumPy array, whose rows can be replaced, of what a decoder made."""
    if isinstance(array, np.ndarray):
        return array
    return np.asarray(import_module("gpuload.decode.device").as_tensor(array))


class _Calls(NamedTuple):
    """The calls for one batch.

    Attributes:
        broken: By row, undecodable samples.
        views: Those with a function, and pictures of the others.
        failed: By row, errors of functions.
        seconds: Of each call.
    """

    broken: dict[int, Fault]
    views: list["_View | _Pictures"]
    failed: dict[int, FunctionError]
    seconds: list[float]


class _Pictures(NamedTuple):
    """The pictures of a view: what the decoder made, or functions made of it.

    Attributes:
        images: Levels, (N, height, width, channels).
        masks: For each mask field, uint8 (N, height, width).
        further: Of each further picture, levels or values.
    """

    images: Array
    masks: list[U8]
    further: list[Array]


class _Finished(NamedTuple):
    """A view after all calls; without a function, `changed` is None."""

    pictures: _Pictures
    changed: Changed | None


class _View:
    """A view with a function, of one batch, filled row by row in several threads.

    Args:
        cropped: For a function after the crop, the levels, (N, height, width, channels), and for each mask field, uint8
            (N, height, width), before flips; they may be overwritten. None for a function that gets whole images.
    """

    def __init__(
        self,
        stage: CallFunctions,
        calls: _Calls,
        number: int,
        batch: Batch,
        cropped: _Pictures | None,
    ) -> None:
        self._stage = stage
        self._calls = calls
        self._batch = batch
        self._cropped = cropped
        self._form = stage.forms[number]
        self._values = stage.values[number]
        self._view = batch.image_views[number]
        self._images = stage.room(number, batch)
        self._masks = [
            np.empty((len(batch), *self._view.size), np.uint8) for _ in stage.fills
        ]
        self._further: list[PictureBeside] = []
        if cropped is not None:
            self._further = stage.further.open(number, batch, cropped.further)
        # Of what the function returned.
        self._crops = Crops(*(part.copy() for part in self._view.crops[:6]))
        before: Motion | None = None
        if cropped is not None:
            height, width = self._view.size
            heights = np.full(len(batch), height, np.float64)
            widths = np.full(len(batch), width, np.float64)
            self._crops = whole_images(widths, heights)._replace(
                mirror=self._crops.mirror, mirror_y=self._crops.mirror_y
            )
            before = Motion(_unflipped(self._view).crops, self._view.size)
        self._entries: list[dict[str, Any]] = [{} for _ in range(len(batch))]
        for moving in stage.functions.moving:
            split = moving.split(batch.columns, before)
            for entries, fields in zip(self._entries, split, strict=True):
                entries.update(fields)

    def finished(self) -> "_Finished":
        """What all calls have made."""
        columns: dict[str, Any] = {}
        if len(self._batch):
            for moving in self._stage.functions.moving:
                columns |= moving.join(self._entries)
        further = [picture.out for picture in self._further]
        pictures = _Pictures(self._images, self._masks, further)
        return _Finished(pictures, Changed(columns, self._crops))

    def make(self, row: int, whole: tuple[Array, list[U8]] | None) -> None:
        """Fills a row.

        Args:
            whole: The image and masks before the crop.
        """
        if self._cropped is not None:
            images, masks, _ = self._cropped
            image, masks = self._call(row, images[row], [mask[row] for mask in masks])
            self._store(row, *self._flipped(row, image, masks))
        elif whole is not None:
            image, masks = self._call(
                row, whole[0].copy(), [mask.copy() for mask in whole[1]]
            )
            self._store(row, *self._cut(row, np.ascontiguousarray(image), masks))

    def _call(
        self, row: int, image: Array, masks: Sequence[U8]
    ) -> tuple[Array, list[U8]]:
        """The image and masks after the function, if this epoch has one; records the moving fields, and stores further
        pictures."""
        planned = self._view.function
        image = image.astype(self._stage.pixels.dtype, copy=False)
        if planned is None:
            for picture in self._further:
                picture.store(row, picture.given(row))
            return image, list(masks)
        returned = self._returned(row, planned, self._sample(row, image, masks))
        self._entries[row] = {name: returned[name] for name in self._entries[row]}
        for picture in self._further:
            picture.store(row, returned[picture.name])
        mask_names = self._stage.functions.entries.masks
        return returned["image"], [returned[name] for name in mask_names]

    def _returned(
        self, row: int, planned: PlannedFunction, sample: Sample
    ) -> Mapping[str, Array]:
        """What the function returns for a sample; takes the time of the call.

        Raises:
            FunctionError: it raised an exception or returned an invalid result.
        """
        applied = planned.function
        key = tuple(planned.keys[row].tolist())
        begun = time.perf_counter()
        try:
            number = self._stage.numbers[id(applied.function)]
            return self._stage.caller.call(
                number, key, sample, keeps_size=not applied.before_crop
            )
        except Exception as error:  # whatever a user's function raises
            is_ours = isinstance(error, FailedCallError)
            failure = self._failure(row, name_of(applied.function), error)
            raise failure from None if is_ours else error
        finally:
            self._calls.seconds.append(time.perf_counter() - begun)

    def _sample(self, row: int, image: Array, masks: Sequence[U8]) -> Sample:
        """What the function gets."""
        batch = self._batch
        names = self._stage.functions.entries.masks
        return {
            "image": image,
            **dict(zip(names, masks, strict=True)),
            **{picture.name: picture.given(row) for picture in self._further},
            **self._entries[row],
            "key": batch.columns["key"][row].as_py(),
            "index": int(batch.samples[row]),
        }

    def _failure(self, row: int, function: str, error: Exception) -> FunctionError:
        """The user's error for one that the function raised, or for an invalid result."""
        explanation = str(error)
        if not isinstance(error, FailedCallError):
            explanation = f"raised {type(error).__name__}: {error}"
        sample = self._stage.functions.name_of_sample(self._batch, row)
        return FunctionError(f"{sample}: the function {function} {explanation}")

    def _flipped(
        self, row: int, image: Array, masks: list[U8]
    ) -> tuple[Array | MakeLevels, list[U8]]:
        across = -1 if self._crops.mirror[row] else 1
        down = -1 if self._crops.mirror_y[row] else 1
        masks = [mask[::down, ::across] for mask in masks]
        if self._stage.pixels.is_rgb:
            flips = (down < 0, across < 0)
            return partial(_copy_image, np.ascontiguousarray(image), flips), masks
        return image[::down, ::across].transpose(2, 0, 1), masks

    def _cut(
        self, row: int, image: Array, masks: list[U8]
    ) -> tuple[MakeLevels, list[U8]]:
        batch = self._batch
        view = take(self._view, slice(row, row + 1))
        planned = self._view.function
        if planned is not None and image.shape[:2] != batch.image.size(row):
            crops = planned.crop(
                row, int(batch.samples[row]), image.shape[0], image.shape[1]
            )
            for part, crop_part in zip(self._crops[:6], crops[:6], strict=True):
                part[row] = crop_part[0]
            view = view._replace(crops=crops)
        assert self._stage.whole is not None
        fills = zip(masks, self._stage.fills.values(), strict=True)
        return (
            self._stage.whole.cut(self._form, view, image),
            [
                crop_and_resize_mask(mask, view, 0, fill, self._form)
                for mask, fill in fills
            ],
        )

    def _store(self, row: int, levels: Array | MakeLevels, masks: Sequence[U8]) -> None:
        """Stores a row.

        Args:
            levels: (channels, height, width) of any sufficient type, or a function that writes them in compiled code,
                in one pass with the values if possible.
        """
        rows = slice(row, row + 1)
        values = self._values
        is_planar = values is None or self._form.layout == "NCHW"
        out = (
            self._images[rows]
            if is_planar
            else self._images[rows].transpose(0, 3, 1, 2)
        )
        view = take(self._view, rows)
        if values is None:
            _write(levels, out)
        elif callable(levels) and values.is_linear(view):
            levels(PixelTarget(out, values.mean, values.factor))
            values.erase(out, view)
        else:
            _write(levels, block := np.empty(out.shape, values.level_dtype))
            values(block, out, view)
        fills = self._stage.fills.values()
        for of_field, mask, fill in zip(self._masks, masks, fills, strict=True):
            of_field[row] = mask
            if view.steps is not None:
                of_field[rows] = warp_masks(of_field[rows], view.steps, fill)


def _write(levels: Array | MakeLevels, out: Any) -> None:
    if callable(levels):
        levels(as_levels(out))
    else:
        out[0] = levels


def _picture_of(image: Array) -> Array:
    """(1,) of `PICTURE`; the image must stay alive."""
    return np.array(
        [(image.ctypes.data, *image.shape[:2], image.strides[0], 0, 0, 1)], PICTURE
    )


def _copy_image(image: Array, flips: tuple[bool, bool], target: Any) -> None:
    """Copies an image, (height, width, channels) in C order.

    Args:
        flips: Vertical and horizontal.
    """
    _copy_picture(_picture_of(image), flips, target)


def _copy_picture(picture: Array, flips: tuple[bool, bool], target: Any) -> None:
    size = np.stack([picture["height"], picture["width"]], axis=1)
    # np.pad takes 14 µs, as long as a small image.
    window = np.array([(0, 0, *size[0])])
    fills = np.zeros(3, np.uint8) if target.bands is None else np.zeros(1)
    crop_or_pad(picture, window, np.array([flips]), size, fills, 0, target)(0, 1)


def _unflipped(view: View) -> View:
    """The view without flips and without steps after the crop."""
    none = np.zeros_like(view.crops.mirror)
    return View(
        view.frame,
        view.crops._replace(mirror=none, mirror_y=none),
        None,
        None,
        cubic=view.cubic,
    )


class WholeImages:
    """Decodes whole images by kernels, and crops."""

    def __init__(self, stored: Stored) -> None:
        self._images = ImageDecoder(stored)
        self._source = stored.source
        self._pixels = stored.pixels
        self._decoded = picture_kind(stored)
        self._own = None
        if self._decoded is not None:
            self._own = bands_of(stored.pixels)

    def plan(self, batch: Batch) -> Any:
        """The decode plan for the images of a batch."""
        windows = np.zeros((len(batch), 4), np.int64)
        stored = batch.image
        windows[:, 2:] = stored.sizes
        factors = np.ones(len(batch), np.int64)
        return DecodePlan(stored, windows, factors, self._source)

    def decode(
        self, plan: Any, batch: Batch, row: int, names: Iterable[str]
    ) -> tuple[Array, list[U8]] | Fault:
        """The image, (height, width, channels) of the batch's pixels, valid until the thread decodes another, and its
        masks of these names, uint8 (height, width); or why they do not decode.

        Args:
            plan: As `plan` makes it of the batch.
            batch: With the sample.
            row: Of the sample.
            names: Of the mask fields.
        """
        owners, broken = self._images.decode(plan, row)
        if row in broken:
            return Fault(broken[row])
        address, height, width, stride, *_ = plan.pictures[row].tolist()
        if self._decoded is None:
            memory = (ctypes.c_uint8 * (height * stride)).from_address(address)
            pixels: Array = np.frombuffer(memory, np.uint8).reshape(height, width, 3)
            if owners:  # its owner frees the memory
                pixels = pixels.copy()
        else:
            pixels = self._in_mode(plan.pictures[row : row + 1], height, width)
        masks = []
        for name in names:
            stored = batch.stored(name)
            try:
                masks.append(decode_mask(stored.contents[row], (height, width)))
            except UndecodableError as error:
                return Fault(str(error), name)
        return pixels, masks

    def cut(self, form: Form, view: View, image: Array) -> MakeLevels:
        """Crops one image, (height, width, channels) in C order."""
        cuts = Cuts(
            form.levels(self._pixels), view, *np.array(image.shape[:2])[:, None]
        )

        def make(target: Any) -> None:
            cuts.make(_picture_of(image), slice(0, 1), target._replace(bands=self._own))

        return make

    def _in_mode(self, pictures: Array, height: int, width: int) -> Array:
        """The decoded pixels in the mode of the batch, such as gray from three channels."""
        out = np.empty(
            (1, height, width, self._pixels.channels), level_dtype(self._pixels)
        )
        _copy_picture(
            pictures,
            (False, False),
            as_levels(out.transpose(0, 3, 1, 2), self._decoded),
        )
        pixels: Array = out[0].astype(self._pixels.dtype, copy=False)
        return pixels
