"""Decodes whole images on the CPU for functions before the crop, and crops their results."""

import ctypes
from dataclasses import dataclass

import numpy as np

from gpuload.augment import Form, View
from gpuload.decode.function.views import MakeLevels
from gpuload.decode.interface import Fault, Stored
from gpuload.decode.native.cuts import Cuts, load_compiled
from gpuload.decode.native.images import DecodePlan, ImageDecoder, picture_kind
from gpuload.decode.native.values import Target
from gpuload.decode.pillow import decode_mask, reason_of
from gpuload.decode.postprocess import level_dtype
from gpuload.read.batch import Batch
from gpuload.types import I64, U8, Array


@dataclass
class WholeImage:
    """(height, width, channels) of the batch's pixels, valid until the thread decodes another; its masks, uint8
    (height, width)."""

    image: Array
    masks: list[U8]


class WholeImages:
    """Decodes whole images, and crops. forms: of the views that are cropped, as levels."""

    def __init__(self, forms: list[Form], stored: Stored) -> None:
        load_compiled(forms, stored.pixels)
        self._images, self._source, self._pixels = ImageDecoder(stored), stored.source, stored.pixels
        self._decoded, self._own = picture_kind(stored), None
        if self._decoded is not None:
            from gpuload.decode.native.bands import bands_of  # compiled only if needed

            self._own = bands_of(stored.pixels)
            load_compiled([forms[0]._replace(pads=True)], stored.pixels)
        self._dtype = level_dtype(stored.pixels)
        self._constants = np.zeros(stored.pixels.channels, np.float32), np.ones(stored.pixels.channels, np.float32)

    def plan(self, batch: Batch) -> DecodePlan:
        """The decode plan for the images of a batch."""
        heights, widths = batch.encoded.heights, batch.encoded.widths
        windows = np.zeros((len(batch), 4), np.int64)
        windows[:, 2], windows[:, 3] = heights, widths
        return DecodePlan(batch.encoded, windows, np.ones(len(batch), np.int64), self._source)

    def decode(self, plan: DecodePlan, batch: Batch, row: int) -> tuple[WholeImage | None, Fault | None]:
        """The image and masks of a row, or why they do not decode."""
        owners, broken = self._images.decode(plan, row)
        if row in broken:
            return None, broken[row]
        address, height, width, stride = plan.pictures[row, :4].tolist()
        if self._decoded is None:
            assert stride == 3 * width
            memory = (ctypes.c_uint8 * (height * stride)).from_address(address)
            pixels: Array = np.frombuffer(memory, np.uint8).reshape(height, width, 3)
            if owners:  # its owner frees the memory
                pixels = pixels.copy()
        else:
            pixels = self._in_mode(plan.pictures[row : row + 1], height, width)
        masks = []
        for number, field in enumerate(batch.masks):
            try:
                masks.append(decode_mask(field[row], (height, width)))
            except Exception as error:  # Pillow's decoders raise many types
                return None, Fault(reason_of(error), number)
        return WholeImage(pixels, masks), None

    def cut(self, form: Form, view: View, image: Array) -> MakeLevels:
        """Crops one image (height, width, channels) in C order, which must stay alive until the view is made."""
        height, width, _ = image.shape
        pictures = np.array([(image.ctypes.data, height, width, image.strides[0], 0, 0, 1)], np.int64)
        cuts = Cuts(form.levels(self._pixels), view, np.array([height]), np.array([width]))
        return lambda target: cuts.make(pictures, slice(0, 1), target, self._own)

    def _in_mode(self, pictures: I64, height: int, width: int) -> Array:
        """The decoded pixels in the mode of the batch, such as gray from three channels."""
        from gpuload.decode.native.bands import crop_or_pad_bands

        out = np.empty((1, height, width, self._pixels.channels), self._dtype)
        rows, columns = np.arange(height)[None], np.arange(width)[None]
        target = Target(out.transpose(0, 3, 1, 2), *self._constants)
        crop_or_pad_bands(pictures, rows, columns, 0.0, self._decoded, target)(0, 1)
        pixels: Array = out[0].astype(self._pixels.dtype, copy=False)
        return pixels
