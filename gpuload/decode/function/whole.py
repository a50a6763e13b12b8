"""Whole images on the CPU, for functions that come before the crop, and the crop that follows these."""

import ctypes
from dataclasses import dataclass

import numpy as np

from gpuload.augment import Form, View
from gpuload.decode.interface import Fault, Stored
from gpuload.decode.masks import decode_mask, reason_of
from gpuload.decode.native.cuts import Cuts, load_compiled
from gpuload.decode.native.images import DecodePlan, ImageDecoder
from gpuload.fields.pixels import RGB
from gpuload.read.batch import Batch
from gpuload.types import U8

_ZEROS, _ONES = np.zeros(3, np.float32), np.ones(3, np.float32)


@dataclass
class WholeImage:
    """uint8 (height, width, 3), valid until the thread decodes another; its masks, uint8 (height, width)."""

    image: U8
    masks: list[U8]


class WholeImages:
    """Decodes whole images, and crops. forms: of the views that are cropped."""

    def __init__(self, forms: list[Form], stored: Stored) -> None:
        for form in forms:
            load_compiled(form)
        self._images = ImageDecoder(stored)

    def plan(self, batch: Batch) -> DecodePlan:
        """How the images of a batch are decoded."""
        heights, widths = batch.encoded.heights, batch.encoded.widths
        windows = np.zeros((len(batch), 4), np.int64)
        windows[:, 2], windows[:, 3] = heights, widths
        return DecodePlan(batch.encoded, windows, np.ones(len(batch), np.int64))

    def decode(self, plan: DecodePlan, batch: Batch, row: int) -> tuple[WholeImage | None, Fault | None]:
        """The image and masks of a row, or why they do not decode."""
        owners, broken = self._images.decode(plan, slice(row, row + 1))
        if row in broken:
            return None, broken[row]
        address, height, width, stride = plan.pictures[row, :4].tolist()
        assert stride == 3 * width
        memory = (ctypes.c_uint8 * (height * stride)).from_address(address)
        pixels = np.frombuffer(memory, np.uint8).reshape(height, width, 3)
        if owners:  # memory that goes with its owner
            pixels = pixels.copy()
        masks = []
        for number, field in enumerate(batch.masks):
            try:
                masks.append(decode_mask(field[row], (height, width)))
            except Exception as error:  # Pillow's decoders raise many kinds
                return None, Fault(reason_of(error), number)
        return WholeImage(pixels, masks), None

    def cut(self, form: Form, view: View, image: U8) -> U8:
        """uint8 (3, height, width): the view, of one image, of uint8 (height, width, 3), C order."""
        height, width, _ = image.shape
        pictures = np.array([(image.ctypes.data, height, width, 3 * width, 0, 0, 1)], np.int64)
        out = np.empty((1, 3, *view.size), np.uint8)
        cuts = Cuts(form.levels(RGB), view, np.array([height]), np.array([width]))
        cuts.crop_and_resize(pictures, slice(0, 1), out, _ZEROS, _ONES)
        levels: U8 = out[0]
        return levels
