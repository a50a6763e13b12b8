"""A window of decoded pixels to the size of the output, bilinear or bicubic with antialiasing, on the CPU."""

from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.nn import functional

from gpuload.augment import Form, View
from gpuload.decoding import Picture, Pixels, Window

# Where a crop is so large that the image can be decoded at 1/2, 1/4 or 1/8 of its size, it is, as long as the crop
# keeps this many pixels, along each side, for one of the output's: what Pillow calls a reducing gap, and 3 is where it
# finds no difference to be seen. On 12-megapixel photos to 224 pixels (2026-11): 42.5 ms an image for 47.5, 0.14 levels
# of 255 apart on average, 1 at the 99.9th percentile; a gap of 2 took 37 ms and was 0.22 and 2 levels apart.
REDUCING_GAP = 3.0

_PILLOW = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


class _Cut(NamedTuple):
    """What a view takes of one image, in pixels of the stored one.

    window: top, left, bottom, right. exact: the window is what is stretched over the output; else it is `region`.
    """

    window: Window
    region: tuple[float, float, float, float]
    exact: bool
    mirror: int
    mirror_y: int


class Cuts:
    """What a view takes of each image of a batch, worked out at once: a NumPy call for one image takes as long.

    windows: for each image, the part of it that must be decoded. factors: how much smaller it may be decoded.
    as_is: each image is shown whole, in its size and unflipped.
    """

    def __init__(self, form: Form, view: View, heights: Any, widths: Any) -> None:
        self._form, self._size = form, view.size
        crops = view.crops
        stop = crops.start + crops.shape
        begin, end = crops.start + crops.roi_start, crops.start + crops.roi_end
        roi = crops.roi_end - crops.roi_start
        exact = (roi == crops.shape).all(axis=1)
        window = np.concatenate([crops.start, stop], axis=1)
        region = np.concatenate([begin, end], axis=1)
        columns = [part.tolist() for part in (window, region, exact, crops.mirror, crops.mirror_y)]
        self._cuts = [_Cut(tuple(w), tuple(r), *rest) for w, r, *rest in zip(*columns, strict=True)]
        limits = np.stack([heights, widths], axis=1)
        inside = np.concatenate([np.clip(crops.start, 0, limits), np.clip(stop, 0, limits)], axis=1)
        # An edge between pixels is had from the whole image (see `show`).
        inside[~exact] = np.concatenate([np.zeros_like(limits), limits], axis=1)[~exact]
        self.windows = inside
        whole = exact & (crops.start == 0).all(axis=1) & (crops.shape == limits).all(axis=1)
        flipped = crops.mirror.any() or crops.mirror_y.any()
        self.as_is = bool(whole.all() and (limits == np.array(view.size)).all() and not flipped)
        reduce = (roi / np.array(view.size)).min(axis=1) / REDUCING_GAP
        self.factors = np.where(form.pads, 1, np.select([reduce >= 8, reduce >= 4, reduce >= 2], [8, 4, 2], 1))

    def show(self, picture: Picture, place: int) -> torch.Tensor:
        """uint8 (3, height, width): the view of the image at this place."""
        cut = self._cuts[place]
        if self._form.pads:
            image = self._pad(picture, cut.window)
        elif picture.factor > 1:
            image = self._resize_region(picture, cut)
        elif cut.exact:
            top, left, bottom, right = cut.window
            y, x = picture.top, picture.left
            image = self._resize(picture.pixels[top - y : bottom - y, left - x : right - x], self._size)
        else:
            image = self._crop_resized(picture, cut)
        if cut.mirror or cut.mirror_y:
            image = image.flip([axis for axis, flipped in ((1, cut.mirror_y), (2, cut.mirror)) if flipped])
        return image

    def _resize(self, pixels: Pixels, size: tuple[int, int]) -> torch.Tensor:
        """uint8 (3, *size) out of (height, width, 3)."""
        if not pixels.flags.writeable:  # torch takes no memory that is not to be written to
            pixels = pixels.copy()
        image = torch.from_numpy(pixels).permute(2, 0, 1)
        if pixels.shape[:2] == size:
            return image
        return functional.interpolate(image.unsqueeze(0), size=size, mode=self._form.interpolation, antialias=True)[0]

    def _crop_resized(self, picture: Picture, cut: _Cut) -> torch.Tensor:
        """A region whose edges fall between pixels is a crop of the resized image (torchvision's CenterCrop)."""
        top, left, bottom, right = cut.region
        height, width = self._size
        steps = (bottom - top) / height, (right - left) / width
        whole = [round(side / step) for side, step in zip(picture.pixels.shape, steps, strict=False)]
        first, start = round(top / steps[0]), round(left / steps[1])
        return self._resize(picture.pixels, (whole[0], whole[1]))[:, first : first + height, start : start + width]

    def _resize_region(self, picture: Picture, cut: _Cut) -> torch.Tensor:
        """The same for pixels that are `factor` of the stored image's; pixels outside the window do not count."""
        factor = picture.factor
        rows, columns = picture.pixels.shape[:2]
        low = cut.window[0] // factor, cut.window[1] // factor
        high = min(-(-cut.window[2] // factor), rows), min(-(-cut.window[3] // factor), columns)
        top, left, bottom, right = (edge / factor - low[axis % 2] for axis, edge in enumerate(cut.region))
        box = (left, top, min(right, high[1] - low[1]), min(bottom, high[0] - low[0]))
        window = Image.fromarray(np.ascontiguousarray(picture.pixels[low[0] : high[0], low[1] : high[1]]))
        resized = window.resize(self._size[::-1], _PILLOW[self._form.interpolation], box=box)
        return torch.from_numpy(np.array(resized)).permute(2, 0, 1)

    def _pad(self, picture: Picture, window: Window) -> torch.Tensor:
        """The window as it is, with `fill` where it reaches outside of the image."""
        top, left, bottom, right = window
        padded = np.full((*self._size, 3), self._form.fill, np.uint8)
        y, x = picture.top, picture.left
        height, width = picture.pixels.shape[:2]
        inside = max(top, y), max(left, x), min(bottom, y + height), min(right, x + width)
        part = picture.pixels[inside[0] - y : inside[2] - y, inside[1] - x : inside[3] - x]
        padded[inside[0] - top : inside[2] - top, inside[1] - left : inside[3] - left] = part
        return torch.from_numpy(padded).permute(2, 0, 1)
