"""gpuload packs images into WebDataset shards and loads them for training, decoded and cropped on the GPU.

    python -m gpuload pack photos shards --val 0.1

    for images, labels in gpuload.DaliIterator("shards/train", batch_size=256, augment=gpuload.Augment(224)):
        ...

`gpuload.transforms` holds augmentations of single images, `gpuload.batchwise` those of whole batches, and
`gpuload.functions` is about functions of your own.

Importing gpuload imports neither DALI nor torch nor CuPy; `DaliIterator` imports them when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpuload.collector import paused_collector
from gpuload.errors import (
    ArgumentError,
    DecodeError,
    DeviceError,
    FormatError,
    FunctionError,
    GpuloadError,
    MissingPackageError,
    OutputError,
    RemoteError,
    ShardError,
    SourceError,
    StateError,
)

if TYPE_CHECKING:
    from gpuload import batchwise, functions, monitor, transforms
    from gpuload.augment import Augment, RandomCrop
    from gpuload.disk.dataset import Dataset
    from gpuload.fields.arrays import Tokens
    from gpuload.fields.boxes import Boxes
    from gpuload.fields.chosen_caption import Captions
    from gpuload.fields.class_numbers import OneHot
    from gpuload.fields.keypoints import Keypoints
    from gpuload.fields.labels import MultiHot
    from gpuload.fields.masks import Mask
    from gpuload.fields.targets import Target
    from gpuload.iterator import DaliIterator
    from gpuload.order.buckets import Buckets
    from gpuload.order.mixture import Mixture, mix
    from gpuload.packing.api import pack

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "Augment",
    "Boxes",
    "Buckets",
    "Captions",
    "DaliIterator",
    "Dataset",
    "DecodeError",
    "DeviceError",
    "FormatError",
    "FunctionError",
    "GpuloadError",
    "Keypoints",
    "Mask",
    "MissingPackageError",
    "Mixture",
    "MultiHot",
    "OneHot",
    "OutputError",
    "RandomCrop",
    "RemoteError",
    "ShardError",
    "SourceError",
    "StateError",
    "Target",
    "Tokens",
    "batchwise",
    "functions",
    "mix",
    "monitor",
    "pack",
    "transforms",
]

# Imported on first use, so that the packer's workers need not wait for them. Name -> module below gpuload.
_LAZY = {
    "Augment": "augment",
    "Boxes": "fields.boxes",
    "Buckets": "order.buckets",
    "Captions": "fields.chosen_caption",
    "DaliIterator": "iterator",
    "Dataset": "disk.dataset",
    "Keypoints": "fields.keypoints",
    "Mask": "fields.masks",
    "Mixture": "order.mixture",
    "MultiHot": "fields.labels",
    "OneHot": "fields.class_numbers",
    "RandomCrop": "augment",
    "Target": "fields.targets",
    "Tokens": "fields.arrays",
    "mix": "order.mixture",
    "pack": "packing.api",
}

_LAZY_MODULES = ("batchwise", "functions", "monitor", "transforms")


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES or name in _LAZY:
        with paused_collector():
            module = import_module(f"gpuload.{_LAZY.get(name, name)}")
        return getattr(module, name) if name in _LAZY else module
    raise AttributeError(f"module 'gpuload' has no attribute {name!r}")
