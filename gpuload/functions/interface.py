"""What a function of the user's is, and what is known of its samples beforehand."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

Sample = dict[str, Any]  # what `gpuload.functions` describes


class SampleFunction(Protocol):
    """A function of one sample, called in several threads at a time, or in processes."""

    def __call__(self, sample: Sample, rng: np.random.Generator, /) -> Any:
        """The new image, (height, width, channels) of the old one's type, or a dict of the entries of `sample` that it
        changed."""


class Entries(NamedTuple):
    """The entries of a sample beside its image, key and index, by the kind of their fields.

    boxes: names of fields of boxes; the class numbers of "boxes" are "boxes_class". masks: of mask fields. keypoints:
    of fields of keypoints, and how many points an instance has.
    """

    boxes: tuple[str, ...] = ()
    masks: tuple[str, ...] = ()
    keypoints: tuple[tuple[str, int], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.places, *map(class_entry, self.boxes))

    @property
    def places(self) -> tuple[str, ...]:
        """Those that are about places in the image, which change with its size."""
        return (*self.boxes, *self.masks, *(name for name, _ in self.keypoints))


def class_entry(boxes: str) -> str:
    """The entry with the class numbers of a field of boxes."""
    return f"{boxes}_class"


def name_of(function: Any) -> str:
    """How messages call a function."""
    return getattr(function, "__qualname__", None) or type(function).__name__


class WrongResultError(Exception):
    """A function returned what cannot be used; the message says what, and what was expected."""


class CallFailedError(Exception):
    """What a function raised in another process, where the exception itself cannot be had; the message is its own."""


Returned = Mapping[str, Any]  # a complete sample, checked
