"""A view's cuts from decoded pixels: their windows, scale and flips."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuload.augment import Form, View
from gpuload.augment.crops import PADDING_MODES, source_of, source_range
from gpuload.decode.native import resample, steps
from gpuload.decode.native.compiled import load
from gpuload.decode.native.steps import Step
from gpuload.decode.native.transforms.run import functions_of
from gpuload.decode.native.values import HEIGHT, TOP, Target
from gpuload.fields.images import RGB, Pixels
from gpuload.machine.installed import paused_collector
from gpuload.types import I64

# Images are decoded at 1/2, 1/4 or 1/8 of their size as long as the crop keeps this many pixels per output pixel along
# each side. Pillow calls this the reducing gap and finds no visible difference from 3 on. On 12-megapixel photos to 224
# pixels, decoded by libjpeg-turbo (2026-11): 42.5 ms an image instead of 47.5, 0.14 levels of 255 apart on average, 1
# at the 99.9th percentile; a gap of 2 took 37 ms and was 0.22 and 2 levels apart.
REDUCING_GAP = 3.0


def load_compiled(forms: Sequence[Form], pixels: Pixels = RGB) -> None:
    """Loads or compiles the code for views of these forms; otherwise the first batch would."""
    made: Any = resample
    if not pixels.is_rgb:
        from gpuload.decode.native import bands as made  # compiled only if needed

    cuts = [made.crop_or_pad_rows if form.pads else made.resample_rows for form in forms]
    ops = {op for form in forms for op in form.ops} if pixels.dtype == "uint8" else ()
    with paused_collector():
        load([*cuts, *functions_of(ops)], steps.load_compiled)


class Cuts:
    """The cuts of a view from N images.

    windows: int64 (N, 4), the part of each that must be decoded: top, left, bottom, right in pixels of the stored
    image. factors: int64 (N,), 1, 2, 4 or 8: it may be decoded at 1/factor of its size.
    """

    def __init__(self, form: Form, view: View, heights: Any, widths: Any) -> None:
        # Column by column: each of NumPy's functions that join or choose arrays costs as much as ten of these. And for
        # more than 500 numbers NumPy releases the GIL, which other threads then take: in a batch of 256, that is two
        # columns.
        self._form, crops, number = form, view.crops, len(heights)
        self._cubic = view.cubic
        self._unclipped, self._regions = np.empty((number, 4), np.int64), np.empty((number, 4), np.float64)
        for axis in (0, 1):
            start = self._unclipped[:, axis] = crops.start[:, axis]
            np.add(start, crops.shape[:, axis], out=self._unclipped[:, 2 + axis])
            np.add(start, crops.roi_start[:, axis], out=self._regions[:, axis])
            np.add(start, crops.roi_end[:, axis], out=self._regions[:, 2 + axis])
        self._flips = np.empty((number, 2), np.bool_)
        self._flips[:, 0], self._flips[:, 1] = crops.mirror_y, crops.mirror
        self.windows: I64 = self._unclipped
        self.factors: I64 = np.ones(number, np.int64)
        if form.pads:
            self._sizes = np.stack([heights, widths], axis=1).astype(np.int64)
            self._mode = PADDING_MODES.index(form.padding_mode)
            low, high = source_range(self._unclipped[:, :2], self._unclipped[:, 2:], self._sizes, form.padding_mode)
            self.windows = np.concatenate([low, high], axis=1)
            return
        tall, wide = (crops.roi_end[:, axis] - crops.roi_start[:, axis] for axis in (0, 1))
        rows, columns = view.size if crops.sizes is None else crops.sizes.T
        gap = np.minimum(tall / rows, wide / columns) / REDUCING_GAP
        if gap.max(initial=0) >= 2:
            self.factors = np.select([gap >= 8, gap >= 4, gap >= 2], [8, 4, 2], 1)
        if form.places:
            sources = np.stack([heights, widths], axis=1).astype(np.int64)
            self._places = crops.covered(view.size, sources)
            self._regions = np.clip(self._regions, 0, np.tile(sources, 2)).astype(np.float64)

    def make(self, pictures: I64, rows: slice, target: Target, bands: Any = None) -> None:
        """Makes the views of the images at these rows, each with its own filter; the arguments are those of `step`."""
        if self._form.places:
            self._place(pictures, rows, target, bands)
            return
        if self._cubic is None or self._form.pads:
            self.step(pictures, rows, target, bands)(0, len(pictures))
            return
        for cubic in (False, True):
            chosen = pictures.copy()
            chosen[self._cubic[rows] != cubic, 0] = 0  # nothing is made for an address of 0
            self.step(chosen, rows, target, bands, cubic)(0, len(pictures))

    def _place(self, pictures: I64, rows: slice, target: Target, bands: Any) -> None:
        """As `make`, one by one: each image has its own size, and the rest of its output is padding."""
        each = 1.0 if bands is None else bands.peak / 255
        levels = np.array(self._form.fills(target.out.shape[1]), np.float32) * np.float32(each)
        fills = ((levels - target.mean) * target.factor).astype(target.out.dtype)
        for picture, row in zip(pictures[:, None], range(*rows.indices(len(self._regions))), strict=True):
            if not picture[0, 0]:
                continue
            out, (top, left, bottom, right) = target.out[row - rows.start], self._places[row].tolist()
            shown = np.empty((1, len(out), bottom - top, right - left), target.out.dtype)
            cubic = None if self._cubic is None else bool(self._cubic[row])
            self.step(picture, slice(row, row + 1), target._replace(out=shown), bands, cubic)(0, 1)
            for channel, (plane, fill) in enumerate(zip(out, fills, strict=True)):
                plane[:top], plane[bottom:] = fill, fill
                plane[top:bottom, :left], plane[top:bottom, right:] = fill, fill
                plane[top:bottom, left:right] = shown[0, channel]

    def step(self, pictures: I64, rows: slice, target: Target, bands: Any = None, cubic: bool | None = None) -> Step:
        """The step that makes the views of the images at these rows.

        pictures: of these rows, as `gpuload.decode.native.resample.resample` takes them. bands: the kind of pixels, if
            not RGB. cubic: the filter, if not the form's.
        """
        flips, cubic = self._flips[rows], self._form.interpolation == "bicubic" if cubic is None else cubic
        if bands is not None:
            return self._step_for_bands(pictures, rows, target, bands, cubic)
        if self._form.pads:
            sizes, fills = self._sizes[rows], np.array(self._form.fills(3), np.uint8)
            return resample.crop_or_pad(pictures, self._unclipped[rows], flips, sizes, fills, self._mode, target)
        return resample.resample(pictures, self.windows[rows], self._regions[rows], flips, cubic, target)

    def _step_for_bands(self, pictures: I64, rows: slice, target: Target, bands: Any, cubic: bool) -> Step:
        from gpuload.decode.native.bands import crop_or_pad_bands, resample_bands

        if self._form.pads:
            fill = self._form.fills(1)[0] / 255 * bands.peak
            lines, columns = (self._lines(pictures, rows, axis, target.out.shape[2 + axis]) for axis in (0, 1))
            return crop_or_pad_bands(pictures, lines, columns, fill, bands, target)
        flips = self._flips[rows]
        return resample_bands(pictures, self.windows[rows], self._regions[rows], flips, cubic, bands, target)

    def _lines(self, pictures: I64, rows: slice, axis: int, length: int) -> I64:
        """int64 (n, length): the line of its picture that each line of a padded crop shows, -1 for the fill.

        axis: 0 for rows, 1 for columns.
        """
        at = self._unclipped[rows, axis, None] + np.arange(length)
        at = np.where(self._flips[rows, axis, None], at[:, ::-1], at)
        first, held = pictures[:, TOP + axis, None], pictures[:, HEIGHT + axis, None]
        if self._form.padding_mode == "constant":
            return np.where((at >= first) & (at < first + held), at - first, -1)
        shown = source_of(at, self._sizes[rows, axis, None], self._form.padding_mode) - first
        within: I64 = np.clip(shown, 0, held - 1)  # none outside, even with a wrong index
        return within
