"""The interface of batch transforms, the base class of your own, and the application of a list of them to a batch."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, NamedTuple, Protocol

import numpy as np

from gpuload.checks import Rule, as_items, shown
from gpuload.draws import BATCH_TRANSFORM_DRAWS, EACH_BATCH_TRANSFORM, DrawRange, Draws
from gpuload.errors import ArgumentError
from gpuload.fields.registry import COMPUTED
from gpuload.types import Array, HeightWidth


class BatchForm(NamedTuple):
    """The properties of every batch, known before the first.

    Attributes:
        fields: Names, in the requested order.
        image_size: (height, width) of "image" in pixels.
        dtype: Of "image".
        num_classes: Of "label", if known from packing.
        class_fields: The fields with one class number for each sample, whole numbers (N,), including those added by
            earlier transforms, whose contents are unknown.
    """

    fields: tuple[str, ...]
    image_size: HeightWidth
    dtype: str
    num_classes: int | None
    class_fields: tuple[str, ...] = ()


@dataclass(frozen=True)
class FieldBatch:
    """A batch of N samples on its way to the user.

    Attributes:
        fields: By name, in the requested order: NumPy arrays, or on a GPU CuPy arrays, (N, ...), or lists. "image" is
            (N, 3, height, width), of float32, float16 or uint8, in either memory layout; "label" is int64 (N,).
            Transforms change them in place or replace them; added fields come after the requested ones.
        num_classes: Of "label", if known from packing.
        draws: Returns float64 (N,) in [0, 1), a NumPy array also on a GPU, for each of the numbers 0..255: a pure
            function of (seed, epoch, sample, number). Each transform in a list has its own numbers.
        mixes: False: MixUp and similar transforms change no images, and make one-hot labels, or smooth ones.
    """

    fields: dict[str, Any]
    num_classes: int | None
    draws: Draws
    mixes: bool = True

    @property
    def form(self) -> BatchForm:
        """The form of this batch."""
        names = tuple(self.fields)
        others = (*COMPUTED, "bucket")
        classes = tuple(
            name
            for name in names
            if name not in others and _is_class_numbers(self.fields[name])
        )
        images = self.fields.get("image")
        size, dtype = (
            ((0, 0), "") if images is None else (images.shape[-2:], str(images.dtype))
        )
        return BatchForm(names, size, dtype, self.num_classes, classes)


class BatchTransform(Protocol):
    """A function that changes a batch. It may also have these attributes:

    adds: names of the fields that it adds to the batch.
    softens: names of class fields that it replaces by soft labels, float32 (N, classes).
    check: a function of a `BatchForm` that raises ArgumentError if it cannot process such batches; called before the
        first batch.
    """

    def __call__(self, batch: FieldBatch, /) -> None:
        """Changes the batch's fields; sets those that `adds` names."""


def require_fields(transform: object, form: BatchForm, *names: str) -> None:
    """Raises ArgumentError if the batch lacks one of these fields."""
    for name in names:
        if name not in form.fields:
            raise ArgumentError(
                f"{transform}: needs the field {name!r}; fields are {', '.join(map(repr, form.fields))}"
            )


def _is_class_numbers(values: Any) -> bool:
    return getattr(values, "ndim", 0) == 1 and values.dtype.kind in "iu"


def _draws_of(number: int) -> DrawRange:
    """Of this transform in a list. Raises ArgumentError if there are too many."""
    first = number * EACH_BATCH_TRANSFORM
    name = f"batch_transforms[{number}]"
    return BATCH_TRANSFORM_DRAWS.part(name, first, EACH_BATCH_TRANSFORM)


def _as_transforms(value: Any) -> tuple[BatchTransform, ...]:
    transforms = as_items(value)
    for number, transform in enumerate(transforms):
        _draws_of(number)
        names = [getattr(transform, attribute, ()) for attribute in ("adds", "softens")]
        is_named = all(isinstance(group, list | tuple) for group in names)
        if not callable(transform) or isinstance(transform, type) or not is_named:
            raise ArgumentError(
                f"batch_transforms: {shown(transform)} is not a function of a batch, or its adds or softens is no "
                "tuple of names. Expected functions, or instances such as MixUp()"
            )
    return transforms


TRANSFORMS: Rule[tuple[BatchTransform, ...]] = Rule(
    "a list of functions, such as [MixUp()]", _as_transforms
)


def check_transforms(
    transforms: Sequence[BatchTransform], form: BatchForm
) -> tuple[str, ...]:
    """The names of the fields that these transforms add.

    Args:
        transforms: In the order in which they are called.
        form: What a batch holds before the first of them: its fields, classes and sizes.

    Raises:
        ArgumentError: a fault known before the first batch: a missing or duplicate field, labels
            that would be mixed twice, unknown classes, a hole larger than the images.
    """
    fields = form.fields
    classes = form.class_fields
    softened: dict[str, BatchTransform] = {}
    for transform in transforms:
        for name in getattr(transform, "softens", ()):
            if name in softened:
                raise ArgumentError(
                    f"batch_transforms: {softened[name]} and {transform} would mix the labels twice. Use "
                    "RandomMixer([MixUp(), CutMix()]), which draws one of them for each sample"
                )
            softened[name] = transform
        if (check := getattr(transform, "check", None)) is not None:
            check(form._replace(fields=fields, class_fields=classes))
        for name in (added := tuple(getattr(transform, "adds", ()))):
            if name in fields:
                raise ArgumentError(
                    f"batch_transforms: {transform} adds the field {name!r}, which already exists"
                )
        fields += added
        classes = tuple(name for name in (*classes, *added) if name not in softened)
    return fields[len(form.fields) :]


def apply_transforms(transforms: Sequence[BatchTransform], batch: FieldBatch) -> None:
    """Applies the transforms to the batch in turn; on a GPU, on CuPy's current stream.

    Raises:
        ArgumentError: the batch does not fit a transform, or a transform requests a random number beyond its range,
            returns a new value, or did not set a field that it `adds`.
    """
    for number, transform in enumerate(transforms):
        draws = _draws_of(number).of(batch.draws)
        result: Any = transform(replace(batch, draws=draws))  # type: ignore[func-returns-value]  # some do
        if result is not None:
            _check_result(transform, result, batch)
        for name in getattr(transform, "adds", ()):
            if name not in batch.fields:
                raise ArgumentError(
                    f"batch_transforms: {transform} did not set the field {name!r}, which its adds names"
                )


def _check_result(transform: BatchTransform, result: Any, batch: FieldBatch) -> None:
    """Raises ArgumentError if a transform returns a new value. Values changed in place may be returned."""
    in_place = (batch.fields, *batch.fields.values())
    if (
        not any(result is value for value in in_place)
        and getattr(result, "fields", None) is not batch.fields
    ):
        raise ArgumentError(
            f"batch_transforms: {shown(transform)} returned {shown(result)}, but return values are ignored. Change "
            "the arrays in batch.fields, or set batch.fields['image'] = …, and return nothing"
        )


class Operation(ABC):
    """A batch transform defined by `draw` and `kernel`, for `DaliIterator(batch_transforms=[…])`.

        class Fade(gpuload.batchwise.Operation):
            def draw(self, draws, height, width):
                return 0.5 + draws(0) / 2                       # (N,): a factor of each image

            def kernel(self, numbers, images):
                return images * numbers[:, None, None, None]    # float32 (N, 3, height, width) stays so

    Attributes:
        uses: Names of the fields that the kernel gets after the numbers and returns: one tensor, or a tuple in this
            order.

    It may also define `adds`, `softens` and `check` (see `BatchTransform`).
    """

    uses: tuple[str, ...] = ("image",)

    @abstractmethod
    def draw(self, draws: Draws, height: int, width: int) -> Array:
        """(N,) or (N, K) numbers of any dtype: the parameters for each of N samples.

        Args:
            draws: `draws(k)` gives float64 (N,) in [0, 1), random number k of each sample, k in 0..255: a pure function
                of (seed, epoch, sample, k), on the host.
            height: Of the images in pixels.
            width: Of the images in pixels.
        """

    @abstractmethod
    def kernel(self, numbers: Any, *fields: Any) -> Any:
        """Returns the new fields, tensors of the same dtype and device; "image" also of the same shape.

        Args:
            numbers: The result of `draw` on the device of the fields, float64 as float32.
            fields: Those in `uses`: "image" is (N, 3, height, width), of float32, float16 or uint8. They may be changed
                in place. The kernel must not synchronise with the GPU, as `.item()` does.
        """

    def check(self, form: BatchForm) -> None:
        """Checks a batch before the first one is made.

        Args:
            form: Of the batches.

        Raises:
            ArgumentError: they lack a field that the kernel uses, or images.
        """
        require_fields(self, form, "image", *self.uses)

    def __call__(self, batch: FieldBatch) -> None:
        torch = import_module("torch")
        drawn = np.asarray(self.draw(batch.draws, *batch.form.image_size))
        count = len(batch.fields["image"])
        if drawn.ndim not in (1, 2) or len(drawn) != count:
            raise ArgumentError(
                f"{self}: draw returned numbers of shape {drawn.shape}, expected ({count},) or ({count}, K), for each "
                "sample"
            )
        with torch.no_grad():
            values = {name: torch.from_dlpack(batch.fields[name]) for name in self.uses}
            numbers = torch.from_numpy(
                np.ascontiguousarray(
                    drawn, np.float32 if drawn.dtype == np.float64 else None
                )
            )
            device = next((field.device for field in values.values()), numbers.device)
            if device.type == "cuda":
                numbers = numbers.pin_memory().to(device, non_blocking=True)
            result = self.kernel(numbers, *values.values())
        after = result if isinstance(result, tuple) else (result,)
        if len(after) != len(values) or not all(
            map(_fits, values, values.values(), after)
        ):
            raise ArgumentError(
                f"{self}: kernel returned {_described(after)}, expected {_described(values.values())}"
            )
        for (name, old), new in zip(values.items(), after, strict=True):
            if new is not old:
                batch.fields[name] = _back(batch.fields[name], new)

    def __str__(self) -> str:
        return type(self).__name__


def _fits(name: str, old: Any, new: Any) -> bool:
    """Whether a kernel may return this in place of a field."""
    if type(new) is not type(old) or (new.dtype, new.device, len(new)) != (
        old.dtype,
        old.device,
        len(old),
    ):
        return False
    return name != "image" or new.shape == old.shape


def _described(values: Iterable[Any]) -> str:
    return ", ".join(
        f"{v.dtype} {tuple(v.shape)} on {v.device}"
        if hasattr(v, "device")
        else shown(v)
        for v in values
    )


def _back(like: Any, tensor: Any) -> Any:
    """The tensor as an array of the library of `like`."""
    if isinstance(like, np.ndarray):
        return tensor.numpy()
    return import_module(type(like).__module__.partition(".")[0]).from_dlpack(tensor)
