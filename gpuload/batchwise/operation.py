"""The base class for your own batch transform: draws in NumPy, and a kernel in torch."""

from abc import ABC, abstractmethod
from importlib import import_module
from typing import Any

import numpy as np

from gpuload.batchwise.transforms import BatchForm, FieldBatch, require_fields
from gpuload.checks import shown
from gpuload.draws import Draws
from gpuload.errors import ArgumentError
from gpuload.types import Array


class Operation(ABC):
    """A batch transform defined by `draw` and `kernel`, for `DaliIterator(batch_transforms=[…])`.

        class Fade(gpuload.batchwise.Operation):
            def draw(self, draws, height, width):
                return 0.5 + draws(0) / 2                       # (N,): a factor of each image

            def kernel(self, numbers, images):
                return images * numbers[:, None, None, None]    # float32 (N, 3, height, width) stays so

    uses: names of the fields that the kernel gets after the numbers and returns: one tensor, or a tuple in this order.

    It may also define `adds`, `softens` and `check` (see `BatchTransform`).
    """

    uses: tuple[str, ...] = ("image",)

    @abstractmethod
    def draw(self, draws: Draws, height: int, width: int) -> Array:
        """(N,) or (N, K) numbers of any dtype: the parameters for each of N samples.

        draws: `draws(k)` gives float64 (N,) in [0, 1), random number k of each sample, k in 0..255: a pure function of
            (seed, epoch, sample, k), on the host. height, width: of the images in pixels.
        """

    @abstractmethod
    def kernel(self, numbers: Any, *fields: Any) -> Any:
        """Returns the new fields, tensors of the same dtype and device; "image" also of the same shape.

        numbers: the result of `draw` on the device of the fields, float64 as float32. fields: those in `uses`: "image"
            is (N, 3, height, width), of float32, float16 or uint8. They may be changed in place. The kernel must not
            synchronise with the GPU, as `.item()` does.
        """

    def check(self, form: BatchForm) -> None:
        """Raises ArgumentError if the batch lacks a field that the kernel uses, or images."""
        require_fields(self, form, "image", *self.uses)

    def __call__(self, batch: FieldBatch) -> None:
        torch = import_module("torch")
        height, width = batch.form.image_size
        drawn = np.asarray(self.draw(batch.draws, height, width))
        count = len(batch.fields["image"])
        if drawn.ndim not in (1, 2) or len(drawn) != count:
            raise ArgumentError(
                f"{self}: draw returned numbers of shape {drawn.shape}, expected ({count},) or ({count}, K), for each "
                "sample"
            )
        before = [batch.fields[name] for name in self.uses]
        with torch.no_grad():
            given = [torch.from_dlpack(value) for value in before]
            numbers = torch.from_numpy(np.ascontiguousarray(drawn, np.float32 if drawn.dtype == np.float64 else None))
            device = given[0].device if given else numbers.device
            if device.type == "cuda":
                numbers = numbers.pin_memory().to(device, non_blocking=True)
            made = self.kernel(numbers, *given)
        after = made if isinstance(made, tuple) else (made,)
        if len(after) != len(given):
            raise ArgumentError(
                f"{self}: kernel returned {shown(made)}, expected {len(given)} tensors: {', '.join(self.uses)}"
            )
        for name, array, old, new in zip(self.uses, before, given, after, strict=True):
            if not isinstance(new, torch.Tensor) or new.dtype != old.dtype or new.device != old.device:
                what = f"{new.dtype} on {new.device}" if isinstance(new, torch.Tensor) else shown(new)
                raise ArgumentError(f"{self}: kernel returned {what} as {name!r}, expected {old.dtype} on {old.device}")
            if len(new) != count or (name == "image" and new.shape != old.shape):
                raise ArgumentError(
                    f"{self}: kernel returned {name!r} of shape {tuple(new.shape)}, expected {tuple(old.shape)}"
                )
            if new is not old:
                batch.fields[name] = _back(array, new)

    def __str__(self) -> str:
        return type(self).__name__


def _back(like: Any, tensor: Any) -> Any:
    """The tensor as an array of the library of `like`."""
    if isinstance(like, np.ndarray):
        return tensor.numpy()
    return import_module(type(like).__module__.partition(".")[0]).from_dlpack(tensor)
