"""Operations on whole batches on their device, written once for NumPy and CuPy arrays.

    loader = gpuload.DaliIterator(
        "shards/train", 256, augment=gpuload.Augment(224), batch_transforms=[RandomMixer([MixUp(), CutMix()])]
    )
    for images, soft_labels in loader:
        ...

Any function that takes a `FieldBatch` and changes its fields is a batch transform, too, such as a CUDA kernel
(`examples/raw_kernel.py`). `Operation` is the base class for your own in torch. Random numbers depend on (seed, epoch,
sample), as for crops. `join_tiles` assembles a model's outputs for the tiles of an image.
"""

from gpuload.batchwise.mixers import CutMix, MixUp, RandomMixer, TimmMixup
from gpuload.batchwise.patches import CenterHole, join_tiles
from gpuload.batchwise.transforms import (
    BatchForm,
    BatchTransform,
    FieldBatch,
    Operation,
)

__all__ = [
    "BatchForm",
    "BatchTransform",
    "CenterHole",
    "CutMix",
    "FieldBatch",
    "MixUp",
    "Operation",
    "RandomMixer",
    "TimmMixup",
    "join_tiles",
]
