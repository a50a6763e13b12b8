"""Checks a list of batch transforms before the first batch, and runs it over each."""

from collections.abc import Sequence
from dataclasses import replace

from gpuload.batchwise.interface import BatchForm, BatchTransform, FieldBatch
from gpuload.draws import BATCH_TRANSFORM_DRAWS, EACH_BATCH_TRANSFORM
from gpuload.errors import ArgumentError

MOST_TRANSFORMS = BATCH_TRANSFORM_DRAWS.count // EACH_BATCH_TRANSFORM


def check_transforms(transforms: Sequence[BatchTransform], form: BatchForm) -> tuple[str, ...]:
    """The names of the fields that these transforms, one after the other, add to those of `form`.

    Raises:
        ArgumentError: what can be said before the first batch: too many transforms, a field that is missing or there
            twice, labels that would be mixed twice, unknown classes, a hole larger than the images, no function at all.
    """
    if len(transforms) > MOST_TRANSFORMS:
        raise ArgumentError(
            f"batch_transforms: there are {len(transforms)}, expected at most {MOST_TRANSFORMS}. Combine some of them "
            "in one function"
        )
    known, classes = form.fields, form.class_fields
    softened: dict[str, BatchTransform] = {}
    for transform in transforms:
        if not callable(transform):
            raise ArgumentError(f"batch_transforms: {transform!r} is no function of a batch")
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
            have, or it did not set a field that it `adds`.
    """
    for index, transform in enumerate(transforms):
        own = BATCH_TRANSFORM_DRAWS.part(
            f"batch_transforms[{index}]", index * EACH_BATCH_TRANSFORM, EACH_BATCH_TRANSFORM
        )
        transform(replace(batch, draws=own.of(batch.draws)))
        for name in getattr(transform, "adds", ()):
            if name not in batch.fields:
                raise ArgumentError(
                    f"batch_transforms: {transform} did not set the field {name!r}, which its adds names"
                )
