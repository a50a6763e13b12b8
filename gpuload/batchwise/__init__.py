"""Operations on whole batches, on the device that they are on: MixUp, CutMix, and functions of your own."""

from gpuload.batchwise.transforms import (
    BatchForm,
    BatchTransform,
    CenterHole,
    CutMix,
    FieldBatch,
    MixUp,
    RandomChoice,
    apply_transforms,
    check_transforms,
)

__all__ = [
    "BatchForm",
    "BatchTransform",
    "CenterHole",
    "CutMix",
    "FieldBatch",
    "MixUp",
    "RandomChoice",
    "apply_transforms",
    "check_transforms",
]
