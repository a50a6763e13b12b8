"""Completes the crops whose padding shows the image's own pixels: the edge's, or the image mirrored."""

from collections.abc import Iterator
from typing import Any

import torch

from gpuload.augment import Form
from gpuload.decode.dali.windows import places_in_windows
from gpuload.decode.interface import Decoded, Decoder
from gpuload.decode.postprocess import as_tensor
from gpuload.read.batch import Batch
from gpuload.transforms.noise import on_device
from gpuload.types import I64


class PaddingDecoder:
    """Completes the batches of a `DaliDecoder`, which delivers windows for the forms whose padding is not constant."""

    def __init__(self, decoder: Decoder, forms: tuple[Form, ...]) -> None:
        self._decoder, self._forms = decoder, forms

    def decode(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, Decoded]]:
        """As `gpuload.decode.interface.Decoder`."""
        for batch, decoded in self._decoder.decode(batches):
            images, masks = list(decoded.images), list(decoded.masks)
            for number, (form, view) in enumerate(zip(self._forms, batch.views, strict=True)):
                if form.padding_mode != "constant":
                    y, x = places_in_windows(view, form, batch)
                    images[number] = _gather(images[number], y, x)
                    masks[number] = tuple(_gather(mask, y, x) for mask in masks[number])
            yield batch, decoded._replace(images=tuple(images), masks=tuple(masks))

    def close(self) -> None:
        """As `gpuload.decode.interface.Decoder`."""
        self._decoder.close()


@torch.no_grad()
def _gather(pixels: Any, y: I64, x: I64) -> torch.Tensor:
    """The pixels at y (N, height) and x (N, width) of each image (N, ..., H, W)."""
    windows = as_tensor(pixels)
    between = (1,) * (windows.ndim - 3)
    rows, columns = (on_device(windows.device, places) for places in (y, x))
    rows = rows.view(len(rows), *between, -1, 1).expand(*windows.shape[:-2], -1, windows.shape[-1])
    taken = windows.gather(-2, rows)
    columns = columns.view(len(columns), *between, 1, -1).expand(*taken.shape[:-1], -1)
    return taken.gather(-1, columns)
