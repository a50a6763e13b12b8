"""Views of masks and maps: values as they are stored, from the nearest pixel, or weighted with those that are valid."""

import ctypes
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpuload.augment import Form, View
from gpuload.augment.crops import PADDING_MODES
from gpuload.decode.interface import PictureForm
from gpuload.decode.native.cuts import Cuts
from gpuload.decode.native.steps import Step
from gpuload.decode.native.values import as_levels
from gpuload.decode.postprocess import transform
from gpuload.fields.images import GRAY, Pixels
from gpuload.fields.maps import MapValues
from gpuload.fields.motion import Motion
from gpuload.fields.rows import take
from gpuload.kernels.structs import Bands, NearestArguments
from gpuload.read.batch import StoredPictures
from gpuload.transforms.steps import Steps
from gpuload.transforms.warps import affine_of
from gpuload.types import F32, I64, Array, Bools

_INSIDE = 255
_HALF = 0.5  # of the weight of a pixel must come from valid ones


class ValueTable(NamedTuple):
    """What each stored number of a map becomes, where nothing else decides it.

    Attributes:
        stored: The type of the numbers, of 8 or 16 bits.
        values: By the number, of the type of the batch.
        missing: The value outside of the picture.
    """

    stored: np.dtype[Any]
    values: Array
    missing: Any

    @classmethod
    def of(cls, values: MapValues) -> "ValueTable | None":
        """The table of a map; None where values are no whole numbers of one channel, or change with their pixels."""
        pixels = values.pixels
        moves = type(values).move is not MapValues.move
        if moves or pixels.channels != 1 or pixels.dtype not in ("uint8", "uint16"):
            return None
        stored = np.dtype(pixels.dtype)
        numbers = np.arange(np.iinfo(stored).max + 1, dtype=stored)
        by_number = numbers[None, None, None]
        read, valid = values.read(by_number)
        everywhere = np.ones(by_number.shape[1:], np.bool_)
        made = values.close(read, everywhere if valid is None else valid)
        outside = values.close(values.read(by_number)[0], ~everywhere)
        return cls(stored, np.ascontiguousarray(made[0, 0, 0]), outside[0, 0, 0, 0])


def nearest(
    pictures: Array,
    view: View,
    form: Form,
    sizes: I64,
    out: npt.NDArray[Any],
    fill: float,
    step: int,
    inside: npt.NDArray[np.uint8] | None = None,
    table: ValueTable | None = None,
) -> Step:
    """The step that takes the nearest pixel of each of N pictures, as torch's nearest-exact does.

    Args:
        pictures: (N,) of `PICTURE`. Nothing is done for one that is not decoded.
        view: Of them, of which crops and flips count.
        form: Of the view.
        sizes: int64 (N, 2), height and width of the stored pictures.
        out: (N, C, height, width), contiguous, of the type of the stored values, or of those in the table.
        fill: What is outside.
        step: Values from one stored pixel to the next.
        table: What each stored number becomes; None: itself.
        inside: (N, height, width): becomes 255 where a value is of the picture, 0 where it is `fill`. None: not wanted.
    """
    crops = view.crops
    arrays = (
        pictures,
        crops.start.astype(np.int64),
        crops.shape.astype(np.int64),
        np.concatenate([crops.roi_start, crops.roi_end], axis=1).astype(np.float64),
        crops.flipped,
        sizes,
        np.ascontiguousarray(crops.own_sizes(view.size)),
        np.array([fill]).astype(out.dtype),
    )
    _, channels, height, width = out.shape
    arguments = NearestArguments(
        *(array.ctypes.data for array in arrays),
        None if table is None else table.values.ctypes.data,
        PADDING_MODES.index(form.padding_mode),
        not (form.places or form.pads),
        out.itemsize if table is None else table.stored.itemsize,
        out.itemsize,
        channels,
        step,
        out.ctypes.data,
        None if inside is None else inside.ctypes.data,
        height,
        width,
    )
    return Step("pick_nearest", arguments, (*arrays, inside, table), out)


class MaskView:
    """A view of masks.

    Args:
        form: Of the view.
        view: Of the batch, whose steps move pixels.
        stored: The masks.
        out: uint8 (N, 1, height, width), for the classes.
    """

    def __init__(
        self, form: Form, view: View, stored: StoredPictures, out: Array
    ) -> None:
        self.cuts = Cuts(form, view, stored.heights, stored.widths)
        self.out = out
        self._view = view
        self._sizes = stored.sizes
        self._form = form
        self._picked: Step | None = None

    def open(self, pictures: Array) -> Step | None:
        """The step that makes the view of all pictures; None where more is to be done."""
        form = self._form
        fill = form.fills(1)[0]
        view = self._view
        self._picked = nearest(pictures, view, form, self._sizes, self.out, fill, 1)
        return self._picked if view.steps is None else None

    def make(self, pictures: Array, rows: slice) -> None:
        """Makes the view of these pictures."""
        assert self._picked is not None
        self._picked(rows.start, rows.stop)
        steps = self._view.steps
        if steps is not None:
            masks = self.out[rows]
            masks[:] = transform(masks, take(steps, rows))


class MapView:
    """A view of maps, such as depth.

    Args:
        picture: What is made of them.
        form: Of the view.
        view: Of the batch, whose steps move pixels.
        stored: The maps.
        out: (N, channels, height, width), for the values.
        table: As of `nearest`.
    """

    def __init__(
        self,
        picture: PictureForm,
        form: Form,
        view: View,
        stored: StoredPictures,
        out: Array,
        table: ValueTable | None,
    ) -> None:
        assert picture.values is not None
        self.cuts = Cuts(form, view, stored.heights, stored.widths)
        self.out = out
        self._view = view
        self._sizes = stored.sizes
        self._form = form
        self._values = picture.values
        self._table = table
        self._stored = picture.stored
        self._pixels = picture.stored.source
        self._affine = None
        if view.steps is not None:
            self._affine = affine_of(view.steps, *view.size)

    def open(self, pictures: Array) -> Step | None:
        """As `MaskView.open`: values that a table does not give are computed by NumPy."""
        table = self._table
        is_nearest = self._form.interpolation == "nearest"
        if table is None or not is_nearest or self._view.steps is not None:
            return None
        step = self._values_from_pixel
        return nearest(
            pictures,
            self._view,
            self._form,
            self._sizes,
            self.out,
            table.missing,
            step,
            table=table,
        )

    def make(self, pictures: Array, rows: slice) -> None:
        """Makes the view of these pictures, those that are decoded."""
        is_there = pictures["pixels"] != 0
        if not is_there.all():
            for row in np.flatnonzero(is_there).tolist():
                part = slice(rows.start + row, rows.start + row + 1)
                self.make(pictures[row : row + 1], part)
            return
        view = take(self._view, rows)
        if self._form.interpolation == "nearest":
            values, valid = self._from_nearest(pictures, view, rows)
        else:
            values, valid = self._weighted(pictures, view, rows)
        affine = None if self._affine is None else self._affine[rows]
        motion = Motion(view.crops, self._view.size, affine)
        moved = self._values.move(values, motion)
        self.out[rows] = self._values.close(moved, valid)

    def _from_nearest(
        self, pictures: Array, view: View, rows: slice
    ) -> tuple[Any, Bools]:
        pixels = self._pixels
        shape = (len(pictures), pixels.channels, *self._view.size)
        picked = np.empty(shape, pixels.dtype)
        marks = np.empty((len(pictures), *self._view.size), np.uint8)
        frame = view._replace(frame=self._view.size)
        sizes = self._sizes[rows]
        step = self._values_from_pixel
        take_nearest = nearest(
            pictures, frame, self._form, sizes, picked, 0, step, marks
        )
        take_nearest(0, len(pictures))
        if view.steps is not None:
            picked, marks = warp_values(picked, marks, view.steps)
        inside: Bools = marks == _INSIDE
        values, valid = self._values.read(picked)
        return values, inside if valid is None else valid & inside

    def _weighted(self, pictures: Array, view: View, rows: slice) -> tuple[F32, Bools]:
        """Each pixel from its neighbours, of which those without a value have no weight."""
        channels = self._values.channels
        sums = self._sums(pictures, rows)
        weights = sums[:, channels:]
        if view.steps is not None:
            everywhere = np.full((len(sums), *self._view.size), _INSIDE, np.uint8)
            sums, marks = warp_values(sums, everywhere, view.steps)
            weights = sums[:, channels:] * (marks[:, None] == _INSIDE)
        valid = weights[:, 0] > _HALF
        divisors = np.where(valid[:, None], weights, np.float32(1))
        values = (sums[:, :channels] / divisors).astype(np.float32)
        return values, valid

    def _sums(self, pictures: Array, rows: slice) -> F32:
        """float32 (n, C + 1, height, width): weighted sums of neighbours, and of their weights."""
        channels = self._values.channels
        # What the addresses below belong to.
        planes = [self._weighed(picture) for picture in pictures]
        weighed = pictures.copy()
        weighed["pixels"] = [array.ctypes.data for array in planes]
        weighed["stride"] = [array.strides[0] for array in planes]
        sums = np.zeros((len(pictures), channels + 1, *self._view.size), np.float32)
        bands = Bands(4, channels + 1, channels + 1, 1, 0)
        self.cuts.make(weighed, rows, as_levels(sums, bands))
        return sums

    def _weighed(self, picture: Any) -> F32:
        """float32 (height, width, channels + 1): values, and 1 where they are valid."""
        stored = _pixels_of(picture, self._pixels)
        values, valid = self._values.read(np.moveaxis(stored, 2, 0)[None])
        weights = np.ones(values.shape[2:], np.float32) if valid is None else valid[0]
        planes = np.concatenate([values[0], weights[None].astype(np.float32)])
        return np.ascontiguousarray(np.moveaxis(planes, 0, 2))

    @property
    def _values_from_pixel(self) -> int:
        """Values from one pixel to the next: gray files of 8 bits are decoded to three channels."""
        is_decoded = not self._stored.raw
        return 3 if is_decoded and self._pixels == GRAY else self._pixels.channels


def _pixels_of(picture: Any, pixels: Pixels) -> Array:
    """(height, width, channels): the pixels of one of `PICTURE`, which must stay alive."""
    height = int(picture["height"])
    width = int(picture["width"])
    stride = int(picture["stride"])
    memory = (ctypes.c_uint8 * (height * stride)).from_address(int(picture["pixels"]))
    values = np.ctypeslib.as_array(memory).view(pixels.dtype).reshape(height, -1)
    step = stride // (width * values.itemsize)
    by_pixel = values[:, : width * step].reshape(height, width, step)
    return by_pixel[..., : pixels.channels]


def warp_values(values: Array, marks: Array, steps: Steps) -> tuple[Array, Array]:
    """Values (n, C, height, width) of any type, and uint8 (n, height, width), 255 where they are of the picture, after
    steps that move pixels.

    The kernels move bytes; the nearest pixel is moved as a whole, so the bytes of its values are moved alike.
    """
    count, channels, height, width = values.shape
    item = values.itemsize
    as_bytes = np.ascontiguousarray(values).view(np.uint8)
    planes = np.moveaxis(as_bytes.reshape(count, channels, height, width, item), 4, 2)
    byte_planes = planes.reshape(count, channels * item, height, width)
    moved = transform(np.concatenate([byte_planes, marks[:, None]], axis=1), steps)
    planes = moved[:, :-1].reshape(count, channels, item, height, width)
    last = np.ascontiguousarray(np.moveaxis(planes, 2, 4))
    return last.view(values.dtype)[..., 0], moved[:, -1]
