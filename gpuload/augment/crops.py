"""The part of each image that a batch shows: crops and flips, for a whole batch in NumPy."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpuload.types import F64, I32, I64

RANDOM_CROP_DRAWS = 2 + 2 * 10  # ten attempts, as in torchvision's RandomResizedCrop


class Crops(NamedTuple):
    """The crop of each image of a batch of N, in pixels of the decoded image, (y, x).

    start, shape: int32 (N, 2), the window to decode. It lies within the image, except that of `pad_or_crop`, which may
        extend beyond the image on all sides, as may that of `RandomCrop`; what is outside is padding.
    roi_start, roi_end: float32 (N, 2), relative to `start`: the region of the window that becomes the output. The
        window is larger where the resize filter may use pixels beyond the region's edge.
    mirror, mirror_y: int32 (N,), 1 where the output is flipped left to right, and top to bottom.
    """

    start: I32
    shape: I32
    roi_start: npt.NDArray[np.float32]
    roi_end: npt.NDArray[np.float32]
    mirror: I32
    mirror_y: I32

    def select(self, rows: I64 | slice) -> "Crops":
        """The crops of some of the images."""
        parts: list[npt.NDArray[Any]] = [part[rows] for part in self]
        return Crops(*parts)


def random_crops(
    drawn: F64,
    draw_more: Callable[[I64], F64],
    width: F64,
    height: F64,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Crops:
    """torchvision's `RandomResizedCrop.get_params`, for a whole batch.

    Ten attempts to draw an area and a (log-uniform) ratio whose window fits into the image; where none does, the
    largest central window whose ratio is in range.

    drawn: (4, N), in [0, 1): the position, y and x, then area and ratio of the first attempt. draw_more: those of the
    other nine attempts for some of the images, (18, n); three of four images do not need them.
    """
    (heights,), (widths,), (fits,) = _windows(drawn[2:], width, height, scale, ratio)
    shape = np.stack([heights, widths])
    missed = np.flatnonzero(~fits)
    if len(missed):
        missed_width, missed_height = width[missed], height[missed]
        heights, widths, fitting = _windows(draw_more(missed), missed_width, missed_height, scale, ratio)
        first = fitting.argmax(axis=0), np.arange(len(missed))
        fits[missed] = fitting[first]
        central = _central_window(missed_width, missed_height, ratio)
        shape[:, missed] = np.where(fitting[first], [heights[first], widths[first]], central)
    room = np.array([height, width]) - shape
    start = np.where(fits, np.floor(drawn[:2] * (room + 1)), room // 2)
    return _whole(start.T, shape.T)


def _windows(
    drawn: F64, width: F64, height: F64, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[F64, F64, npt.NDArray[np.bool_]]:
    """Height and width of the window of each attempt, (attempts, N), and whether it fits. drawn: (2 * attempts, N)."""
    low, high = np.log(ratio)
    area = width * height * (scale[0] + drawn[::2] * (scale[1] - scale[0]))
    aspect = np.exp(low + drawn[1::2] * (high - low))
    widths, heights = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
    return heights, widths, (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)


def _central_window(width: F64, height: F64, ratio: tuple[float, float]) -> list[F64]:
    """Height and width of the largest window whose ratio is in range."""
    clipped = np.clip(width / height, *ratio)
    return [np.minimum(height, np.rint(width / clipped)), np.minimum(width, np.rint(height * clipped))]


def center_crops(width: F64, height: F64, resize_px: int, size: tuple[int, int], reach: int) -> Crops:
    """torchvision's Resize(resize_px) and CenterCrop(size), as one window of the source image.

    The region's edges fall between pixels, and the antialiasing filter uses pixels beyond them, as it does where the
    whole image is resized first. So the decoded window is larger by the filter's support: `reach` output pixels (1 for
    a bilinear filter, 2 for a bicubic one), or as many source pixels where the image is enlarged.
    """
    source = np.stack([height, width], axis=1)
    resized = np.trunc(resize_px * source / source.min(axis=1, keepdims=True))
    target = np.array(size, np.float64)
    step = source / resized
    roi_start = np.rint((resized - target) / 2) * step
    roi_end = roi_start + target * step
    return _supported(source, step, roi_start, roi_end, reach)


def covering_crops(drawn: F64 | None, width: F64, height: F64, size: tuple[int, int], reach: int) -> Crops:
    """Each image scaled, with its aspect ratio, to the smallest size that covers the output, and cut to it there.

    drawn: (2, N), in [0, 1): where, y and x; None: in the centre. reach: as for `center_crops`.
    """
    source, target = np.stack([height, width], axis=1), np.array(size, np.float64)
    resized = np.maximum(np.rint(source * (target / source).max(axis=1, keepdims=True)), target)
    room = resized - target
    offset = room // 2 if drawn is None else np.floor(drawn.T * (room + 1))
    step = source / resized
    return _supported(source, step, offset * step, (offset + target) * step, reach)


def central_fractions(width: F64, height: F64, fraction: float) -> Crops:
    """The centre of each image, this share of its sides, as TensorFlow's `tf.image.central_crop`."""
    source = np.stack([height, width], axis=1)
    start = np.trunc((source - source * fraction) / 2)
    return _whole(start, source - 2 * start)


def whole_images(width: F64, height: F64) -> Crops:
    """Each image as a whole."""
    source = np.stack([height, width], axis=1)
    return _whole(np.zeros(source.shape), source)


def pad_or_crop(width: F64, height: F64, size: tuple[int, int]) -> Crops:
    """TensorFlow's `tf.image.resize_with_crop_or_pad`: nothing is scaled; image and output have the same centre.

    A larger image loses ⌊difference / 2⌋ pixels at its top and left, a smaller one gets as much padding there.
    """
    source = np.stack([height, width], axis=1)
    surplus = source - np.array(size, np.float64)
    start = np.sign(surplus) * np.floor(np.abs(surplus) / 2)
    return unscaled(start, size)


def unscaled(start: F64, size: tuple[int, int]) -> Crops:
    """Windows as large as the output, float64 (N, 2) `start` their upper left corners."""
    return _whole(start, np.broadcast_to(np.array(size, np.float64), start.shape))


def _supported(source: F64, step: F64, roi_start: F64, roi_end: F64, reach: int) -> Crops:
    """Crops whose window is larger than their region by the filter's support, as far as the image goes."""
    support = reach * np.maximum(step, 1)
    start = np.maximum(np.floor(roi_start - support), 0)
    end = np.minimum(np.ceil(roi_end + support), source)
    return _crops(start, end - start, roi_start - start, roi_end - start)


def _whole(start: F64, shape: F64) -> Crops:
    """Crops whose region is the whole window, so that the filter uses nothing beyond it."""
    return _crops(start, shape, np.zeros(shape.shape), shape)


def _crops(start: F64, shape: F64, roi_start: F64, roi_end: F64) -> Crops:
    unflipped = np.zeros(len(start), np.int32)
    return Crops(
        start.astype(np.int32, order="C"),
        shape.astype(np.int32, order="C"),
        roi_start.astype(np.float32, order="C"),
        roi_end.astype(np.float32, order="C"),
        unflipped,
        unflipped,
    )
