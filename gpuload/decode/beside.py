"""Further pictures around a function of the user's: what it gets of them, and what becomes of what it returns.

    decoder ─► levels or values, cropped, not flipped ─► function ─► flips ─► transforms, normalisation ─► batch

The function sees each as the image: cropped to its output size, with the values that a batch holds where it is a map. A
list of pictures is one array. What follows is what follows without a function; warps take the nearest pixel.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass
from typing import Any

import numpy as np

from gpuload.augment.crops import whole_images
from gpuload.decode.interface import Buffers, PictureForm
from gpuload.decode.native.maps import warp_values
from gpuload.decode.postprocess import Postprocess, level_dtype
from gpuload.fields.motion import Motion
from gpuload.fields.rows import Ragged, take
from gpuload.read.batch import Batch
from gpuload.transforms.warps import affine_of
from gpuload.types import Array, Bools

_VALID = 255


@dataclass(eq=False)
class PictureBeside(ABC):
    """A further picture of each sample of a batch, in a view with a function.

    Args:
        picture: What is made of it.
        number: Of the view.
        batch: With the samples.
        cropped: What the decoder made of the view, without flips; it may be overwritten.
        out: Memory for the view, with a row for each picture.
    """

    picture: PictureForm
    number: int
    batch: InitVar[Batch]
    cropped: Array
    out: Array

    def __post_init__(self, batch: Batch) -> None:
        self._view = batch.views_of(self.name)[self.number]
        stored = batch.pictures[self.name]
        self._is_list = isinstance(stored, Ragged)
        counts = np.ones(len(batch), np.int64)
        if isinstance(stored, Ragged):
            counts = stored.counts
        self._ends = np.cumsum(counts).tolist()
        self._counts = counts.tolist()

    @property
    def name(self) -> str:
        """Of the field."""
        return self.picture.name

    def given(self, sample: int) -> Array:
        """What the function gets of a sample: (height, width), or (height, width, C) of several channels and colours;
        of a list with the number of its pictures before these."""
        pictures = self._as_given(self.cropped[self._rows(sample)])
        return pictures if self._is_list else pictures[0]

    def store(self, sample: int, returned: Array) -> None:
        """Makes the values of a batch of what the function returned for a sample, in the shape that `given` has."""
        rows = self._rows(sample)
        if rows.start == rows.stop:
            return
        planes = self._as_planes(returned if self._is_list else returned[None])
        crops = self._view.crops
        flipped = np.empty_like(planes)
        for number, row in enumerate(range(rows.start, rows.stop)):
            down = -1 if crops.mirror_y[row] else 1
            across = -1 if crops.mirror[row] else 1
            flipped[number] = planes[number, :, ::down, ::across]
        self._finish(flipped, rows)

    def _rows(self, sample: int) -> slice:
        end = self._ends[sample]
        return slice(end - self._counts[sample], end)

    @abstractmethod
    def _as_given(self, cropped: Array) -> Array:
        """(n, height, width) or (n, height, width, C) of what the decoder made."""

    @abstractmethod
    def _as_planes(self, pictures: Array) -> Array:
        """(n, C, height, width) of that."""

    @abstractmethod
    def _finish(self, planes: Array, rows: slice) -> None:
        """Writes the values of these rows.

        Args:
            planes: (n, C, height, width), flipped, which may be changed.
            rows: Of the pictures.
        """


@dataclass(eq=False)
class ColorsBeside(PictureBeside):
    """A picture of colours, whose levels are cropped (N, height, width, C).

    Args:
        postprocess: Makes values of levels; None: a later stage does it, and they stay (N, C, height, width).
    """

    postprocess: Postprocess | None

    def __post_init__(self, batch: Batch) -> None:
        super().__post_init__(batch)
        self._pixels = self.picture.stored.pixels
        layout = self.picture.forms[self.number].layout
        is_planar = self.postprocess is None or layout == "NCHW"
        self._planes: Array = self.out if is_planar else self.out.transpose(0, 3, 1, 2)

    def _as_given(self, cropped: Array) -> Array:
        return cropped.astype(self._pixels.dtype, copy=False)

    def _as_planes(self, pictures: Array) -> Array:
        planes: Array = pictures.transpose(0, 3, 1, 2)
        return planes.astype(level_dtype(self._pixels), copy=False)

    def _finish(self, planes: Array, rows: slice) -> None:
        if self.postprocess is None:
            self._planes[rows] = planes
            return
        view = take(self._view, rows)
        self.postprocess(np.ascontiguousarray(planes), self._planes[rows], view)


@dataclass(eq=False)
class MapBeside(PictureBeside):
    """A map, such as depth, whose values are cropped (N, C, height, width)."""

    def __post_init__(self, batch: Batch) -> None:
        super().__post_init__(batch)
        values = self.picture.values
        assert values is not None
        self._values = values
        spec = values.spec
        self._missing = getattr(spec, "missing", getattr(spec, "fill", 0))

    def _as_given(self, cropped: Array) -> Array:
        if self._values.channels == 1:
            return cropped[:, 0]
        return np.ascontiguousarray(np.moveaxis(cropped, 1, 3))

    def _as_planes(self, pictures: Array) -> Array:
        if self._values.channels == 1:
            return pictures[:, None]
        return np.moveaxis(pictures, 3, 1)

    def _finish(self, planes: Array, rows: slice) -> None:
        view = take(self._view, rows)
        valid = self._is_valid(planes)
        affine = None
        if view.steps is not None:
            affine = affine_of(view.steps, *view.size)
            marks = np.where(valid, np.uint8(_VALID), np.uint8(0))
            planes, marks = warp_values(planes, marks, view.steps)
            valid = marks == _VALID
        height, width = view.size
        sides = np.ones((2, len(planes))) * [[width], [height]]
        crops = whole_images(*sides)._replace(
            mirror=view.crops.mirror, mirror_y=view.crops.mirror_y
        )
        moved = self._values.move(planes, Motion(crops, view.size, affine))
        self.out[rows] = self._values.close(moved, valid)

    def _is_valid(self, planes: Array) -> Bools:
        """bool (n, height, width): where the function left a value."""
        is_missing: Any = planes == self._missing
        if np.isnan(self._missing):
            is_missing = np.isnan(planes)
        valid: Bools = ~is_missing.all(axis=1)
        return valid


class FurtherPictures:
    """What is the same for all batches of the further pictures around functions.

    Args:
        pictures: What is made of them.
        make_buffers: Makes the memory for batches of a dtype.
        finishes: Whether their values are computed; otherwise a later stage does it for colours.
    """

    def __init__(
        self,
        pictures: Sequence[PictureForm],
        make_buffers: Callable[[str], Buffers],
        *,
        finishes: bool,
    ) -> None:
        self.names = tuple(picture.name for picture in pictures)
        self._pictures = pictures
        self._finishes = finishes
        self._memory = [make_buffers(self._dtype_of(picture)) for picture in pictures]
        self._postprocess = [self._postprocess_of(picture) for picture in pictures]

    def open(
        self, number: int, batch: Batch, cropped: Sequence[Array]
    ) -> list[PictureBeside]:
        """The pictures of a view with a function, of a batch.

        Args:
            number: Of the view.
            batch: With the samples.
            cropped: What the decoder made of each picture.
        """
        opened: list[PictureBeside] = []
        for place, picture in enumerate(self._pictures):
            made = cropped[place]
            size = batch.views_of(picture.name)[number].size
            shape = picture.shape(picture.forms[number], size)
            if picture.is_image and not self._finishes:
                shape = (picture.stored.pixels.channels, *size)
            out = self._memory[place].take(len(made), shape)
            if picture.is_image:
                postprocess = self._postprocess[place][number]
                colors = ColorsBeside(picture, number, batch, made, out, postprocess)
                opened.append(colors)
            else:
                opened.append(MapBeside(picture, number, batch, made, out))
        return opened

    def _dtype_of(self, picture: PictureForm) -> str:
        if picture.is_image and not self._finishes:
            return level_dtype(picture.stored.pixels)
        return picture.dtype(picture.forms[0])

    def _postprocess_of(self, picture: PictureForm) -> list[Postprocess | None]:
        """What makes values of the levels of each view; None where nothing does here."""
        if not (picture.is_image and self._finishes):
            return [None] * len(picture.forms)
        pixels = picture.stored.pixels
        return [Postprocess(form, "cpu", pixels) for form in picture.forms]
