"""The processing of a view's images before and after a user function, up to the batch's values."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gpuload.augment import Form, View
from gpuload.augment.crops import Crops, whole_images
from gpuload.augment.views import PlannedFunction
from gpuload.decode.interface import Changed
from gpuload.decode.pillow import crop_and_resize_mask
from gpuload.decode.postprocess import Postprocess, has_compiled, warp_masks
from gpuload.fields.images import RGB, Pixels
from gpuload.fields.motion import MovingField
from gpuload.fields.rows import take
from gpuload.functions.interface import Sample
from gpuload.read.batch import Batch
from gpuload.types import U8, Array, Bools

# Writes the levels of one image, or its values if nothing else remains to be done, to this `Target`.
MakeLevels = Callable[[Any], None]
# (function, sample, rows of the generator's key) to the image and all entries, checked.
Call = Callable[[PlannedFunction, int, Sample], Mapping[str, Array]]


class Setting(NamedTuple):
    """The constants of a view for all batches.

    number: of the view. form: of the user's images. masks: names of the mask fields; fills: the class outside each.
    moving: fields that move with the image. values: computes the batch's values; None if a later stage does, in which
    case levels (N, C, height, width) are returned. pixels: of the images.
    """

    number: int
    form: Form
    masks: Sequence[str]
    fills: Sequence[int]
    moving: Sequence[MovingField]
    values: Postprocess | None
    pixels: Pixels = RGB


class Whole(Protocol):
    """A whole, upright decoded image, (height, width, channels) of the set's type, and its masks."""

    image: Array
    masks: Sequence[U8]


class FunctionView(ABC):
    """A view of a batch, filled row by row in several threads.

    images: of the batch's values, or levels. masks: for each mask field uint8 (N, height, width).
    """

    def __init__(self, setting: Setting, batch: Batch, images: npt.NDArray[Any]) -> None:
        self.setting, self.batch, self.images = setting, batch, images
        self.view: View = batch.views[setting.number]
        self.masks = [np.empty((len(batch), *self.view.size), np.uint8) for _ in setting.masks]
        self._entries: list[dict[str, Any]] = []

    def changed(self) -> Changed:
        """The moved fields and crops."""
        columns: dict[str, Any] = {}
        for field in self.setting.moving if len(self.batch) else ():
            columns |= field.join(self._entries)
        return Changed(columns, self._crops())

    @abstractmethod
    def _crops(self) -> Crops:
        """The crops of the images that the function returned."""

    def _split(self, view: View | None) -> list[dict[str, Any]]:
        """The moving entries of each sample, before the function."""
        found: list[dict[str, Any]] = [{} for _ in range(len(self.batch))]
        crops = None if view is None else view.crops
        for field in self.setting.moving:
            for entries, some in zip(
                found, field.split(self.batch.encoded.columns, crops, self.view.size), strict=True
            ):
                entries.update(some)
        return found

    def _call(self, call: Call, row: int, image: Array, masks: Sequence[U8]) -> tuple[Array, list[U8]]:
        """The image and masks after the function, if there is one; records the moving fields."""
        planned = self.view.function
        if planned is None:
            return image, list(masks)
        sample: Sample = {"image": image, **dict(zip(self.setting.masks, masks, strict=True)), **self._entries[row]}
        sample["key"] = self.batch.encoded.columns["key"][row].as_py()
        sample["index"] = int(self.batch.encoded.samples[row])
        found = call(planned, row, sample)
        self._entries[row] = {name: found[name] for name in self._entries[row]}
        return found["image"], [found[name] for name in self.setting.masks]

    def _store(self, row: int, levels: Array | MakeLevels, masks: Sequence[U8]) -> None:
        """Stores a row. levels: (channels, height, width) of any sufficient type, or a function that writes them in
        compiled code. masks: flipped like the levels."""
        rows, values = slice(row, row + 1), self.setting.values
        planar = values is None or self.setting.form.layout == "NCHW"
        out = self.images[rows] if planar else self.images[rows].transpose(0, 3, 1, 2)
        view = take(self.view, rows)
        if callable(levels):
            self._make(levels, out, view)
        elif values is None:
            out[0] = levels
        else:
            values(np.ascontiguousarray(levels, values.level_dtype)[None], out, view)
        for number, mask in enumerate(masks):
            self.masks[number][row] = mask
            if self.setting.values is not None and self.view.steps is not None:
                moved = self.masks[number][rows]
                moved[:] = warp_masks(moved, take(self.view.steps, rows), self.setting.fills[number])

    def _make(self, make: MakeLevels, out: npt.NDArray[Any], view: View) -> None:
        """Writes the levels or values of an image to `out`, (1, channels, height, width), in one pass if possible."""
        from gpuload.decode.native.values import Target, as_levels

        values = self.setting.values
        if values is None:
            make(as_levels(out))
            return
        if values.is_linear(view):
            make(Target(out, values.mean, values.factor))
            values.erase(out, view)
            return
        levels = np.empty(out.shape, values.level_dtype)
        make(as_levels(levels))
        values(levels, out, view)


class AfterCrop(FunctionView):
    """The function gets the cropped and resized image.

    levels: (N, height, width, channels), uint8 or float32, before flips; may be overwritten. cropped: for each mask
    field, uint8 (N, height, width), before flips.
    """

    def __init__(
        self, setting: Setting, batch: Batch, images: npt.NDArray[Any], levels: Array, cropped: Sequence[U8]
    ) -> None:
        super().__init__(setting, batch, images)
        self._levels, self._cropped = levels, cropped
        self._entries = self._split(unflipped(self.view))

    def make(self, row: int, call: Call) -> None:
        """Fills a row."""
        levels = self._levels[row].astype(self.setting.pixels.dtype, copy=False)
        image, masks = self._call(call, row, levels, [masks[row] for masks in self._cropped])
        across, down = (-1 if flips[row] else 1 for flips in (self.view.crops.mirror, self.view.crops.mirror_y))
        flipped = [mask[::down, ::across] for mask in masks]
        if self.setting.pixels.is_rgb and has_compiled():
            image = np.ascontiguousarray(image)
            self._store(row, _as_it_is(image, np.array([[down < 0, across < 0]])), flipped)
        else:
            self._store(row, image[::down, ::across].transpose(2, 0, 1), flipped)

    def _crops(self) -> Crops:
        height, width = (np.full(len(self.batch), side, np.float64) for side in self.view.size)
        crops = self.view.crops
        return whole_images(width, height)._replace(mirror=crops.mirror, mirror_y=crops.mirror_y)


class BeforeCrop(FunctionView):
    """The function gets the whole image."""

    def __init__(self, setting: Setting, batch: Batch, images: npt.NDArray[Any]) -> None:
        super().__init__(setting, batch, images)
        self._entries = self._split(None)
        self._moved = Crops(*(part.copy() for part in self.view.crops[:6]))

    def make(self, row: int, call: Call, whole: Whole, cut: Callable[[Form, View, Array], MakeLevels]) -> None:
        """Fills a row. cut: crops, resizes and flips an image."""
        encoded = self.batch.encoded
        masks = [mask.copy() for mask in whole.masks]
        image, masks = self._call(call, row, whole.image.copy(), masks)
        view = take(self.view, slice(row, row + 1))
        if image.shape[:2] != encoded.size(row):
            planned = self.view.function
            if planned is not None:
                crops = planned.crop(row, int(encoded.samples[row]), image.shape[0], image.shape[1])
                for part, own in zip(self._moved[:6], crops[:6], strict=True):
                    part[row] = own[0]
                view = view._replace(crops=crops)
        image = np.ascontiguousarray(image)
        fills, form = self.setting.fills, self.setting.form
        moved = [crop_and_resize_mask(mask, view, 0, fill, form) for mask, fill in zip(masks, fills, strict=True)]
        self._store(row, cut(form, view, image), moved)

    def _crops(self) -> Crops:
        return self._moved


def _as_it_is(image: U8, flips: Bools) -> MakeLevels:
    """Copies an RGB image, (height, width, 3) in C order, which must stay alive until then. flips: bool (1, 2),
    vertical and horizontal."""
    from gpuload.decode.native.resample import crop_or_pad

    height, width, _ = image.shape
    picture = np.array([(image.ctypes.data, height, width, image.strides[0], 0, 0, 1)], np.int64)
    window, size, fill = np.array([(0, 0, height, width)]), np.array([(height, width)]), np.zeros(3, np.uint8)
    return lambda target: crop_or_pad(picture, window, flips, size, fill, 0, target)(0, 1)


def unflipped(view: View) -> View:
    """The view without flips and without steps after the crop."""
    none = np.zeros_like(view.crops.mirror)
    return View(view.frame, view.crops._replace(mirror=none, mirror_y=none), None, None, cubic=view.cubic)
