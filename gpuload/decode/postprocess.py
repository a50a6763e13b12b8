"""The last step of an image, in torch on the device: transforms, normalisation, erasing."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from gpuload.augment import Form, View
from gpuload.decode.interface import Decoded, Decoder, Stored
from gpuload.fields.pixels import RGB, Pixels
from gpuload.read.batch import Batch
from gpuload.transforms.apply import apply_steps, erase, warp_masks

# NumPy and DALI have no bfloat16: float32 until the batch is handed over.
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.float32, "uint8": torch.uint8}


def level_dtype(pixels: Pixels) -> str:
    """In which type decoders give the levels of these pixels."""
    return "uint8" if pixels.dtype == "uint8" else "float32"


class Postprocess:
    """Turns images of levels into the values of the batch, as a `Form` says.

    linear: whether, apart from transforms and erasing, the values are (level - mean) * factor. mean, factor: float32
    (C,). level_dtype: of the images: uint8, or float32 where their levels are no 8 bits.
    """

    def __init__(self, form: Form, device: str, pixels: Pixels = RGB) -> None:
        form, peak, channels = form.fitted(pixels), pixels.peak, pixels.channels
        self.level_dtype = level_dtype(pixels)
        self._form, self._pixels = form, pixels
        self._half = form.dtype == "float16"
        as_is = form.dtype == "uint8" or form.normalize == "levels"
        self.linear = as_is or (form.normalize == "constants" and not self._half)
        self.mean = np.zeros(channels, np.float32) if as_is else np.array(form.mean, np.float32) * peak
        self.factor = np.ones(channels, np.float32) if as_is else 1 / (np.array(form.std, np.float32) * peak)
        self._mean = torch.tensor(form.mean, device=device).view(-1, 1, 1) * peak
        self._factor = 1 / (torch.tensor(form.std, device=device).view(-1, 1, 1) * peak)

    def is_linear(self, view: View) -> bool:
        """Whether its pixels only need one subtraction and one multiplication, and erasing."""
        return view.steps is None and self.linear

    def __call__(self, images: torch.Tensor, out: torch.Tensor, view: View) -> None:
        """images: of `level_dtype` (n, C, height, width). out: the same shape, of the batch's dtype. view: of these."""
        if view.steps is not None:
            images = apply_steps(images, view.steps, self._pixels)
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
        """Erases what the view erases, in values that are complete otherwise."""
        if (erased := view.erased) is not None:
            if out.shape[1] != 3:  # one number for all channels
                erased = erased._replace(value=erased.value[:, :1], noise=erased.noise[:, :1])
            as_is = self._form.dtype == "uint8"
            erase(out, erased.in_levels(self._form.mean, self._form.std) if as_is else erased)


def as_tensor(array: Any) -> torch.Tensor:
    """A decoder's array as a tensor, without a copy.

    A tensor stays itself: torch exports those of a GPU only while that is the current one.
    """
    if isinstance(array, torch.Tensor):
        return array
    tensor: torch.Tensor = (torch.from_numpy if isinstance(array, np.ndarray) else torch.utils.dlpack.from_dlpack)(
        array
    )
    return tensor


def _standardise(images: torch.Tensor) -> torch.Tensor:
    """TensorFlow's `per_image_standardization`: (x - mean) / max(std, 1 / sqrt(values in the image))."""
    values = images.float().flatten(1)
    std, mean = torch.std_mean(values, dim=1, correction=0, keepdim=True)
    return values.sub_(mean).div_(std.clamp_(min=values.shape[1] ** -0.5)).view(images.shape)


class PostprocessingDecoder:
    """Postprocesses the batches of a decoder, which delivers the views of forms that are not plain as levels
    (N, C, height, width).

    levels: it delivers all views so.
    """

    def __init__(
        self,
        decoder: Decoder,
        forms: tuple[Form, ...],
        stored: Stored,
        device_id: int | None,
        *,
        levels: bool = False,
    ) -> None:
        self._decoder, self._mask_fills = decoder, stored.mask_fills
        self._forms = forms
        device = "cpu" if device_id is None else f"cuda:{device_id}"
        self._postprocess = [
            None if form.is_plain and not levels else Postprocess(form, device, stored.pixels) for form in forms
        ]

    def decode(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, Decoded]]:
        """As `gpuload.decode.interface.Decoder`."""
        for batch, decoded in self._decoder.decode(batches):
            parts = zip(self._postprocess, self._forms, decoded.images, batch.views, strict=True)
            images = tuple(
                pixels if postprocess is None else _postprocess_view(postprocess, form, pixels, view)
                for postprocess, form, pixels, view in parts
            )
            masks = tuple(map(self._warp, decoded.masks, batch.views))
            yield batch, decoded._replace(images=images, masks=masks)

    def close(self) -> None:
        """Stops the threads and frees the memory; batches handed out stay valid."""
        self._decoder.close()

    @torch.no_grad()
    def _warp(self, masks: tuple[Any, ...], view: View) -> tuple[Any, ...]:
        if view.steps is None:
            return masks
        return tuple(
            warp_masks(as_tensor(mask), view.steps, fill) for mask, fill in zip(masks, self._mask_fills, strict=True)
        )


@torch.no_grad()  # not inference_mode, whose tensors a training step cannot save for its backward pass
def _postprocess_view(postprocess: Postprocess, form: Form, pixels: Any, view: View) -> torch.Tensor:
    images = as_tensor(pixels)
    count, channels, height, width = images.shape
    if form.layout == "NCHW":
        out = batch = torch.empty(images.shape, dtype=DTYPES[form.dtype], device=images.device)
    else:
        out = torch.empty((count, height, width, channels), dtype=DTYPES[form.dtype], device=images.device)
        batch = out.permute(0, 3, 1, 2)
    postprocess(images, batch, view)
    return out
