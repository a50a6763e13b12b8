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
    ArgumentError as ArgumentError,
    DecodeError as DecodeError,
    DeviceError as DeviceError,
    FormatError as FormatError,
    FunctionError as FunctionError,
    GpuloadError as GpuloadError,
    MissingPackageError as MissingPackageError,
    OutputError as OutputError,
    RemoteError as RemoteError,
    ShardError as ShardError,
    SourceError as SourceError,
    StateError as StateError,
)
from gpuload.machine.installed import paused_collector

if TYPE_CHECKING:
    from gpuload import batchwise as batchwise, functions as functions, monitor as monitor, transforms as transforms
    from gpuload.augment import (
        Augment as Augment,
        CenterCrop as CenterCrop,
        Cover as Cover,
        Letterbox as Letterbox,
        Normalize as Normalize,
        PadOrCrop as PadOrCrop,
        RandomCrop as RandomCrop,
        RandomResizedCrop as RandomResizedCrop,
        Resize as Resize,
        ScaleJitter as ScaleJitter,
        Stretch as Stretch,
        ZoomOut as ZoomOut,
    )
    from gpuload.decode.arguments import Both as Both, Dali as Dali, OnCorrupt as OnCorrupt
    from gpuload.disk.dataset import Dataset as Dataset
    from gpuload.fields.boxes import Boxes as Boxes
    from gpuload.fields.captions import Captions as Captions
    from gpuload.fields.images import Mask as Mask
    from gpuload.fields.keypoints import Keypoints as Keypoints
    from gpuload.fields.numbers import MultiHot as MultiHot, OneHot as OneHot, Target as Target, Tokens as Tokens
    from gpuload.loader.iterator import DaliIterator as DaliIterator
    from gpuload.order.arguments import Balance as Balance, Buckets as Buckets, Mixture as Mixture, Repeated as Repeated
    from gpuload.order.arguments import Shuffle as Shuffle, Weights as Weights, mix as mix
    from gpuload.packing.packer import pack as pack

__version__ = "0.1.0"

# Imported on first use, so that the packer's workers need not wait for them. Name -> module below gpuload.
_LAZY = {
    "Augment": "augment",
    "Balance": "order.arguments",
    "Both": "decode.arguments",
    "Boxes": "fields.boxes",
    "Buckets": "order.arguments",
    "Captions": "fields.captions",
    "CenterCrop": "augment",
    "Cover": "augment",
    "Dali": "decode.arguments",
    "DaliIterator": "loader.iterator",
    "Dataset": "disk.dataset",
    "Keypoints": "fields.keypoints",
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

__all__ = sorted([*_LAZY, *_LAZY_MODULES, *(name for name in globals() if name.endswith("Error"))])


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES or name in _LAZY:
        with paused_collector():
            module = import_module(f"gpuload.{_LAZY.get(name, name)}")
        return getattr(module, name) if name in _LAZY else module
    raise AttributeError(f"module 'gpuload' has no attribute {name!r}")
