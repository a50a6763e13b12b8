"""gpuload packs images into WebDataset shards and loads them for training, decoded and cropped on the GPU.

    python -m gpuload pack photos shards --val 0.1

    for images, labels in gpuload.DaliIterator("shards/train", batch_size=256, augment=gpuload.Augment(224)):
        ...

`gpuload.transforms` holds augmentations of single images, `gpuload.batchwise` those of whole batches, and
`gpuload.functions` describes your own functions.

Importing gpuload imports neither DALI nor torch nor CuPy; `DaliIterator` imports them when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
from gpuload.machine.installed import paused_collector

if TYPE_CHECKING:
    from gpuload import batchwise, functions, monitor, transforms
    from gpuload.augment import (
        Augment,
        CenterCrop,
        Cover,
        Letterbox,
        Normalize,
        PadOrCrop,
        RandomCrop,
        RandomResizedCrop,
        Resize,
        ScaleJitter,
        Stretch,
        ZoomOut,
    )
    from gpuload.decode.arguments import Both, Dali, OnCorrupt
    from gpuload.disk.dataset import Dataset
    from gpuload.fields.captions import Captions
    from gpuload.fields.images import Mask
    from gpuload.fields.numbers import MultiHot, OneHot, Target, Tokens
    from gpuload.fields.places import Boxes, Keypoints
    from gpuload.loader.iterator import DaliIterator
    from gpuload.order.arguments import Balance, Buckets, Mixture, Repeated
    from gpuload.order.arguments import Shuffle, Weights, mix
    from gpuload.packing.packer import pack

__version__ = "0.1.0"

# Imported on first use, so that the packer's workers need not wait for them. Name -> module below gpuload.
_LAZY = {
    "Augment": "augment",
    "Balance": "order.arguments",
    "Both": "decode.arguments",
    "Boxes": "fields.places",
    "Buckets": "order.arguments",
    "Captions": "fields.captions",
    "CenterCrop": "augment",
    "Cover": "augment",
    "Dali": "decode.arguments",
    "DaliIterator": "loader.iterator",
    "Dataset": "disk.dataset",
    "Keypoints": "fields.places",
    "Letterbox": "augment",
    "Mask": "fields.images",
    "Mixture": "order.arguments",
    "MultiHot": "fields.numbers",
    "Normalize": "augment",
    "OnCorrupt": "decode.arguments",
    "OneHot": "fields.numbers",
    "PadOrCrop": "augment",
    "RandomCrop": "augment",
    "RandomResizedCrop": "augment",
    "Repeated": "order.arguments",
    "Resize": "augment",
    "ScaleJitter": "augment",
    "Shuffle": "order.arguments",
    "Stretch": "augment",
    "Target": "fields.numbers",
    "Tokens": "fields.numbers",
    "Weights": "order.arguments",
    "ZoomOut": "augment",
    "mix": "order.arguments",
    "pack": "packing.packer",
}

_LAZY_MODULES = ("batchwise", "functions", "monitor", "transforms")

__all__ = [
    "ArgumentError",
    "Augment",
    "Balance",
    "Both",
    "Boxes",
    "Buckets",
    "Captions",
    "CenterCrop",
    "Cover",
    "Dali",
    "DaliIterator",
    "Dataset",
    "DecodeError",
    "DeviceError",
    "FormatError",
    "FunctionError",
    "GpuloadError",
    "Keypoints",
    "Letterbox",
    "Mask",
    "MissingPackageError",
    "Mixture",
    "MultiHot",
    "Normalize",
    "OnCorrupt",
    "OneHot",
    "OutputError",
    "PadOrCrop",
    "RandomCrop",
    "RandomResizedCrop",
    "RemoteError",
    "Repeated",
    "Resize",
    "ScaleJitter",
    "ShardError",
    "Shuffle",
    "SourceError",
    "StateError",
    "Stretch",
    "Target",
    "Tokens",
    "Weights",
    "ZoomOut",
    "batchwise",
    "functions",
    "mix",
    "monitor",
    "pack",
    "transforms",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES or name in _LAZY:
        with paused_collector():
            module = import_module(f"gpuload.{_LAZY.get(name, name)}")
        return getattr(module, name) if name in _LAZY else module
    raise AttributeError(f"module 'gpuload' has no attribute {name!r}")
