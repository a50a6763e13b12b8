"""MixUp, CutMix, and a random choice among them: each sample mixed with another one, in images and labels.

A sample's partner is the one before it in its batch, and the last one for the first, as in torchvision.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.batchwise.blend import Mix, array_module, mix_images, symmetric_beta
from gpuload.batchwise.interface import BatchForm, FieldBatch, require_fields
from gpuload.checks import COUNT, LARGEST, PROBABILITY, check_fields, instance, number, optional, refuse, several
from gpuload.draws import CHOICE_DRAWS, EACH_CHOICE, DrawRange, Draws
from gpuload.errors import ArgumentError
from gpuload.types import F64

_ALPHA = number(1e-6, LARGEST, "a number in 1e-6..1e6; to mix nothing, remove the transform")


class _Mixer(ABC):
    """A batch transform that mixes each sample with the one before it, in images and labels."""

    softens: tuple[str, ...] = ("label",)
    num_classes: int | None

    @abstractmethod
    def plan(self, draws: Draws, height: int, width: int) -> Mix:
        """How the samples of a batch are mixed. draws: see `FieldBatch`. height, width: of the images in pixels."""

    def check(self, form: BatchForm) -> None:
        """Raises ArgumentError where a batch of this form cannot be mixed."""
        require_fields(self, form, "image", "label")
        if "label" not in form.class_fields:
            raise ArgumentError(f"{self}: makes soft labels out of class numbers; ask for 'label' by its name alone")
        if self.num_classes is None and form.num_classes is None:
            raise ArgumentError(f"{self}: the data set does not tell how many classes it has. Give num_classes")
        if (self.num_classes or math.inf) < (form.num_classes or 0):
            raise ArgumentError(f"{self}: the data set has {form.num_classes} classes; give as many, or none")

    def __call__(self, batch: FieldBatch) -> None:
        images: Any = batch.fields.get("image")
        labels: Any = batch.fields.get("label")
        if getattr(labels, "ndim", 1) != 1:
            raise ArgumentError(
                f"{self}: the labels are soft already, of shape {labels.shape}. Mix a batch once: "
                "RandomChoice([MixUp(), CutMix()]) draws one of them for each sample"
            )
        self.check(batch.form)
        mix = self.plan(batch.draws, *images.shape[-2:])
        mix_images(images, mix)
        classes = self.num_classes or batch.num_classes or 0
        # Where the data set names its classes, its labels are among them; asking a GPU would mean waiting for it.
        if batch.num_classes is None and len(labels) and int(labels.max()) >= classes:
            raise ArgumentError(f"{self}: a label is {int(labels.max())}; give num_classes of at least one more")
        batch.fields["label"] = _soft_labels(labels, mix.label, classes)


@dataclass(frozen=True)
class MixUp(_Mixer):
    """Each image and its label blended with the sample before it, as torchvision.transforms.v2.MixUp does.

    lambda, the share of its own, is drawn from Beta(alpha, alpha) for each sample (torchvision: for each batch).

    alpha: above 0; 0.2 is what the paper uses for ImageNet (Zhang et al., arXiv 1710.09412).
    p: probability that a sample is mixed.
    num_classes: by default as many as the data set has.

    The labels become float32 (N, num_classes). uint8 images are rounded. Other fields stay as they are: boxes and masks
    are those of the sample's own image. Of 224×224 pixels, ms of one CPU core an image (2026-11): float32 0.11, uint8
    0.15, float16 1.3, for which NumPy has no vector instructions.

    Raises:
        ArgumentError: a value out of its range.
    """

    alpha: float = 0.2
    p: float = 1.0
    num_classes: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, alpha=_ALPHA, p=PROBABILITY, num_classes=optional(COUNT))

    def plan(self, draws: Draws, height: int, width: int) -> Mix:
        """As `_Mixer.plan`."""
        # Number 0: whether; 1 and 2: lambda.
        mixed = draws(0) < self.p
        own = np.where(mixed, symmetric_beta(self.alpha, draws(1), draws(2)), 1.0)
        return Mix(mixed[:, None] * np.array([0, 0, height, width]), own, own)


@dataclass(frozen=True)
class CutMix(_Mixer):
    """A box of each image replaced by that part of the image before it, as torchvision.transforms.v2.CutMix does.

    The box has 1 - lambda of the image's area, lambda from Beta(alpha, alpha) for each sample (torchvision: for each
    batch); its centre is anywhere in the image, and what lies outside is cut off. The label's share is that of the
    pixels.

    alpha: above 0; the paper's is 1 (Yun et al., arXiv 1905.04899).
    p: probability that a sample is mixed.
    num_classes: by default as many as the data set has.

    The labels become float32 (N, num_classes); other fields stay as they are. Of 224×224 pixels, ms of one CPU core an
    image (2026-11): float32 0.045, uint8 0.023, float16 0.029.

    Raises:
        ArgumentError: a value out of its range.
    """

    alpha: float = 1.0
    p: float = 1.0
    num_classes: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, alpha=_ALPHA, p=PROBABILITY, num_classes=optional(COUNT))

    def plan(self, draws: Draws, height: int, width: int) -> Mix:
        """As `_Mixer.plan`."""
        # Number 0: whether; 1 and 2: lambda; 3 and 4: the centre, y and x.
        mixed = draws(0) < self.p
        own = symmetric_beta(self.alpha, draws(1), draws(2))
        size = np.array([height, width])
        middle = np.floor(np.stack([draws(3), draws(4)], 1) * size)
        half = np.trunc(0.5 * np.sqrt(1 - own)[:, None] * size)
        start, stop = np.maximum(middle - half, 0), np.minimum(middle + half, size)
        box = np.concatenate([start, stop], 1).astype(np.int64) * mixed[:, None]
        area = np.prod(box[:, 2:] - box[:, :2], axis=1)
        return Mix(box, np.zeros(len(box)), 1 - area / max(height * width, 1))


_CHOICES = several(instance("", MixUp, CutMix), "a list of MixUp and CutMix, such as [MixUp(), CutMix()]")


@dataclass(frozen=True)
class RandomChoice(_Mixer):
    """One of several for each sample: `RandomChoice([MixUp(), CutMix()])`.

    transforms: MixUp and CutMix, 1 to 31 of them. p: their probabilities, by default equal; they are divided by their
        sum.

    Raises:
        ArgumentError: no transforms, too many, or others than these; a transform that uses more than the 8 random
            numbers that each has; not one probability for each; transforms that differ in num_classes.
    """

    transforms: Sequence[MixUp | CutMix]
    p: Sequence[float] | None = None

    def __post_init__(self) -> None:
        check_fields(self, transforms=_CHOICES)
        count, most = len(self.transforms), (CHOICE_DRAWS.count - 1) // EACH_CHOICE
        if count > most:
            raise ArgumentError(f"RandomChoice(transforms): has {count}, expected at most {most}. Use fewer")
        shares = f"a probability for each of the {count} transforms, which are divided by their sum"
        check_fields(self, p=optional(several(number(0, LARGEST, ""), shares, count)))
        if self.p is not None and not sum(self.p) > 0:
            raise refuse("RandomChoice", "p", self.p, "at least one of them above 0")
        if len({one.num_classes for one in self.transforms}) > 1:
            raise ArgumentError(f"{self}: num_classes differ; give all the same")
        self.plan(_no_sample, 1, 1)  # a subclass that asks for too many random numbers is refused here

    @property
    def num_classes(self) -> int | None:  # type: ignore[override]
        """That of the transforms."""
        return self.transforms[0].num_classes

    def plan(self, draws: Draws, height: int, width: int) -> Mix:
        """As `_Mixer.plan`."""
        shares = np.cumsum(self.p if self.p is not None else np.ones(len(self.transforms)))
        # The last share is 1 whatever the rounding, and a draw is less.
        chosen = np.searchsorted(shares[:-1] / shares[-1], draws(0), side="right")
        plans = [
            one.plan(_numbers_of(one, index).of(draws), height, width) for index, one in enumerate(self.transforms)
        ]
        rows = np.arange(len(chosen))
        return Mix(*(np.stack(parts)[chosen, rows] for parts in zip(*plans, strict=True)))


def _numbers_of(transform: MixUp | CutMix, index: int) -> DrawRange:
    """The draw numbers of transform `index` of a RandomChoice."""
    return CHOICE_DRAWS.part(f"{type(transform).__name__} in a RandomChoice", 1 + index * EACH_CHOICE, EACH_CHOICE)


def _no_sample(number: int) -> F64:
    return np.empty(0)


def _soft_labels(labels: Any, share: F64, classes: int) -> Any:
    """float32 (N, classes). labels: int64 (N,). share: float64 (N,), of the own label."""
    xp = array_module(labels)
    soft, rows, own = xp.zeros((len(labels), classes), np.float32), xp.arange(len(labels)), xp.asarray(share)
    soft[rows, labels] = own
    soft[rows, xp.roll(labels, 1)] += 1 - own
    return soft
