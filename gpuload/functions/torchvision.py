"""Transforms of torchvision's v2 as functions of a sample."""

from importlib import import_module
from typing import Any

import numpy as np

from gpuload.checks import function
from gpuload.errors import ArgumentError
from gpuload.functions.interface import Sample, class_entry


class Torchvision:
    """A transform of `torchvision.transforms.v2`, for `transforms.Function`, which makes this of it.

    It gets the image as a `tv_tensors.Image` (channels × height × width, of the set's type), and where the loader's
    fields ask for them, boxes as `tv_tensors.BoundingBoxes`, masks as `tv_tensors.Mask` and class numbers, in a dict,
    as such transforms take them. `v2.SanitizeBoundingBoxes` at the end drops boxes of which nothing is left. Its random
    numbers, those that torch's functions draw on the CPU, are those of the sample, whichever thread calls it.

    transform: must keep the image's type: conversion and normalisation are `Augment`'s. boxes, mask: names of the
    fields that it gets.

    Raises:
        ArgumentError: something that cannot be called.
    """

    def __init__(self, transform: Any, boxes: str = "boxes", mask: str = "mask") -> None:
        try:
            self._transform = function("").read(transform)
        except TypeError:
            raise ArgumentError(
                f"Torchvision({type(transform).__name__}): expected a transform, such as v2.Compose([...])"
            ) from None
        self._boxes, self._mask = boxes, mask

    def __call__(self, sample: Sample, rng: np.random.Generator) -> dict[str, Any]:
        """As `SampleFunction`."""
        torch, tv = import_module("torch"), import_module("torchvision.tv_tensors")
        seeded = import_module("gpuload.functions.torch_draws").seeded
        boxes, mask, image = self._boxes, self._mask, sample["image"]
        given: dict[str, Any] = {"image": tv.Image(torch.from_numpy(image).permute(2, 0, 1))}
        if mask in sample:
            given["mask"] = tv.Mask(torch.from_numpy(sample[mask]))
        if boxes in sample:
            corners = torch.from_numpy(sample[boxes])
            given["boxes"] = tv.BoundingBoxes(corners, format="XYXY", canvas_size=image.shape[:2])
            given["labels"] = torch.from_numpy(sample[class_entry(boxes)])
        with seeded(int(rng.integers(1 << 63))):
            found = self._transform(given) if len(given) > 1 else {"image": self._transform(given["image"])}
        moved = found["image"]
        if not isinstance(moved, torch.Tensor) or moved.dtype != given["image"].dtype:
            what = f"{moved.dtype}" if isinstance(moved, torch.Tensor) else type(moved).__name__
            raise ValueError(
                f"the transform made {what} of the image, expected a {image.dtype} tensor: leave ToDtype, ToTensor and "
                "Normalize to Augment"
            )
        result: dict[str, Any] = {"image": np.ascontiguousarray(moved.permute(1, 2, 0).numpy())}
        if mask in sample:
            result[mask] = np.ascontiguousarray(found["mask"].numpy())
        if boxes in sample:
            result |= {boxes: found["boxes"].numpy(), class_entry(boxes): found["labels"].numpy()}
        return result

    def __repr__(self) -> str:
        return f"Torchvision({type(self._transform).__name__})"
