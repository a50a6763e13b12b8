"""The last stage of decoding, in torch on the device: padding, and a batch's values by `Postprocess`."""

from collections.abc import Sequence
from typing import Any

import torch

from gpuload.augment import Form, View
from gpuload.decode.device import Device, as_tensor
from gpuload.decode.interface import Stored
from gpuload.decode.padding import places_in_windows
from gpuload.decode.postprocess import Postprocess
from gpuload.decode.runner import Job, Stage
from gpuload.decode.steps import warp_masks
from gpuload.transforms.noise import on_device
from gpuload.types import I64

# NumPy and DALI have no bfloat16: float32 until the batch is returned.
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.float32, "uint8": torch.uint8}


class Finish(Stage):
    """Copies batches to the device, and computes the values of views that a decoder delivers as levels
    (N, C, height, width).

    levels: whether the decoder delivers all views as levels. Otherwise it is DALI, which delivers levels for forms that
    are not plain, and windows (`gpuload.decode.padding`) for padding that is not constant. device: None for the CPU.
    """

    name = "finish"

    def __init__(self, forms: Sequence[Form], stored: Stored, device: Device | None, *, levels: bool) -> None:
        self._forms, self._device, self._fills = tuple(forms), device, stored.mask_fills
        self._levels = levels
        place = "cpu" if device is None else device.name
        self._postprocess = [
            None if form.is_plain and not levels else Postprocess(form, place, stored.pixels) for form in forms
        ]

    @torch.no_grad()  # not inference_mode, whose tensors a training step cannot save for its backward pass
    def begin(self, job: Job) -> None:
        """As `Stage.begin`: torch's tensors on the device."""
        decoded, views = job.decoded, job.batch.views
        if self._device is not None:
            job.held.append(decoded)
            decoded = decoded.map(self._device.upload)
        pixels = [(images, *masks) for images, masks in zip(decoded.images, decoded.masks, strict=True)]
        if not self._levels:
            for number, (form, view) in enumerate(zip(self._forms, views, strict=True)):
                if form.padding_mode != "constant":
                    y, x = places_in_windows(view, form, job.batch)
                    pixels[number] = tuple(_gather(array, y, x) for array in pixels[number])
        job.decoded = decoded._replace(
            images=tuple(map(self._values, self._postprocess, self._forms, [images for images, *_ in pixels], views)),
            masks=tuple(self._warp(masks, view) for (_, *masks), view in zip(pixels, views, strict=True)),
        )

    def _values(self, postprocess: Postprocess | None, form: Form, pixels: Any, view: View) -> Any:
        if postprocess is None:
            return pixels
        images = as_tensor(pixels)
        count, channels, height, width = images.shape
        is_planar = form.layout == "NCHW"
        shape = (count, channels, height, width) if is_planar else (count, height, width, channels)
        out = torch.empty(shape, dtype=DTYPES[form.dtype], device=images.device)
        postprocess(images, out if is_planar else out.permute(0, 3, 1, 2), view)
        return out

    def _warp(self, masks: Sequence[Any], view: View) -> tuple[Any, ...]:
        if view.steps is None:
            return tuple(masks)
        return tuple(
            warp_masks(as_tensor(mask), view.steps, fill) for mask, fill in zip(masks, self._fills, strict=True)
        )


def _gather(pixels: Any, y: I64, x: I64) -> torch.Tensor:
    """The pixels at y (N, height) and x (N, width) of each image (N, ..., H, W)."""
    windows = as_tensor(pixels)
    between = (1,) * (windows.ndim - 3)
    rows, columns = (on_device(windows.device, places) for places in (y, x))
    rows = rows.view(len(rows), *between, -1, 1).expand(*windows.shape[:-2], -1, windows.shape[-1])
    taken = windows.gather(-2, rows)
    columns = columns.view(len(columns), *between, 1, -1).expand(*taken.shape[:-1], -1)
    return taken.gather(-1, columns)
