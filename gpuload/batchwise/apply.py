"""Checks a list of batch transforms before the first batch, and runs it over each."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpuload.batchwise.interface import BatchForm, BatchTransform, FieldBatch
from gpuload.checks import Rule, as_items, shown
from gpuload.draws import BATCH_TRANSFORM_DRAWS, EACH_BATCH_TRANSFORM
from gpuload.errors import ArgumentError

MOST_TRANSFORMS = BATCH_TRANSFORM_DRAWS.count // EACH_BATCH_TRANSFORM


def _as_transforms(value: Any) -> tuple[BatchTransform, ...]:
    transforms = as_items(value)
    for transform in transforms:
        if not callable(transform) or isinstance(transform, type):
            raise ArgumentError(
                f"batch_transforms: {shown(transform)} is no function of a batch. Expected functions, or instances "
                "such as MixUp()"
            )
        for attribute in ("adds", "softens"):
            names = getattr(transform, attribute, ())
            if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
                raise ArgumentError(
                    f"batch_transforms: {shown(transform)} has {attribute} = {shown(names)}. Expected a tuple of names"
                )
    return transforms


TRANSFORMS: Rule[tuple[BatchTransform, ...]] = Rule("a list of functions, such as [MixUp()]", _as_transforms)


def check_transforms(transforms: Sequence[BatchTransform], form: BatchForm) -> tuple[str, ...]:
    """The names of the fields that these transforms, one after the other, add to those of `form`.

    Raises:
        ArgumentError: what can be said before the first batch: too many transforms, a field that is missing or there
            twice, labels that would be mixed twice, unknown classes, a hole larger than the images.
    """
    if len(transforms) > MOST_TRANSFORMS:
        raise ArgumentError(
            f"batch_transforms: there are {len(transforms)}, expected at most {MOST_TRANSFORMS}. Combine some of them "
            "in one function"
        )
    known, classes = form.fields, form.class_fields
    softened: dict[str, BatchTransform] = {}
    for transform in transforms:
        for name in getattr(transform, "softens", ()):
            if name in softened:
                raise ArgumentError(
                    f"batch_transforms: {softened[name]} and {transform} would mix the labels twice. Use "
                    "RandomChoice([MixUp(), CutMix()]), which draws one of them for each sample"
                )
            softened[name] = transform
        if (check := getattr(transform, "check", None)) is not None:
            check(form._replace(fields=known, class_fields=classes))
        for name in (added := tuple(getattr(transform, "adds", ()))):
            if name in known:
                raise ArgumentError(f"batch_transforms: {transform} adds the field {name!r}, which is there already")
        known += added
        classes = tuple(name for name in (*classes, *added) if name not in softened)
    return known[len(form.fields) :]


def apply_transforms(transforms: Sequence[BatchTransform], batch: FieldBatch) -> None:
    """Runs them one after the other over the batch; on a GPU, on CuPy's current stream.

    Raises:
        ArgumentError: the batch is not what a transform needs, a transform asks for a random number that it does not
            have, returns something new, or did not set a field that it `adds`.
    """
    for index, transform in enumerate(transforms):
        own = BATCH_TRANSFORM_DRAWS.part(
            f"batch_transforms[{index}]", index * EACH_BATCH_TRANSFORM, EACH_BATCH_TRANSFORM
        )
        result: Any = transform(replace(batch, draws=own.of(batch.draws)))  # type: ignore[func-returns-value]
        if result is not None:
            _check_result(transform, result, batch)
        for name in getattr(transform, "adds", ()):
            if name not in batch.fields:
                raise ArgumentError(
                    f"batch_transforms: {transform} did not set the field {name!r}, which its adds names"
                )


def _check_result(transform: BatchTransform, result: Any, batch: FieldBatch) -> None:
    """Raises ArgumentError where a transform returns what it has made. What was changed in place may be returned."""
    in_place = (batch.fields, *batch.fields.values())
    if not any(result is one for one in in_place) and getattr(result, "fields", None) is not batch.fields:
        raise ArgumentError(
            f"batch_transforms: {shown(transform)} returned {shown(result)}, but what it returns is not used. Change "
            "the arrays in batch.fields, or set batch.fields['image'] = …, and return nothing"
        )
