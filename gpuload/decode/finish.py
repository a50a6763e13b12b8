"""The last stage of decoding, in torch on the device: padding, transforms, normalisation, erasing."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gpuload.augment import Form, View
from gpuload.decode.device import Device, as_tensor
from gpuload.decode.interface import Stored
from gpuload.decode.padding import places_in_windows
from gpuload.decode.runner import Job, Stage
from gpuload.decode.steps import is_compiled, transform, transform_into, warp_masks
from gpuload.fields.pixels import RGB, Pixels
from gpuload.fields.tree import take
from gpuload.transforms.apply import erase
from gpuload.transforms.noise import on_device
from gpuload.transforms.steps import no_steps
from gpuload.types import I64

# NumPy and DALI have no bfloat16: float32 until the batch is handed over.
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.float32, "uint8": torch.uint8}


def level_dtype(pixels: Pixels) -> str:
    """The dtype in which decoders deliver levels of these pixels."""
    return "uint8" if pixels.dtype == "uint8" else "float32"


class Postprocess:
    """Turns levels into the values of the batch, as a `Form` says.

    linear: whether, apart from transforms and erasing, the values are (level - mean) * factor. mean, factor: float32
    (C,). level_dtype: of the images: uint8, or float32 if their levels do not have 8 bits.
    """

    def __init__(self, form: Form, device: str, pixels: Pixels = RGB) -> None:
        form, peak, channels = form.fitted(pixels), pixels.peak, pixels.channels
        self.level_dtype = level_dtype(pixels)
        self._form, self._pixels = form, pixels
        self._half = form.dtype == "float16"
        as_is = form.dtype == "uint8" or form.normalize == "levels"
        self.linear = as_is or (form.normalize == "constants" and not self._half)
        self.mean = np.zeros(channels, np.float32) if as_is else np.array(form.mean, np.float32) * peak
        self.factor = (
            np.ones(channels, np.float32) if as_is else np.float32(1) / (np.array(form.std, np.float32) * peak)
        )
        self._mean = torch.tensor(form.mean, device=device).view(-1, 1, 1) * peak
        self._factor = 1 / (torch.tensor(form.std, device=device).view(-1, 1, 1) * peak)

    def is_linear(self, view: View) -> bool:
        """Whether its pixels need only a subtraction, a multiplication and erasing."""
        return view.steps is None and self.linear

    def __call__(self, images: torch.Tensor, out: torch.Tensor, view: View) -> None:
        """images: of `level_dtype` (n, C, height, width), which may be changed. out: the same shape, of the batch's
        dtype. view: of these."""
        if view.crops.sizes is not None and view.steps is not None:  # without the padding
            for row in range(len(images)):
                height, width = view.own_size(row)
                own = images[row : row + 1, :, :height, :width]
                own.copy_(transform(own, take(view.steps, slice(row, row + 1)), self._pixels))
            view = view.without_transforms()
        if self.linear and is_compiled(images):
            steps = no_steps(len(images)) if view.steps is None else view.steps
            transform_into(images, steps, out, self.mean, self.factor)
            self.erase(out, view)
            return
        if view.steps is not None:
            images = transform(images, view.steps, self._pixels)
        if self._form.dtype == "uint8":
            out.copy_(images)
        elif self._form.normalize == "image":
            out.copy_(_standardise(images))
        elif self._half:
            out.copy_(images.float().sub_(self._mean).mul_(self._factor))
        else:
            out.copy_(images).sub_(self._mean).mul_(self._factor)
        self.erase(out, view)

    def erase(self, out: torch.Tensor, view: View) -> None:
        """Erases the view's rectangles, in otherwise complete values."""
        for erased in view.erased or ():
            if out.shape[1] != 3:  # one number for all channels
                erased = erased._replace(value=erased.value[:, :1], noise=erased.noise[:, :1])
            as_is = self._form.dtype == "uint8"
            erase(out, erased.in_levels(self._form.mean, self._form.std) if as_is else erased)


def _standardise(images: torch.Tensor) -> torch.Tensor:
    """TensorFlow's `per_image_standardization`: (x - mean) / max(std, 1 / sqrt(values in the image))."""
    values = images.float().flatten(1)
    std, mean = torch.std_mean(values, dim=1, correction=0, keepdim=True)
    return values.sub_(mean).div_(std.clamp_(min=values.shape[1] ** -0.5)).view(images.shape)


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
