"""Levels to the values of a batch: transforms, normalisation, erasing; by kernels on a CPU, else in torch."""

from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from itertools import groupby
from typing import Any

import numpy as np

from gpuload.augment import Form, View
from gpuload.decode.native.transforms import run
from gpuload.fields.images import RGB, Pixels
from gpuload.fields.rows import take
from gpuload.machine.installed import require
from gpuload.transforms.ops import FIRST_OWN
from gpuload.transforms.steps import Steps, no_steps
from gpuload.transforms.warps import mask_steps
from gpuload.types import F32


def has_own(steps: Steps) -> bool:
    """Whether one of the steps belongs to a user's transform."""
    return bool((steps.ops >= FIRST_OWN).any())


def runs_kernels(images: Any) -> bool:
    """Whether the package's kernels can execute steps on images, else torch does.

    Args:
        images: True for uint8 in a NumPy array, or in a tensor in host memory.
    """
    in_memory = isinstance(images, np.ndarray) or images.device.type == "cpu"
    return in_memory and str(images.dtype).rpartition(".")[2] == "uint8"


def transform(images: Any, steps: Steps, pixels: Pixels = RGB) -> Any:
    """As `gpuload.transforms.apply.apply_steps`, on any device, of a tensor or a NumPy array. Where compiled code
    executes them, kernels of the user's get images one by one."""
    if not runs_kernels(images):
        return _in_torch(images, steps, pixels)
    if not steps.ops.any():
        return images
    transformed = np.empty(images.shape, np.uint8)
    channels = images.shape[1]
    transform_into(
        images,
        steps,
        transformed,
        np.zeros(channels, np.float32),
        np.ones(channels, np.float32),
        pixels,
    )
    if isinstance(images, np.ndarray):
        return transformed
    return import_module("torch").from_numpy(transformed)


def transform_into(
    images: Any, steps: Steps, out: Any, mean: F32, factor: F32, pixels: Pixels = RGB
) -> None:
    """The same for those that `runs_kernels` says, as values: (level - mean) * factor.

    Args:
        images: uint8 (N, C, height, width).
        steps: Of the N images.
        out: uint8 or float32 (N, C, height, width), contiguous so or with channels last; the values are written to it.
        mean: float32 (C,), in levels.
        factor: float32 (C,).
        pixels: Of the images.
    """
    *first, last = _parts(steps)
    if has_own(last):
        first = [*first, last]
        last = Steps(steps.ops[:, :0], steps.args[:, :0])
    images = np.ascontiguousarray(images)
    for part in first:
        if has_own(part):
            rows = [slice(row, row + 1) for row in range(len(images))]
            images = np.concatenate(
                [_in_torch(images[row], take(part, row), pixels) for row in rows]
            )
        else:
            images = transform(images, part, pixels)
    run(np.ascontiguousarray(images), last, np.asarray(out), mean, factor)


def warp_masks(masks: Any, steps: Steps, fill: int) -> Any:
    """Masks after the geometric steps of their images, by nearest pixel: uint8 (n, h, w).

    Args:
        masks: uint8 (n, h, w), NumPy or torch.
        steps: Of the n images.
        fill: The class of what comes from outside.
    """
    return transform(masks[:, None], mask_steps(steps, fill))[:, 0]


def _in_torch(images: Any, steps: Steps, pixels: Pixels) -> Any:
    apply_steps = import_module("gpuload.transforms.apply").apply_steps
    if isinstance(images, np.ndarray):
        return apply_steps(
            import_module("torch").from_numpy(images), steps, pixels
        ).numpy()
    return apply_steps(images, steps, pixels)


def _parts(steps: Steps) -> Iterator[Steps]:
    """The steps in order, divided into gpuload's and the user's; at least one part."""
    is_own = [bool((column >= FIRST_OWN).any()) for column in steps.ops.T]
    begin = 0
    for _, group in groupby(is_own or [False]):
        end = begin + len(list(group))
        yield steps.part(begin, end)
        begin = end


def level_dtype(pixels: Pixels) -> str:
    """The dtype in which decoders deliver levels of these pixels."""
    return "uint8" if pixels.dtype == "uint8" else "float32"


class Postprocess:
    """Turns levels into the values of the batch, as a `Form` says. Both are NumPy arrays, or tensors on the device.

    Args:
        form: Of the view.
        device: Where they are: a torch device, or its name.
        pixels: What the set stores: its channels and the range of their values.

    Attributes:
        level_dtype: Of the images: uint8, or float32 if their levels do not have 8 bits.
        linear: Whether, apart from transforms and erasing, the values are (level - mean) * factor.
        mean: float32 (C,), subtracted from the levels.
        factor: float32 (C,), by which the difference is multiplied.

    Raises:
        MissingPackageError: torch is not installed, and something that the form asks for needs it.
    """

    def __init__(self, form: Form, device: str, pixels: Pixels = RGB) -> None:
        form = form.fitted(pixels)
        peak = pixels.peak
        channels = pixels.channels
        self.level_dtype = level_dtype(pixels)
        self._form = form
        self._pixels = pixels
        self._device = device
        self._half = form.dtype == "float16"
        by_image = form.normalize == "image" and form.dtype != "uint8"
        warps = form.transforms and self.level_dtype != "uint8"
        needs = {
            "normalize='image'": by_image,
            "RandomErasing": form.erases,
            "dtype='float16'": self._half,
        }
        if names := [
            name
            for name, needed in {**needs, f"transforms of {pixels.mode}": warps}.items()
            if needed
        ]:
            require(" and ".join(names), "torch")
        as_is = form.dtype == "uint8" or form.normalize == "levels"
        self.linear = as_is or (form.normalize == "constants" and not self._half)
        self.mean = (
            np.zeros(channels, np.float32)
            if as_is
            else np.array(form.mean, np.float32) * peak
        )
        self.factor = (
            np.ones(channels, np.float32)
            if as_is
            else np.float32(1) / (np.array(form.std, np.float32) * peak)
        )

    def is_linear(self, view: View) -> bool:
        """Whether its pixels need only a subtraction, a multiplication and erasing."""
        return view.steps is None and self.linear

    def __call__(self, images: Any, out: Any, view: View) -> None:
        """Makes the values of images.

        Args:
            images: Of `level_dtype` (n, C, height, width), which may be changed.
            out: The same shape, of the batch's dtype.
            view: Of these.
        """
        if view.crops.sizes is not None and view.steps is not None:
            # Without the padding.
            for row in range(len(images)):
                height, width = view.own_size(row)
                shown = images[row : row + 1, :, :height, :width]
                shown[:] = transform(
                    shown, take(view.steps, slice(row, row + 1)), self._pixels
                )
            view = view.without_transforms()
        if self.linear and runs_kernels(images):
            steps = no_steps(len(images)) if view.steps is None else view.steps
            transform_into(images, steps, out, self.mean, self.factor, self._pixels)
        else:
            self._fill(images, out, view)
        self.erase(out, view)

    def _fill(self, images: Any, out: Any, view: View) -> None:
        """The same in torch, without erasing."""
        torch = import_module("torch")
        as_tensor = import_module("gpuload.decode.device").as_tensor
        with torch.no_grad():
            if view.steps is not None:
                images = transform(images, view.steps, self._pixels)
            images = as_tensor(images)
            out = as_tensor(out)
            if self._form.dtype == "uint8":
                out.copy_(images)
            elif self._form.normalize == "image":
                out.copy_(_standardise(images))
            else:
                mean, factor = self._constants
                values = images.float() if self._half else out.copy_(images)
                values.sub_(mean).mul_(factor)
                if self._half:
                    out.copy_(values)

    @cached_property
    def _constants(self) -> tuple[Any, Any]:
        """mean and factor on the device, (C, 1, 1)."""
        device = import_module("torch").device(self._device)
        on_device = import_module("gpuload.transforms.apply").on_device
        mean = on_device(device, self.mean)
        factor = on_device(device, self.factor)
        return mean.view(-1, 1, 1), factor.view(-1, 1, 1)

    def erase(self, out: Any, view: View) -> None:
        """Erases the view's rectangles, in otherwise complete values."""
        for erased in view.erased or ():
            if out.shape[1] != 3:  # one number for all channels
                erased = erased._replace(
                    value=erased.value[:, :1], noise=erased.noise[:, :1]
                )
            as_is = self._form.dtype == "uint8"
            regions = (
                erased.in_levels(self._form.mean, self._form.std) if as_is else erased
            )
            import_module("gpuload.transforms.apply").erase(
                import_module("gpuload.decode.device").as_tensor(out), regions
            )


def _standardise(images: Any) -> Any:
    """TensorFlow's `per_image_standardization`, of a tensor: (x - mean) / max(std, 1 / sqrt(values in the image))."""
    values = images.float().flatten(1)
    std, mean = import_module("torch").std_mean(
        values, dim=1, correction=0, keepdim=True
    )
    return (
        values.sub_(mean)
        .div_(std.clamp_(min=values.shape[1] ** -0.5))
        .view(images.shape)
    )
