"""MixUp, CutMix, timm's of both, and a random choice: each sample is mixed with another, images and labels.

A sample's partner is the previous one in its batch (the last one for the first), as in torchvision; for `TimmMixup` the
n-th sample's partner is the n-th from the end.

The arithmetic is written once for NumPy and CuPy arrays. CuPy is not imported here: if an array is CuPy's, it already
has been.
"""

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from gpuload import checks
from gpuload.batchwise.transforms import BatchForm, FieldBatch, require_fields
from gpuload.checks import (
    PROBABILITY,
    check_fields,
    choice,
    instance,
    number,
    optional,
    settings,
    several,
)
from gpuload.draws import CHOICE_DRAWS, EACH_CHOICE, Draws, choose
from gpuload.errors import ArgumentError
from gpuload.types import F64, I64

# Images mixed at a time: one with NumPy, so that it stays in the CPU's caches. On a GPU each kernel launch costs time,
# while the copy of a block must not fill the memory.
_BLOCK = {"numpy": 1, "cupy": 64}
_ALPHA = number(
    1e-6, checks.LARGEST, "a number in 1e-6..1e6; to mix nothing, remove the transform"
)

_CLASSES = optional(checks.COUNT)
_ALPHA_OR_0 = number(0, checks.LARGEST, "a number from 0 on; 0 is never")


class Mix(NamedTuple):
    """How each of N images is mixed with its partner.

    Attributes:
        box: int64 (N, 4), top, left, bottom, right; pixels outside are the image's own.
        in_box: float64 (N,), share of the image inside the box; the rest is the partner's.
        label: float64 (N,), share of its own label.
    """

    box: I64
    in_box: F64
    label: F64


class Mixer(ABC):
    """A batch transform that mixes images and labels of each sample with those of another.

    Attributes:
        mirrored: The partner of the n-th sample is the n-th from the end, otherwise the previous one.
        label_smoothing: Share of each label spread evenly over all classes.
    """

    softens: tuple[str, ...] = ("label",)
    mirrored = False
    label_smoothing: float = 0.0
    num_classes: int | None

    @abstractmethod
    def plan(self, draws: Draws, height: int, width: int) -> Mix:
        """How the samples of a batch are mixed.

        Args:
            draws: See `FieldBatch`.
            height: Of the images in pixels.
            width: Of the images in pixels.
        """

    def check(self, form: BatchForm) -> None:
        """Raises ArgumentError if a batch of this form cannot be mixed."""
        require_fields(self, form, "image", "label")
        if "label" not in form.class_fields:
            raise ArgumentError(
                f"{self}: makes soft labels out of class numbers; ask for 'label' by its name alone, and mix a batch "
                "once: RandomMixer([MixUp(), CutMix()]) draws one of them for each sample"
            )
        if self.num_classes is None and form.num_classes is None:
            raise ArgumentError(
                f"{self}: the data set's number of classes is unknown. Give num_classes"
            )
        if (self.num_classes or math.inf) < (form.num_classes or 0):
            raise ArgumentError(
                f"{self}: the data set has {form.num_classes} classes; give as many, or none"
            )

    def __call__(self, batch: FieldBatch) -> None:
        self.check(batch.form)
        images = batch.fields["image"]
        labels = batch.fields["label"]
        ones = np.ones(len(labels))
        mix = Mix(np.zeros((len(labels), 4), np.int64), ones, ones)
        if batch.mixes:
            mix = self.plan(batch.draws, *images.shape[-2:])
            if self.mirrored:
                mix_mirrored(images, mix)
            else:
                mix_images(images, mix)
        classes = self.num_classes or batch.num_classes or 0
        # Where the data set names its classes, the loader has compared its labels with them (`strays`); asking a GPU
        # again would mean waiting for it.
        if batch.num_classes is None or isinstance(labels, np.ndarray):
            self._check_labels(labels, classes)
        partners = (
            labels[::-1] if self.mirrored else array_module(labels).roll(labels, 1)
        )
        batch.fields["label"] = _soft_labels(
            labels, partners, mix.label, classes, self.label_smoothing
        )

    def strays(self, labels: I64, num_classes: int | None) -> I64:
        """The rows of the labels that are no class and thus cannot be mixed, in ascending order.

        Args:
            labels: int64 (N,), class numbers.
            num_classes: As `FieldBatch.num_classes`.
        """
        classes = self.num_classes or num_classes or 0
        rows: I64 = np.flatnonzero((labels < 0) | (labels >= classes))
        return rows

    def _check_labels(self, labels: Any, classes: int) -> None:
        """Raises ArgumentError for a label that is none of the classes."""
        if not len(labels):
            return
        lowest = int(labels.min())
        highest = int(labels.max())
        if highest >= classes:
            raise ArgumentError(
                f"{self}: a label is {highest}; give num_classes of at least one more"
            )
        if lowest < 0:
            raise ArgumentError(
                f"{self}: a label is {lowest}, expected a class in 0..{classes - 1}. Leave out samples without a class"
            )


@settings
class MixUp(Mixer):
    """Blends each image and its label with the previous sample, as torchvision.transforms.v2.MixUp does.

    lambda, the sample's own share, is drawn from Beta(alpha, alpha) for each sample (torchvision: for each batch).

    Args:
        alpha: Above 0; the paper uses 0.2 for ImageNet (Zhang et al., arXiv 1710.09412).
        p: Probability that a sample is mixed.
        num_classes: By default as many as the data set has.

    The labels become float32 (N, num_classes). uint8 images are rounded. Other fields do not change: boxes and masks
    remain those of the sample's own image. At 224×224 pixels, an image takes one CPU core (2026-11) 0.11 ms for
    float32, 0.15 ms for uint8 and 1.3 ms for float16, for which NumPy has no vector instructions.

    Raises:
        ArgumentError: a value out of its range.
    """

    alpha: Annotated[float, _ALPHA] = 0.2
    p: Annotated[float, PROBABILITY] = 1.0
    num_classes: Annotated[int | None, _CLASSES] = None

    def plan(self, draws: Draws, height: int, width: int) -> Mix:
        """As `Mixer.plan`."""
        # Number 0: whether; 1 and 2: lambda.
        mixed = draws(0) < self.p
        share = np.where(mixed, symmetric_beta(self.alpha, draws(1), draws(2)), 1.0)
        return Mix(mixed[:, None] * np.array([0, 0, height, width]), share, share)


@settings
class CutMix(Mixer):
    """Replaces a box of each image with that part of the previous image, as torchvision.transforms.v2.CutMix does.

    The box has 1 - lambda of the image's area, with lambda from Beta(alpha, alpha) for each sample (torchvision: for
    each batch). Its centre is anywhere in the image, and the box is clipped to the image. The label's share is that of
    the pixels.

    Args:
        alpha: Above 0; the paper's is 1 (Yun et al., arXiv 1905.04899).
        p: Probability that a sample is mixed.
        num_classes: By default as many as the data set has.

    The labels become float32 (N, num_classes); other fields do not change. At 224×224 pixels, an image takes one CPU
    core (2026-11) 0.045 ms for float32, 0.023 ms for uint8 and 0.029 ms for float16.

    Raises:
        ArgumentError: a value out of its range.
    """

    alpha: Annotated[float, _ALPHA] = 1.0
    p: Annotated[float, PROBABILITY] = 1.0
    num_classes: Annotated[int | None, _CLASSES] = None

    def plan(self, draws: Draws, height: int, width: int) -> Mix:
        """As `Mixer.plan`."""
        # Number 0: whether; 1 and 2: lambda; 3 and 4: the centre, y and x.
        mixed = draws(0) < self.p
        share = symmetric_beta(self.alpha, draws(1), draws(2))
        size = np.array([height, width])
        middle = np.floor(np.stack([draws(3), draws(4)], 1) * size)
        before, behind = self.reach(np.sqrt(1 - share)[:, None] * size)
        start = np.maximum(middle - before, 0)
        stop = np.minimum(middle + behind, size)
        box = np.concatenate([start, stop], 1).astype(np.int64) * mixed[:, None]
        area = np.prod(box[:, 2:] - box[:, :2], axis=1)
        return Mix(box, np.zeros(len(box)), 1 - area / max(height * width, 1))

    def reach(self, sides: F64) -> tuple[F64, F64]:
        """The extent of boxes of these sides before and after their centre."""
        half: F64 = np.trunc(sides / 2)
        return half, half


_CHOICES = several(
    instance("", MixUp, CutMix),
    "a list of MixUp and CutMix, such as [MixUp(), CutMix()]",
)


@settings
class RandomMixer(Mixer):
    """Applies one of several mixers to each sample: `RandomMixer([MixUp(), CutMix()])`.

    torchvision's RandomChoice applies one to a whole batch.

    Args:
        transforms: 1 to 31 of MixUp and CutMix.
        p: Their probabilities, by default equal; they are divided by their sum.

    Raises:
        ArgumentError: no transforms, too many, or other ones; a wrong number of probabilities; transforms with
            different num_classes. While reading: a transform that uses more than its 8 random numbers.
    """

    transforms: Annotated[Sequence[MixUp | CutMix], _CHOICES]
    p: Sequence[float] | None = None

    def __post_init__(self) -> None:
        count = len(self.transforms)
        most = (CHOICE_DRAWS.count - 1) // EACH_CHOICE
        if count > most:
            raise ArgumentError(
                f"RandomMixer(transforms): has {count}, expected at most {most}. Use fewer"
            )
        shares = f"a probability for each of the {count} transforms, which are divided by their sum"
        check_fields(
            self, p=optional(several(number(0, checks.LARGEST, ""), shares, count))
        )
        if self.p is not None and not sum(self.p) > 0:
            raise checks.refuse(
                "RandomMixer", "p", self.p, "at least one of them above 0"
            )
        if len({transform.num_classes for transform in self.transforms}) > 1:
            raise ArgumentError(f"{self}: num_classes differ; give all the same")

    @property
    def num_classes(self) -> int | None:  # type: ignore[override]  # no field here
        """The number of classes of the transforms."""
        return self.transforms[0].num_classes

    def plan(self, draws: Draws, height: int, width: int) -> Mix:
        """As `Mixer.plan`."""
        chosen = choose(draws(0), len(self.transforms), self.p)
        numbers = [
            CHOICE_DRAWS.part(
                f"{type(transform).__name__} in a RandomMixer",
                1 + place * EACH_CHOICE,
                EACH_CHOICE,
            )
            for place, transform in enumerate(self.transforms)
        ]
        plans = [
            transform.plan(part.of(draws), height, width)
            for transform, part in zip(self.transforms, numbers, strict=True)
        ]
        rows = np.arange(len(chosen))
        return Mix(
            *(np.stack(parts)[chosen, rows] for parts in zip(*plans, strict=True))
        )


def _soft_labels(
    labels: Any, partners: Any, share: F64, classes: int, smoothing: float
) -> Any:
    """float32 (N, classes), NaN in rows whose label is no class.

    Args:
        labels: int64 (N,), of the samples.
        partners: int64 (N,), of those that they are mixed with.
        share: float64 (N,), of the own label.
        classes: Number of classes.
        smoothing: As `Mixer.label_smoothing`.
    """
    xp = array_module(labels)
    is_stray = (
        (labels < 0) | (labels >= classes) | (partners < 0) | (partners >= classes)
    )
    rows = xp.arange(len(labels))
    weight = xp.asarray(share * (1 - smoothing))
    soft = xp.full((len(labels), classes), smoothing / classes, np.float32)
    soft[rows, labels % classes] += weight
    soft[rows, partners % classes] += (1 - smoothing) - weight
    # On a GPU, where a transform of the user's has changed labels: no message without waiting.
    soft[is_stray] = np.nan
    return soft


def array_module(array: Any) -> Any:
    """NumPy or CuPy, whichever made an array.

    Args:
        array: An array of either.
    """
    return sys.modules[type(array).__module__.partition(".")[0]]


def symmetric_beta(alpha: float, first: F64, second: F64) -> F64:
    """Beta(alpha, alpha), exactly, from two uniform numbers each, for any alpha above 0.

    (1 + T / sqrt(2 alpha + T**2)) / 2 is Beta(alpha, alpha) where T is Student's t with 2 alpha degrees of freedom, and
    sqrt(2 alpha (u**(-1 / alpha) - 1)) cos(2 pi v) is such a T: R. W. Bailey, "Polar generation of random variates with
    the t-distribution", Mathematics of Computation 62 (1994); L. Devroye, "Random variate generation in one line of
    code", Winter Simulation Conference 1996. There is no rejection, so a sample always needs two numbers.
    """
    cosine = np.cos(2 * np.pi * second)
    # Of u**(1 / alpha); 0 has no logarithm.
    log_power = np.log(np.maximum(first, 2.0**-54)) / alpha
    inverse = np.exp(log_power) / -np.expm1(log_power)
    result: F64 = 0.5 + 0.5 * cosine / np.sqrt(cosine**2 + inverse)
    return result


def mix_images(images: Any, mix: Mix) -> None:
    """Mixes in place, from the last image to the first, so each image's partner is still unchanged."""
    xp = array_module(images)
    block = _BLOCK[xp.__name__]
    last = images[-1:].copy()
    for stop in range(len(images), 0, -block):
        start = max(stop - block, 0)
        partners = (
            images[start - 1 : stop - 1]
            if start
            else xp.concatenate([last, images[: stop - 1]])
        )
        _mix_block(xp, images[start:stop], partners, mix, slice(start, stop))


def mix_mirrored(images: Any, mix: Mix) -> None:
    """Mixes in place: the first image with the last, the second with the second to last, and so on."""
    xp = array_module(images)
    count = len(images)
    half = (count + 1) // 2
    block = _BLOCK[array_module(images).__name__]
    for start in range(0, half, block):
        stop = min(start + block, half)
        rows = slice(start, stop)
        mirrored = slice(
            count - 1 - start, count - 1 - stop if stop < count else None, -1
        )
        originals = images[rows].copy()
        _mix_block(xp, images[rows], images[mirrored], mix, rows)
        _mix_block(xp, images[mirrored], originals, mix, mirrored)


def _mix_block(xp: Any, images: Any, partners: Any, mix: Mix, rows: slice) -> None:
    """Mixes images, which are these rows of a batch, with their partners."""
    boxes = mix.box[rows]
    shares = mix.in_box[rows]
    top, left = boxes[:, :2].min(0)
    bottom, right = boxes[:, 2:].max(0)
    part = images[..., top:bottom, left:right]
    if not part.size:
        return
    partner = partners[..., top:bottom, left:right]
    if len(part) == 1 and shares[0] == 0:
        part[...] = partner  # a copy costs half as much as a sum
    else:
        _blend(
            xp, part, partner, _shares_in(xp, boxes, shares, (top, left, bottom, right))
        )


def _shares_in(
    xp: Any, boxes: I64, shares: F64, around: tuple[int, int, int, int]
) -> Any:
    """float32 (N, 1, height, width), or (N, 1, 1, 1): the share of the image at each pixel of the area `around`."""
    top, left, bottom, right = around
    if (boxes == np.array(around)).all():
        return xp.asarray(shares.astype(np.float32)[:, None, None, None])
    first_y, first_x, last_y, last_x = xp.asarray(boxes.T[..., None])
    y = xp.arange(top, bottom)
    x = xp.arange(left, right)
    inside = ((y >= first_y) & (y < last_y))[:, :, None] & (
        (x >= first_x) & (x < last_x)
    )[:, None, :]
    return xp.where(
        inside, xp.asarray(shares.astype(np.float32)[:, None, None]), np.float32(1)
    )[:, None]


def _blend(xp: Any, part: Any, partner: Any, share: Any) -> None:
    """part = share * part + (1 - share) * partner, in float32. The two overlap, so the partner is read first."""
    others = (1 - share) * partner
    if part.dtype == np.float32:
        part *= share
        part += others
        return
    others += share * part
    part[...] = xp.rint(others) if part.dtype == np.uint8 else others


class _WholeBox(CutMix):
    def reach(self, sides: F64) -> tuple[F64, F64]:
        length = np.trunc(sides)
        return length // 2, (length + 1) // 2


@settings
class TimmMixup(Mixer):
    """timm's `Mixup`, with its arguments: `TimmMixup(mixup_alpha=0.8, cutmix_alpha=1.0)`.

    The n-th sample of a batch is mixed with the n-th from its end. label_smoothing has timm's default of 0.1 and also
    smooths the labels of samples that are not mixed. As in timm, a box of CutMix may extend beyond the image: its
    label's share is that of the pixels (correct_lam).

    Args:
        mixup_alpha: MixUp draws its shares from Beta(mixup_alpha, mixup_alpha); 0 disables it.
        cutmix_alpha: CutMix draws its shares from Beta(cutmix_alpha, cutmix_alpha); 0 disables it.
        prob: Probability of mixing.
        switch_prob: Probability of CutMix if both are enabled.
        mode: "batch": one draw for the whole batch, on each rank. "pair": one for two samples that are mixed with each
            other. "elem": one for each sample.
        label_smoothing: Share of a label spread evenly over all classes.
        num_classes: By default the number of classes of the data set.  The labels become float32 (N, num_classes);
            other fields do not change.

    Raises:
        ArgumentError: a value out of its range, or both alphas are 0.
    """

    mixup_alpha: Annotated[float, _ALPHA_OR_0] = 1.0
    cutmix_alpha: Annotated[float, _ALPHA_OR_0] = 0.0
    prob: Annotated[float, PROBABILITY] = 1.0
    switch_prob: Annotated[float, PROBABILITY] = 0.5
    mode: Annotated[
        Literal["batch", "pair", "elem"], choice("batch", "pair", "elem")
    ] = "batch"
    label_smoothing: Annotated[float, PROBABILITY] = 0.1
    num_classes: Annotated[int | None, _CLASSES] = None

    mirrored = True

    def __post_init__(self) -> None:
        if not (self.mixup_alpha or self.cutmix_alpha):
            raise ArgumentError(
                "TimmMixup(mixup_alpha=0, cutmix_alpha=0): mixes nothing. Give one of them above 0"
            )

    def plan(self, draws: Draws, height: int, width: int) -> Mix:
        """As `Mixer.plan`."""
        return self._mixer.plan(
            lambda number: self._shared(draws(number)), height, width
        )

    @cached_property
    def _mixer(self) -> Mixer:
        mixers: list[MixUp | CutMix] = []
        if self.mixup_alpha:
            mixers.append(MixUp(self.mixup_alpha, self.prob))
        if self.cutmix_alpha:
            mixers.append(_WholeBox(self.cutmix_alpha, self.prob))
        return (
            mixers[0]
            if len(mixers) == 1
            else RandomMixer(mixers, [1 - self.switch_prob, self.switch_prob])
        )

    def _shared(self, drawn: F64) -> F64:
        """The draws of all samples: those of the first one, or of the first of each pair."""
        if self.mode == "elem" or not len(drawn):
            return drawn
        rows = np.arange(len(drawn))
        shared: F64 = drawn[
            np.zeros_like(rows)
            if self.mode == "batch"
            else np.minimum(rows, rows[::-1])
        ]
        return shared
