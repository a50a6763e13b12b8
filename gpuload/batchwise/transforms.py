"""Operations on whole batches, on the device that they are on: written once for NumPy's and CuPy's arrays.

    loader = gpuload.DaliIterator(
        "shards/train", 256, augment=gpuload.Augment(224), batch_transforms=[RandomChoice([MixUp(), CutMix()])]
    )
    for images, soft_labels in loader:
        ...

Any function that takes a `FieldBatch` and changes its fields is a batch transform, too: the place for a kernel of one's
own (`examples/raw_kernel.py`). Random numbers belong to (seed, epoch, sample), as those of crops do. A sample's partner
is the one before it in its batch, and the last one's for the first, as in torchvision.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from gpuload.batchwise.blend import Mix, array_module, mix_images, symmetric_beta
from gpuload.errors import ArgumentError
from gpuload.types import F64

# Each transform of a list owns this many random numbers of a sample, and each of a RandomChoice as many as `_INNER`.
_OWN, _INNER = 256, 8


class BatchForm(NamedTuple):
    """What is known of every batch before the first: its fields, the images' (height, width) and dtype, the classes."""

    fields: tuple[str, ...]
    image_size: tuple[int, int]
    dtype: str
    num_classes: int | None


@dataclass(frozen=True)
class FieldBatch:
    """A batch of N samples on its way to the user.

    fields: by name, in the order asked for: NumPy arrays, or on a GPU CuPy arrays, (N, ...), or lists. "image" is
        (N, 3, height, width), of float32, float16 or uint8, in either memory layout; "label" is int64 (N,). To be
        changed in place or replaced; what a transform adds comes after what was asked for.
    num_classes: of "label", where the packer was told.
    draws: gives float64 (N,) in [0, 1), for each of the numbers 0, 1, … other ones: a pure function of (seed, epoch,
        sample, number), always NumPy's. Each transform of a list has numbers of its own.
    """

    fields: dict[str, Any]
    num_classes: int | None
    draws: Callable[[int], F64]

    @property
    def form(self) -> BatchForm:
        images = self.fields.get("image")
        if images is None:
            return BatchForm(tuple(self.fields), (0, 0), "", self.num_classes)
        return BatchForm(tuple(self.fields), images.shape[-2:], str(images.dtype), self.num_classes)


class BatchTransform(Protocol):
    """What a batch transform is; a function without `adds` adds no fields."""

    def __call__(self, batch: FieldBatch, /) -> None:
        """Changes the batch's fields; sets those that `adds` names."""


class _Mixer:
    """A batch transform that mixes each sample with the one before it, in images and labels."""

    adds: tuple[str, ...] = ()
    num_classes: int | None

    def plan(self, draws: Callable[[int], F64], height: int, width: int) -> Mix:
        raise NotImplementedError

    def check(self, form: BatchForm) -> None:
        """Raises ArgumentError where a batch of this form cannot be mixed."""
        _require(self, form, "image", "label")
        if self.num_classes is None and form.num_classes is None:
            raise ArgumentError(f"{self}: the data set does not tell how many classes it has. Give num_classes")
        if (self.num_classes or math.inf) < (form.num_classes or 0):
            raise ArgumentError(f"{self}: the data set has {form.num_classes} classes; give as many, or leave it away")

    def __call__(self, batch: FieldBatch) -> None:
        self.check(batch.form)
        images, labels = batch.fields["image"], batch.fields["label"]
        if labels.ndim != 1:
            raise ArgumentError(
                f"{self}: the labels are soft already, of shape {labels.shape}. Mix a batch once: "
                "RandomChoice([MixUp(), CutMix()]) draws one of them for each sample"
            )
        mix = self.plan(batch.draws, *images.shape[-2:])
        mix_images(images, mix)
        classes = self.num_classes or batch.num_classes or 0
        # Where the data set tells its classes, its labels are among them; to ask a GPU is to wait for it.
        if batch.num_classes is None and len(labels) and int(labels.max()) >= classes:
            raise ArgumentError(f"{self}: a label is {int(labels.max())}; give num_classes of at least one more")
        batch.fields["label"] = self._soft_labels(labels, mix.label, classes)

    def _soft_labels(self, labels: Any, share: F64, classes: int) -> Any:
        """float32 (N, classes)."""
        xp = array_module(labels)
        soft, rows, own = xp.zeros((len(labels), classes), np.float32), xp.arange(len(labels)), xp.asarray(share)
        soft[rows, labels] = own
        soft[rows, xp.roll(labels, 1)] += 1 - own
        return soft


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
    """

    alpha: float = 0.2
    p: float = 1.0
    num_classes: int | None = None

    def __post_init__(self) -> None:
        _check_mixing(self, self.alpha, self.p)

    def plan(self, draws: Callable[[int], F64], height: int, width: int) -> Mix:
        mixed = draws(0) < self.p
        own = np.where(mixed, symmetric_beta(self.alpha, draws(1), draws(2)), 1.0)
        return Mix(mixed[:, None] * np.array([0, 0, height, width]), own, own)


@dataclass(frozen=True)
class CutMix(_Mixer):
    """A box of each image replaced by that part of the image before it, as torchvision.transforms.v2.CutMix does.

    The box is 1 - lambda of the image's area, lambda from Beta(alpha, alpha) for each sample (torchvision: for each
    batch); its middle is anywhere, and what hangs over the edge is cut off. The label's share is that of the pixels.

    alpha: above 0; the paper's is 1 (Yun et al., arXiv 1905.04899).
    p: probability that a sample is mixed.
    num_classes: by default as many as the data set has.

    The labels become float32 (N, num_classes); other fields stay as they are. Of 224×224 pixels, ms of one CPU core an
    image (2026-11): float32 0.045, uint8 0.023, float16 0.029.
    """

    alpha: float = 1.0
    p: float = 1.0
    num_classes: int | None = None

    def __post_init__(self) -> None:
        _check_mixing(self, self.alpha, self.p)

    def plan(self, draws: Callable[[int], F64], height: int, width: int) -> Mix:
        mixed = draws(0) < self.p
        own = symmetric_beta(self.alpha, draws(1), draws(2))
        size = np.array([height, width])
        middle = np.floor(np.stack([draws(3), draws(4)], 1) * size)
        half = np.trunc(0.5 * np.sqrt(1 - own)[:, None] * size)
        start, stop = np.maximum(middle - half, 0), np.minimum(middle + half, size)
        box = np.concatenate([start, stop], 1).astype(np.int64) * mixed[:, None]
        area = np.prod(box[:, 2:] - box[:, :2], axis=1)
        return Mix(box, np.zeros(len(box)), 1 - area / max(height * width, 1))


@dataclass(frozen=True)
class RandomChoice(_Mixer):
    """One of several for each sample: `RandomChoice([MixUp(), CutMix()])`.

    transforms: MixUp and CutMix, any number. p: their probabilities, by default equal; they are divided by their sum.
    """

    transforms: Sequence[MixUp | CutMix]
    p: Sequence[float] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", tuple(self.transforms))
        if not self.transforms or not all(isinstance(one, MixUp | CutMix) for one in self.transforms):
            raise ArgumentError(f"{self}: expected one or more of MixUp and CutMix")
        if self.p is not None and (len(self.p) != len(self.transforms) or min(self.p) < 0 or not sum(self.p) > 0):
            raise ArgumentError(f"{self}: expected a probability for each of the {len(self.transforms)} transforms")
        if len({one.num_classes for one in self.transforms}) > 1:
            raise ArgumentError(f"{self}: num_classes differ; give all the same")

    @property
    def num_classes(self) -> int | None:  # type: ignore[override]
        return self.transforms[0].num_classes

    def plan(self, draws: Callable[[int], F64], height: int, width: int) -> Mix:
        shares = np.cumsum(self.p if self.p is not None else np.ones(len(self.transforms)))
        # The last share is 1 whatever the rounding, and a draw is less.
        chosen = np.searchsorted(shares[:-1] / shares[-1], draws(0), side="right")
        plans = [
            one.plan(_shifted(draws, 1 + place * _INNER), height, width) for place, one in enumerate(self.transforms)
        ]
        rows = np.arange(len(chosen))
        return Mix(*(np.stack(parts)[chosen, rows] for parts in zip(*plans, strict=True)))


@dataclass(frozen=True)
class CenterHole:
    """The task of inpainting: the middle of each image becomes a field of its own, and a hole in the image.

    size: of the hole in pixels, or (height, width). An odd rest of the image is below and right of it.
    fill: of the hole, in units of the batch: 0 is the mean of a normalised image, and black with uint8, whose units are
        0..255.
    target: name of the field that is added: (N, 3, height, width) of the hole, of the image's dtype.
    """

    size: int | tuple[int, int] = 32
    fill: float = 0.0
    target: str = "middle"

    def __post_init__(self) -> None:
        if len(self._hole) != 2 or min(self._hole) < 1:
            raise ArgumentError(f"CenterHole(size={self.size!r}): expected a positive side in pixels, or two")

    @property
    def adds(self) -> tuple[str, ...]:
        return (self.target,)

    @property
    def _hole(self) -> tuple[int, int]:
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    def check(self, form: BatchForm) -> None:
        """Raises ArgumentError where a batch of this form has no place for the hole."""
        _require(self, form, "image")
        height, width = form.image_size
        if self._hole[0] > height or self._hole[1] > width:
            raise ArgumentError(f"{self}: the hole is larger than the image, {height}×{width} pixels (height×width)")
        if form.dtype == "uint8" and self.fill not in range(256):
            raise ArgumentError(f"{self}: the images are uint8; fill must be a whole number in 0..255")

    def __call__(self, batch: FieldBatch) -> None:
        self.check(batch.form)
        images, (height, width) = batch.fields["image"], self._hole
        top, left = (images.shape[-2] - height) // 2, (images.shape[-1] - width) // 2
        middle = images[..., top : top + height, left : left + width]
        batch.fields[self.target] = middle.copy()
        middle[...] = self.fill


def check_transforms(transforms: Sequence[BatchTransform], form: BatchForm) -> tuple[str, ...]:
    """The names of the fields that these transforms, one after the other, add to those of `form`.

    Raises:
        ArgumentError: what can be said before the first batch: a field that is missing or there twice, labels that
            would be mixed twice, unknown classes, a hole larger than the images, no function at all.
    """
    known = form.fields
    for transform in transforms:
        if not callable(transform):
            raise ArgumentError(f"batch_transforms: {transform!r} is no function of a batch")
        if (check := getattr(transform, "check", None)) is not None:
            check(form._replace(fields=known))
        for name in (added := tuple(getattr(transform, "adds", ()))):
            if name in known:
                raise ArgumentError(f"batch_transforms: {transform} adds the field {name!r}, which is there already")
        known += added
    if len(mixers := [transform for transform in transforms if isinstance(transform, _Mixer)]) > 1:
        raise ArgumentError(
            f"batch_transforms: {' and '.join(map(str, mixers))} would mix the labels twice. Use "
            "RandomChoice([MixUp(), CutMix()]), which draws one of them for each sample"
        )
    return known[len(form.fields) :]


def apply_transforms(transforms: Sequence[BatchTransform], batch: FieldBatch) -> None:
    """Runs them one after the other over the batch; on a GPU, on CuPy's current stream.

    Raises:
        ArgumentError: the batch is not what a transform needs, or a transform did not set a field that it `adds`.
    """
    for place, transform in enumerate(transforms):
        transform(replace(batch, draws=_shifted(batch.draws, place * _OWN)))
        for name in getattr(transform, "adds", ()):
            if name not in batch.fields:
                raise ArgumentError(
                    f"batch_transforms: {transform} did not set the field {name!r}, which its adds names"
                )


def _shifted(draws: Callable[[int], F64], first: int) -> Callable[[int], F64]:
    return partial(_draw, draws, first)


def _draw(draws: Callable[[int], F64], first: int, number: int) -> F64:
    return draws(first + number)


def _require(transform: object, form: BatchForm, *names: str) -> None:
    for name in names:
        if name not in form.fields:
            raise ArgumentError(
                f"{transform}: needs the field {name!r}; fields are {', '.join(map(repr, form.fields))}"
            )


def _check_mixing(transform: MixUp | CutMix, alpha: float, p: float) -> None:
    if not 0 < alpha < np.inf:
        raise ArgumentError(f"{transform}: expected alpha above 0; to mix nothing, leave the transform away")
    if not 0 <= p <= 1:
        raise ArgumentError(f"{transform}: expected p, a probability, in 0..1")
    if transform.num_classes is not None and transform.num_classes < 1:
        raise ArgumentError(f"{transform}: expected num_classes of at least 1")
