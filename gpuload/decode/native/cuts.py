"""Views from decoded pixels: their windows, scale and flips, and the steps that make them."""

from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.augment import Form, View
from gpuload.augment.crops import PADDING_MODES, Crops, source_range
from gpuload.decode.native.steps import Step
from gpuload.decode.native.transforms import transform
from gpuload.decode.native.values import PixelTarget, as_levels, output_of
from gpuload.decode.postprocess import Postprocess, has_own
from gpuload.errors import ArgumentError
from gpuload.fields.rows import take
from gpuload.kernels.structs import CropArguments, ResizeArguments, address
from gpuload.types import F64, I64, Array, Bools

# Images are decoded at 1/2, 1/4 or 1/8 of their size as long as the crop keeps this many pixels per output pixel along
# each side. Pillow calls this the reducing gap and finds no visible difference from 3 on. On 12-megapixel photos to 224
# pixels, decoded by libjpeg-turbo (2026-11): 42.5 ms an image instead of 47.5, 0.14 levels of 255 apart on average, 1
# at the 99.9th percentile; a gap of 2 took 37 ms and was 0.22 and 2 levels apart.
REDUCING_GAP = 3.0


def resample(
    pictures: Array,
    windows: I64,
    regions: F64,
    flips: Bools,
    cubic: bool,
    target: PixelTarget,
) -> Step:
    """The step that resizes a region of each of N images to the size of the output.

    Args:
        pictures: (N,) of `PICTURE`. Nothing is done for one that is not decoded.
        windows: int64 (N, 4), top, left, bottom, right in the stored image: the pixels that the filter may use.
        regions: float64 (N, 4), top, left, bottom, right in the stored image: the part that becomes the output.
        flips: bool (N, 2), top to bottom and left to right.
        cubic: Whether the filter is bicubic, else bilinear.
        target: Of the views.
    """
    arrays = [
        np.ascontiguousarray(array) for array in (pictures, windows, regions, flips)
    ]
    addresses = [array.ctypes.data for array in arrays]
    arguments = ResizeArguments(
        *addresses, cubic, _bands_address(target), output_of(target)
    )
    return Step(
        "resize_rgb" if target.bands is None else "resize_bands",
        arguments,
        arrays,
        target,
    )


def crop_or_pad(
    pictures: Array,
    windows: I64,
    flips: Bools,
    sizes: I64,
    fills: npt.NDArray[Any],
    mode: int,
    target: PixelTarget,
) -> Step:
    """As `resample`, without scaling: a window of each image, as large as the output.

    Args:
        pictures: (N,) of `PICTURE`, which hold what is shown of their images, as `augment.crops.source_range` says.
        windows: int64 (N, 4), top, left, bottom, right in the stored image.
        flips: bool (N, 2), top to bottom and left to right.
        sizes: int64 (N, 2), height and width of the stored images.
        fills: Outside of them: of RGB uint8 (3,), the level of each channel; else float64 (1,).
        mode: Index in PADDING_MODES of what is outside.
        target: Of the views.
    """
    arrays = [
        np.ascontiguousarray(array)
        for array in (pictures, windows, flips, sizes, fills)
    ]
    addresses = [array.ctypes.data for array in arrays]
    arguments = CropArguments(
        *addresses, mode, _bands_address(target), output_of(target)
    )
    return Step(
        "crop_or_pad_rgb" if target.bands is None else "crop_or_pad_bands",
        arguments,
        arrays,
        target,
    )


def _bands_address(target: PixelTarget) -> int | None:
    return None if target.bands is None else address(target.bands)


class Cuts:
    """The cuts of a view from N images.

    Attributes:
        windows: int64 (N, 4), the part of each that must be decoded: top, left, bottom, right in pixels of the stored
            image.
        factors: int64 (N,), 1, 2, 4 or 8: it may be decoded at 1/factor of its size.
        places_images: Whether an image is scaled, and may have padding around it.

    Args:
        form: Of the view.
        view: Of the N images.
        heights: int32 (N,), of the images in pixels.
        widths: int32 (N,), of the images in pixels.
    """

    def __init__(self, form: Form, view: View, heights: Any, widths: Any) -> None:
        self.form = form
        self.view = view
        self._cubic = view.cubic
        # A picture of another size than the image's is scaled even where its image is not, with padding around it.
        scaled = view.crops.scaled(view.size) if form.pads else np.zeros(0, np.bool_)
        is_scaled = bool(scaled.any())
        if is_scaled and form.padding_mode != "constant":
            row = int(scaled.argmax())
            raise ArgumentError(
                f"RandomCrop(padding_mode={form.padding_mode!r}): pads what is not scaled, and a further picture of "
                f"{widths[row]} × {heights[row]} pixels is, since its image has another size. Use "
                "padding_mode='constant', or leave the picture out"
            )
        self._pads = form.pads and not is_scaled
        self.places_images = form.places or is_scaled
        self._set_regions(view.crops, len(heights))
        self.windows: I64 = self._unclipped
        self.factors: I64 = np.ones(len(heights), np.int64)
        if self._pads:
            self._unclipped[:] = self._regions
            self._set_padding(heights, widths)
            return
        self._set_factors(view)
        if self.places_images:
            sources = np.stack([heights, widths], axis=1).astype(np.int64)
            self._places = view.crops.covered(view.size, sources)
            np.clip(self._regions, 0, np.tile(sources, 2), out=self._regions)
            low = np.clip(self._unclipped[:, :2], 0, sources - 1)
            high = np.clip(self._unclipped[:, 2:], low + 1, sources)
            self.windows = np.concatenate([low, high], axis=1)

    def _set_regions(self, crops: Crops, number: int) -> None:
        """Sets windows, regions and flips of N crops."""
        # Column by column: each of NumPy's functions that join or choose arrays costs as much as ten of these. And for
        # more than 500 numbers NumPy releases the GIL, which other threads then take: in a batch of 256, that is two
        # columns.
        self._unclipped: I64 = np.empty((number, 4), np.int64)
        self._regions: F64 = np.empty((number, 4), np.float64)
        for axis in (0, 1):
            end = 2 + axis
            start = crops.start[:, axis]
            self._unclipped[:, axis] = start
            np.add(start, crops.shape[:, axis], out=self._unclipped[:, end])
            np.add(start, crops.roi_start[:, axis], out=self._regions[:, axis])
            np.add(start, crops.roi_end[:, axis], out=self._regions[:, end])
        self._flips: Bools = np.empty((number, 2), np.bool_)
        self._flips[:, 0] = crops.mirror_y
        self._flips[:, 1] = crops.mirror

    def _set_padding(self, heights: Any, widths: Any) -> None:
        """Sets what is needed of images that are padded: the pixels that the padding shows, too."""
        padding_mode = self.form.padding_mode
        self._sizes: I64 = np.stack([heights, widths], axis=1).astype(np.int64)
        self._mode = PADDING_MODES.index(padding_mode)
        starts = self._unclipped[:, :2]
        ends = self._unclipped[:, 2:]
        low, high = source_range(starts, ends, self._sizes, padding_mode)
        self.windows = np.concatenate([low, high], axis=1)

    def _set_factors(self, view: View) -> None:
        """Sets at which share of its size each image may be decoded."""
        crops = view.crops
        shape = crops.roi_end - crops.roi_start
        rows, columns = view.size if crops.sizes is None else crops.sizes.T
        pixels_a_row = shape[:, 0] / rows
        pixels_a_column = shape[:, 1] / columns
        gap = np.minimum(pixels_a_row, pixels_a_column) / REDUCING_GAP
        if gap.max(initial=0) >= 2:
            self.factors = np.select([gap >= 8, gap >= 4, gap >= 2], [8, 4, 2], 1)

    def step_of(
        self, pictures: Array, target: PixelTarget, postprocess: Postprocess
    ) -> Step | None:
        """The step that makes the whole view of all pictures; None where Python has a part in it."""
        view = self.view
        rows = slice(0, len(pictures))
        if self.places_images or not postprocess.linear:
            return None
        if view.erased is not None or view.cubic is not None:
            return None
        if view.steps is None:
            return self._step(pictures, rows, target)
        if postprocess.level_dtype != "uint8" or has_own(view.steps):
            return None
        # The kernel sets the address.
        nowhere = np.empty((1, *target.out.shape[1:]), np.uint8)
        levels = self._step(pictures, rows, as_levels(nowhere, target.bands))
        return transform(view.steps, target, levels)

    def fill(
        self,
        pictures: Array,
        rows: slice,
        target: PixelTarget,
        postprocess: Postprocess,
    ) -> None:
        """Writes the whole view of these pictures to these rows of the target.

        Args:
            pictures: (n,), of `PICTURE`, decoded.
            rows: Theirs in the batch.
            target: What to write to, of the whole batch.
            postprocess: Makes values of levels.
        """
        out = target.out[rows]
        view = take(self.view, rows)
        if postprocess.is_linear(view):
            self.make(pictures, rows, target._replace(out=out))
            postprocess.erase(out, view)
            return
        levels = np.empty(out.shape, postprocess.level_dtype)
        self.make(pictures, rows, as_levels(levels, target.bands))
        postprocess(levels, out, view)

    def make(self, pictures: Array, rows: slice, target: PixelTarget) -> None:
        """Makes the cuts of the images at these rows, each with its own filter; the arguments are those of `_step`."""
        if self.places_images:
            self._place(pictures, rows, target)
            return
        if self._cubic is None or self._pads:
            self._step(pictures, rows, target)(0, len(pictures))
            return
        for cubic in (False, True):
            chosen = pictures.copy()
            others = self._cubic[rows] != cubic
            chosen["pixels"][others] = 0  # for which nothing is done
            self._step(chosen, rows, target, cubic)(0, len(pictures))

    def _place(self, pictures: Array, rows: slice, target: PixelTarget) -> None:
        """As `make`, one by one: each image has its own size, and the rest of its output is padding."""
        fills = self._fill_values(target)
        first_row = rows.indices(len(self._regions))[0]
        for number in range(len(pictures)):
            if pictures["pixels"][number] != 0:
                row = first_row + number
                self._place_one(
                    pictures[number : number + 1],
                    row,
                    target.out[number],
                    fills,
                    target,
                )

    def _fill_values(self, target: PixelTarget) -> Array:
        """The values of the padding, of each channel."""
        level = 1.0 if target.bands is None else target.bands.peak / 255
        fills = self.form.fills(target.out.shape[1])
        levels = np.array(fills, np.float32) * np.float32(level)
        values = (levels - target.mean) * target.factor
        return values.astype(target.out.dtype)

    def _place_one(
        self, picture: Array, row: int, out: Array, fills: Array, target: PixelTarget
    ) -> None:
        """Makes the image at a row, and the padding around it."""
        top, left, bottom, right = self._places[row].tolist()
        if top == bottom or left == right:  # it lies wholly in the padding
            out[:] = fills.reshape(-1, 1, 1)
            return
        shown = np.empty((1, len(out), bottom - top, right - left), out.dtype)
        cubic = None if self._cubic is None else bool(self._cubic[row])
        part = slice(row, row + 1)
        self._step(picture, part, target._replace(out=shown), cubic)(0, 1)
        for channel, fill in enumerate(fills):
            plane = out[channel]
            plane[:] = fill
            plane[top:bottom, left:right] = shown[0, channel]

    def _step(
        self,
        pictures: Array,
        rows: slice,
        target: PixelTarget,
        cubic: bool | None = None,
    ) -> Step:
        """The step that makes the cuts of the images at these rows.

        Args:
            pictures: Of these rows.
            rows: Of the batch.
            target: Of these rows.
            cubic: The filter, if not the form's.
        """
        flips = self._flips[rows]
        if self._pads:
            windows = self._unclipped[rows]
            return crop_or_pad(
                pictures,
                windows,
                flips,
                self._sizes[rows],
                self._fills(target),
                self._mode,
                target,
            )
        if cubic is None:
            cubic = self.form.interpolation == "bicubic"
        return resample(
            pictures, self.windows[rows], self._regions[rows], flips, cubic, target
        )

    def _fills(self, target: PixelTarget) -> Array:
        """What is outside of images, as `crop_or_pad` takes it."""
        if target.bands is None:
            return np.array(self.form.fills(3), np.uint8)
        return np.array(self.form.fills(1)) / 255 * target.bands.peak
